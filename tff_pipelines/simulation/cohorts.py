"""Who takes part in a round, drawn as the accountant was told.

Cohorts come from the operating system's entropy. With a simulation seed they
follow from the seed and the round, and the run has no guarantee.
"""

import fractions
import hashlib
import math
import os

import numpy as np

from aggregators import validate


class CohortSampler:
  """Draws the clients of each round.

  Formal guarantees. `poisson`: each client takes part independently with
  probability at most `cohort_size / population` (exact to 2^-64, rounded down).
  `fixed`: a uniform subset of exactly `cohort_size` clients. `none`: everyone.
  """

  def __init__(self, *, sampling: str, population: int, cohort_size: float,
               simulation_seed: int | None = None):
    """Initializes the sampler.

    Args:
      sampling: 'poisson', 'fixed' or 'none'.
      population: Number of clients, >= 1.
      cohort_size: Expected number in a round, in (0, population]; an integer
        for 'fixed'.
      simulation_seed: None for the operating system's entropy.
    """
    validate.one_of(('poisson', 'fixed', 'none'), sampling=sampling)
    validate.integer(population=population, low=1)
    validate.positive(cohort_size=cohort_size)
    if cohort_size > population:
      raise ValueError(
          f'cohort_size must be at most population={population}, found '
          f'{cohort_size!r}')
    if sampling == 'fixed' and cohort_size != int(cohort_size):
      raise ValueError('cohort_size must be an integer for sampling=fixed, '
                       f'found {cohort_size!r}')
    self._sampling = sampling
    self._population = population
    self._cohort_size = cohort_size
    self._seed = simulation_seed

  def _words(self, round_number: int) -> np.ndarray:
    """One uniform 64-bit word per client."""
    if self._seed is None:
      return np.frombuffer(os.urandom(8 * self._population), np.uint64)
    digest = hashlib.sha256(
        f'cohort {self._seed} {round_number}'.encode()).digest()
    bits = np.random.Philox(key=int.from_bytes(digest[:16], 'big'))
    return bits.random_raw(self._population).astype(np.uint64)

  def sample(self, round_number: int) -> np.ndarray:
    """The clients of a round: sorted indices into the population, int64."""
    if self._sampling == 'none' or self._cohort_size == self._population:
      return np.arange(self._population)
    words = self._words(round_number)
    if self._sampling == 'poisson':
      # Exact: the quotient of two floats may be rounded up.
      rate = fractions.Fraction(self._cohort_size) / self._population
      threshold = math.floor(rate * 2**64)
      return np.flatnonzero(words < np.uint64(threshold))
    # The subset with the smallest words; a tie among 64-bit words does not
    # happen, and would only prefer the lower index.
    count = int(self._cohort_size)
    return np.sort(np.argsort(words, kind='stable')[:count])


def client_key(simulation_seed: int, round_number: int, client: int) -> np.ndarray:
  """The key of a client in a round of a seeded run, int64[2]."""
  digest = hashlib.sha256(
      f'client {simulation_seed} {round_number} {client}'.encode()).digest()
  return np.frombuffer(digest[:16], np.int64).copy()
