"""From events to guarantees: epsilon, delta, and how they were computed."""

from collections.abc import Callable
import functools
import math

import numpy as np

from tff_pipelines.accounting.divergences import curves, pairs, pld, skellam_as_gaussian
from tff_pipelines.accounting.events import base, sum_events
from tff_pipelines.accounting.guarantees import bounds
from tff_pipelines.common import caveats as caveats_lib, decimals, validate

LARGE_EPSILON = 20.0
# A further delta, at which every run states its epsilon besides its own.
SMALL_DELTA = 1e-6
# Fraction of delta that pays for Skellam noise being Gaussian only up to a distance.
SLACK = 1e-6
# A certificate that is to hold up to an epsilon far above the true one is a weak one.
_FIRST_GUESS = 100.0
# Orders are searched in growing blocks; most answers lie in the first.
_BLOCKS = (128, 256, 512, curves.MAX_ORDER)


def default_delta(population: int) -> float:
  """The delta of a run that is given none: well below 1/population.

  Returns:
    1/N^1.1 rounded down to two digits, and at most 1e-5 from N = 10,000 on; 1 for
    N = 1, which no run accepts.
  """
  validate.integer(population=population, low=1)
  most = population**-1.1
  unit = math.floor(math.log10(most)) - 1
  return min(float(f'{math.floor(most / 10.0**unit)}e{unit}'),
             1e-5 if population >= 10_000 else 1.0)


def curve(event: base.Event, max_order: int = curves.MAX_ORDER,
          amplification: str = 'tight') -> np.ndarray:
  """Renyi divergence of the event at the orders 2..max_order, checked."""
  return curves.checked(event.curve(max_order, amplification), type(event).__name__)


def _epsilons(curve_: np.ndarray, delta: float) -> np.ndarray:
  """Epsilon from each order (arXiv 2004.00010, Proposition 12)."""
  alpha = curves.orders(curve_.size + 1)
  return curve_ + np.log1p(-1 / alpha) - (np.log(delta) + np.log(alpha)) / (alpha - 1)


def epsilon_of_curve(curve_: np.ndarray, delta: float) -> tuple[float, float | None]:
  """The minimum epsilon over the orders of a curve, and its order."""
  candidates = _epsilons(curve_, delta)
  index = int(np.argmin(candidates))
  if candidates[index] == np.inf:
    return np.inf, None
  return max(float(candidates[index]), 0.0), float(index + 2)


def renyi_epsilon(event: base.Event, delta: float,
                  amplification: str = 'tight') -> tuple[float, float | None]:
  """The minimum epsilon over the Renyi orders, and its order.

  Args:
    event: Everything that was released.
    delta: In [0, 1). At 0 only the infinite order counts. What the event may fail
      with is taken off it.
    amplification: 'tight', 'generic' or 'none'.

  Returns:
    (epsilon >= 0, order): `inf` as order for pure DP, None if epsilon is
    infinite.
  """
  delta = max(0.0, delta - event.failure_probability())
  best = float(event.pure_epsilon(amplification))
  order = None if best == np.inf else np.inf
  if delta == 0:
    return best, order
  for block in _BLOCKS:
    divergences = curve(event, block, amplification)
    candidates = _epsilons(divergences, delta)
    index = int(np.argmin(candidates))
    if candidates[index] < best:
      best, order = float(candidates[index]), float(index + 2)
    # Divergence grows with the order, so that of the later orders is at least the
    # last one here; what the conversion adds to it is known exactly.
    later = _epsilons(np.full(curves.MAX_ORDER - 1, divergences[-1]), delta)
    if later[block - 1:].min(initial=np.inf) >= best:
      break
  return max(best, 0.0), order


def _check(event: base.Event, accountant: str, amplification: str) -> None:
  base.check_event(event=event)
  validate.one_of(base.ACCOUNTANTS, accountant=accountant)
  validate.one_of(base.AMPLIFICATIONS, amplification=amplification)


