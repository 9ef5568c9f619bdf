"""Sampling schemes: which clients a round selects, and what that costs.

A scheme samples the clients of a round and states the privacy event of a release from
them, so that what is accounted is what is executed. `SCHEMES` names the schemes; a new
one is a subclass of `SamplingScheme` under its name there.

Cohorts come from the operating system's entropy. With a simulation seed they follow
from the seed and the round, and the run has no privacy guarantee.
"""

import abc
import collections
from collections.abc import Mapping
import fractions
import hashlib
import math
import os
from typing import ClassVar

import numpy as np

from aggregators import validate
from tff_pipelines.accounting import base
from tff_pipelines.accounting import combinators
from tff_pipelines.accounting import sampling as sampling_lib


class SamplingScheme(abc.ABC):
  """A rule by which rounds select clients.

  Rounds of a run are counted from 1. A scheme may keep a state between rounds: the
  checkpoint of a round holds what `state` returns after the round was sampled, and a
  run that resumes hands it to `restore`.

  Class attributes:
    name: Of the scheme, as in the flags.
    summary: What it does in a few words, for the help of the flags.
    cohort_in_words: What `cohort_size` of a round is: 'expected' or 'exactly'.
    same_every_round: Whether `event` and `repeated` are the same in all rounds.

  Attributes:
    population: Number of clients, >= 1.
    cohort_size: Expected number of clients in a round, in (0, population].
    simulation_seed: None for the operating system's entropy.
  """

  name: ClassVar[str]
  summary: ClassVar[str] = ''
  cohort_in_words: ClassVar[str] = 'expected'
  same_every_round: ClassVar[bool] = False

  def __init__(self, *, population: int | None, cohort_size: float | None,
               simulation_seed: int | None = None):
    """Initializes the scheme.

    Args:
      population: As the attribute.
      cohort_size: As the attribute.
      simulation_seed: As the attribute.

    Raises:
      ValueError: If an argument is missing or out of range.
    """
    for name, value in (('cohort_size', cohort_size), ('population', population)):
      if value is None:
        raise ValueError(f'{name} must be given for sampling={self.name}')
    _check_sizes(population, cohort_size)
    self.population = population
    self.cohort_size = cohort_size
    self.simulation_seed = simulation_seed

  @abc.abstractmethod
  def sample(self, round_index: int) -> np.ndarray:
    """Samples the clients of a round.

    Args:
      round_index: Index of the round.

    Returns:
      Sorted indices into the population, int64 of shape [cohort].
    """

  @abc.abstractmethod
  def event(self, release: base.Event, round_index: int,
            pivotal_probability: float = 0.0) -> base.Event:
    """The event of one round.

    Args:
      release: The release from the clients that the round selected.
      round_index: Index of the round.
      pivotal_probability: Of the rounds, those in which one client decides whether
        the release is seen, in [0, 1]; see the method of this name.
    """

  def repeated(self, release: base.Event, round_index: int,
               pivotal_probability: float = 0.0) -> base.Event:
    """The event that is added if a round is run once more after a restart.

    A ledger knows the events of its lines and no scheme. So a scheme whose repeated
    rounds cost something else than the round itself returns from `event` an event
    whose own `repeated` says so.
    """
    return self.event(release, round_index, pivotal_probability).repeated()

  def events(self, release: base.Event, rounds: int,
             pivotal_probability: float = 0.0) -> base.Event:
    """The events of the rounds 1 to `rounds`, composed."""
    validate.integer(rounds=rounds, low=1)
    if self.same_every_round:
      counts = {self.event(release, 1, pivotal_probability): rounds}
    else:
      counts = collections.Counter(
          self.event(release, round_index, pivotal_probability)
          for round_index in range(1, rounds + 1))
    composed = tuple(combinators.SelfComposed(event=event, count=count)
                     for event, count in counts.items())
    return composed[0] if len(composed) == 1 else combinators.Composed(
        events=composed)

  def pivotal_probability(self, min_honest_fraction: float, assumed_colluders: int,
                          dropout_rate: float) -> float:
    """How often one client decides whether a round of too few shares is suppressed.

    1, the safe side, unless a scheme knows better.

    Args:
      min_honest_fraction: Fraction of the shares that a round needs, in (0, 1].
      assumed_colluders: Clients of a round that are assumed to collude, >= 0.
      dropout_rate: Of selected clients, in [0, 1).

    Returns:
      A probability in [0, 1], rounded up.
    """
    del min_honest_fraction, assumed_colluders, dropout_rate
    return 1.0

  def state(self) -> dict[str, np.ndarray]:
    """The arrays that the checkpoint of a round keeps; none unless overridden."""
    return {}

  def restore(self, state: Mapping[str, np.ndarray]) -> None:
    """Resumes from what `state` returned.

    Raises:
      ValueError: If it is the state of another scheme.
    """
    if state:
      raise ValueError(f'state must be empty for sampling={self.name}, found '
                       f'{", ".join(sorted(state))}')

  @property
  def expected_cohort(self) -> float:
    """Expected number of clients in a round."""
    return self.cohort_size

  @property
  def largest_cohort(self) -> int:
    """The number of clients that no round exceeds."""
    return self.population

  @property
  def planned_cohort(self) -> float | None:
    """The number of clients that sums are sized for; None for `expected_cohort`.

    A larger cohort costs accuracy, never privacy.
    """
    return self.largest_cohort

  def _random_bits(self, round_index: int) -> np.ndarray:
    """64 random bits for every client, uint64 of shape [population]."""
    if self.simulation_seed is None:
      return np.frombuffer(os.urandom(8 * self.population), np.uint64)
    digest = hashlib.sha256(
        f'cohort {self.simulation_seed} {round_index}'.encode()).digest()
    generator = np.random.Philox(key=int.from_bytes(digest[:16], 'big'))
    return generator.random_raw(self.population).astype(np.uint64)


