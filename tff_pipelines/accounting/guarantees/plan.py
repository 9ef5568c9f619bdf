"""The guarantee of a run: all of its numbers, each with the observers it holds against.

A family says what each round releases (`Plan.event`) and to whom (`Terms`). Here its
events become numbers, in one way for all: the same object feeds the plan that is
printed before the first round, the metrics of each round, the ledger's header and the
summary.
"""

import abc
import collections
from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import functools
import math
from typing import Any

from tff_pipelines.accounting.guarantees import accountant
from tff_pipelines.accounting.events import base
from tff_pipelines.common import caveats
from tff_pipelines.accounting.events import combinators
from tff_pipelines.common import decimals
from tff_pipelines.accounting.guarantees import groups
from tff_pipelines.accounting.guarantees import ledger as ledger_lib
from tff_pipelines.accounting.guarantees import noise_budget
from tff_pipelines.common import files

Caveat = caveats.Caveat

_IDEAL = 'epsilon of ideal distributions'
_AT_SMALL_DELTA = ('epsilon_at_delta_1e-6', 'epsilon_server_at_delta_1e-6')
SEEDED = Caveat(
    'seeded: not private',
    'seeded run: no privacy guarantee (noise and whatever else is random follow from '
    'a seed, so they are predictable)')
SIMULATED = Caveat(
    'secure aggregation simulated',
    'secure aggregation is simulated: the sums that a protocol would open are computed '
    'in the clear')
