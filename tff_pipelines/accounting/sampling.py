"""How many clients a random cohort has, and what that decides."""

from collections.abc import Iterator
import functools
import math

import numpy as np
from scipy import stats

from aggregators import params as params_lib
from aggregators import validate

COHORT_QUANTILE = 0.999


def cohort_upper_quantile(population: int, sampling_rate: float,
                          quantile: float = COHORT_QUANTILE) -> int:
  """The cohort that Poisson sampling exceeds once in a thousand rounds.

  The modulus of a sum is sized for it. Wrap-around beyond costs accuracy, never
  privacy.

  Args:
    population: N >= 1 clients.
    sampling_rate: q in (0, 1].
    quantile: Strictly between 0 and 1.

  Returns:
    The least m with P[Binomial(N, q) <= m] >= quantile, at least 1.
  """
  validate.integer(population=population, low=1)
  validate.fraction(sampling_rate=sampling_rate)
  validate.open_unit_interval(quantile=quantile)
  return max(1, int(stats.binom.ppf(quantile, population, sampling_rate)))


@functools.lru_cache(maxsize=256)
def pivotal_probability(population: int, sampling_rate: float,
                        min_honest_fraction: float, assumed_colluders: int,
                        dropout_rate: float) -> float:
  """How often one client's taking part decides that a round is opened.

  A round that is withheld without a client, and opened with it, tells that the
  client took part, and amplification by sampling is lost in it. Clients take part,
  and drop out, independently of each other and of their data, anew in every round.
  With m other clients, m' of them in the sum, these are the rounds where
  `aggregators.params.has_enough` is false of (m', m) and true of (m' + 1, m + 1).
  A round that is opened without the client is opened with it too; if it drops out
  the round may be withheld, but that is the same whatever its data are.

  Args:
    population: N >= 1 clients.
    sampling_rate: q in (0, 1].
    min_honest_fraction: h in (0, 1].
    assumed_colluders: c >= 0.
    dropout_rate: In [0, 1). Clients that were told to take part drop out with some
      probability, the same of all, that is not larger.

  Returns:
    The largest probability over the other clients for any such rate of dropouts, in
    [0, 1], rounded up: a higher rate among them need not be the worse one. 0 for
    c = 0 if nobody drops out, or if nobody may (h = 1): others alone then decide.
  """
  validate.integer(population=population, low=1)
  validate.fraction(sampling_rate=sampling_rate,
                    min_honest_fraction=min_honest_fraction)
  if assumed_colluders == 0 and (min_honest_fraction == 1 or dropout_rate == 0):
    return 0.0
  others = stats.binom(population - 1, sampling_rate)
  reach = 15 * others.std() + 50
  told = np.arange(max(0.0, np.floor(others.mean() - reach)),
                   min(population - 1.0, np.ceil(others.mean() + reach)) + 1)
  chances = others.pmf(told)
  beyond = others.cdf(told[0] - 1) + others.sf(told[-1])
  # m' that are pivotal lie in an interval that is shorter than 1.
  least = np.floor(min_honest_fraction * (told + 1)) + assumed_colluders - 1
  pivots = []
  for present in (least, least + 1):
    without, beside = (
        params_lib.has_enough(present + one, told + one, min_honest_fraction,
                              assumed_colluders) for one in (0, 1))
    at = beside & ~without & (present >= 0) & (present <= told)
    pivots.append((present[at], told[at], chances[at]))
  present, told, chances = (np.concatenate(parts) for parts in zip(*pivots))
  worst = max((
      np.sum(chances * _most_likely(present, told, low, high))
      for low, high in _intervals(dropout_rate, told)), default=0.0)
  return min(1.0, float(worst + beyond) * (1 + 1e-9))


def _intervals(dropout_rate: float, told: np.ndarray) -> Iterator[tuple[float, float]]:
  """[0, dropout_rate] in parts within which chances hardly change."""
  largest = float(told.max(initial=1.0))
  count = min(2000, 1 + math.ceil(16 * dropout_rate * largest**0.5))
  edges = np.linspace(0, dropout_rate, count + 1)
  return zip(edges[:-1], edges[1:])


def _most_likely(present: np.ndarray, told: np.ndarray, low: float,
                 high: float) -> np.ndarray:
  """The largest P[Binomial(told, 1 - p) = present] for p in [low, high]."""
  rate = np.clip(1 - present / np.maximum(told, 1), low, high)
  return stats.binom.pmf(present, told, 1 - rate)
