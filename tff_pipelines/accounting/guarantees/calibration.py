"""Searches for the noise, rounds or bits of a target, on the private side.

Every search keeps a bracket: one end that meets the target and one that does
not. The result is always an end at which the target was checked.
"""

import bisect
from collections.abc import Callable
import contextlib
import math
from typing import Any

import numpy as np

from aggregators import params as params_lib
from tff_pipelines.accounting.divergences import gaussian_mixtures, roots
from tff_pipelines.accounting.events import base
from tff_pipelines.accounting.guarantees import (
    accountant as accountant_lib, bounds, noise_budget, observers)
from tff_pipelines.common import validate

_LARGEST_NOISE = 1e9
_SMALLEST_NOISE = 1e-6
MAX_BITS = 30
# By how much rounding may lengthen a clipped update where bits are chosen for rows, and
# a noise multiplier that few targets exceed.
_ROUNDING, _USUAL_NOISE = 0.02, 3.0


class Unreachable(ValueError):
  """No noise meets the target, at this grid or at all."""


def _check_target(epsilon: float, delta: float) -> None:
  validate.positive(epsilon=epsilon)
  validate.below_one(delta=delta)


def _epsilon(event: base.Event, total_variation: float | None, delta: float,
             observer: str = bounds.OUTSIDERS, **how: Any) -> float:
  """Epsilon at the delta that sampling error leaves; infinite if too little is left."""
  view = observers.View(event, total_variation)
  if delta == 0:
    return accountant_lib.epsilon(event, delta, **how)
  found = observers.bound(view, delta, observers.Method(**how), observer)
  return math.inf if noise_budget.is_too_much(
      found.consumed_delta, delta) else found.epsilon


def _beyond(total_variation: float, epsilon: float, delta: float) -> ValueError:
  part = noise_budget.consumed(total_variation, epsilon)
  return ValueError(f'epsilon={epsilon:g} at delta={delta:.3g} is beyond what is '
                    f'proved of the noise: its sampling error consumes {part:.3g} of '
                    'delta, more than half; take a smaller epsilon or a larger delta')


def _met_without(epsilon: float, delta: float) -> ValueError:
  return ValueError(f'epsilon={epsilon!r} at delta={delta!r} is met without noise')


def noise_multiplier(build_event: Callable[[float], base.Event], *, epsilon: float,
                     delta: float, total_variation: Callable[
                         [float], float | None] = lambda z: 0.0, **how: Any) -> float:
  """The minimum noise multiplier that meets the target.

  Args:
    build_event: From a noise multiplier > 0 to everything that is released.
      Epsilon must fall as the noise grows. A DistributedSumParams built for each
      noise multiplier takes care of the scale, which depends on it.
    epsilon: Target > 0.
    delta: As in `accountant.epsilon`.
    total_variation: From a noise multiplier to the distance of everything that is
      released from the ideal distributions in its event, for what sampling error
      consumes of delta (`noise_budget`); None where no bound is known.
    **how: `observer` that the target holds against, one of `bounds.KEYS` (by default
      those who see the releases), and attributes of `observers.Method`.

  Returns z with epsilon(build_event(z)) <= epsilon at the remaining delta, at most 1e-6
  (relative) above the minimum such z.

  Raises ValueError if an argument is out of range, no noise meets the target, next to
  none already does, or sampling error would consume more than half of delta.
  """
  _check_target(epsilon, delta)

  def excess(z: float) -> float:
    """log of the epsilon at z over the target: > 0 is not private enough."""
    achieved = _epsilon(build_event(z), total_variation(z), delta, **how)
    return math.log(achieved / epsilon) if achieved > 0 else -math.inf

  deviation = total_variation(1.0)
  if noise_budget.is_too_much(noise_budget.consumed(deviation or 0.0, epsilon), delta):
    raise _beyond(deviation, epsilon, delta)
  low, high = None, 1.0
  if how.get('accountant') != 'rdp':
    # Renyi divergences are quick, and their answer is a little above.
    with contextlib.suppress(ValueError):
      high = noise_multiplier(
          build_event, epsilon=epsilon, delta=delta, **{**how, 'accountant': 'rdp'})
  at_high = excess(high)
  while at_high > 0:
    low = high
    high *= 4 if math.isinf(at_high) else max(1.1, min(4.0, 1.05 * math.exp(at_high)))
    if high > _LARGEST_NOISE:
      raise Unreachable(f'epsilon={epsilon!r} cannot be reached at delta={delta!r} by '
                        f'noise_multiplier={low:.3g}; on a grid more bits may do')
    at_high = excess(high)
  while low is None:
    trial = high * (0.25 if math.isinf(at_high) else min(
        0.9, max(0.25, 0.95 * math.exp(at_high))))
    if trial < _SMALLEST_NOISE:
      raise _met_without(epsilon, delta)
    if (at_trial := excess(trial)) > 0:
      low = trial
    else:
      high, at_high = trial, at_trial
  z = roots.least_meeting(excess, low, high)
  if excess(z) < math.log(0.99):  # Sampling error decides, not the target.
    raise _beyond(total_variation(z), epsilon, delta)
  return z


