"""Conditional rounding, noise from a table, and wrapping, in one kernel.

One 64-bit word a coordinate serves all three: 24 bits decide the rounding, up
to 18 the table's cell, 22 between the cell's value and its alias. Integers
only from the floor on, so that compiled and uncompiled graphs, and every
machine, give the same result.
"""

import functools

import tensorflow as tf

from aggregators import alias_draw
from aggregators import keys
from aggregators import modular_sum
from aggregators import rounding

_ROUNDING_BITS = 24


def words(key: tf.Tensor, dim: int, draws: int = 1) -> tf.Tensor:
  """What a rounding draws: int32 [2 * draws * dim], uniform."""
  drawn = _words(keys.derive(key, 0), draws * dim)
  # The same bytes seen as two halves.
  return tf.reshape(tf.bitcast(drawn, tf.int32), [2 * draws * dim])


# Twice as fast as the uncompiled operation. A program of its own, because in one
# with its consumers XLA draws the words anew for each of them.
@functools.partial(tf.function, jit_compile=True, autograph=False)
def _words(key: tf.Tensor, dim: int) -> tf.Tensor:
  return keys.words(key, [dim], tf.int64)


def noisy_round(vector: tf.Tensor, key: tf.Tensor, l2_bound_squared: int,
                packed: tf.Tensor, tie: tf.Tensor, bits: int,
                draws: int = 1, drawn: tf.Tensor | None = None):
  """Rounds, adds noise, wraps.

  Args:
    vector: float32 [D], grid units, norm at most 2^30.
    key: int64[2].
    l2_bound_squared: See `rounding.conditional_round`, whose rule this follows.
    packed: int64 [N], of an `alias_table.AliasTable`.
    tie: int64 [N], likewise.
    bits: The result is modulo 2^bits.
    draws: How many draws from the table add up to the noise.
    drawn: `words(key, D, draws)`, for callers that compile this function.

  Returns:
    int32 [D] in [0, 2^bits); the number of retries of the rounding (int32); and
    whether it fell back (bool).
  """
  dim = vector.shape[0]
  drawn = words(key, dim, draws) if drawn is None else drawn
  drawn = tf.reshape(drawn, [2, draws, dim])
  high, low = drawn[0], drawn[1]
  rounded = rounding.conditional_round(
      vector, keys.derive(key, 1), l2_bound_squared,
      first_words=tf.bitwise.bitwise_and(high[0], 2**_ROUNDING_BITS - 1))
  noise = sum(
      alias_draw.draw(
          low[i], tf.bitwise.right_shift(high[i], _ROUNDING_BITS),
          keys.derive(key, 2 + i), packed, tie)
      for i in range(draws))
  return (modular_sum.wrap(rounded.values + noise, bits), rounded.retries,
          rounded.fell_back)
