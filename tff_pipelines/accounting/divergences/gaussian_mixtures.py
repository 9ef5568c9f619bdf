"""Compositions of Gaussian pairs by public coins, in closed form.

Gaussian pairs N(1, z^2) against N(0, z^2) compose to one, whose squared
signal-to-noise ratio s is the sum of their 1/z^2. Where public coins, which are
independent of the data, decide which pairs are composed, and how often, delta is the
mean of that of the sums (docs/participation.md):

    delta(epsilon) = E[delta_G(epsilon, s)],
    delta_G(epsilon, s) = Phi(m/2 - epsilon/m) - e^epsilon Phi(-m/2 - epsilon/m),
    m = sqrt(s)

(arXiv 1805.06530, Theorem 5 for the Gaussian). Nothing is put on a grid of losses.
"""

from collections.abc import Sequence
import dataclasses
import math

import numpy as np
from scipy import optimize, special

from tff_pipelines.accounting.divergences import counts, pairs
from tff_pipelines.common import validate

# Most values of a sum that are listed.
_MOST_VALUES = 4096
# Cells for the smallest value where values are no multiples of one.
_CELLS = 32
# Probabilities that are left out, and count as infinite loss or as the next value.
_NEGLIGIBLE = 1e-40
# Above what a power of a distribution loses to round-off, relative.
_EXCESS = 1 + 1e-9
_MULTIPLE = 1e-9


@dataclasses.dataclass(frozen=True)
class Mixture:
  """A distribution of the squared signal-to-noise ratio of a Gaussian pair.

  Attributes:
    ratios: float64 [n], s >= 0.
    weights: float64 [n], upper bounds of their probabilities.
    leak: Probability of infinite loss, independently of the ratio.
    lost: Probability of infinite loss that the weights leave out.
    convex: Whether ratios are known only up to an increasing convex order: delta_G
      then is replaced by a convex majorant.
  """

  ratios: np.ndarray
  weights: np.ndarray
  leak: float = 0.0
  lost: float = 0.0
  convex: bool = False

  def delta(self, epsilon: float) -> float:
    """An upper bound of delta at epsilon >= 0."""
    each = _convex_delta if self.convex else _delta
    positive = (self.ratios > 0) & (self.weights > 0)
    weights = self.weights[positive]
    if not weights.size:
      return min(1.0, self.leak + self.lost * (1 - self.leak))
    # Nor more than the probability that there is anything to see.
    found = float(min(weights @ each(epsilon, self.ratios[positive]), weights.sum()))
    return min(1.0, self.leak + (self.lost + found) * (1 - self.leak))

  def epsilon(self, delta: float) -> float:
    """The smallest epsilon >= 0 for delta, rounded up by at most 1e-9 of it."""
    if self.delta(0.0) <= delta:
      return 0.0
    if self.leak + self.lost * (1 - self.leak) >= delta:
      return math.inf

    def excess(epsilon: float) -> float:
      """By how much the logarithm of delta is too large."""
      return math.log(max(self.delta(epsilon), 1e-320) / delta)

    low, high = 0.0, 1.0
    while excess(high) > 0:
      low, high = high, 2 * high
      if high > 1e12:
        return math.inf
    found = optimize.brentq(excess, low, high, xtol=1e-12 * high, rtol=1e-11)
    more = 1e-10
    while self.delta(found) > delta:
      found, more = found * (1 + more), 2 * more
    return found


def _delta(epsilon: float, ratios: np.ndarray) -> np.ndarray:
  """delta_G for each ratio, rounded up."""
  m = np.sqrt(ratios)
  near, far = m / 2 - epsilon / m, -m / 2 - epsilon / m
  log_near = special.log_ndtr(near)
  # By the round-off of the arguments and of both logarithms.
  error = 1e-14 * (1 + far * far)
  log_far = epsilon + special.log_ndtr(far)
  return np.exp(log_near) * np.minimum(
      1.0, error - np.expm1(np.minimum(log_far - log_near, 0.0)))


