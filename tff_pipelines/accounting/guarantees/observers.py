"""The epsilon of each observer: what it sees, and what that costs.

One function for every number, in plans, ledgers and answers: `View.seen` is the event
that an observer sees, `bound` its epsilon.
"""

from collections.abc import Mapping
import dataclasses
import math
from typing import Any, NamedTuple

from tff_pipelines.accounting.events import base
from tff_pipelines.accounting.guarantees import (
    accountant as accountant_lib, bounds, groups, noise_budget)
from tff_pipelines.accounting.guarantees.guarantee import UNBOUNDED
from tff_pipelines.common import caveats, validate

IDEAL = 'epsilon of ideal distributions'
_PERSONS = bounds.PERSON, bounds.PERSON_SERVER


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
  """How numbers are computed.

  Attributes:
    accountant, amplification: As for `accountant.epsilon`.
    population, records: As for `accountant.bound`.
    colluders: Number of participants who pool what they know, >= 1.
    clients_per_person: Clients that one person may own, >= 1.
  """

  accountant: str = 'auto'
  amplification: str = 'tight'
  population: int | None = None
  records: int | None = None
  colluders: float = 1
  clients_per_person: int = 1


class View(NamedTuple):
  """The releases of runs.

  Attributes:
    event: Everything that was released.
    total_variation: Distance of all of that from ideal distributions, above 1 as 1,
      which consumes delta; None where no bound is known.
    hides_records: Whether records were sampled that no other party knows: the server
      then sees what outsiders see.
  """

  event: base.Event
  total_variation: float | None = None
  hides_records: bool = False

  def is_amplified(self, observer: str) -> bool:
    """Whether an observer learns nothing about who was selected."""
    return observer in (bounds.OUTSIDERS, bounds.PERSON) or (
        self.hides_records and observer == bounds.SERVER)

  def seen(self, observer: str, colluders: float = 1) -> base.Event:
    """The event that an observer sees."""
    event = self.event
    if observer == bounds.PARTICIPANT:
      event = event.seen_by_participants(colluders)
    return event if self.is_amplified(observer) else event.without_sampling()


def by_observer(once: Any, repeated: Any, *, is_local: bool) -> dict[str, Any]:
  """Observer -> what it sees: the server sees what restarts repeat, a participant not.

  Args:
    once, repeated: All releases; the same with those that restarts repeated.
    is_local: Whether clients protect themselves: then all see repetitions.
  """
  models = repeated if is_local else once
  return {bounds.OUTSIDERS: models, bounds.SERVER: repeated, bounds.PARTICIPANT: once,
          bounds.PERSON: models, bounds.PERSON_SERVER: repeated}


def bound(view: View, delta: float, method: Method,
          observer: str = bounds.OUTSIDERS) -> bounds.Bound:
  """The epsilon of an observer, one of `bounds.KEYS`, at a delta in [0, 1]."""
  if delta == 1:
    return bounds.Bound(epsilon=0.0, observer=observer)
  if observer in _PERSONS:
    epsilon, is_ideal = groups.epsilon(
        view.event, method.clients_per_person, delta, accountant=method.accountant,
        amplification=method.amplification, known=observer == bounds.PERSON_SERVER,
        total_variation=view.total_variation)
    notes = (groups.IDEAL,) if is_ideal else ()
    if epsilon == math.inf:
      notes = (groups.unbounded(method.clients_per_person),)
    return bounds.Bound(epsilon=epsilon, delta=delta, observer=observer,
                        adjacency=view.event.adjacency, caveats=notes)
  amplification = method.amplification if view.is_amplified(observer) else 'none'
  event = view.seen(observer, method.colluders)
  consumed = noise_budget.consumed_by(
      event, view.total_variation, delta, amplification, method.accountant)
  result = accountant_lib.bound(
      event, noise_budget.remaining(delta, consumed), accountant=method.accountant,
      amplification=amplification, population=method.population,
      records=method.records, stated_delta=delta)
  ideal = () if not noise_budget.is_too_much(consumed, delta) else (caveats.Caveat(
      IDEAL, 'epsilon is that of ideal distributions: the sampling error of the noise '
      f'would consume {consumed:.3g} of delta, more than half'),)
  return dataclasses.replace(
      result, delta=delta, observer=observer, consumed_delta=consumed,
      amplification=None if event.without_sampling() == event else amplification,
      caveats=(*result.caveats, *ideal))


def numbers(views: Mapping[str, View], delta: float, method: Method
            ) -> tuple[dict[str, bounds.Bound], list[caveats.Caveat]]:
  """The numbers of all observers that there are, and their caveats.

  Raises:
    ValueError: If a person owns more clients than there are.
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
  return notes + [note for who in _PERSONS if who in found
                  for note in found[who].caveats]
