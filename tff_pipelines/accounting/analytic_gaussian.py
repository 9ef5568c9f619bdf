"""One release under the Gaussian mechanism, exactly (arXiv 1805.06530).

The analytic Gaussian mechanism: epsilon, delta and the noise of a single
release in closed form, without the discretisation of a privacy loss
distribution. For composition and sampling use the accountant.
"""

import math

from scipy import special

from aggregators import validate
from tff_pipelines.accounting import roots


def delta(noise_multiplier: float, epsilon: float) -> float:
  """The minimum delta of one release at this epsilon (Theorem 8 there).

  Phi(1/(2 z) - epsilon z) - e^epsilon Phi(-1/(2 z) - epsilon z), rounded up by
  1e-12 of its first term, which is more than the arithmetic loses.

  Args:
    noise_multiplier: z > 0, noise standard deviation over L2 sensitivity.
    epsilon: >= 0, finite.
  """
  validate.positive(noise_multiplier=noise_multiplier)
  validate.non_negative(epsilon=epsilon)
  return _delta(noise_multiplier, epsilon)


def _delta(z: float, epsilon: float) -> float:
  centre, shift = 1 / (2 * z), epsilon * z
  first = special.log_ndtr(centre - shift)
  second = epsilon + special.log_ndtr(-centre - shift)
  # 1e-12 is more than floating point loses in the difference.
  return min(1.0, math.exp(first) * (-math.expm1(min(0.0, second - first)) + 1e-12))


# pylint: disable=redefined-outer-name
def noise_multiplier(*, epsilon: float, delta: float) -> float:
  """The minimum noise multiplier of one release for (epsilon, delta).

  Args:
    epsilon: Target > 0.
    delta: Strictly between 0 and 1.

  Returns:
    z that meets the target, at most 1e-6 (relative) above the minimum.

  Raises:
    ValueError: If an argument is out of range, or the minimum z is outside of
      [1e-6, 1e12].
  """
  validate.positive(epsilon=epsilon)
  validate.open_unit_interval(delta=delta)
  low, high = 1e-6, 1.0
  if _delta(low, epsilon) <= delta:
    raise ValueError(
        f'epsilon={epsilon!r} at delta={delta!r} is met without noise: there is '
        'nothing to calibrate')
  while _delta(high, epsilon) > delta:
    low, high = high, 4 * high
    if high > 1e12:
      raise ValueError(
          f'epsilon={epsilon!r} at delta={delta!r} cannot be reached by any '
          'noise multiplier up to 1e12')
  return roots.least_meeting(
      # Above 0, for its logarithm.
      lambda z: math.log(max(_delta(z, epsilon), 1e-320) / delta), low, high)
