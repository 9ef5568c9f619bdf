"""Accounting by privacy loss distributions, for known worst pairs.

The losses of independent releases add, so the law of the total loss is a
convolution, taken here by one Fourier transform. Two things make it safe:

* Losses are moved to a grid so that the result dominates the true law. A second
  run is dominated by it; the grid is refined until both agree.
* Masses are tilted by e^(theta loss) before the transform, with theta where the
  Chernoff bound is best. The tail that decides delta then lies at the peak, and
  round-off stays a fraction of delta however small delta is. Every mass is
  raised by a bound on its round-off, and mass that leaves the window is bounded
  by Chernoff and goes to infinite loss: any theta is safe, a good one is tight.
"""

import dataclasses
import functools
import math
from typing import Callable

import numpy as np
from scipy import fft
from scipy import optimize

from tff_pipelines.accounting import pairs

Factor = tuple[pairs.Pair, int]

TOLERANCE = 1e-3
_MAX_GRID = 1 << 22
_MAX_ROUNDS = 14
# Grid steps as a part of the spread of one release's loss.
_FIRST_FRACTION = 1 / 16
# Two finer grids in a row must not move the answer by more than this part of it.
_SETTLED = 5e-4
# Not 2: coarse losses would fall on the same side of both grids.
_FINER = 2.3
# Cells of continuous noise for one standard deviation.
_FEWEST_CELLS, _MOST_CELLS = 64, 2048
# Farther below the tilted peak than e^-12, round-off may weigh too much.
_FARTHEST = 12.0
_MAX_TILTS = 12


class _GridTooLarge(pairs.TooLarge):
  """This step needs too many grid points; a coarser one may do."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Losses:
  """One factor's losses on the grid: index times step, with masses."""

  index: np.ndarray
  mass: np.ndarray
  p_only: float
  count: int


def _dominating(atoms: pairs.Atoms, step: float, count: int) -> _Losses:
  """Moves each loss to the two grid points around it, keeping p and q."""
  lower = np.floor(atoms.loss / step)
  offset = atoms.loss - lower * step
  up = np.clip(np.expm1(-offset) / np.expm1(-step), 0.0, 1.0) * atoms.p
  index = np.concatenate([lower, lower + 1]).astype(np.int64)
  mass = np.concatenate([atoms.p - up, up])
  there = mass > 0
  return _Losses(index=index[there], mass=mass[there], p_only=atoms.p_only,
                 count=count)


def _dominated(atoms: pairs.Atoms, step: float, count: int) -> _Losses:
  """Merges the outcomes of a cell, then rounds the merged loss down."""
  # Cells reach a little further up than down, so that the merged loss, a mean
  # of the cell's, is mostly just above the grid point and loses little.
  cell = np.floor(atoms.loss / step + 0.45).astype(np.int64)
  found, where = np.unique(cell, return_inverse=True)
  p = np.bincount(where, atoms.p, found.size)
  q = np.bincount(where, atoms.q, found.size)
  least = np.full(found.size, np.inf)
  np.minimum.at(least, where, atoms.loss)
  with np.errstate(divide='ignore', invalid='ignore'):
    loss = np.log(p) - np.log(q)
  # Where q underflowed, the least loss of the cell is a lower bound as well.
  loss = np.where(np.isfinite(loss), np.maximum(loss, least), least)
  there = p > 0
  return _Losses(index=np.floor(loss[there] / step).astype(np.int64),
                 mass=p[there], p_only=atoms.p_only, count=count)


