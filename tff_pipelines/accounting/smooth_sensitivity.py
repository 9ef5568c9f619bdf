"""Releasing a data-dependent cost of votes with noise (arXiv 1802.08908).

The Renyi cost of Gaussian votes at one order, summed over the queries, is
released as cost + SS * N(0, noise^2), SS being its smooth sensitivity. Proved
for Gaussian noise, one vote moved from one label to another. The conditions of
the proof on the order and the noise are checked numerically; where they fail, a
ValueError says so.
"""

import dataclasses
import functools
import math

import numpy as np
from scipy import optimize
from scipy import special

from aggregators import validate
from tff_pipelines.accounting import vote_events


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoisyCost:
  """A data-dependent Renyi cost that may be published.

  Attributes:
    cost: The released value, at `order`; at least 0. An estimate of the exact
      cost, centred on it: the noise may put it below.
    release_cost: What releasing it costs by itself, at the same order.
    order: The Renyi order of both.
    smooth_sensitivity: Of the exact cost; it is as private as the votes.
  """

  cost: float
  release_cost: float
  order: float
  smooth_sensitivity: float

  @property
  def total(self) -> float:
    """The Renyi cost of the votes and of the release of their cost."""
    return self.cost + self.release_cost


def _independent(stddev: float, order: float) -> float:
  return order / stddev**2


def _dependent(log_q: float, stddev: float, order: float) -> float:
  """Theorem 6 with the orders of Proposition 10; its condition is not checked."""
  mu2 = stddev * math.sqrt(-log_q)
  mu1 = mu2 + 1
  eps1, eps2 = mu1 / stddev**2, mu2 / stddev**2
  log_right = math.log1p(-math.exp(log_q))
  log_a = log_right - math.log(-math.expm1((log_q + eps2) * (1 - 1 / mu2)))
  log_b = eps1 - log_q / (mu1 - 1)
  return float(np.logaddexp(log_right + (order - 1) * log_a,
                            log_q + (order - 1) * log_b)) / (order - 1)


def _condition(log_q: float, stddev: float, order: float) -> bool:
  mu2 = stddev * math.sqrt(-log_q)
  if mu2 <= 1 or mu2 + 1 < order:
    return False
  eps2 = mu2 / stddev**2
  return log_q + eps2 < 0 and log_q <= (mu2 - 1) * eps2 - mu2 * (
      math.log((mu2 + 1) / mu2) + math.log(mu2 / (mu2 - 1)))


@functools.lru_cache(maxsize=1024)
def threshold(stddev: float, order: float) -> float:
  """log q0, below which the data-dependent bound is the lower one."""
  def gap(log_q):
    return _dependent(log_q, stddev, order) - _independent(stddev, order)

  upper = min(-(1 + 1 / stddev)**2, -((order - 0.99) / stddev)**2,
              -1 / stddev**2)
  for _ in range(200):
    if _condition(upper, stddev, order):
      break
    upper *= 1.1
  else:
    raise ValueError(
        f'order={order!r} has no data-dependent bound at noise_stddev='
        f'{stddev!r}')
  if gap(upper) <= 0:
    return upper
  lower = 2 * upper
  while gap(lower) > 0:
    lower *= 1.5
    if lower < -1e5:
      raise ValueError(
          f'order={order!r} has no useful data-dependent bound at '
          f'noise_stddev={stddev!r}')
  return optimize.brentq(gap, lower, upper, xtol=1e-12)


def cost(log_q: float, stddev: float, order: float) -> float:
  """The data-dependent cost of one query as the release uses it."""
  if log_q >= threshold(stddev, order):
    return _independent(stddev, order)
  return _dependent(log_q, stddev, order)


def _moved(log_q: float, stddev: float, labels: int, way: int) -> float:
  """log of the bound on q after one vote moved against or for the winner."""
  others = labels - 1
  # P = others * ndtr(-x); one moved vote shifts x by sqrt(2) / stddev.
  x = -special.ndtri_exp(log_q - math.log(others))
  shifted = special.log_ndtr(-(x - way * math.sqrt(2) / stddev))
  return min(0.0, math.log(others) + float(shifted))


def _first_threshold(stddev: float, labels: int, order: float) -> float:
  """log q1, from which one moved vote reaches log q0."""
  return _moved(threshold(stddev, order), stddev, labels, -1)


def local_sensitivity(log_q: float, stddev: float, labels: int,
                      order: float) -> float:
  """By how much one moved vote changes the cost (Proposition 13)."""
  first = _first_threshold(stddev, labels, order)
  if first <= log_q <= threshold(stddev, order):
    log_q = first
  here = cost(log_q, stddev, order)
  up = cost(_moved(log_q, stddev, labels, 1), stddev, order)
  down = cost(_moved(log_q, stddev, labels, -1), stddev, order)
  return max(up - here, here - down)


