"""Alias tables of integer distributions, exact to far below 2^-64.

A distribution comes as integer weights; its probabilities are rounded to multiples of
2^-(22 + 64 + log2 of the table's length), so that a draw's total variation distance is
negligible against any delta, even times dimension, cohort, rounds and e^epsilon.

A table of N = 2^log_size cells holds, for cell i, the value i - N/2, another value (the
alias), and the probability of the first of them as an integer of 22 + 64 bits. The
first 22 bits are stored with the alias in one int64, so that a draw costs one look-up;
the other 64 matter once in 2^22 draws.
"""

import bisect
from collections.abc import Callable
import dataclasses
import decimal
import fractions
import functools
import math

import numpy as np

# Bits of a threshold that the first comparison sees, and those that decide if
# it is a tie.
FIRST_BITS = 22
TIE_BITS = 64
# 64 random bits: 23 are for rounding, 22 for the threshold and 19 for the cell.
MAX_LOG_SIZE = 19
_CAPACITY = 1 << (FIRST_BITS + TIE_BITS)

# Bound on the total variation distance between a draw and a distribution whose weights
# are exact to 2^-88 in all and cut off where less than 2^-88 is left. Rounding of
# the thresholds adds at most 2^-87: N cells are off by half a unit each, the mode
# by the sum of that, and a unit is 1 / (N 2^86).
TOTAL_VARIATION = 2.0**-86
# Distributions are cut off where the mass beyond, per side, falls below 2^-100.
_TAIL_LOG2 = 100
# Relative precision of the weights of Skellam.
_GUARD_BITS = 192
# The weight of 0 of a discrete Gaussian is 2^this. Each step rounds twice, by less than
# 1 each; over the 2^18 steps of the largest table that adds up to less than 2^-230.
_FRACTION_BITS = 288
_DIGITS = 110

Variance = float | fractions.Fraction


@dataclasses.dataclass(frozen=True)
class AliasTable:
  """An alias table.

  Attributes:
    packed: int64 [2^log_size]: alias in the low 32 bits, and above them the
      first 22 bits of the threshold (2^22 where the cell always wins).
    tie: int64 [2^log_size]: the other 64 bits less 2^63, ordered by signed comparison.
  """

  packed: np.ndarray
  tie: np.ndarray


def log_size(reach: int) -> int:
  """log2 of the cells that a table of the values -reach .. reach needs."""
  return max(2, (2 * reach).bit_length())