def _convex_delta(epsilon: float, ratios: np.ndarray) -> np.ndarray:
  """A function of ratios > 0, convex and increasing on them, that is at least delta_G.

  d delta_G / ds = phi(epsilon/m - m/2) / (2 m) rises while s <= 2 sqrt(1 + epsilon^2)
  - 2 and falls afterwards: there, or at the smallest ratio, the tangent is above.
  """
  # Not as a difference, which is 0 where epsilon is small.
  bend = max(2 * epsilon**2 / (math.hypot(1.0, epsilon) + 1), float(ratios.min()))
  m = math.sqrt(bend)
  slope = math.exp(-(epsilon / m - m / 2)**2 / 2) / math.sqrt(2 * math.pi) / (2 * m)
  return _delta(epsilon, np.minimum(ratios, bend)) + slope * (1 + 1e-9) * np.maximum(
      ratios - bend, 0.0)


def of(factors: Sequence[pairs.Factor]) -> Mixture | None:
  """The mixture that composed pairs are, or None if another pair is among them."""
  total, leaks, lost, convex = (np.zeros(1), np.ones(1)), [], 0.0, False
  for pair, count in factors:
    count = count if isinstance(count, counts.Counts) else counts.Counts(first=count)
    cases, part = pair.gaussian_cases(), None
    if cases is None:
      return None
    if not cases.ratios:
      leaks.append(count.any_of(cases.leak))
    elif len(cases.ratios) == 1 and not cases.leak:
      part = (count.numbers * cases.ratios[0], np.array(count.weights))
    else:
      lost += count.any_of(cases.leak)
      *part, more, rough = _compound(
          np.array(cases.ratios), np.array(cases.weights), count)
      lost += more
      convex = convex or rough or cases.convex
    lost += count.missing
    if part is not None:
      total = _sum(total, part)
  leaks = [leak for leak in leaks if leak]
  # One alone is not a rounding away from itself.
  leak = sum(leaks) if len(leaks) < 2 else -math.expm1(sum(
      math.log1p(-min(leak, 1 - 1e-16)) for leak in leaks))
  return Mixture(*total, leak=min(1.0, leak), lost=min(1.0, lost), convex=convex)


def _sum(first: Sequence[np.ndarray], second: Sequence[np.ndarray]
         ) -> tuple[np.ndarray, np.ndarray]:
  """The distribution of the sum of two independent values."""
  values = np.add.outer(first[0], second[0]).ravel()
  weights = np.multiply.outer(first[1], second[1]).ravel()
  if values.size <= _MOST_VALUES:
    return values, weights
  low, high = values.min(), values.max()
  cell = np.ceil((values - low) / (high - low) * (_MOST_VALUES - 1)).astype(int)
  weights = np.bincount(cell, weights)
  step = (high - low) / (_MOST_VALUES - 1)
  return (low + step * np.arange(weights.size)) * (1 + 1e-12), weights


def _compound(values: np.ndarray, weights: np.ndarray, count: counts.Counts
              ) -> tuple[np.ndarray, np.ndarray, float, bool]:
  """The distribution of the sum of a random number of independent values > 0.

  Returns values and weights of the sum; probability that is left out of them; whether
  values were moved to a grid, each to the two points around it so that its mean stays:
  that only raises the mean of a convex function.
  """
  unit = float(values.min())
  multiples = values / unit
  rough = bool((np.abs(multiples - np.round(multiples)) > _MULTIPLE).any()) or (
      multiples.max() > _MOST_VALUES)
  if rough:
    unit = max(unit / _CELLS, float(values.max()) / _MOST_VALUES)
    lower = np.floor(values / unit)
    above = np.clip(values / unit - lower, 0.0, 1.0)
    base = np.bincount(np.concatenate([lower, lower + 1]).astype(int),
                       np.concatenate([weights * (1 - above), weights * above]))
  else:
    base = np.bincount(np.round(multiples).astype(int), weights)
  unit *= 1 + _MULTIPLE
  power = _Sum.of(base).times(count.first)
  step = _Sum.of(base)
  parts, left = [], 0.0
  for weight in count.weights:
    if weight > _NEGLIGIBLE:
      parts.append((weight, power))
      left += weight * power.lost
    else:
      left += weight
    power = power.plus(step)
  stride = max(part.stride for _, part in parts)
  values, weights = zip(*(part.listed(stride) for _, part in parts))
  first = min(int(one[0]) for one in values)
  total = np.zeros(max(int(one[-1]) for one in values) - first + 1)
  for (weight, _), one, masses in zip(parts, values, weights):
    total[int(one[0]) - first:int(one[-1]) - first + 1] += weight * masses
  found = unit * stride * (first + np.arange(total.size))
  return found, total * _EXCESS, left, rough


