"""Local mechanisms: what leaves a client is private whoever sees it.

Pure TensorFlow functions of values and a key. A value is a row of `dimension` coordinates
in [-1, 1], and every row is a separate release: two rows of one client cost twice. Soft
labels are of the simplex, probabilities p as 2 p - 1: no two are more than 4 apart in L1
and 2 sqrt(2) in L2, and need less noise. Outputs follow the distributions of
`local_dp_distributions`, drawn with integers only, so that the guarantee is exact and not
one of ideal arithmetic. Coordinates outside [-1, 1] are clipped; NaN counts as 0.
"""

import abc
import functools
import math

import numpy as np
import tensorflow as tf

from aggregators import alias_draw, keys, local_dp_distributions as distributions
from tff_pipelines.common import validate

# Budget that one coordinate should have before another is sampled too
# (arXiv 1907.00782, section IV-B).
_EPSILON_A_COORDINATE = 2.5
# Probabilities are cut to this many bits before they are rounded together.
_PART_BITS = 30


def _low_bits(key: tf.Tensor, shape, count: int) -> tf.Tensor:
  """int64, uniform below 2^count."""
  return keys.random_bits(key, shape, tf.int64) & (2**count - 1)


def _is_true(key: tf.Tensor, shape, threshold: int) -> tf.Tensor:
  """Coins that are true with probability threshold / 2^COIN_BITS, exactly."""
  return _low_bits(key, shape, distributions.COIN_BITS) < threshold


def _indices(key: tf.Tensor, shape, count: int) -> tf.Tensor:
  """int64 in [0, count), uniform up to what `PiecewiseDistribution` accounts for."""
  return tf.bitwise.right_shift(_low_bits(key, shape, distributions.INDEX_BITS) * count,
                                tf.constant(distributions.INDEX_BITS, tf.int64))


def _on_grid(values: tf.Tensor, key: tf.Tensor, steps: int) -> tf.Tensor:
  """int64, values times `steps` rounded up or down at random, unbiased."""
  scaled = values * steps
  low = tf.floor(scaled)
  up = keys.uniform(key, tf.shape(values), tf.float64) < scaled - low
  return tf.cast(low, tf.int64) + tf.cast(up, tf.int64)


