"""Epsilon of votes that were cast, and by the published formulas.

When the winner wins by a wide margin, the release hardly depends on any one voter.
How little is a property of the private votes: an epsilon computed from them is itself
sensitive and must not be published, unless it is released with noise (`release`).
"""

import collections
from collections.abc import Iterable, Mapping, Sequence
import functools
import math

import numpy as np
from scipy import optimize, special

from tff_pipelines.accounting.divergences import curves, skellam_distribution
from tff_pipelines.accounting.events.voting import Vote
from tff_pipelines.accounting.guarantees import accountant
from tff_pipelines.common import validate


def checked_counts(votes: Sequence[int]) -> np.ndarray:
  """The counts of one query; ValueError unless they are integers >= 0 of 2 labels."""
  counts = np.asarray(votes)
  if counts.ndim != 1 or counts.size < 2:
    raise ValueError(f'votes must have a count of each of 2 labels, found {votes!r}')
  if not np.issubdtype(counts.dtype, np.integer) or (counts < 0).any():
    raise ValueError(f'votes must be integers from 0 on, found {votes!r}')
  return counts


def moved_votes(event: Vote) -> int:
  """The most that one neighbour moves the difference of two integer counts."""
  return event.max_weight * (event.votes if event.level == 'agent' else 2)


def log_wrong_probability(event: Vote, votes: Sequence[int]) -> float:
  """log of an upper bound on the probability that another label is released.

  It holds for these votes and all neighbouring ones, so that `data_dependent_curve` does
  in both directions: every gap is taken `moved_votes` smaller than it is. It is the union
  bound over the other labels of P[noise difference >= gap], by the distribution that is
  sampled: for Skellam noise of variance mu the difference is Sk(2 mu), ties included.
  Gaussian tails understate it.

  Args:
    event: One query.
    votes: Integer counts of each label, k votes an agent for 'knn'.
  """
  _check_one_label(event, 'a bound that depends on the votes')
  counts = checked_counts(votes)
  stddev = event.count_stddev
  if stddev == 0:
    return 0.0  # There is no guarantee that votes could improve.
  gaps = counts.max() - np.delete(counts, int(counts.argmax())) - moved_votes(event)
  if event.noise == 'gaussian':
    return _log_union(gaps, stddev)
  with np.errstate(divide='ignore'):
    logs = np.log([skellam_distribution.tail(int(gap), 2 * stddev**2) for gap in gaps])
  return min(0.0, float(special.logsumexp(logs)))


def _check_one_label(event: Vote, what: str) -> None:
  if event.attributes > 1:
    raise ValueError(f'attributes must be 1 for {what}, found {event.attributes!r}')


def _log_union(gaps: np.ndarray, stddev: float) -> float:
  """The union bound on the probability that Gaussian noise closes one of the gaps."""
  return min(0.0, float(special.logsumexp(
      special.log_ndtr(-gaps / (stddev * math.sqrt(2))))))


def _counted(votes_of_queries: Iterable[Sequence[int]]
             ) -> Mapping[tuple[int, ...], int]:
  """The votes of queries, in increasing order, and how often each is there."""
  return collections.Counter(
      tuple(np.sort(checked_counts(votes)).tolist()) for votes in votes_of_queries)


def data_dependent_curve(log_q: float, curve: np.ndarray) -> np.ndarray:
  """Theorem 6 of arXiv 1802.08908, at integer orders.

  It is for any mechanism with this curve and any one outcome that fails to appear with
  probability at most q, and bounds the divergence from the output on an input for which
  q holds to that on a neighbour. With a q that holds for all neighbours too, as of
  `log_wrong_probability`, both directions are bounded. Where the theorem's condition on
  q fails, the curve itself is the answer.

  Args:
    log_q: log q <= 0, of the input and its neighbours.
    curve: Data-independent, to the order MAX_ORDER or less.

  Returns a curve nowhere above `curve`.
  """
  if not log_q <= 0:
    raise ValueError(f'log_q must be at most 0, found {log_q!r}')
  if log_q == 0 or not np.isfinite(curve).all():
    return curve
  # A larger q is a bound too, and keeps the cancellation below harmless.
  log_q = max(log_q, -2000.0)
  alpha = curves.orders(curve.size + 1)
  # The theorem is free to choose two higher orders: mu1 for the minimum of B, then
  # mu2 for the minimum of A among those that meet the condition.
  log_b = curve - log_q / (alpha - 1)
  mu1 = float(alpha[int(np.argmin(log_b))])
  log_b = float(log_b.min())
  inner = (log_q + curve) * (1 - 1 / alpha)
  limit = (alpha - 1) * curve - alpha * (
      math.log(mu1 / (mu1 - 1)) + np.log(alpha / (alpha - 1)))
  allowed = (inner < 0) & (log_q <= limit)
  if not allowed.any():
    return curve
  log_right = math.log1p(-math.exp(log_q))
  log_a = float(np.min(log_right - np.log(-np.expm1(inner[allowed]))))
  moment = np.logaddexp(log_right + (alpha - 1) * log_a, log_q + (alpha - 1) * log_b)
  bound = np.maximum(moment, 0) / (alpha - 1)
  return np.where(alpha <= mu1, np.minimum(curve, bound), curve)


