"""Local mechanisms: what leaves a client is private whoever sees it.

Pure TensorFlow functions of values and a key. A value is a row of `dimension`
coordinates in [-1, 1], and every row is a release of its own: two rows of one
client cost twice. The laws are those of `local_dp_distributions`, drawn with integers only,
so that the guarantee is exact and not one of ideal arithmetic. Coordinates outside
[-1, 1] are clipped; one that is not a number counts as 0.
"""

import abc
import dataclasses
import functools
import math

import numpy as np
import tensorflow as tf

from aggregators import alias_draw
from aggregators import keys
from aggregators import local_dp_distributions as laws
from aggregators import validate

# Budget that one coordinate should have before another is sampled too
# (arXiv 1907.00782, section IV-B).
_EPSILON_A_COORDINATE = 2.5

MECHANISMS = ('piecewise', 'duchi', 'laplace', 'gaussian')


def clipped(values: tf.Tensor) -> tf.Tensor:
  """float64 values in [-1, 1], 0 for what is not a number."""
  values = tf.cast(values, tf.float64)
  values = tf.where(tf.math.is_nan(values), tf.zeros_like(values), values)
  return tf.clip_by_value(values, -1.0, 1.0)


def _uniform(key: tf.Tensor, shape) -> tf.Tensor:
  return keys.uniform(key, shape, tf.float64)


def _is_true(key: tf.Tensor, shape, threshold: int) -> tf.Tensor:
  """Coins that are true with the chance threshold / 2^COIN_BITS, exactly."""
  words = tf.bitwise.bitwise_and(
      keys.random_bits(key, shape, tf.int64),
      tf.constant(2**laws.COIN_BITS - 1, tf.int64))
  return words < tf.constant(threshold, tf.int64)


def _places(key: tf.Tensor, shape, count: int) -> tf.Tensor:
  """int64 in [0, count), nearly uniform; `PiecewiseLaw` knows how nearly."""
  words = tf.bitwise.bitwise_and(
      keys.random_bits(key, shape, tf.int64),
      tf.constant(2**laws.PLACE_BITS - 1, tf.int64))
  return tf.bitwise.right_shift(
      words * count, tf.constant(laws.PLACE_BITS, tf.int64))


def _on_grid(values: tf.Tensor, key: tf.Tensor, steps: int) -> tf.Tensor:
  """int64, values times `steps` rounded up or down at random, unbiased."""
  scaled = values * steps
  low = tf.floor(scaled)
  up = _uniform(key, tf.shape(values)) < scaled - low
  return tf.cast(low, tf.int64) + tf.cast(up, tf.int64)