def build(weights: list[int], min_log_size: int = 2, *,
          symmetric: bool = True) -> AliasTable:
  """Builds the table of a distribution on the integers.

  Args:
    weights: Integers proportional to P[X = k] for k = 0, 1, ...
    min_log_size: The table has at least 2^min_log_size cells.
    symmetric: Whether -k is as likely as k; otherwise there are no negative values.
  """
  if (size_log := max(min_log_size, log_size(len(weights) - 1))) > MAX_LOG_SIZE:
    raise ValueError(f'weights must fit 2^{MAX_LOG_SIZE} cells, found 2^{size_log}')
  size = 1 << size_log
  half = size // 2
  sides = 2 if symmetric else 1
  total = weights[0] + sides * sum(weights[1:])
  # Each value gets an integer share of size * capacity; the first, which is the
  # mode, takes the rest.
  shares = [(w * size * _CAPACITY + total // 2) // total for w in weights]
  shares[0] += size * _CAPACITY - (shares[0] + sides * sum(shares[1:]))
  cells = [0] * size
  for k, share in enumerate(shares):
    cells[half + k] = share
    if symmetric:
      cells[half - k] = share
  thresholds, aliases = _alias(cells, _CAPACITY)
  low_mask = (1 << TIE_BITS) - 1
  first = np.array([t >> TIE_BITS for t in thresholds], np.int64)
  low = np.array([(t & low_mask) - (1 << 63) for t in thresholds], np.int64)
  return AliasTable(np.left_shift(first, 32) | np.array(aliases, np.int64), low)


def _alias(cells: list[int], capacity: int) -> tuple[list[int], list[int]]:
  """Walker's alias method in integers (Vose, IEEE TSE 1991)."""
  thresholds = list(cells)
  aliases = list(range(len(cells)))
  small = [i for i, share in enumerate(cells) if share < capacity]
  large = [i for i, share in enumerate(cells) if share > capacity]
  while small and large:
    low, high = small.pop(), large[-1]
    aliases[low] = high
    thresholds[high] -= capacity - thresholds[low]
    if thresholds[high] <= capacity:
      large.pop()
      if thresholds[high] < capacity:
        small.append(high)
  return thresholds, aliases


@dataclasses.dataclass(frozen=True)
class Family:
  """Tables of symmetric distributions that are known by their variance.

  A variance is exactly the given number, a float or a fraction.

  Attributes:
    reach: variance -> a k with P[X >= k] < 2^-100.
    weights: variance -> integers proportional to P[X = k] for k = 0 .. reach.
  """

  reach: Callable[[Variance], int]
  weights: Callable[[Variance], list[int]]

  def log_size(self, variance: Variance) -> int:
    """log2 of the cells that a table of this variance needs."""
    return log_size(self.reach(variance))

  def fits(self, variance: Variance) -> bool:
    """Whether there is a table for a variance (grid units squared)."""
    return 0 < variance < 1e12 and self.log_size(variance) <= MAX_LOG_SIZE

  @functools.lru_cache(maxsize=128)
  def build(self, variance: Variance, min_log_size: int = 2) -> AliasTable:
    """Builds the table of a variance.

    Args:
      variance: > 0, grid units squared; ValueError unless `fits(variance)`.
      min_log_size: The table has at least 2^min_log_size cells: graphs of static
        shapes take tables of different variances.
    """
    if not self.fits(variance):
      raise ValueError(
          f'variance must be in (0, {MAX_LOG_SIZE} bits of table), found {variance!r}')
    return build(self.weights(variance), min_log_size)


def _skellam_reach(variance: Variance) -> int:
  """The smallest k with P[X >= k] < 2^-100 by the Chernoff bound."""
  variance = float(variance)

  def log_tail(k):  # With t = asinh(k / variance).
    return math.hypot(variance, k) - variance - k * math.asinh(k / variance)

  return bisect.bisect_left(
      range(2**62), True, key=lambda k: log_tail(k) <= -_TAIL_LOG2 * math.log(2))


def _skellam_weights(variance: Variance) -> list[int]:
  """Weights for k = 0 .. reach, by Miller's method.

  I_{k-1}(v) = (2 k / v) I_k(v) + I_{k+1}(v), run downwards, where it is stable. Only
  the start and dividing err, by 2^-192 each of the smallest weight.
  """
  numerator, denominator = variance.as_integer_ratio()
  top = _skellam_reach(variance)
  above, here = 0, 1 << _GUARD_BITS
  result = [0] * (top + 1)
  # The start's error at k is (p_start / p_k)^2.
  for k in range(2 * top + 8, 0, -1):
    above, here = here, (2 * denominator * k * here) // numerator + above
    if k - 1 <= top:
      result[k - 1] = here
  return result


def _gaussian_reach(variance: Variance) -> int:
  """A k with P[X >= k] < 2^-100: that of N(0, v) at k - 1 (Proposition 25)."""
  return 1 + math.ceil(math.sqrt(2 * variance * _TAIL_LOG2 * math.log(2)))


def _gaussian_weights(variance: Variance) -> list[int]:
  """Weights for k = 0 .. reach: that of k + 1 is g^(2k + 1) times that of k, for

  g = exp(-1 / (2 v)), and the factor itself shrinks by g^2 a step.
  """
  numerator, denominator = variance.as_integer_ratio()
  with decimal.localcontext() as context:
    context.prec = _DIGITS
    base = (decimal.Decimal(-denominator) / (2 * decimal.Decimal(numerator))).exp()
    factor = int(base * (1 << _FRACTION_BITS))
  ratio = (factor * factor) >> _FRACTION_BITS
  result = [1 << _FRACTION_BITS]
  for _ in range(_gaussian_reach(variance)):
    result.append((result[-1] * factor) >> _FRACTION_BITS)
    factor = (factor * ratio) >> _FRACTION_BITS
  return result


# The symmetric Skellam distribution. Mass outside the table, start of the recurrence
# and its rounding are below 2^-88 together.
SKELLAM = Family(_skellam_reach, _skellam_weights)
# N_Z(0, v): P[X = k] proportional to exp(-k^2 / (2 v)) (arXiv 2004.00010,
# Definition 1). Its variance is below v: by less than 1e-6 of it from v = 1 on, by
# a seventh at v = 1/4. Mass outside the table and rounding of the weights are each
# below 2^-88 for tables of up to 2^19 cells.
DISCRETE_GAUSSIAN = Family(_gaussian_reach, _gaussian_weights)