def _by_pld(event: base.Event, accountant: str, amplification: str,
            query: Callable[[tuple[base.Factor, ...]], float | None]) -> float | None:
  """The result of a query about the worst pairs; None if they are not known."""
  factors = None if accountant == 'rdp' else event.factors(amplification)
  try:
    return None if factors is None else query(factors)
  except pairs.TooLarge:
    if accountant == 'pld':
      raise
    return None


def _no_pairs(event: base.Event) -> ValueError:
  return ValueError('accountant=pld needs an event whose worst pair is known '
                    f'({skellam_as_gaussian.NEEDS}), found {type(event).__name__}')


def as_gaussian(event: base.Event, delta: float, epsilon: float) -> base.Event:
  """The event with Gaussian noise that stands for it up to this epsilon.

  Returns:
    An event with delta_G(e) for which delta(e) <= delta_G(e) + SLACK delta for every
    e <= epsilon; the event itself if it has no Skellam noise or no certificate exists.
  """
  coordinates = event.skellam_coordinates()
  if not coordinates or epsilon > 600:
    return event
  # Every coordinate of every release is replaced, one at a time.
  distance = SLACK * delta / (1 + math.exp(epsilon)) / coordinates
  return event.as_gaussian(distance) if distance > 0 else event


def _epsilon_as_gaussian(event: base.Event, delta: float, accountant: str,
                         amplification: str, epsilon: float
                         ) -> tuple[float, base.Event] | None:
  """An epsilon that certificates cover, from a guess, and the event that has them."""
  for _ in range(4):
    gaussian = as_gaussian(event, delta, epsilon)
    value = None if gaussian == event else _by_pld(
        gaussian, accountant, amplification,
        lambda factors: pld.epsilon(factors, (1 - SLACK) * delta))
    if value is None:
      return None
    if value <= epsilon:
      return value, gaussian
    epsilon = 1.05 * value
  return None


# Plan, ledger's header, summary and verdict ask for the same numbers.
@functools.lru_cache(maxsize=512)
def _epsilon(event: base.Event, delta: float, accountant: str, amplification: str
             ) -> tuple[float, float | None, str, base.Event]:
  """(epsilon, order, accountant used, event that it accounted)."""
  value, accounted, order = None, event, None
  if delta > 0:
    value = _by_pld(event, accountant, amplification,
                    lambda factors: pld.epsilon(factors, delta))
  if value is None:
    renyi, order = renyi_epsilon(event, delta, amplification)
    if accountant != 'rdp' and delta > 0 and renyi < math.inf:
      result = _epsilon_as_gaussian(
          event, delta, accountant, amplification, min(renyi, _FIRST_GUESS))
      if result is not None:
        value, accounted = result
    # Infinite is infinite, by whatever accountant.
    if value is None and accountant == 'pld' and renyi < math.inf and (
        event.factors(amplification) is None):
      raise _no_pairs(event)
    if value is None or (accountant == 'auto' and renyi <= value):
      return _checked_result('epsilon', renyi), order, 'rdp', event
  # Basic composition of pure DP may be exactly tight: never report more.
  value = min(value, event.pure_epsilon(amplification))
  return _checked_result('epsilon', value), None, 'pld', accounted


def _checked_result(name: str, value: float) -> float:
  if math.isnan(value) or value < 0:
    raise ValueError(f'{name} came out as {value!r}: no guarantee can be given')
  return value


def epsilon(event: base.Event, delta: float, *, accountant: str = 'auto',
            amplification: str = 'tight') -> float:
  """The minimum epsilon that is proved for the event at this delta.

  Args:
    event: Everything that was released.
    delta: In [0, 1). At 0 epsilon is infinite except for pure DP.
    accountant: 'rdp', 'pld' (an error where no worst pair is known), or 'auto': PLD
      where the pair is exact; where it is that of a Gaussian in place of Skellam noise
      (docs/skellam_as_gaussian.md) the smaller of PLD and RDP; else RDP.
    amplification: 'tight'; 'generic' for the published bound on Poisson
      sampling; 'none' to ignore sampling.

  Returns:
    Epsilon >= 0; `inf` if nothing is proved.

  Raises:
    ValueError: If an argument is out of range or the arithmetic fails.
  """
  _check(event, accountant, amplification)
  validate.below_one(delta=delta)
  return _epsilon(event, delta, accountant, amplification)[0]