class LocalMechanism(abc.ABC):
  """A random map of rows of coordinates in [-1, 1], unbiased.

  Attributes:
    dimension: Coordinates of a row.
  """

  dimension: int

  def perturb(self, values: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
    """What may leave the client.

    Args:
      values: float32 or float64 [rows, dimension].
      key: int64[2], of this client and call alone.

    Returns:
      float32 [rows, dimension].
    """
    if values.shape.rank != 2 or values.shape[1] != self.dimension:
      raise ValueError(
          f'values must have the shape [rows, {self.dimension}], found '
          f'{list(values.shape)}')
    return tf.cast(self._perturb(clipped(values), key), tf.float32)

  @abc.abstractmethod
  def _perturb(self, values: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
    """`perturb` of float64 values in [-1, 1]."""

  @abc.abstractmethod
  def variance(self, z: float) -> float:
    """Of a coordinate of the output, for one of the input; model units squared."""

  @property
  def worst_variance(self) -> float:
    """The largest variance, which is at an end or in the middle of [-1, 1]."""
    return max(self.variance(0.0), self.variance(1.0))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Piecewise(LocalMechanism):
  """The piecewise mechanism (arXiv 1907.00782, Algorithms 2 and 4).

  m coordinates of a row are chosen uniformly without replacement, by chance alone,
  and each is perturbed with epsilon / m and scaled by dimension / m; the others
  are 0.

  Formal guarantees. A row is epsilon-DP for any two inputs, exactly: see
  `laws.PiecewiseLaw.worst_ratio`. Unbiased but for 2^-20 of the largest output.

  Attributes:
    epsilon: Of a row.
    dimension: Coordinates of a row.
  """

  epsilon: float
  dimension: int = 1

  def __post_init__(self):
    validate.positive(epsilon=self.epsilon)
    validate.integer(dimension=self.dimension, low=1)
    self.law  # Raises for an epsilon that can't be had.

  @property
  def sampled(self) -> int:
    """m, the coordinates of a row that are sent."""
    return max(1, min(
        self.dimension, math.floor(self.epsilon / _EPSILON_A_COORDINATE)))

  @functools.cached_property
  def law(self) -> laws.PiecewiseLaw:
    """Of one coordinate that is sent."""
    return laws.PiecewiseLaw(self.epsilon / self.sampled)

  def _one(self, values: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
    """Perturbs every value, with the whole budget of `law`."""
    law = self.law
    grid_key, coin_key, in_key, out_key = keys.split(key, 4)
    shape = tf.shape(values)
    start = tf.minimum(
        _on_grid((values + 1) / 2, grid_key, law.starts),
        tf.constant(law.starts, tf.int64))
    inside = _is_true(coin_key, shape, law.threshold)
    outside = _places(out_key, shape, law.starts)
    outside += tf.where(outside < start, tf.zeros_like(outside), law.window)
    place = tf.where(
        inside, start + _places(in_key, shape, law.window), outside)
    return (tf.cast(place, tf.float64) - law.centre) * law.unit

  def _perturb(self, values, key):
    count, d = self.sampled, self.dimension
    if count == d:
      return self._one(values, key)
    choice_key, noise_key = keys.split(key, 2)
    rows = tf.shape(values)[0]
    # The places of the largest of d random words: any m of d, equally likely.
    _, chosen = tf.math.top_k(
        keys.random_bits(choice_key, [rows, d], tf.int64), k=count, sorted=False)
    sent = self._one(tf.gather(values, chosen, batch_dims=1), noise_key)
    row = tf.broadcast_to(tf.range(rows)[:, tf.newaxis], tf.shape(chosen))
    return tf.scatter_nd(
        tf.stack([row, chosen], axis=-1), sent * (d / count), [rows, d])

  def variance(self, z: float) -> float:
    scale = self.dimension / self.sampled
    return scale * (self.law.variance(z) + z * z) - z * z


@dataclasses.dataclass(frozen=True, kw_only=True)
class Duchi(LocalMechanism):
  """The mechanism of Duchi, Jordan and Wainwright; see `laws.DuchiLaw`.

  Formal guarantees. A row is epsilon-DP for any two inputs, exactly. Unbiased but
  for the last digits of floating point.

  Attributes:
    epsilon: Of a row.
    dimension: Coordinates of a row.
  """

  epsilon: float
  dimension: int = 1

  def __post_init__(self):
    self.law  # Raises for what is out of range.

  @functools.cached_property
  def law(self) -> laws.DuchiLaw:
    return laws.DuchiLaw(self.epsilon, self.dimension)

  def _perturb(self, values, key):
    sign_key, turn_key, coin_key = keys.split(key, 3)
    shape = tf.shape(values)
    up = _uniform(sign_key, shape) < (values + 1) / 2
    drawn = keys.random_bits(turn_key, shape, tf.int32) < 0
    # Signs as +1 and -1; the product decides on which side the drawn vector lies.
    signs, turned = (2 * tf.cast(x, tf.int32) - 1 for x in (up, drawn))
    product = tf.reduce_sum(signs * turned, axis=1, keepdims=True)
    agree = 2 * tf.cast(
        _is_true(coin_key, tf.shape(product), self.law.threshold), tf.int32) - 1
    turn = tf.where(tf.equal(product, 0), tf.ones_like(product),
                    tf.sign(product) * agree)
    return tf.cast(turned * turn, tf.float64) * self.law.bound

  def variance(self, z: float) -> float:
    return self.law.variance(z)


class _Additive(LocalMechanism):
  """Noise from a table, added on a grid."""

  def _noise(self, key: tf.Tensor, shape) -> tf.Tensor:
    """int64 of a static rank, units of the grid."""
    table = self.law.table
    word_key, tie_key = keys.split(key, 2)
    count = tf.reduce_prod(shape)
    low, high = tf.unstack(keys.random_bits(word_key, tf.stack([2, count]), tf.int32))
    noise = alias_draw.draw(
        low, high, tie_key, tf.constant(table.packed), tf.constant(table.tie))
    return tf.cast(tf.reshape(noise, shape), tf.int64)

  def _perturb(self, values, key):
    grid_key, noise_key = keys.split(key, 2)
    noisy = _on_grid(values, grid_key, self.law.steps) + self._noise(
        noise_key, tf.shape(values))
    return tf.cast(self._released(noisy), tf.float64) / self.law.steps

  def _released(self, noisy: tf.Tensor) -> tf.Tensor:
    return noisy

  def variance(self, z: float) -> float:
    return self.law.variance(z)

  @property
  def worst_variance(self) -> float:
    # Rounding adds most halfway between two points of the grid.
    return self.variance(0.5 / self.law.steps)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Laplace(_Additive):
  """Laplace noise of scale 2 d / epsilon on a grid; see `laws.LaplaceLaw`.

  Formal guarantees. A row is epsilon-DP for any two inputs, exactly. Unbiased but
  for what is cut off, less than e^-29 of the scale.

  Attributes:
    epsilon: Of a row.
    dimension: Coordinates of a row.
  """

  epsilon: float
  dimension: int = 1

  def __post_init__(self):
    self.law  # Raises for what is out of range.

  @functools.cached_property
  def law(self) -> laws.LaplaceLaw:
    return laws.LaplaceLaw(self.epsilon, self.dimension)

  def _released(self, noisy):
    return tf.clip_by_value(noisy, -self.law.cut, self.law.cut)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gaussian(_Additive):
  """Discrete Gaussian noise; see `laws.GaussianLaw`.

  Formal guarantees. A row has the Renyi divergence alpha / (2 z^2) at most, for any
  two inputs, z being the noise multiplier (the table is within 2^-86 of the law).
  Unbiased.

  Attributes:
    noise_multiplier: Standard deviation over 2 sqrt(dimension), the largest L2
      distance of two rows.
    dimension: Coordinates of a row.
  """

  noise_multiplier: float
  dimension: int = 1

  def __post_init__(self):
    self.law  # Raises for what is out of range.

  @functools.cached_property
  def law(self) -> laws.GaussianLaw:
    return laws.GaussianLaw(self.noise_multiplier, self.dimension)


_PURE = {'piecewise': Piecewise, 'duchi': Duchi, 'laplace': Laplace}


def build(name: str, *, dimension: int, epsilon: float | None = None,
          noise_multiplier: float | None = None) -> LocalMechanism:
  """The mechanism of a name.

  Args:
    name: One of MECHANISMS.
    dimension: Coordinates of a row, >= 1.
    epsilon: Of a row, for all but 'gaussian'.
    noise_multiplier: Of 'gaussian' alone.

  Raises:
    ValueError: For an unknown name, or what is missing, unused or out of range.
  """
  validate.one_of(MECHANISMS, mechanism=name)
  given = {'epsilon': epsilon, 'noise_multiplier': noise_multiplier}
  wanted = 'noise_multiplier' if name == 'gaussian' else 'epsilon'
  for field, value in given.items():
    if (value is None) == (field == wanted):
      raise ValueError(
          f'mechanism={name} needs {wanted} and nothing else, found {field}='
          f'{value!r}')
  if name == 'gaussian':
    return Gaussian(noise_multiplier=noise_multiplier, dimension=dimension)
  return _PURE[name](epsilon=epsilon, dimension=dimension)


def scaled_probabilities(probabilities: tf.Tensor) -> tf.Tensor:
  """Probabilities as coordinates in [-1, 1], by public constants alone.

  By the least and the largest of a row, as some do, would tell of the row.
  """
  return 2 * probabilities - 1


def unscaled_probabilities(coordinates: np.ndarray) -> np.ndarray:
  """The inverse of `scaled_probabilities`, for outputs, which may lie anywhere."""
  return (coordinates + 1) / 2