SUPPRESSED = Caveat(
    'suppressed rounds',
    'rounds were suppressed for outsiders, but the server saw their sums with less '
    'noise than was planned: no epsilon holds against it')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Terms:
  """The terms of a guarantee, in words.

  Attributes:
    privacy_unit: Unit that is added, removed or changed between neighbouring inputs.
    observers: Observers against whom epsilon holds.
    against: The same in a few words, for one line.
    observers_server: Observers against whom the number for the server holds; None if
      no such number is stated, because the server is trusted or sees what all see.
    against_server: The same in a few words.
    observers_participant: Participants against whom a number of their own holds, as
      they know their own shares of the noise; None if no such number is stated.
    sampling: Sampling of the participants of a round.
    trust_model: Who is trusted with what.
    source: Source of the bounds, with theorems' numbers.
    sampler: Sampler of the noise; None if there is no noise.
    adjacency: Neighbouring inputs, where the event's own words are too general; None
      to take those.
    secure_aggregation: Whether sums are meant to be computed under it.
  """

  privacy_unit: str
  observers: str
  against: str
  observers_server: str | None = None
  against_server: str = 'the server'
  observers_participant: str | None = None
  sampling: str = 'none'
  trust_model: str
  source: str | None
  sampler: str | None = None
  adjacency: str | None = None
  secure_aggregation: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bound:
  """One epsilon.

  Attributes:
    epsilon: >= 0, `inf` if no finite one is proved.
    consumed_delta: Delta consumed by sampling error of the noise; None where no bound
      on that error is proved.
    order: Renyi order that gave it, `inf` for pure DP; None for PLD.
    accountant: Accountant that computed it.
    amplification: Bound on amplification by sampling; None where nothing is sampled.
    caveats: Caveats that weaken it.
    certificates: As in `accountant.Guarantee`.
  """

  epsilon: float
  consumed_delta: float | None = 0.0
  order: float | None = None
  accountant: str | None = None
  amplification: str | None = None
  caveats: tuple[Caveat, ...] = ()
  certificates: tuple[dict[str, float], ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guarantee:
  """All numbers of a guarantee and their terms.

  Attributes:
    terms: In words.
    delta: Delta of all numbers; None without a guarantee.
    adjacency: A key of `base.ADJACENCY_IN_WORDS`; None without a guarantee.
    outsiders: Bound against the observers; None if nothing is guaranteed.
    server: Bound against the server; None if no number holds, or none is stated.
    participant: Bound against a participant, `inf` if a cohort may be of one; None if
      none is stated.
    least_cohort: Minimum cohort that it holds for; None if one may be of one.
    person: Bound against the observers for a person who owns `clients_per_person`
      clients; None if none is stated.
    person_server: The same against the server.
    clients_per_person: Clients that this person owns.
    seeded: Whether the numbers would hold only without the seed.
    also: Further numbers that belong to these, by their key in the summary.
    caveats: Caveats of the numbers.
  """

  terms: Terms
  delta: float | None
  adjacency: str | None
  outsiders: Bound | None
  server: Bound | None = None
  participant: Bound | None = None
  least_cohort: float | None = None
  person: Bound | None = None
  person_server: Bound | None = None
  clients_per_person: int = 1
  seeded: bool = False
  also: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  caveats: tuple[Caveat, ...] = ()

  @property
  def adjacency_in_words(self) -> str | None:
    """Neighbouring inputs, in a sentence."""
    if self.adjacency is None:
      return None
    return self.terms.adjacency or base.ADJACENCY_IN_WORDS[self.adjacency]

  @property
  def neighbours(self) -> str | None:
    """The same, short enough for one line of the terminal."""
    if self.adjacency == base.ZERO_OUT and self.terms.adjacency is None:
      return 'one client\'s contribution is replaced by zero; its noise stays'
    return self.adjacency_in_words

  def to_json(self) -> dict[str, Any]:
    """The fields of a summary that are about privacy."""
    terms, nothing = self.terms, Bound(epsilon=math.inf, consumed_delta=None)
    outsiders = self.outsiders or nothing
    stated, server = (nothing, nothing) if self.seeded else (
        outsiders, self.server or nothing)
    return {
        'epsilon': files.finite(stated.epsilon),
        'epsilon_server': files.finite(server.epsilon),
        'epsilon_participant': files.finite((self.participant or nothing).epsilon),
        'clients_per_person': self.clients_per_person if self.person else None,
        'epsilon_person': files.finite((self.person or nothing).epsilon),
        'epsilon_server_person': files.finite((self.person_server or nothing).epsilon),
        'epsilon_if_unseeded': (
            files.finite(outsiders.epsilon) if self.seeded else None),
        'delta': self.delta, 'consumed_delta': stated.consumed_delta,
        'consumed_delta_server': server.consumed_delta, 'adjacency': self.adjacency,
        'adjacency_in_words': self.adjacency_in_words,
        'privacy_unit': terms.privacy_unit,
        'observers': terms.observers if self.outsiders else None,
        'observers_server': terms.observers_server if self.outsiders else None,
        'observers_participant': (
            terms.observers_participant if self.participant else None),
        'least_cohort': self.least_cohort if self.participant else None,
        'sampling': terms.sampling, 'trust_model': terms.trust_model,
        'source': terms.source, 'sampler': terms.sampler,
        'accountant': stated.accountant, 'order': files.finite(stated.order),
        'amplification': stated.amplification,
        'skellam_as_gaussian': list(self.certificates) or None,
        'secure_aggregation': 'simulated' if terms.secure_aggregation else None}

  @property
  def certificates(self) -> tuple[dict[str, float], ...]:
    """The distinct certificates of its numbers."""
    bounds = self.outsiders, self.server, self.participant
    return _distinct(certificate for bound in bounds if bound
                     for certificate in bound.certificates)

  def lines(self) -> list[str]:
    """All epsilons with delta and observers, short, for the terminal."""
    if self.outsiders is None:
      return ['none: nothing is guaranteed']
    number = (f'{decimals.epsilon(self.outsiders.epsilon)} at delta '
              f'{decimals.rounded_up(self.delta)}')
    if self.seeded:
      return [f'none, the run is seeded (without the seed: {number})']
    lines = [f'{number} against {self.terms.against}']
    if self.server is not None:
      lines.append(f'{decimals.epsilon(self.server.epsilon)} against '
                   f'{self.terms.against_server}')
    elif SUPPRESSED in self.caveats:
      lines.append(f'none against {self.terms.against_server}: rounds suppressed')
    if self.participant is not None:
      lines.append(
          'unbounded against a participant: a cohort may be of one'
          if self.least_cohort is None else
          f'{decimals.epsilon(self.participant.epsilon)} against a participant, in '
          f'cohorts of at least {self.least_cohort:g}')
    if self.person is not None:
      number = _or_none(self.person)
      if self.person_server is not None:
        number += (f', {_or_none(self.person_server)} against '
                   f'{self.terms.against_server}')
      lines.append(f'of a person with {self.clients_per_person} clients: {number}')
    return lines

  def details(self) -> list[str]:
    """Everything, in sentences, for the full report."""
    terms, outsiders = self.terms, self.outsiders
    if outsiders is None:
      return ['epsilon: none, nothing is guaranteed',
              f'trust model: {terms.trust_model}']
    delta = decimals.rounded_up(self.delta)
    how = ', '.join(filter(None, (
        outsiders.accountant,
        outsiders.amplification and f'{outsiders.amplification} amplification')))
    number = (f'epsilon {decimals.epsilon(outsiders.epsilon)} at delta {delta} '
              f'against {terms.observers} ({how})')
    lines = [f'epsilon: none, the run is seeded; without the seed {number}'
             if self.seeded else number]
    if self.server is not None and not self.seeded:
      lines.append(f'epsilon {decimals.epsilon(self.server.epsilon)} at delta {delta} '
                   f'against {terms.observers_server}')
    if self.participant is not None:
      cohorts = ('a cohort may be of one' if self.least_cohort is None else
                 f'in cohorts of at least {self.least_cohort:g}')
      lines.append(f'epsilon {decimals.epsilon(self.participant.epsilon)} at delta '
                   f'{delta} against {terms.observers_participant}, {cohorts}')
    for bound, observers in ((self.person, terms.observers),
                             (self.person_server, terms.observers_server)):
      if bound is not None:
        lines.append(
            f'of a person who owns {self.clients_per_person} clients: epsilon '
            f'{_or_none(bound)} at delta {delta} against {observers}')
    for key, value in self.also.items():
      if value is not None:
        shown = decimals.rounded_up(value) if isinstance(value, float) else value
        lines.append(f'{key.replace("_", " ")}: {shown}')
    lines += [f'adjacency {self.adjacency}: {self.adjacency_in_words}',
              f'privacy unit: {terms.privacy_unit}', f'sampling: {terms.sampling}',
              f'trust model: {terms.trust_model}', f'source: {terms.source}']
    lines += [
        'Skellam noise accounted as Gaussian noise: variance {variance:.6g} as '
        '{smaller:.6g} in each of {dimension} coordinates ({nodes} nodes, total '
        'variation {total_variation:.2g})'.format(
            smaller=certificate['variance'] - certificate['removed'], **certificate)
        for certificate in self.certificates]
    if terms.sampler is not None:
      consumed = ''
      if outsiders.consumed_delta:
        at_least = 'at least ' if 'no bound' in terms.sampler else ''
        consumed = (f'; sampling error consumes {at_least}'
                    f'{decimals.rounded_up(outsiders.consumed_delta, 3)} of delta')
      lines.append(f'noise: {terms.sampler}{consumed}')
    if terms.secure_aggregation:
      lines.append('secure aggregation: simulated')
    return lines


def _or_none(bound: Bound) -> str:
  """An epsilon in words: none where no finite one is proved."""
  return 'none' if bound.epsilon == math.inf else decimals.epsilon(bound.epsilon)


def _distinct(certificates: Iterable[dict[str, float]]) -> tuple[dict[str, float], ...]:
  return tuple({tuple(one.items()): one for one in certificates}.values())


class Plan(abc.ABC):
  """The guarantee that a run plans, spends and reports.

  A subclass has the parameters that its mechanism executes and says by `event` what a
  round releases; epsilon, the ledger and the report follow from that.

  Attributes:
    terms: Terms of the guarantee.
    delta: Delta of the guarantee; None without one.
    seed: A simulation seed voids the guarantee; None for none.
    accountant: As for `accountant.epsilon`.
    amplification: As for `accountant.epsilon`.
    population: Number of clients, to judge delta by; None if that is not public.
    records: Number of records, to judge delta by where one is protected; None if that
      is not known.
    total_variation: Distance in [0, 1] between a release and that of the ideal
      distributions in its event; None where no bound is proved.
    preliminary: Event of a release before the first round, in `released`; None for
      none.
    clients_per_person: Clients that one person may own, for whom numbers of their own
      are stated if they are several.
  """

  terms: Terms
  delta: float | None
  seed: int | None = None
  accountant: str = 'auto'
  amplification: str = 'tight'
  population: int | None = None
  records: int | None = None
  total_variation: float | None = None
  preliminary: base.Event | None = None
  clients_per_person: int = 1

  @abc.abstractmethod
  def event(self, index: int) -> base.Event:
    """The event that the round of this index, from 1, releases."""

  @abc.abstractmethod
  def configuration(self) -> dict[str, Any]:
    """The calibrated numbers that a resumed run takes over, as JSON."""

  @property
  def calibrated(self) -> 'Plan':
    """The plan that meets the targets: without what faults charged in addition."""
    return self

  @property
  def is_private(self) -> bool:
    """Whether anything is guaranteed."""
    return True

  def notes(self) -> list[Caveat]:
    """Caveats of this plan, in addition to those of its numbers."""
    return []

  def also(self, released: base.Event) -> dict[str, Any]:
    """Further numbers of the guarantee, by their key in the summary."""
    del released
    return {}

  def released(self, rounds: int) -> base.Event:
    """Everything that the first `rounds` rounds, and what is before them, release."""
    return combinators.composed(
        collections.Counter(map(self.event, range(1, rounds + 1))))

  @functools.cached_property
  def adjacency(self) -> str:
    return self.event(1).adjacency

  @property
  def epsilon_name(self) -> str:
    """The name of epsilon in a run's metrics; a seeded run has none."""
    return 'epsilon' if self.seed is None else 'epsilon_if_unseeded'

  def bound(self, event: base.Event, releases: int, *, server: bool = False,
            delta: float | None = None) -> Bound:
    """The epsilon of an event.

    Args:
      event: Everything that an observer sees.
      releases: Number of its rounds; sampling error consumes delta in each.
      server: Whether the observer knows the cohorts, so that sampling clients does
        not amplify.
      delta: None for that of the guarantee.
    """
    delta = self.delta if delta is None else delta
    amplification, unsampled = self.amplification, event.without_sampling()
    if server:
      amplification, event = 'none', unsampled
    consumed = noise_budget.consumed_by(
        event, self.total_variation and releases * self.total_variation, delta,
        amplification, self.accountant)
    result = accountant.guarantee(
        event, noise_budget.remaining(delta, consumed), accountant=self.accountant,
        amplification=amplification, population=self.population, records=self.records,
        stated_delta=delta)
    ideal = () if not noise_budget.is_too_much(consumed, delta) else (Caveat(
        _IDEAL,
        'epsilon is that of ideal distributions: at such an epsilon the sampling '
        f'error of the noise would consume {consumed:.3g} of delta, more than half'),)
    return Bound(
        epsilon=result.epsilon, consumed_delta=consumed, order=result.order,
        accountant=result.accountant, caveats=(*result.warnings, *ideal),
        certificates=result.certificates,
        amplification=None if unsampled == event else result.amplification)

  def of_person(self, event: base.Event, releases: int, *,
                server: bool = False) -> Bound:
    """The epsilon of an event for a person who owns `clients_per_person` clients.

    Args:
      event, releases, server: As for `bound`.
    """
    epsilon, ideal = groups.epsilon(
        event, self.clients_per_person, self.delta, accountant=self.accountant,
        amplification=self.amplification, known=server,
        total_variation=self.total_variation and releases * self.total_variation)
    notes = ()
    if epsilon == math.inf:
      notes = (groups.unbounded(self.clients_per_person),)
    elif ideal:
      notes = (groups.IDEAL,)
    return Bound(epsilon=epsilon, caveats=notes)

  def at_small_delta(self, event: base.Event, releases: int, server: base.Event | None,
                     server_releases: int) -> dict[str, float | None]:
    """Epsilon at `accountant.SMALL_DELTA`, in addition to that at the run's delta.

    Args:
      event, releases: As for `bound`, against the observers.
      server, server_releases: The same against the server; None for no such number.

    Returns:
      By its key in the summary. None for a seeded run, at a run's delta that is as
      small, and where sampling error of the noise consumes too much of that delta.
    """
    small, bounds = accountant.SMALL_DELTA, [None, None]
    if self.seed is None and self.delta > small:
      bounds[0] = self.bound(event, releases, delta=small)
      if server is not None:
        bounds[1] = self.bound(server, server_releases, server=True, delta=small)
    return {name: (
        None if bound is None or _IDEAL in {note.name for note in bound.caveats} else
        bound.epsilon) for name, bound in zip(_AT_SMALL_DELTA, bounds)}

  def epsilon(self, rounds: int, repeats: int = 0,
              lost: Sequence[base.Event] = ()) -> float:
    """Epsilon against the observers; 0 after no rounds.

    Args:
      rounds: Number of committed rounds.
      repeats: Number of rounds that restarts repeated; they count where clients
        protect themselves.
      lost: Released in addition, by rounds that were lost and run again.
    """
    if not rounds or not self.is_private:
      return math.inf if rounds else 0.0
    if self.adjacency == base.LOCAL:
      rounds += repeats
    released = self.released(rounds)
    if lost:
      released = combinators.Composed(events=(released, *lost))
    return self.bound(released, self.release_count(rounds) + len(lost)).epsilon

  def release_count(self, rounds: int) -> int:
    """Number of releases of this many rounds, and of what is before them."""
    return rounds + (self.preliminary is not None)

  def guarantee(self, rounds: int, repeats: int = 0, *, suppressed: bool = False,
                seen: base.Event | None = None,
                released: base.Event | None = None) -> Guarantee:
    """All numbers of the guarantee.

    Args:
      rounds: Number of committed rounds, >= 1; of all releases, where `released` is
        given.
      repeats: Number of rounds that the server may have seen again after restarts.
      suppressed: Whether any was suppressed: the server saw less noise there.
      seen: Everything that the server may have seen; None if nothing was repeated.
      released: Everything that these rounds released; None for `released(rounds)`.
    """
    notes = [SEEDED] if self.seed is not None else []
    if self.terms.secure_aggregation:
      notes.append(SIMULATED)
    if not self.is_private:
      return Guarantee(terms=self.terms, delta=self.delta, adjacency=None,
                       outsiders=None, also=dict.fromkeys(_AT_SMALL_DELTA),
                       caveats=(*notes, *self.notes()))
    if released is None:
      released, rounds = self.released(rounds), self.release_count(rounds)
    if released.adjacency == base.LOCAL and seen is not None:
      # Every observer sees the answers that a restart repeats.
      released, rounds = seen, rounds + repeats
    outsiders = self.bound(released, rounds)
    server = None
    if self.terms.observers_server is not None and self.seed is None:
      if suppressed:
        notes.append(SUPPRESSED)
      else:
        server = self.bound(seen or released, rounds + repeats, server=True)
    participant = None
    if self.terms.observers_participant is not None and self.seed is None:
      # Of a round that was repeated a participant saw nothing.
      participant = self.bound(released.seen_by_participants(), rounds, server=True)
    person = person_server = None
    if self.clients_per_person > 1 and self.seed is None:
      person = self.of_person(released, rounds)
      if server is not None:
        person_server = self.of_person(seen or released, rounds + repeats, server=True)
    small = self.at_small_delta(
        released, rounds, None if server is None else seen or released,
        rounds + repeats)
    notes += [*self.notes(), *outsiders.caveats]
    for who, bound in (('server', server), ('participant', participant)):
      if bound is not None and bound.epsilon < math.inf:
        notes += [Caveat(f'{who}: ideal distributions', f'against the {who}: {note}')
                  for note in bound.caveats if note not in notes
                  and note.name == _IDEAL]
    notes += [note for bound in (person, person_server) if bound is not None
              for note in bound.caveats]
    return Guarantee(
        terms=self.terms, delta=self.delta, adjacency=released.adjacency,
        outsiders=outsiders, server=server, participant=participant,
        least_cohort=released.minimum_cohort(), person=person,
        person_server=person_server, clients_per_person=self.clients_per_person,
        seeded=self.seed is not None, also={**small, **self.also(released)},
        caveats=tuple(dict.fromkeys(notes)))

  def guarantee_of(self, ledger: ledger_lib.Ledger) -> Guarantee:
    """All numbers of the releases in a ledger, restarts included."""
    lines = ledger.lines()
    return self.guarantee(
        len(lines), ledger.repeats, seen=ledger.seen_event(), released=ledger.event(),
        suppressed=any(line['outcome'] not in ('released', ledger_lib.UNUSED)
                       for line in lines))

  def header(self, rounds: int, more: Iterable[str] = ()) -> dict[str, Any]:
    """Keyword arguments of the ledger's header.

    Args:
      rounds: Number of rounds of the whole run.
      more: Further caveats of every number that is computed from the ledger.
    """
    guarantee = self.guarantee(rounds)
    return dict(
        population=self.population, delta=self.delta, adjacency=guarantee.adjacency,
        trust_model=self.terms.trust_model, seeded=self.seed is not None,
        deviation_per_round=self.total_variation,
        certificates=guarantee.certificates,
        warnings=[*(str(note) for note in guarantee.caveats
                    if note.name not in groups.NAMES), *map(str, more)])
