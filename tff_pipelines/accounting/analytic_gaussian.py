"""One release under the Gaussian mechanism, exactly (arXiv 1805.06530).

The analytic Gaussian mechanism: epsilon, delta and the noise of a single
release in closed form, without the discretisation of a privacy loss
distribution. For composition and sampling use the accountant.
"""

import math

from scipy import special

from aggregators import validate
from tff_pipelines.accounting import roots

# Of a delta whose logarithm is taken.
_SMALLEST = 1e-320
# What floating point loses in the difference below, relative to its terms.
_SLACK = 1e-12


def delta(noise_multiplier: float, epsilon: float) -> float:
  """The least delta of one release at this epsilon (Theorem 8 there).

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
  found = math.exp(first) * (-math.expm1(min(0.0, second - first)) + _SLACK)
  return min(1.0, found)


# pylint: disable=redefined-outer-name
def noise_multiplier(*, epsilon: float, delta: float) -> float:
  """The least noise multiplier of one release for (epsilon, delta).

  Args:
    epsilon: Target > 0.
    delta: Strictly between 0 and 1.

  Returns:
    z that meets the target, at most 1e-6 (relative) above the least one.

  Raises:
    ValueError: If an argument is out of range, or no z in [1e-6, 1e12] is the
      least that meets the target.
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
      lambda z: math.log(max(_delta(z, epsilon), _SMALLEST) / delta), low, high)