class _Total:
  """The law of the total loss, before the window is chosen."""

  def __init__(self, losses: list[_Losses], step: float, pessimistic: bool):
    self._losses = losses
    self._step = step
    self.pessimistic = pessimistic
    self._compositions = sum(part.count for part in losses)
    self.infinite = -math.expm1(sum(
        part.count * math.log1p(-part.p_only) if part.p_only < 1 else -math.inf
        for part in losses))
    if self._compositions == 1:
      self.infinite = losses[0].p_only  # Not a rounding away from it.
    # Above no finite loss there is nothing that epsilon could pay for.
    self.harmless = all(part.index.size == 0 or part.index.max() <= 0
                        for part in losses)

  def cumulant(self, theta: float) -> float:
    """log E[e^(theta loss); loss finite]."""
    total = 0.0
    for part in self._losses:
      exponent = np.log(part.mass) + theta * self._step * part.index
      peak = exponent.max()
      total += part.count * (peak + math.log(np.exp(exponent - peak).sum()))
    return total

  def tilted(self, theta: float) -> list[tuple[_Losses, np.ndarray]]:
    """The factors with their tilted masses, each summing to 1."""
    result = []
    for part in self._losses:
      exponent = np.log(part.mass) + theta * self._step * part.index
      weight = np.exp(exponent - exponent.max())
      result.append((part, weight / weight.sum()))
    return result

  def moments(self, theta: float) -> tuple[float, float]:
    """Mean and standard deviation (at least a step) of the tilted loss."""
    mean, variance = 0.0, 0.0
    for part, weight in self.tilted(theta):
      loss = self._step * part.index
      centre = float(weight @ loss)
      mean += part.count * centre
      variance += part.count * float(weight @ (loss - centre)**2)
    return mean, max(math.sqrt(variance), self._step)

  @functools.cached_property
  def spread(self) -> float:
    """Standard deviation of the total loss."""
    return self.moments(0.0)[1]

  def window(self, theta: float, slack: float
            ) -> tuple[float, float, float, float]:
    """(low, high, log mass above high, tilted mean) of the total loss.

    Tilted mass below `low` and above `high` is at most e^-slack; the returned
    mass above is a bound without the tilt.
    """
    mean, stddev = self.moments(theta)
    at_theta = self.cumulant(theta)
    lows, highs = [], []
    for tilt in (2.0, 4.0, 8.0, 16.0, 32.0):
      t = tilt / stddev
      highs.append((self.cumulant(theta + t) - at_theta + slack) / t)
      lows.append(-(self.cumulant(theta - t) - at_theta + slack) / t)
    low, high = max(lows), min(highs)
    return low - 2 * self._step, high + 2 * self._step, (
        at_theta - theta * high - slack), mean

  def law(self, theta: float, slack: float) -> '_Law':
    """The law of the total loss in a window about the tilted mean."""
    low, high, log_above, mean = self.window(theta, slack)
    first = math.floor(low / self._step)
    size = fft.next_fast_len(
        max(math.ceil(high / self._step) - first + 1, 2), real=True)
    # The optimistic run only shows how near the other is; it may take longer.
    if size > (_MAX_GRID if self.pessimistic else 2 * _MAX_GRID):
      raise _GridTooLarge('the privacy loss distribution needs a grid of '
                          f'{size} points')
    spectrum = None
    for part, weight in self.tilted(theta):
      folded = np.bincount(part.index % size, weight, size)
      transform = fft.rfft(folded)
      if part.count > 1:
        transform = transform**part.count
      spectrum = transform if spectrum is None else spectrum * transform
    mass = np.roll(fft.irfft(spectrum, size), -(first % size))
    # A transform's error is eps log2(size) of its norm; a power multiplies the
    # relative error of each coefficient by the exponent.
    error = np.finfo(float).eps * math.log2(size) * (
        4 + self._compositions) * float(mass.max())
    mass = np.maximum(mass, 0.0) + error if self.pessimistic else mass - error
    losses = self._step * (first + np.arange(size))
    with np.errstate(divide='ignore'):
      log_mass = np.log(np.maximum(mass, 0.0))
    # No mass is above 1; what round-off leaves far from the peak may seem so.
    log_mass = np.minimum(log_mass + self.cumulant(theta) - theta * losses, 0.0)
    infinite = self.infinite
    if self.pessimistic:
      infinite = min(1.0, infinite + math.exp(min(log_above, 0.0)))
    return _Law(losses=losses, log_mass=log_mass, peak=mean, infinite=infinite)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Law:
  """Masses of the total loss, good to round-off relative to the tilted peak.

  Attributes:
    losses: Ascending, on the grid.
    log_mass: Of each.
    peak: Where the tilted law has its mean.
    infinite: Mass of infinite loss, all above the window included.
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
    """The least epsilon for delta; None if it lies below the window."""
    if self.infinite >= delta:
      return math.inf
    budget = delta - self.infinite
    losses = self.losses
    upper = np.cumsum(np.exp(self.log_mass)[::-1])[::-1]
    # Masses under the second law, relative to the largest: no overflow.
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
    found = math.log(remainder) - math.log(lower[first]) - reference
    return float(min(max(found, losses[first - 1]), losses[first]))


def _best_theta(total: _Total, cost: Callable[[float], float]) -> float:
  """The theta > 0 where a quasi-convex cost is least, roughly."""
  unit = math.log(total.spread)
  found = optimize.minimize_scalar(
      lambda log_theta: cost(math.exp(log_theta)),
      bounds=(math.log(1e-6) - unit, math.log(1e3) - unit), method='bounded',
      options={'xatol': 0.02})
  return math.exp(found.x)


def _directions(factors: tuple[Factor, ...], cells: int,
                pessimistic: bool) -> list[list[tuple[pairs.Atoms, int]]]:
  """The atoms of every factor, first with the client, then without it."""
  listed = [(pair.atoms(cells, pessimistic), count) for pair, count in factors]
  both = any(len(atoms) > 1 for atoms, _ in listed)
  return [[(atoms[min(way, len(atoms) - 1)], count) for atoms, count in listed]
          for way in range(2 if both else 1)]


def _typical_spread(parts: list[tuple[pairs.Atoms, int]]) -> float:
  """Root mean square of the standard deviations of the factors' losses."""
  variance, count = 0.0, 0
  for atoms, times in parts:
    total = atoms.p.sum()
    if total > 0:
      mean = (atoms.p @ atoms.loss) / total
      variance += times * float(atoms.p @ (atoms.loss - mean)**2 / total)
    count += times
  return math.sqrt(variance / count)


