"""Clipping, and the parts of conditional rounding: norms, scaling, one try.

`noisy_rounding` puts them together. Norms of integers are exact here, which makes
the L2 sensitivity of the sum an exact statement about integers: the squared norm
of what a client sends never exceeds `DistributedSumParams.l2_sensitivity_squared`,
whatever floating point did before.
"""

import functools

import tensorflow as tf

from aggregators import branch

# Sums over more coordinates than this are taken in blocks, so that a wider
# copy of a large vector never exists as a whole.
_BLOCK = 2**20
# Squares are added up within rows of this length, and then the rows.
_ROW = 256
# Norms of longer vectors are worth a compiled program.
_LEAST_COMPILED = 2**14
# Integers up to here are exact in float32.
_EXACT = 2**24
# Vectors whose norm is within these take the short way through clipping.
_ORDINARY = (1e-15, 1e18)
# The last float32 product moves a coordinate by at most 2^-24 of itself, so a
# vector shrunk to this part of the bound stays below the bound.
_FLOAT_SLACK = 1.0 - 2.0**-22


def _sum_of_squares(vector: tf.Tensor, dtype) -> tf.Tensor:
  return tf.add_n([tf.reduce_sum(tf.square(tf.cast(vector[i:i + _BLOCK], dtype)))
                   for i in range(0, max(1, vector.shape[0]), _BLOCK)])


def squared_norm(vector: tf.Tensor) -> tf.Tensor:
  """The squared norm, float64; infinite or NaN if a coordinate is.

  The order of summation differs between machines: by a relative 2^-50 or so.
  """
  return (_sum_of_squares(vector, tf.float64) if vector.shape[0] < _LEAST_COMPILED else
          _compiled_sum_of_squares(vector))


# One pass, and no wider copy of the vector.
@functools.partial(tf.function, jit_compile=True, autograph=False)
def _compiled_sum_of_squares(vector: tf.Tensor) -> tf.Tensor:
  def by_rows(block):
    whole = block.shape[0] // _ROW * _ROW
    rows = tf.reduce_sum(tf.square(tf.cast(
        tf.reshape(block[:whole], [-1, _ROW]), tf.float64)), axis=1)
    return tf.reduce_sum(rows) + _sum_of_squares(block[whole:], tf.float64)

  return tf.add_n([
      by_rows(vector[i:i + _BLOCK]) for i in range(0, vector.shape[0], _BLOCK)])


def squared_norm_if_sure(values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """int32, 0 if the other is exact, else 1; the squared norm of int32 values, int64.

  Sums of squares of a row that stay below 2^24 are exact in float32, whatever the
  order; a sum that left that range comes out as 2^24 or more: rounding is monotonic.
  """
  if values.shape[0] < 2 * _ROW:
    return tf.constant(0), _sum_of_squares(values, tf.int64)
  vector = tf.cast(values, tf.float32)
  whole = vector.shape[0] // _ROW * _ROW
  # The last row is shorter.
  rows = tf.concat([
      tf.reduce_sum(tf.square(tf.reshape(vector[:whole], [-1, _ROW])), axis=1),
      tf.reduce_sum(tf.square(vector[whole:]), keepdims=True)], axis=0)
  unsure = tf.cast(~(tf.reduce_max(rows) < _EXACT), tf.int32)
  return unsure, tf.reduce_sum(tf.cast(rows, tf.int64))


def integer_squared_norm(values: tf.Tensor) -> tf.Tensor:
  """The exact squared norm of int32 values as int64, up to 2^62."""
  unsure, norm = squared_norm_if_sure(values)
  return branch.either(tf.equal(unsure, 0), lambda: tf.identity(norm),
                       lambda: _sum_of_squares(values, tf.int64))


def _float64(number) -> tf.Tensor:
  """A number or tensor as float64; tf.cast takes Python's through float32."""
  return tf.cast(tf.convert_to_tensor(number, dtype_hint=tf.float64), tf.float64)


def clip_by_norm(vector: tf.Tensor, clip) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
  """Clips to an L2 norm; a vector with NaN or infinities becomes zero.

  Args:
    vector: float32 or float64 [d], model units. Any finite value is allowed.
    clip: Positive scalar, model units.

  Returns the clipped vector as float32 [d], whether it was clipped (bool), and whether
  it was finite (bool), which a float64 vector beyond float32's range is not unless the
  clip brings it there.
  """
  clip = _float64(clip)
  norm = tf.sqrt(squared_norm(vector))

  def short():
    factor = tf.minimum(clip / norm, 1.0)
    result = tf.cast(vector * tf.cast(factor, vector.dtype), tf.float32)
    return result, norm > clip, tf.constant(True)

  return branch.either((norm > _ORDINARY[0]) & (norm < _ORDINARY[1]), short,
                       lambda: _clip_extreme(vector, clip))


def _clip_extreme(vector: tf.Tensor, clip: tf.Tensor):
  """`clip_by_norm` of vectors whose squares may not fit their type."""
  is_finite = tf.reduce_all(tf.math.is_finite(vector))
  vector = tf.where(is_finite, vector, tf.zeros_like(vector))
  largest = tf.reduce_max(tf.abs(vector))
  # Two steps, as 1 / largest overflows for subnormal numbers. Zero divides by 1.
  relative = vector / tf.where(largest > 0, largest, tf.ones_like(largest))
  relative_norm = tf.sqrt(_sum_of_squares(relative, tf.float64))
  norm = relative_norm * tf.cast(largest, tf.float64)
  clipped = norm > clip
  shrunk = relative * tf.cast(clip / tf.maximum(relative_norm, 1.0), relative.dtype)
  result = tf.cast(tf.where(clipped, shrunk, vector), tf.float32)
  fits = tf.reduce_all(tf.math.is_finite(result))
  return tf.where(fits, result, tf.zeros_like(result)), clipped, is_finite & fits


def grid_factor(squared_norm: tf.Tensor, scale, clip_grid: float) -> tf.Tensor:
  """The factor that takes a vector to grid units and holds its norm at `clip_grid`.

  A float32 rotation may lengthen a vector by a few units in the last place, which near
  the bound would make every try of the rounding fail.

  Args:
    squared_norm: float64 scalar, of the vector, model units.
    scale: Grid units in a model unit.
    clip_grid: Largest norm, grid units.

  Returns a float32 scalar: the vector times this, in float32, is within `clip_grid`.
  """
  norm = tf.sqrt(squared_norm)
  limit = tf.constant(clip_grid * _FLOAT_SLACK, tf.float64)
  factor = _float64(scale)
  factor = tf.where(norm * factor > limit, limit / tf.maximum(norm, 1e-300), factor)
  return tf.cast(factor, tf.float32)


def round_by(vector: tf.Tensor, thresholds: tf.Tensor) -> tf.Tensor:
  """int32: float32 [D], grid units, rounded up where its fraction exceeds a threshold.

  Thresholds are int32 [D] in [0, 2^24), in units of 2^-24.
  """
  floor = tf.floor(vector)
  fraction = tf.cast((vector - floor) * 2.0**24, tf.int32)
  return tf.cast(floor, tf.int32) + tf.cast(thresholds < fraction, tf.int32)
