"""Accounting by privacy loss distributions, for known worst pairs.

The losses of independent releases add, so the distribution of the total loss is a
convolution, computed by one Fourier transform. Two things make it safe:

* Losses are moved to a grid so that the result dominates the true distribution. The
  grid is refined until the answer hardly changes.
* Masses are tilted by e^(theta loss) before the transform, with theta where the
  Chernoff bound is best. The tail that decides delta then lies at the peak, and
  round-off stays a fraction of delta however small delta is. Every mass is
  raised by a bound on its round-off, and mass that leaves the window is bounded
  by Chernoff and goes to infinite loss: any theta is safe, a good one is tight.
"""

from collections.abc import Callable
import dataclasses
import functools
import math
from typing import NamedTuple

import numpy as np
from scipy import fft, optimize

from tff_pipelines.accounting.divergences import counts, gaussian_mixtures, pairs

_MAX_GRID = 1 << 22
_MAX_ROUNDS = 14
# Grid step as a fraction of the spread of one release's loss.
_FIRST_FRACTION = 1 / 16
# Two finer grids in a row must not change the answer by more than this fraction of it.
_SETTLED = 5e-4
# Not 2: coarse losses would fall on the same side of both grids.
_FINER = 2.3
# Cells of continuous noise for one standard deviation.
_FEWEST_CELLS, _MOST_CELLS = 64, 2048
# Farther below the tilted peak than e^-12, round-off may weigh too much.
_FARTHEST = 12.0
_MAX_TILTS = 12
# A tilted probability of a count that is left out, far below the round-off.
_NEGLIGIBLE = 1e-30


class _GridTooLarge(pairs.TooLarge):
  """This step needs too many grid points; a coarser one may do."""


class _Losses(NamedTuple):
  """One factor's losses on the grid: index, loss, and logarithm of the mass."""

  index: np.ndarray
  loss: np.ndarray
  log_mass: np.ndarray
  p_only: float
  count: counts.Counts

  def tilted(self, theta: float) -> tuple[np.ndarray, float]:
    """The tilted masses over their sum, and the logarithm of the sum."""
    exponent = self.log_mass + theta * self.loss
    peak = exponent.max()
    weight = np.exp(exponent - peak)
    total = weight.sum()
    return weight / total, peak + math.log(total)

  def composed(self, log_total: float) -> tuple[np.ndarray, float]:
    """Tilted probabilities of the counts, and the logarithm of the sum of masses."""
    with np.errstate(divide='ignore'):
      exponent = np.log(self.count.weights) + self.count.numbers * log_total
    peak = exponent.max()
    weight = np.exp(exponent - peak)
    total = weight.sum()
    return weight / total, peak + math.log(total)


class _Total:
  """The distribution of the total loss, before the window is chosen."""

  def __init__(self, losses: list[_Losses], step: float):
    self._losses = losses
    self._step = step
    self._compositions = sum(part.count.most for part in losses)
    lost = [_infinite(part) for part in losses]
    self.infinite = lost[0] if len(lost) == 1 else -math.expm1(
        sum(math.log1p(-one) if one < 1 else -math.inf for one in lost))
    # Above no finite loss there is nothing that epsilon could pay for.
    self.harmless = all(part.index.size == 0 or part.index.max() <= 0
                        for part in losses)

  def cumulant(self, theta: float) -> float:
    """log E[e^(theta loss); loss finite]."""
    return sum(part.composed(part.tilted(theta)[1])[1] for part in self._losses)

  def _moments(self, theta: float) -> tuple[float, float]:
    """Mean and standard deviation (at least a step) of the tilted loss."""
    mean, variance = 0.0, 0.0
    for part in self._losses:
      weight, log_total = part.tilted(theta)
      chances, _ = part.composed(log_total)
      centre = float(weight @ part.loss)
      number = float(chances @ part.count.numbers)
      mean += number * centre
      variance += number * float(weight @ (part.loss - centre)**2) + (
          centre**2 * float(chances @ (part.count.numbers - number)**2))
    return mean, max(math.sqrt(variance), self._step)

  @functools.cached_property
  def spread(self) -> float:
    """Standard deviation of the total loss."""
    return self._moments(0.0)[1]

  def _window(self, theta: float, slack: float) -> tuple[float, float, float, float]:
    """(low, high, log mass above high, tilted mean) of the total loss.

    Tilted mass below `low` and above `high` is at most e^-slack; the returned
    mass above is a bound without the tilt.
    """
    mean, stddev = self._moments(theta)
    at_theta = self.cumulant(theta)
    tilts = np.array([2.0, 4.0, 8.0, 16.0, 32.0]) / stddev
    high = min((self.cumulant(theta + t) - at_theta + slack) / t for t in tilts)
    low = max((self.cumulant(theta - t) - at_theta + slack) / -t for t in tilts)
    return low - 2 * self._step, high + 2 * self._step, (
        at_theta - theta * high - slack), mean

  def distribution(self, theta: float, slack: float) -> '_Distribution':
    """The distribution of the total loss in a window about the tilted mean."""
    low, high, log_above, mean = self._window(theta, slack)
    first = math.floor(low / self._step)
    size = fft.next_fast_len(
        max(math.ceil(high / self._step) - first + 1, 2), real=True)
    if size > _MAX_GRID:
      raise _GridTooLarge(f'the privacy losses need a grid of {size} points')
    spectrum = None
    for part in self._losses:
      weight, log_total = part.tilted(theta)
      transform = _composed(
          fft.rfft(np.bincount(part.index % size, weight, size)), part.count.first,
          part.composed(log_total)[0])
      spectrum = transform if spectrum is None else spectrum * transform
    mass = np.roll(fft.irfft(spectrum, size), -(first % size))
    # A transform's error is eps log2(size) of its norm; a power multiplies the
    # relative error of each coefficient by the exponent.
    error = np.finfo(float).eps * math.log2(size) * (
        4 + self._compositions) * float(mass.max())
    losses = self._step * (first + np.arange(size))
    log_mass = np.log(np.maximum(mass, 0.0) + error)
    # No mass is above 1; what round-off leaves far from the peak may seem so.
    log_mass = np.minimum(log_mass + self.cumulant(theta) - theta * losses, 0.0)
    return _Distribution(
        losses=losses, log_mass=log_mass, peak=mean,
        infinite=min(1.0, self.infinite + math.exp(min(log_above, 0.0))))


