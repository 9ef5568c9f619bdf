"""Skellam noise as a post-processing of slightly smaller Gaussian noise.

A certificate says: some random map K with K(x + k) = K(x) + k in distribution, for
integers k, takes N(0, mu - a) to within a total variation distance t of Sk(mu). So a sum
of integer vectors with Skellam noise is, up to t for each coordinate, a post-processing
of the same sum with Gaussian noise, and every bound for Gaussian noise holds for it.
Theorem, proof and what follows for composed rounds: docs/skellam_as_gaussian.md.

>>> found = find(1e6, 1e-30)
>>> found.nodes, round(found.removed), found.total_variation < 1e-30
(6, 1925, True)

Formal guarantees:

* `verify` tests both moment matrices in exact integer arithmetic, and rounds the
  distance up; what it returns holds for every variance of at least `variance`.
* A parameter for which the theorem fails is refused, never adjusted.
"""

import contextlib
import dataclasses
import fractions
import functools
import math

from scipy import special

from tff_pipelines.common import validate

# A condition of accounting by PLD, in words.
NEEDS = 'vectors of Skellam noise need a certified distance from a Gaussian'
# The theorem's least variance of the Gaussian noise.
_LEAST_GAUSSIAN_VARIANCE = 20
_MOST_NODES = 20
# Part of mu beyond which Renyi accounting of Skellam noise costs less.
_MOST_REMOVED = fractions.Fraction(1, 3)
# The least variance to remove over that of a large mu.
_SLACKS = (0.93, 0.95, 0.965, 0.98, 0.99, 1.003, 1.1)
# Bits of the rational that stands for a variance; rounding it down costs 2^-17.
_BITS = 16
# Above what the formula's floating point loses, relative to each logarithm.
_ROUND_OFF = 1e-9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Certificate:
  """Parameters with which the theorem was verified.

  Attributes:
    variance: mu, grid units squared. Noise of at least this variance is certified.
    removed: a; the Gaussian noise has variance mu - a.
    nodes: n, number of variances that K chooses among.
    total_variation: t of one coordinate of one release.
  """

  variance: fractions.Fraction
  removed: fractions.Fraction
  nodes: int
  total_variation: float

  @property
  def gaussian_variance(self) -> float:
    """mu - a, rounded down."""
    return float(self.variance - self.removed) * (1 - 2**-50)


@functools.lru_cache(maxsize=16)
def moments(variance: fractions.Fraction, count: int) -> tuple[fractions.Fraction, ...]:
  """c_0..c_(count-1): E[(V - mu)^j] if round(N(0, V)) were exactly Sk(mu).

  Coefficients of sum_j (-x)^j c_j / j! = exp(mu (cos sqrt(2x) - 1 + x)) rho(sqrt(2x)),
  rho(h) = (h/2) / sin(h/2).
  """
  def of_cosine(k: int) -> fractions.Fraction:
    """Coefficient of x^k in cos sqrt(2x)."""
    return fractions.Fraction((-2)**k, math.factorial(2 * k))

  def of_sine(k: int) -> fractions.Fraction:
    """Coefficient of x^k in 1 / rho(sqrt(2x))."""
    return fractions.Fraction((-1)**k, 2**k * math.factorial(2 * k + 1))

  exponential, rho = [fractions.Fraction(1)], [fractions.Fraction(1)]
  for j in range(1, count):
    exponential.append(variance / j * sum(
        k * of_cosine(k) * exponential[j - k] for k in range(2, j + 1)))
    rho.append(-sum(of_sine(k) * rho[j - k] for k in range(1, j + 1)))
  return tuple(
      (-1)**j * math.factorial(j) * sum(
          exponential[k] * rho[j - k] for k in range(j + 1)) for j in range(count))


def _is_positive_definite(hankel: list[fractions.Fraction]) -> bool:
  """Whether the matrix of entries hankel[i + j] is, by exact leading minors."""
  # Short integers: rounding them down has a norm of at most `size`, which is taken off.
  units, size = [math.floor(entry * 2**160) for entry in hankel], (len(hankel) + 1) // 2
  rows = [[units[i + j] - size * (i == j) for j in range(size)] for i in range(size)]
  last = 1
  for k in range(size):
    pivot = rows[k][k]  # A leading minor (Bareiss 1968), so divisions are exact.
    if pivot <= 0:
      return False
    for i in range(k + 1, size):
      for j in range(i, size):
        rows[i][j] = (rows[i][j] * pivot - rows[k][i] * rows[k][j]) // last
    last = pivot
  return True


def _series(h: float) -> float:
  """cosh h - 1 - h^2/2, without cancellation."""
  term = total = h**4 / 24
  k = 4
  while term > 1e-18 * total:
    term *= h * h / ((k + 1) * (k + 2))
    total += term
    k += 2
  return total


