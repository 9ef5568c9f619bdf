"""PATE: labels of public images by a noisy vote of teachers, if they agree.

The Confident-GNMax aggregator (arXiv 1802.08908, Algorithm 1) of a curator who sees
all votes. Noise is discrete Gaussian, drawn by integers, and so are the votes.
"""

import dataclasses
from typing import Sequence

import numpy as np
import tensorflow as tf

from aggregators import alias_draw
from aggregators import discrete_gaussian_table
from aggregators import keys
from aggregators import validate
from tff_pipelines.algorithms import ldp_distillation


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConfidentGnmax:
  """The aggregator.

  Attributes:
    threshold: Votes of the winner, with noise, that an answer takes.
    threshold_stddev: Of that noise, votes, > 0.
    stddev: Of the noise on each label's votes, > 0.
    most_answers: No more queries are answered, >= 1.
  """

  threshold: float
  threshold_stddev: float
  stddev: float
  most_answers: int

  def __post_init__(self):
    validate.finite(threshold=self.threshold)
    validate.positive(threshold_stddev=self.threshold_stddev, stddev=self.stddev)
    validate.integer(most_answers=self.most_answers, low=1)
    for name in ('threshold_stddev', 'stddev'):
      if not discrete_gaussian_table.fits(_variance(getattr(self, name))):
        raise ValueError(f'{name}={getattr(self, name)!r} is too large: its table '
                         'of the noise would be')

  def deviation(self, queries: int, classes: int) -> float:
    """Total variation between all draws of a call and their exact laws.

    Noise is drawn for the labels of every query, answered or not. Random words are
    taken as uniform.
    """
    draws = queries * (1 + classes)
    return min(1.0, draws * discrete_gaussian_table.TOTAL_VARIATION)


def _variance(stddev: float) -> float:
  """Rounded up, as what is accounted for is not."""
  return stddev**2 * (1 + 2.0**-40)


def _noise(stddev: float, key: tf.Tensor, shape: Sequence[int]) -> np.ndarray:
  """int64 draws of the discrete Gaussian."""
  table = discrete_gaussian_table.build(_variance(stddev))
  word_key, tie_key = keys.split(key, 2)
  low, high = tf.unstack(
      keys.words(word_key, [2, int(np.prod(shape))], tf.int32))
  drawn = alias_draw.draw(low, high, tie_key, tf.constant(table.packed),
                          tf.constant(table.tie))
  return np.reshape(drawn.numpy().astype(np.int64), shape)


def count_votes(features: np.ndarray, teachers: Sequence[np.ndarray]) -> np.ndarray:
  """int64 [n, classes]: how many teachers name each class; private.

  Args:
    features: float32 [n, dimension].
    teachers: Weights, float32 [dimension, classes].
  """
  votes = np.zeros([len(features), teachers[0].shape[1]], np.int64)
  for weights in teachers:
    named = ldp_distillation.scores(features, weights).argmax(axis=1)
    votes[np.arange(len(features)), named] += 1
  return votes


def answer(votes: np.ndarray, aggregator: ConfidentGnmax,
           key: tf.Tensor) -> np.ndarray:
  """Answers queries, in their order.

  Formal guarantees. One owner moves one vote of a query: the largest count by at
  most 1, the counts by sqrt(2) in L2. So a query costs at most a Gaussian release
  of the sensitivity 1 and noise `threshold_stddev`, and, if it is answered, one of
  sqrt(2) and `stddev`. What is not answered for lack of agreement or because
  `most_answers` is reached shows as -1.

  Args:
    votes: int64 [n, classes].
    aggregator: How.
    key: int64[2], of this call alone.

  Returns:
    int64 [n], labels, or -1.
  """
  check_key, label_key = keys.split(key, 2)
  agreed = votes.max(axis=1) + _noise(
      aggregator.threshold_stddev, check_key, [len(votes)]) >= aggregator.threshold
  named = np.argmax(
      votes + _noise(aggregator.stddev, label_key, votes.shape), axis=1)
  answered = agreed & (np.cumsum(agreed) <= aggregator.most_answers)
  return np.where(answered, named, -1)