def _infinite(part: _Losses) -> float:
  """The mass of infinite loss of a factor."""
  if part.count.most == 1 and part.count.first == 1:
    return part.p_only  # Not a rounding away from it.
  number = part.count.numbers
  each = -np.expm1(number * np.log1p(-part.p_only)) if part.p_only < 1 else number > 0
  return min(1.0, part.count.missing + float(np.dot(part.count.weights, each)))


def _composed(transform: np.ndarray, first: int, weights: np.ndarray) -> np.ndarray:
  """sum_k weights[k] transform^(first + k); what is below all round-off is left out."""
  kept = np.flatnonzero(weights > _NEGLIGIBLE)
  result = np.full(transform.shape, complex(weights[kept[-1]]))
  for weight in weights[kept[0]:kept[-1]][::-1]:
    result = result * transform + weight
  power = first + int(kept[0])
  while power:  # Much faster than numpy's powers of complex numbers.
    if power % 2:
      result = result * transform
    power //= 2
    if power:
      transform = transform * transform
  return result


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Distribution:
  """Masses of the total loss, accurate to round-off relative to the tilted peak.

  `losses` ascend on the grid; `peak` is the mean of the tilted distribution, and
  `infinite` the mass of infinite loss, including all above the window.
  """

  losses: np.ndarray
  log_mass: np.ndarray
  peak: float
  infinite: float

  def delta(self, epsilon: float) -> float:
    """The hockey-stick divergence."""
    above = self.losses > epsilon
    gain = -np.expm1(epsilon - self.losses[above])
    return float(self.infinite + (np.exp(self.log_mass[above]) * gain).sum())

  def epsilon(self, delta: float) -> float | None:
    """The minimum epsilon for delta; None if it lies below the window."""
    if self.infinite >= delta:
      return math.inf
    budget = delta - self.infinite
    losses = self.losses
    upper = np.cumsum(np.exp(self.log_mass)[::-1])[::-1]
    # Masses under the second distribution, relative to the largest: no overflow.
    second = self.log_mass - losses
    reference = second.max()
    lower = np.cumsum(np.exp(second - reference)[::-1])[::-1]
    with np.errstate(over='ignore', invalid='ignore', divide='ignore'):
      spent = upper - np.exp(losses + reference + np.log(lower))
    within = np.flatnonzero(spent <= budget)
    if within.size == 0:
      return math.inf
    first = int(within[0])
    if first == 0:
      return None
    # Between two grid points the curve is A - B e^epsilon.
    remainder = upper[first] - budget
    if remainder <= 0 or lower[first] <= 0:
      return float(losses[first])
    between = math.log(remainder) - math.log(lower[first]) - reference
    return float(min(max(between, losses[first - 1]), losses[first]))


def _best_theta(total: _Total, cost: Callable[[float], float]) -> float:
  """The approximate minimizer theta > 0 of a quasi-convex cost."""
  unit = math.log(total.spread)
  minimum = optimize.minimize_scalar(
      lambda log_theta: cost(math.exp(log_theta)),
      bounds=(math.log(1e-6) - unit, math.log(1e3) - unit), method='bounded',
      options={'xatol': 0.02})
  return math.exp(minimum.x)


