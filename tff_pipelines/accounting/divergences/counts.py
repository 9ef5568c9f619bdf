"""Public coins, independent of data: how often a pair is composed, and which one."""

import dataclasses
from typing import NamedTuple

import numpy as np
from scipy import stats

# A distribution is listed this many standard deviations about its mean, and so many
# counts; what is beyond has a probability below 1e-30.
_REACH, _MARGIN = 15, 50
# Above what the probabilities of scipy are wrong by, relative.
_EXCESS = 1 + 1e-8


class Cases(NamedTuple):
  """A choice among Gaussian pairs, which is seen.

  Attributes:
    ratios: Squared signal-to-noise ratios 1/z^2, > 0; none for nothing to see.
    weights: Their probabilities.
    leak: Probability that everything is seen.
    convex: As in `pairs.Mixed`.
  """

  ratios: tuple[float, ...]
  weights: tuple[float, ...]
  leak: float
  convex: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counts:
  """A distribution of the number of compositions, K >= 0.

  Attributes:
    first: The smallest number.
    weights: Upper bounds of the probabilities of first, first + 1, ...
    missing: Probability of all other numbers, which counts as infinite loss.
  """

  first: int
  weights: tuple[float, ...] = (1.0,)
  missing: float = 0.0

  @property
  def numbers(self) -> np.ndarray:
    """The numbers, float64 [n]."""
    return self.first + np.arange(len(self.weights), dtype=np.float64)

  @property
  def most(self) -> int:
    """The largest number."""
    return self.first + len(self.weights) - 1

  def any_of(self, probability: float) -> float:
    """The probability that one of so many independent events happens, at most.

    That of the numbers that are missing is not in it.
    """
    if self == Counts(first=1):
      return probability  # Not a rounding away from it.
    each = -np.expm1(self.numbers * np.log1p(-probability)) if probability < 1 else (
        self.numbers > 0)
    return float(np.dot(self.weights, each))

  def __mul__(self, times: int) -> 'Counts':
    """The distribution of the sum of so many independent ones, at least one."""
    if len(self.weights) == 1 and not self.missing:
      return Counts(first=self.first * times)
    weights = np.ones(1)
    for _ in range(times):
      weights = np.convolve(weights, self.weights)
    return Counts(first=self.first * times, weights=tuple(weights.tolist()),
                  missing=min(1.0, times * self.missing))


def binomial(count: int, probability: float, most: int | None = None,
             at_most: float = 0.0) -> Counts:
  """min(K, most) for K ~ Bin(count, probability), from which it may differ.

  Args:
    count: Number of trials, >= 0.
    probability: In [0, 1].
    most: The largest number; None for no such limit.
    at_most: Probability in [0, 1] that the number is the largest in place of it.
  """
  most = count if most is None else min(most, count)
  law = stats.binom(count, probability)
  reach = _REACH * law.std() + _MARGIN
  first = max(0, min(most, int(law.mean() - reach)))
  last = min(most, int(law.mean() + reach) + 1)
  weights = law.pmf(np.arange(first, last + 1)) * _EXCESS
  # Fewer cost no more than the first.
  weights[0] += law.cdf(first - 1)
  missing = 0.0
  if last == most:
    weights[-1] = min(1.0, weights[-1] + law.sf(last))
  else:
    missing = float(law.sf(last))
  if at_most:
    weights = np.concatenate([(1 - at_most) * weights, np.zeros(most - last)])
    weights[-1] += at_most
  return Counts(first=first, weights=tuple(weights.tolist()), missing=missing)