@functools.lru_cache(maxsize=1024)
def check_conditions(stddev: float, labels: int, order: float) -> None:
  """Raises ValueError unless conditions C5 and C6 hold (appendix B.4).

  The cost, and the step by which one moved vote raises it, must not decrease
  with q below their thresholds. Checked on a grid of log q.
  """
  last = threshold(stddev, order)
  grid = np.linspace(min(20 * last, -500.0), last, 400, endpoint=False)
  costs = np.array([_dependent(x, stddev, order) for x in grid])
  first = _first_threshold(stddev, labels, order)
  grid_up = np.linspace(min(20 * first, -500.0), first, 400, endpoint=False)
  steps = np.array([
      cost(_moved(x, stddev, labels, 1), stddev, order) -
      _dependent(x, stddev, order) for x in grid_up])
  for name, values in (('C5', costs), ('C6', steps)):
    if (np.diff(values) < -1e-12 * np.abs(values).max()).any():
      raise ValueError(
          f'order={order!r} does not meet condition {name} of the smooth '
          f'sensitivity at noise_stddev={stddev!r} and {labels} labels')


def _log_q(votes: list[int], stddev: float) -> float:
  gaps = np.array(votes[0] - np.array(votes[1:]), dtype=np.float64)
  return min(float(special.logsumexp(
      special.log_ndtr(-gaps / (stddev * math.sqrt(2))))),
             math.log1p(-1 / len(votes)))


def sensitivities_at_distance(votes, stddev: float, order: float) -> np.ndarray:
  """Local sensitivity after d moved votes, d = 0..number of voters - 1."""
  ordered = sorted((int(vote) for vote in votes), reverse=True)
  voters, labels = sum(ordered), len(ordered)
  last = threshold(stddev, order)
  first = _first_threshold(stddev, labels, order)
  plateau = local_sensitivity(first, stddev, labels, order)
  result = np.full(max(voters, 1), plateau)
  log_q = _log_q(ordered, stddev)
  if first <= log_q <= last:
    return result
  widening = log_q > last
  for distance in range(result.size):
    result[distance] = local_sensitivity(log_q, stddev, labels, order)
    if widening:
      if log_q <= last or ordered[1] == 0:
        break
      ordered[0], ordered[1] = ordered[0] + 1, ordered[1] - 1
      ordered[1:] = sorted(ordered[1:], reverse=True)
    else:
      if log_q >= first:
        break
      ordered[0], ordered[1] = ordered[0] - 1, ordered[1] + 1
      ordered.sort(reverse=True)
    log_q = _log_q(ordered, stddev)
  return result


def release_cost(beta: float, noise: float, order: float) -> float:
  """Renyi cost of releasing a value with smooth noise (Theorem 23).

  Args:
    beta: Smoothness > 0, with order < 1 / (2 beta).
    noise: Noise over smooth sensitivity, > 0.
    order: > 1.
  """
  validate.positive(beta=beta, noise=noise)
  if not 1 < order < 1 / (2 * beta):
    raise ValueError(
        f'order must be in (1, 1/(2 beta)) = (1, {1 / (2 * beta):.6g}), found '
        f'{order!r}')
  return order * math.exp(2 * beta) / noise**2 + (
      -0.5 * math.log1p(-2 * order * beta) + beta * order) / (order - 1)


def release(event: vote_events.Vote, votes_of_queries, *, order: float,
            beta: float, noise: float,
            random: np.random.Generator) -> NoisyCost:
  """Releases the data-dependent cost of many queries with smooth noise.

  Args:
    event: One query: 'ae', instance level, Gaussian noise.
    votes_of_queries: For each query the integer counts of the labels.
    order: Renyi order > 1 of the cost.
    beta: Smoothness > 0, with order < 1 / (2 beta).
    noise: Noise over smooth sensitivity, > 0.
    random: Where the noise comes from; unpredictable in earnest.

  Raises:
    ValueError: For other votes, and where the proof's conditions fail.
  """
  if (event.noise, event.scheme, event.level, event.attributes,
      event.max_weight) != ('gaussian', 'ae', 'instance', 1, 1):
    raise ValueError(
        'smooth sensitivity is proved for noise=gaussian, scheme=ae, '
        'level=instance, one label and unweighted votes only, found '
        f'{event!r}')
  validate.positive(noise_stddev=event.noise_stddev)
  validate.finite(order=order)
  own = release_cost(beta, noise, order)
  stddev = event.noise_stddev
  exact, by_distance = 0.0, np.zeros(1)
  known: dict[tuple[int, ...], np.ndarray] = {}
  for votes in votes_of_queries:
    check_conditions(stddev, len(votes), order)
    ordered = sorted((int(vote) for vote in votes), reverse=True)
    exact += cost(_log_q(ordered, stddev), stddev, order)
    key = tuple(ordered)
    if key not in known:
      known[key] = sensitivities_at_distance(ordered, stddev, order)
    found = known[key]
    size = max(found.size, by_distance.size)
    # Beyond its last entry a query keeps its plateau, an upper bound.
    by_distance = np.pad(by_distance, (0, size - by_distance.size), 'edge'
                        ) + np.pad(found, (0, size - found.size), 'edge')
  smooth = float(np.max(by_distance * np.exp(
      -beta * np.arange(by_distance.size))))
  noisy = exact + smooth * noise * float(random.standard_normal())
  return NoisyCost(cost=max(0.0, noisy), release_cost=own, order=order,
                   smooth_sensitivity=smooth)
