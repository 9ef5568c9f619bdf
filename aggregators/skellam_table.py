"""Alias tables of the symmetric Skellam law, exact to far below 2^-64.

NumPy and integers of any size, no TensorFlow. Probabilities are computed by
integer arithmetic from the recurrence of the Bessel functions and rounded to
multiples of 2^-(22 + 64 + log2 of the table's length), so that what a draw
deviates from the law is beneath any delta, even times dimension, cohort, rounds
and e^epsilon; `TOTAL_VARIATION` states it.

A table of N = 2^log_size cells holds, for cell i, the value i - N/2, another
value (the alias), and the probability of the first of them as an integer of
22 + 64 bits. The first 22 bits stand with the alias in one int64, so that a draw
costs one look-up; the other 64 matter once in 2^22 draws.
"""

import dataclasses
import functools
import math

import numpy as np

# Bits of a threshold that the first comparison sees, and those that decide if
# it is a tie.
FIRST_BITS = 22
TIE_BITS = 64
# Alias and index need at most 64 - 24 (rounding) - 22 (threshold) bits of a word.
MAX_LOG_SIZE = 18

# Bound on the total variation distance between a draw and the Skellam law:
# mass outside the table, start of the recurrence, its rounding, and rounding of
# the thresholds are each below 2^-88 for tables of up to 2^18 cells.
TOTAL_VARIATION = 2.0**-86

# Mass beyond the table, per side, and the square root of what the start of the
# recurrence adds at the mode.
_TAIL_LOG2 = 100
# Relative precision of the recurrence.
_GUARD_BITS = 192


def _log_tail(k: float, variance: float) -> float:
  """Chernoff bound on ln P[X >= k] for k > 0 (t = asinh(k / variance))."""
  return (math.hypot(variance, k) - variance - k * math.asinh(k / variance))


def reach(variance: float) -> int:
  """The least k with P[X >= k] < 2^-100 by the Chernoff bound."""
  limit = -_TAIL_LOG2 * math.log(2)
  high = 1
  while _log_tail(high, variance) > limit:
    high *= 2
  low = high // 2
  while high - low > 1:
    middle = (low + high) // 2
    if _log_tail(middle, variance) > limit:
      low = middle
    else:
      high = middle
  return high


def log_size(variance: float) -> int:
  """log2 of the cells that a table of this variance needs."""
  return max(2, (2 * reach(variance)).bit_length())


def fits(variance: float) -> bool:
  """Whether there is a table for a variance (grid units squared)."""
  return 0 < variance < 1e12 and log_size(variance) <= MAX_LOG_SIZE


def weights(variance: float) -> list[int]:
  """Integers proportional to P[X = k] for k = 0 .. reach, by Miller's method.

  I_{k-1}(v) = (2 k / v) I_k(v) + I_{k+1}(v), run downwards, where it is stable.
  A float is a ratio of integers, so the only error is that of the start and of
  dividing, 2^-192 each relative to the smallest weight.
  """
  numerator, denominator = float(variance).as_integer_ratio()
  top = reach(variance)
  start = 2 * top + 8  # The start's error at k is (p_start / p_k)^2.
  above, here = 0, 1 << _GUARD_BITS
  found = [0] * (top + 1)
  step = 2 * denominator
  for k in range(start, 0, -1):
    above, here = here, (step * k * here) // numerator + above
    if k - 1 <= top:
      found[k - 1] = here
  return found


@dataclasses.dataclass(frozen=True)
class AliasTable:
  """An alias table.

  Attributes:
    variance: Of the law, grid units squared.
    packed: int64 [2^log_size]: alias in the low 32 bits, and above them the
      first 22 bits of the threshold (2^22 where the cell always wins).
    tie: int64 [2^log_size]: the other 64 bits, shifted by 2^63 so that signed
      comparison orders them.
  """

  variance: float
  packed: np.ndarray
  tie: np.ndarray

  @property
  def log_size(self) -> int:
    return int(self.packed.size).bit_length() - 1


@functools.lru_cache(maxsize=64)
def build(variance: float, min_log_size: int = 2) -> AliasTable:
  """Builds the table of a variance.

  Args:
    variance: > 0, grid units squared, such that `fits(variance)`.
    min_log_size: The table has at least 2^min_log_size cells: graphs of static
      shapes take tables of different variances.

  Raises:
    ValueError: If the table would be too large.
  """
  if not fits(variance):
    raise ValueError(
        f'variance must be in (0, {MAX_LOG_SIZE} bits of table), found {variance!r}')
  size_log = max(min_log_size, log_size(variance))
  size = 1 << size_log
  half = size // 2
  one_sided = weights(variance)
  total = one_sided[0] + 2 * sum(one_sided[1:])
  capacity = 1 << (FIRST_BITS + TIE_BITS)
  # Each value gets an integer share of size * capacity; the mode takes the rest.
  shares = [(w * size * capacity + total // 2) // total for w in one_sided]
  shares[0] += size * capacity - (shares[0] + 2 * sum(shares[1:]))
  cells = [0] * size
  for k, share in enumerate(shares):
    cells[half + k] = share
    cells[half - k] = share
  thresholds, aliases = _alias(cells, capacity)
  low_mask = (1 << TIE_BITS) - 1
  first = np.array([t >> TIE_BITS for t in thresholds], np.int64)
  low = np.array([(t & low_mask) - (1 << 63) for t in thresholds], np.int64)
  packed = np.left_shift(first, 32) | np.array(aliases, np.int64)
  return AliasTable(float(variance), packed, low)


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
