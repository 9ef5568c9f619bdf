"""Releasing a data-dependent cost of votes with noise (arXiv 1802.08908).

The Renyi cost of Gaussian votes at one order, summed over the queries, is
released as cost + SS * N(0, noise^2), SS being its smooth sensitivity. Proved
for Gaussian noise, one vote moved from one label to another. The conditions of
the proof on the order and the noise are checked numerically; where they fail, a
ValueError says so.
"""

import collections
from collections.abc import Iterable, Sequence
import functools
import math

import numpy as np
from scipy import optimize
from scipy import special

from aggregators import validate
from tff_pipelines.accounting import vote_events
from tff_pipelines.accounting import voting


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
    return _dependent(log_q, stddev, order) - order / stddev**2

  upper = min(-(1 + 1 / stddev)**2, -((order - 0.99) / stddev)**2)
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
    return order / stddev**2  # Of any votes.
  return _dependent(log_q, stddev, order)


def _moved(log_q: float, stddev: float, labels: int, way: int) -> float:
  """log of the bound on q after one vote moved against (1) or for (-1) the winner."""
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
  """Maximum change of the cost by one moved vote (Proposition 13)."""
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


def sensitivities_at_distance(votes: Sequence[int], stddev: float,
                              order: float) -> np.ndarray:
  """Local sensitivity after d moved votes, d = 0..number of voters - 1."""
  ordered = sorted(votes, reverse=True)
  labels = len(ordered)
  last = threshold(stddev, order)
  first = _first_threshold(stddev, labels, order)
  result = np.full(
      max(sum(ordered), 1), local_sensitivity(first, stddev, labels, order))
  log_q = _log_q(ordered, stddev)
  if first <= log_q <= last:
    return result
  step = 1 if log_q > last else -1  # Votes move to the winner, or away from it.
  for distance in range(result.size):
    result[distance] = local_sensitivity(log_q, stddev, labels, order)
    if (log_q <= last or ordered[1] == 0) if step > 0 else log_q >= first:
      break
    ordered[0] += step
    ordered[1] -= step
    ordered.sort(reverse=True)
    log_q = _log_q(ordered, stddev)
  return result


def exact_cost(event: vote_events.Vote, votes_of_queries: Iterable[Sequence[int]],
               order: float, beta: float) -> tuple[float, float]:
  """The data-dependent cost of many queries and its smooth sensitivity.

  Both are as private as the votes. Arguments and errors are those of `release`.
  """
  if (event.noise, event.scheme, event.level, event.attributes,
      event.max_weight) != ('gaussian', 'ae', 'instance', 1, 1):
    raise ValueError(
        'smooth sensitivity is proved for noise=gaussian, scheme=ae, '
        'level=instance, one label and unweighted votes only, found '
        f'{event!r}')
  stddev = event.noise_stddev
  validate.positive(noise_stddev=stddev, order=order)
  times = collections.Counter(
      tuple(np.sort(voting.checked_counts(votes))[::-1].tolist())
      for votes in votes_of_queries)
  exact, by_distance = 0.0, np.zeros(max([1, *map(sum, times)]))
  for votes, count in times.items():
    check_conditions(stddev, len(votes), order)
    exact += count * cost(_log_q(votes, stddev), stddev, order)
    bounds = sensitivities_at_distance(votes, stddev, order)
    # Beyond its last entry a query keeps its plateau, an upper bound.
    by_distance += count * np.pad(bounds, (0, by_distance.size - bounds.size), 'edge')
  return exact, float(np.max(
      by_distance * np.exp(-beta * np.arange(by_distance.size))))


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


def epsilon_of_cost(renyi_cost: float, order: float, delta: float) -> float:
  """Epsilon at delta of a Renyi cost at one order (arXiv 2004.00010, Prop. 12)."""
  return max(0.0, renyi_cost + math.log1p(-1 / order) - (
      math.log(delta) + math.log(order)) / (order - 1))


def release(event: vote_events.Vote, votes_of_queries: Iterable[Sequence[int]], *,
            order: float, beta: float, noise: float,
            random: np.random.Generator) -> float:
  """Releases the data-dependent cost of many queries with smooth noise.

  Args:
    event: One query: 'ae', instance level, Gaussian noise.
    votes_of_queries: For each query the integer counts of the labels.
    order: Renyi order > 1 of the cost.
    beta: Smoothness > 0, with order < 1 / (2 beta).
    noise: Noise over smooth sensitivity, > 0.
    random: Source of the noise; it must be unpredictable for a private release.

  Returns:
    The Renyi cost, at `order`, of the votes and of this release together; it may be
    published. It is an estimate, centred on the exact cost: the noise may put it
    below. The part of the votes is at least 0.

  Raises:
    ValueError: For other votes, and where the proof's conditions fail.
  """
  own = release_cost(beta, noise, order)
  exact, smooth = exact_cost(event, votes_of_queries, order, beta)
  return own + max(0.0, exact + smooth * noise * float(random.standard_normal()))
