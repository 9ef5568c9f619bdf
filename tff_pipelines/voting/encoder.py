"""A public feature map, learned by contrast from unlabelled public images.

Two distorted views of an image shall be nearer to each other than to views of other
images (SimCLR, arXiv 2002.05709). Training sees public images only. The encoder has
three convolutions and a dense layer, each with batch normalisation; its weights are
kernel, scale and offset of each layer.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from aggregators import keys
from tasks.models import classifiers, layers
from tff_pipelines.fedavg import adam
from tff_pipelines.voting import distortions

FEATURES = 64
DEFAULT_TRAINING = adam.AdamConfig(learning_rate=2e-3, batch_size=256, epochs=20)

_LAYERS = ('convolution_0', 'convolution_1', 'convolution_2', 'dense_0')
_ARRAYS = ('kernel', 'scale', 'offset', 'mean', 'variance')
# Names of the weights, in their order.
WEIGHTS = tuple(f'{layer}/{name}' for layer in _LAYERS for name in _ARRAYS[:3])
_PROJECTED = 64
_TEMPERATURE = 0.2
_BLOCK = 1000

# Means and variances of all normalised layers, in their order.
Statistics = Sequence[tuple[tf.Tensor, tf.Tensor]]


def initial_weights(size: int, seed: int) -> list[np.ndarray]:
  """Weights for images of `size` pixels a side."""
  rng = np.random.default_rng(seed)
  shapes = layers.kernel_shapes('encoder', classifiers.STRIDED, (size, size, 1), FEATURES)
  return [array for shape in shapes for array in (
      layers.glorot_uniform(rng, *shape), np.ones(shape[-1:], np.float32),
      layers.zeros(shape[-1]))]


def apply(weights, images: tf.Tensor, statistics: Statistics | None = None
          ) -> tuple[tf.Tensor, Statistics]:
  """Features, float32 [batch, FEATURES], and the statistics that normalised them.

  Images are float32 [batch, size, size, 1]; by default statistics are the batch's.
  """
  used = []

  def normalised(x, scale, offset):
    used.append(tf.nn.moments(x, list(range(x.shape.rank - 1)))
                if statistics is None else statistics[len(used)])
    return tf.nn.batch_normalization(x, *used[-1], offset, scale, 1e-3)

  x, arrays = images, iter(weights)
  for layer in classifiers.STRIDED:
    x = tf.nn.conv2d(x, next(arrays), layer.stride, 'SAME')
    x = tf.nn.relu(normalised(x, next(arrays), next(arrays)))
  x = tf.matmul(layers.flatten(x), next(arrays))
  return normalised(x, scale=next(arrays), offset=next(arrays)), used


def named(weights, public: np.ndarray) -> dict[str, np.ndarray]:
  """Weights of an encoder by name, and the statistics of public images, uint8."""
  _, statistics = apply(weights, classifiers.to_float(tf.constant(public)))
  return {f'{layer}/{name}': np.asarray(array) for i, layer in enumerate(_LAYERS)
          for name, array in zip(_ARRAYS, (*weights[3 * i:3 * i + 3], *statistics[i]))}


def encoded(arrays: Mapping[str, Any], images: tf.Tensor) -> tf.Tensor:
  """Features, float32 [batch, FEATURES], of uint8 images, by arrays of `named`."""
  return apply(
      [arrays[name] for name in WEIGHTS], classifiers.to_float(images),
      [[arrays[f'{layer}/{name}'] for name in _ARRAYS[3:]] for layer in _LAYERS])[0]


def contrast(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
  """The loss of two lists of views of the same images, row by row; scalar."""
  count = tf.shape(first)[0]
  views = tf.math.l2_normalize(tf.concat([first, second], axis=0), axis=1)
  # A view is not compared with itself.
  near = tf.matmul(views, views, transpose_b=True) / _TEMPERATURE
  near = tf.linalg.set_diag(near, tf.fill([2 * count], -1e9))
  partner = tf.concat([tf.range(count) + count, tf.range(count)], axis=0)
  return tf.reduce_mean(layers.softmax_cross_entropy(near, partner))


def train(images: np.ndarray, *, seed: int, config: adam.AdamConfig = DEFAULT_TRAINING,
          on_epoch: Callable[[int], object] = lambda done: None) -> list[np.ndarray]:
  """Trains an encoder on public images, uint8 [n, size, size]; returns its weights.

  ValueError for fewer than 2 images, or if a weight becomes NaN or infinite.
  """
  if len(images) < 2:
    raise ValueError(
        f'public images must be 2 or more to learn features from, found {len(images)}')
  rng = np.random.default_rng([seed, 1])
  state = adam.initial_state([
      *initial_weights(images.shape[1], seed),
      layers.glorot_uniform(rng, FEATURES, _PROJECTED), layers.zeros(_PROJECTED)])
  records = classifiers.to_float(tf.constant(images))
  key = tf.constant(keys.from_seed(seed))

  def loss(weights, rows, step):
    batch = tf.gather(records, rows)
    step_key = keys.derive(keys.derive(key, 1), step)
    features, _ = apply(weights, tf.concat(
        [distortions.strong(batch, keys.derive(step_key, i)) for i in range(2)], axis=0))
    projected = layers.dense(tf.nn.relu(features), *weights[len(WEIGHTS):])
    return contrast(*tf.split(projected, 2))

  run_epoch = adam.epoch_function(loss, keys.derive(key, 0), len(images), config)
  for epoch in range(config.epochs):
    state = run_epoch(state, tf.constant(epoch))
    on_epoch(epoch + 1)
  weights = [w.numpy() for w in state[0][:len(WEIGHTS)]]
  if not all(np.isfinite(w).all() for w in weights):
    raise ValueError('the feature map is not finite: lower --feature_learning_rate')
  return weights


class FeatureMap:
  """A trained encoder as a function of images; `arrays` are `named`."""

  def __init__(self, weights: list[np.ndarray], public: np.ndarray):
    self.weights, self.arrays = weights, named(weights, public)
    constants = {name: tf.constant(array) for name, array in self.arrays.items()}

    @tf.function(autograph=False, reduce_retracing=True)
    def features(images):
      return tf.math.l2_normalize(encoded(constants, images), axis=1)

    @tf.function(autograph=False, reduce_retracing=True)
    def features_alone(images):
      return tf.map_fn(lambda image: features(image[tf.newaxis])[0], images,
                       fn_output_signature=tf.TensorSpec([FEATURES], tf.float32))

    self._features, self._features_alone = features, features_alone

  def __call__(self, images: np.ndarray, alone: bool = False) -> np.ndarray:
    """Features of length 1, float32 [n, FEATURES], of uint8 [n, size, size].

    With `alone` no image changes another's features, not even in their last bits.
    """
    if not len(images):
      return np.zeros([0, FEATURES], np.float32)
    function = self._features_alone if alone else self._features
    return np.concatenate([function(tf.constant(images[i:i + _BLOCK])).numpy()
                           for i in range(0, len(images), _BLOCK)])