class LocalMechanism(abc.ABC):
  """A random map of rows of coordinates in [-1, 1], unbiased.

  Attributes:
    dimension: Coordinates of a row.
  """

  dimension: int

  def perturb(self, values: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
    """Perturbs rows; the result, float32 [rows, dimension], may leave the client.

    Args:
      values: float32 or float64 [rows, dimension].
      key: int64[2], of this client and call alone.
    """
    if values.shape.rank != 2 or values.shape[1] != self.dimension:
      raise ValueError(f'values must have the shape [rows, {self.dimension}], found '
                       f'{list(values.shape)}')
    values = tf.cast(values, tf.float64)
    values = tf.where(tf.math.is_nan(values), tf.zeros_like(values), values)
    return tf.cast(self._perturb(tf.clip_by_value(values, -1.0, 1.0), key), tf.float32)

  @abc.abstractmethod
  def _perturb(self, values: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
    """`perturb` of float64 values in [-1, 1]."""

  @abc.abstractmethod
  def variance(self, z: float) -> float:
    """Variance of a coordinate of the output, for one of the input."""

  @property
  def worst_variance(self) -> float:
    """The largest variance, which is at an end or in the middle of [-1, 1]."""
    return max(self.variance(0.0), self.variance(1.0))


class Piecewise(LocalMechanism):
  """The piecewise mechanism, of the cube (arXiv 1907.00782, Algorithms 2 and 4).

  m coordinates of a row are chosen uniformly without replacement, by chance alone, and
  each is perturbed with epsilon / m and scaled by dimension / m; the others are 0.

  Formal guarantees. A row is epsilon-DP for any two inputs, exactly: see
  `PiecewiseDistribution`. Unbiased up to 2^-20 of the largest output.

  Attributes:
    sampled: m, the coordinates of a row that are sent.
    distribution: The distribution of one of them.
  """

  def __init__(self, *, epsilon: float, dimension: int = 1):
    """Initializes the mechanism: epsilon of a row, and its coordinates."""
    validate.positive(epsilon=epsilon)
    validate.integer(dimension=dimension, low=1)
    self.dimension = dimension
    self.sampled = max(1, min(dimension, math.floor(epsilon / _EPSILON_A_COORDINATE)))
    self.distribution = distributions.PiecewiseDistribution(epsilon / self.sampled)

  def _one(self, values: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
    """Perturbs every value, with the whole budget of `distribution`."""
    dist = self.distribution
    grid_key, coin_key, in_key, out_key = keys.split(key, 4)
    shape = tf.shape(values)
    start = tf.minimum(_on_grid((values + 1) / 2, grid_key, dist.starts), dist.starts)
    outside = _indices(out_key, shape, dist.starts)
    outside += tf.where(outside < start, tf.zeros_like(outside), dist.window)
    output = tf.where(_is_true(coin_key, shape, dist.threshold),
                      start + _indices(in_key, shape, dist.window), outside)
    return (tf.cast(output, tf.float64) - dist.centre) * dist.unit

  def _perturb(self, values, key):
    count, d = self.sampled, self.dimension
    if count == d:
      return self._one(values, key)
    choice_key, noise_key = keys.split(key, 2)
    rows = tf.shape(values)[0]
    # Where the largest of d random integers are: any m of d, equally likely.
    _, chosen = tf.math.top_k(
        keys.random_bits(choice_key, [rows, d], tf.int64), k=count, sorted=False)
    sent = self._one(tf.gather(values, chosen, batch_dims=1), noise_key)
    row = tf.broadcast_to(tf.range(rows)[:, tf.newaxis], tf.shape(chosen))
    return tf.scatter_nd(tf.stack([row, chosen], axis=-1), sent * (d / count), [rows, d])

  def variance(self, z: float) -> float:
    scale = self.dimension / self.sampled
    return scale * (self.distribution.variance(z) + z * z) - z * z


class Duchi(distributions.DuchiDistribution, LocalMechanism):
  """The mechanism of Duchi, Jordan and Wainwright, of the cube; see `DuchiDistribution`.

  Formal guarantees. A row is epsilon-DP for any two inputs, exactly. Unbiased up
  to the last digits of floating point.
  """

  def _perturb(self, values, key):
    sign_key, turn_key, coin_key = keys.split(key, 3)
    shape = tf.shape(values)
    up = keys.uniform(sign_key, shape, tf.float64) < (values + 1) / 2
    uniform = keys.random_bits(turn_key, shape, tf.int32) < 0
    # Signs as +1 and -1; the product decides on which side the uniform vector lies.
    signs, turned = (2 * tf.cast(x, tf.int32) - 1 for x in (up, uniform))
    product = tf.reduce_sum(signs * turned, axis=1, keepdims=True)
    agree = 2 * tf.cast(
        _is_true(coin_key, tf.shape(product), self.threshold), tf.int32) - 1
    turn = tf.where(tf.equal(product, 0), tf.ones_like(product), tf.sign(product) * agree)
    return tf.cast(turned * turn, tf.float64) * self.bound


class SubsetSelection(distributions.SubsetDistribution, LocalMechanism):
  """Subset selection of the class that a row names; see `SubsetDistribution`.

  It names that of the largest coordinate, the first one if there are several.

  Formal guarantees. A row is epsilon-DP for any two inputs, exactly. Unbiased, up to
  2^-40, for the row with 1 for the class that is named and -1 for others.
  """

  def _perturb(self, values, key):
    coin_key, rank_key = keys.split(key, 2)
    shape = tf.shape(values)
    largest = tf.equal(values, tf.reduce_max(values, axis=1, keepdims=True))
    first = tf.equal(tf.cumsum(tf.cast(largest, tf.int32), axis=1), 1)
    forced = largest & first & _is_true(coin_key, [shape[0], 1], self.threshold)
    bits = distributions.COIN_BITS
    ranks = tf.where(forced, tf.constant(2**bits, tf.int64),
                     _low_bits(rank_key, shape, bits))
    _, chosen = tf.math.top_k(ranks, k=self.size, sorted=False)
    held = tf.reduce_sum(tf.one_hot(chosen, self.dimension, dtype=tf.float64), axis=1)
    return 2 * (held - self.outside) / (self.inside - self.outside) - 1


def _on_simplex(values: tf.Tensor, key: tf.Tensor, steps: int) -> tf.Tensor:
  """int64, values times `steps` rounded at random to every second unit, unbiased.

  Rows are scaled to be probabilities, whose cumulative sums deal `steps` pairs of units
  to the coordinates: none is negative, and none is lost, whatever the input.
  """
  parts = tf.cast((values + 1) * 2.0**_PART_BITS, tf.int64)
  lost = tf.equal(tf.reduce_sum(parts, axis=1, keepdims=True), 0)
  sums = tf.cumsum(parts + tf.cast(lost, tf.int64), axis=1)
  total = sums[:, -1:]
  start = tf.cast(keys.uniform(key, tf.shape(total), tf.float64)
                  * tf.cast(total, tf.float64), tf.int64)
  ends = (sums * steps + tf.minimum(start, total - 1)) // total
  return 2 * (ends - tf.pad(ends[:, :-1], [[0, 0], [1, 0]])) - steps


class _Additive(LocalMechanism):
  """Noise from a table, added on a grid."""

  limit: int | None = None  # Of outputs, in units of the grid.

  def _perturb(self, values, key):
    grid_key, noise_key = keys.split(key, 2)
    rounded = (_on_simplex if self.simplex else _on_grid)(values, grid_key, self.steps)
    noisy = rounded + alias_draw.sample(noise_key, tf.shape(values), self.table)
    if self.limit is not None:
      noisy = tf.clip_by_value(noisy, -self.limit, self.limit)
    return tf.cast(noisy, tf.float64) / self.steps


class Laplace(distributions.LaplaceDistribution, _Additive):
  """Laplace noise on a grid; see `LaplaceDistribution`.

  Formal guarantees. A row is epsilon-DP for any two inputs, exactly; with `simplex` it
  is scaled to be a point of the simplex first. Unbiased up to clipping, less than e^-29
  of the scale, and up to 2^-30 a coordinate.
  """


class Gaussian(distributions.GaussianDistribution, _Additive):
  """Discrete Gaussian noise on a grid; see `GaussianDistribution`.

  Formal guarantees. A row has the Renyi divergence alpha / (2 z^2) at most, for any
  two inputs, z being the noise multiplier (the table is within 2^-86 of the
  distribution); with `simplex` it is scaled to be a point of the simplex first.
  Unbiased, up to 2^-30 a coordinate.
  """


_CLASSES = {'krr': functools.partial(SubsetSelection, size=1),
            'subset': SubsetSelection, 'laplace': Laplace, 'gaussian': Gaussian,
            'piecewise': Piecewise, 'duchi': Duchi}


def build(name: str, *, dimension: int, epsilon: float | None = None,
          noise_multiplier: float | None = None, simplex: bool = False) -> LocalMechanism:
  """Builds the mechanism of a name.

  Args:
    name: 'krr', 'subset', 'laplace', 'gaussian', 'piecewise' or 'duchi'.
    dimension: Coordinates of a row, >= 1.
    epsilon: Epsilon of a row, for all but 'gaussian'.
    noise_multiplier: Noise multiplier of 'gaussian' alone.
    simplex: Whether rows are soft labels, as `scaled_probabilities` gives them, which
      'krr' and 'subset' are for. 'laplace' and 'gaussian' then need less noise;
      'piecewise' and 'duchi' are of the cube in any case.
  """
  validate.one_of(_CLASSES, mechanism=name)
  wanted = 'noise_multiplier' if name == 'gaussian' else 'epsilon'
  given = {'epsilon': epsilon, 'noise_multiplier': noise_multiplier}
  given = {field: value for field, value in given.items() if value is not None}
  if list(given) != [wanted]:
    raise ValueError(f'mechanism={name} needs {wanted} and nothing else, found {given}')
  if name in ('laplace', 'gaussian'):
    given['simplex'] = simplex
  elif name in ('krr', 'subset') and not simplex:
    raise ValueError(f'mechanism={name} needs simplex=True: it answers with classes')
  return _CLASSES[name](**given, dimension=dimension)


def scaled_probabilities(probabilities: tf.Tensor) -> tf.Tensor:
  """Probabilities as coordinates in [-1, 1], by public constants alone.

  Scaling by the smallest and the largest of a row would reveal something of the row.
  """
  return 2 * probabilities - 1


def unscaled_probabilities(coordinates: np.ndarray) -> np.ndarray:
  """The inverse of `scaled_probabilities`, for outputs, which may lie anywhere."""
  return (coordinates + 1) / 2
