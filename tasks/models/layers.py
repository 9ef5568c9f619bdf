"""Layers as pure functions of tensors, and their initial weights.

Nothing here holds state. Weights are arguments, and so is the seed that dropout draws
from, so that a client computes the same numbers wherever it runs: mapped by TFF, in a
graph of many clients, or inside XLA. Images are NHWC. Recurrent layers are in text.py.
"""

import collections
from collections.abc import Iterator, Mapping, Sequence
import itertools
import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf


def conv2d(x: tf.Tensor, kernel: Any, bias: Any, *, stride: int = 1,
           padding: str = 'VALID') -> tf.Tensor:
  """A 2-D convolution of [height, width, channels, filters] plus bias [filters]."""
  return tf.nn.bias_add(tf.nn.conv2d(x, kernel, strides=stride, padding=padding), bias)


@tf.custom_gradient
def _larger(left: tf.Tensor, right: tf.Tensor):
  """The larger of two, elementwise; of equals the left one has the gradient."""

  def gradient(upstream):
    to_left = upstream * tf.cast(left >= right, tf.float32)
    return to_left, upstream - to_left

  return tf.maximum(left, right), gradient


def max_pool(x: tf.Tensor, size: int) -> tf.Tensor:
  """The maximum of each size x size tile; incomplete tiles are dropped.

  Tiles of 2 x 2 by two maxima of halves: the gradient of TensorFlow's own pooling
  takes four times as long, a fifth of all the training of a small CNN.
  """
  if size != 2:
    return tf.nn.max_pool2d(x, ksize=size, strides=size, padding='VALID')
  height, width, channels = (int(n) for n in x.shape[1:])
  if height % 2 or width % 2:
    x = x[:, :height // 2 * 2, :width // 2 * 2]
  # First neighbours in a row are halves of a longer row, and then rows are.
  for row in (2 * channels, width // 2 * 2 * channels):
    left, right = tf.split(tf.reshape(x, [-1, row]), 2, axis=1)
    x = _larger(left, right)
  return tf.reshape(x, [-1, height // 2, width // 2, channels])


def flatten(x: tf.Tensor) -> tf.Tensor:
  """[batch, height, width, channels] to [batch, height * width * channels]."""
  return tf.reshape(x, [-1, math.prod(x.shape[1:])])


def dense(x: tf.Tensor, kernel: Any, bias: Any) -> tf.Tensor:
  """x @ kernel + bias: [batch, inputs] to [batch, outputs]."""
  return tf.nn.bias_add(tf.matmul(x, kernel), bias)


def layer_seed(seed: tf.Tensor, layer: int) -> tf.Tensor:
  """The int64 [2] seed of one layer, derived from the int64 [2] seed of a step.

  The index of the layer is the counter: two layers never share a mask, and
  adding a layer at the end leaves the masks of the others as they were.
  """
  # int64, as the result has no more bits than the type of the counter.
  return tf.random.experimental.stateless_fold_in(
      seed, tf.constant(layer, tf.int64), alg='philox')


def dropout(x: tf.Tensor, rate: float, seed: tf.Tensor | None) -> tf.Tensor:
  """Zeroes each element with probability `rate` in [0, 1) and rescales the others.

  The same `seed`, int64 [2], gives the same mask, with XLA or without, and the mask of a
  row depends only on its position: padding a batch with further rows changes nothing for
  the first ones. None, for inference, returns x. Raises ValueError for another rate.
  """
  if not 0 <= rate < 1:
    raise ValueError(f'rate must be in [0, 1), found {rate!r}')
  if seed is None:
    return x
  # Rates that are multiples of 1/256, as the usual ones are, take a byte each.
  dtype = tf.uint8 if (rate * 256).is_integer() else tf.uint32
  size = tf.size(x)
  # Philox by name: 'auto_select' takes another generator on other devices. And
  # integers, since XLA makes other floats of the same bits.
  bits = tf.random.stateless_uniform([(size * dtype.size + 3) // 4], seed, minval=None,
                                     maxval=None, dtype=tf.uint32, alg='philox')
  if dtype == tf.uint8:
    bits = tf.reshape(tf.bitcast(bits, dtype), [-1])[:size]
  threshold = tf.constant(round(rate * 2**(8 * dtype.size)), dtype)
  kept = tf.cast(tf.reshape(bits, tf.shape(x)) >= threshold, tf.float32)
  return x * (kept * (1.0 / (1.0 - rate)))


def softmax_cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
  """Computes a loss per example, float32 [batch], by natural logarithms.

  Here and below: logits float32 [batch, classes], labels int32 [batch] in [0, classes),
  mask float32 [batch], 0 for rows that must not count.
  """
  return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


def classification_metrics(logits: tf.Tensor, labels: tf.Tensor,
                           mask: tf.Tensor) -> Mapping[str, tuple[tf.Tensor, tf.Tensor]]:
  """Computes 'accuracy' and 'loss' as float32 (sum, weight) over rows that count."""
  predictions = tf.argmax(logits, axis=-1, output_type=labels.dtype)
  correct = tf.cast(tf.equal(predictions, labels), tf.float32)
  return {'accuracy': (tf.reduce_sum(correct * mask), tf.reduce_sum(mask)),
          'loss': masked_total(softmax_cross_entropy(logits, labels), mask)}


def masked_total(values: tf.Tensor, weights: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """The weighted sum of values, and the sum of their weights, of the same shape."""
  # Not values * weights: a padding row's loss may be infinite, 0 * inf is NaN.
  return (tf.reduce_sum(tf.where(weights > 0, values * weights, 0.0)),
          tf.reduce_sum(weights))


def classification_outputs(logits: tf.Tensor) -> Mapping[str, tf.Tensor]:
  """The 'class', int32 [batch], and 'probabilities', float32 [batch, classes]."""
  return {'class': tf.argmax(logits, axis=-1, output_type=tf.int32),
          'probabilities': tf.nn.softmax(logits)}


def confusion_counts(labels: tf.Tensor, predictions: tf.Tensor, weights: tf.Tensor,
                     classes: int) -> Mapping[str, tf.Tensor]:
  """The weights of all pairs of label and prediction, for task.Breakdown."""
  return {'confusion': tf.reshape(tf.math.unsorted_segment_sum(
      weights, labels * classes + predictions, classes * classes), [classes, classes])}


def class_counts(logits: tf.Tensor, labels: tf.Tensor, mask: tf.Tensor, *,
                 confusion: bool = False) -> Mapping[str, tf.Tensor]:
  """Counts predictions for task.Breakdown; with `confusion` classes^2 pairs."""
  classes = logits.shape[-1]
  predictions = tf.argmax(logits, axis=-1, output_type=labels.dtype)
  if confusion:
    return confusion_counts(labels, predictions, mask, classes)
  right = mask * tf.cast(tf.equal(predictions, labels), tf.float32)
  total = tf.math.unsorted_segment_sum
  return {'occurred': total(mask, labels, classes),
          'right': total(right, labels, classes),
          'predicted': total(mask, predictions, classes)}


def glorot_uniform(rng: np.random.Generator, *shape: int) -> np.ndarray:
  """Glorot's uniform initial weights [..., inputs, outputs], float32.

  By NumPy, whose bits do not depend on the device or the number of threads.
  """
  limit = math.sqrt(6.0 / (math.prod(shape[:-2]) * (shape[-2] + shape[-1])))
  return uniform(rng, *shape, limit=limit)


def he_normal(rng: np.random.Generator, inputs: int, outputs: int) -> np.ndarray:
  """He's initial weights [inputs, outputs], float32, as in Keras.

  Normal, values beyond two standard deviations drawn again, and scaled up to a
  variance of 2 / inputs after that.
  """
  values = rng.standard_normal([inputs, outputs])
  while np.any(beyond := np.abs(values) > 2.0):
    values[beyond] = rng.standard_normal(np.count_nonzero(beyond))
  # The second factor is the standard deviation of a normal cut off at +-2.
  return (values * (math.sqrt(2.0 / inputs) / 0.87962566103423978)).astype(np.float32)


def uniform(rng: np.random.Generator, *shape: int, limit: float) -> np.ndarray:
  """Uniform in [-limit, limit), float32."""
  return rng.uniform(-limit, limit, size=shape).astype(np.float32)


def zeros(size: int) -> np.ndarray:
  """The initial bias of `size` units, float32."""
  return np.zeros([size], np.float32)


def layer_weights(rng: np.random.Generator, *shapes: tuple[int, ...]) -> list[np.ndarray]:
  """Kernels of these shapes by glorot_uniform, each before its bias of zeros."""
  return [array for shape in shapes
          for array in (glorot_uniform(rng, *shape), zeros(shape[-1]))]


class Shrink(NamedTuple):
  """The mean of each 2 x 2 tile; has no weights."""


class Convolution(NamedTuple):
  """A convolution, ReLU, and a maximum over pool x pool tiles."""

  size: int
  filters: int
  stride: int = 1
  pool: int = 1
  padding: str = 'VALID'


class Hidden(NamedTuple):
  """A fully connected layer with ReLU."""

  units: int


class Dropout(NamedTuple):
  """Dropout where there is a seed; has no weights."""

  rate: float


Layer = Shrink | Convolution | Hidden | Dropout


def weight_names(hidden_layers: Sequence[Layer]) -> tuple[str, ...]:
  """Names of the kernels and biases of these layers and of the output layer."""
  counts, names = collections.Counter(), []
  for layer in hidden_layers:
    if isinstance(layer, (Convolution, Hidden)):
      kind = type(layer).__name__.lower()
      names.append(f'{kind}_{counts[kind]}')
      counts[kind] += 1
  return tuple(f'{name}/{array}' for name in (*names, 'output')
               for array in ('kernel', 'bias'))


def kernel_shapes(name: str, hidden_layers: Sequence[Layer],
                  record_shape: tuple[int, ...], classes: int
                  ) -> tuple[tuple[int, ...], ...]:
  """Computes the shapes of the kernels; a fully connected output layer is added.

  `record_shape` is height, width, channels; or one number, for fully connected layers.
  Raises ValueError if an image is too small for the layers; it names the architecture.
  """
  shapes, shape = [], record_shape
  for layer in (layer for layer in hidden_layers if not isinstance(layer, Dropout)):
    if isinstance(layer, Hidden):
      shapes.append((math.prod(shape), layer.units))
      shape = (layer.units,)
      continue
    if len(shape) != 3:
      raise ValueError(f'architecture {name}: {layer} must stand before Hidden layers')
    height, width, channels = shape
    if isinstance(layer, Shrink):
      shape = (height // 2, width // 2, channels)
    else:
      shapes.append((layer.size, layer.size, channels, layer.filters))
      lost = layer.size if layer.padding == 'VALID' else 1
      shape = (*(((side - lost) // layer.stride + 1) // layer.pool
                 for side in (height, width)), layer.filters)
    if min(shape) < 1:
      raise ValueError(f'architecture {name} needs larger images than {record_shape}')
  return (*shapes, (math.prod(shape), classes))


def apply(hidden_layers: Sequence[Layer], weights: Iterator[Any], x: tf.Tensor,
          seed: tf.Tensor | None = None) -> tf.Tensor:
  """Computes the outputs of the last hidden layer, float32 [batch, features].

  Consumes a kernel and its bias for each layer. x is float32 [batch, *record_shape];
  all dropout derives from `seed`, int64 [2], None for inference.
  """
  number = itertools.count()
  for layer in hidden_layers:
    if isinstance(layer, Shrink):
      x = tf.nn.avg_pool2d(x, ksize=2, strides=2, padding='VALID')
    elif isinstance(layer, Dropout):
      x = x if seed is None else dropout(x, layer.rate, layer_seed(seed, next(number)))
    elif isinstance(layer, Hidden):
      x = tf.nn.relu(dense(flatten(x), next(weights), next(weights)))
    else:
      x = conv2d(x, next(weights), next(weights), stride=layer.stride,
                 padding=layer.padding)
      x = max_pool(x, layer.pool) if layer.pool > 1 else x
      # After the maximum, where fewer values are left: it commutes with ReLU.
      x = tf.nn.relu(x)
  return flatten(x)
