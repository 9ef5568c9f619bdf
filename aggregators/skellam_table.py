"""Alias tables of the symmetric Skellam law, exact to far below 2^-64.

Probabilities are computed by integer arithmetic from the recurrence of the
Bessel functions. `TOTAL_VARIATION` states what a draw deviates from the law.
"""

import functools
import math

from aggregators import alias_table

FIRST_BITS = alias_table.FIRST_BITS
TIE_BITS = alias_table.TIE_BITS
MAX_LOG_SIZE = alias_table.MAX_LOG_SIZE
AliasTable = alias_table.AliasTable

# Bound on the total variation distance between a draw and the Skellam law:
# mass outside the table, start of the recurrence and its rounding are below 2^-88
# together, rounding of the thresholds below 2^-87.
TOTAL_VARIATION = alias_table.TOTAL_VARIATION

# Relative precision of the recurrence.
_GUARD_BITS = 192


def _log_tail(k: float, variance: float) -> float:
  """Chernoff bound on ln P[X >= k] for k > 0 (t = asinh(k / variance))."""
  return (math.hypot(variance, k) - variance - k * math.asinh(k / variance))


def reach(variance: float) -> int:
  """The least k with P[X >= k] < 2^-100 by the Chernoff bound."""
  limit = -alias_table.TAIL_LOG2 * math.log(2)
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
  return alias_table.log_size(reach(variance))


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
  return alias_table.symmetric(
      variance, weights(variance), max(min_log_size, log_size(variance)))
