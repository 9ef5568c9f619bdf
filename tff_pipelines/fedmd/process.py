"""FedMD as a TFF process (arXiv 2009.05537, algorithm 1; arXiv 1910.03581).

In a round a party *digests* the consensus on the public records of the round before,
*revisits* its own records, and predicts on new public records, which the next round
digests. All of that is one graph; the party's architecture selects a branch of it.

A party's state is placed at clients. All randomness that leads to it derives from a key
in it: several workers run the clients' part twice, for the sums and for the state.
"""

import collections
from collections.abc import Sequence
import dataclasses

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from aggregators import keys, structures
from aggregators.prediction_mean import PredictionMeanFactory
from aggregators.prediction_params import PredictionMeanParams
from tasks.models import layers
from tasks.models.fedmd import Architecture
from tff_pipelines.fedavg import adam

# Purposes that a party's key of a round is derived for.
_INITIAL, _DIGEST, _REVISIT, _NOISE = range(4)
# Images of one forward pass; bounds the memory of its activations.
_PREDICTED_AT_ONCE = 500
# Adam (arXiv 1412.6980) with its published defaults, except for Keras's epsilon.
_BETA_1, _BETA_2, _EPSILON = 0.9, 0.999, 1e-7
LABELS = 'labels'


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitConfig:
  """A training by Adam; `mirror` flips a random half of an epoch's images sideways."""

  learning_rate: float
  batch_size: int
  mirror: bool = False


