"""The sum of clipped vectors, with Gaussian noise added once, at the server.

The baseline that distributed mechanisms are compared with. Clients' vectors
reach the server in the clear.
"""

import collections

import tensorflow as tf
import tensorflow_federated as tff

from aggregators import client_sum
from aggregators import normal
from aggregators import rounding
from aggregators import structures
from aggregators import validate


def clipped(vector: tf.Tensor, clip: float | None) -> tuple[tf.Tensor, dict]:
  """A client's vector as it is summed: clipped, or zero if it is not finite.

  Args:
    vector: float32 or float64 [dimension], model units.
    clip: L2 clip, model units; None for none.

  Returns:
    float32 [dimension], and int32 diagnostics computed from the raw vector.
  """
  bound = float('inf') if clip is None else clip
  result, was_clipped, is_finite = rounding.clip_by_norm(vector, bound)
  return result, collections.OrderedDict(
      clipped=tf.cast(was_clipped, tf.int32),
      not_finite=tf.cast(~is_finite, tf.int32))


def add_noise(total: tf.Tensor, stddev: float, key: tf.Tensor) -> tf.Tensor:
  """Adds Gaussian noise of `stddev` (model units) to float32 [dimension]."""
  if stddev == 0:
    return total
  noisy = tf.cast(total, tf.float64) + stddev * normal.sample(key, total.shape)
  return tf.cast(noisy, tf.float32)


class CentralSumFactory(client_sum.ClientSumFactory):
  """Sums structures of float tensors, clipped, under the Gaussian mechanism.

  Formal guarantees. One call of `next` is a Gaussian mechanism of L2
  sensitivity `clip` and noise multiplier `noise_multiplier` under zero-out
  adjacency, (alpha, alpha / (2 z^2))-Renyi DP, against those who see results;
  the server is trusted. The guarantee is that of ideal arithmetic: noise in
  floating point leaks through its low bits (Mironov, CCS 2012), which the
  integer mechanisms avoid. With `noise_multiplier` 0 or `simulation_seed` there
  is no guarantee.
  """

  def __init__(self, *, clip: float | None, noise_multiplier: float,
               diagnostics: bool = False, simulation_seed: int | None = None):
    """Initializes the factory.

    Args:
      clip: L2 clip of one client's vector, model units, > 0; None for none,
        which needs a noise multiplier of 0.
      noise_multiplier: Standard deviation of the noise over the clip, >= 0.
      diagnostics: Also measure what is computed from raw values; outside the
        guarantee.
      simulation_seed: As for `DistributedSumFactory`; values then are
        OrderedDicts of `value` and `key`.
    """
    validate.non_negative(noise_multiplier=noise_multiplier)
    if clip is not None:
      validate.positive(clip=clip)
    elif noise_multiplier > 0:
      raise ValueError('clip must be given when noise_multiplier is above 0')
    super().__init__(diagnostics=diagnostics, simulation_seed=simulation_seed)
    self._clip = clip
    self._stddev = noise_multiplier * clip if clip is not None else 0.0

  def initial_state(self):
    return collections.OrderedDict(
        server_key=structures.stored_key(
            self.simulation_seed,
            structures.initial_key(self.simulation_seed, 0)))

  def contribute(self, vector, key, state):
    del key, state  # Unused.
    return clipped(vector, self._clip)

  def zero(self, dimension: int) -> tf.Tensor:
    return tf.zeros([dimension], tf.float32)

  def add(self, left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    return left + right

  def federated_total(self, contributions):
    return tff.federated_sum(contributions)

  def release(self, state, total, num_reporting, key):
    del num_reporting  # The noise does not depend on it.
    return state, add_noise(total, self._stddev, key), collections.OrderedDict()
