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
from scipy import fft, optimize, signal

from tff_pipelines.accounting.divergences import counts, gaussian_mixtures, pairs

_MAX_GRID = 1 << 20
_MAX_ROUNDS = 14
# Grid step as a fraction of the one that may double the answer; its square is about the
# relative error.
_FIRST_FRACTION = 1 / 32
# A finer grid must not change the answer by more than this fraction of it.
_SETTLED = 5e-4
# Not 2: coarse losses would fall on the same side of both grids.
_FINER = 2.3
# Cells of continuous noise for one standard deviation, at fractions of 1 and below.
_CELLS, _FEWEST_CELLS, _MOST_CELLS = 8, 64, 2048
# Fraction of delta that may go to infinite loss with the tails, and delta before any
# is known.
_TAILS, _FIRST_DELTA = 1e-4, 1e-16
# An epsilon is known well enough where delta moves by this fraction.
_LEAST_EXPONENT = 0.1
# Farther below the tilted peak than e^-12, round-off may weigh too much.
_FARTHEST = 12.0
_MAX_TILTS = 12
# A tilted probability of a count that is left out, far below the round-off.
_NEGLIGIBLE = 1e-30


class _GridTooLarge(pairs.TooLarge):
  """This step needs too many grid points; a coarser one may do."""

  def __init__(self, size: int):
    super().__init__(f'the privacy losses need a grid of {size} points')
    self.size = size


class _Losses(NamedTuple):
  """One factor's losses: index on the grid, if any, loss, and logarithm of the mass."""

  index: np.ndarray | None
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
  """The distribution of the total loss, before the window is chosen.

  With a `sign` of -1, what is not exact is left out, and not added, of each mass.
  """

  def __init__(self, losses: list[_Losses], step: float, sign: int = 1):
    self._losses = losses
    self._step = step
    self._sign = sign
    self._compositions = sum(part.count.most for part in losses)
    lost = [min(1.0, part.count.missing + part.count.any_of(part.p_only))
            for part in losses]
    self.infinite = lost[0] if len(lost) == 1 else -math.expm1(
        sum(math.log1p(-one) if one < 1 else -math.inf for one in lost))
    # Above no finite loss there is nothing that epsilon could pay for.
    self.harmless = all(part.loss.max(initial=-math.inf) <= 0 for part in losses)

  def cumulant(self, theta: float) -> float:
    """log E[e^(theta loss); loss finite]."""
    return sum(part.composed(part.tilted(theta)[1])[1] for part in self._losses)

  def exponent(self, theta: float) -> float:
    """log delta(e) + theta e is at most this, for every e (arXiv 2004.00010)."""
    return self.cumulant(theta) + theta * math.log(theta) - (
        1 + theta) * math.log1p(theta)

  def moments(self, theta: float) -> tuple[float, float]:
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
    return self.moments(0.0)[1]

  def _window(self, theta: float, slack: float) -> tuple[float, float, float, float]:
    """(low, high, log mass above high, tilted mean) of the total loss.

    Tilted mass below `low` and above `high` is at most e^-slack; the returned
    mass above is a bound without the tilt.
    """
    mean, stddev = self.moments(theta)
    at_theta = self.cumulant(theta)
    tilts = 4.0**np.arange(-4, 3) / stddev  # Small ones where losses are unequal.
    high = min((self.cumulant(theta + t) - at_theta + slack) / t for t in tilts)
    low = max((self.cumulant(theta - t) - at_theta + slack) / -t for t in tilts)
    return low - 2 * self._step, high + 2 * self._step, (
        at_theta - theta * high - slack), mean

  def distribution(self, theta: float, slack: float) -> '_Distribution':
    """The distribution of the total loss in a window about the tilted mean."""
    low, high, log_above, mean = self._window(theta, slack)
    first = math.floor(low / self._step)
    size = fft.next_fast_len(max(math.ceil(high / self._step) - first + 1, 2), real=True)
    if size > _MAX_GRID:
      raise _GridTooLarge(size)
    spectrum = None
    for part in self._losses:
      weight, log_total = part.tilted(theta)
      transform = _composed(fft.rfft(np.bincount(part.index % size, weight, size)),
                            part.count.first, part.composed(log_total)[0])
      spectrum = transform if spectrum is None else spectrum * transform
    mass = np.roll(fft.irfft(spectrum, size), -(first % size))
    # A transform's error is eps log2(size) of its norm; a power multiplies the
    # relative error of each coefficient by the exponent.
    error = np.finfo(float).eps * math.log2(size) * (
        4 + self._compositions) * float(mass.max())
    losses = self._step * (first + np.arange(size))
    if self._sign < 0:
      error, log_above = -error - 2 * math.exp(-slack), -math.inf
    with np.errstate(divide='ignore'):
      log_mass = np.log(np.maximum(np.maximum(mass, 0.0) + error, 0.0))
    # No mass is above 1; what round-off leaves far from the peak may seem so.
    log_mass = np.minimum(log_mass + self.cumulant(theta) - theta * losses, 0.0)
    return _Distribution(losses=losses, log_mass=log_mass, peak=mean,
                         infinite=min(1.0, self.infinite + math.exp(min(log_above, 0.0))))


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
    losses, keep = self.losses, math.exp(self.losses[0] - self.losses[1])
    # e^loss times the second mass from there on, by a recursion that neither overflows
    # nor underflows. Between two grid points delta falls by a part of it: a sum of
    # positive terms, which loses no digits.
    height = signal.lfilter([1.0], [1.0, -keep], np.exp(self.log_mass)[::-1])[::-1]
    falls = -math.expm1(losses[0] - losses[1]) * height[1:]
    spent = np.append(np.cumsum(falls[::-1])[::-1], 0.0)
    if (first := int(np.flatnonzero(spent <= budget)[0])) == 0:
      return None
    left = (budget - spent[first]) / height[first]
    return float(losses[first]) if not left < 1 else float(
        min(max(losses[first] + math.log1p(-left), losses[first - 1]), losses[first]))


