"""Architectures of FedMD's parties: small networks of two or three layers.

Parties of one run may have different ones. In a graph a party's model is one
vector of weights and the index of its architecture, so everything here is a
pure function of such a vector. `register` adds further architectures.
"""

from collections.abc import Callable, Iterable, Sequence
import math

import numpy as np
import tensorflow as tf

from tasks import checks
from tasks.models import layers

# Images of fewer pixels a side get layers with a smaller receptive field.
_LARGE_IMAGE = 20

Shrink, Convolution, Hidden = layers.Shrink, layers.Convolution, layers.Hidden


class Architecture:
  """A network for images of one shape, as functions of one weight vector.

  Attributes:
    name: As given to --architectures.
    layers: From the image to the last hidden layer.
    size: Length of the weight vector.
    classes: Number of outputs.
  """

  def __init__(self, name: str, hidden_layers: Sequence[layers.Layer],
               image_shape: tuple[int, int, int], classes: int):
    """Computes the shapes; a fully connected output layer is added.

    Args:
      name: Name of the architecture.
      hidden_layers: From the image to the last hidden layer.
      image_shape: Height, width, channels.
      classes: Number of outputs, >= 2.

    Raises:
      ValueError: If the image is too small for the layers.
    """
    self.name, self.layers, self.classes = name, tuple(hidden_layers), classes
    self._shapes = layers.kernel_shapes(name, self.layers, image_shape, classes)
    self._sizes = [
        count for shape in self._shapes for count in (math.prod(shape), shape[-1])]
    self.size = sum(self._sizes)

  @property
  def weight_names(self) -> tuple[str, ...]:
    """Names of the arrays in the weight vector, in their order."""
    return layers.weight_names(self.layers)

  def arrays(self, weights: np.ndarray) -> list[np.ndarray]:
    """The arrays in a weight vector, float32 [size]: a kernel and a bias by layer."""
    parts = np.split(weights, np.cumsum(self._sizes)[:-1])
    shapes = [each for shape in self._shapes for each in (shape, shape[-1:])]
    return [part.reshape(shape) for part, shape in zip(parts, shapes)]

  def initial_weights(self, seed: int) -> np.ndarray:
    """Glorot's uniform weights and biases of zero; float32 [size]."""
    return np.concatenate([array.ravel() for array in layers.layer_weights(
        np.random.default_rng(seed), *self._shapes)])

  def transferred(self, weights: np.ndarray, seed: int) -> np.ndarray:
    """Initial weights with all layers except the last taken from another model.

    Args:
      weights: Weights of the same architecture with another number of classes.
      seed: Seed of the last layer.

    Returns:
      float32 [size].
    """
    body = self.size - sum(self._sizes[-2:])
    return np.concatenate([weights[:body], self.initial_weights(seed)[body:]])

  def logits(self, weights: tf.Tensor, images: tf.Tensor) -> tf.Tensor:
    """Computes the outputs of the last layer.

    Args:
      weights: float32 [size].
      images: uint8 [batch, height, width, channels].

    Returns:
      float32 [batch, classes].
    """
    parts = iter(tf.split(weights, self._sizes))
    arrays = (array for shape in self._shapes
              for array in (tf.reshape(next(parts), shape), next(parts)))
    return self.logits_of_arrays(arrays, images)

  def logits_of_arrays(self, arrays: Iterable, images: tf.Tensor) -> tf.Tensor:
    """The same, from the arrays in the vector."""
    arrays = iter(arrays)
    x = tf.cast(images, tf.float32) * (1.0 / 255.0) - 0.5
    return layers.dense(layers.apply(self.layers, arrays, x), *arrays)


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
    'dense3': _shrunk(Hidden(units=128), Hidden(units=64)),
}


def register(name: str, hidden_layers: Callable[
    [tuple[int, int, int]], Sequence[layers.Layer]]) -> None:
  """Adds an architecture under a new name.

  Args:
    name: For --architectures; letters, digits and underscores.
    hidden_layers: Function from an image shape (height, width, channels) to the
      layers from the image to the last hidden layer.

  Raises:
    ValueError: If the name is taken or no name.
  """
  if not name.isidentifier():
    raise ValueError(
        f'name must be of letters, digits and underscores, found {name!r}')
  if name in _REGISTRY:
    raise ValueError(f'name must be a new one, found {name!r}')
  _REGISTRY[name] = hidden_layers


def check(name: str) -> None:
  """Raises ValueError unless an architecture of that name is registered."""
  checks.choice('architectures', name, _REGISTRY)


def build(name: str, image_shape: tuple[int, int, int],
          classes: int) -> Architecture:
  """Builds the architecture `name` for images of a shape.

  Raises:
    ValueError: If there is no such architecture or it does not fit the images.
  """
  check(name)
  return Architecture(name, _REGISTRY[name](image_shape), image_shape, classes)
