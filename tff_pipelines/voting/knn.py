"""An agent of kNN-DPFL: it votes by its records nearest to a query.

Features are small integers, so that every distance is exact in float32 whatever the
order of summation: another record changes no other distance by a bit, and at most one
neighbour of a query, as the guarantee for one record needs.
"""

from collections.abc import Callable
import math

import tensorflow as tf

# Number of queries that are answered in one call.
_BLOCK = 1024


def largest_feature(dimension: int) -> int:
  """The maximum absolute feature for which squared norms are below 2^24."""
  return min(127, math.isqrt((2**24 - 1) // dimension))


def nearest_votes(neighbours: int, num_classes: int) -> Callable:
  """An agent's answer, as `process.build` takes it: the labels of nearest records.

  Queries and records are int8, |x| <= largest_feature(d). An agent with fewer records
  has as many votes; at the same distance the earlier record is nearer.
  """
  def answer(public, examples, key):
    del key  # Nothing is random.
    queries, x, y = public['queries'], examples['x'], examples['y']
    k = tf.minimum(neighbours, tf.shape(x)[0])
    records = tf.cast(x, tf.float32)
    squares = tf.cast(tf.reduce_sum(tf.square(records), axis=1), tf.int32)
    one_hot = tf.one_hot(y, num_classes, dtype=tf.int32)
    counts = []
    for start in range(0, queries.shape[0], _BLOCK):
      block = tf.cast(queries[start:start + _BLOCK], tf.float32)
      products = tf.cast(tf.matmul(block, records, transpose_b=True), tf.int32)
      # Without the term that all records of a query share; at most 3 * 2^24.
      _, nearest = tf.math.top_k(2 * products - squares, k)
      counts.append(tf.reduce_sum(tf.gather(one_hot, nearest), axis=1))
    return tf.concat(counts, axis=0)

  return answer
