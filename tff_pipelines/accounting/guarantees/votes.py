"""Epsilon of votes that were cast, and by the published formulas.

When the winner wins by a wide margin, the release hardly depends on any one voter.
How little is a property of the private votes: an epsilon computed from them is itself
sensitive and must not be published.
"""

import collections
from collections.abc import Iterable, Sequence
import math

import numpy as np
from scipy import special

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
  if (stddev := event.count_stddev) == 0:
    return 0.0  # There is no guarantee that votes could improve.
  gaps = counts.max() - np.delete(counts, int(counts.argmax())) - moved_votes(event)
  if event.noise == 'gaussian':
    return min(0.0, float(special.logsumexp(
        special.log_ndtr(-gaps / (stddev * math.sqrt(2))))))
  with np.errstate(divide='ignore'):
    logs = np.log([skellam_distribution.tail(int(gap), 2 * stddev**2) for gap in gaps])
  return min(0.0, float(special.logsumexp(logs)))


def _check_one_label(event: Vote, what: str) -> None:
  if event.attributes > 1:
    raise ValueError(f'attributes must be 1 for {what}, found {event.attributes!r}')


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


def data_dependent_epsilon(event: Vote, votes_of_queries: Iterable[Sequence[int]],
                           delta: float) -> float:
  """Epsilon of many queries on the votes that were cast; not to be published.

  Args:
    event: One query; with bound='paper' it counts by `published_curve`.
    votes_of_queries: For each query the integer counts of the labels.
    delta: Strictly between 0 and 1.
  """
  validate.open_unit_interval(delta=delta)
  # The votes of queries, in increasing order, and how often each is there.
  times = collections.Counter(
      tuple(np.sort(checked_counts(votes)).tolist()) for votes in votes_of_queries)
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
