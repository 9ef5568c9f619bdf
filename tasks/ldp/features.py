"""A public feature map of images, fitted on unlabelled public images alone.

Where published work starts from networks that were trained on other people's images, this
starts from fixed filters, so that nothing has to be downloaded and nothing private goes
in: the energy of oriented waves at two scales and some positions (a first layer of
scattering, arXiv 1203.1513), its principal components on the public images, and kernels
around some of them (Nystroem's map), in which a linear classifier is a kernel machine.
"""

from collections.abc import Callable, Mapping
import functools
from typing import Any

import numpy as np
import tensorflow as tf

from tasks import checks
from tasks.models import layers

_ORIENTATIONS = 8
# Pixels from the centre of a filter to its edge.
_REACH = 3
_WAVELENGTH, _WIDTH, _ASPECT = 4.0, 1.2, 0.7
# Energies are averaged over tiles of this many pixels a side.
_POOL = 4
_COMPONENTS = 200
_LANDMARKS = 1500
_BATCH = 500
# Bounds the inverse of a kernel matrix.
_JITTER = 1e-4
# Added to energies, so that flat images have a direction too.
_FLOOR = 1e-6


@functools.lru_cache(maxsize=1)
def _filters() -> np.ndarray:
  """float32 [size, size, 1, 2 * orientations]: cosines and sines, of mean 0."""
  y, x = np.mgrid[-_REACH:_REACH + 1, -_REACH:_REACH + 1].astype(np.float64)
  filters = []
  for angle in np.pi * np.arange(_ORIENTATIONS) / _ORIENTATIONS:
    along = x * np.cos(angle) + y * np.sin(angle)
    across = -x * np.sin(angle) + y * np.cos(angle)
    window = np.exp(-(along**2 + (_ASPECT * across)**2) / (2 * _WIDTH**2))
    window /= window.sum()
    phase = 2 * np.pi * along / _WAVELENGTH
    cosine = np.cos(phase)
    filters += [window * (cosine - (window * cosine).sum()), window * np.sin(phase)]
  return np.stack(filters, axis=-1)[:, :, np.newaxis].astype(np.float32)


