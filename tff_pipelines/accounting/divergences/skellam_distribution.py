"""The symmetric Skellam distribution: log-probabilities accurate in the far tails.

Sk(mu) = Poisson(mu/2) - Poisson(mu/2) has P[k] = e^-mu I_|k|(mu). The usual
scaled Bessel function underflows in the tails and is NaN for large mu.
"""

import numpy as np
from scipy import special

from tff_pipelines.accounting.divergences import roots
from tff_pipelines.common import validate

# The asymptotic expansion is used from here on, in terms of sqrt(k^2 + mu^2); its
# first neglected term is then below 1e-15.
_EXPANSION_FROM = 60.0
_SERIES_TERMS = 160


def _corrections(count: int) -> list[np.ndarray]:
  """The polynomials u_0..u_count of the uniform expansion (DLMF 10.41.9).

  u_{j+1}(t) = t^2 (1 - t^2) u_j'(t) / 2 + (1/8) int_0^t (1 - 5 s^2) u_j(s) ds.

  Returns the coefficients of each u_j(t) / t^j as a polynomial in t^2.
  """
  poly = np.polynomial.Polynomial
  result = [poly([1.0])]
  for _ in range(count):
    last = result[-1]
    result.append(poly([0, 0, 0.5, 0, -0.5]) * last.deriv() +
                  (poly([0.125, 0, -0.625]) * last).integ())
  return [u.coef[j::2] for j, u in enumerate(result)]


_CORRECTIONS = _corrections(9)


def _expansion(k: np.ndarray, mu: float) -> np.ndarray:
  """Uniform asymptotic expansion of log(e^-mu I_k(mu)) (DLMF 10.41.3).

  With R = sqrt(k^2 + mu^2) and t = k / R, u_j(t) / k^j is a polynomial in t^2
  over R^j: no division by k, so it holds down to k = 0.
  """
  radius = np.hypot(k, mu)
  # R - mu without cancellation.
  rise = k * (k / (radius + mu))
  t2 = (k / radius)**2
  series = np.zeros_like(radius)
  for coefficients in reversed(_CORRECTIONS[1:]):
    series = (series + np.polynomial.polynomial.polyval(t2, coefficients)) / radius
  return (rise - k * np.arcsinh(k / mu) - 0.5 * np.log(2 * np.pi * radius) +
          np.log1p(series))


def _power_series(k: np.ndarray, mu: float) -> np.ndarray:
  """log(e^-mu I_k(mu)) from the power series; every term is positive."""
  quarter = mu * mu / 4
  term = np.ones_like(k)
  total = np.ones_like(k)
  for m in range(1, _SERIES_TERMS):
    term = term * (quarter / (m * (k + m)))
    total += term
  return k * np.log(mu / 2) - special.gammaln(k + 1) + np.log(total) - mu


def log_pmf(k: np.ndarray, variance: float) -> np.ndarray:
  """log P[Sk(variance) = k], float64, with a relative error of about 1e-13.

  Args:
    k: Integers of any size, as floats or ints, any shape.
    variance: mu > 0, finite.
  """
  validate.positive(variance=variance)
  k = np.abs(np.asarray(k, dtype=np.float64))
  result = np.empty_like(k)
  far = np.hypot(k, variance) >= _EXPANSION_FROM
  if far.any():
    result[far] = _expansion(k[far], float(variance))
  if not far.all():
    result[~far] = _power_series(k[~far], float(variance))
  return result


def _chernoff(k: float, variance: float) -> float:
  """R - mu - K asinh(K/mu), R = sqrt(K^2 + mu^2), at least log P[Sk(mu) >= K]."""
  return k * (k / (np.hypot(k, variance) + variance)) - k * np.arcsinh(k / variance)


def reach(variance: float) -> int:
  """A K with P[Sk(variance) = k] < e^-700 for every k > K."""
  validate.positive(variance=variance)
  low, high = 2.0**-20, 64.0
  while _chernoff(high, variance) > -700:
    low, high = high, 2 * high
  return int(np.ceil(roots.least_meeting(
      lambda k: _chernoff(k, variance) + 700, low, high)))


def tail(margin: int, variance: float) -> float:
  """P[Sk(variance) >= margin], an integer, summed from the far end; includes ties."""
  validate.integer(margin=margin)
  last = reach(variance)
  if margin > last:
    return float(np.exp(_chernoff(float(margin), variance)))
  if margin <= -last:
    return 1.0
  if margin <= 0:
    return 1.0 - tail(1 - margin, variance)
  k = np.arange(last, margin - 1, -1, dtype=np.float64)
  return float(np.exp(log_pmf(k, variance)).sum())
