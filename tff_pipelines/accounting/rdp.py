"""Renyi accounting: events to curves, curves to epsilon and delta."""

import numpy as np

from tff_pipelines.accounting import base
from tff_pipelines.accounting import curves

# Orders are searched in growing blocks; most answers lie in the first.
_BLOCKS = (128, 256, 512, curves.MAX_ORDER)


def curve(event: base.Event, max_order: int = curves.MAX_ORDER,
          amplification: str = 'tight') -> np.ndarray:
  """Renyi divergence of the event at the orders 2..max_order, checked."""
  return curves.checked(
      event.curve(max_order, amplification), type(event).__name__)


def _epsilons(curve_: np.ndarray, delta: float) -> np.ndarray:
  """Epsilon from each order (arXiv 2004.00010, Proposition 12)."""
  alpha = curves.orders(curve_.size + 1)
  return curve_ + np.log1p(-1 / alpha) - (np.log(delta) + np.log(alpha)) / (
      alpha - 1)


def epsilon_of_curve(curve_: np.ndarray,
                     delta: float) -> tuple[float, float | None]:
  """The minimum epsilon over the orders of a curve, and its order."""
  candidates = _epsilons(curve_, delta)
  index = int(np.argmin(candidates))
  if candidates[index] == np.inf:
    return np.inf, None
  return max(float(candidates[index]), 0.0), float(index + 2)


def epsilon(event: base.Event, delta: float,
            amplification: str = 'tight') -> tuple[float, float | None]:
  """The minimum epsilon over the orders, and its order.

  Args:
    event: Everything that was released.
    delta: In [0, 1). At 0 only the infinite order counts.
    amplification: 'tight', 'generic' or 'none'.

  Returns:
    (epsilon >= 0, order): `inf` as order for pure DP, None if epsilon is
    infinite.
  """
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


def delta(event: base.Event, epsilon_: float,
          amplification: str = 'tight') -> tuple[float, float | None]:
  """The minimum delta over the orders, and its order; 1 if nothing is known."""
  if event.pure_epsilon(amplification) <= epsilon_:
    return 0.0, np.inf
  alpha = curves.orders()
  # The conversion of `_epsilons`, solved for the logarithm of delta.
  candidates = (alpha - 1) * (curve(event, amplification=amplification) - epsilon_ +
                              np.log1p(-1 / alpha)) - np.log(alpha)
  index = int(np.argmin(candidates))
  if candidates[index] >= 0:
    return 1.0, None
  return float(np.exp(candidates[index])), float(index + 2)
