"""Conditional rounding, Skellam noise from a table, and wrapping, in one kernel.

One 64-bit word a coordinate serves all three: 24 bits decide the rounding, up
to 18 the table's cell, 22 between the cell's value and its alias. Integers
only from the floor on, so that compiled and uncompiled graphs, and every
machine, give the same result.
"""

import tensorflow as tf

from aggregators import keys
from aggregators import modular_sum
from aggregators import rounding
from aggregators import skellam_table

_ROUNDING_BITS = 24


def _bits(words: tf.Tensor, shift: int, count: int) -> tf.Tensor:
  """`count` bits of int32 words from bit `shift` on, as int32 >= 0."""
  shifted = tf.bitwise.right_shift(words, shift) if shift else words
  return tf.bitwise.bitwise_and(shifted, (1 << count) - 1)


def _noise(high: tf.Tensor, low: tf.Tensor, tie_key: tf.Tensor,
           packed: tf.Tensor, tie: tf.Tensor) -> tf.Tensor:
  """Draws from an alias table: int32, by 8 bits of `high` and all of `low`."""
  size = packed.shape[0]
  first_bits = skellam_table.FIRST_BITS
  index = tf.bitwise.bitwise_or(
      _bits(low, first_bits, 32 - first_bits),
      tf.bitwise.left_shift(_bits(high, _ROUNDING_BITS, 32 - _ROUNDING_BITS),
                            32 - first_bits))
  index = tf.bitwise.bitwise_and(index, size - 1)
  cell = tf.gather(packed, index)
  threshold = tf.cast(tf.bitwise.right_shift(cell, 32), tf.int32)
  alias = tf.cast(tf.bitwise.bitwise_and(cell, 2**32 - 1), tf.int32)
  draw = _bits(low, 0, first_bits)
  is_tie = tf.equal(draw, threshold)

  def broken_tie():
    words = keys.words(tie_key, draw.shape, tf.int64)
    return (draw < threshold) | (is_tie & (words < tf.gather(tie, index)))

  keeps = tf.cond(tf.reduce_any(is_tie), broken_tie, lambda: draw < threshold)
  return tf.where(keeps, index, alias) - size // 2


def noisy_round(vector: tf.Tensor, key: tf.Tensor, l2_bound_squared: int,
                packed: tf.Tensor, tie: tf.Tensor, bits: int):
  """Rounds, adds noise, wraps.

  Args:
    vector: float32 [D], grid units, norm at most 2^30.
    key: int64[2].
    l2_bound_squared: See `rounding.conditional_round`, whose rule this follows.
    packed: int64 [N], of a `skellam_table.AliasTable`.
    tie: int64 [N], likewise.
    bits: The result is modulo 2^bits.

  Returns:
    int32 [D] in [0, 2^bits); the number of retries of the rounding (int32); and
    whether it fell back (bool).
  """
  words = keys.words(keys.derive(key, 0), [2, vector.shape[0]], tf.int32)
  high, low = words[0], words[1]
  rounded = rounding.conditional_round(
      vector, keys.derive(key, 1), l2_bound_squared,
      first_words=_bits(high, 0, _ROUNDING_BITS))
  noise = _noise(high, low, keys.derive(key, 2), packed, tie)
  return (modular_sum.wrap(rounded.values + noise, bits), rounded.retries,
          rounded.fell_back)


# XLA fuses the steps, which is worth a factor of three; it runs in TFF's worker.
compiled_noisy_round = tf.function(
    noisy_round, jit_compile=True, autograph=False)
