"""The guarantee of a run: every number of it, each with whom it holds against.

A family says what each round releases (`Plan.event`) and in whose eyes (`Terms`).
Here its events become numbers, in one way for all: the same object feeds the plan that
is printed before the first round, the metrics of each round, the ledger's header and
the summary.
"""

import abc
import collections
from collections.abc import Iterable, Mapping
import dataclasses
import functools
import math
from typing import Any

from tff_pipelines.accounting import accountant
from tff_pipelines.accounting import base
from tff_pipelines.accounting import caveats
from tff_pipelines.accounting import combinators
from tff_pipelines.accounting import decimals
from tff_pipelines.accounting import ledger as ledger_lib
from tff_pipelines.accounting import noise_budget

Caveat = caveats.Caveat

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
  """What the numbers of a guarantee are about, in words.

  Attributes:
    privacy_unit: What one of two neighbouring inputs lacks, or has otherwise.
    observers: Against whom epsilon holds.
    against: The same in a few words, for one line.
    observers_server: Against whom the number for the server holds; None if no such
      number is stated, because the server is trusted or sees what all see.
    against_server: The same in a few words.
    sampling: How the participants of a round are sampled.
    trust_model: Who is trusted with what.
    source: Where the bounds come from, with theorems' numbers.
    sampler: What draws the noise; None if there is none.
    adjacency: What neighbouring inputs are, where the event's own words are too
      general; None to take them.
    secure_aggregation: Whether sums are meant to be computed under it.
  """

  privacy_unit: str
  observers: str
  against: str
  observers_server: str | None = None
  against_server: str = 'the server'
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
    consumed_delta: Part of delta consumed by sampling error of the noise; None where
      no bound on that error is proved.
    order: Renyi order that gave it, `inf` for pure DP; None for PLD.
    accountant: What computed it.
    amplification: The bound on sampling; None where nothing is sampled.
    caveats: What weakens it.
  """

  epsilon: float
  consumed_delta: float | None = 0.0
  order: float | None = None
  accountant: str | None = None
  amplification: str | None = None
  caveats: tuple[Caveat, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guarantee:
  """All numbers of a guarantee and what they are about.

  Attributes:
    terms: In words.
    delta: Of all numbers; None without a guarantee.
    adjacency: A key of `base.ADJACENCY_IN_WORDS`; None without a guarantee.
    outsiders: Against the observers; None if nothing is guaranteed to anybody.
    server: Against the server; None if no number holds, or none is stated.
    seeded: Whether the numbers would hold only without the seed.
    also: Further numbers that go with these, by their key in the summary.
    caveats: What a reader of the numbers must know.
  """

  terms: Terms
  delta: float | None
  adjacency: str | None
  outsiders: Bound | None
  server: Bound | None = None
  seeded: bool = False
  also: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  caveats: tuple[Caveat, ...] = ()

  @property
  def adjacency_in_words(self) -> str | None:
    """What neighbouring inputs are."""
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
    holds = self.outsiders is not None and not self.seeded
    outsiders = self.outsiders or Bound(epsilon=math.inf, consumed_delta=None)
    server = self.server if holds else None
    epsilon = _finite(outsiders.epsilon)
    return {
        'epsilon': epsilon if holds else None,
        'epsilon_server': _finite(server.epsilon) if server else None,
        'epsilon_if_unseeded': epsilon if self.seeded else None,
        'delta': self.delta,
        'consumed_delta': outsiders.consumed_delta if holds else None,
        'consumed_delta_server': server.consumed_delta if server else None,
        'adjacency': self.adjacency,
        'adjacency_in_words': self.adjacency_in_words,
        'privacy_unit': self.terms.privacy_unit,
        'observers': self.terms.observers if self.outsiders else None,
        'observers_server': self.terms.observers_server if self.outsiders else None,
        'sampling': self.terms.sampling, 'trust_model': self.terms.trust_model,
        'source': self.terms.source, 'sampler': self.terms.sampler,
        'accountant': outsiders.accountant if holds else None,
        'order': _finite(outsiders.order) if holds else None,
        'amplification': outsiders.amplification if holds else None,
        'secure_aggregation': 'simulated' if self.terms.secure_aggregation else None,
    }

  def lines(self) -> list[str]:
    """Both epsilons with delta and observers, short, for the terminal."""
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
    return lines

  def details(self) -> list[str]:
    """Everything, in sentences, for the full report."""
    terms, lines = self.terms, []
    if self.outsiders is None:
      return ['epsilon: none, nothing is guaranteed',
              f'trust model: {terms.trust_model}']
    delta = decimals.rounded_up(self.delta)
    how = ', '.join(filter(None, (
        self.outsiders.accountant, self.outsiders.amplification and
        f'{self.outsiders.amplification} amplification')))
    number = (f'epsilon {decimals.epsilon(self.outsiders.epsilon)} at delta {delta} '
              f'against {terms.observers} ({how})')
    lines.append(f'epsilon: none, the run is seeded; without the seed {number}'
                 if self.seeded else number)
    if self.server is not None and not self.seeded:
      lines.append(f'epsilon {decimals.epsilon(self.server.epsilon)} at delta {delta} '
                   f'against {terms.observers_server}')
    lines += [f'{key.replace("_", " ")}: {_shown(value)}'
              for key, value in self.also.items() if value is not None]
    lines += [f'adjacency {self.adjacency}: {self.adjacency_in_words}',
              f'privacy unit: {terms.privacy_unit}', f'sampling: {terms.sampling}',
              f'trust model: {terms.trust_model}', f'source: {terms.source}']
    if terms.sampler is not None:
      lines.append(f'noise: {terms.sampler}{self._consumed()}')
    if terms.secure_aggregation:
      lines.append('secure aggregation: simulated')
    return lines

  def _consumed(self) -> str:
    part = self.outsiders.consumed_delta
    if not part:
      return ''
    at_least = 'at least ' if 'no bound' in self.terms.sampler else ''
    return (f'; sampling error consumes {at_least}{decimals.rounded_up(part, 3)} '
            'of delta')


def _finite(value: float | None) -> float | None:
  return None if value is None or not math.isfinite(value) else float(value)


def _shown(value: Any) -> str:
  return decimals.rounded_up(value) if isinstance(value, float) else f'{value}'


def composed(released: Iterable[base.Event]) -> base.Event:
  """The composition of events, equal ones counted."""
  counts = collections.Counter(released)
  parts = tuple(combinators.SelfComposed(event=event, count=count)
                for event, count in counts.items())
  return parts[0] if len(parts) == 1 else combinators.Composed(events=parts)


class Plan(abc.ABC):
  """What a run promises, before, while and after it runs.

  A subclass has the parameters that its mechanism executes and says by `event` what a
  round releases; epsilon, the ledger and the report follow from that.

  Attributes:
    terms: What the numbers are about.
    delta: Of the guarantee; None without one.
    seed: A simulation seed voids the guarantee; None for none.
    accountant: As for `accountant.epsilon`.
    amplification: As for `accountant.epsilon`.
    population: Number of clients, to judge delta by; None if that is not public.
    total_variation: Distance in [0, 1] between a release and that of the ideal
      distributions in its event; None where no bound is proved.
  """

  terms: Terms
  delta: float | None
  seed: int | None = None
  accountant: str = 'auto'
  amplification: str = 'tight'
  population: int | None = None
  total_variation: float | None = None

  @abc.abstractmethod
  def event(self, index: int) -> base.Event:
    """What the round of this index, from 1, releases."""

  @abc.abstractmethod
  def configuration(self) -> dict[str, Any]:
    """The calibrated numbers that a resumed run takes over, as JSON."""

  @property
  def is_private(self) -> bool:
    """Whether anything is guaranteed."""
    return True

  def notes(self) -> list[Caveat]:
    """What a reader must know of this plan, besides what its numbers say."""
    return []

  def also(self, released: base.Event) -> dict[str, Any]:
    """Further numbers of the guarantee, by their key in the summary."""
    del released
    return {}

  def released(self, rounds: int) -> base.Event:
    """Everything that the first `rounds` rounds release."""
    return composed(self.event(index) for index in range(1, rounds + 1))

  @functools.cached_property
  def adjacency(self) -> str:
    return self.event(1).adjacency

  @property
  def epsilon_name(self) -> str:
    """The name of epsilon in a run's metrics; a seeded run has none."""
    return 'epsilon' if self.seed is None else 'epsilon_if_unseeded'

  def bound(self, event: base.Event, releases: int, *, server: bool = False) -> Bound:
    """The number of an event of so many releases.

    Args:
      event: Everything that an observer sees.
      releases: How many rounds those are, for what sampling error consumes of delta.
      server: Whether the observer knows the cohorts, so that sampling clients does
        not amplify.
    """
    amplification = 'none' if server else self.amplification
    event = event.without_sampling() if server else event
    consumed = noise_budget.consumed_by(
        event, self.total_variation and releases * self.total_variation, self.delta,
        amplification)
    result = accountant.guarantee(
        event, noise_budget.remaining(self.delta, consumed), accountant=self.accountant,
        amplification=amplification, population=self.population)
    found = list(result.warnings)
    if noise_budget.is_too_much(consumed, self.delta):
      found.append(Caveat(
          'epsilon of ideal distributions',
          'epsilon is that of ideal distributions: at such an epsilon the sampling '
          f'error of the noise would consume {consumed:.3g} of delta, more than half'))
    return Bound(
        epsilon=result.epsilon, consumed_delta=consumed, order=result.order,
        accountant=result.accountant, caveats=tuple(found),
        amplification=(
            None if event.without_sampling() == event else result.amplification))

  def epsilon(self, rounds: int, repeats: int = 0) -> float:
    """Epsilon against the observers after so many rounds; 0 after none.

    Args:
      rounds: That were committed.
      repeats: Of them by restarts, which count where clients protect themselves.
    """
    if not rounds or not self.is_private:
      return math.inf if rounds else 0.0
    if self.adjacency == base.LOCAL:
      rounds += repeats
    return self.bound(self.released(rounds), rounds).epsilon

  def guarantee(self, rounds: int, repeats: int = 0, *, suppressed: bool = False,
                seen: base.Event | None = None,
                released: base.Event | None = None) -> Guarantee:
    """All numbers after so many rounds.

    Args:
      rounds: >= 1, those that were committed.
      repeats: How many of them restarts may have repeated in the eyes of the server.
      suppressed: Whether any was suppressed: the server saw less noise there.
      seen: Everything that the server may have seen; None if nothing was repeated.
      released: What these rounds released; None for what the plan says of them.
    """
    notes = [SEEDED] if self.seed is not None else []
    if self.terms.secure_aggregation:
      notes.append(SIMULATED)
    if not self.is_private:
      return Guarantee(
          terms=self.terms, delta=self.delta, adjacency=None, outsiders=None,
          seeded=False, caveats=(*notes, *self.notes()))
    released = self.released(rounds) if released is None else released
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
    notes += [*self.notes(), *outsiders.caveats]
    if server is not None:
      notes += [Caveat(f'{note.name}, server', f'against the server: {note}')
                for note in server.caveats if note not in notes
                and note.name == 'epsilon of ideal distributions']
    return Guarantee(
        terms=self.terms, delta=self.delta, adjacency=released.adjacency,
        outsiders=outsiders, server=server, seeded=self.seed is not None,
        also=self.also(released), caveats=tuple(dict.fromkeys(notes)))

  def guarantee_of(self, ledger: ledger_lib.Ledger) -> Guarantee:
    """All numbers of what a ledger says was released, restarts included."""
    lines = ledger.lines()
    return self.guarantee(
        len(lines), ledger.repeats, seen=ledger.seen_event(), released=ledger.event(),
        suppressed=any(line['outcome'] != 'released' for line in lines))

  def header(self, rounds: int, more: Iterable[str] = ()) -> dict[str, Any]:
    """Keyword arguments of the ledger's header.

    Args:
      rounds: Of the whole run.
      more: Further caveats that belong to every number computed from the ledger.
    """
    guarantee = self.guarantee(rounds)
    return dict(
        population=self.population, delta=self.delta, adjacency=guarantee.adjacency,
        trust_model=self.terms.trust_model, seeded=self.seed is not None,
        deviation_per_round=self.total_variation,
        warnings=[*map(str, guarantee.caveats), *map(str, more)])