@dataclasses.dataclass(frozen=True)
class _Sum:
  """Masses at stride * (first, first + 1, ...), and the mass that is left out."""

  first: int
  masses: np.ndarray
  stride: int = 1
  lost: float = 0.0

  @classmethod
  def of(cls, masses: np.ndarray) -> '_Sum':
    first = int(np.flatnonzero(masses)[0])
    return cls(first, masses[first:])

  def listed(self, stride: int) -> tuple[np.ndarray, np.ndarray]:
    """Ascending multiples of the stride, rounded up, and their masses."""
    index = -(-(self.first + np.arange(self.masses.size)) * self.stride // stride)
    masses = np.bincount(index - index[0], self.masses)
    return np.arange(index[0], index[0] + masses.size), masses

  def plus(self, other: '_Sum') -> '_Sum':
    """The distribution of the sum of independent ones."""
    stride = max(self.stride, other.stride)
    (first, *_), mine = self.listed(stride)
    (second, *_), others = other.listed(stride)
    masses = np.convolve(mine, others)
    lost = min(1.0, self.lost + other.lost)
    kept = np.flatnonzero(masses > _NEGLIGIBLE)
    lost += float(masses[kept[-1] + 1:].sum())
    # Smaller ones cost no more than the first that is kept.
    below = float(masses[:kept[0]].sum())
    masses = masses[kept[0]:kept[-1] + 1]
    masses[0] += below
    result = _Sum(int(first + second + kept[0]), masses, stride, lost)
    while result.masses.size > _MOST_VALUES:
      (first, *_), masses = result.listed(2 * result.stride)
      result = _Sum(int(first), masses, 2 * result.stride, lost)
    return result

  def times(self, count: int) -> '_Sum':
    """The distribution of the sum of `count` >= 0 independent ones."""
    result, power = _Sum(0, np.ones(1)), self
    while count:
      if count % 2:
        result = result.plus(power)
      count //= 2
      if count:
        power = power.plus(power)
    return result


class PoissonReplaced(pairs.Pair):
  """A sum of Poisson-sampled records with Gaussian noise, in which one is replaced.

  With q = `sampling_rate`, z = `noise_multiplier` of a record and noise of z, it is
  (1 - q) N(0) + q N(1) against (1 - q) N(0) + q N(-1): opposite records are the worst.
  The pair is its own reverse. Proof: docs/fixed_size.md.
  """

  noise_multiplier: validate.Positive
  sampling_rate: validate.OpenUnitInterval

  def atoms(self, cells: int) -> tuple[pairs.Atoms, ...]:
    q = self.sampling_rate
    shift = min(1.0 / self.noise_multiplier, float(pairs.MAX_VALUES))
    reach = pairs.NORMAL_REACH + 2 * shift
    count = 2 * int(np.ceil(reach * cells)) + 1
    self._check_size(count)
    # In standard deviations of the noise; densities are over that of N(0).
    y, sides = np.linspace(-reach, reach, count), (shift, -shift)
    ahead, behind = (np.logaddexp(
        np.log1p(-q), np.log(q) + mean * y - mean**2 / 2) for mean in sides)
    p, other = ((1 - q) * pairs.normal_masses(y) + q * pairs.normal_masses(y - mean)
                for mean in sides)
    # Beyond either end is less than beyond the reach of one Gaussian.
    tail = special.ndtr(-pairs.NORMAL_REACH)
    return (pairs.at_nodes(ahead - behind, p, other, tail, tail),)
