"""Alias tables of the symmetric Skellam distribution, exact to far below 2^-64.

Probabilities are computed by integer arithmetic from the recurrence of the Bessel
functions. `TOTAL_VARIATION` bounds the distance of a draw from the distribution.
"""

import bisect
import math

from aggregators import alias_table

# Bound on the total variation distance between a draw and the Skellam distribution:
# mass outside the table, start of the recurrence and its rounding are below 2^-88
# together, rounding of the thresholds below 2^-87.
TOTAL_VARIATION = alias_table.TOTAL_VARIATION

# Relative precision of the recurrence.
_GUARD_BITS = 192


def _log_tail(k: float, variance: float) -> float:
  """Chernoff bound on ln P[X >= k] for k > 0 (t = asinh(k / variance))."""
  return (math.hypot(variance, k) - variance - k * math.asinh(k / variance))


def reach(variance: float) -> int:
  """The smallest k with P[X >= k] < 2^-100 by the Chernoff bound."""
  limit = -alias_table.TAIL_LOG2 * math.log(2)
  return bisect.bisect_left(
      range(2**62), True, key=lambda k: _log_tail(k, variance) <= limit)


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
  result = [0] * (top + 1)
  step = 2 * denominator
  for k in range(start, 0, -1):
    above, here = here, (step * k * here) // numerator + above
    if k - 1 <= top:
      result[k - 1] = here
  return result


_FAMILY = alias_table.Family(reach, weights)
log_size, fits, build = _FAMILY.log_size, _FAMILY.fits, _FAMILY.build
