"""Data-dependent bounds for votes, and the published formulas to compare with.

When the winner wins by a wide margin, the release hardly depends on any one
voter. How little is a property of the private votes: an epsilon computed here
is itself sensitive and must not be published, unless it is released with noise
(`smooth_sensitivity`).
"""

import collections
from collections.abc import Iterable, Sequence
import math

import numpy as np
from scipy import special

from aggregators import validate
from tff_pipelines.accounting import curves
from tff_pipelines.accounting import rdp
from tff_pipelines.accounting import skellam_distribution
from tff_pipelines.accounting import vote_events


def checked_counts(votes: Sequence[int]) -> np.ndarray:
  """The counts of one query; ValueError unless they are integers >= 0 of 2 labels."""
  counts = np.asarray(votes)
  if counts.ndim != 1 or counts.size < 2:
    raise ValueError(
        f'votes must be one count for each of 2 labels or more, found {votes!r}')
  if not np.issubdtype(counts.dtype, np.integer) or (counts < 0).any():
    raise ValueError(f'votes must be integers from 0 on, found {votes!r}')
  return counts


def log_wrong_probability(event: vote_events.Vote, votes: Sequence[int]) -> float:
  """log of an upper bound on the probability that another label is released.

  The union bound over the other labels of P[noise difference >= gap], by the
  distribution that is sampled: for Skellam noise of variance mu the difference is
  Sk(2 mu), ties included. Gaussian tails understate it.

  Args:
    event: One query.
    votes: Integer counts of each label, k votes an agent for 'knn'.

  Returns:
    At most 0.
  """
  if event.attributes > 1:
    raise ValueError(
        'attributes must be 1 for a bound that depends on the votes: with more '
        f'there is no one winner; found {event.attributes!r}')
  counts = checked_counts(votes)
  stddev = event.count_stddev
  if stddev == 0:
    return -math.inf if (counts == counts.max()).sum() == 1 else 0.0
  gaps = counts.max() - np.delete(counts, int(counts.argmax()))
  if event.noise == 'gaussian':
    logs = special.log_ndtr(-gaps / (stddev * math.sqrt(2)))
  else:
    with np.errstate(divide='ignore'):
      logs = np.log([
          skellam_distribution.tail(int(gap), 2 * stddev**2) for gap in gaps])
  return min(0.0, float(special.logsumexp(logs)))


def data_dependent_curve(log_q: float, curve: np.ndarray) -> np.ndarray:
  """Theorem 6 of arXiv 1802.08908, at integer orders.

  For any mechanism with this curve and any one outcome that fails to appear
  with probability at most q. Where the theorem's condition on q fails, the
  curve itself is the answer.

  Args:
    log_q: log q <= 0.
    curve: Data-independent, to the order MAX_ORDER or less.

  Returns:
    A curve nowhere above `curve`.
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
  moment = np.logaddexp(log_right + (alpha - 1) * log_a,
                        log_q + (alpha - 1) * log_b)
  bound = np.maximum(moment, 0) / (alpha - 1)
  return np.where(alpha <= mu1, np.minimum(curve, bound), curve)


def data_dependent_epsilon(event: vote_events.Vote,
                           votes_of_queries: Iterable[Sequence[int]],
                           delta: float) -> float:
  """Epsilon of many queries on the votes that were cast; not to be published.

  Args:
    event: One query; with bound='paper' it counts by `published_curve`.
    votes_of_queries: For each query the integer counts of the labels.
    delta: Strictly between 0 and 1.

  Returns:
    At most the epsilon of the Renyi accountant for any votes.
  """
  validate.open_unit_interval(delta=delta)
  times = collections.Counter(
      tuple(np.sort(checked_counts(votes)).tolist()) for votes in votes_of_queries)
  if not times:
    raise ValueError('votes_of_queries must hold at least one query')
  if event.bound == 'paper':
    costs = {votes: published_curve(event, votes) for votes in times}
  else:
    curve = rdp.curve(event)
    costs = {votes: data_dependent_curve(log_wrong_probability(event, votes), curve)
             for votes in times}
  total = sum(count * costs[votes] for votes, count in times.items())
  return rdp.epsilon_of_curve(curves.checked(total, 'votes'), delta)[0]


def published_epsilon(event: vote_events.Vote, queries: int,
                      delta: float) -> float:
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


def published_curve(event: vote_events.Vote, votes: Sequence[int],
                    max_order: int = curves.MAX_ORDER) -> np.ndarray:
  """Theorem 7 of Zhu et al. 2020, corrected, for one query; for comparison.

  Two corrections: the square root of q halves the exponent of the second term
  (16 where 8 is printed), and q must bound the event under the neighbour, whose
  margin is smaller by what one neighbour can move.

  Args:
    event: One query with Gaussian noise.
    votes: As in `log_wrong_probability`.
    max_order: Largest order.

  Returns:
    A curve nowhere above the data-independent one; not to be published.
  """
  if event.noise != 'gaussian':
    raise ValueError('noise must be gaussian for the published formula, found '
                     f'{event.noise!r}')
  if event.attributes > 1:
    raise ValueError('attributes must be 1 for the published formula, found '
                     f'{event.attributes!r}')
  curve = event.curve(max_order, 'tight')
  counts = np.sort(checked_counts(votes))[::-1] / event.votes
  if event.noise_stddev == 0:
    return curve
  moved = event.max_weight * (1 if event.level == 'agent' else 2 / event.votes)
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
