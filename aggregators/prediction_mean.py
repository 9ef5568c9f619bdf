"""The mean of parties' predictions on public records, under secure aggregation.

A party sends an integer matrix; the server learns the sum of the matrices modulo
2^bits, and from it the consensus: a mean, weighted if asked for. Weights are public. A
party may add noise to its own predictions, which then need no trust in anyone else.
"""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from aggregators import keys, modular_sum, normal, tff_internals
from aggregators.prediction_params import PredictionMeanParams

Encoded = collections.namedtuple('Encoded', ['values', 'weight', 'rejected'])


def as_knowledge(logits: tf.Tensor, params: PredictionMeanParams) -> tf.Tensor:
  """Converts finite logits, float32 [records, classes], to what is shared of them.

  For any two inputs each row is within the sensitivities of `params`.
  """
  if params.knowledge == 'softmax':
    return tf.nn.softmax(logits)
  if params.knowledge == 'argmax':
    return tf.one_hot(tf.argmax(logits, axis=-1), params.classes)
  bound = params.logit_bound
  if params.noise == 'none':
    return tf.clip_by_value(logits, -bound, bound)
  # In steps that can't overflow: entries of norm beyond the bound anyway.
  logits = tf.clip_by_value(logits, -bound, bound)
  order = 2 if params.noise == 'gaussian' else 1
  norm = tf.norm(logits, ord=order, axis=-1, keepdims=True)
  return logits * (bound / tf.maximum(norm, bound))


def add_noise(values: tf.Tensor, key: tf.Tensor,
              params: PredictionMeanParams) -> tf.Tensor:
  """Adds a party's own noise to float32 predictions, by the key of party and round."""
  if params.noise == 'gaussian':
    return normal.add(values, params.noise_scale, key)
  # A random sign on an exponential. The uniform number is never 0.
  uniform = 1.0 - keys.uniform(keys.derive(key, 0), values.shape, tf.float64)
  negative = keys.random_bits(keys.derive(key, 1), values.shape) < 0
  size = -tf.math.log(uniform)
  noise = tf.where(negative, -size, size)
  return tf.cast(tf.cast(values, tf.float64) + params.noise_scale * noise, tf.float32)


def encode(logits: tf.Tensor, weight: tf.Tensor, key: tf.Tensor | None,
           params: PredictionMeanParams) -> Encoded:
  """Encodes a party's predictions. Pure: the same arguments give the same integers.

  Predictions with NaN or infinities are rejected: zero is sent, with the weight 0.
  Under noise that would reveal something of the data, so they count as logits of zero
  and are sent with noise, like any others.

  Args:
    logits: float32 [records, classes].
    weight: int32 scalar; cut to [0, max_total_weight].
    key: int64[2], of this party and round alone; None without noise.

  Returns values: int32 [records, classes] in [0, weight * levels]; weight: int32;
  rejected: int32, 1 if the predictions were not used.
  """
  logits = tf.ensure_shape(logits, [params.records, params.classes])
  is_finite = tf.reduce_all(tf.math.is_finite(logits))
  values = as_knowledge(tf.where(is_finite, logits, tf.zeros_like(logits)), params)
  if params.has_noise:
    values = add_noise(values, key, params)
    is_finite = tf.constant(True)
  weight = tf.clip_by_value(weight, 0, params.max_total_weight)
  weight = tf.where(is_finite, weight, tf.zeros_like(weight))
  # In float64, which holds every step of a grid of 2^30.
  steps = ((tf.cast(values, tf.float64) - params.low) *
           (params.levels / (params.high - params.low)))
  grid = tf.cast(tf.round(tf.clip_by_value(steps, 0.0, float(params.levels))), tf.int32)
  return Encoded(values=modular_sum.wrap(grid * weight, params.wire_bits), weight=weight,
                 rejected=1 - tf.cast(is_finite, tf.int32))


def nearest_probabilities(values: tf.Tensor) -> tf.Tensor:
  """Projects rows, float [rows, classes], on the nearest vectors of probabilities.

  Held, Wolfe and Crowder 1974: a constant is subtracted from every entry, and what is
  negative then becomes 0.
  """
  classes = values.shape[-1]
  falling = tf.sort(values, axis=-1, direction='DESCENDING')
  count = tf.range(1, classes + 1, dtype=values.dtype)
  # The constant if this many entries stayed positive.
  excess = (tf.cumsum(falling, axis=-1) - 1) / count
  stay = tf.reduce_sum(tf.cast(falling > excess, tf.int32), axis=-1)
  threshold = tf.gather(excess, stay - 1, batch_dims=1)
  return tf.maximum(values - threshold[:, tf.newaxis], 0)


