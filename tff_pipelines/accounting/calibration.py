"""Finding the noise, rounds, cohort or bits for a target, on the private side.

Every search keeps a bracket: one end that meets the target and one that does
not. What is returned is always an end that was seen to meet it.
"""

import math
from typing import Callable

from aggregators import params as params_lib
from aggregators import validate
from tff_pipelines.accounting import accountant as accountant_lib
from tff_pipelines.accounting import base

RELATIVE_TOLERANCE = 1e-6
_LARGEST_NOISE = 1e9
_SMALLEST_NOISE = 1e-6
_MOST_BITS = 30


class Unreachable(ValueError):
  """No noise meets the target, at this grid or at all."""


EventOf = Callable[[float], base.Event]
EventOfInt = Callable[[int], base.Event]


def _check_target(epsilon: float, delta: float) -> None:
  validate.positive(epsilon=epsilon)
  validate.finite(delta=delta)
  if not 0 <= delta < 1:
    raise ValueError(f'delta must be in [0, 1), found {delta!r}')


def noise_multiplier(make_event: EventOf, *, epsilon: float, delta: float,
                     accountant: str = 'auto',
                     amplification: str = 'tight') -> float:
  """The least noise multiplier that meets the target.

  Args:
    make_event: From a noise multiplier > 0 to everything that is released.
      Epsilon must fall as the noise grows. A DistributedSumParams made for each
      noise multiplier takes care of the scale, which depends on it.
    epsilon: Target > 0.
    delta: In [0, 1).
    accountant: As in `accountant.epsilon`.
    amplification: As in `accountant.epsilon`.

  Returns:
    z with epsilon(make_event(z)) <= epsilon, at most 1e-6 (relative) above the
    least such z.

  Raises:
    ValueError: If an argument is out of range, no noise meets the target, or
      next to none already does.
  """
  _check_target(epsilon, delta)

  def excess(z: float) -> float:
    """log of found over target epsilon: > 0 is not private enough."""
    found = accountant_lib.epsilon(make_event(z), delta, accountant=accountant,
                                   amplification=amplification)
    return math.log(found / epsilon) if found > 0 else -math.inf

  low, high = None, 1.0
  at_high = excess(high)
  at_low = None
  while at_high > 0:
    low, at_low = high, at_high
    high *= 4 if math.isinf(at_high) else max(1.1, min(
        4.0, 1.05 * math.exp(at_high)))
    if high > _LARGEST_NOISE:
      raise Unreachable(
          f'epsilon={epsilon!r} cannot be reached at delta={delta!r}: not even '
          f'by a noise multiplier of {low:.3g}; on a grid more bits may do, as '
          'much noise leaves few of its values to the signal')
    at_high = excess(high)
  while low is None:
    trial = high * (0.25 if math.isinf(at_high) else min(
        0.9, max(0.25, 0.95 * math.exp(at_high))))
    if trial < _SMALLEST_NOISE:
      raise ValueError(
          f'epsilon={epsilon!r} at delta={delta!r} is met without noise: there '
          'is nothing to calibrate')
    found = excess(trial)
    if found > 0:
      low, at_low = trial, found
    else:
      high, at_high = trial, found
  return _narrowed(excess, low, at_low, high, at_high)


def _narrowed(excess: Callable[[float], float], low: float, at_low: float,
              high: float, at_high: float) -> float:
  """Narrows the bracket by false position on logarithms, halving when slow.

  Args:
    excess: Positive below the answer, at most 0 from it on.
    low: Where it is positive.
    at_low: excess(low).
    high: Where it is not.
    at_high: excess(high).

  Returns:
    The upper end, within the relative tolerance of the lower one.
  """
  kept = 0  # Times in a row that the same end was kept.
  while high / low - 1 > RELATIVE_TOLERANCE:
    width = math.log(high / low)
    share = 0.5
    if kept < 3 and math.isfinite(at_low) and math.isfinite(at_high):
      share = at_low / (at_low - at_high)
    # Aim a little past the root, so that the far end moves as well.
    nudge = 0.4 * RELATIVE_TOLERANCE / width
    share += nudge if share <= 0.5 or kept >= 0 else -nudge
    share = min(max(share, nudge), 1 - nudge)
    trial = low * math.exp(width * share)
    if not low < trial < high:
      break
    found = excess(trial)
    if found > 0:
      kept = kept + 1 if kept > 0 else 1
      low, at_low = trial, found
    else:
      kept = kept - 1 if kept < 0 else -1
      high, at_high = trial, found
    if abs(kept) >= 3:
      kept = 3
  return high