def _converged(factors: tuple[Factor, ...],
               query: Callable[[_Total], float]) -> float:
  """A dominating answer on a grid so fine that a finer one hardly matters.

  Every one of them is safe; the error falls with the square of the step.
  """
  fraction = _FIRST_FRACTION
  best, settled = None, 0
  for _ in range(_MAX_ROUNDS):
    try:
      found = _answer(factors, fraction, query, pessimistic=True)
    except _GridTooLarge:
      if best is not None:
        return best
      # Rare and large losses: the typical one is too small a unit.
      fraction *= 8
      continue
    if found == 0 or found == math.inf:
      return found
    if best is not None:
      settled = settled + 1 if best - found <= _SETTLED * best else 0
    best = found if best is None else min(best, found)
    if settled == 2:
      return best
    fraction /= _FINER
  if best is None:
    raise pairs.TooLarge('the losses are too unequal for a common grid')
  return best


def _bracketed(factors: tuple[Factor, ...],
               query: Callable[[_Total], float]) -> tuple[float, float]:
  """(optimistic, pessimistic) answers, within TOLERANCE where it can be had."""
  high = _converged(factors, query)
  low, fraction, gaps = 0.0, _FIRST_FRACTION, []
  for _ in range(_MAX_ROUNDS):
    try:
      low = max(low, _answer(factors, fraction, query, pessimistic=False))
    except _GridTooLarge:
      if gaps:
        break
      fraction *= 8
      continue
    if low >= high or high - low <= TOLERANCE * high:
      break
    gaps.append((high - low) / high)
    # The gap falls with some power of the step between 1 and 2.
    power = 1.0
    if len(gaps) > 1:
      power = min(2.0, max(1.0, math.log(gaps[-2] / gaps[-1]) / shrink))
    shrink = min(4.2, max(0.7, (math.log(gaps[-1] / TOLERANCE) + 0.3) / power))
    if len(gaps) == 1:
      shrink = min(shrink, 1.4)
    fraction *= math.exp(-shrink)
  return min(low, high), high


