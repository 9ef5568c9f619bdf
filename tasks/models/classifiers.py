"""Networks of the voting tasks: features, and classes from features.

The same network may be an agent's, the student's or a baseline's. Weights are a
flat list, those of the features first, those of the classifier last.
"""

import dataclasses
import math
from typing import Any, Callable

import numpy as np
import tensorflow as tf

from tasks.models import layers
from tasks import task


@dataclasses.dataclass(frozen=True, kw_only=True)
class Network:
  """A network as pure functions of a flat list of float32 weights.

  Attributes:
    name: As given to --model.
    initial_weights: seed (int) -> list of float32 NumPy arrays.
    features: (weights, x) -> float32 [batch, feature_size]; of the weights, the
      last two, which are the classifier's, are not used.
    feature_size: Of `features`.
    num_classes: Of `logits`.
  """

  name: str
  initial_weights: Callable[[int], list[np.ndarray]]
  features: Callable[[task.Weights, Any], tf.Tensor]
  feature_size: int
  num_classes: int

  def classify(self, weights: task.Weights, features: tf.Tensor) -> tf.Tensor:
    """Logits float32 [batch, classes] from features."""
    return layers.dense(features, weights[-2], weights[-1])

  def logits(self, weights: task.Weights, x: Any) -> tf.Tensor:
    """Logits float32 [batch, classes] from records."""
    return self.classify(weights, self.features(weights, x))

  def as_model(self) -> task.Model:
    """The same network for training by federated averaging."""

    def loss(weights, batch, seed):
      del seed
      return layers.softmax_cross_entropy(
          self.logits(weights, batch['x']), batch['y'])

    def metrics(weights, batch, mask):
      return layers.classification_metrics(
          self.logits(weights, batch['x']), batch['y'], mask)

    return task.Model(name=self.name, initial_weights=self.initial_weights,
                      loss=loss, metrics=metrics)


def to_float(x: Any) -> tf.Tensor:
  """Records as the networks see them, float32.

  Args:
    x: uint8 images [batch, height, width], or float images in [0, 1], become
      [batch, height, width, 1]; vectors [batch, d] stay vectors.
  """
  if x.dtype == tf.uint8:
    return layers.images_to_float(x)
  x = tf.cast(x, tf.float32)
  return x if x.shape.rank == 2 else x[..., tf.newaxis]


def _classifier(rng: np.random.Generator, inputs: int,
                num_classes: int) -> list[np.ndarray]:
  return [layers.glorot_uniform(rng, inputs, num_classes),
          layers.zeros(num_classes)]


def softmax(record_shape: tuple[int, ...], num_classes: int) -> Network:
  """Logistic regression: the record itself, flattened, is its features."""
  size = math.prod(record_shape)

  def initial_weights(seed):
    del seed  # Convex, so every start is as good as zero.
    return [np.zeros([size, num_classes], np.float32), layers.zeros(num_classes)]

  return Network(
      name='softmax', initial_weights=initial_weights,
      features=lambda weights, x: tf.reshape(to_float(x), [-1, size]),
      feature_size=size, num_classes=num_classes)


def mlp(record_shape: tuple[int, ...], num_classes: int,
        hidden: int = 128) -> Network:
  """One hidden layer of rectified units."""
  size = math.prod(record_shape)

  def initial_weights(seed):
    rng = np.random.default_rng(seed)
    return [layers.glorot_uniform(rng, size, hidden), layers.zeros(hidden),
            *_classifier(rng, hidden, num_classes)]

  def features(weights, x):
    x = tf.reshape(to_float(x), [-1, size])
    return tf.nn.relu(layers.dense(x, weights[0], weights[1]))

  return Network(name='mlp', initial_weights=initial_weights, features=features,
                 feature_size=hidden, num_classes=num_classes)


def _check_images(name: str, record_shape: tuple[int, ...], least: int) -> None:
  if len(record_shape) != 2 or min(record_shape) < least:
    raise ValueError(
        f'model {name} is for images of at least {least} x {least}, found '
        f'records of shape {list(record_shape)}')


def cnn_small(record_shape: tuple[int, ...], num_classes: int) -> Network:
  """Two convolutions with pooling: few parameters, for noise on the weights.

  On 28 x 28 images that is the EMNIST task's cnn_small, 7,346 parameters for 10
  classes; on 16 x 16 its kernels are smaller.
  """
  _check_images('cnn_small', record_shape, 12)
  first, second = (7, 4) if min(record_shape) >= 24 else (5, 3)
  sides = [((side - first + 1) // 2 - second + 1) // 2 for side in record_shape]
  size = 24 * math.prod(sides)

  def initial_weights(seed):
    rng = np.random.default_rng(seed)
    return [layers.glorot_uniform(rng, first, first, 1, 8), layers.zeros(8),
            layers.glorot_uniform(rng, second, second, 8, 24), layers.zeros(24),
            *_classifier(rng, size, num_classes)]

  def features(weights, x):
    for kernel, bias in (weights[0:2], weights[2:4]):
      x = to_float(x) if x.shape.rank == 3 else x
      x = layers.max_pool(tf.nn.relu(layers.conv2d(x, kernel, bias)), 2)
    return layers.flatten(x)

  return Network(name='cnn_small', initial_weights=initial_weights,
                 features=features, feature_size=size, num_classes=num_classes)


def cnn(record_shape: tuple[int, ...], num_classes: int,
        widths: tuple[int, ...] = (24, 48, 64), hidden: int = 64) -> Network:
  """Three convolutions, the first two with stride 2, and a dense layer.

  Strides instead of pooling make it cheap: 1.1 million multiplications for an
  image of 28 x 28.
  """
  _check_images('cnn', record_shape, 8)
  sides = [-(-side // 4) for side in record_shape]
  size = widths[-1] * math.prod(sides)

  def initial_weights(seed):
    rng = np.random.default_rng(seed)
    found = []
    for kernel, inputs, outputs in zip((5, 3, 3), (1, *widths), widths):
      found += [layers.glorot_uniform(rng, kernel, kernel, inputs, outputs),
                layers.zeros(outputs)]
    return [*found, layers.glorot_uniform(rng, size, hidden), layers.zeros(hidden),
            *_classifier(rng, hidden, num_classes)]

  def features(weights, x):
    x = to_float(x)
    for i, stride in enumerate((2, 2, 1)):
      x = tf.nn.relu(layers.conv2d(
          x, weights[2 * i], weights[2 * i + 1], stride=stride, padding='SAME'))
    return tf.nn.relu(layers.dense(layers.flatten(x), weights[6], weights[7]))

  return Network(name='cnn', initial_weights=initial_weights, features=features,
                 feature_size=hidden, num_classes=num_classes)


MODELS = {'softmax': softmax, 'mlp': mlp, 'cnn_small': cnn_small, 'cnn': cnn}


def build(name: str | None, record_shape: tuple[int, ...],
          num_classes: int) -> Network:
  """Builds a network.

  Args:
    name: One of MODELS; None means 'cnn' for images, 'mlp' for vectors.
    record_shape: [height, width] or [d].
    num_classes: C >= 2.

  Raises:
    ValueError: On an unknown name, or images where vectors are needed.
  """
  if name is None:
    name = 'cnn' if len(record_shape) == 2 else 'mlp'
  if name not in MODELS:
    raise ValueError(
        f'model must be one of {", ".join(MODELS)}, found {name!r}')
  return MODELS[name](record_shape, num_classes)