def _largest(meets: Callable[[int], bool], low: int, high: int | None,
             what: str) -> int:
  """The largest integer of [low, high] that meets a target that falls away."""
  if not meets(low):
    raise ValueError(f'{what}: not even {low} meets the target')
  good, bad = low, None
  while bad is None:
    trial = 2 * good if high is None else min(2 * good, high)
    if high is not None and good == high:
      return good
    if trial > 2**40:
      raise ValueError(f'{what} is unbounded: {good} still meets the target')
    if meets(trial):
      good = trial
    else:
      bad = trial
  while bad - good > 1:
    middle = (good + bad) // 2
    if meets(middle):
      good = middle
    else:
      bad = middle
  return good


def rounds(make_event: EventOfInt, *, epsilon: float, delta: float,
           accountant: str = 'auto', amplification: str = 'tight') -> int:
  """The most rounds that keep epsilon within the target.

  Args:
    make_event: From a number of rounds >= 1 to everything that is released.
    epsilon: Target > 0.
    delta: In [0, 1).
    accountant: As in `accountant.epsilon`.
    amplification: As in `accountant.epsilon`.

  Raises:
    ValueError: If not even one round meets the target, or any number does.
  """
  _check_target(epsilon, delta)
  return _largest(
      lambda count: accountant_lib.epsilon(
          make_event(count), delta, accountant=accountant,
          amplification=amplification) <= epsilon,
      1, None, 'rounds')


def cohort(make_event: EventOfInt, *, population: int, epsilon: float,
           delta: float, accountant: str = 'auto',
           amplification: str = 'tight') -> int:
  """The largest cohort in [1, population] that keeps epsilon within the target.

  At a given noise multiplier a larger cohort means a larger sampling rate: less
  amplification, but also less noise in the mean.

  Args:
    make_event: From a cohort size to everything that is released.
    population: Number of clients.
    epsilon: Target > 0.
    delta: In [0, 1).
    accountant: As in `accountant.epsilon`.
    amplification: As in `accountant.epsilon`.

  Raises:
    ValueError: If not even a cohort of one meets the target.
  """
  _check_target(epsilon, delta)
  validate.integer(population=population, low=1)
  return _largest(
      lambda size: accountant_lib.epsilon(
          make_event(size), delta, accountant=accountant,
          amplification=amplification) <= epsilon,
      1, population, 'cohort')


def bits(make_event: EventOfInt, *, epsilon: float, delta: float,
         accountant: str = 'auto', amplification: str = 'tight') -> int:
  """The fewest bits whose epsilon is within the target, at a given noise.

  Args:
    make_event: From a number of bits to everything that is released; a
      ValueError means that the bits are too few.
    epsilon: Target > 0.
    delta: In [0, 1).
    accountant: As in `accountant.epsilon`.
    amplification: As in `accountant.epsilon`.

  Raises:
    ValueError: If not even 30 bits meet the target.
  """
  _check_target(epsilon, delta)
  last = None
  for count in range(2, _MOST_BITS + 1):
    try:
      event = make_event(count)
    except ValueError as error:
      last = error
      continue
    if accountant_lib.epsilon(event, delta, accountant=accountant,
                              amplification=amplification) <= epsilon:
      return count
  raise ValueError(
      f'bits: not even {_MOST_BITS} meet epsilon={epsilon!r} at '
      f'delta={delta!r}') from last


