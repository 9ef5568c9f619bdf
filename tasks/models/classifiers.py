"""Networks of classifiers: features, and classes from features.

The same network may be an agent's, the student's or a baseline's, or a client's in
the EMNIST task. Weights are a flat list, those of the features first, those of the
classifier last.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from tasks import checks, task
from tasks.models import layers

# Convolutions with strides instead of pooling.
STRIDED = tuple(layers.Convolution(size, filters, stride, padding='SAME')
                for size, filters, stride in ((5, 24, 2), (3, 48, 2), (3, 64, 1)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Network:
  """A network as pure functions of a flat list of float32 weights.

  Its layers are from the record to the features. Shapes are those of the kernels, from
  input to output, each of which has a bias; the last is that of the classifier,
  [feature_size, num_classes].
  """

  name: str
  layers: Sequence[layers.Layer]
  shapes: Sequence[tuple[int, ...]]

  @property
  def feature_size(self) -> int:
    return self.shapes[-1][0]

  @property
  def num_classes(self) -> int:
    return self.shapes[-1][1]

  @property
  def weight_names(self) -> tuple[str, ...]:
    """Name of each of the weights: 'convolution_0/kernel', 'output/bias'."""
    return layers.weight_names(self.layers)

  def initial_weights(self, seed: int) -> list[np.ndarray]:
    """Float32 arrays: a kernel and its bias for each of the shapes."""
    if len(self.shapes) == 1:  # Convex, so every start is as good as zero.
      return [np.zeros(shape, np.float32)
              for shape in (self.shapes[0], (self.num_classes,))]
    return layers.layer_weights(np.random.default_rng(seed), *self.shapes)

  def features(self, weights: task.Weights, x: Any,
               seed: tf.Tensor | None = None) -> tf.Tensor:
    """Features float32 [batch, feature_size] of records as for `to_float`.

    The last two weights, the classifier's, are not used. Dropout derives from `seed`,
    int64 [2]; None for inference.
    """
    return layers.apply(self.layers, iter(weights), to_float(x), seed)

  def classify(self, weights: task.Weights, features: tf.Tensor) -> tf.Tensor:
    """Logits float32 [batch, classes] from features."""
    return layers.dense(features, weights[-2], weights[-1])

  def logits(self, weights: task.Weights, x: Any,
             seed: tf.Tensor | None = None) -> tf.Tensor:
    """Logits float32 [batch, classes] from records; arguments as for `features`."""
    return self.classify(weights, self.features(weights, x, seed))

  def as_model(self, breakdown: Mapping[str, Any] | None = None) -> task.Model:
    """Builds a task's model, for training; `breakdown` as for `model_of_logits`."""
    return model_of_logits(self.name, self.initial_weights, self.logits,
                           weight_names=self.weight_names, breakdown=breakdown)


def model_of_logits(
    name: str, initial_weights: Callable[[int], list[np.ndarray]],
    logits: Callable[..., tf.Tensor], *, breakdown: Mapping[str, Any] | None = None,
    **attributes: Any) -> task.Model:
  """Builds the model of a classifier of records 'x'.

  `logits` is (weights, x, seed=None) -> float32 [batch, classes]. `breakdown` has the
  attributes of task.Breakdown without `count`, which is a confusion matrix; None for no
  breakdown. Others are attributes of task.Model.
  """

  def loss(weights, batch, seed):
    return layers.softmax_cross_entropy(logits(weights, batch['x'], seed), batch['y'])

  def metrics(weights, batch, mask):
    return layers.classification_metrics(logits(weights, batch['x']), batch['y'], mask)

  def count(weights, batch, mask):
    return layers.class_counts(
        logits(weights, batch['x']), batch['y'], mask, confusion=True)

  def predict(weights, batch):
    return layers.classification_outputs(logits(weights, batch['x']))

  return task.Model(
      name=name, initial_weights=initial_weights, loss=loss, metrics=metrics,
      breakdown=breakdown and task.Breakdown(count=count, **breakdown),
      predict=predict, **attributes)


def numbered(num_classes: int) -> dict[str, Any]:
  """The breakdown of classes that have numbers instead of names."""
  return {'kind': 'class', 'names': [str(i) for i in range(num_classes)]}


def to_float(x: Any) -> tf.Tensor:
  """Converts records to float32, as the networks take them.

  Images [batch, height, width], uint8 or floats in [0, 1], become [batch, height,
  width, 1]; those with channels and vectors [batch, d] keep their shapes.
  """
  x = tf.convert_to_tensor(x)
  channels = ... if x.shape.rank in (2, 4) else (..., tf.newaxis)
  if x.dtype == tf.uint8:
    # In the graph, so that images travel as bytes.
    return tf.cast(x, tf.float32)[channels] * (1.0 / 255.0)
  return tf.cast(x, tf.float32)[channels]


def network(name: str, record_shape: tuple[int, ...], num_classes: int,
            *hidden_layers: layers.Layer, min_side: int = 0) -> Network:
  """Builds a network of these layers; images without channels have one.

  Raises ValueError if there is a `min_side`, and records are no images that large.
  """
  if min_side and (len(record_shape) not in (2, 3) or min(record_shape[:2]) < min_side):
    least = f'{min_side} x {min_side} or more'
    raise checks.wrong(f'images of model {name}', least, list(record_shape))
  shape = (*record_shape, 1) if len(record_shape) == 2 else record_shape
  return Network(name=name, layers=hidden_layers,
                 shapes=layers.kernel_shapes(name, hidden_layers, shape, num_classes))


def softmax(record_shape: tuple[int, ...], num_classes: int) -> Network:
  """Builds a logistic regression: its features are the record itself, flattened."""
  return network('softmax', record_shape, num_classes)


def mlp(record_shape: tuple[int, ...], num_classes: int, hidden: int = 128) -> Network:
  """Builds a network of one hidden layer of rectified units."""
  return network('mlp', record_shape, num_classes, layers.Hidden(hidden))


def cnn_small(record_shape: tuple[int, ...], num_classes: int) -> Network:
  """Builds two convolutions with pooling: few parameters, for noise on the weights.

  Convolution 7 x 7 of 8, ReLU, max pool 2 x 2, convolution 4 x 4 of 24, ReLU, max
  pool 2 x 2, dense num_classes: on 28 x 28 images 7,346 parameters for 10 classes.
  On smaller images, such as 16 x 16, kernels are 5 x 5 and 3 x 3.
  """
  first, second = (7, 4) if min(record_shape[:2]) >= 24 else (5, 3)
  return network(
      'cnn_small', record_shape, num_classes, layers.Convolution(first, 8, pool=2),
      layers.Convolution(second, 24, pool=2), min_side=12)


def cnn(record_shape: tuple[int, ...], num_classes: int) -> Network:
  """Builds three convolutions, the first two with stride 2, and a dense layer.

  Strides instead of pooling make it cheap: 1.1 million multiplications for an
  image of 28 x 28.
  """
  return network('cnn', record_shape, num_classes, *STRIDED, layers.Hidden(64),
                 min_side=8)


MODELS = {'softmax': softmax, 'mlp': mlp, 'cnn_small': cnn_small, 'cnn': cnn}


def build(name: str | None, record_shape: tuple[int, ...], num_classes: int) -> Network:
  """Builds a network for records of a shape, and at least two classes.

  `name` is one of MODELS; None means 'cnn' for images, 'mlp' for vectors. Raises
  ValueError on an unknown name, or images where vectors are needed.
  """
  name = checks.choice('model', name, MODELS, 'cnn' if len(record_shape) > 1 else 'mlp')
  return MODELS[name](record_shape, num_classes)
