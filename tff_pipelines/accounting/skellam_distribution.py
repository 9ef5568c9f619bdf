"""The symmetric Skellam law: log-probabilities that hold in the far tails.

Sk(mu) = Poisson(mu/2) - Poisson(mu/2) has P[k] = e^-mu I_|k|(mu). The usual
scaled Bessel function underflows in the tails and is NaN for large mu.
"""

import numpy as np
from scipy import special

from aggregators import validate
from tff_pipelines.accounting import roots

# Where the asymptotic expansion takes over, in terms of sqrt(k^2 + mu^2); its
# first neglected term is then below 1e-15.
_EXPANSION_FROM = 60.0
_SERIES_TERMS = 160


def _debye_polynomials(count: int) -> list[np.polynomial.Polynomial]:
  """u_0..u_count of the uniform expansion (DLMF 10.41.9).

  u_{j+1}(t) = t^2 (1 - t^2) u_j'(t) / 2 + (1/8) int_0^t (1 - 5 s^2) u_j(s) ds.
  """
  poly = np.polynomial.Polynomial
  result = [poly([1.0])]
  for _ in range(count):
    last = result[-1]
    result.append(poly([0, 0, 0.5, 0, -0.5]) * last.deriv() +
                  (poly([0.125, 0, -0.625]) * last).integ())
  return result


def _reduced(poly: np.polynomial.Polynomial, power: int) -> np.ndarray:
  """Coefficients of u_j(t) / t^j as a polynomial in t^2."""
  return poly.coef[power::2]


_CORRECTIONS = [_reduced(p, j) for j, p in enumerate(_debye_polynomials(9))]


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
  for j in range(len(_CORRECTIONS) - 1, 0, -1):
    series = (series + np.polynomial.polynomial.polyval(t2, _CORRECTIONS[j])
              ) / radius
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
  """log P[Sk(variance) = k].

  Args:
    k: Integers of any size, as floats or ints, any shape.
    variance: mu > 0, finite.

  Returns:
    float64 of the shape of k, right to a relative 1e-13 or so of the value.
  """
  validate.positive(variance=variance)
  k = np.abs(np.asarray(k, dtype=np.float64))
  shape = k.shape
  k = k.ravel()
  result = np.empty_like(k)
  far = np.hypot(k, variance) >= _EXPANSION_FROM
  if far.any():
    result[far] = _expansion(k[far], float(variance))
  if not far.all():
    result[~far] = _power_series(k[~far], float(variance))
  return result.reshape(shape)


def reach(variance: float, log_probability: float = -700.0) -> int:
  """A K with P[Sk(variance) = k] < e^log_probability for every k > K."""
  validate.positive(variance=variance)
  # Chernoff: log P[Sk >= K] <= R - mu - K asinh(K/mu), R = sqrt(K^2 + mu^2).
  low, high = 2.0**-20, 64.0
  def exponent(k):
    return k * (k / (np.hypot(k, variance) + variance)) - k * np.arcsinh(
        k / variance)
  while exponent(high) > log_probability:
    low, high = high, 2 * high
  return int(np.ceil(roots.least_meeting(
      lambda k: exponent(k) - log_probability, low, high)))


def tail(margin: int, variance: float) -> float:
  """P[Sk(variance) >= margin], summed from the far end; ties count.

  Args:
    margin: An integer.
    variance: > 0.
  """
  validate.integer(margin=margin)
  last = reach(variance)
  if margin > last:
    # Beyond the reach only the Chernoff bound, an upper bound, is left.
    k = float(margin)
    return float(np.exp(k * (k / (np.hypot(k, variance) + variance)) -
                        k * np.arcsinh(k / variance)))
  if margin <= -last:
    return 1.0
  if margin <= 0:
    return 1.0 - tail(1 - margin, variance)
  k = np.arange(last, margin - 1, -1, dtype=np.float64)
  return float(np.exp(log_pmf(k, variance)).sum())
