"""From events to guarantees: epsilon, delta, and how they were computed."""

from collections.abc import Callable
import functools
import math
from typing import NamedTuple, TypeVar

import numpy as np

from tff_pipelines.accounting.divergences import curves, pairs, pld, skellam_as_gaussian
from tff_pipelines.accounting.events import base, sum_events
from tff_pipelines.accounting.guarantees import bounds
from tff_pipelines.common import caveats as caveats_lib, decimals, validate

LARGE_EPSILON = 20.0
# A further delta, at which every run states its epsilon besides its own.
SMALL_DELTA = 1e-6
# Fractions of delta that may pay for Skellam noise being Gaussian only up to a
# distance: a larger one leaves less of delta, and more variance to the Gaussian.
SLACKS = (1e-6, 1e-4, 1e-3, 1e-2, 0.03, 0.1)
# How much lower an epsilon may be for the grid to be named.
_LOOSE = 0.002
# A certificate that is to hold up to an epsilon far above the true one is a weak one.
_FIRST_GUESS = 100.0
# Orders are searched in growing blocks; most answers lie in the first.
_BLOCKS = (128, 256, 512, curves.MAX_ORDER)


def default_delta(population: int) -> float:
  """The delta of a run that is given none: well below 1/population.

  Returns 1/N^1.1 rounded down to two digits, and at most 1e-5 from N = 10,000 on; 1 for
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


def renyi_epsilon(event: base.Event, delta: float, amplification: str = 'tight', *,
                  quick: bool = False) -> tuple[float, float | None]:
  """The minimum epsilon over the Renyi orders, and its order.

  Args:
    event: Everything that was released.
    delta: In [0, 1). At 0 only the infinite order counts. What the event may fail
      with is taken off it.
    amplification: 'tight', 'generic' or 'none'.
    quick: Whether to search the first block of orders alone.

  Returns (epsilon >= 0, order): `inf` as order for pure DP, None if epsilon is infinite.
  """
  delta = max(0.0, delta - event.failure_probability())
  best = float(event.pure_epsilon(amplification))
  order = None if best == np.inf else np.inf
  if delta == 0:
    return best, order
  for block in _BLOCKS[:1] if quick else _BLOCKS:
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


_Answer = TypeVar('_Answer')


def _by_pld(event: base.Event, accountant: str, amplification: str,
            query: Callable[[tuple[base.Factor, ...]], _Answer]) -> _Answer | None:
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


def as_gaussian(event: base.Event, delta: float, epsilon: float,
                slack: float = SLACKS[0]) -> base.Event:
  """The event with Gaussian noise that stands for it up to this epsilon.

  Returns an event with delta_G(e) for which delta(e) <= delta_G(e) + slack delta for
  every e <= epsilon; the event itself if it has no Skellam noise or no certificate
  exists.
  """
  if not (coordinates := event.skellam_coordinates()) or epsilon > 600:
    return event
  # Every coordinate of every release is replaced, one at a time.
  distance = slack * delta / (1 + math.exp(epsilon)) / coordinates
  return event.as_gaussian(distance) if distance > 0 else event


def _best_gaussian(event: base.Event, delta: float, amplification: str, epsilon: float
                   ) -> tuple[base.Event, float] | None:
  """The best of the events of `as_gaussian`, with its slack; None if there is none.

  Each is valid; Renyi divergences, which are quick, tell which one is best.
  """
  slacks = {}
  for slack in SLACKS:
    slacks.setdefault(as_gaussian(event, delta, epsilon, slack), slack)
  slacks.pop(event, None)
  return min(slacks.items(), default=None, key=lambda item: renyi_epsilon(
      item[0], (1 - item[1]) * delta, amplification, quick=True)[0])


class _Result(NamedTuple):
  """An epsilon, and how it was computed.

  Attributes:
    epsilon, order, accountant: As in `Bound`.
    event: The event that was accounted.
    lowest: An epsilon that a finer grid of privacy losses cannot go below.
  """

  epsilon: float
  order: float | None
  accountant: str
  event: base.Event
  lowest: float


def _pld_result(event: base.Event, delta: float, accountant: str,
                amplification: str) -> _Result | None:
  bracket = _by_pld(event, accountant, amplification,
                    lambda factors: pld.bracket(factors, delta))
  return bracket and _Result(bracket[0], None, 'pld', event, bracket[1])


def _epsilon_as_gaussian(event: base.Event, delta: float, accountant: str,
                         amplification: str, epsilon: float) -> _Result | None:
  """An epsilon that certificates cover, from a guess."""
  for _ in range(4):
    best = _best_gaussian(event, delta, amplification, epsilon)
    result = best and _pld_result(
        best[0], (1 - best[1]) * delta, accountant, amplification)
    if result is None or result.epsilon <= epsilon:
      return result
    epsilon = 1.05 * result.epsilon
  return None


# Plan, ledger's header, summary and verdict ask for the same numbers.
@functools.lru_cache(maxsize=512)
def _epsilon(event: base.Event, delta: float, accountant: str,
             amplification: str) -> _Result:
  """The smallest of the epsilons that are proved."""
  result = _pld_result(event, delta, accountant, amplification) if delta > 0 else None
  if result is None or accountant == 'auto':
    renyi, order = renyi_epsilon(event, delta, amplification, quick=result is not None)
    if result is None and accountant != 'rdp' and delta > 0:
      result = _epsilon_as_gaussian(
          event, delta, accountant, amplification, min(renyi, _FIRST_GUESS))
      # Infinite is infinite, by whatever accountant.
      if result is None and accountant == 'pld' and renyi < math.inf and (
          event.factors(amplification) is None):
        raise _no_pairs(event)
    if result is None or accountant == 'auto' and renyi < result.epsilon:
      result = _Result(renyi, order, 'rdp', event, renyi)
  # Basic composition of pure DP may be exactly tight: never report more.
  if result.accountant == 'pld':
    result = result._replace(
        epsilon=min(result.epsilon, event.pure_epsilon(amplification)))
  _checked_result('epsilon', result.epsilon)
  return result


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
    accountant: 'rdp', 'pld' (an error where no worst pair is known), or 'auto': the
      smaller of both; PLD is that of a Gaussian in place of Skellam noise where that
      has no worst pair of its own (docs/skellam_as_gaussian.md).
    amplification: 'tight'; 'generic' for the published bound on Poisson
      sampling; 'none' to ignore sampling.

  Returns epsilon >= 0; `inf` if nothing is proved.

  Raises ValueError if an argument is out of range or the arithmetic fails.
  """
  _check(event, accountant, amplification)
  validate.below_one(delta=delta)
  return _epsilon(event, delta, accountant, amplification).epsilon


