"""Sampling schemes: which clients a round selects, and what that costs.

A scheme samples the clients of a round and states the privacy event of a release from
them, so that what is accounted is what is executed. `SCHEMES` names the schemes; a new
one is a subclass of `SamplingScheme` under its name there.

Cohorts come from the operating system's entropy. With a simulation seed they follow
from the seed and the round, and the run has no privacy guarantee.
"""

from collections.abc import Mapping, Sequence
import itertools
from typing import Any

import numpy as np

from aggregators import params as params_lib
from tff_pipelines.accounting.events import base, records, sampled, sized
from tff_pipelines.accounting.sampling import cohorts, subsets
from tff_pipelines.accounting.sampling.scheme import given, SamplingScheme
from tff_pipelines.accounting.sampling.turns import Turns
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
