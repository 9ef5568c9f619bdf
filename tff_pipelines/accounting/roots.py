"""Roots for calibration: the end that meets the target, never the other."""

from collections.abc import Callable
import math

from scipy import optimize

TOLERANCE = 1e-6
# Beyond, an excess says no more than its sign; infinite ones are cut to it.
_LARGEST_EXCESS = 50.0


def least_meeting(excess: Callable[[float], float], low: float, high: float,
                  tolerance: float = TOLERANCE) -> float:
  """The least x that meets a target, from the side that meets it.

  Args:
    excess: From x > 0 to a number that is positive where the target is missed and at
      most 0 where it is met; it falls with x, and may be infinite.
    low: Misses the target.
    high: Meets it.
    tolerance: Relative.

  Returns:
    x in (low, high] with excess(x) <= 0, at most `tolerance` above the root that
    Brent's method finds.
  """
  def cut(log_x: float) -> float:
    return min(max(excess(math.exp(log_x)), -_LARGEST_EXCESS), _LARGEST_EXCESS)

  if high / low - 1 <= tolerance:
    return high
  # The root lies within a quarter of the tolerance of what is found, on either side.
  found = math.exp(optimize.brentq(
      cut, math.log(low), math.log(high), xtol=tolerance / 4, rtol=1e-15))
  step = tolerance / 2
  while (x := found * math.exp(step)) < high:
    if excess(x) <= 0:
      return x
    # A numerical epsilon is not quite monotone: a little further.
    step *= 2
  return high
