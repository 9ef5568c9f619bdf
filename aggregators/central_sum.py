"""The sum of clipped vectors, with Gaussian noise added once, at the server.

The baseline that distributed mechanisms are compared with. Clients' vectors
reach the server in the clear.
"""

import collections

import tensorflow as tf
import tensorflow_federated as tff

from aggregators import keys
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
  return total + stddev * tf.random.stateless_normal(
      total.shape, seed=key, alg='philox')


class CentralSumFactory(tff.aggregators.UnweightedAggregationFactory):
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
    self._clip = clip
    self._stddev = noise_multiplier * clip if clip is not None else 0.0
    self._diagnostics = diagnostics
    self._seed = simulation_seed

  def create(self, value_type) -> tff.templates.AggregationProcess:
    seeded = self._seed is not None
    layout = structures.FlatLayout(value_type['value'] if seeded else value_type)

    @tff.tensorflow.computation
    def initial_state():
      return collections.OrderedDict(
          server_key=structures.initial_key(self._seed, 0))

    state_type = initial_state.type_signature.result

    @tff.tensorflow.computation(value_type)
    def client_clip(value):
      value = value['value'] if seeded else value
      return clipped(rounding.flatten(value), self._clip)

    @tff.tensorflow.computation(
        state_type, client_clip.type_signature.result[0])
    def server_noise(state, total):
      key = structures.round_key(self._seed, state['server_key'])
      noisy = add_noise(total, self._stddev, keys.derive(key, 0))
      new_state = collections.OrderedDict(server_key=keys.derive(key, 1))
      return new_state, layout.unflatten(noisy)

    @tff.federated_computation
    def initialize():
      return tff.federated_eval(initial_state, tff.SERVER)

    @tff.federated_computation(
        tff.FederatedType(state_type, tff.SERVER),
        tff.FederatedType(value_type, tff.CLIENTS))
    def next_fn(state, value):
      sent = tff.federated_map(client_clip, value)
      state, result = tff.federated_map(
          server_noise, (state, tff.federated_sum(sent[0])))
      if self._diagnostics:
        measurements = collections.OrderedDict(
            diagnostics=collections.OrderedDict(
                survivors=tff.federated_sum(tff.federated_value(1, tff.CLIENTS)),
                totals=tff.federated_sum(sent[1])))
        measurements = tff.federated_zip(measurements)
      else:
        measurements = tff.federated_value((), tff.SERVER)
      return tff.templates.MeasuredProcessOutput(state, result, measurements)

    return tff.templates.AggregationProcess(initialize, next_fn)