def decode(total: tf.Tensor, total_weight: tf.Tensor,
           params: PredictionMeanParams) -> tf.Tensor:
  """Decodes the consensus, float32 [records, classes]; zero if all weights are 0.

  A noisy mean is projected on what predictions can be: logits within their
  bound, otherwise the nearest probabilities.

  Args:
    total: int32 [records, classes], the sum of the parties' values.
    total_weight: int32 scalar; beyond `max_total_weight` an InvalidArgumentError, as
      the sum may have wrapped around.
  """
  with tf.control_dependencies([tf.debugging.assert_less_equal(
      total_weight, params.max_total_weight,
      'weights must sum up to at most max_total_weight')]):
    total = tf.identity(total)
  divisor = tf.cast(tf.maximum(total_weight, 1), tf.float64) * params.levels
  fraction = tf.cast(total, tf.float64) / divisor
  mean = params.low + (params.high - params.low) * fraction
  if params.has_noise and params.knowledge == 'logits':
    mean = tf.clip_by_value(mean, -params.logit_bound, params.logit_bound)
  elif params.has_noise:
    mean = nearest_probabilities(mean)
  mean = tf.where(total_weight > 0, mean, tf.zeros_like(mean))
  return tf.cast(mean, tf.float32)


class PredictionMeanFactory(tff.aggregators.WeightedAggregationFactory):
  """Averages predictions of parties on the same public records.

  Values are logits, float32 [records, classes]; `params.knowledge` is what of
  them is shared. Weights are int32 >= 0 and public; the mean is normalised by
  the weights of the reporting parties, so a party that is absent, or whose predictions
  have NaN or infinities, changes nothing but its own part. Without noise an entry of
  the mean is within `params.rounding_error` of the mean of what parties share.

  Formal guarantees:

  * The server is shown the sum alone, as long as the secure aggregation protocol opens
    no sum of too few parties.
  * Without noise nothing more is promised: the predictions of a single party, alone or
    by subtracting those of colluders, are whatever its model says.
  * With noise each record's row of one party is a Gaussian mechanism of L2 sensitivity
    `params.l2_sensitivity`, or a Laplace mechanism of L1 sensitivity
    `params.l1_sensitivity`, against any observer and for any two data sets of the
    party: local differential privacy. The guarantee is that of ideal arithmetic;
    rounding to the grid comes after the noise.
  * With `simulation_seed` there is no guarantee.

  The state is empty. Measurements are `parties`, the number in the mean, `rejected`,
  the number whose predictions had NaN or infinities, and `total_weight`.
  """

  def __init__(self, params: PredictionMeanParams, *, simulation_seed: int | None = None):
    """Initializes the factory; `simulation_seed` as for `ClientSumFactory`."""
    self._params = params
    self._keyed = params.has_noise and simulation_seed is not None

  def create(self, value_type, weight_type) -> tff.templates.AggregationProcess:
    params = self._params
    expected = tff.TensorType(np.float32, [params.records, params.classes])
    if (logits_type := value_type['value'] if self._keyed else value_type) != expected:
      raise TypeError(f'values must be {expected}, found {logits_type}')
    if weight_type != tff.TensorType(np.int32):
      raise TypeError(f'weights must be int32 scalars, found {weight_type}')

    @tff.tensorflow.computation(value_type, weight_type)
    def encode_value(value, weight):
      key = None
      if self._keyed:
        key, value = value['key'], value['value']
      elif params.has_noise:
        key = keys.fresh()
      return tuple(encode(value, weight, key, params))

    @tff.tensorflow.computation(
        encode_value.type_signature.result[0], tf.int32, tf.int32, tf.int32)
    def decode_total(total, total_weight, rejected, num_reporting):
      return decode(total, total_weight, params), collections.OrderedDict(
          parties=num_reporting - rejected, rejected=rejected, total_weight=total_weight)

    @tff.federated_computation
    def initialize():
      return tff.federated_value((), tff.SERVER)

    @tff.federated_computation(
        initialize.type_signature.result, tff.FederatedType(value_type, tff.CLIENTS),
        tff.FederatedType(weight_type, tff.CLIENTS))
    def next_fn(state, value, weight):
      sent = tff.federated_map(encode_value, (value, weight))
      total = tff_internals.secure_modular_sum(sent[0], params.modulus)
      result, measurements = tff.federated_map(decode_total, (
          total, tff.federated_sum(sent[1]), tff.federated_sum(sent[2]),
          tff.federated_sum(tff.federated_value(1, tff.CLIENTS))))
      return tff.templates.MeasuredProcessOutput(state, result, measurements)

    return tff.templates.AggregationProcess(initialize, next_fn)
