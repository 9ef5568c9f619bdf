"""Dominating pairs: two distributions as far apart as those of neighbours can be.

A release with a known worst pair (P, Q) of output distributions is accounted by the
distribution of its privacy loss log(P/Q). Here the pairs are turned into atoms:
finitely many losses with their masses under P and under Q, which dominate the pair
(arXiv 2207.04380).
"""

import abc
import collections
import dataclasses
import math
from typing import dataclass_transform

import numpy as np
from scipy import special, stats

from tff_pipelines.accounting.divergences import counts, skellam_distribution
from tff_pipelines.common import validate

# Integer noise is listed value by value; beyond this many the list is refused.
MAX_VALUES = 8_000_000
# Tails are cut where a standard normal has a mass of 1e-300.
NORMAL_REACH = 37.0
# The probability of as many clients of one person in a round that is not listed.
_NEGLIGIBLE = 1e-60
# Pairs that are multiplied at most, and cells for a standard deviation of the loss.
_MOST_TOGETHER = 8
_MOST_TOGETHER_CELLS = 256
# Grid points for a loss up to which losses are counted at each, not sorted.
_DENSE = 8


class TooLarge(ValueError):
  """The pair has too many values to be listed; Renyi accounting still works."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Atoms:
  """A pair of distributions on finitely many outcomes, in one direction.

  Attributes:
    loss: float64 [n], log(p/q) of each outcome, finite.
    p: float64 [n], masses under the first distribution.
    q: float64 [n], masses under the second distribution.
    p_only: Mass under the first distribution where the second has none.
    q_only: Mass under the second distribution where the first has none.
  """

  loss: np.ndarray
  p: np.ndarray
  q: np.ndarray
  p_only: float = 0.0
  q_only: float = 0.0

  def variance(self) -> float:
    """Variance of a finite loss under the first distribution; 0 if there is none."""
    total = self.p.sum()
    if not total > 0:
      return 0.0
    mean = self.p @ self.loss / total
    return float(self.p @ (self.loss - mean)**2 / total)


def _with_losses(loss: np.ndarray, p: np.ndarray, p_only: float) -> Atoms:
  """The atoms with these losses and masses > 0 under the first distribution."""
  q = np.exp(np.log(p) - loss)
  return Atoms(loss=loss, p=p, q=q, p_only=p_only, q_only=max(0.0, 1.0 - q.sum()))


@dataclass_transform(kw_only_default=True)
class Pair(abc.ABC):
  """Two distributions, P with the client and Q without.

  Every subclass is a frozen, keyword-only dataclass, whose fields are checked.
  """

  def __init_subclass__(cls):
    validate.check_fields_first(cls)
    dataclasses.dataclass(frozen=True, kw_only=True)(cls)

  def __post_init__(self):
    validate.fields(self)

  @abc.abstractmethod
  def atoms(self, cells: int) -> tuple[Atoms, ...]:
    """Dominating atoms of P against Q and, unless they are the same, of Q against P.

    Args:
      cells: Cells for a standard deviation of continuous noise.

    Raises TooLarge if there would be more than `MAX_VALUES`.
    """

  def gaussian_cases(self) -> counts.Cases | None:
    """The Gaussian pairs that it is a choice among; None, always right, if it is not."""
    return None

  def _check_size(self, count: float) -> None:
    if count > MAX_VALUES:
      raise TooLarge(f'{self} has too many values for a privacy loss distribution')


# A pair and how often it is composed: a number, or a random one that is public.
Factor = tuple[Pair, int | counts.Counts]


class Gaussian(Pair):
  """N(1, z^2) against N(0, z^2), with z = `noise_multiplier`."""

  noise_multiplier: validate.Positive

  def gaussian_cases(self) -> counts.Cases:
    return counts.Cases((self.noise_multiplier**-2,), (1.0,), 0.0)

  def atoms(self, cells: int) -> tuple[Atoms, ...]:
    # The loss is N(m, 2m) under P and N(-m, 2m) under Q.
    # Cut where there are too many values anyway: larger ones may overflow.
    stddev = min(1.0 / self.noise_multiplier, float(MAX_VALUES))
    mean = stddev**2 / 2
    reach = mean + NORMAL_REACH * stddev
    count = 2 * int(np.ceil(reach / stddev * cells)) + 1
    self._check_size(count)
    nodes = np.linspace(-reach, reach, count)
    p = normal_masses((nodes - mean) / stddev)
    q = normal_masses((nodes + mean) / stddev)
    left_p = special.ndtr((nodes[0] - mean) / stddev)
    right_p = special.ndtr((mean - nodes[-1]) / stddev)
    return (at_nodes(nodes, p, q, left_p, right_p),)


def normal_masses(edges: np.ndarray) -> np.ndarray:
  """Standard normal mass of each cell, accurate in both tails."""
  return np.where(edges[:-1] + edges[1:] < 0, np.diff(special.ndtr(edges)),
                  -np.diff(special.ndtr(-edges)))


def at_nodes(nodes: np.ndarray, p: np.ndarray, q: np.ndarray, left_p: float,
              right_p: float) -> Atoms:
  """Moves each cell's mass to its two ends, keeping both its p and its q.

  The curve delta(epsilon) of the atoms connects that of the cells at the nodes, their
  ascending losses, by chords. It is convex in e^epsilon, so they dominate. `left_p` and
  `right_p` are the masses beyond the nodes under the first distribution.
  """
  width = np.diff(nodes)
  with np.errstate(over='ignore', invalid='ignore', divide='ignore'):
    upper = (p - q * np.exp(nodes[:-1])) / -np.expm1(-width)
  # Where e^loss overflows, or both ends are one, and for the last digits, to the upper.
  upper = np.where(np.isfinite(upper), upper, p)
  upper = np.clip(upper + 1e-10 * p, 0.0, p)
  masses = np.zeros(nodes.size)
  masses[1:] += upper
  masses[:-1] += p - upper
  masses[0] += left_p
  keep = masses > 0
  return _with_losses(nodes[keep], masses[keep], right_p)


class Skellam(Pair):
  """shift + Sk(variance) against Sk(variance) (arXiv 2110.04995, section 3.1)."""

  shift: validate.Count
  variance: validate.Positive

  def atoms(self, cells: int) -> tuple[Atoms, ...]:
    # Listed value by value, not by cells: exact both ways.
    reach = skellam_distribution.reach(self.variance)
    self._check_size(2 * reach + self.shift)
    k = np.arange(-reach, reach + 1, dtype=np.float64)
    log_p = skellam_distribution.log_pmf(k, self.variance)
    log_q = skellam_distribution.log_pmf(k + self.shift, self.variance)
    # The mass beyond the reach, below 1e-300 a value, goes to infinite loss.
    p, q = np.exp(log_p), np.exp(log_q)
    return (Atoms(loss=log_p - log_q, p=p, q=q, p_only=2e-300 * reach,
                  q_only=max(0.0, 1.0 - q.sum())),)


class Together(Pair):
  """Independent pairs, all of them seen: their losses add.

  Where each dominates a release, the product dominates all of them from one sample of
  the clients, so it may be subsampled (arXiv 2106.08567, Theorem 10 and 11). Each has
  one direction only, for symmetric noise.
  """

  pairs: tuple[Pair, ...]

  def atoms(self, cells: int) -> tuple[Atoms, ...]:
    listed = [atoms for (atoms,) in (pair.atoms(cells) for pair in self.pairs)]
    # Direct convolution is exact in the tails; a coarse grid keeps it short.
    step = max(atoms.variance() for atoms in listed)**0.5 / min(
        cells, _MOST_TOGETHER_CELLS)
    first, p = 0, np.ones(1)
    for atoms in listed:
      index, mass = on_grid(atoms, step)
      first += index.min()
      p = np.convolve(p, np.bincount(index - index.min(), mass))
    index = np.flatnonzero(p)
    return (_with_losses(step * (first + index), p[index],
                         min(1.0, sum(atoms.p_only for atoms in listed))),)


def on_grid(atoms: Atoms, step: float) -> tuple[np.ndarray, np.ndarray]:
  """Moves each loss to the two multiples of a step around it, keeping p and q.

  Returns the ascending indices of the multiples, int64, and their masses under p, > 0.
  """
  lower = np.floor(atoms.loss / step)
  offset = atoms.loss - lower * step
  up = np.clip(np.expm1(-offset) / np.expm1(-step), 0.0, 1.0) * atoms.p
  index = np.concatenate([lower, lower + 1]).astype(np.int64)
  mass, first = np.concatenate([atoms.p - up, up]), index.min(initial=0)
  if index.max(initial=0) - first > _DENSE * index.size:
    index, places = np.unique(index, return_inverse=True)
    mass = np.bincount(places, mass)
  else:
    mass = np.bincount(index - first, mass)
    index = np.arange(first, first + mass.size)
  positive = mass > 0
  return index[positive], mass[positive]


def within(atoms: Atoms, mass: float) -> Atoms:
  """The same with ascending losses, without tails of at most this mass each.

  The upper tail becomes an infinite loss, the lower one the lowest loss that remains:
  losses only grow, which is safe, and rare ones do not dictate the grid.
  """
  order = np.argsort(atoms.loss, kind='stable')
  order = order[atoms.p[order] > 0]
  loss, p = atoms.loss[order], atoms.p[order]
  if not p.size:
    return _with_losses(loss, p, atoms.p_only)
  below, above = np.cumsum(p), np.cumsum(p[::-1])
  low = min(int(np.searchsorted(below, mass, 'right')), p.size - 1)
  cut = min(int(np.searchsorted(above, mass, 'right')), p.size - 1 - low)
  loss, p = loss[low:p.size - cut], p[low:p.size - cut]
  p[0] = below[low]
  return _with_losses(loss, p, atoms.p_only + (float(above[cut - 1]) if cut else 0.0))


class RandomizedResponse(Pair):
  """A coin that tells the truth with odds e^epsilon, or no answer at all.

  It dominates every epsilon-DP mechanism (arXiv 1311.0776) whose outputs for any two
  inputs are within total variation `answered` tanh(epsilon / 2) (arXiv 2311.01553;
  proof: docs/proofs.md).
  """

  epsilon: validate.Positive
  answered: validate.Fraction = 1.0

  def atoms(self, cells: int) -> tuple[Atoms, ...]:
    loss = self.epsilon * np.array([-1.0, 0.0, 1.0])
    p = self.answered * special.expit(loss)
    p[1] = 1.0 - self.answered
    return (Atoms(loss=loss, p=p, q=p[::-1]),)


class Leak(Pair):
  """Everything with some probability, nothing otherwise: (0, delta)-DP."""

  probability: validate.Fraction

  def gaussian_cases(self) -> counts.Cases:
    return counts.Cases((), (), self.probability)

  def atoms(self, cells: int) -> tuple[Atoms, ...]:
    kept = np.array([1.0 - self.probability])
    return (Atoms(loss=np.zeros(1), p=kept, q=kept, p_only=self.probability,
                  q_only=self.probability),)


class Nothing(Pair):
  """A release that is the same with the client and without."""

  def atoms(self, cells: int) -> tuple[Atoms, ...]:
    return (Atoms(loss=np.zeros(1), p=np.ones(1), q=np.ones(1)),)


class Poisson(Pair):
  """A pair, with one direction only, whose client participates with a probability.

  P with probability q and Q otherwise, against Q: amplification keeps domination
  (arXiv 2106.08567, Theorem 11), so atoms may be mixed one by one.
  """

  pair: Pair
  sampling_rate: validate.OpenUnitInterval

  def atoms(self, cells: int) -> tuple[Atoms, ...]:
    (base,) = self.pair.atoms(cells)
    rate = self.sampling_rate
    # log(1 - q + q e^loss), from the side that does not overflow.
    mixed = np.where(
        base.loss < 1, np.log1p(rate * np.expm1(np.minimum(base.loss, 1.0))),
        base.loss + np.log(rate + (1 - rate) * np.exp(-np.maximum(base.loss, 1.0))))
    loss = np.append(mixed, np.log1p(-rate))
    blend = np.append(rate * base.p + (1 - rate) * base.q, (1 - rate) * base.q_only)
    plain = np.append(base.q, base.q_only)
    return (Atoms(loss=loss, p=blend, q=plain, p_only=rate * base.p_only),
            Atoms(loss=-loss, p=plain, q=blend, q_only=rate * base.p_only))


class PoissonGroup(Pair):
  """Several clients of one person, each participating with a probability.

  With k ~ Bin(g, q) of them, N(k, z^2) against N(0, z^2), for g = `clients`, q =
  `sampling_rate` and z = `noise_multiplier` of one of them: the mixture dominates a
  Gaussian sum with Poisson sampling whose neighbours differ in g clients (arXiv
  2401.10294; proof: docs/participation.md).
  """

  noise_multiplier: validate.Positive
  sampling_rate: validate.OpenUnitInterval
  clients: validate.Count

  def atoms(self, cells: int) -> tuple[Atoms, ...]:
    number = stats.binom(self.clients, self.sampling_rate)
    # More of them at once, less often than any delta, are an infinite loss.
    most = min(self.clients, int(number.isf(_NEGLIGIBLE)) + 1)
    shift = min(1.0 / self.noise_multiplier, float(MAX_VALUES))
    size = 2 * NORMAL_REACH + most * shift
    self._check_size(size * cells)
    # In standard deviations of the noise.
    y = np.linspace(-NORMAL_REACH, size - NORMAL_REACH, int(np.ceil(size * cells)) + 1)
    loss, p, left, right = np.full(y.size, -np.inf), 0.0, 0.0, float(number.sf(most))
    for k in range(most + 1):
      weight, mean = number.pmf(k), k * shift
      loss = np.logaddexp(loss, number.logpmf(k) + mean * y - mean**2 / 2)
      p = p + weight * normal_masses(y - mean)
      left += weight * special.ndtr(y[0] - mean)
      right += weight * special.ndtr(mean - y[-1])
    q = normal_masses(y)
    return (at_nodes(loss, p, q, left, right),
            at_nodes(-loss[::-1], q[::-1], p[::-1], special.ndtr(-y[-1]),
                      special.ndtr(y[0])))


class Mixed(Pair):
  """One of several pairs at random, and it is seen which one.

  It dominates a release of which that is not seen, by joint convexity. `weights` are
  their probabilities. Where it is composed and the choices are not independent, but of
  a smaller convex order than independent ones, it is `convex`: see `gaussian_mixtures`.
  """

  pairs: tuple[Pair, ...]
  weights: tuple[float, ...]
  convex: bool = False

  def gaussian_cases(self) -> counts.Cases | None:
    found = [pair.gaussian_cases() for pair in self.pairs]
    if any(cases is None or not cases.ratios and cases.leak < 1 for cases in found):
      return None
    listed = list(zip(self.weights, found))
    return counts.Cases(
        tuple(ratio for cases in found for ratio in cases.ratios),
        tuple(weight * inner for weight, cases in listed for inner in cases.weights),
        math.fsum(weight * cases.leak for weight, cases in listed),
        self.convex or any(cases.convex for cases in found))

  def atoms(self, cells: int) -> tuple[Atoms, ...]:
    if self.convex:
      raise TooLarge('choices that depend on each other have no losses to be listed')
    def mixed(listed: tuple[Atoms, ...]) -> Atoms:
      p, q, p_only, q_only = (
          [weight * getattr(atoms, name) for weight, atoms in zip(self.weights, listed)]
          for name in ('p', 'q', 'p_only', 'q_only'))
      return Atoms(
          loss=np.concatenate([atoms.loss for atoms in listed]), p=np.concatenate(p),
          q=np.concatenate(q), p_only=sum(p_only), q_only=sum(q_only))
    listed = [pair.atoms(cells) for pair in self.pairs]
    return tuple(mixed([ways[min(way, len(ways) - 1)] for ways in listed])
                 for way in range(max(map(len, listed))))


class WithoutReplacement(Pair):
  """A pair of replaced clients in a cohort of fixed size (arXiv 2106.08567).

  With (P, Q) dominating the release between cohorts that differ by one replaced client,
  in one direction only, and g = `fraction` of the population in a cohort, the profile
  is at most that of ((1 - g) Q + g P, Q) for losses above 0. Replacing is symmetric, so
  below 0 it is that of the reversed pair. Proof: docs/fixed_size.md.
  """

  pair: Pair
  fraction: validate.OpenUnitInterval

  def atoms(self, cells: int) -> tuple[Atoms, ...]:
    (base,) = self.pair.atoms(cells)
    above = base.loss > 0
    p, q, loss = base.p[above], base.q[above], base.loss[above]
    # log(1 - g + g e^loss) without overflow.
    mixed = loss + np.log(self.fraction + (1 - self.fraction) * np.exp(-loss))
    p = self.fraction * p + (1 - self.fraction) * q
    atoms = Atoms(loss=mixed, p=p, q=q, p_only=self.fraction * base.p_only)
    return (_both_sides(atoms, atoms),)


def _both_sides(first: Atoms, second: Atoms) -> Atoms:
  """Joins atoms of positive loss of P against Q with those of Q against P."""
  # Outcomes that neither has are the same under both.
  rest = max(0.0, 1.0 - first.p.sum() - first.p_only - second.q.sum())
  return Atoms(loss=np.concatenate([-second.loss[::-1], [0.0], first.loss]),
               p=np.concatenate([second.q[::-1], [rest], first.p]),
               q=np.concatenate([second.p[::-1], [rest], first.q]),
               p_only=first.p_only, q_only=second.p_only)


class ZeroedWithoutReplacement(Pair):
  """A zeroed client in a cohort of fixed size, with Gaussian noise.

  In the rounds without the client another one is in its place, whose contribution may
  point the other way. In units of the sensitivity, with g = `fraction` of the
  population in a cohort, P against Q has for losses above 0 the profile of
  ((1 - g) N(-1) + g N(1), (1 - g) N(-1) + g N(0)), and Q against P that of
  ((1 - g) N(1) + g N(0), N(1)). Proof: docs/fixed_size.md.
  """

  noise_multiplier: validate.Positive
  fraction: validate.OpenUnitInterval

  def atoms(self, cells: int) -> tuple[Atoms, ...]:
    g, shift = self.fraction, min(1.0 / self.noise_multiplier, float(MAX_VALUES))
    # In standard deviations from halfway between N(0) and N(shift).
    count = int(np.ceil((NORMAL_REACH + 2 * shift) * cells)) + 1
    self._check_size(count)
    t = np.linspace(0.0, NORMAL_REACH + 2 * shift, count)
    log_g, log_rest = np.log(g), np.log1p(-g)
    # With y = shift / 2 + t: densities of N(shift) and N(0) over that of N(-shift).
    ahead = log_g + 2 * shift * t + shift**2
    at_zero = log_g + shift * t + shift**2
    loss = np.logaddexp(log_rest, ahead) - np.logaddexp(log_rest, at_zero)
    other = (1 - g) * normal_masses(t + 1.5 * shift)
    p = other + g * normal_masses(t - 0.5 * shift)
    q = other + g * normal_masses(t + 0.5 * shift)
    end = t[-1]
    above = at_nodes(loss, p, q, 0.0, (1 - g) * special.ndtr(-end - 1.5 * shift) +
                      g * special.ndtr(0.5 * shift - end))
    # With y = shift / 2 - t: the density of N(0) over that of N(shift).
    loss = np.logaddexp(log_rest, log_g + shift * t)
    q = normal_masses(t + 0.5 * shift)
    p = (1 - g) * q + g * normal_masses(t - 0.5 * shift)
    below = at_nodes(loss, p, q, 0.0, (1 - g) * special.ndtr(-end - 0.5 * shift) +
                      g * special.ndtr(0.5 * shift - end))
    return _both_sides(above, below), _both_sides(below, above)


def mixed(first: Pair, second: Pair, weight: float) -> Pair:
  """`second` with probability `weight`, in [0, 1], and else `first`; see `Mixed`."""
  if weight in (0, 1):
    return second if weight else first
  return Mixed(pairs=(first, second), weights=(1.0 - weight, weight))


def together(factors: tuple[Factor, ...]) -> Pair | None:
  """One pair for several that are seen together; None if they are too many.

  If one of them is a `Leak`, the result is one: amplification must not be claimed.
  """
  if any(isinstance(count, counts.Counts) for _, count in factors):
    return None
  listed = tuple(pair for pair, count in simplified(factors)
                 for _ in range(min(count, _MOST_TOGETHER + 1)))
  for pair in listed:
    if len(listed) == 1 or isinstance(pair, Leak):
      return pair
  # Pairs of sampled releases have two directions.
  if len(listed) > _MOST_TOGETHER or any(isinstance(pair, Poisson) for pair in listed):
    return None
  return Together(pairs=listed)


def simplified(factors: tuple[Factor, ...]) -> tuple[Factor, ...]:
  """The same product with equal pairs counted together and Gaussians merged, exactly."""
  numbers, random = collections.Counter(), []
  ratio = 0.0  # The sum of the squared signal-to-noise ratios is all that matters.
  for pair, count in factors:
    if isinstance(count, counts.Counts):
      random.append((pair, count))
    elif isinstance(pair, Gaussian):
      ratio += count / pair.noise_multiplier**2
    else:
      numbers[pair] += count
  if ratio > 0:
    numbers[Gaussian(noise_multiplier=ratio**-0.5)] = 1
  return (*numbers.items(), *random)