def _best_theta(total: _Total, cost: Callable[[float], float]) -> float:
  """The approximate minimizer theta > 0 of a quasi-convex cost."""
  unit = math.log(total.spread)
  return math.exp(optimize.minimize_scalar(
      lambda log_theta: cost(math.exp(log_theta)),
      bounds=(math.log(1e-6) - max(unit, 0.0), math.log(1e3) - min(unit, 0.0)),
      method='bounded', options={'xatol': 0.02}).x)


class _Query(NamedTuple):
  """Asks for epsilon at a delta, or for delta at an epsilon; the other one is None."""

  epsilon: float | None
  delta: float | None

  def answer(self, total: _Total) -> float:
    return (_delta_of(total, self.epsilon) if self.delta is None else
            _epsilon_of(total, self.delta))

  def tail(self, known: float | None, infinite: float) -> float:
    """The mass that may go to infinite loss, given an earlier answer, if any."""
    return (_TAILS * max(self.delta - infinite, 0.0) if self.delta is not None else
            _TAILS * (_FIRST_DELTA if known is None else known))

  def resolution(self, total: _Total, known: float | None) -> tuple[float, float, float]:
    """(theta, error of log delta at it that may double the answer, its least unit)."""
    if self.delta is None:
      return _best_theta(total, lambda t: total.exponent(t) - t * self.epsilon), 1.0, 0.0
    cost = lambda t: (total.exponent(t) - math.log(self.delta)) / t
    theta = _best_theta(total, cost)
    epsilon_ = cost(theta) if known is None else min(known, cost(theta))
    least = _LEAST_EXPONENT / theta
    return theta, theta * max(epsilon_, least), least


