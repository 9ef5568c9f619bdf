"""Renyi divergence bounds of the mechanisms, at integer orders.

A curve is a float64 array; entry i belongs to the order i + 2, so a curve to
the order m has m - 1 entries. Values are natural logarithms, at least 0,
`inf` where nothing is guaranteed. At a real order the next integer's value
applies: the divergence grows with the order.
"""

import functools
import math

import numpy as np
from scipy import special

MAX_ORDER = 1024


def orders(max_order: int = MAX_ORDER) -> np.ndarray:
  """The integer orders 2..max_order as float64."""
  return np.arange(2, max_order + 1, dtype=np.float64)


def checked(curve: np.ndarray, what: str) -> np.ndarray:
  """Returns `curve`; raises ValueError if it has a NaN or a negative value.

  A divergence that is NaN or below 0 is an arithmetic fault, and must never be read
  as a small epsilon.
  """
  if np.isnan(curve).any() or (curve < 0).any():
    raise ValueError(
        f'the Renyi divergence of {what} must be a number from 0 to infinity '
        'at every order, found NaN or a negative value')
  return curve


def no_guarantee(max_order: int) -> np.ndarray:
  """The curve of a release without privacy."""
  return np.full(max_order - 1, np.inf)


def skellam(*, l1: float, l2: float, variance: float,
            max_order: int = MAX_ORDER) -> np.ndarray:
  """Skellam mechanism on an integer query (arXiv 2110.04995, Corollary 3.6).

  Args:
    l1: L1 sensitivity, grid units.
    l2: L2 sensitivity, grid units.
    variance: Noise variance of each coordinate, grid units squared; 0 gives an
      infinite curve.
    max_order: Largest order.

  Returns:
    The curve alpha l2^2 / (2 mu) + min{((2 alpha - 1) l2^2 + 6 l1) / (4 mu^2),
    3 l1 / (2 mu)}.
  """
  if variance == 0:
    return no_guarantee(max_order)
  alpha = orders(max_order)
  # Divided one factor at a time: mu^2 underflows for a tiny variance, and the
  # square of a large sensitivity overflows to infinity, the private side.
  with np.errstate(over='ignore'):
    ratio2 = np.float64(l2) / variance * l2
    ratio1 = np.float64(l1) / variance
    correction = np.minimum(
        ((2 * alpha - 1) * ratio2 + 6 * ratio1) / variance / 4, 1.5 * ratio1)
    return alpha * ratio2 / 2 + correction


def gaussian(noise_multiplier: float, max_order: int = MAX_ORDER) -> np.ndarray:
  """Gaussian mechanism: alpha / (2 z^2) (arXiv 1702.07476, Corollary 3)."""
  if noise_multiplier == 0:
    return no_guarantee(max_order)
  with np.errstate(over='ignore', divide='ignore'):
    return orders(max_order) / 2 / noise_multiplier / noise_multiplier


def discrete_gaussian_sum_gap(local_variance: float, clients: int) -> float:
  """Distance of a sum of discrete Gaussian shares from a discrete Gaussian.

  tau = 10 sum_{k=1}^{n-1} exp(-2 pi^2 v k / (k+1)) (arXiv 2102.06387, Theorem
  1), v the variance of one share in grid units squared.
  """
  # The terms decrease towards exp(-2 pi^2 v); the last of a long sum are equal
  # to machine precision, and rounding them up to the value at k is safe.
  head = min(clients - 1, 10_000)
  k = np.arange(1, head + 1, dtype=np.float64)
  total = np.exp(-2 * math.pi**2 * local_variance * k / (k + 1)).sum()
  if clients - 1 > head:
    total += (clients - 1 - head) * math.exp(
        -2 * math.pi**2 * local_variance * head / (head + 1))
  return 10.0 * float(total)


def distributed_discrete_gaussian(
    *, l1: float, l2: float, variance: float, local_variance: float,
    clients: int, dimension: int, max_order: int = MAX_ORDER) -> np.ndarray:
  """Sum of discrete Gaussian shares (arXiv 2102.06387, Theorem 1 and Prop. 14).

  Args:
    l1: L1 sensitivity, grid units.
    l2: L2 sensitivity, grid units.
    variance: Variance of the sum of the shares, grid units squared.
    local_variance: Variance of one share, grid units squared.
    clients: Number of shares.
    dimension: Number of coordinates.
    max_order: Largest order.

  Returns:
    The minimum of the three bounds; infinite when a share's standard deviation is
    below half a grid unit, for which the theorem says nothing.
  """
  if variance == 0 or local_variance < 0.25:
    return no_guarantee(max_order)
  alpha = orders(max_order)
  tau = discrete_gaussian_sum_gap(local_variance, clients)
  a1 = l1 / math.sqrt(variance)
  a2 = l2 / math.sqrt(variance)
  with np.errstate(over='ignore'):
    bounds = (
        alpha * np.float64(a2)**2 / 2 + tau * dimension,
        alpha / 2 * (np.float64(a2)**2 + 2 * a1 * tau + tau**2 * dimension),
        alpha / 2 * (np.float64(a2) + math.sqrt(dimension) * tau)**2)
    return np.minimum.reduce(bounds)


def pure(epsilon: float, max_order: int = MAX_ORDER) -> np.ndarray:
  """Any mechanism that is epsilon-DP without delta.

  The worst is randomized response that tells the truth with odds e^epsilon (Kairouz,
  Oh and Viswanath, arXiv 1311.0776); its divergence bounds every other.
  """
  alpha = orders(max_order)
  if epsilon == 0:
    return np.zeros_like(alpha)
  log_truth = -np.log1p(np.exp(-np.float64(epsilon)))
  log_lie = log_truth - epsilon
  moment = np.logaddexp(alpha * log_truth + (1 - alpha) * log_lie,
                        alpha * log_lie + (1 - alpha) * log_truth)
  return np.clip(moment / (alpha - 1), 0.0, epsilon)


@functools.cache
def log_binomials(max_order: int) -> np.ndarray:
  """log C(alpha, l) for alpha = 2..max_order (rows) and l = 0..max_order.

  -inf above the diagonal.
  """
  alpha = orders(max_order)[:, None]
  chosen = np.arange(max_order + 1, dtype=np.float64)
  inside = chosen <= alpha
  log_factorial = special.gammaln(chosen + 1)
  rest = np.where(inside, alpha - chosen, 0).astype(int)
  table = log_factorial[2:, None] - log_factorial - log_factorial[rest]
  return np.where(inside, table, -np.inf)
