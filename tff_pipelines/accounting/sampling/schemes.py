"""Sampling schemes: which clients a round selects, and what that costs.

A scheme samples the clients of a round and states the privacy event of a release from
them, so that what is accounted is what is executed. `SCHEMES` names the schemes; a new
one is a subclass of `SamplingScheme` under its name there.

Cohorts come from the operating system's entropy. With a simulation seed they follow
from the seed and the round, and the run has no privacy guarantee.
"""

from collections.abc import Mapping, Sequence
import functools
import itertools
import math
from typing import Any

import numpy as np

from aggregators import params as params_lib
from tff_pipelines.accounting.events import base, records, sampled, sized, turns
from tff_pipelines.accounting.sampling import cohorts, subsets
from tff_pipelines.accounting.sampling.scheme import given, SamplingScheme
from tff_pipelines.common import validate


class Poisson(SamplingScheme):
  """Selects every client independently with one probability.

  Formal guarantees:

  * Every client is in a round with probability at most `cohort_size / population`,
    rounded down to a multiple of 2^-64, independently of all others and of other
    rounds. `subsets` proves it; the random bits are the only assumption.
  * `event` is amplified against observers who learn neither which nor how many
    clients were selected; it pays for clients that decide whether a round is
    suppressed.
  * With `max_participations` a client that was selected so often is not selected
    again: whether a client is depends on its own past and nothing else, so whoever
    knows the cohorts sees it in at most so many rounds (docs/participation.md).
  * With `min_cohort_size` a smaller cohort is drawn again before any client is told;
    `event` pays for the rounds in which that may tell of a client
    (`redrawn_probability`).

  Attributes:
    max_participations: At least 1; None for no limit.
    min_cohort_size: In 1..population; None if a cohort may be of one, or of none.
    rounds: Number of rounds, >= 1; needed with both of these.
  """

  name = 'poisson'
  summary = 'each independently'
  same_every_round = True

  def __init__(self, *, max_participations: int | None = None,
               min_cohort_size: int | None = None, rounds: int = 1, **arguments):
    super().__init__(**arguments)
    validate.integer(**given(max_participations=max_participations), low=1)
    validate.integer(**given(min_cohort_size=min_cohort_size), low=1,
                     high=self.population)
    self.max_participations = max_participations
    self.min_cohort_size = min_cohort_size
    self.rounds = rounds
    # The clients that were selected, increasing, and the number of rounds of each.
    self._participations = np.zeros([2, 0], np.int64)

  @property
  def sampling_rate(self) -> float:
    """q = cohort_size / population, in (0, 1]."""
    return self.cohort_size / self.population

  def sample(self, round_index: int) -> np.ndarray:
    least, limit = self.min_cohort_size or 0, self.max_participations
    clients, counts = self._participations  # None without a limit.
    full = clients[counts >= (limit or 1)]
    if (available := self.population - full.size) < least:
      raise ValueError(f'min_cohort_size={least} can\'t be met in round {round_index}: '
                       f'max_participations={limit} leaves {available} clients')
    for draw in itertools.count():
      selected = np.setdiff1d(self._drawn(round_index, draw), full, assume_unique=True)
      if selected.size >= least:
        break
    if limit is not None:
      total = np.union1d(clients, selected)
      self._participations = np.stack([total, np.isin(total, selected)])
      self._participations[1, np.searchsorted(total, clients)] += counts
    return selected

  def _drawn(self, round_index: int, draw: int) -> np.ndarray:
    """One draw of a round, without limits."""
    return subsets.poisson(
        self._random_bits(round_index, draw), self.population, self.cohort_size)

  def state(self) -> dict[str, np.ndarray]:
    return {} if self.max_participations is None else {
        'participations': self._participations.copy()}

  def restore(self, state: Mapping[str, np.ndarray]) -> None:
    if self.max_participations is None:
      return super().restore(state)
    array = np.asarray(state.get('participations', 0))
    if len(state) != 1 or array.ndim != 2 or len(array) != 2:
      raise self._mismatch(state)
    clients, counts = array = array.astype(np.int64)
    if not (np.diff(clients, prepend=-1, append=self.population) > 0).all() or (
        not (counts > 0).all()):
      raise self._mismatch(state)
    self._participations = array

  def event(self, release: base.Event, round_index: int,
            pivotal_probability: float = 0.0) -> base.Event:
    least, redrawn = self.min_cohort_size, 0.0
    if self.sampling_rate == 1 and self.max_participations is None:
      least = self.population
    elif least is not None:
      redrawn = cohorts.redrawn_probability(
          self.population, self.sampling_rate, least, rounds=self.rounds,
          max_participations=self.max_participations,
          suppresses=pivotal_probability > 0)
    return sampled.PoissonSampled(
        event=release, sampling_rate=self.sampling_rate,
        max_participations=self.max_participations,
        pivotal_probability=pivotal_probability, least_cohort=least,
        redrawn_probability=redrawn)

  def pivotal_probability(self, min_honest_fraction: float, assumed_colluders: int,
                          dropout_rate: float) -> float:
    never = assumed_colluders == 0 and (min_honest_fraction == 1 or dropout_rate == 0)
    if self.max_participations is not None and not never:
      return 1.0  # How many others may still be selected is not known.
    return cohorts.pivotal_probability(
        self.population, self.sampling_rate, min_honest_fraction, assumed_colluders,
        dropout_rate)

  @property
  def planned_cohort(self) -> float:
    return max(self.cohort_size, cohorts.upper_quantile(
        self.population, self.cohort_size / self.population))