def _log_distance(variance: float, gaussian_variance: float, nodes: int,
                  log_moment: float) -> float:
  """log t of the theorem, rounded up; `log_moment` is log c_2n."""
  power = 2 * nodes + 0.5
  gamma = math.lgamma(power) - 0.5 * math.log(2)

  def log_supremum(r: float) -> float:
    h = math.sqrt(2 * r)
    parts = (
        variance * _series(h) + math.log(h / 2 / math.sin(h / 2))
        - 2 * nodes * math.log(r) + gamma - power * math.log(variance),
        log_moment - math.lgamma(2 * nodes + 1) + gamma
        - power * math.log(gaussian_variance),
        math.log(math.pi) - gaussian_variance * r,
        math.log(math.pi**2 / 2) - 2 * variance * math.sin(h / 2)**2,
        math.log(2.1 * math.pi) - gaussian_variance * math.pi**2 / 2)
    return float(special.logsumexp([
        part + _ROUND_OFF * (1 + abs(part)) for part in parts]))

  # Any r in (0, pi^2/2) is valid; near sqrt(6 n / mu) the first term is least.
  best = min(math.sqrt(6 * nodes / variance), 4.5)
  supremum = min(log_supremum(min(best * 2**(k / 8), 4.9)) for k in range(-8, 9))
  # Any W is valid; here the tail beyond it is at most a thousandth.
  w = 1
  while (tail := math.log(2) + w * w / (math.hypot(w, variance) + variance)
         - w * math.asinh(w / variance)) > supremum - 7:
    w += max(1, w // 16)
  tail += _ROUND_OFF * (1 + abs(tail) + w * w / variance)
  body = math.log((2 * w - 1) / math.pi) + supremum
  return float(special.logsumexp((body, tail))) + _ROUND_OFF * (1 + abs(body))


def verify(variance: fractions.Fraction, removed: fractions.Fraction,
           nodes: int) -> Certificate:
  """The certificate of these parameters; ValueError if the theorem does not hold."""
  validate.integer(nodes=nodes, low=1)
  validate.positive(removed=removed)
  if variance - removed < _LEAST_GAUSSIAN_VARIANCE:
    raise ValueError('variance - removed must be at least '
                     f'{_LEAST_GAUSSIAN_VARIANCE}, found {float(variance - removed):g}')
  moments_ = moments(variance, 2 * nodes + 1)
  # Congruent by powers of a unit of about sqrt(mu), which keeps the integers short.
  unit = fractions.Fraction(2)**round(math.log2(variance) / 2)
  scaled = [c / unit**j for j, c in enumerate(moments_)]
  if not _is_positive_definite(scaled):
    raise ValueError(f'nodes={nodes} are too many for variance={float(variance):g}')
  shift = removed / unit
  if not _is_positive_definite(
      [after + shift * c for c, after in zip(scaled[:-2], scaled[1:-1])]):
    raise ValueError(f'removed={float(removed):g} is too small for nodes={nodes}')
  return Certificate(
      variance=variance, removed=removed, nodes=nodes, total_variation=math.exp(
          _log_distance(float(variance), float(variance - removed), nodes,
                        # It need not be a float.
                        math.log(moments_[-1].numerator) -
                        math.log(moments_[-1].denominator))))


def _short(value: float, *, up: bool) -> fractions.Fraction:
  """The next rational of _BITS bits above or below."""
  mantissa, exponent = math.frexp(value)
  rounded = math.ceil if up else math.floor
  return fractions.Fraction(rounded(math.ldexp(mantissa, _BITS))) * fractions.Fraction(
      2)**(exponent - _BITS)


@functools.lru_cache(maxsize=4096)
def _with_nodes(mu: fractions.Fraction, nodes: int) -> Certificate | None:
  """The certificate that removes least with so many nodes; None if it is too much."""
  largest_root = float(special.roots_hermitenorm(nodes)[0][-1])
  for slack in _SLACKS:
    removed = _short(slack * math.sqrt(mu / 3) * largest_root, up=True)
    if mu - removed < _LEAST_GAUSSIAN_VARIANCE or removed > _MOST_REMOVED * mu:
      return None
    with contextlib.suppress(ValueError):
      return verify(mu, removed, nodes)
  return None


@functools.lru_cache(maxsize=4096)
def find(variance: float, total_variation: float) -> Certificate | None:
  """The certificate with the fewest nodes for a distance.

  Args:
    variance: Of the noise in a coordinate, grid units squared, > 0.
    total_variation: The largest t of a coordinate of a release, in (0, 1).

  Returns None if the variance is too small for the theorem, or for it to gain anything.
  """
  validate.positive(variance=variance)
  validate.open_unit_interval(total_variation=total_variation)
  mu = _short(variance, up=False)
  for nodes in range(2, _MOST_NODES + 1):
    if math.log(10) + nodes * math.log(nodes / (4 * float(mu))) > 7 + math.log(
        total_variation):
      continue  # The theorem's leading order is far above.
    if (certificate := _with_nodes(mu, nodes)) is None:
      return None  # More nodes ask for more.
    if certificate.total_variation <= total_variation:
      return certificate
  return None