@functools.lru_cache(maxsize=8)
def _graph(height: int, width: int, channels: int) -> Callable[[tf.Tensor], tf.Tensor]:
  """uint8 [n, height, width, channels] -> float32 [n, features], not negative."""

  @tf.function(autograph=False, input_signature=[
      tf.TensorSpec([None, height, width, channels], tf.uint8)])
  def energies_of(images):
    pixels = tf.cast(images, tf.float32) / 255.0
    # Channels as images of their own.
    grey = tf.reshape(tf.transpose(pixels, [0, 3, 1, 2]), [-1, height, width, 1])
    pooled = lambda x, size: tf.nn.avg_pool2d(x, size, size, 'VALID')
    parts = [pooled(grey, _POOL)]
    for scale in (1, 2):
      waves = tf.nn.conv2d(
          pooled(grey, scale) if scale > 1 else grey, _filters(), 1, 'SAME')
      size = tf.sqrt(tf.square(waves[..., ::2]) + tf.square(waves[..., 1::2]))
      parts.append(pooled(size, _POOL // scale))
    flat = tf.concat([layers.flatten(x) for x in parts], axis=1)
    return tf.reshape(flat, [-1, channels * flat.shape[1]])

  return energies_of


def energies(images: np.ndarray) -> np.ndarray:
  """Computes the energies of each image, their roots scaled to length 1.

  From uint8 [n, height, width, channels], at least 8 x 8, to float32 [n, features].
  """
  if images.dtype != np.uint8 or images.ndim != 4 or min(images.shape[1:3]) < 8:
    raise checks.wrong('images', 'uint8 [n, height >= 8, width >= 8, channels]', images)
  graph = _graph(*images.shape[1:])
  parts = [graph(tf.constant(images[i:i + _BATCH])).numpy()
           for i in range(0, len(images), _BATCH)]
  roots = np.sqrt(np.concatenate(parts) + _FLOOR)
  return roots / np.linalg.norm(roots, axis=1, keepdims=True)


def mapped(arrays: Mapping[str, Any], images: tf.Tensor) -> tf.Tensor:
  """Computes `FeatureMap.transform` as a pure TensorFlow function of its `arrays`.

  From uint8 [n, height, width, channels] to float32 [n, dimension], equal up to the
  last digits.
  """
  roots = tf.sqrt(_graph(*images.shape[1:])(images) + _FLOOR)
  x = tf.math.l2_normalize(roots, axis=1, epsilon=0.0) - arrays['mean']
  x, landmarks = tf.matmul(x, arrays['components']), arrays['landmarks']
  distances = tf.maximum(
      tf.reduce_sum(x**2, axis=1, keepdims=True) + tf.reduce_sum(landmarks**2, axis=1)
      - 2.0 * tf.matmul(x, landmarks, transpose_b=True), 0.0)
  return tf.matmul(tf.exp(-distances / arrays['bandwidth']), arrays['whitening'])


def _squared_distances(x: np.ndarray, y: np.ndarray) -> np.ndarray:
  return np.maximum(
      np.sum(x**2, axis=1)[:, np.newaxis] + np.sum(y**2, axis=1) - 2 * x @ y.T, 0)


class FeatureMap:
  """A map that is fitted on public images; their labels are not used.

  Attributes: dimension, the number of features; landmarks, float32 [dimension,
  components]; bandwidth, that of the kernels.
  """

  def __init__(self, public: np.ndarray, *, seed: int = 0):
    """Fits the map on uint8 [n >= 2, height, width, channels]; landmarks are random."""
    if len(public) < 2:
      raise ValueError(f'public images must be at least 2, found {len(public)}')
    x = energies(public)
    self._mean = x.mean(axis=0)
    x = x - self._mean
    _, axes = np.linalg.eigh((x.T @ x).astype(np.float64))
    self._components = axes[:, ::-1][:, :_COMPONENTS].astype(np.float32)
    x = x @ self._components
    chosen = np.random.default_rng(seed).permutation(len(x))[:_LANDMARKS]
    self.landmarks, self.dimension = x[chosen], len(chosen)
    distances = _squared_distances(self.landmarks, self.landmarks).astype(np.float64)
    self.bandwidth = max(float(np.median(distances)), 1e-12)
    kernel = np.exp(-distances / self.bandwidth) + _JITTER * np.eye(self.dimension)
    values, vectors = np.linalg.eigh(kernel)
    self._whitening = ((vectors / np.sqrt(np.maximum(values, _JITTER))) @ vectors.T
                      ).astype(np.float32)

  @property
  def arrays(self) -> dict[str, np.ndarray]:
    """The parameters of the map by name, for `mapped`."""
    return {'mean': self._mean, 'components': self._components,
            'landmarks': self.landmarks, 'bandwidth': np.float32(self.bandwidth),
            'whitening': self._whitening}

  def _projected(self, images: np.ndarray) -> np.ndarray:
    return (energies(images) - self._mean) @ self._components

  def transform(self, images: np.ndarray, alone: bool = False) -> np.ndarray:
    """Maps uint8 [n, height, width, channels] to float32 [n, dimension].

    With `alone` each image goes through the map independently, which takes longer.
    Products of many rows round each of them by its index and by how many there are, so
    that one more image changes the last bits of the others.
    """
    if not len(images):
      return np.zeros([0, self.dimension], np.float32)
    if alone:
      return self._transform_alone(tf.constant(images)).numpy()
    x = self._projected(images)
    kernels = (
        np.exp(-_squared_distances(x[i:i + 10 * _BATCH], self.landmarks)
               / self.bandwidth) for i in range(0, len(x), 10 * _BATCH))
    return np.concatenate([
        (kernel @ self._whitening).astype(np.float32) for kernel in kernels])

  @functools.cached_property
  def _transform_alone(self) -> Callable[[tf.Tensor], tf.Tensor]:
    """uint8 [n, height, width, channels] -> float32 [n, dimension], image by image."""
    arrays = {name: tf.constant(array) for name, array in self.arrays.items()}
    return tf.function(
        lambda images: tf.map_fn(
            lambda image: mapped(arrays, image[tf.newaxis])[0], images,
            fn_output_signature=tf.TensorSpec([self.dimension], tf.float32)),
        autograph=False, reduce_retracing=True)
