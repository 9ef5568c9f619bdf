"""The model of a party of FedMD: fit it, and predict with it.

Pure TensorFlow functions of explicit arguments. A model is one vector of
weights and an architecture that reads it.
"""

import dataclasses

import tensorflow as tf

from aggregators import keys
from aggregators import validate
from tasks.models import layers
from tasks.models.fedmd import Architecture
from tff_pipelines.learning import adam

# Images of one forward pass; bounds the memory of its activations.
_PREDICTED_AT_ONCE = 500
# Adam (arXiv 1412.6980) with its published defaults, except for Keras's epsilon.
_BETA_1, _BETA_2, _EPSILON = 0.9, 0.999, 1e-7

LABELS = 'labels'


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitConfig:
  """Settings of a training.

  Attributes:
    learning_rate: Of Adam, > 0.
    batch_size: >= 1; the last batch of an epoch is smaller where the examples do not
      fill it.
    mirror: Whether a random half of the images of each epoch is mirrored left to
      right; for images that keep their meaning then, unlike letters.
  """

  learning_rate: float
  batch_size: int
  mirror: bool = False

  def __post_init__(self):
    validate.positive(learning_rate=self.learning_rate)
    validate.integer(batch_size=self.batch_size, low=1)


def losses(kind: str, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
  """Computes one loss per example.

  Args:
    kind: 'labels' for classes; else the knowledge that the consensus averages:
      'logits' (mean absolute difference), 'softmax' or 'argmax' (cross entropy with
      the mean probabilities, or with the fractions of the votes).
    logits: float32 [batch, classes].
    targets: int32 [batch] for labels, else float32 [batch, classes].

  Returns:
    float32 [batch].
  """
  if kind == LABELS:
    return layers.softmax_cross_entropy(logits, targets)
  if kind == 'logits':
    return tf.reduce_mean(tf.abs(logits - targets), axis=-1)
  validate.one_of(('softmax', 'argmax'), kind=kind)
  return tf.nn.softmax_cross_entropy_with_logits(labels=targets, logits=logits)


def fit(architecture: Architecture, weights: tf.Tensor, images: tf.Tensor,
        targets: tf.Tensor, epochs: tf.Tensor, key: tf.Tensor, *, kind: str,
        config: FitConfig, rate_factor=1.0) -> tf.Tensor:
  """Trains a model by Adam, whose moments start at zero.

  Args:
    architecture: Of the model.
    weights: float32 [size].
    images: uint8 [examples, height, width, channels]; there may be none.
    targets: As for `losses`, one row for each image.
    epochs: int32 scalar >= 0.
    key: int64[2]; all randomness of the training derives from it.
    kind: Of the loss.
    config: Settings of the training.
    rate_factor: float32 scalar that the learning rate is multiplied by.

  Returns:
    The trained weights, float32 [size].
  """
  count, batch_size = tf.shape(images)[0], config.batch_size
  learning_rate = config.learning_rate * tf.convert_to_tensor(
      rate_factor, tf.float32)
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
        batch = tf.where(
            tf.gather(mirrored, rows)[:, tf.newaxis, tf.newaxis, tf.newaxis],
            tf.reverse(batch, axis=[2]), batch)
      with tf.GradientTape() as tape:
        tape.watch(weights)
        logits = architecture.logits(weights, batch)
        loss = tf.reduce_mean(losses(kind, logits, tf.gather(targets, rows)))
      gradient = tape.gradient(loss, weights)
      decay_1, decay_2 = decay_1 * _BETA_1, decay_2 * _BETA_2
      (weights,), (mean,), (square,) = adam.moved(
          [weights], [gradient], [mean], [square], learning_rate,
          first_decay=_BETA_1, second_decay=_BETA_2, first_power=decay_1,
          second_power=decay_2, small=_EPSILON)
      return step + 1, weights, mean, square, decay_1, decay_2

    _, *state = tf.while_loop(
        lambda step, *_: step < steps_per_epoch, train_step,
        (tf.constant(0), *state), parallel_iterations=1)
    return epoch + 1, *state

  zeros, one = tf.zeros_like(weights), tf.constant(1.0)
  _, trained, *_ = tf.while_loop(
      lambda epoch, *_: epoch < epochs, train_epoch,
      (tf.constant(0), weights, zeros, zeros, one, one), parallel_iterations=1)
  return trained


def predict(architecture: Architecture, weights: tf.Tensor,
            images: tf.Tensor) -> tf.Tensor:
  """Computes logits of a model, for a bounded number of images at a time.

  Args:
    architecture: Of the model.
    weights: float32 [size].
    images: uint8 [examples, height, width, channels]; at least one.

  Returns:
    float32 [examples, classes].
  """
  calls = (tf.shape(images)[0] + _PREDICTED_AT_ONCE - 1) // _PREDICTED_AT_ONCE

  def step(i, logits):
    rows = slice(i * _PREDICTED_AT_ONCE, (i + 1) * _PREDICTED_AT_ONCE)
    return i + 1, logits.write(i, architecture.logits(weights, images[rows]))

  _, logits = tf.while_loop(
      lambda i, _: i < calls, step, (tf.constant(0), tf.TensorArray(
          tf.float32, size=calls, infer_shape=False,
          element_shape=[None, architecture.classes])), parallel_iterations=1)
  return logits.concat()


def agreement(architecture: Architecture, weights: tf.Tensor, images: tf.Tensor,
              consensus: tf.Tensor) -> tf.Tensor:
  """Fraction of the images on which the model's class is that of the consensus.

  Args:
    architecture: Of the model.
    weights: float32 [size].
    images: uint8 [examples, height, width, channels]; at least one.
    consensus: float32 [examples, classes].

  Returns:
    float32 scalar in [0, 1].
  """
  own = tf.argmax(predict(architecture, weights, images), axis=-1)
  agreed = tf.equal(own, tf.argmax(consensus, axis=-1))
  return tf.reduce_mean(tf.cast(agreed, tf.float32))