class _Way(NamedTuple):
  """One direction: each factor's atoms within the tails, and how to list them."""

  parts: list[tuple[pairs.Atoms, counts.Counts]]
  step: float | None  # None: no grid is needed.
  least: float  # Absolute accuracy that is enough.

  def total(self, sign: int = 1) -> _Total:
    losses = []
    for atoms, count in self.parts:
      if self.step is None:
        index, loss, mass = None, atoms.loss, atoms.p
      else:
        index, mass = pairs.on_grid(atoms, self.step)
        loss = self.step * index
      losses.append(_Losses(index, loss, np.log(mass), atoms.p_only, count))
    return _Total(losses, self.step or 1e-9, sign)


def _way(factors: tuple[pairs.Factor, ...], number: int, fraction: float,
         query: _Query, known: float | None) -> _Way | None:
  """A direction on a grid of a fraction of the step that may double the answer.

  Moving a loss to the two multiples of a step h around it multiplies its part in
  E[e^(theta loss)] by at most about 1 + theta (1 + theta) h^2 / 8. So the logarithm of
  delta grows by at most that for each release, which decides h. Where theta is small,
  h is small against the spread of the total loss.

  Returns None if it is the same as one of a lower number, 0 or 1.
  """
  cells = math.ceil(min(max(_CELLS / fraction, _FEWEST_CELLS), _MOST_CELLS))
  listed = [(pair.atoms(cells), count if isinstance(count, counts.Counts) else
             counts.Counts(first=count)) for pair, count in factors]
  if all(number >= len(atoms) for atoms, _ in listed):
    return None
  parts = [(atoms[min(number, len(atoms) - 1)], count) for atoms, count in listed]
  releases = max(1, sum(count.most for _, count in parts))
  tail = query.tail(known, sum(
      count.missing + count.most * atoms.p_only for atoms, count in parts)) / releases
  bare = _Way([(pairs.within(atoms, tail), count) for atoms, count in parts], None, 0.0)
  total = bare.total()
  if total.harmless or total.infinite >= (query.delta or 1.0):
    return bare
  theta, room, least = query.resolution(total, known)
  return bare._replace(least=least, step=fraction * math.sqrt(
      8 * room / releases / (theta * (1 + theta) + total.moments(theta)[1]**-2)))


def _converged(factors: tuple[pairs.Factor, ...], number: int, query: _Query,
               enough: float) -> tuple[float, float]:
  """A dominating answer on a grid so fine that a finer one hardly matters.

  The answer on every grid is safe; its error falls with the square of the step. One
  that is at most `enough` need not be refined.

  Returns the answer in a direction, and one that is known to be too small: the same
  where it has settled, 0 where nothing better is known.
  """
  fraction, finest, best = _FIRST_FRACTION, None, None
  for _ in range(_MAX_ROUNDS):
    try:
      if (way := _way(factors, number, fraction, query, best)) is None:
        return enough, 0.0
      answer = query.answer(way.total())
    except _GridTooLarge:
      if best is not None:
        break
      fraction *= 8
      continue
    if answer <= enough or way.step is None:
      return answer, answer if answer > enough else 0.0
    finest = way
    settled = best is not None and best - answer <= _SETTLED * max(best, way.least)
    if best is None or answer >= best / 2:  # Else the tails still decide.
      fraction /= _FINER
    best = answer if best is None else min(best, answer)
    if settled:
      return best, best
  if best is None:
    raise pairs.TooLarge('the losses are too unequal for a common grid')
  return best, 0.0 if query.delta is None else min(best, _lowest(finest, query.delta))


def _answer(factors: tuple[pairs.Factor, ...], query: _Query) -> tuple[float, float]:
  """The larger of the answers of both directions, and of those that are too small."""
  factors = pairs.simplified(factors)
  if mixture := gaussian_mixtures.of(factors):
    exact = (mixture.delta(query.epsilon) if query.delta is None
             else mixture.epsilon(query.delta))
    return exact, exact
  first, low = _converged(factors, 0, query, 0.0)
  second, other = _converged(factors, 1, query, first)
  return max(first, second), max(low, other)


