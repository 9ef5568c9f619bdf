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

  def contribute(self, vector, key, state):
    """Returns what a client sends: float32 [dimension], and diagnostics."""
    return clipped(vector)

  def release(self, state, total, num_reporting, key):
    """Returns what the server releases: next state, sum, no measurements."""
    return state, total, collections.OrderedDict()