def losses(kind: str, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
  """One loss per example, float32 [batch].

  Targets are classes for the kind 'labels'; else those of a consensus: 'logits' (mean
  absolute difference), 'softmax' or 'argmax' (cross entropy).
  """
  if kind == LABELS:
    return layers.softmax_cross_entropy(logits, targets)
  return (tf.reduce_mean(tf.abs(logits - targets), axis=-1) if kind == 'logits' else
          tf.nn.softmax_cross_entropy_with_logits(labels=targets, logits=logits))


def fit(architecture: Architecture, weights: tf.Tensor, images: tf.Tensor,
        targets: tf.Tensor, epochs: tf.Tensor, key: tf.Tensor, *, kind: str,
        config: FitConfig, rate_factor=1.0) -> tf.Tensor:
  """Trains a model by Adam, whose moments start at zero; returns its weights.

  There may be no images. Targets are as for `losses`; randomness derives from `key`.
  """
  count, batch_size = tf.shape(images)[0], config.batch_size
  learning_rate = config.learning_rate * tf.convert_to_tensor(rate_factor)
  steps_per_epoch = (count + batch_size - 1) // batch_size

  def train_epoch(epoch, *state):
    random_bits = keys.random_bits(keys.derive(key, epoch), [count], tf.int64)
    order = tf.argsort(random_bits)
    # The order depends on the first bits, mirroring on the last one.
    mirrored = tf.equal(tf.bitwise.bitwise_and(random_bits, 1), 1)

    def train_step(step, weights, mean, square, decay_1, decay_2):
      rows = order[step * batch_size:(step + 1) * batch_size]
      batch = tf.gather(images, rows)
      if config.mirror:
        batch = tf.where(tf.gather(mirrored, rows)[:, tf.newaxis, tf.newaxis, tf.newaxis],
                         tf.reverse(batch, axis=[2]), batch)
      with tf.GradientTape() as tape:
        tape.watch(weights)
        logits = architecture.logits(weights, batch)
        loss = tf.reduce_mean(losses(kind, logits, tf.gather(targets, rows)))
      gradient = tape.gradient(loss, weights)
      decay_1, decay_2 = decay_1 * _BETA_1, decay_2 * _BETA_2
      (weights,), (mean,), (square,) = adam.adam_step(
          [weights], [gradient], [mean], [square], learning_rate, first_decay=_BETA_1,
          second_decay=_BETA_2, first_power=decay_1, second_power=decay_2, small=_EPSILON)
      return step + 1, weights, mean, square, decay_1, decay_2

    _, *state = tf.while_loop(lambda step, *_: step < steps_per_epoch, train_step,
                              (tf.constant(0), *state), parallel_iterations=1)
    return epoch + 1, *state

  zeros, one = tf.zeros_like(weights), tf.constant(1.0)
  return tf.while_loop(
      lambda epoch, *_: epoch < epochs, train_epoch,
      (tf.constant(0), weights, zeros, zeros, one, one), parallel_iterations=1)[1]


def predict(architecture: Architecture, weights: tf.Tensor,
            images: tf.Tensor) -> tf.Tensor:
  """Computes logits of a model, for a bounded number of images at a time."""
  calls = (tf.shape(images)[0] + _PREDICTED_AT_ONCE - 1) // _PREDICTED_AT_ONCE

  def step(i, logits):
    rows = slice(i * _PREDICTED_AT_ONCE, (i + 1) * _PREDICTED_AT_ONCE)
    return i + 1, logits.write(i, architecture.logits(weights, images[rows]))

  _, logits = tf.while_loop(
      lambda i, _: i < calls, step, (tf.constant(0), tf.TensorArray(
          tf.float32, size=calls, infer_shape=False,
          element_shape=[None, architecture.num_classes])), parallel_iterations=1)
  return logits.concat()


def new_party(number: int, architecture: int, weights: np.ndarray, key: np.ndarray):
  """The state of a party that has not participated; `number` tells it from others'."""
  return collections.OrderedDict(
      architecture=np.int32(architecture), key=np.asarray(key, np.int64),
      number=np.int32(number), rounds=np.int32(0),
      weights=np.asarray(weights, np.float32))


def build(architectures: Sequence[Architecture], *,
          image_shape: Sequence[int], mean: PredictionMeanParams,
          initial_epochs: int, private: FitConfig, digest: FitConfig,
          simulation_seed: int | None = None) -> tff.templates.IterativeProcess:
  """Builds the process.

  The server's state has `consensus`, float32 [records, classes], and `known`, whether
  there is one. `next` takes it, the announcement of the round, and the states
  (`new_party`) and data of the parties that participate. It returns `state`; `parties`,
  their new states, whose order several workers may change; and `metrics`: numbers of
  `parties` in the consensus and of those `rejected` for NaN or infinite predictions,
  and `total_weight`.

  The announcement has `digest_images`, which the consensus is about, and
  `predict_images`; numbers of epochs; `rate_factor`, of the learning rates of digest
  and revisit; and `share`, False where parties send nothing of their predictions. The
  noise of seeded runs derives from the parties' keys.
  """
  seeded = simulation_seed is not None and mean.has_noise
  shape = [mean.records, mean.classes]
  value_type = tff.TensorType(np.float32, shape)
  if seeded:
    value_type = structures.keyed_type(value_type)
  aggregator = PredictionMeanFactory(
      mean, simulation_seed=simulation_seed).create(value_type, tff.TensorType(np.int32))

  @tff.tensorflow.computation
  def nothing_known():
    return collections.OrderedDict(consensus=tf.zeros(shape), known=tf.constant(False))

  server_type = nothing_known.type_signature.result
  party_type, data_type, announced_type = map(tff.to_type, (
      collections.OrderedDict(
          architecture=np.int32, key=(np.int64, [2]), number=np.int32, rounds=np.int32,
          weights=(np.float32, [None])),
      collections.OrderedDict(
          images=(np.uint8, [None, *image_shape]), labels=(np.int32, [None]),
          weight=np.int32),
      collections.OrderedDict(
          digest_images=(np.uint8, [None, *image_shape]), digest_epochs=np.int32,
          revisit_epochs=np.int32, rate_factor=np.float32,
          predict_images=(np.uint8, [mean.records, *image_shape]), share=np.bool_)))

  @tff.tensorflow.computation(party_type, data_type, server_type, announced_type)
  def participate(state, data, server, round_):
    """Runs a round of one party, which in its first one first fits its own records.

    Where weights or predictions are not finite, it keeps its weights and predicts NaN.
    """
    key = keys.derive(state['key'], 0)
    own_epochs = tf.where(tf.equal(state['rounds'], 0), initial_epochs, 0)
    digest_epochs = tf.where(server['known'], round_['digest_epochs'], 0)

    def branch(architecture):

      @tf.function(autograph=False)
      def fit_own(weights, epochs, key, rate_factor):
        return fit(architecture, weights, data['images'], data['labels'], epochs, key,
                   kind=LABELS, config=private, rate_factor=rate_factor)

      def run():
        weights = tf.ensure_shape(state['weights'], [architecture.size])
        weights = fit_own(
            weights, own_epochs, keys.derive(key, _INITIAL), tf.constant(1.0))
        weights = fit(architecture, weights, round_['digest_images'], server['consensus'],
                      digest_epochs, keys.derive(key, _DIGEST), kind=mean.knowledge,
                      config=digest, rate_factor=round_['rate_factor'])
        weights = fit_own(weights, round_['revisit_epochs'], keys.derive(key, _REVISIT),
                          round_['rate_factor'])
        logits = tf.cond(round_['share'],
                         lambda: predict(architecture, weights, round_['predict_images']),
                         lambda: tf.zeros(shape))
        # Branches of different sizes must have results of one type.
        return (tf.gather(weights, tf.range(tf.size(weights))),
                tf.ensure_shape(logits, shape))

      return run

    weights, logits = tf.switch_case(
        state['architecture'], list(map(branch, architectures)))
    is_good = (tf.reduce_all(tf.math.is_finite(weights)) &
               tf.reduce_all(tf.math.is_finite(logits)))
    new_state = collections.OrderedDict(
        state, key=keys.derive(state['key'], 1),
        rounds=state['rounds'] + tf.cast(is_good, tf.int32),
        weights=tf.where(is_good, weights, state['weights']))
    logits = tf.where(is_good, logits, tf.fill(shape, np.float32(np.nan)))
    if seeded:
      logits = collections.OrderedDict(value=logits, key=keys.derive(key, _NOISE))
    return collections.OrderedDict(state=new_state, value=logits, weight=data['weight'])

  @tff.tensorflow.computation(tff.TensorType(np.float32, shape), tf.int32, tf.bool)
  def know(consensus, total_weight, share):
    return collections.OrderedDict(consensus=consensus, known=share & (total_weight > 0))

  @tff.federated_computation
  def initialize():
    return tff.federated_eval(nothing_known, tff.SERVER)

  @tff.federated_computation(
      initialize.type_signature.result,
      tff.FederatedType(announced_type, tff.SERVER),
      # Several workers share the clients by the last argument, which must be one
      # that is placed at clients.
      tff.FederatedType(party_type, tff.CLIENTS),
      tff.FederatedType(data_type, tff.CLIENTS))
  def next_fn(server, announced, parties, data):
    outputs = tff.federated_map(
        participate, (parties, data, tff.federated_broadcast(server),
                      tff.federated_broadcast(announced)))
    averaged = aggregator.next(
        tff.federated_value((), tff.SERVER), outputs['value'], outputs['weight'])
    new_server = tff.federated_map(
        know, (averaged.result, averaged.measurements['total_weight'],
               announced['share']))
    return collections.OrderedDict(
        state=new_server, parties=outputs['state'], metrics=averaged.measurements)

  return tff.templates.IterativeProcess(initialize, next_fn)