def _check_sizes(population: int | None, cohort_size: float | None) -> None:
  """Raises ValueError for sizes that are out of range; None is not checked."""
  if population is not None:
    validate.integer(population=population, low=1)
  if cohort_size is not None:
    validate.positive(cohort_size=cohort_size)
  if population is not None and cohort_size is not None and cohort_size > population:
    raise ValueError(f'cohort_size must be at most population={population!r}, found '
                     f'{cohort_size!r}')


class Poisson(SamplingScheme):
  """Selects every client independently with one probability.

  Formal guarantees:

  * Every client is in a round with probability at most `cohort_size / population`,
    exact to 2^-64 and rounded down, independently of all others and of other rounds.
  * `event` is amplified against observers who learn neither who nor how many were
    selected; a client that decides whether the round is suppressed is paid for.
  """

  name = 'poisson'
  summary = 'every client independently'
  same_every_round = True

  @property
  def sampling_rate(self) -> float:
    """q = cohort_size / population, in (0, 1]."""
    return self.cohort_size / self.population

  def sample(self, round_index: int) -> np.ndarray:
    if self.cohort_size == self.population:
      return np.arange(self.population)
    # Exact: the quotient of two floats may be rounded up.
    rate = fractions.Fraction(self.cohort_size) / self.population
    threshold = math.floor(rate * 2**64)
    return np.flatnonzero(self._random_bits(round_index) < np.uint64(threshold))

  def event(self, release: base.Event, round_index: int,
            pivotal_probability: float = 0.0) -> base.Event:
    del round_index
    return combinators.PoissonSampled(
        event=release, sampling_rate=self.sampling_rate,
        pivotal_probability=pivotal_probability)

  def pivotal_probability(self, min_honest_fraction: float, assumed_colluders: int,
                          dropout_rate: float) -> float:
    return sampling_lib.pivotal_probability(
        self.population, self.sampling_rate, min_honest_fraction, assumed_colluders,
        dropout_rate)

  @property
  def planned_cohort(self) -> float:
    return max(self.cohort_size, sampling_lib.cohort_upper_quantile(
        self.population, self.sampling_rate))


