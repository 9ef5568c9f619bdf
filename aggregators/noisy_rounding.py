"""Conditional rounding, noise from a table, and wrapping, in one kernel.

One 64-bit word a coordinate serves all three: 23 bits decide the rounding, up
to 19 the table's cell, 22 between the cell's value and its alias. Integers
only from the floor on, so that compiled and uncompiled graphs, and every
machine, give the same result.
"""

import functools

import tensorflow as tf

from aggregators import alias_draw
from aggregators import chacha
from aggregators import keys
from aggregators import modular_sum
from aggregators import rounding

# Fractions are compared in units of 2^-24, so that rounding is unbiased but for
# 2^-24: the words are the odd numbers below 2^24.
_ROUNDING_BITS = 23


def words(key: tf.Tensor, dim: int, draws: int = 1, compiled: bool = True,
          generator=keys) -> tf.Tensor:
  """What a rounding draws under a key: int32 [2 * draws * dim], uniform."""
  if compiled:
    drawn = _compiled_words(key, draws * dim, generator)
  else:
    drawn = generator.words(key, [draws * dim], tf.int64)
  # The same bytes seen as two halves.
  return tf.reshape(tf.bitcast(drawn, tf.int32), [2 * draws * dim])


# Twice as fast as the uncompiled operation. A program of its own, because in one
# with its consumers XLA draws the words anew for each of them.
@functools.partial(tf.function, jit_compile=True, autograph=False)
def _compiled_words(key: tf.Tensor, dim: int, generator) -> tf.Tensor:
  draw = chacha.words_in_pieces if generator is chacha else generator.words
  return draw(key, [dim], tf.int64)


@functools.partial(tf.function, jit_compile=True, autograph=False)
def _add_draw(total: tf.Tensor, drawn: tf.Tensor, tie_key: tf.Tensor,
              packed: tf.Tensor, tie: tf.Tensor, generator) -> tf.Tensor:
  """One more draw from a table on int32 [D], from `words(key, D)`."""
  high, low = tf.unstack(tf.reshape(drawn, [2, -1]))
  return total + alias_draw.draw(
      low, tf.bitwise.right_shift(high, _ROUNDING_BITS), tie_key, packed, tie,
      generator)


def add_draws(values: tf.Tensor, key: tf.Tensor, draws: tf.Tensor,
              packed: tf.Tensor, tie: tf.Tensor, bits: int, compiled: bool = True,
              generator=keys) -> tf.Tensor:
  """Adds draws from a table, of a number known only at run time.

  Args:
    values: int32 [D] in [0, 2^bits).
    key: int64[2]; the draw number i has the key number i below it.
    draws: int32 scalar >= 0, how many draws a coordinate gets.
    packed: As in `noisy_round`.
    tie: As in `noisy_round`.
    bits: The result is modulo 2^bits.
    compiled: As in `words`.
    generator: As in `noisy_round`.

  Returns:
    int32 [D] in [0, 2^bits).
  """
  dim = values.shape[0]
  add = _add_draw if compiled else _add_draw.python_function

  def one_more(i, total):
    own = generator.derive(key, i)
    total = add(
        total, words(own, dim, 1, compiled, generator), generator.derive(own, 0),
        packed, tie, generator)
    return i + 1, total

  # Wraps around at 2^32, which 2^bits divides.
  _, total = tf.while_loop(
      lambda i, _: i < draws, one_more, (tf.constant(0), values),
      parallel_iterations=1)
  return modular_sum.wrap(total, bits)


def noisy_round(vector: tf.Tensor, key: tf.Tensor, l2_bound_squared: int,
                packed: tf.Tensor, tie: tf.Tensor, bits: int,
                draws: int = 1, drawn: tf.Tensor | None = None, generator=keys):
  """Rounds, adds noise, wraps.

  Args:
    vector: float32 [D], grid units, norm at most 2^30.
    key: int64[2]; drawn from, and derived from.
    l2_bound_squared: See `rounding.conditional_round`, whose rule this follows.
    packed: int64 [N], of an `alias_table.AliasTable`.
    tie: int64 [N], likewise.
    bits: The result is modulo 2^bits.
    draws: How many draws from the table add up to the noise.
    drawn: `words(key, D, draws)`, for callers that compile this function.
    generator: `aggregators.keys` or `aggregators.chacha`: where words come from.

  Returns:
    int32 [D] in [0, 2^bits); the number of retries of the rounding (int32); and
    whether it fell back (bool).
  """
  dim = vector.shape[0]
  if drawn is None:
    drawn = words(key, dim, draws, generator=generator)
  drawn = tf.reshape(drawn, [2, draws, dim])
  high, low = drawn[0], drawn[1]
  retry_key, *tie_keys = generator.split(key, 1 + draws)
  rounded = rounding.conditional_round(
      vector, retry_key, l2_bound_squared, generator=generator,
      first_words=tf.bitwise.bitwise_or(
          tf.bitwise.bitwise_and(
              tf.bitwise.left_shift(high[0], 1), 2**(_ROUNDING_BITS + 1) - 1), 1))
  noise = sum(
      alias_draw.draw(
          low[i], tf.bitwise.right_shift(high[i], _ROUNDING_BITS),
          tie_keys[i], packed, tie, generator)
      for i in range(draws))
  return (modular_sum.wrap(rounded.values + noise, bits), rounded.retries,
          rounded.fell_back)