def data_dependent_epsilon(event: Vote,
                           votes_of_queries: Iterable[Sequence[int]],
                           delta: float) -> float:
  """Epsilon of many queries on the votes that were cast; not to be published.

  Args:
    event: One query; with bound='paper' it counts by `published_curve`.
    votes_of_queries: For each query the integer counts of the labels.
    delta: Strictly between 0 and 1.
  """
  validate.open_unit_interval(delta=delta)
  times = _counted(votes_of_queries)
  if not times:
    raise ValueError('votes_of_queries must hold at least one query')
  curve = accountant.curve(event)
  total = sum(count * (
      published_curve(event, votes) if event.bound == 'paper' else
      data_dependent_curve(log_wrong_probability(event, votes), curve))
              for votes, count in times.items())
  return accountant.epsilon_of_curve(curves.checked(total, 'votes'), delta)[0]


def published_epsilon(event: Vote, queries: int, delta: float) -> float:
  """Epsilon by the published conversion, for the reproduction of its numbers.

  min over real alpha of Q alpha / (2 z^2) + ln(1/delta) / (alpha - 1), z the
  noise over the sensitivity of `event.bound` (Zhu et al. 2020, Theorem 5).
  """
  validate.integer(queries=queries, low=1)
  validate.open_unit_interval(delta=delta)
  if event.noise_stddev == 0:
    return math.inf
  slope = queries * (event.l2_sensitivity / event.noise_stddev)**2 / 2
  return slope + 2 * math.sqrt(slope * math.log(1 / delta))


def published_curve(event: Vote, votes: Sequence[int],
                    max_order: int = curves.MAX_ORDER) -> np.ndarray:
  """Theorem 7 of Zhu et al. 2020, corrected, for one query; for comparison.

  Two corrections: the square root of q halves the exponent of the second term
  (16 where 8 is printed), and q must bound the event under the neighbour, whose
  margin is smaller by what one neighbour can move.

  Returns a curve nowhere above the data-independent one; not to be published.
  """
  if event.noise != 'gaussian':
    raise ValueError(f'noise must be gaussian as published, found {event.noise!r}')
  _check_one_label(event, 'the published formula')
  curve = event.curve(max_order, 'tight')
  counts = np.sort(checked_counts(votes))[::-1] / event.votes
  if event.noise_stddev == 0:
    return curve
  moved = moved_votes(event) / event.votes
  margin = max(0.0, float(counts[0] - counts[1]) - moved)
  exponent = (margin / event.noise_stddev)**2
  labels = counts.size
  q = labels * math.exp(-exponent / 8)
  if q > 0.75:  # Beyond, 2q no longer bounds -log(1 - q).
    return curve
  alpha = curves.orders(max_order)
  second = np.logaddexp(0.0, (
      (2 * alpha - 1) * alpha * (event.l2_sensitivity / event.noise_stddev)**2 / 2
      - exponent / 16 + math.log(labels) / 2)) / (alpha - 1)
  return np.minimum(curve, 2 * q + second)


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
  error = ValueError(f'order={order!r} has no useful data-dependent bound at '
                     f'noise_stddev={stddev!r}')
  for _ in range(200):
    if _condition(upper, stddev, order):
      break
    upper *= 1.1
  else:
    raise error
  if gap(upper) <= 0:
    return upper
  lower = 2 * upper
  while gap(lower) > 0:
    lower *= 1.5
    if lower < -1e5:
      raise error
  return optimize.brentq(gap, lower, upper, xtol=1e-12)


def cost(log_q: float, stddev: float, order: float) -> float:
  """The data-dependent cost of one query as the release uses it."""
  is_of_any_votes = log_q >= threshold(stddev, order)
  return order / stddev**2 if is_of_any_votes else _dependent(log_q, stddev, order)


def _shifted(log_q: float, stddev: float, labels: int, way: int) -> float:
  """log of the bound on q after one vote moved against (1) or for (-1) the winner."""
  others = labels - 1
  # P = others * ndtr(-x); one moved vote shifts x by sqrt(2) / stddev.
  x = -special.ndtri_exp(log_q - math.log(others))
  shifted = special.log_ndtr(-(x - way * math.sqrt(2) / stddev))
  return min(0.0, math.log(others) + float(shifted))