def _answer(factors: tuple[Factor, ...], fraction: float,
            query: Callable[[_Total], float], *, pessimistic: bool) -> float:
  """The worse of the two directions, on a grid of `fraction` of the spread."""
  cells = math.ceil(min(max(4 / fraction, _FEWEST_CELLS), _MOST_CELLS))
  move = _dominating if pessimistic else _dominated
  answers = []
  for parts in _directions(factors, cells, pessimistic):
    spread = _typical_spread(parts)
    step = fraction * spread if spread > 0 else 1e-3
    answers.append(query(_Total(
        [move(atoms, step, count) for atoms, count in parts], step,
        pessimistic)))
  return max(answers)


def _best_of_tilts(total: _Total, theta: float, slack: float,
                   ask: Callable[[_Law], float | None],
                   epsilon_of: Callable[[float], float]) -> float | None:
  """The tightest of the answers for falling theta; each is safe by itself.

  Where losses are bounded or very unequal the Chernoff theta is too large, and
  the masses between epsilon and the peak drown in round-off.
  """
  tightest = min if total.pessimistic else max
  best = None
  for _ in range(_MAX_TILTS):
    try:
      law = total.law(theta, slack)
    except _GridTooLarge:
      if best is None:
        raise
      break
    found = ask(law)
    if found is None:
      theta, slack = theta / 4, slack * 1.5  # Below the window: widen it.
      continue
    best = found if best is None else tightest(best, found)
    distance = theta * (law.peak - epsilon_of(found))
    if distance <= _FARTHEST:
      break
    theta /= max(2.0, 2 * distance / _FARTHEST)
  return best


def _epsilon_query(delta: float) -> Callable[[_Total], float]:
  def query(total: _Total) -> float:
    if total.infinite <= delta and total.harmless:
      return 0.0
    if total.infinite >= delta:
      return math.inf
    # By Chernoff delta(0) <= e^chance; is epsilon 0 perhaps enough?
    chance = total.cumulant(_best_theta(total, total.cumulant))
    if chance < math.log(delta) + 5 and _delta_query(0.0)(total) <= delta:
      return 0.0
    theta = _best_theta(
        total, lambda t: (total.cumulant(t) - math.log(delta)) / t)
    found = _best_of_tilts(total, theta, 30.0, lambda law: law.epsilon(delta),
                           lambda answer: max(answer, 0.0))
    if found is None:  # Below every window: about 0.
      return 0.0 if _delta_query(0.0)(total) <= delta else math.inf
    return max(found, 0.0)
  return query


def _delta_query(epsilon: float) -> Callable[[_Total], float]:
  def query(total: _Total) -> float:
    if total.infinite >= 1 or total.harmless:
      return total.infinite
    theta = _best_theta(total, lambda t: total.cumulant(t) - t * epsilon)
    found = _best_of_tilts(total, theta, 40.0, lambda law: law.delta(epsilon),
                           lambda answer: epsilon)
    return min(1.0, found)
  return query


def epsilon(factors: tuple[Factor, ...], delta: float) -> float:
  """A safe epsilon of composed pairs, as a rule within 0.1% of the true one.

  Args:
    factors: Pairs and how often each is composed. Nothing costs nothing.
    delta: In (0, 1).

  Raises:
    pairs.TooLarge: If the losses cannot be listed.
  """
  if not factors:
    return 0.0
  return _converged(pairs.simplified(factors), _epsilon_query(delta))


def epsilon_bounds(factors: tuple[Factor, ...],
                   delta: float) -> tuple[float, float]:
  """(optimistic, pessimistic): the true epsilon is between, the second is safe.

  The second is that of `epsilon`.
  """
  return _bracketed(pairs.simplified(factors), _epsilon_query(delta))


# pylint: disable=redefined-outer-name
def delta(factors: tuple[Factor, ...], epsilon: float) -> float:
  """A safe delta of composed pairs at epsilon >= 0."""
  if not factors:
    return 0.0
  return _converged(pairs.simplified(factors), _delta_query(epsilon))


def delta_bounds(factors: tuple[Factor, ...],
                 epsilon: float) -> tuple[float, float]:
  """(optimistic, pessimistic) delta of composed pairs; the second is safe."""
  return _bracketed(pairs.simplified(factors), _delta_query(epsilon))
