"""Architectures of FedMD's parties: small networks of two or three layers.

Parties of one run may have different ones. In a graph a party's model is one
vector of weights and the index of its architecture, so everything here is a
pure function of such a vector. `register` adds further architectures.
"""

from collections.abc import Callable, Sequence
import dataclasses
import math

import numpy as np
import tensorflow as tf

from tasks.models import layers

# Smaller images than this get layers of a shorter reach.
_LARGE_IMAGE = 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shrink:
  """The mean of each 2 x 2 tile; has no weights."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Convolution:
  """A convolution without padding, ReLU, and a maximum over pool x pool tiles."""

  size: int
  filters: int
  stride: int = 1
  pool: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hidden:
  """A fully connected layer with ReLU."""

  units: int


Layer = Shrink | Convolution | Hidden


class Architecture:
  """A network for images of one shape, as functions of one weight vector.

  Attributes:
    name: As given to --architectures.
    layers: From the image on, without the output layer.
    size: Length of the weight vector.
    classes: Number of outputs.
  """

  def __init__(self, name: str, hidden_layers: Sequence[Layer],
               image_shape: tuple[int, int, int], classes: int):
    """Computes the shapes; a fully connected output layer is added.

    Args:
      name: Of the architecture.
      hidden_layers: From the image on.
      image_shape: Height, width, channels.
      classes: Number of outputs, >= 2.

    Raises:
      ValueError: If the image is too small for the layers.
    """
    self.name = name
    self.classes = classes
    self.layers = tuple(hidden_layers)
    self._shapes = []
    shape = image_shape
    for layer in self.layers:
      shape = self._add(layer, shape, image_shape)
    self._shapes.append((math.prod(shape), classes))
    self._sizes = [
        count for shape in self._shapes for count in (math.prod(shape), shape[-1])]
    self.size = sum(self._sizes)

  def _add(self, layer: Layer, shape: tuple[int, ...],
           image_shape: tuple[int, int, int]) -> tuple[int, ...]:
    """Adds the layer's kernel; returns the shape of its outputs."""
    if isinstance(layer, Hidden):
      self._shapes.append((math.prod(shape), layer.units))
      return (layer.units,)
    if len(shape) != 3:
      raise ValueError(
          f'architecture {self.name}: {layer} must stand before fully connected '
          'layers')
    height, width, channels = shape
    if isinstance(layer, Shrink):
      shape = (height // 2, width // 2, channels)
    else:
      self._shapes.append((layer.size, layer.size, channels, layer.filters))
      shape = (*(((side - layer.size) // layer.stride + 1) // layer.pool
                 for side in (height, width)), layer.filters)
    if min(shape) < 1:
      raise ValueError(
          f'architecture {self.name} needs larger images than {image_shape}: '
          f'nothing is left of them after {layer}')
    return shape

  def initial_weights(self, seed: int) -> np.ndarray:
    """Glorot's uniform weights and biases of zero; float32 [size]."""
    rng = np.random.default_rng(seed)
    return np.concatenate([
        part for shape in self._shapes
        for part in (layers.glorot_uniform(rng, *shape).ravel(),
                     layers.zeros(shape[-1]))])

  def transferred(self, weights: np.ndarray, seed: int) -> np.ndarray:
    """Initial weights whose layers but the last are those of another model.

    Args:
      weights: Of the same architecture with another number of classes.
      seed: Of the last layer.

    Returns:
      float32 [size].
    """
    body = self.size - sum(self._sizes[-2:])
    return np.concatenate([weights[:body], self.initial_weights(seed)[body:]])

  def logits(self, weights: tf.Tensor, images: tf.Tensor) -> tf.Tensor:
    """The outputs of the last layer.

    Args:
      weights: float32 [size].
      images: uint8 [batch, height, width, channels].

    Returns:
      float32 [batch, classes].
    """
    parts = iter(tf.split(weights, self._sizes))
    kernels = [(tf.reshape(next(parts), shape), next(parts))
               for shape in self._shapes]
    unused = iter(kernels)
    x = tf.cast(images, tf.float32) * (1.0 / 255.0) - 0.5
    for layer in self.layers:
      if isinstance(layer, Shrink):
        x = tf.nn.avg_pool2d(x, ksize=2, strides=2, padding='VALID')
      elif isinstance(layer, Hidden):
        x = tf.nn.relu(layers.dense(_flat(x), *next(unused)))
      else:
        x = layers.conv2d(x, *next(unused), stride=layer.stride)
        x = layers.max_pool(x, layer.pool) if layer.pool > 1 else x
        # After the maximum, where fewer values are left: it commutes with ReLU.
        x = tf.nn.relu(x)
    return layers.dense(_flat(x), *next(unused))


def _flat(x: tf.Tensor) -> tf.Tensor:
  return x if x.shape.rank == 2 else layers.flatten(x)


def _conv2(image_shape) -> Sequence[Layer]:
  return (*_shrunk(image_shape), Convolution(size=3, filters=24, pool=2))


def _conv3(image_shape) -> Sequence[Layer]:
  if min(image_shape[:2]) < _LARGE_IMAGE:
    return (Convolution(size=3, filters=12), Convolution(size=3, filters=24, pool=2))
  return (Shrink(), Convolution(size=3, filters=12, pool=2),
          Convolution(size=3, filters=24))


def _mixed3(image_shape) -> Sequence[Layer]:
  return (*_shrunk(image_shape), Convolution(size=3, filters=24, pool=2),
          Hidden(units=48))


def _dense2(image_shape) -> Sequence[Layer]:
  return (*_shrunk(image_shape), Hidden(units=128))


def _dense3(image_shape) -> Sequence[Layer]:
  return (*_shrunk(image_shape), Hidden(units=128), Hidden(units=64))


def _shrunk(image_shape) -> Sequence[Layer]:
  """Large images at half their resolution: a quarter of the work."""
  return (Shrink(),) if min(image_shape[:2]) >= _LARGE_IMAGE else ()


# Name -> hidden layers for images of a shape. conv2: a convolution and the
# output layer; conv3: two and the output layer; mixed3: a convolution, a fully
# connected layer and the output layer; dense2, dense3: fully connected only.
_REGISTRY = {
    'conv2': _conv2, 'conv3': _conv3, 'mixed3': _mixed3, 'dense2': _dense2,
    'dense3': _dense3,
}


def register(name: str, hidden_layers: Callable[
    [tuple[int, int, int]], Sequence[Layer]]) -> None:
  """Adds an architecture under a new name.

  Args:
    name: As --architectures will call it; letters, digits and underscores.
    hidden_layers: Function from an image shape (height, width, channels) to the
      layers from the image on, without the output layer.

  Raises:
    ValueError: If the name is taken or no name.
  """
  if not name.isidentifier():
    raise ValueError(
        f'name must be of letters, digits and underscores, found {name!r}')
  if name in _REGISTRY:
    raise ValueError(f'name must be a new one, found {name!r}')
  _REGISTRY[name] = hidden_layers


def names() -> tuple[str, ...]:
  """The registered architectures, in the order of their registration."""
  return tuple(_REGISTRY)


def check(name: str) -> None:
  """Raises ValueError unless an architecture of that name is registered."""
  if name not in _REGISTRY:
    raise ValueError(
        f'architectures must be of {", ".join(_REGISTRY)}, found {name!r}')


def build(name: str, image_shape: tuple[int, int, int],
          classes: int) -> Architecture:
  """The architecture `name` for images of a shape.

  Raises:
    ValueError: If there is no such architecture or it does not fit the images.
  """
  check(name)
  return Architecture(name, _REGISTRY[name](image_shape), image_shape, classes)