def _first_threshold(stddev: float, labels: int, order: float) -> float:
  """log q1, from which one moved vote reaches log q0."""
  return _shifted(threshold(stddev, order), stddev, labels, -1)


def local_sensitivity(log_q: float, stddev: float, labels: int, order: float) -> float:
  """Maximum change of the cost by one moved vote (Proposition 13)."""
  first = _first_threshold(stddev, labels, order)
  if first <= log_q <= threshold(stddev, order):
    log_q = first
  here = cost(log_q, stddev, order)
  up = cost(_shifted(log_q, stddev, labels, 1), stddev, order)
  down = cost(_shifted(log_q, stddev, labels, -1), stddev, order)
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
      cost(_shifted(x, stddev, labels, 1), stddev, order) -
      _dependent(x, stddev, order) for x in grid_up])
  for name, values in (('C5', costs), ('C6', steps)):
    if (np.diff(values) < -1e-12 * np.abs(values).max()).any():
      raise ValueError(f'order={order!r} does not meet condition {name} of the smooth '
                       f'sensitivity at noise_stddev={stddev!r}, {labels} labels')


def _log_q(votes: Sequence[int], stddev: float) -> float:
  """`log_wrong_probability` of sorted votes, which neighbours move by 2."""
  return _log_union(votes[0] - np.array(votes[1:]) - 2, stddev)


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


def exact_cost(event: Vote, votes_of_queries: Iterable[Sequence[int]],
               order: float, beta: float) -> tuple[float, float]:
  """The data-dependent cost of many queries and its smooth sensitivity.

  Both are as private as the votes. Arguments and errors are those of `release`.
  """
  if (event.noise, event.scheme, event.level, event.attributes,
      event.max_weight) != ('gaussian', 'ae', 'instance', 1, 1):
    raise ValueError('smooth sensitivity is proved for noise=gaussian, scheme=ae, '
                     'level=instance, one label and unweighted votes only, found '
                     f'{event!r}')
  stddev = event.noise_stddev
  validate.positive(noise_stddev=stddev, order=order)
  times = _counted(votes_of_queries)
  exact, by_distance = 0.0, np.zeros(max([1, *map(sum, times)]))
  for votes, count in times.items():
    check_conditions(stddev, len(votes), order)
    exact += count * cost(_log_q(votes[::-1], stddev), stddev, order)
    bounds = sensitivities_at_distance(votes, stddev, order)
    # Beyond its last entry a query keeps its plateau, an upper bound.
    by_distance += count * np.pad(bounds, (0, by_distance.size - bounds.size), 'edge')
  return exact, float(np.max(by_distance * np.exp(-beta * np.arange(by_distance.size))))


def release_cost(beta: float, noise: float, order: float) -> float:
  """Renyi cost of releasing a value with smooth noise (Theorem 23).

  Args:
    beta: Smoothness > 0, with order < 1 / (2 beta).
    noise: Noise over smooth sensitivity, > 0.
    order: > 1.
  """
  validate.positive(beta=beta, noise=noise)
  if not 1 < order < 1 / (2 * beta):
    raise ValueError(f'order must be in (1, {1 / (2 * beta):.6g}), found {order!r}')
  return order * math.exp(2 * beta) / noise**2 + (
      -0.5 * math.log1p(-2 * order * beta) + beta * order) / (order - 1)


def epsilon_of_cost(renyi_cost: float, order: float, delta: float) -> float:
  """Epsilon at delta of a Renyi cost at one order (arXiv 2004.00010, Prop. 12)."""
  return max(0.0, renyi_cost + math.log1p(-1 / order) - (
      math.log(delta) + math.log(order)) / (order - 1))


def release(event: Vote, votes_of_queries: Iterable[Sequence[int]], *,
            order: float, beta: float, noise: float,
            random: np.random.Generator) -> float:
  """Releases the data-dependent cost of many queries with smooth noise.

  The Renyi cost of Gaussian votes at one order, summed over the queries, is released
  as cost + SS * N(0, noise^2), SS being its smooth sensitivity (arXiv 1802.08908). The
  conditions of the proof on the order and the noise are checked numerically.

  Args:
    event: One query: 'ae', instance level, Gaussian noise.
    votes_of_queries: For each query the integer counts of the labels.
    order, beta, noise: As for `release_cost`.
    random: Source of the noise; it must be unpredictable for a private release.

  Returns the Renyi cost, at `order`, of the votes and of this release together; it may
  be published. It is an estimate, centred on the exact cost: the noise may put it
  below. The part of the votes is at least 0.

  Raises ValueError for other votes, and where the proof's conditions fail.
  """
  own = release_cost(beta, noise, order)
  exact, smooth = exact_cost(event, votes_of_queries, order, beta)
  return own + max(0.0, exact + smooth * noise * float(random.standard_normal()))
