"""Renyi divergence bounds of mechanisms and sampled clients, at integer orders.

A curve is a float64 array; entry i belongs to the order i + 2, so a curve to
the order m has m - 1 entries. Values are natural logarithms, at least 0,
`inf` where nothing is guaranteed. At a real order the next integer's value
applies: the divergence grows with the order.

Each bound on sampling is already the minimum with the unamplified curve; its sums are
taken by logarithms, so nothing overflows.
"""

from collections.abc import Sequence
import functools
import math

import numpy as np
from scipy import special

MAX_ORDER = 1024


def orders(max_order: int = MAX_ORDER) -> np.ndarray:
  """The integer orders 2..max_order as float64."""
  return np.arange(2, max_order + 1, dtype=np.float64)


def checked(curve: np.ndarray, what: str) -> np.ndarray:
  """Returns a curve; ValueError if a value is NaN or negative, never a small epsilon."""
  if np.isnan(curve).any() or (curve < 0).any():
    raise ValueError(f'the Renyi divergence of {what} must be from 0 to infinity, '
                     'found NaN or a negative value')
  return curve


def no_guarantee(max_order: int) -> np.ndarray:
  """The curve of a release without privacy."""
  return np.full(max_order - 1, np.inf)


def skellam(*, l1: float, l2: float, variance: float,
            max_order: int = MAX_ORDER) -> np.ndarray:
  """Skellam mechanism on an integer query (arXiv 2110.04995, Corollary 3.6).

  Args:
    l1, l2: Sensitivities in these norms, grid units.
    variance: mu, noise variance of each coordinate, grid units squared, >= 0.

  Returns the curve alpha l2^2 / (2 mu) + min{((2 alpha - 1) l2^2 + 6 l1) / (4 mu^2), 3
  l1 / (2 mu)}.
  """
  if variance == 0:
    return no_guarantee(max_order)
  alpha = orders(max_order)
  # Divided one factor at a time: mu^2 underflows for a tiny variance, and the
  # square of a large sensitivity overflows to infinity, the private side.
  with np.errstate(over='ignore'):
    ratio2 = np.float64(l2) / variance * l2
    ratio1 = np.float64(l1) / variance
    return alpha * ratio2 / 2 + np.minimum(
        ((2 * alpha - 1) * ratio2 + 6 * ratio1) / variance / 4, 1.5 * ratio1)


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
    l1, l2: Sensitivities in these norms, grid units.
    variance, local_variance: Of the sum of the shares and of one, grid units squared.
    clients, dimension: Number of shares, and of coordinates.

  Returns the minimum of the three bounds; infinite when a share's standard deviation is
  below half a grid unit, for which the theorem says nothing.
  """
  if variance == 0 or local_variance < 0.25:
    return no_guarantee(max_order)
  alpha = orders(max_order)
  tau = discrete_gaussian_sum_gap(local_variance, clients)
  a1, a2 = l1 / math.sqrt(variance), np.float64(l2 / math.sqrt(variance))
  with np.errstate(over='ignore'):
    return np.minimum.reduce((
        alpha * a2**2 / 2 + tau * dimension,
        alpha / 2 * (a2**2 + 2 * a1 * tau + tau**2 * dimension),
        alpha / 2 * (a2 + math.sqrt(dimension) * tau)**2))


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
def _log_binomials(max_order: int) -> np.ndarray:
  """log C(alpha, l) for alpha = 2..max_order (rows) and l = 0..max_order."""
  alpha = orders(max_order)[:, None]
  chosen = np.arange(max_order + 1, dtype=np.float64)
  inside = chosen <= alpha
  log_factorial = special.gammaln(chosen + 1)
  rest = np.where(inside, alpha - chosen, 0).astype(int)
  table = log_factorial[2:, None] - log_factorial - log_factorial[rest]
  return np.where(inside, table, -np.inf)


def _log_sum_rows(terms: np.ndarray, max_order: int) -> np.ndarray:
  """log sum_l C(alpha, l) e^terms[l - 2] over l >= 2, for alpha = 2..max_order.

  An infinite term makes every row that holds it infinite.
  """
  terms = np.concatenate([[-np.inf, -np.inf], terms])
  finite = np.isfinite(terms) | (terms == -np.inf)
  first_infinite = terms.size if finite.all() else int(np.argmin(finite))
  # Rows whose largest l is below the first infinite term.
  rows = min(max_order, first_infinite - 1) - 1
  result = np.full(max_order - 1, np.inf)
  if rows > 0:
    table = _log_binomials(max_order)[:rows, :rows + 2]
    exponents = table + terms[None, :rows + 2]
    peak = np.maximum(exponents.max(axis=1), -1e300)  # Not -inf - -inf.
    exponents -= peak[:, None]
    np.exp(exponents, out=exponents)
    with np.errstate(divide='ignore'):
      result[:rows] = peak + np.log(exponents.sum(axis=1))
  return result


def poisson(curve: np.ndarray, sampling_rate: float, *,
            generic: bool = False) -> np.ndarray:
  """Poisson sampling: the tight theorem for Renyi DP (arXiv 2210.00597).

  Each client participates independently with probability q; neighbours differ by
  zero-out; which clients participated, and how many, is hidden. The curve must hold
  in both directions, as it does for noise that is symmetric about 0.

  Args:
    curve: Renyi curve of one release from all the clients.
    sampling_rate: q in (0, 1].
    generic: Whether to use the generic bound (Zhu and Wang 2019, Theorem 5), in which
      the terms of l >= 3 are three times as large.

  Returns 1/(alpha-1) ln{(1-q)^(alpha-1) (1 + (alpha-1) q) + sum_{l=2}^alpha C(alpha, l)
  (1-q)^(alpha-l) q^l e^((l-1) eps(l))}.
  """
  if sampling_rate == 1:
    return curve
  max_order = curve.size + 1
  alpha = orders(max_order)
  log_keep = np.log1p(-sampling_rate)
  # log of odds^l (f e^((l-1) eps(l)) - 1) for l from 2 on; those of 0 and 1 vanish. The
  # sum is the excess of the moment over 1, so that a tiny one is not lost in the 1.
  exponents = (alpha - 1) * curve
  factors = np.full(curve.size, 3.0 if generic else 1.0)
  factors[:1] = 1.0
  with np.errstate(divide='ignore'):
    terms = alpha * (np.log(sampling_rate) - log_keep) + exponents + np.log(
        (factors - 1) - np.expm1(-exponents))
  log_excess = alpha * log_keep + _log_sum_rows(terms, max_order)
  return np.minimum(curve, np.logaddexp(0, log_excess) / (alpha - 1))


def mixed(low: np.ndarray, high: np.ndarray, weight: float) -> np.ndarray:
  """A release that is one of two at random; `weight` is the probability of `high`.

  It bounds Poisson sampling of a client whose participation shows (with probability q
  the release is seen, and otherwise nothing of the client), and a round in which
  others decide whether a client's participation shows.
  """
  return mean((low, high), (1 - weight, weight))


def mean(listed: Sequence[np.ndarray], weights: Sequence[float]) -> np.ndarray:
  """A release that is one of several at random, whatever a client's data are.

  By joint convexity the moments are at most the mean of those of the cases.

  Args:
    listed: Curves of the cases.
    weights: Their probabilities, in [0, 1].

  Returns 1/(alpha-1) ln sum_k w_k e^((alpha-1) curve_k).
  """
  listed, weights = zip(*(case for case in zip(listed, weights) if case[1] > 0))
  if len(listed) == 1:
    return listed[0]
  factor, weights = orders(listed[0].size + 1) - 1, np.array(weights)
  exponents = factor * np.stack(listed)
  # ln(1 + sum w (e^x - 1)): for a large x by logarithms, as e^x overflows.
  small = np.log1p(weights @ np.expm1(np.minimum(exponents, 30.0)))
  large = np.logaddexp.reduce(np.log(weights)[:, None] + exponents)
  return np.where(exponents.max(axis=0) < 30, small, large) / factor


def fixed_size(curve: np.ndarray, sampling_fraction: float) -> np.ndarray:
  """Sampling without replacement (arXiv 1808.00087, Theorem 9).

  Args:
    curve: Renyi curve of one release when one client's contribution is replaced by
      another, which doubles the sensitivities of zero-out.
    sampling_fraction: gamma = cohort / population in (0, 1].

  Returns 1/(alpha-1) ln{1 + gamma^2 C(alpha,2) min(4 (e^eps(2) - 1), 2 e^eps(2)) +
  sum_{j=3}^alpha 2 gamma^j C(alpha,j) e^((j-1) eps(j))}: for replace-one and for zero-out
  neighbours alike.
  """
  max_order = curve.size + 1
  alpha = orders(max_order)
  log_fraction = np.log(sampling_fraction)
  terms = np.log(2.0) + alpha * log_fraction + (alpha - 1) * curve
  with np.errstate(divide='ignore', over='ignore'):
    second = np.minimum(np.log(4.0) + np.log(np.expm1(curve[0])), np.log(2.0) + curve[0])
  terms[0] = 2 * log_fraction + second
  # The 1 is added last, so that a tiny sum is not lost in it.
  return np.minimum(curve, np.logaddexp(0, _log_sum_rows(terms, max_order)) / (alpha - 1))


def pure_poisson(epsilon: float, sampling_rate: float) -> float:
  """log(1 + q (e^epsilon - 1)): pure DP under Poisson or fixed-size sampling.

  arXiv 1807.01647, Theorems 8 and 9; infinite stays infinite.
  """
  if epsilon == np.inf:
    return np.inf
  if epsilon < 700:
    return float(np.log1p(sampling_rate * np.expm1(epsilon)))
  # q (e^eps - 1) + 1 <= q e^eps + 1 with q e^eps far above 1 or lost in it.
  return float(np.logaddexp(0.0, np.log(sampling_rate) + epsilon))