def calibrated(params: params_lib.DistributedSumParams,
               make_event: Callable[[params_lib.DistributedSumParams], base.Event],
               *, epsilon: float, delta: float, accountant: str = 'auto',
               amplification: str = 'tight', allow_degenerate: bool = False
               ) -> params_lib.DistributedSumParams:
  """`params` with the least noise multiplier that meets the target.

  Args:
    params: Everything but the noise multiplier, which is ignored.
    make_event: From parameters to everything that is released.
    epsilon: Target > 0.
    delta: In [0, 1).
    accountant: As in `accountant.epsilon`.
    amplification: As in `accountant.epsilon`.
    allow_degenerate: Whether to return parameters of a uselessly coarse grid.

  Raises:
    ValueError: As in `noise_multiplier`; and for a degenerate grid, naming the
      bits that would do.
  """
  def solved(trial: params_lib.DistributedSumParams):
    return trial.replace(noise_multiplier=noise_multiplier(
        lambda z: make_event(trial.replace(noise_multiplier=z)),
        epsilon=epsilon, delta=delta, accountant=accountant,
        amplification=amplification))

  try:
    found = solved(params)
  except Unreachable as error:
    raise ValueError(unreachable_reason(params, solved, error)) from None
  if not allow_degenerate:
    refuse_degenerate(found)
  return found


def unreachable_reason(
    params: params_lib.DistributedSumParams,
    solve: Callable[[params_lib.DistributedSumParams],
                    params_lib.DistributedSumParams],
    error: Unreachable) -> str:
  """Names the bits that would do, if any, for a target that cannot be met."""
  if params.fixed_scale is None:
    for count in range(params.bits + 1, _MOST_BITS + 1):
      try:
        if solve(params.replace(bits=count)).degeneracy() is None:
          return (f'degenerate setting: bits={params.bits} are too few for '
                  f'this target; bits={count} would do')
      except ValueError:
        continue
  return str(error)


def refuse_degenerate(params: params_lib.DistributedSumParams) -> None:
  """Raises ValueError where the grid is too coarse, naming bits that do."""
  reason = params.degeneracy()
  if reason is None:
    return
  raise ValueError(f'degenerate setting: {reason}; {_cure(params)}, or allow it '
                   'with --allow_degenerate')


def _cure(params: params_lib.DistributedSumParams) -> str:
  if params.fixed_scale is not None:
    return 'a larger scale would do'
  for count in range(params.bits + 1, _MOST_BITS + 1):
    if params.replace(bits=count).degeneracy() is None:
      return f'bits={count} would do'
  return f'not even bits={_MOST_BITS} would do'


def suggest_bits(
    params: params_lib.DistributedSumParams,
    make_event: Callable[[params_lib.DistributedSumParams], base.Event],
    *, epsilon: float, delta: float, within: float = 0.01,
    amplification: str = 'tight') -> params_lib.DistributedSumParams:
  """The fewest bits whose noise multiplier is near the central Gaussian's.

  Both are accounted by RDP, so that mechanisms are compared, not accountants.

  Args:
    params: Everything but bits and noise multiplier, which are ignored.
    make_event: From parameters to everything that is released. It is also asked
      about the Gaussian, by parameters of so fine a grid that rounding and
      discreteness are lost.
    epsilon: Target > 0.
    delta: In [0, 1).
    within: Largest relative excess over the Gaussian's noise multiplier, > 0.
    amplification: As in `accountant.epsilon`.

  Returns:
    Calibrated parameters, not degenerate.

  Raises:
    ValueError: If not even 30 bits come that near.
  """
  validate.positive(within=within)
  target = dict(epsilon=epsilon, delta=delta, accountant='rdp',
                amplification=amplification)
  finest = params.replace(
      fixed_scale=params_lib.MAX_CLIP_GRID * (1 - 1e-12) / params.clip)
  gaussian = calibrated(finest, make_event, **target).noise_multiplier
  for count in range(2, _MOST_BITS + 1):
    try:
      found = calibrated(params.replace(bits=count), make_event, **target)
    except ValueError:
      continue  # Too few bits for the cohort, or a degenerate grid.
    if found.noise_multiplier <= (1 + within) * gaussian:
      return found
  raise ValueError(
      f'bits: not even {_MOST_BITS} come within {within:g} of the central '
      f'Gaussian\'s noise multiplier {gaussian:.6g}')