class FixedSize(SamplingScheme):
  """Selects a uniform subset of exactly `cohort_size` clients, an integer.

  Formal guarantees:

  * Every subset of that size is equally probable, independently of other rounds.
  * `event` is for replace-one neighbours, against observers who do not learn who was
    selected. The size is public: no client decides whether a round is suppressed.
  """

  name = 'fixed'
  summary = 'a subset of exactly --cohort_size'
  cohort_in_words = 'exactly'
  same_every_round = True

  def __init__(self, *, population: int | None, cohort_size: float | None,
               simulation_seed: int | None = None):
    super().__init__(population=population, cohort_size=cohort_size,
                     simulation_seed=simulation_seed)
    if cohort_size != int(cohort_size):
      raise ValueError('cohort_size must be an integer for sampling=fixed, '
                       f'found {cohort_size!r}')

  def sample(self, round_index: int) -> np.ndarray:
    if self.cohort_size == self.population:
      return np.arange(self.population)
    # The subset with the smallest numbers; a tie among numbers of 64 bits does not
    # happen, and would only prefer the lower index.
    order = np.argsort(self._random_bits(round_index), kind='stable')
    return np.sort(order[:self.largest_cohort])

  def event(self, release: base.Event, round_index: int,
            pivotal_probability: float = 0.0) -> base.Event:
    del round_index, pivotal_probability
    return combinators.FixedSizeSampled(
        event=release, cohort_size=self.largest_cohort, population=self.population)

  def pivotal_probability(self, min_honest_fraction: float, assumed_colluders: int,
                          dropout_rate: float) -> float:
    del min_honest_fraction, assumed_colluders, dropout_rate
    return 0.0

  @property
  def largest_cohort(self) -> int:
    return int(self.cohort_size)

  @property
  def planned_cohort(self) -> None:
    return None


class Everyone(SamplingScheme):
  """Selects all clients in every round.

  Accounting needs no number of clients, so both sizes may be None; sampling needs the
  population.

  Formal guarantees:

  * `event` is the release itself: nothing is amplified, and no client decides whether
    a round is suppressed.
  """

  name = 'none'
  summary = 'all clients'
  cohort_in_words = 'exactly'
  same_every_round = True

  def __init__(self, *, population: int | None = None,
               cohort_size: float | None = None, simulation_seed: int | None = None):
    # pylint: disable=super-init-not-called
    _check_sizes(population, cohort_size)
    self.population = population
    self.cohort_size = cohort_size
    self.simulation_seed = simulation_seed

  def sample(self, round_index: int) -> np.ndarray:
    del round_index
    return np.arange(self.largest_cohort)

  def event(self, release: base.Event, round_index: int,
            pivotal_probability: float = 0.0) -> base.Event:
    del round_index, pivotal_probability
    return release

  def pivotal_probability(self, min_honest_fraction: float, assumed_colluders: int,
                          dropout_rate: float) -> float:
    del min_honest_fraction, assumed_colluders, dropout_rate
    return 0.0

  @property
  def expected_cohort(self) -> float:
    return self.largest_cohort

  @property
  def largest_cohort(self) -> int:
    if self.population is None:
      raise ValueError('population must be given for sampling=none')
    return self.population

  @property
  def planned_cohort(self) -> None:
    return None


SCHEMES: dict[str, type[SamplingScheme]] = {
    scheme.name: scheme for scheme in (Poisson, FixedSize, Everyone)}
# Names offered by flags, and what they mean.
SAMPLINGS = tuple(SCHEMES)
IN_WORDS = '; '.join(f'{name}: {scheme.summary}' for name, scheme in SCHEMES.items())


def check_name(name: str) -> None:
  """Raises ValueError unless a scheme has this name."""
  validate.one_of(tuple(SCHEMES), sampling=name)


def build(name: str, *, population: int | None, cohort_size: float | None,
          simulation_seed: int | None = None) -> SamplingScheme:
  """Builds the scheme of a name.

  Args:
    name: A key of `SCHEMES`.
    population: Number of clients.
    cohort_size: Expected number of clients in a round.
    simulation_seed: None for the operating system's entropy.

  Raises:
    ValueError: If the name is unknown, or an argument is out of range.
  """
  check_name(name)
  return SCHEMES[name](population=population, cohort_size=cohort_size,
                       simulation_seed=simulation_seed)