# pylint: disable=redefined-outer-name
def delta(event: base.Event, epsilon: float, *, accountant: str = 'auto',
          amplification: str = 'tight') -> float:
  """The minimum delta that is proved for the event at this epsilon, >= 0 and finite.

  Other arguments and errors are those of `epsilon`.

  Returns delta in [0, 1]; 1 if nothing is proved.
  """
  _check(event, accountant, amplification)
  validate.non_negative(epsilon=epsilon)
  if event.pure_epsilon(amplification) <= epsilon:
    return 0.0
  value = _by_pld(
      event, accountant, amplification, lambda factors: pld.delta(factors, epsilon))
  if value is not None and accountant == 'pld':
    return _checked_result('delta', value)
  orders = curves.MAX_ORDER if value is None else _BLOCKS[0]
  alpha = curves.orders(orders)
  # The conversion of `_epsilons`, solved for the logarithm of delta.
  logs = (alpha - 1) * (curve(event, orders, amplification) - epsilon +
                        np.log1p(-1 / alpha)) - np.log(alpha)
  renyi = min(1.0, float(np.exp(np.minimum(logs.min(), 0.0)))
              + event.failure_probability())
  if value is None and accountant != 'rdp' and 0 < renyi < 1:
    for slack in SLACKS:
      # Each is valid, and a better delta is a better unit of the next slack.
      paid = renyi if value is None else min(renyi, value)
      gaussian = as_gaussian(event, paid, epsilon, slack)
      result = None if gaussian == event else _by_pld(
          gaussian, accountant, amplification,
          lambda factors: pld.delta(factors, epsilon) + slack * paid)  # pylint: disable=cell-var-from-loop
      if result is not None:
        value = result if value is None else min(value, result)
  if value is None and accountant == 'pld':
    raise _no_pairs(event)
  return _checked_result('delta', renyi if value is None else (
      value if accountant == 'pld' else min(value, renyi)))


def bound(event: base.Event, delta: float, *, accountant: str = 'auto',
          amplification: str = 'tight', population: int | None = None,
          records: int | None = None, stated_delta: float | None = None) -> bounds.Bound:
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
  result = _epsilon(event, delta, accountant, amplification)
  units = (records, 'records') if event.adjacency in base.OF_RECORDS else (
      population, 'population')
  return bounds.Bound(
      epsilon=result.epsilon, delta=delta, order=result.order,
      accountant=result.accountant, amplification=amplification,
      adjacency=event.adjacency, caveats=(
          *(event.without_sampling() if amplification == 'none' else event).caveats(),
          *_about_grid(result), *warnings_about(
              result.epsilon, delta if stated_delta is None else stated_delta, *units)),
      certificates=tuple(
          part.certificate() for part in sum_events.certificates(result.event)))


def _about_grid(result: _Result) -> list[caveats_lib.Caveat]:
  """A caveat where a finer grid of privacy losses may give a smaller epsilon."""
  epsilon_, lowest = result.epsilon, result.lowest
  if epsilon_ == math.inf or lowest >= (1 - _LOOSE) * epsilon_:
    return []
  excess = '' if lowest < epsilon_ / 1000 else (
      f' by up to {decimals.rounded_up(100 * (epsilon_ / lowest - 1), 2)}%')
  return [caveats_lib.Caveat(
      'coarse grid of privacy losses', 'epsilon holds, but may exceed what a finer grid '
      f'of privacy losses would prove{excess}')]


def warnings_about(epsilon: float, delta: float, units: int | None,
                   of: str = 'population') -> list[caveats_lib.Caveat]:
  """Caveats about the values of epsilon >= 0 and delta in [0, 1).

  Args:
    epsilon, delta: The values.
    units, of: Number of clients or records, to judge delta by, as it is printed with
      three digits, or None; 'population' or 'records'.
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
      (units is not None and float(decimals.rounded_up(delta, 3)) >= 1 / units,
       f'delta not below 1/{of}',
       f'delta={shown} is not below 1/{of}: publishing the data of one outright would '
       'satisfy it')
      ) if applies]