# pylint: disable=redefined-outer-name
def delta(event: base.Event, epsilon: float, *, accountant: str = 'auto',
          amplification: str = 'tight') -> float:
  """The minimum delta that is proved for the event at this epsilon, >= 0 and finite.

  Other arguments and errors are those of `epsilon`.

  Returns:
    Delta in [0, 1]; 1 if nothing is proved.
  """
  _check(event, accountant, amplification)
  validate.non_negative(epsilon=epsilon)
  if event.pure_epsilon(amplification) <= epsilon:
    return 0.0
  value = _by_pld(
      event, accountant, amplification, lambda factors: pld.delta(factors, epsilon))
  if value is not None:
    return _checked_result('delta', value)
  alpha = curves.orders()
  # The conversion of `_epsilons`, solved for the logarithm of delta.
  logs = (alpha - 1) * (curve(event, amplification=amplification) - epsilon +
                        np.log1p(-1 / alpha)) - np.log(alpha)
  renyi = min(1.0, float(np.exp(np.minimum(logs.min(), 0.0)))
              + event.failure_probability())
  if accountant != 'rdp' and 0 < renyi < 1:
    gaussian = as_gaussian(event, renyi, epsilon)
    if gaussian != event:
      value = _by_pld(gaussian, accountant, amplification,
                      lambda factors: pld.delta(factors, epsilon))
  if value is None:
    if accountant == 'pld':
      raise _no_pairs(event)
    return _checked_result('delta', renyi)
  value += SLACK * renyi
  return _checked_result('delta', value if accountant == 'pld' else min(value, renyi))


def bound(event: base.Event, delta: float, *, accountant: str = 'auto',
          amplification: str = 'tight', population: int | None = None,
          records: int | None = None,
          stated_delta: float | None = None) -> bounds.Bound:
  """Epsilon at this delta, with its caveats; errors and other arguments as of `epsilon`.

  Args:
    event, delta, accountant, amplification: As in `epsilon`.
    population, records: Number of clients, or of records where neighbouring inputs
      differ in one, to judge delta by; None if unknown.
    stated_delta: Delta to be judged, where a part is consumed; None for `delta`.
  """
  _check(event, accountant, amplification)
  validate.below_one(delta=delta)
  if population is not None:
    validate.integer(population=population, low=1)
  value, order, used, accounted = _epsilon(event, delta, accountant, amplification)
  units = (records, 'records') if event.adjacency in base.OF_RECORDS else (
      population, 'population')
  return bounds.Bound(
      epsilon=value, delta=delta, order=order, accountant=used,
      amplification=amplification, adjacency=event.adjacency, caveats=(
          *(event.without_sampling() if amplification == 'none' else event).caveats(),
          *warnings_about(value, delta if stated_delta is None else stated_delta, *units)),
      certificates=tuple(
          part.certificate() for part in sum_events.certificates(accounted)))


def warnings_about(epsilon: float, delta: float, units: int | None,
                   of: str = 'population') -> list[caveats_lib.Caveat]:
  """Caveats about the values of epsilon >= 0 and delta in [0, 1).

  Args:
    epsilon, delta: The values.
    units, of: Number of clients or records, to judge delta by, or None; 'population' or
      'records'.
  """
  shown = decimals.rounded_up(delta, 6)
  return [caveats_lib.Caveat(name, text) for applies, name, text in (
      (epsilon == math.inf, 'no finite epsilon',
       f'no finite epsilon is guaranteed at delta={shown}'),
      (LARGE_EPSILON < epsilon < math.inf, 'large epsilon',
       f'epsilon={decimals.rounded_up(epsilon, 4)} says next to nothing'),
      # The number itself is as private as a record.
      (units is None and of == 'records' and delta > SMALL_DELTA,
       'delta to be compared with the records',
       f'delta={shown} says little unless it is well below 1 over the number of '
       'records'),
      (units is not None and delta >= 1 / units, f'delta not below 1/{of}',
       f'delta={shown} is not below 1/{of}: publishing the data of one outright would '
       'satisfy it')
      ) if applies]
