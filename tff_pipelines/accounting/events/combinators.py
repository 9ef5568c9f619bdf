"""Events that wrap events: sampling, composition, releases from one sample."""

import abc
import collections
from collections.abc import Callable, Iterable, Mapping
import dataclasses
from typing import Any

from dp_accounting import dp_event
import numpy as np

from tff_pipelines.common import validate
from tff_pipelines.accounting.events import base
from tff_pipelines.common import caveats as caveats_lib
from tff_pipelines.accounting.divergences import curves
from tff_pipelines.common import decimals
from tff_pipelines.accounting.divergences import pairs

_HIDDEN_COHORT = caveats_lib.Caveat(
    'cohorts assumed to be hidden',
    'amplification by sampling holds against those who see the released models '
    'and learn neither which nor how many clients participated; against a server or '
    'participants who know the cohort, the unamplified epsilon is the guarantee')


def _least_honest_fraction(data: Any) -> float:
  """The smallest min_honest_fraction in an event's JSON; 1 if there is none."""
  if isinstance(data, list):
    return min(map(_least_honest_fraction, data), default=1.0)
  if not isinstance(data, dict):
    return 1.0
  own = data.get('min_honest_fraction')
  return min(1.0 if own is None else own, _least_honest_fraction([*data.values()]))


def _unique(texts: Iterable[str]) -> tuple[str, ...]:
  return tuple(dict.fromkeys(texts))


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoPrivacy(base.Event):
  """A release without noise: epsilon is infinite."""

  adjacency = base.ANY
  sensitivity = 'unbounded'
  source = 'nothing is claimed'

  def curve(self, max_order: int, amplification: str) -> np.ndarray:
    return curves.no_guarantee(max_order)

  def factors(self, amplification: str) -> tuple[base.Factor, ...]:
    return ((pairs.Leak(probability=1.0), 1),)

  def replace_one(self) -> 'NoPrivacy':
    return self

  def check_sampled(self) -> None:
    pass

  def to_dp_accounting(self) -> dp_event.DpEvent:
    return dp_event.NonPrivateDpEvent()

  def caveats(self) -> tuple[caveats_lib.Caveat, ...]:
    return (caveats_lib.Caveat(
        'no noise', 'no noise is added: there is no privacy guarantee'),)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PoissonSampled(base.Event):
  """A release from clients that are selected independently with one probability.

  Holds against observers to whom the cohort and its size stay hidden, when the
  release does not depend on its size. Where it does, as rounds of too few clients
  are suppressed, `pivotal_probability` bounds how often that reveals a client.

  Attributes:
    event: The release from the sample.
    sampling_rate: q in (0, 1].
    max_participations: Maximum number of rounds that select one client, >= 1; None
      for no such limit. Whoever sees the cohorts sees a client in so many rounds at
      most; against all others the limit changes nothing (docs/participation.md).
    pivotal_probability: rho in [0, 1], the fraction of the rounds in which the number
      of other clients is such that a release shows that a client participates.
      Amplification of the client's loss is lost there, except for a loss of nothing
      in the rounds without it. See `schemes.pivotal_probability`.
    least_cohort: Minimum number of clients in a round, >= 1: a smaller cohort is drawn
      again before any client is told; None if a cohort may be of one.
    redrawn_probability: In [0, 1], the fraction of the rounds in which that may tell of
      a client; it is taken off delta. See `schemes.Poisson`.
  """

  event: base.Event
  sampling_rate: float
  pivotal_probability: float = 0.0
  max_participations: int | None = None
  least_cohort: int | None = None
  redrawn_probability: float = 0.0

  source = 'arXiv 2210.00597 (tight); Zhu and Wang 2019, Theorem 5 (generic)'

  def __post_init__(self):
    base.check_event(event=self.event)
    self.event.check_sampled()
    if self.event.failure_probability():
      raise ValueError(f'event {type(self.event).__name__} cannot be amplified: it may '
                       'fail')
    validate.fraction(sampling_rate=self.sampling_rate)
    validate.unit_interval(pivotal_probability=self.pivotal_probability,
                           redrawn_probability=self.redrawn_probability)
    for name in ('max_participations', 'least_cohort'):
      if getattr(self, name) is not None:
        validate.integer(low=1, **{name: getattr(self, name)})

  @property
  def adjacency(self) -> str:
    return self.event.adjacency

  @property
  def sensitivity(self) -> str:
    return self.event.sensitivity

  def curve(self, max_order: int, amplification: str) -> np.ndarray:
    curve = self.event.curve(max_order, amplification)
    if amplification == 'none':
      return curve
    hidden = curves.poisson(
        curve, self.sampling_rate, generic=amplification == 'generic')
    if self.pivotal_probability == 0:
      return hidden
    revealed = curves.mixed(np.zeros_like(curve), curve, self.sampling_rate)
    return curves.mixed(hidden, np.maximum(hidden, revealed), self.pivotal_probability)

  def failure_probability(self) -> float:
    return self.redrawn_probability

  def pure_epsilon(self, amplification: str) -> float:
    epsilon = self.event.pure_epsilon(amplification)
    if amplification == 'none' or self.pivotal_probability or self.redrawn_probability:
      return epsilon
    return curves.pure_poisson(epsilon, self.sampling_rate)

  def factors(self, amplification: str) -> tuple[base.Factor, ...] | None:
    inner = self.event.factors(amplification)
    if amplification == 'none' or self.sampling_rate == 1:
      return inner
    if amplification == 'generic' or inner is None or self.pivotal_probability:
      return None
    product = pairs.simplified(inner)
    if any(isinstance(pair, pairs.Leak) for pair, _ in product):
      return inner  # Nothing is claimed for being left out of a bare release.
    pair = pairs.together(product)
    if pair is None:
      return None
    sampled = ((pairs.Poisson(pair=pair, sampling_rate=self.sampling_rate), 1),)
    if not self.redrawn_probability:
      return sampled
    return (*sampled, (pairs.Leak(probability=self.redrawn_probability), 1))

  def skellam_coordinates(self) -> int:
    return self.event.skellam_coordinates()

  def as_gaussian(self, distance: float) -> base.Event:
    # A cohort is sampled before noise is added, and independently of it.
    return dataclasses.replace(self, event=self.event.as_gaussian(distance))

  def without_sampling(self) -> base.Event:
    return self.event

  def participations(self, count: int, amplification: str) -> int:
    if amplification != 'none' or self.max_participations is None:
      return count
    return min(count, self.max_participations)

  def repeated(self) -> base.Event:
    # A round that was not committed is in no client's count.
    return dataclasses.replace(
        self, event=self.event.repeated(), max_participations=None)

  def to_dp_accounting(self) -> dp_event.DpEvent:
    if self.pivotal_probability or self.redrawn_probability:
      raise NotImplementedError(
          'event PoissonSampled has no equivalent in dp_accounting with '
          f'pivotal_probability={self.pivotal_probability!r} and redrawn_probability='
          f'{self.redrawn_probability!r}: there, cohorts reveal nothing')
    return dp_event.PoissonSampledDpEvent(
        self.sampling_rate, self.event.to_dp_accounting())

  def caveats(self) -> tuple[caveats_lib.Caveat, ...]:
    if self.sampling_rate == 1:
      return self.event.caveats()
    caveats = [*self.event.caveats(), _HIDDEN_COHORT]
    if self.pivotal_probability:
      probability = decimals.rounded_up(self.pivotal_probability, 2)
      caveats.append(caveats_lib.Caveat(
          'suppression depends on single clients',
          'whether a round is opened reveals a single client with probability '
          f'{probability} (counted in epsilon): rounds of too few shares are '
          'suppressed; this assumes that clients drop out independently of each '
          'other, of their data and of other rounds, and no more often than it was '
          'computed for'))
    elif _least_honest_fraction(self.to_json()) < 1:
      caveats.append(caveats_lib.Caveat(
          'no dropouts and no collusion assumed',
          'suppressed rounds are assumed to reveal nothing: this assumes that no '
          'client drops out and that none colludes'))
    return _unique(caveats)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedSizeSampled(base.Event):
  """A release from a cohort of fixed size, sampled without replacement.

  For replace-one neighbours it has twice the zero-out sensitivities throughout, with
  or without amplification. For zero-out neighbours it has its own profile where noise
  is Gaussian, and else that of replace-one, of which zeroing is a case.

  Attributes:
    event: The release from the sample, stated for zero-out.
    cohort_size: Clients in a round, an integer >= 1.
    population: Clients to sample from, an integer >= cohort_size.
    neighbours: 'replace-one' or 'zero-out'.
  """

  event: base.Event
  cohort_size: int
  population: int
  neighbours: str = base.REPLACE_ONE

  source = 'docs/fixed_size.md (PLD); arXiv 1808.00087, Theorem 9 (RDP)'

  def __post_init__(self):
    base.check_event(event=self.event)
    self.event.check_sampled()
    validate.integer(population=self.population, low=1)
    validate.integer(cohort_size=self.cohort_size, low=1, high=self.population)
    validate.one_of((base.REPLACE_ONE, base.ZERO_OUT), neighbours=self.neighbours)
    if self.failure_probability() and not self._is_everyone:
      raise ValueError(f'event {type(self.event).__name__} cannot be amplified: it may '
                       'fail')

  @property
  def adjacency(self) -> str:
    return self.neighbours

  @property
  def _is_everyone(self) -> bool:
    return self.cohort_size == self.population

  def _unsampled(self) -> base.Event:
    """The release whose selected client is another one, or zero."""
    if self.neighbours == base.ZERO_OUT:
      return self.event
    return self.event.replace_one()

  def failure_probability(self) -> float:
    return self._unsampled().failure_probability()

  @property
  def sensitivity(self) -> str:
    return self._unsampled().sensitivity

  def curve(self, max_order: int, amplification: str) -> np.ndarray:
    if amplification == 'none' or self._is_everyone:
      return self._unsampled().curve(max_order, amplification)
    curve = self.event.replace_one().curve(max_order, amplification)
    return curves.fixed_size(curve, self.cohort_size / self.population)

  def pure_epsilon(self, amplification: str) -> float:
    if amplification == 'none' or self._is_everyone:
      return self._unsampled().pure_epsilon(amplification)
    return curves.pure_poisson(self.event.replace_one().pure_epsilon(amplification),
                               self.cohort_size / self.population)

  def factors(self, amplification: str) -> tuple[base.Factor, ...] | None:
    inner = self._unsampled().factors(amplification)
    if amplification == 'none' or self._is_everyone:
      return inner
    if amplification == 'generic' or inner is None:
      return None
    product = pairs.simplified(inner)
    if any(isinstance(pair, pairs.Leak) for pair, _ in product):
      return inner
    pair, fraction = pairs.together(product), self.cohort_size / self.population
    if self.neighbours == base.ZERO_OUT:
      if isinstance(pair, pairs.Gaussian):
        return ((pairs.ZeroedWithoutReplacement(
            noise_multiplier=pair.noise_multiplier, fraction=fraction), 1),)
      return dataclasses.replace(self, neighbours=base.REPLACE_ONE).factors(
          amplification)
    if pair is None:
      return None
    return ((pairs.WithoutReplacement(pair=pair, fraction=fraction), 1),)

  def skellam_coordinates(self) -> int:
    return self.event.skellam_coordinates()

  def as_gaussian(self, distance: float) -> base.Event:
    return dataclasses.replace(self, event=self.event.as_gaussian(distance))

  def without_sampling(self) -> base.Event:
    # Not the bare event: the unamplified number is for the same neighbours.
    return dataclasses.replace(self, cohort_size=self.population)

  def to_dp_accounting(self) -> dp_event.DpEvent:
    if self.neighbours == base.ZERO_OUT:
      raise NotImplementedError(
          'event FixedSizeSampled has no equivalent in dp_accounting for zero-out '
          'neighbours')
    return dp_event.SampledWithoutReplacementDpEvent(
        self.population, self.cohort_size,
        self.event.replace_one().to_dp_accounting())

  def caveats(self) -> tuple[caveats_lib.Caveat, ...]:
    if self.cohort_size == self.population:
      return self.event.caveats()
    return _unique((*self.event.caveats(), _HIDDEN_COHORT))


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpochSampled(base.Event):
  """A release from a cohort of fixed size of a shuffled population.

  All clients are selected once before any is selected again, so one client is in
  ceil(rounds * cohort_size / population) of the rounds at most, whoever watches.

  Attributes:
    event: The release from the sample.
    cohort_size: Clients in a round, an integer >= 1.
    population: Clients to select from, an integer >= cohort_size.
  """

  event: base.Event
  cohort_size: int
  population: int

  source = 'docs/participation.md'

  def __post_init__(self):
    base.check_event(event=self.event)
    self.event.check_sampled()
    validate.integer(population=self.population, low=1)
    validate.integer(cohort_size=self.cohort_size, low=1, high=self.population)

  @property
  def adjacency(self) -> str:
    return self.event.adjacency

  @property
  def sensitivity(self) -> str:
    return self.event.sensitivity

  def participations(self, count: int, amplification: str) -> int:
    return -(-count * self.cohort_size // self.population)

  def curve(self, max_order: int, amplification: str) -> np.ndarray:
    return self.event.curve(max_order, amplification)

  def pure_epsilon(self, amplification: str) -> float:
    return self.event.pure_epsilon(amplification)

  def failure_probability(self) -> float:
    return self.event.failure_probability()

  def factors(self, amplification: str) -> tuple[base.Factor, ...] | None:
    return self.event.factors(amplification)

  def skellam_coordinates(self) -> int:
    return self.event.skellam_coordinates()

  def as_gaussian(self, distance: float) -> base.Event:
    return dataclasses.replace(self, event=self.event.as_gaussian(distance))

  def repeated(self) -> base.Event:
    # A round that was not committed is outside of the order.
    return self.event.repeated()

  def caveats(self) -> tuple[caveats_lib.Caveat, ...]:
    return self.event.caveats()


class _Product(base.Event):
  """Several releases: their curves add, their dominating pairs multiply."""

  source = 'arXiv 1702.07476, Proposition 1'

  @abc.abstractmethod
  def _counts(self) -> Mapping[base.Event, int]:
    """The events, and how often each is released."""

  @abc.abstractmethod
  def _mapped(self, change: Callable[[base.Event], base.Event]) -> '_Product':
    """The same product of changed events."""

  @property
  def adjacency(self) -> str:
    adjacencies = {event.adjacency for event in self._counts()} - {base.ANY}
    if len(adjacencies) > 1:
      raise ValueError(
          'events can only be composed under one adjacency, found '
          f'{", ".join(sorted(adjacencies))}')
    return adjacencies.pop() if adjacencies else base.ANY

  def curve(self, max_order: int, amplification: str) -> np.ndarray:
    return sum(event.participations(count, amplification) *
               event.curve(max_order, amplification)
               for event, count in self._counts().items())

  def failure_probability(self) -> float:
    return min(1.0, sum(count * event.failure_probability()
                        for event, count in self._counts().items()))

  def pure_epsilon(self, amplification: str) -> float:
    return sum(event.participations(count, amplification) *
               event.pure_epsilon(amplification)
               for event, count in self._counts().items())

  def factors(self, amplification: str) -> tuple[base.Factor, ...] | None:
    factors = []
    for event, times in self._counts().items():
      inner = event.factors(amplification)
      if inner is None:
        return None
      times = event.participations(times, amplification)
      factors.extend((pair, count * times) for pair, count in inner)
    return tuple(factors)

  def skellam_coordinates(self) -> int:
    return sum(count * event.skellam_coordinates()
               for event, count in self._counts().items())

  def as_gaussian(self, distance: float) -> base.Event:
    return self._mapped(lambda event: event.as_gaussian(distance))

  def replace_one(self) -> base.Event:
    return self._mapped(lambda event: event.replace_one())

  def check_sampled(self) -> None:
    for event in self._counts():
      event.check_sampled()

  def without_sampling(self) -> base.Event:
    # One that is the same without sampling stays as it is, with its own limit.
    counts = collections.Counter()
    for event, count in self._counts().items():
      unsampled = event.without_sampling()
      counts[unsampled] += (
          count if unsampled == event else event.participations(count, 'none'))
    return self if counts == self._counts() else composed(counts)

  def repeated(self) -> base.Event:
    return self._mapped(lambda event: event.repeated())

  def caveats(self) -> tuple[caveats_lib.Caveat, ...]:
    return _unique(caveat for event in self._counts() for caveat in event.caveats())


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelfComposed(_Product):
  """The same event, `count` times in a row, adaptively.

  Attributes:
    event: One release.
    count: Number of releases, an integer >= 1.
  """

  event: base.Event
  count: int

  def __post_init__(self):
    base.check_event(event=self.event)
    validate.integer(count=self.count, low=1)

  def _counts(self) -> Mapping[base.Event, int]:
    return {self.event: self.count}

  def _mapped(self, change: Callable[[base.Event], base.Event]) -> 'SelfComposed':
    return dataclasses.replace(self, event=change(self.event))

  @property
  def sensitivity(self) -> str:
    return f'{self.event.sensitivity}, {self.count} times'

  def to_dp_accounting(self) -> dp_event.DpEvent:
    return dp_event.SelfComposedDpEvent(self.event.to_dp_accounting(), self.count)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Composed(_Product):
  """Different events one after the other, adaptively, each with its own sample.

  Attributes:
    events: At least one, all of one adjacency.
  """

  events: tuple[base.Event, ...]

  def __post_init__(self):
    if not isinstance(self.events, (tuple, list)) or not self.events:
      raise ValueError(
          f'events must be a non-empty tuple of events, found {self.events!r}')
    object.__setattr__(self, 'events', tuple(self.events))
    for event in self.events:
      base.check_event(events=event)
    _ = self.adjacency  # Raises ValueError if there are several.

  def _counts(self) -> Mapping[base.Event, int]:
    return collections.Counter(self.events)

  def _mapped(self, change: Callable[[base.Event], base.Event]) -> 'Composed':
    return dataclasses.replace(self, events=tuple(map(change, self.events)))

  @property
  def sensitivity(self) -> str:
    return '; '.join(_unique(event.sensitivity for event in self.events))

  def to_dp_accounting(self) -> dp_event.DpEvent:
    return dp_event.ComposedDpEvent([event.to_dp_accounting() for event in self.events])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Together(Composed):
  """Several releases from one sample, such as a sum and a bit about its clip.

  Under `PoissonSampled` or `FixedSizeSampled` their curves are added before the
  amplification: a client is in all of them or in none.

  Attributes:
    events: At least one, all of one adjacency, none of them sampled on its own.
  """

  def __post_init__(self):
    super().__post_init__()
    for event in self.events:
      if event.without_sampling() != event:
        raise ValueError(
            'events of Together must not be sampled one by one: sample the '
            f'whole, found {type(event).__name__}')


def composed(counts: Mapping[base.Event, int]) -> base.Event:
  """The composition of at least one event, each released as often as counted."""
  parts = tuple(SelfComposed(event=event, count=count)
                for event, count in counts.items())
  return parts[0] if len(parts) == 1 else Composed(events=parts)
