"""The epsilon of each observer: what it sees, and what that costs.

One function for every number, in plans, ledgers and answers: `candidates` are the
events that an observer may be taken to see, each with a proof of its own, and `bound`
is the least of their epsilons.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any, NamedTuple

from tff_pipelines.accounting.events import base, combinators
from tff_pipelines.accounting.guarantees import (
    accountant as accountant_lib, bounds, groups, noise_budget)
from tff_pipelines.accounting.guarantees.guarantee import UNBOUNDED
from tff_pipelines.common import caveats, validate

IDEAL = 'epsilon of ideal distributions'
_PERSONS = bounds.PERSON, bounds.PERSON_SERVER


AVERAGE = 'average'
_ALL_SHARES = caveats.Caveat(
    'shares of all clients counted on', 'against observers of the models epsilon counts '
    'on the shares of the noise of all clients that report, those that may collude with '
    'the server included: they are taken to follow the protocol')
# The observers of one client and of a person who know the same.
OF_ONE = {bounds.PERSON: bounds.OUTSIDERS, bounds.PERSON_SERVER: bounds.SERVER}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
  """How numbers are computed.

  Attributes:
    accountant, amplification: As for `accountant.epsilon`.
    population, records: As for `accountant.bound`.
    least_population: The smallest number of clients of several runs; None for
      `population`.
    colluders: Number of participants who pool what they know, >= 1.
    surviving_fraction: Fraction of the shares of the noise that are there, in (0, 1].
    clients_per_person: Clients that one person may own, >= 1.
  """

  accountant: str = 'auto'
  amplification: str = 'tight'
  population: int | None = None
  records: int | None = None
  least_population: int | None = None
  colluders: int = 1
  surviving_fraction: float = 1.0
  clients_per_person: int = 1

  @property
  def participants(self) -> base.Participants:
    """The participants who pool what they know."""
    # Missing shares are the others': all that is missing is seen as collusion.
    return base.Participants(
        colluders=self.colluders, shares=self.colluders / self.surviving_fraction,
        population=self.least_population or self.population)


class View(NamedTuple):
  """The releases of runs.

  Attributes:
    event: Everything that was released.
    total_variation: Distance of all of that from ideal distributions, above 1 as 1,
      which consumes delta; None where no bound is known.
  """

  event: base.Event
  total_variation: float | None = None

  def is_amplified(self, observer: str) -> bool:
    """Whether an observer learns nothing about who was selected."""
    return observer in (bounds.OUTSIDERS, bounds.PERSON) or (
        combinators.is_secret(self.event))


class Candidate(NamedTuple):
  """An event that dominates what an observer sees.

  Attributes:
    amplification: As in `bounds.Bound`.
    event: Everything that was released.
  """

  amplification: str | None
  event: base.Event


def candidates(view: View, observer: str, method: Method) -> list[Candidate]:
  """The events that dominate what an observer sees, of which the least counts.

  Against observers of the models cohorts are hidden, and all the noise is there. Bounds
  against whoever knows the cohorts hold against them as well, and bounds for any
  cohorts hold for those that are drawn by the rule.
  """
  event, clients, is_hidden = view.event, 1, view.is_amplified(observer)
  if observer in _PERSONS:
    clients = method.clients_per_person
  participants = method.participants if observer == bounds.PARTICIPANT else None
  if is_hidden and participants is not None:
    event, participants = event.seen_by_participants(participants.shares), None
  elif observer in (bounds.OUTSIDERS, bounds.PERSON):
    event = event.seen_by_observers()
  found, is_sampled = [], combinators.is_sampled(event)
  if is_hidden and (group := groups.of_group(event, clients)) is not None:
    found.append(Candidate(method.amplification if is_sampled else None, group))
  known = groups.of_group(event, clients, known=True)
  if known is None or is_hidden and (not is_sampled or method.amplification != 'tight'):
    return found
  if is_sampled and observer != bounds.SERVER_ANY_COHORTS:
    found.append(Candidate(AVERAGE, combinators.known(known, participants)))
  if participants is not None:
    known = known.seen_by_participants(participants.shares)
  found.append(Candidate('none' if is_sampled else None, known.without_sampling()))
  return found


def by_observer(once: Any, repeated: Any, adjacency: str) -> dict[str, Any]:
  """Observer -> all releases `once`, or with those that restarts `repeated`.

  Repetitions are seen by the server, by silos, who may run it, and under local DP by all.
  """
  models = repeated if adjacency == base.LOCAL else once
  return {bounds.OUTSIDERS: models, bounds.SERVER: repeated,
          bounds.PARTICIPANT: repeated if adjacency in base.OF_RECORDS else once,
          bounds.SERVER_ANY_COHORTS: repeated, bounds.PERSON: models,
          bounds.PERSON_SERVER: repeated}


def bound(view: View, delta: float, method: Method,
          observer: str = bounds.OUTSIDERS) -> bounds.Bound:
  """The least epsilon of an observer, one of `bounds.KEYS`, at a delta in [0, 1]."""
  if delta == 1:
    return bounds.Bound(epsilon=0.0)
  found = []
  for candidate in candidates(view, observer, method):
    # One client is in no more rounds than it may be in at most, each of the same pair: a
    # mean is never above. Persons and participants have bounds of their own for it.
    if candidate.amplification != 'none' or observer not in (
        bounds.OUTSIDERS, bounds.SERVER) or not any(
            one.amplification == AVERAGE and one.accountant == 'pld' and one.is_finite
            for one in found):
      found.append(of_candidate(candidate, view, delta, method))
  if observer in _PERSONS and groups.may_be_chained(
      view.event, method.clients_per_person, known=not view.is_amplified(observer)):
    found.append(_chained(view, observer, delta, method))
  best = dataclasses.replace(min(found, key=lambda one: one.epsilon), delta=delta)
  if view.is_amplified(observer) and (view.event.honest_fraction() or 1) < 1:
    best = dataclasses.replace(best, caveats=(*best.caveats, _ALL_SHARES))
  if observer == bounds.PARTICIPANT and not best.is_finite:
    # Clients add noise; that of others may be missing.
    return dataclasses.replace(best, caveats=(UNBOUNDED,))
  if observer not in _PERSONS:
    return best
  notes = (groups.unbounded(method.clients_per_person),) if not best.is_finite else (
      tuple(groups.IDEAL for note in best.caveats if note.name == IDEAL))
  return dataclasses.replace(best, caveats=notes)


def delta(view: View, epsilon: float, method: Method,
          observer: str = bounds.OUTSIDERS) -> float:
  """The least delta of an observer of one client at an epsilon, of ideal releases."""
  return min(accountant_lib.delta(
      event, epsilon, accountant=method.accountant, amplification=(
          name if name in base.AMPLIFICATIONS else 'none'))
             for name, event in candidates(view, observer, method))


def of_candidate(candidate: Candidate, view: View, delta: float,
                 method: Method) -> bounds.Bound:
  """The epsilon of one of the `candidates`."""
  event, name = candidate.event, candidate.amplification
  amplification = name if name in base.AMPLIFICATIONS else 'none'
  consumed = noise_budget.consumed_by(
      event, view.total_variation, delta, amplification, method.accountant)
  result = accountant_lib.bound(
      event, noise_budget.remaining(delta, consumed), accountant=method.accountant,
      amplification=amplification, population=method.population,
      records=method.records, stated_delta=delta)
  return dataclasses.replace(
      result, consumed_delta=consumed, amplification=name,
      caveats=(*result.caveats, *_ideal(consumed, delta)))


def _ideal(consumed: float | None, delta: float) -> tuple[caveats.Caveat, ...]:
  """The caveat where sampling error would consume too much of delta."""
  return () if not noise_budget.is_too_much(consumed, delta) else (caveats.Caveat(
      IDEAL, 'epsilon is that of ideal distributions: the sampling error of the noise '
      f'would consume {consumed:.3g} of delta, more than half'),)


def _chained(view: View, observer: str, delta: float, method: Method) -> bounds.Bound:
  """The guarantee of one client, from neighbour to neighbour to that of a person."""
  clients, one = method.clients_per_person, dataclasses.replace(
      method, clients_per_person=1)

  def at(delta: float) -> float:
    """Epsilon of ideal releases."""
    return groups.chained(lambda smaller: bound(
        view._replace(total_variation=0.0), smaller, one, OF_ONE[observer]).epsilon,
                          clients, delta)

  consumed = 0.0
  if view.total_variation:
    # With at least half of delta epsilon is at most this one.
    consumed = noise_budget.consumed(min(1.0, view.total_variation), at(delta / 2))
  return bounds.Bound(
      epsilon=at(noise_budget.remaining(delta, consumed)), consumed_delta=consumed,
      adjacency=view.event.adjacency, amplification='chained',
      caveats=_ideal(consumed, delta))


def numbers(views: Mapping[str, View], delta: float, method: Method
            ) -> tuple[dict[str, bounds.Bound], list[caveats.Caveat]]:
  """The numbers of all observers that there are, and their caveats.

  Raises ValueError if a person owns more clients than there are.
  """
  validate.integer(clients_per_person=method.clients_per_person, low=1,
                   high=method.population)
  result = {
      observer: bound(view, delta, method, observer) for observer, view in views.items()
      if (view.event.has_shares() if observer == bounds.PARTICIPANT else
          method.clients_per_person > 1 or observer not in _PERSONS)}
  notes = caveats_of(result)
  if bounds.PARTICIPANT in result and not result[bounds.PARTICIPANT].is_finite:
    notes.append(UNBOUNDED)
  return result, notes


def caveats_of(found: Mapping[str, bounds.Bound]) -> list[caveats.Caveat]:
  """The caveats of several numbers: all of the outsiders', else those of the number."""
  notes = list(found[bounds.OUTSIDERS].caveats)
  for who in (bounds.SERVER, bounds.PARTICIPANT):
    if who in found and found[who].is_finite:
      notes += [
          caveats.Caveat(f'{who}: ideal distributions', f'against the {who}: {note}')
          for note in found[who].caveats if note not in notes and note.name == IDEAL]
  return notes + [note for who in _PERSONS if who in found for note in found[who].caveats]