class _Exact(SamplingScheme):
  """Selects a public number of clients: none decides whether a round is suppressed."""

  cohort_in_words = 'exactly'
  same_every_round = True
  planned_cohort = None

  def pivotal_probability(self, min_honest_fraction: float, assumed_colluders: int,
                          dropout_rate: float) -> float:
    return 0.0


class _Sized(_Exact):
  """Selects exactly `cohort_size` clients, an integer."""

  def __init__(self, **arguments):
    super().__init__(**arguments)
    if self.cohort_size != int(self.cohort_size):
      raise ValueError(f'cohort_size must be an integer for sampling={self.name}, '
                       f'found {self.cohort_size!r}')

  @property
  def largest_cohort(self) -> int:
    return int(self.cohort_size)


class FixedSize(_Sized):
  """Selects a uniform subset of exactly `cohort_size` clients, an integer.

  Formal guarantees:

  * Every subset of that size is equally probable, independently of other rounds.
  * `event` is for neighbours of its `adjacency`, against observers who do not learn
    which clients were selected. The size is public: no client decides whether a round is
    suppressed.
  """

  name = 'fixed'
  summary = 'exactly --cohort_size'

  def sample(self, round_index: int) -> np.ndarray:
    return subsets.uniform(
        self._random_bits(round_index), self.population, self.largest_cohort)

  def event(self, release: base.Event, round_index: int,
            pivotal_probability: float = 0.0) -> base.Event:
    return sized.FixedSizeSampled(
        event=release, cohort_size=self.largest_cohort, population=self.population,
        neighbours=self.adjacency)


class Epochs(_Sized):
  """Selects exactly `cohort_size` clients, all once before any is selected again.

  Formal guarantees:

  * The population is shuffled, selected from the beginning to the end, and shuffled
    again. Where a cohort reaches beyond an end, it takes the first clients of the next
    order that it does not have.
  * One client is in ceil(rounds * cohort_size / population) rounds at most. `event` is
    the composition of so many, whoever watches: nothing is amplified, and nothing
    about the cohorts is assumed to be hidden.
  """

  name = 'epochs'
  summary = 'each once an epoch'

  def __init__(self, **arguments):
    super().__init__(**arguments)
    self._order, self._position = np.arange(self.population), self.population

  def sample(self, round_index: int) -> np.ndarray:
    selected = self._order[self._position:self._position + self.largest_cohort]
    missing = self.largest_cohort - selected.size
    self._position += selected.size
    if missing:
      order = np.argsort(self._random_bits(round_index)(self.population), kind='stable')
      first = order[~np.isin(order, selected)][:missing]
      self._order = np.concatenate([first, order[~np.isin(order, first)]])
      self._position = missing
      selected = np.concatenate([selected, first])
    return np.sort(selected)

  def state(self) -> dict[str, np.ndarray]:
    return {'order': self._order.copy(), 'position': np.array(self._position)}

  def restore(self, state: Mapping[str, np.ndarray]) -> None:
    if state.keys() != {'order', 'position'} or (
        np.shape(state['order']), np.shape(state['position'])) != (
            self._order.shape, ()):
      raise self._mismatch(state)
    self._order, self._position = np.array(state['order']), int(state['position'])

  def event(self, release: base.Event, round_index: int,
            pivotal_probability: float = 0.0) -> base.Event:
    return sized.EpochSampled(
        event=release, cohort_size=self.largest_cohort, population=self.population)