def _converged(factors: tuple[pairs.Factor, ...],
               query: Callable[[_Total], float]) -> float:
  """A dominating answer on a grid so fine that a finer one hardly matters.

  The answer on every grid is safe; its error falls with the square of the step.
  """
  if not factors:
    return 0.0
  factors, fraction = pairs.simplified(factors), _FIRST_FRACTION
  best, settled = None, 0
  for _ in range(_MAX_ROUNDS):
    try:
      answer = _answer(factors, fraction, query)
    except _GridTooLarge:
      if best is not None:
        return best
      # Losses are rare and large: the typical one is too small a unit.
      fraction *= 8
      continue
    if answer == 0 or answer == math.inf:
      return answer
    if best is not None:
      settled = settled + 1 if best - answer <= _SETTLED * best else 0
    best = answer if best is None else min(best, answer)
    if settled == 2:
      return best
    fraction /= _FINER
  if best is None:
    raise pairs.TooLarge('the losses are too unequal for a common grid')
  return best


def _answer(factors: tuple[pairs.Factor, ...], fraction: float,
            query: Callable[[_Total], float]) -> float:
  """The worse of the two directions, on a grid of `fraction` of the spread."""
  cells = math.ceil(min(max(4 / fraction, _FEWEST_CELLS), _MOST_CELLS))
  listed = [(pair.atoms(cells), count if isinstance(count, counts.Counts) else
             counts.Counts(first=count)) for pair, count in factors]
  answers = []
  for way in range(max(len(atoms) for atoms, _ in listed)):
    parts = [(atoms[min(way, len(atoms) - 1)], count) for atoms, count in listed]
    spread = math.sqrt(sum(count.most * atoms.variance() for atoms, count in parts) /
                       sum(count.most for _, count in parts))
    step = fraction * spread if spread > 0 else 1e-3
    losses = []
    for atoms, count in parts:
      index, mass = pairs.on_grid(atoms, step)
      losses.append(
          _Losses(index, step * index, np.log(mass), atoms.p_only, count))
    answers.append(query(_Total(losses, step)))
  return max(answers)


def _best_of_tilts(total: _Total, theta: float, slack: float,
                   ask: Callable[[_Distribution], float | None],
                   epsilon_of: Callable[[float], float]) -> float | None:
  """The tightest of the answers for falling theta; each is safe on its own.

  Where losses are bounded or very unequal the Chernoff theta is too large.
  """
  best = None
  for _ in range(_MAX_TILTS):
    try:
      distribution = total.distribution(theta, slack)
    except _GridTooLarge:
      if best is None:
        raise
      break
    answer = ask(distribution)
    if answer is None:
      theta, slack = theta / 4, slack * 1.5  # Below the window: widen it.
      continue
    best = answer if best is None else min(best, answer)
    distance = theta * (distribution.peak - epsilon_of(answer))
    if distance <= _FARTHEST:
      break
    theta /= max(2.0, 2 * distance / _FARTHEST)
  return best


def _epsilon_of(total: _Total, delta: float) -> float:
  """A safe epsilon of the total loss for delta."""
  if total.infinite <= delta and total.harmless:
    return 0.0
  if total.infinite >= delta:
    return math.inf
  # By Chernoff delta(0) <= e^chance; is epsilon 0 perhaps enough?
  chance = total.cumulant(_best_theta(total, total.cumulant))
  if chance < math.log(delta) + 5 and _delta_of(total, 0.0) <= delta:
    return 0.0
  theta = _best_theta(total, lambda t: (total.cumulant(t) - math.log(delta)) / t)
  answer = _best_of_tilts(
      total, theta, 30.0, lambda distribution: distribution.epsilon(delta),
      lambda answer: max(answer, 0.0))
  if answer is None:  # Below every window: about 0.
    return 0.0 if _delta_of(total, 0.0) <= delta else math.inf
  return max(answer, 0.0)


def _delta_of(total: _Total, epsilon: float) -> float:
  """A safe delta of the total loss at epsilon."""
  if total.infinite >= 1 or total.harmless:
    return total.infinite
  theta = _best_theta(total, lambda t: total.cumulant(t) - t * epsilon)
  return min(1.0, _best_of_tilts(
      total, theta, 40.0, lambda distribution: distribution.delta(epsilon),
      lambda _: epsilon))


def epsilon(factors: tuple[pairs.Factor, ...], delta: float) -> float:
  """A safe epsilon of composed pairs, as a rule within 0.1% of the true one.

  Args:
    factors: Pairs and how often each is composed. No factors cost nothing.
    delta: In (0, 1).

  Raises:
    pairs.TooLarge: If the losses cannot be listed.
  """
  mixture = gaussian_mixtures.of(pairs.simplified(factors))
  return mixture.epsilon(delta) if mixture else _converged(
      factors, lambda total: _epsilon_of(total, delta))


# pylint: disable=redefined-outer-name
def delta(factors: tuple[pairs.Factor, ...], epsilon: float) -> float:
  """A safe delta of composed pairs at epsilon >= 0."""
  mixture = gaussian_mixtures.of(pairs.simplified(factors))
  return mixture.delta(epsilon) if mixture else _converged(
      factors, lambda total: _delta_of(total, epsilon))
