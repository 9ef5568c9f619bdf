"""The interface of sampling schemes; `schemes` has them all."""

import abc
import collections
from collections.abc import Mapping
import hashlib
from typing import Any, ClassVar

import numpy as np

from tff_pipelines.accounting.events import base, combinators
from tff_pipelines.accounting.sampling import subsets
from tff_pipelines.common import validate


def given(**arguments: Any) -> dict[str, Any]:
  """The arguments that are not None."""
  return {name: value for name, value in arguments.items() if value is not None}


class SamplingScheme(abc.ABC):
  """A rule by which rounds, counted from 1, select clients.

  Class attributes:
    name: Name of the scheme, as in the flags.
    summary: A few words for the help of the flags.
    cohort_in_words: 'expected' or 'exactly', for the `cohort_size` of a round.
    same_every_round: Whether `event` is the same in all rounds.
    needs_sizes: Whether population and cohort size must be given.
    hides_nothing: Whether what holds against the server is what is aimed at: who has
      a turn is no secret.

  Attributes:
    population: Number of clients, >= 1.
    cohort_size: Expected number of clients in a round, in (0, population].
    simulation_seed: None for the operating system's entropy.
    adjacency: Adjacency of a cohort of fixed size; others have that of the release.
  """

  name: ClassVar[str]
  summary: ClassVar[str] = ''
  cohort_in_words: ClassVar[str] = 'expected'
  same_every_round: ClassVar[bool] = False
  needs_sizes: ClassVar[bool] = True
  hides_nothing: bool = False

  def __init__(self, *, population: int | None = None, cohort_size: float | None = None,
               simulation_seed: int | None = None, adjacency: str = base.REPLACE_ONE):
    """Initializes the scheme; ValueError if an attribute is missing or out of range."""
    for name, value in (('cohort_size', cohort_size), ('population', population)):
      if value is None and self.needs_sizes:
        raise ValueError(f'{name} must be given for sampling={self.name}')
    validate.integer(**given(population=population), low=1)
    validate.positive(**given(cohort_size=cohort_size))
    if None not in (population, cohort_size) and cohort_size > population:
      raise ValueError(f'cohort_size must be at most population={population!r}, '
                       f'found {cohort_size!r}')
    self.population = population
    self.cohort_size = cohort_size
    self.simulation_seed = simulation_seed
    self.adjacency = adjacency

  @abc.abstractmethod
  def sample(self, round_index: int) -> np.ndarray:
    """The clients of a round: sorted indices into the population, int64 [cohort]."""

  @abc.abstractmethod
  def event(self, release: base.Event, round_index: int,
            pivotal_probability: float = 0.0) -> base.Event:
    """The event of one round.

    Args:
      release: The release from the clients that the round selected.
      round_index: Index of the round.
      pivotal_probability: The result of the method of this name.
    """

  def events(self, release: base.Event, rounds: int,
             pivotal_probability: float = 0.0) -> base.Event:
    """The events of the rounds 1 to `rounds`, composed."""
    validate.integer(rounds=rounds, low=1)
    return combinators.composed(
        {self.event(release, 1, pivotal_probability): rounds} if self.same_every_round
        else collections.Counter(self.event(release, index, pivotal_probability)
                                 for index in range(1, rounds + 1)))

  def pivotal_probability(self, min_honest_fraction: float, assumed_colluders: int,
                          dropout_rate: float) -> float:
    """The probability that one client decides whether a round of few shares is suppressed.

    1, the safe side, unless a scheme knows better; see `cohorts.pivotal_probability`.
    """
    return 1.0

  def state(self) -> dict[str, np.ndarray]:
    """The arrays that the checkpoint of a round keeps; by default none."""
    return {}

  def restore(self, state: Mapping[str, np.ndarray]) -> None:
    """Restores what `state` returned; ValueError if it is that of another scheme."""
    if state:
      raise ValueError(f'state must be empty for sampling={self.name}, found '
                       f'{", ".join(sorted(state))}')

  def _mismatch(self, state: Mapping[str, np.ndarray]) -> ValueError:
    return ValueError(
        f'state must be that of sampling={self.name} with {self.population} clients, '
        f'found {", ".join(sorted(state)) or "none"}')

  @property
  def expected_cohort(self) -> float:
    """Expected number of clients in a round."""
    return self.cohort_size

  @property
  def largest_cohort(self) -> int:
    """The largest number of clients in a round."""
    return self.population

  @property
  def planned_cohort(self) -> float | None:
    """The number of clients that sums are sized for; None for `expected_cohort`.

    A larger cohort costs accuracy, never privacy.
    """
    return self.largest_cohort

  def _random_bits(self, round_index: int, draw: int = 0) -> subsets.RandomBits:
    """The random bits of a round, and of a draw in it."""
    if self.simulation_seed is None:
      return subsets.from_entropy
    again = f' {draw}' if draw else ''
    digest = hashlib.sha256(
        f'cohort {self.simulation_seed} {round_index}{again}'.encode()).digest()
    return subsets.from_key(int.from_bytes(digest[:16], 'big'))
