"""PATE: labels of public images by a noisy vote of teachers, if they agree.

The Confident-GNMax aggregator (arXiv 1802.08908, Algorithm 1) of a curator who sees
all votes. Noise is discrete Gaussian, drawn by integers, and so are the votes.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from aggregators import alias_draw
from aggregators import discrete_gaussian_table
from aggregators import keys
from tff_pipelines.ldp import baseline_plan
from tff_pipelines.ldp import process


def _noise(stddev: float, key: tf.Tensor, shape: Sequence[int]) -> np.ndarray:
  """int64 draws of the discrete Gaussian."""
  table = discrete_gaussian_table.build(baseline_plan.variance(stddev))
  word_key, tie_key = keys.split(key, 2)
  low, high = tf.unstack(
      keys.random_bits(word_key, [2, int(np.prod(shape))], tf.int32))
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
    named = process.scores(features, weights).argmax(axis=1)
    votes[np.arange(len(features)), named] += 1
  return votes


def answer(votes: np.ndarray, plan: baseline_plan.PatePlan,
           key: tf.Tensor) -> np.ndarray:
  """Answers queries, in their order.

  Formal guarantees. One owner moves one vote of a query: the largest count by at
  most 1, the counts by sqrt(2) in L2. So a query costs at most a Gaussian release
  of the sensitivity 1 and noise `threshold_stddev`, and, if it is answered, one of
  sqrt(2) and `stddev`. What is not answered for lack of agreement or because
  the maximum number of answers is reached shows as -1.

  Args:
    votes: int64 [n, classes].
    plan: Noise, threshold and maximum number of answers.
    key: int64[2], of this call alone.

  Returns:
    int64 [n], labels, or -1.
  """
  check_key, label_key = keys.split(key, 2)
  agreed = votes.max(axis=1) + _noise(
      plan.threshold_stddev, check_key, [len(votes)]) >= plan.threshold
  named = np.argmax(
      votes + _noise(plan.stddev, label_key, votes.shape), axis=1)
  answered = agreed & (np.cumsum(agreed) <= plan.answers)
  return np.where(answered, named, -1)
