"""Architectures of FedMD's parties: small networks of two or three layers.

Parties of one run may have different ones. In a graph a party's model is one
vector of weights and the index of its architecture, so everything here is a
pure function of such a vector. `register` adds further architectures.
"""

from collections.abc import Callable, Sequence
import functools
import math

import numpy as np
import tensorflow as tf

from tasks import checks
from tasks.models import classifiers, layers

# Images of fewer pixels a side get layers with a smaller receptive field.
_LARGE_IMAGE = 20

Shrink, Convolution, Hidden = layers.Shrink, layers.Convolution, layers.Hidden


class Architecture(classifiers.Network):
  """A network for uint8 images, as functions of one vector of its weights, float32."""

  @functools.cached_property
  def _shapes(self) -> list[tuple[int, ...]]:
    """Shapes of the arrays in a weight vector: a kernel and a bias by layer."""
    return [each for shape in self.shapes for each in (shape, shape[-1:])]

  @functools.cached_property
  def _sizes(self) -> list[int]:
    return list(map(math.prod, self._shapes))

  @property
  def size(self) -> int:
    """Length of a weight vector."""
    return sum(self._sizes)

  def arrays(self, weights: np.ndarray) -> list[np.ndarray]:
    """The arrays in a weight vector."""
    parts = np.split(weights, np.cumsum(self._sizes)[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, self._shapes)]

  def initial_weights(self, seed: int) -> np.ndarray:
    """Glorot's uniform weights and biases of zero; float32 [size]."""
    return np.concatenate([array.ravel() for array in layers.layer_weights(
        np.random.default_rng(seed), *self.shapes)])

  def transferred(self, weights: np.ndarray, seed: int) -> np.ndarray:
    """Initial weights with all layers except the last taken from another model.

    `weights` are of the same architecture with another number of classes; `seed` is
    that of the last layer.
    """
    body = self.size - sum(self._sizes[-2:])
    return np.concatenate([weights[:body], self.initial_weights(seed)[body:]])

  def logits(self, weights: tf.Tensor, images: tf.Tensor) -> tf.Tensor:
    """Logits float32 [batch, classes] of images [batch, height, width, channels]."""
    parts = tf.split(weights, self._sizes)
    return self.logits_of_arrays([part if len(shape) == 1 else tf.reshape(part, shape)
                                  for part, shape in zip(parts, self._shapes)], images)

  def logits_of_arrays(self, arrays: Sequence, images: tf.Tensor) -> tf.Tensor:
    """The same, from the arrays in the vector."""
    x = tf.cast(images, tf.float32) * (1.0 / 255.0) - 0.5
    return self.classify(arrays, layers.apply(self.layers, iter(arrays), x))


def _conv3(image_shape) -> Sequence[layers.Layer]:
  if min(image_shape[:2]) < _LARGE_IMAGE:
    return (Convolution(size=3, filters=12), Convolution(size=3, filters=24, pool=2))
  return (Shrink(), Convolution(size=3, filters=12, pool=2),
          Convolution(size=3, filters=24))


def _shrunk(*hidden_layers: layers.Layer) -> Callable[
    [tuple[int, int, int]], Sequence[layers.Layer]]:
  """These layers, on large images at half their resolution: a quarter of the work."""
  return lambda shape: (
      (Shrink(),) if min(shape[:2]) >= _LARGE_IMAGE else ()) + hidden_layers


# Name -> hidden layers for images of a shape.
_REGISTRY = {
    'conv2': _shrunk(Convolution(size=3, filters=24, pool=2)),
    'conv3': _conv3,
    'mixed3': _shrunk(Convolution(size=3, filters=24, pool=2), Hidden(units=48)),
    'dense2': _shrunk(Hidden(units=128)),
    'dense3': _shrunk(Hidden(units=128), Hidden(units=64))}


def register(name: str, hidden_layers: Callable[
    [tuple[int, int, int]], Sequence[layers.Layer]]) -> None:
  """Adds an architecture under a new name, an identifier.

  `hidden_layers` maps an image shape (height, width, channels) to the layers from the
  image to the last hidden layer. Raises ValueError if the name is taken or no name.
  """
  if not name.isidentifier():
    raise ValueError(f'name must be an identifier, found {name!r}')
  if name in _REGISTRY:
    raise ValueError(f'name must be a new one, found {name!r}')
  _REGISTRY[name] = hidden_layers


def build(name: str, image_shape: tuple[int, int, int], classes: int) -> Architecture:
  """Builds the architecture `name` for images of a shape.

  Raises ValueError if there is no such architecture or it does not fit the images.
  """
  checks.choice('architectures', name, _REGISTRY)
  return of_layers(name, _REGISTRY[name](image_shape), image_shape, classes)


def of_layers(name: str, hidden_layers: Sequence[layers.Layer],
              image_shape: tuple[int, int, int], classes: int) -> Architecture:
  """Builds an architecture; a fully connected output layer is added to the layers."""
  return Architecture(
      name=name, layers=tuple(hidden_layers),
      shapes=layers.kernel_shapes(name, hidden_layers, image_shape, classes))
