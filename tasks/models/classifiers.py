"""Networks of classifiers: features, and classes from features.

The same network may be an agent's, the student's or a baseline's, or a client's in
the EMNIST task. Weights are a flat list, those of the features first, those of the
classifier last.
"""

import dataclasses
import math
from typing import Any, Callable, Sequence

import numpy as np
import tensorflow as tf

from tasks import checks
from tasks import task
from tasks.models import layers


@dataclasses.dataclass(frozen=True, kw_only=True)
class Network:
  """A network as pure functions of a flat list of float32 weights.

  Attributes:
    name: As given to --model.
    shapes: Of the kernels, from input to output, each of which has a bias. The last
      is that of the classifier, [feature_size, num_classes].
    features: (weights, x) -> float32 [batch, feature_size]; of the weights, the
      last two, which are the classifier's, are not used.
  """

  name: str
  shapes: Sequence[tuple[int, ...]]
  features: Callable[[task.Weights, Any], tf.Tensor]

  @property
  def feature_size(self) -> int:
    return self.shapes[-1][0]

  @property
  def num_classes(self) -> int:
    return self.shapes[-1][1]

  def initial_weights(self, seed: int) -> list[np.ndarray]:
    """Float32 arrays: a kernel and its bias for each of the shapes."""
    if len(self.shapes) == 1:  # Convex, so every start is as good as zero.
      return [np.zeros(shape, np.float32)
              for shape in (self.shapes[0], (self.num_classes,))]
    return layers.layer_weights(np.random.default_rng(seed), *self.shapes)

  def classify(self, weights: task.Weights, features: tf.Tensor) -> tf.Tensor:
    """Logits float32 [batch, classes] from features."""
    return layers.dense(features, weights[-2], weights[-1])

  def logits(self, weights: task.Weights, x: Any) -> tf.Tensor:
    """Logits float32 [batch, classes] from records."""
    return self.classify(weights, self.features(weights, x))

  def as_model(self, breakdown: Callable[[Callable], task.Breakdown] | None = None
               ) -> task.Model:
    """The same network for training by federated averaging; see `model`."""
    return model(self.name, self.initial_weights,
                 lambda weights, x, seed: self.logits(weights, x), breakdown)


def model(name: str, initial_weights: Callable[[int], list[np.ndarray]],
          logits: Callable[[task.Weights, Any, Any], tf.Tensor],
          breakdown: Callable[[Callable], task.Breakdown] | None = None) -> task.Model:
  """Builds a classifier as a task has it.

  Args:
    name: See task.Model.
    initial_weights: See task.Model.
    logits: (weights, x, seed) -> float32 [batch, classes]; seed as for the loss.
    breakdown: The count of a confusion matrix -> the model's breakdown; None for none.
  """

  def loss(weights, batch, seed):
    return layers.softmax_cross_entropy(
        logits(weights, batch['x'], seed), batch['y'])

  def metrics(weights, batch, mask):
    return layers.classification_metrics(
        logits(weights, batch['x'], None), batch['y'], mask)

  def count(weights, batch, mask):
    return layers.class_counts(
        logits(weights, batch['x'], None), batch['y'], mask, confusion=True)

  return task.Model(name=name, initial_weights=initial_weights, loss=loss,
                    metrics=metrics, breakdown=breakdown and breakdown(count))


def to_float(x: Any) -> tf.Tensor:
  """Converts records to what the networks take, float32.

  Args:
    x: uint8 images [batch, height, width], or float images in [0, 1], become
      [batch, height, width, 1]; vectors [batch, d] stay vectors.
  """
  if x.dtype == tf.uint8:
    return layers.images_to_float(x)
  x = tf.cast(x, tf.float32)
  return x if x.shape.rank == 2 else x[..., tf.newaxis]


def softmax(record_shape: tuple[int, ...], num_classes: int) -> Network:
  """Builds a logistic regression: its features are the record itself, flattened."""
  size = math.prod(record_shape)
  return Network(
      name='softmax', shapes=[(size, num_classes)],
      features=lambda weights, x: tf.reshape(to_float(x), [-1, size]))


def mlp(record_shape: tuple[int, ...], num_classes: int,
        hidden: int = 128) -> Network:
  """Builds a network of one hidden layer of rectified units."""
  size = math.prod(record_shape)

  def features(weights, x):
    x = tf.reshape(to_float(x), [-1, size])
    return tf.nn.relu(layers.dense(x, weights[0], weights[1]))

  return Network(name='mlp', shapes=[(size, hidden), (hidden, num_classes)],
                 features=features)


def _check_images(name: str, record_shape: tuple[int, ...], least: int) -> None:
  if len(record_shape) != 2 or min(record_shape) < least:
    raise ValueError(
        f'model {name} is for images of at least {least} x {least}, found '
        f'records of shape {list(record_shape)}')


def cnn_small(record_shape: tuple[int, ...], num_classes: int) -> Network:
  """Builds two convolutions with pooling: few parameters, for noise on the weights.

  Convolution 7 x 7 of 8, ReLU, max pool 2 x 2, convolution 4 x 4 of 24, ReLU, max
  pool 2 x 2, dense num_classes: on 28 x 28 images 7,346 parameters for 10 classes.
  On smaller images, such as 16 x 16, kernels are 5 x 5 and 3 x 3.
  """
  _check_images('cnn_small', record_shape, 12)
  first, second = (7, 4) if min(record_shape) >= 24 else (5, 3)
  sides = [((side - first + 1) // 2 - second + 1) // 2 for side in record_shape]

  def features(weights, x):
    x = to_float(x)
    for kernel, bias in (weights[0:2], weights[2:4]):
      # The maximum before the ReLU is the same, and a quarter of its work.
      x = tf.nn.relu(layers.max_pool(layers.conv2d(x, kernel, bias), 2))
    return layers.flatten(x)

  return Network(
      name='cnn_small', features=features,
      shapes=[(first, first, 1, 8), (second, second, 8, 24),
              (24 * math.prod(sides), num_classes)])


def cnn(record_shape: tuple[int, ...], num_classes: int) -> Network:
  """Builds three convolutions, the first two with stride 2, and a dense layer.

  Strides instead of pooling make it cheap: 1.1 million multiplications for an
  image of 28 x 28.
  """
  _check_images('cnn', record_shape, 8)
  sides = [-(-side // 4) for side in record_shape]

  def features(weights, x):
    x = to_float(x)
    for i, stride in enumerate((2, 2, 1)):
      x = tf.nn.relu(layers.conv2d(
          x, weights[2 * i], weights[2 * i + 1], stride=stride, padding='SAME'))
    return tf.nn.relu(layers.dense(layers.flatten(x), weights[6], weights[7]))

  return Network(
      name='cnn', features=features,
      shapes=[(5, 5, 1, 24), (3, 3, 24, 48), (3, 3, 48, 64),
              (64 * math.prod(sides), 64), (64, num_classes)])


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
  name = checks.choice(
      'model', name, MODELS, 'cnn' if len(record_shape) == 2 else 'mlp')
  return MODELS[name](record_shape, num_classes)
