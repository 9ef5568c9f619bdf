"""Roots for calibration: the end that meets the target, never the other."""

from collections.abc import Callable
import math

from scipy import optimize

TOLERANCE = 1e-6
# Only the sign of a larger excess matters; infinite ones are clipped to it.
_LARGEST_EXCESS = 50.0


def least_meeting(excess: Callable[[float], float], low: float, high: float) -> float:
  """The minimum x that meets a target, from the side that meets it.

  Args:
    excess: From x > 0 to a number that is positive where the target is missed and at
      most 0 where it is met; it falls with x, and may be infinite.
    low: Misses the target.
    high: Meets it.

  Returns x in (low, high] with excess(x) <= 0, at most `TOLERANCE` (relative) above the
  root that Brent's method finds.
  """
  def clipped(log_x: float) -> float:
    return min(max(excess(math.exp(log_x)), -_LARGEST_EXCESS), _LARGEST_EXCESS)

  if high / low - 1 <= TOLERANCE:
    return high
  # The root lies within a quarter of the tolerance of this one, on either side.
  root = math.exp(optimize.brentq(
      clipped, math.log(low), math.log(high), xtol=TOLERANCE / 4, rtol=1e-15))
  step = TOLERANCE / 2
  while (x := root * math.exp(step)) < high:
    if excess(x) <= 0:
      return x
    step *= 2  # A numerical epsilon is not quite monotone: a little further.
  return high