class Turns(SamplingScheme):
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


class Everyone(_Exact):
  """Selects all clients in every round.

  Accounting needs no number of clients, so both sizes may be None; sampling needs the
  population.

  Formal guarantees: `event` is the release itself, so nothing is amplified, and no
  client decides whether a round is suppressed.
  """

  name = 'none'
  summary = 'all clients'
  needs_sizes = False

  def sample(self, round_index: int) -> np.ndarray:
    return np.arange(self.largest_cohort)

  def event(self, release: base.Event, round_index: int,
            pivotal_probability: float = 0.0) -> base.Event:
    return release

  @property
  def expected_cohort(self) -> float:
    return self.largest_cohort

  @property
  def largest_cohort(self) -> int:
    if self.population is None:
      raise ValueError('population must be given for sampling=none')
    return self.population


class Records(Poisson):
  """Selects all silos, who sample their records independently with one probability.

  Population and cohort size count records (or persons) of all silos. Formal guarantees:

  * A silo tells nobody which, or how many, of its records it sampled
    (`fedavg.silos.sample`), so `event` is amplified against all but that silo.
  * Silos are all selected, so no record decides whether a round is suppressed.

  Attributes:
    silos: Number of silos, >= 1.
    neighbours, column: Those of `events.SampledRecords`; with b weights a record has
      every b-th turn, and is sampled in it with b times the rate.
  """

  name = 'records'
  summary = 'records, in all silos'
  hides_nothing = True

  def __init__(self, *, silos: int | None = None, column: Sequence[int] = (1,),
               neighbours: str = base.RECORD_ZERO_OUT, **arguments):
    super().__init__(**arguments)
    self.column = params_lib.check_column(column)
    if len(self.column) > self.most_bands:
      raise ValueError(f'column must have at most {self.most_bands} weights, the number '
                       f'of all records over that of a step, found {len(self.column)}')
    if silos is None:
      raise ValueError('silos must be given for sampling=records')
    validate.integer(silos=silos, low=1, high=self.population)
    self.silos, self.neighbours = silos, neighbours

  @property
  def most_bands(self) -> int:
    """The largest number of weights in a column."""
    return int(self.population // self.cohort_size)

  @property
  def sampling_rate(self) -> float:
    """q, of a record that has a turn, in (0, 1]."""
    return len(self.column) * self.cohort_size / self.population

  def sample(self, round_index: int) -> np.ndarray:
    return np.arange(self.silos)

  def event(self, release: base.Event, round_index: int,
            pivotal_probability: float = 0.0) -> base.Event:
    return records.SampledRecords(event=release, sampling_rate=self.sampling_rate,
                                  neighbours=self.neighbours, column=self.column)

  def pivotal_probability(self, min_honest_fraction: float, assumed_colluders: int,
                          dropout_rate: float) -> float:
    return 0.0

  @property
  def expected_cohort(self) -> float:
    return self.silos

  @property
  def largest_cohort(self) -> int:
    return self.silos


SCHEMES: dict[str, type[SamplingScheme]] = {
    scheme.name: scheme for scheme in (Poisson, FixedSize, Epochs, Turns, Everyone, Records)}
# Adjacencies that a cohort of fixed size may be accounted for.
FIXED_ADJACENCIES = (base.REPLACE_ONE, base.ZERO_OUT)
# The meanings of the names.
IN_WORDS = '; '.join(f'{name}: {scheme.summary}' for name, scheme in SCHEMES.items())


def build(name: str, *, rounds: int = 1, **arguments: Any) -> SamplingScheme:
  """Builds the scheme of a name in `SCHEMES`; arguments are those of its class.

  Raises ValueError if the name is unknown, an argument is out of range, or it is one
  that another scheme alone has.
  """
  validate.one_of(SCHEMES, sampling=name)
  for owner, argument, default in (
      (Poisson, 'max_participations', None), (Poisson, 'min_cohort_size', None),
      (Turns, 'turn_rate', 1.0), ((Turns, Records), 'column', (1,)),
      (Records, 'silos', None), (Records, 'neighbours', base.RECORD_ZERO_OUT)):
    if not issubclass(SCHEMES[name], owner) and (value := arguments.pop(argument, default)) != default:
      raise ValueError(f'{argument} must not be given for {name}, found {value!r}')
  if name == Poisson.name:
    arguments['rounds'] = rounds
  return SCHEMES[name](**arguments)