def rounds(build_event: Callable[[int], base.Event], *, epsilon: float, delta: float,
           total_variation: Callable[[int], float | None] = lambda count: 0.0,
           **how: Any) -> int:
  """The maximum number of rounds that keep epsilon within the target.

  Args:
    build_event: From a number of rounds >= 1 to everything that is released.
    epsilon, delta, **how: As for `noise_multiplier`.
    total_variation: From a number of rounds, as in `noise_multiplier`.

  Raises ValueError if not even one round meets the target, or any number does.
  """
  _check_target(epsilon, delta)

  def meets(count: int) -> bool:
    return _epsilon(build_event(count), total_variation(count), delta, **how) <= epsilon

  if not meets(1):
    raise ValueError('rounds: not even 1 meets the target')
  good, bad = 1, 2
  while meets(bad):
    good, bad = bad, 2 * bad
    if bad > 2**40:
      raise ValueError(f'rounds is unbounded: {good} still meets the target')
  return good + bisect.bisect_left(
      range(good + 1, bad), True, key=lambda count: not meets(count))


def bits(build_event: Callable[[int], base.Event], *, epsilon: float, delta: float,
         **how: Any) -> int:
  """The minimum bits whose epsilon is within the target, at a given noise.

  Args:
    build_event: From a number of bits to everything that is released; its
      ValueError means that the bits are too few.
    epsilon, delta, **how: As for `noise_multiplier`.

  Raises ValueError if not even 30 bits meet the target.
  """
  _check_target(epsilon, delta)
  last = None
  for count in range(2, MAX_BITS + 1):
    try:
      event = build_event(count)
    except ValueError as error:
      last = error
      continue
    if _epsilon(event, 0.0, delta, **how) <= epsilon:
      return count
  raise ValueError(f'bits={MAX_BITS} do not meet epsilon={epsilon!r} at delta={delta!r}'
                   ) from last


def unreachable_reason(
    params: params_lib.DistributedSumParams,
    solve: Callable[[params_lib.DistributedSumParams], params_lib.DistributedSumParams],
    error: Unreachable) -> str:
  """Names the bits that would do, if any, for a target that cannot be met."""
  if params.fixed_scale is None:
    for count in range(params.bits + 1, MAX_BITS + 1):
      with contextlib.suppress(ValueError):
        if solve(params.replace(bits=count)).degeneracy() is None:
          return (f'degenerate setting: bits={params.bits} are too few for '
                  f'this target; bits={count} would do')
  return str(error)


def refuse_degenerate(params: params_lib.DistributedSumParams) -> None:
  """Raises ValueError where the grid is too coarse, naming bits that would do."""
  if (reason := params.degeneracy()) is not None:
    cure = 'a larger scale' if params.fixed_scale is not None else next(
        (f'bits={count}' for count in range(params.bits + 1, MAX_BITS + 1)
         if params.replace(bits=count).degeneracy() is None),
        f'not even bits={MAX_BITS}')
    raise ValueError(f'degenerate setting: {reason}; {cure} would do, or allow it '
                     'with --allow_degenerate')


def analytic_delta(noise_multiplier: float, epsilon: float) -> float:
  """The minimum delta of one Gaussian release at this epsilon, exactly.

  Phi(1/(2 z) - epsilon z) - e^epsilon Phi(-1/(2 z) - epsilon z), rounded up (arXiv
  1805.06530, Theorem 8).

  Args:
    noise_multiplier: z > 0, noise standard deviation over L2 sensitivity.
    epsilon: Finite, >= 0.
  """
  validate.positive(noise_multiplier=noise_multiplier)
  validate.non_negative(epsilon=epsilon)
  return gaussian_mixtures.Mixture(
      np.array([noise_multiplier**-2]), np.ones(1)).delta(epsilon)


def analytic_noise_multiplier(*, epsilon: float, delta: float) -> float:
  """The minimum noise multiplier of one Gaussian release, without discretisation.

  Returns z that meets epsilon > 0 at delta in (0, 1), at most 1e-6 (relative) above the
  minimum.

  Raises ValueError if an argument is out of range, or z is outside of [1e-6, 1e12].
  """
  validate.positive(epsilon=epsilon)
  validate.open_unit_interval(delta=delta)
  low, high = 1e-6, 1.0
  if analytic_delta(low, epsilon) <= delta:
    raise _met_without(epsilon, delta)
  while analytic_delta(high, epsilon) > delta:
    low, high = high, 4 * high
    if high > 1e12:
      raise ValueError(f'epsilon={epsilon!r} at delta={delta!r} cannot be reached')
  return roots.least_meeting(
      # Above 0, for its logarithm.
      lambda z: math.log(max(analytic_delta(z, epsilon), 1e-320) / delta), low, high)


def default_bits(mechanism: Any, usual: int) -> int:
  """Bits of a sum: the usual, or with rows the fewest by which rounding costs little.

  `mechanism` is a `mechanisms.SumMechanism`.
  """
  if mechanism.has_bands:
    noise = mechanism.noise_multiplier or _USUAL_NOISE
    for bits in range(usual, MAX_BITS + 1):
      with contextlib.suppress(ValueError):  # Too few for the cohort.
        params = mechanism.replace(bits=bits, noise_multiplier=noise).params()
        if params.l2_sensitivity <= (1 + _ROUNDING) * params.clip_grid:
          return bits
  return usual
