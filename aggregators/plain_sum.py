"""The sum of clients' vectors as they are: no clip, no noise, no privacy.

The smallest complete factory; read it first. A factory says what a client sends and
what the server releases of the sum; `client_sum` builds the process around the two.
"""

import collections
import math

import tensorflow as tf

from aggregators import client_sum, rounding


def clipped(vector: tf.Tensor, clip: float = math.inf) -> tuple[tf.Tensor, dict]:
  """A client's vector as it is summed: clipped, or zero if it has NaN or infinities.

  float32 [dimension], and int32 diagnostics computed from the raw vector.
  """
  result, was_clipped, is_finite = rounding.clip_by_norm(vector, clip)
  return result, collections.OrderedDict(
      clipped=tf.cast(was_clipped, tf.int32), not_finite=tf.cast(~is_finite, tf.int32))


class PlainSumFactory(client_sum.ClientSumFactory):
  """Sums structures of float tensors: the baseline without privacy.

  Formal guarantees: none. Clients' vectors reach the server in the clear.

  The state is an OrderedDict of `server_key`, which nothing is drawn from. A client
  whose values are NaN or infinite counts as zero.
  """

  _clip = math.inf

  def contribute(self, vector, key, state):
    """Returns what a client sends: float32 [dimension], and diagnostics."""
    return clipped(vector)

  def bare_sum(self, vectors, own_keys, state):
    norms = tf.sqrt(tf.reduce_sum(tf.square(tf.cast(vectors, tf.float64)), axis=1))
    is_finite = tf.math.is_finite(norms)
    # A float32 rounding or two must not leave a vector beyond the clip.
    factors = tf.minimum(self._clip * (1 - 2.0**-20) / norms, 1.0)
    scaled = vectors * tf.cast(factors, tf.float32)[:, tf.newaxis]
    total = tf.reduce_sum(tf.where(is_finite[:, tf.newaxis], scaled, 0.0), axis=0)
    return total, collections.OrderedDict(
        (name, tf.reduce_sum(tf.cast(which, tf.int32))) for name, which in (
            ('clipped', is_finite & (norms > self._clip)), ('not_finite', ~is_finite)))

  def release(self, state, total, num_reporting, key):
    """Returns what the server releases: next state, sum, no measurements."""
    return state, total, collections.OrderedDict()
