"""Draws from alias tables, in the graph, in integers only."""

import tensorflow as tf

from aggregators import alias_table, branch, keys


def draw(low: tf.Tensor, high: tf.Tensor | None, tie_key: tf.Tensor,
         packed: tf.Tensor, tie: tf.Tensor, generator=keys) -> tf.Tensor:
  """Draws from the distribution of a table; int32 [n].

  Args:
    low: int32 [n], uniform: 22 bits for the threshold, 10 for the cell.
    high: int32 [n], 9 uniform low bits: further bits of the cell; None for a
      table of at most 2^10 cells.
    tie_key: int64[2], decides the comparisons that 22 bits leave open.
    packed, tie: int64 [N], tensors or arrays, of an `alias_table.AliasTable`.
    generator: `aggregators.keys` or `aggregators.chacha`: source of random bits.
  """
  size = packed.shape[0]
  first_bits = alias_table.FIRST_BITS
  index = tf.bitwise.right_shift(low, first_bits)
  if high is not None:
    # Copies of the sign that the shift brought in are xored with uniform bits.
    index ^= tf.bitwise.left_shift(high, 32 - first_bits)
  index &= size - 1
  cell = tf.gather(packed, index)
  threshold = tf.cast(tf.bitwise.right_shift(cell, 32), tf.int32)
  alias = tf.cast(cell, tf.int32)  # The low half.
  first = low & ((1 << first_bits) - 1)
  is_tie = tf.equal(first, threshold)

  def broken_tie():
    shape = first.shape if first.shape.is_fully_defined() else tf.shape(first)
    # Long vectors are drawn in compiled programs.
    rest = generator.random_bits_in_pieces(tie_key, shape, tf.int64)
    return (first < threshold) | (is_tie & (rest < tf.gather(tie, index)))

  keeps = branch.either(tf.reduce_any(is_tie), broken_tie, lambda: first < threshold)
  # A select, by arithmetic: TensorFlow's own takes five times as long.
  return alias + (index - alias) * tf.cast(keeps, tf.int32) - size // 2


def sample(key: tf.Tensor, shape, table: alias_table.AliasTable) -> tf.Tensor:
  """Samples from a table that is a constant of the graph; int64 of the shape.

  Args:
    key: int64[2], of this call alone.
    shape: A tensor, or static.
    table: Table of the distribution.
  """
  bits_key, tie_key = keys.split(key, 2)
  low, high = tf.unstack(keys.random_bits(
      bits_key, tf.stack([2, tf.reduce_prod(shape)]), tf.int32))
  values = draw(low, high, tie_key, table.packed, table.tie)
  return tf.reshape(tf.cast(values, tf.int64), shape)
