"""Lower bounds of epsilon by concrete attacks, for the check of the accountant.

An attack is a test between two concrete inputs; its delta at an epsilon is at most the
true one, whatever test it is. Nothing here is from the accountant: closed forms for
Gaussian noise, exact distribution functions for Skellam noise, and for cohorts that
stay hidden a statistic of all rounds, the sum of the likelihood ratios' logarithms on a
grid, whose two distributions are computed by FFT.

Sizes are in contributions of one client. A law is a pair of arrays: values, and their
probabilities, which may sum to less than 1: what is left out is never attacked.
"""

from collections.abc import Callable, Iterable, Sequence
import dataclasses
import functools
import math
from typing import Any

import numpy as np
from scipy import optimize, special, stats

# Variances from which Skellam noise on an integer is taken to be Gaussian, with a
# shift that is smaller by what its tails are heavier.
LARGE_VARIANCE = 1e4
# Variances of an integer up to which outputs are attacked one by one.
_SMALL_VARIANCE = 5.0
_CELLS = 3000  # Of one release with Gaussian noise.
_GRID = 2**14  # Of the sum of all rounds.
_MOST_ROWS = 1200  # Of numbers of rounds that are mixed.
# Fraction of delta that tails of the grid may have.
_TAIL = 1e-4

Law = tuple[np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Noise:
  """Noise of one release, alongside the contribution of one client.

  Attributes:
    shift: Contribution of one client, an integer for Skellam noise.
    variance: Variance of the noise.
    is_skellam: Whether it is Skellam noise on one integer, else Gaussian.
  """

  shift: float = 1.0
  variance: float
  is_skellam: bool = False

  @property
  def multiplier(self) -> float:
    return math.sqrt(self.variance) / self.shift

  def scaled(self, factor: float) -> 'Noise':
    """The same with this multiple of the variance."""
    return dataclasses.replace(self, variance=factor * self.variance)

  def cells(self, laws: Sequence[Law], tail: float) -> list[np.ndarray]:
    """Probabilities of the cells of an output, for each law of the number of clients.

    Args:
      laws: Distributions of the number of clients by which the sum moves.
      tail: Probability that may be in a cell at an end.
    """
    most = max(float(values.max()) for values, _ in laws)
    least = min(float(values.min()) for values, _ in laws)
    if self.is_skellam:
      reach = 12 * math.sqrt(self.variance) + 30
      outputs = np.arange(math.floor(self.shift * least - reach),
                          math.ceil(self.shift * most + reach) + 1)
      return [sum(weight * skellam_pmf(outputs - round(self.shift * value),
                                       self.variance)
                  for value, weight in zip(*law)) for law in laws]
    z = self.multiplier
    reach = z * math.sqrt(2 * math.log(1 / tail))
    edges = np.concatenate([[-np.inf], np.linspace(
        least - reach, most + reach, _CELLS), [np.inf]])
    return [sum(weight * _normal_masses((edges - value) / z)
                for value, weight in zip(*law)) for law in laws]


def _normal_masses(edges: np.ndarray) -> np.ndarray:
  """Standard Gaussian probabilities between edges, without cancellation in tails."""
  low, high = edges[:-1], edges[1:]
  flipped = low > 0
  return special.ndtr(np.where(flipped, -low, high)) - special.ndtr(
      np.where(flipped, -high, low))


def skellam_pmf(outputs: np.ndarray, variance: float) -> np.ndarray:
  """Probabilities of Skellam noise, the difference of two equal Poisson variables."""
  return special.ive(np.abs(outputs), variance)


def skellam_above(threshold: np.ndarray, variance: np.ndarray) -> np.ndarray:
  """P[Y > threshold] for integer thresholds (Johnson 1959, by noncentral chi^2)."""
  positive = np.maximum(threshold, -threshold - 1)
  tail = stats.ncx2.cdf(variance, 2 * (positive + 1), variance)
  return np.where(threshold >= 0, tail, 1 - tail)


def vector(*, sensitivity_squared: float, coordinates: int, variance: float,
           stddevs: float = 10.0) -> Noise:
  """The attack on a vector of integers with Skellam noise in each coordinate.

  A contribution of equal integers c in m coordinates, for the c and m of the largest
  norm; their sum moves by c m and has Skellam noise of m times the variance. Where
  that is large c + 1 in some of them makes up for what is missing of the norm.

  Args:
    sensitivity_squared: Squared L2 norm of a contribution, at most.
    coordinates: Their number.
    variance: Variance of the noise in each.
    stddevs: Within how many standard deviations of the noise the attack decides.
  """
  least = max(1, math.isqrt(math.ceil(sensitivity_squared / coordinates)) - 1)
  most = math.isqrt(math.floor(sensitivity_squared))
  def norm(c: int) -> int:
    return c * c * min(coordinates, math.floor(sensitivity_squared / (c * c)))
  best = max({c for c in (*range(least, least + 4), most) if 1 <= c <= most}, key=norm)
  squared = norm(best)
  if squared == best * best * coordinates:
    squared += (2 * best + 1) * min(coordinates, math.floor(
        (sensitivity_squared - squared) / (2 * best + 1)))
  fourth = squared * (best + 1)**2 if squared > norm(best) else squared * best**2
  if squared**2 * variance / fourth >= LARGE_VARIANCE:
    return nearly_gaussian(
        math.sqrt(squared / variance), fourth / squared**2 / variance, stddevs)
  count = norm(best) // (best * best)
  return Noise(shift=count * best, variance=count * variance, is_skellam=True)


def nearly_gaussian(mean: float, kurtosis: float, stddevs: float) -> Noise:
  """Gaussian noise with a shift that is smaller by what heavier tails hide.

  The logarithm of the likelihood ratio of Skellam noise of variance V at x standard
  deviations is smaller than the Gaussian's by x^2 / (6 V), relative, to leading order.

  Args:
    mean: Shift in standard deviations.
    kurtosis: Excess kurtosis of the noise, 1/V.
    stddevs: x, without the shift.
  """
  loss = (mean + stddevs)**2 * kurtosis / 6
  return Noise(shift=mean * max(0.0, 1 - loss), variance=1.0)


# Cohorts that are known.


def gaussian_delta(epsilon: float, mean: np.ndarray) -> np.ndarray:
  """Delta of Gaussian noise at a shift of `mean` > 0 standard deviations."""
  return np.maximum(0.0, special.ndtr(mean / 2 - epsilon / mean) - np.exp(
      np.minimum(epsilon + special.log_ndtr(-mean / 2 - epsilon / mean), 0.0)))


def skellam_delta(epsilon: float, shift: np.ndarray, variance: np.ndarray
                  ) -> np.ndarray:
  """Delta of a threshold test of an integer with Skellam noise, near the best one."""
  threshold = np.floor(shift / 2 + variance * np.sinh(
      np.minimum(epsilon / shift, 600 - np.log1p(variance))))
  found = np.zeros_like(shift)
  near = threshold < shift + 12 * np.sqrt(variance) + 100  # Else nothing is beyond it.
  threshold, shift, variance = threshold[near], shift[near], variance[near]
  above = skellam_above(threshold, variance)
  found[near] = skellam_above(threshold - shift, variance) - np.exp(
      np.minimum(epsilon + np.log(np.maximum(above, 1e-300)), 700.0))
  return np.maximum(found, 0.0)


def epsilon_of(delta_at: Callable[[float], float], delta: float) -> float:
  """The epsilon at which a decreasing function falls to delta; 0 if it starts below."""
  if delta_at(0.0) <= delta:
    return 0.0
  high = 1.0
  while delta_at(high) > delta:
    high *= 2
    if high > 1e9:
      return math.inf
  excess = lambda epsilon: delta_at(epsilon) - delta
  return optimize.brentq(excess, high / 2 if high > 1 else 0.0, high, xtol=1e-12,
                         rtol=1e-10) * (1 - 1e-9)


def pruned(law: Law, tail: float, most: int = 4000) -> Law:
  """The law without values that have a probability of `tail` in all, above 0 only."""
  values, weights = law
  kept = (weights > tail / max(1, weights.size)) & (values > 0)
  values, weights = values[kept], weights[kept]
  if values.size <= most:
    return values, weights
  parts = np.linspace(0, values.size, most + 1).astype(int)[:-1]
  # Values increase, so they are rounded down.
  return values[parts], np.add.reduceat(weights, parts)


def known(noise: Noise, law: Law, delta: float) -> float:
  """Lower bound of epsilon, for whoever knows how often a client is in rounds.

  Args:
    noise: Noise of a round.
    law: Distribution of the sum of squared numbers of clients; for Skellam noise
      on one integer, where one client differs, of the number of rounds.
    delta: Delta.
  """
  values, weights = pruned(law, _TAIL * delta, 80 if noise.is_skellam else 4000)
  if not values.size:
    return 0.0
  if noise.is_skellam and noise.variance < _SMALL_VARIANCE:
    return _known_of_few(noise, (values, weights), delta)
  if not noise.is_skellam:
    means = np.sqrt(values) / noise.multiplier
    return epsilon_of(lambda e: float(weights @ gaussian_delta(e, means)), delta)
  large = values * noise.variance >= LARGE_VARIANCE
  means = np.array([nearly_gaussian(
      math.sqrt(value) / noise.multiplier, 1 / (value * noise.variance),
      math.sqrt(-2 * math.log(delta))).shift for value in values[large]])

  def at(epsilon: float) -> float:
    small = skellam_delta(epsilon, noise.shift * values[~large],
                          noise.variance * values[~large])
    return float(weights[~large] @ small) + (
        float(weights[large] @ gaussian_delta(epsilon, means)) if large.any() else 0.0)

  return epsilon_of(at, delta)


def _known_of_few(noise: Noise, law: Law, delta: float) -> float:
  """`known` for little noise: the sum of all outputs would tell less than they do."""
  p, q = noise.cells(((np.ones(1), np.ones(1)), (np.zeros(1), np.ones(1))), 0.0)
  ratio, (values, weights) = _ratio(p, q), law
  tests = []
  for rounds in values.astype(int).tolist():
    above, log_other = _tails([p], q, ratio, rounds, delta=delta)
    thresholds = np.unique(np.linspace(
        np.argmax(above > _TAIL * delta), above.size - 1, 1500).astype(int))
    tests.append((above[thresholds], log_other[thresholds]))

  def at(epsilon: float) -> float:
    return sum(weight * max(0.0, float(np.max(above - np.exp(
        np.minimum(epsilon + log_other, 1.0)))))
               for weight, (above, log_other) in zip(weights, tests))

  return epsilon_of(at, delta)


# Cohorts that are hidden.


def _tested(*arguments: Any, delta: float, **further: Any) -> float:
  """Lower bound of epsilon by the best threshold of `_tails`, of the same arguments."""
  above, log_other = _tails(*arguments, delta=delta, **further)
  good = above > delta
  return max(0.0, float(np.max(np.log(above[good] - delta) - log_other[good],
                               initial=0.0)))


def _tails(p: Sequence[np.ndarray], q: np.ndarray, ratio: np.ndarray, rounds: int,
           law: Law | None = None, *, delta: float) -> tuple[np.ndarray, np.ndarray]:
  """Probabilities that a statistic of all rounds is above each of its thresholds.

  Args:
    p: Probabilities of the cells of one round under the first input; if there is a
      law, those without a client, with one, with two ....
    q: The same under the second.
    ratio: Logarithm of the likelihood ratio that a round adds to the statistic.
    rounds: Number of rounds.
    law: Distribution of rows of numbers of rounds, as the parts of p; None if all are
      as `p[0]`.
    delta: Delta, of which tails of the grid may have a small fraction.

  Returns:
    Lower bounds under the first input, and the logarithms of upper bounds under the
    second.
  """
  used = q > 1e-300  # No attack on what floats can't tell from impossible.
  p, q, ratio = [part[used] for part in p], q[used], ratio[used]
  ratio = np.maximum(ratio, -700.0)
  rows, weights = law or (np.array([[rounds]]), np.ones(1))

  def log_mean(powers: np.ndarray, statistic: np.ndarray) -> np.ndarray:
    """Logarithm of the mean of exp(power S) for the statistic S of all rounds."""
    exponents = powers[:, None] * statistic
    logs = np.array([special.logsumexp(exponents, b=part, axis=1) for part in p])
    return special.logsumexp(logs.T @ rows.T, b=weights, axis=1)

  tail = math.log(_TAIL * delta)
  powers = np.geomspace(0.01, 1000, 40) / min(
      30.0, max(1e-12, float(np.abs(ratio).max())))
  low, high = ((tail - log_mean(-powers, ratio)) / powers,
               (log_mean(powers, ratio) - tail) / powers)
  at_low, at_high = np.nanargmax(low), np.nanargmin(high)
  # Rounding moves the statistic by half a step a round at most.
  margin = min(rounds // 2 + 2, _GRID // 4)
  step = (high[at_high] - low[at_low]) / (_GRID - 2 * margin)
  if not step > 0:
    return np.zeros(1), np.zeros(1)
  index = np.rint(ratio / step).astype(np.int64)
  first = math.floor(low[at_low] / step) - margin
  # The statistic is now the sum of these.
  ratio = index * step
  ends = (-powers[at_low], first * step), (powers[at_high], (first + _GRID) * step)
  outside = sum(math.exp(min(0.0, float(
      log_mean(np.array([power]), ratio)[0] - power * end))) for power, end in ends)

  def transformed(masses: np.ndarray) -> np.ndarray:
    return np.fft.rfft(np.bincount(index % _GRID, masses, _GRID))

  # Tilted by the ratio, the second distribution is about the first: no digit is lost.
  tilted = q * np.exp(ratio)
  scale = float(tilted.sum())
  tilted = transformed(tilted / scale)**rounds
  hidden_ = _mixed([transformed(part) for part in p], rows, weights)
  order = (first + np.arange(_GRID)) % _GRID
  total = (first + np.arange(_GRID)) * step
  one, other = (np.maximum(np.fft.irfft(part, _GRID)[order], 0.0)
                for part in (hidden_, tilted))
  return (np.cumsum(one[::-1]) - outside - 1e-15 * (rounds + 100),
          np.logaddexp.accumulate((np.log(other + 1e-17) - total)[::-1])
          + rounds * math.log(scale))


def _mixed(parts: Sequence[np.ndarray], rows: np.ndarray, weights: np.ndarray
           ) -> np.ndarray:
  """Sum over rows of the weight times the product of powers of the parts."""
  rows = rows.astype(int)
  least = rows.min(axis=0)
  common = functools.reduce(
      np.multiply, [part**power for part, power in zip(parts, least)])
  powers = [np.cumprod(np.vstack([np.ones_like(part)[None], np.tile(
      part, (int(rows[:, j].max()) - least[j], 1))]), axis=0)
            for j, part in enumerate(parts)]
  total = np.zeros_like(parts[0])
  for row, weight in zip(rows - least, weights):
    total += weight * functools.reduce(
        np.multiply, [power[k] for power, k in zip(powers, row)])
  return total * common


def _ratio(p: np.ndarray, q: np.ndarray) -> np.ndarray:
  with np.errstate(divide='ignore', invalid='ignore'):
    return np.log(p) - np.log(q)


def hidden(noise: Noise, first: Law, second: Law, rounds: int, delta: float) -> float:
  """Lower bound of epsilon if rounds move a sum by independent numbers of clients.

  Args:
    noise: Noise of a round.
    first, second: Laws of the number of clients, for the two inputs. A round shows
      nothing with the probability that they lack to 1, the same for both.
    rounds: Number of rounds.
    delta: Delta.
  """
  p, q = noise.cells((first, second), _TAIL * delta / rounds)
  nothing = max(0.0, 1 - float(first[1].sum()))
  return composed(np.append(p, nothing), np.append(q, nothing), rounds, delta)


def composed(p: np.ndarray, q: np.ndarray, rounds: int, delta: float) -> float:
  """Lower bound of epsilon of independent outputs with these cells, both directions."""
  return max(_tested([one], other, _ratio(one, other), rounds, delta=delta)
             for one, other in ((p, q), (q, p)))


def allocated(noise: Noise, law: Law, rounds: int, delta: float) -> float:
  """Lower bound of epsilon for clients in random numbers of random rounds.

  Args:
    noise: Noise of a round.
    law: Distribution of rows: the numbers of rounds with one client, with two, ...
    rounds: Number of rounds.
    delta: Delta.
  """
  rows, weights = law
  order = np.argsort(weights)
  kept = order[np.cumsum(weights[order]) > _TAIL * delta]
  if not kept.size or kept.size > _MOST_ROWS:
    return 0.0
  rows, weights = rows[kept], weights[kept]
  rows = np.concatenate([rounds - rows.sum(axis=1, keepdims=True), rows], axis=1)
  point = lambda k: (np.full(1, float(k)), np.ones(1))
  cells = noise.cells([point(k) for k in range(rows.shape[1])], _TAIL * delta / rounds)
  rates = weights @ rows / rounds
  return _tested(cells, cells[0], _ratio(sum(map(np.multiply, rates, cells)), cells[0]),
                 rounds, (rows, weights), delta=delta)


def patterns(noise: Noise, chances: dict[tuple[int, ...], float],
             delta: float) -> float:
  """Lower bound of epsilon of up to two rounds, all outputs of them at once.

  Args:
    noise: Noise of a round.
    chances: Probability of each row of numbers of clients, one for each round.
    delta: Delta.
  """
  point = lambda k: (np.full(1, float(k)), np.ones(1))
  most = max(max(row) for row in chances)
  masses = noise.cells(
      [point(k) for k in range(most + 1)], _TAIL * delta)
  if not noise.is_skellam:  # Fewer cells, as there are two rounds of them.
    masses = [np.add.reduceat(one, np.arange(0, one.size, 6)) for one in masses]
  def outputs(row: Iterable[int]) -> np.ndarray:
    return functools.reduce(np.multiply.outer, [masses[k] for k in row]).ravel()
  p = sum(chance * outputs(row) for row, chance in chances.items())
  q = outputs(0 for _ in next(iter(chances)))
  best = 0.0
  for one, other in ((p, q), (q, p)):
    order = np.argsort(-_ratio(one, np.maximum(other, 1e-300)))
    above = np.cumsum(one[order]) - delta - 1e-13
    below = np.maximum(np.cumsum(other[order]), 1e-300)
    good = above > 0
    best = max(best, float(np.max(np.log(above[good]) - np.log(below[good]),
                                  initial=0.0)))
  return best