def _rounding(way: _Way, chance: float) -> float:
  """By how much rounding raises the total loss, up to this chance (Chernoff)."""
  def log_moment(s: float) -> float:
    total = 0.0
    for atoms, count in way.parts:
      offset = np.mod(atoms.loss, way.step)
      up = np.expm1(-offset) / np.expm1(-way.step)
      excess = float(atoms.p @ ((1 - up) * np.expm1(-s * offset) +
                                up * np.expm1(s * (way.step - offset))))
      total += count.most * math.log1p(max(excess, 0.0))
    return total

  return min((log_moment(s) - math.log(chance)) / s
             for s in 2.0**np.arange(-30, 6) / way.step)


def _lowest(way: _Way, delta: float) -> float:
  """An epsilon below that of the listed pairs, from a grid that need not be fine.

  A total loss L on the grid is one of the pairs plus what rounding added, R, unless one
  was in a tail. So delta(e) >= delta_L(e + r) - P[R > r] - P[in a tail], for any r.
  """
  room = _TAILS * delta
  return max(0.0, _epsilon_of(way.total(-1), delta + 3 * room) - _rounding(way, room))


def _best_of_tilts(total: _Total, theta: float, slack: float,
                   ask: Callable[[_Distribution], float | None],
                   epsilon_of: Callable[[float], float]) -> float | None:
  """The tightest of the answers for falling theta; each is safe on its own.

  Where losses are bounded or very unequal the Chernoff theta is too large.
  """
  best, error = None, None
  for _ in range(_MAX_TILTS):
    try:
      distribution, error = total.distribution(theta, slack), None
    except _GridTooLarge as too_large:
      if best is not None or error is not None and too_large.size > error.size / 2:
        break
      error, theta = too_large, 0.7 * theta  # Nearer to most losses it is smaller.
      continue
    if (answer := ask(distribution)) is None:
      theta, slack = theta / 4, slack * 1.5  # Below the window: widen it.
      continue
    best = answer if best is None else min(best, answer)
    if (distance := theta * (distribution.peak - epsilon_of(answer))) <= _FARTHEST:
      break
    theta /= max(2.0, 2 * distance / _FARTHEST)
  if error is not None:
    raise error
  return best


def _epsilon_of(total: _Total, delta: float) -> float:
  """A safe epsilon of the total loss for delta."""
  if total.infinite <= delta and total.harmless:
    return 0.0
  if total.infinite >= delta:
    return math.inf
  # By Chernoff delta(0) <= e^chance; is epsilon 0 perhaps enough?
  chance = total.exponent(_best_theta(total, total.exponent))
  if chance < math.log(delta) + 5 and _delta_of(total, 0.0) <= delta:
    return 0.0
  theta = _best_theta(total, lambda t: (total.exponent(t) - math.log(delta)) / t)
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
  return min(1.0, _best_of_tilts(
      total, _best_theta(total, lambda t: total.exponent(t) - t * epsilon), 40.0,
      lambda distribution: distribution.delta(epsilon), lambda _: epsilon))


def bracket(factors: tuple[pairs.Factor, ...], delta: float) -> tuple[float, float]:
  """A safe epsilon of composed pairs, and one that no finer grid can go below.

  Args:
    factors: Pairs and how often each is composed. No factors cost nothing.
    delta: In (0, 1).

  Returns (epsilon, lowest): the same number twice where finer grids changed epsilon by
  less than 0.1%; lowest is up to round-off.

  Raises pairs.TooLarge if the losses cannot be listed.
  """
  return _answer(factors, _Query(None, delta))


def delta(factors: tuple[pairs.Factor, ...], epsilon: float) -> float:
  """A safe delta of composed pairs at epsilon >= 0."""
  return _answer(factors, _Query(epsilon, None))[0]
