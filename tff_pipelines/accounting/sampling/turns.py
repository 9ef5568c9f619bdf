"""The sampling scheme of clients who take turns, as rows of weighted sums need."""

from collections.abc import Mapping, Sequence
import functools
import math

import numpy as np

from aggregators import params as params_lib
from tff_pipelines.accounting.events import base, turns
from tff_pipelines.accounting.sampling import cohorts, scheme, subsets
from tff_pipelines.common import validate


class Turns(scheme.SamplingScheme):
  """Selects clients in turn, each at most once in population / turn_size rounds.

  Formal guarantees:

  * The clients have one order, which is uniform, independent of all data and the same
    in all rounds. A round is the turn of the next `turn_size` of them, cyclically, so
    the turns of a client are at least floor(population / turn_size) rounds apart,
    however many rounds there are. A client that is missed waits for its next turn.
  * In its turn a client is selected with probability `cohort_size / turn_size` at most,
    independently of all others: with `turn_rate` 1 for certain.
  * `event` is that of rows of weighted sums (docs/correlated_noise.md). Only with a
    smaller `turn_rate` it is amplified, against observers who learn nothing of cohorts.
  * A cohort depends on the state, a key, on the round and on random bits of its own, so
    a round that is repeated has the same turn.

  Attributes:
    turn_size: m, number of clients who have a turn in a round.
    column: Weights of the sums in a row, as many as fit between two turns of a client.
  """

  name = 'turns'
  summary = 'each in turn'
  same_every_round = True

  def __init__(self, *, turn_rate: float = 1.0, column: Sequence[int] = (1,),
               **arguments):
    super().__init__(**arguments)
    validate.fraction(turn_rate=turn_rate)
    if turn_rate == 1 and self.cohort_size != int(self.cohort_size):
      raise ValueError('cohort_size must be an integer for turn_rate=1, '
                       f'found {self.cohort_size!r}')
    # A quotient that is rounded up needs no larger turns: their size decides the rate.
    self.turn_size = math.ceil(self.cohort_size / turn_rate * (1 - 1e-12))
    if self.turn_size > self.population:
      raise ValueError(f'turn_rate must be at least cohort_size / population, found '
                       f'{turn_rate!r}')
    self.column = params_lib.check_column(column)
    turns.check_turns(self.column, self.turn_size, self.population)
    self._key = self._random_bits(0)(2).view(np.int64)

  @property
  def sampling_rate(self) -> float:
    """q' = cohort_size / turn_size, in (0, 1]."""
    return self.cohort_size / self.turn_size

  @property
  def hides_nothing(self) -> bool:
    return self.sampling_rate == 1

  @property
  def most_bands(self) -> int:
    """The largest number of weights in a column: the rounds between two turns."""
    return self.population // self.turn_size

  @property
  def cohort_in_words(self) -> str:
    return 'exactly' if self.sampling_rate == 1 else 'expected'

  @functools.cached_property
  def _order(self) -> np.ndarray:
    """The clients in the order of their turns, int64 [population]."""
    key = int.from_bytes(self._key.tobytes(), 'little')
    return np.argsort(subsets.from_key(key)(self.population), kind='stable')

  def sample(self, round_index: int) -> np.ndarray:
    first = (round_index - 1) * self.turn_size
    chosen = subsets.poisson(
        self._random_bits(round_index), self.turn_size, self.cohort_size)
    return np.sort(self._order[(first + chosen) % self.population])

  def state(self) -> dict[str, np.ndarray]:
    return {'key': self._key.copy()}

  def restore(self, state: Mapping[str, np.ndarray]) -> None:
    key = np.asarray(state.get('key', 0))
    if len(state) != 1 or key.shape != (2,) or key.dtype != np.int64:
      raise self._mismatch(state)
    self._key = key.copy()
    self.__dict__.pop('_order', None)

  def event(self, release: base.Event, round_index: int,
            pivotal_probability: float = 0.0) -> base.Event:
    return turns.TurnSampled(
        event=release, column=self.column, turn_size=self.turn_size,
        population=self.population, sampling_rate=self.sampling_rate,
        pivotal_probability=pivotal_probability)

  def pivotal_probability(self, min_honest_fraction: float, assumed_colluders: int,
                          dropout_rate: float) -> float:
    if self.sampling_rate == 1:
      return 0.0
    pivotal = cohorts.pivotal_probability(
        self.turn_size, self.sampling_rate, min_honest_fraction, assumed_colluders,
        dropout_rate)
    if len(self.column) > 1:
      # A row of earlier sums is not opened if its own cohort, whose noise hides them, is
      # empty: one client decides that where no other is sampled.
      pivotal += (1 - self.sampling_rate)**(self.turn_size - 1) * (1 + 1e-9)
    return min(1.0, pivotal)

  @property
  def largest_cohort(self) -> int:
    return self.turn_size

  @property
  def planned_cohort(self) -> float | None:
    return None if self.sampling_rate == 1 else max(
        self.cohort_size, cohorts.upper_quantile(self.turn_size, self.sampling_rate))
