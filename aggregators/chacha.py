"""ChaCha20 (RFC 8439) in integer operations: a cryptographic counter generator.

For noise that must stay unpredictable even to somebody who sees a great part of
it. Philox, the default, passes statistical tests but was not made to withstand
cryptanalysis.
"""

import numpy as np
import tensorflow as tf

from aggregators import keys

# "expand 32-byte k" in little-endian words.
_CONSTANTS = np.frombuffer(b'expand 32-byte k', '<u4')
_ROTATIONS = (16, 12, 8, 7)


def _rotate_left(x: tf.Tensor, count: int) -> tf.Tensor:
  return tf.bitwise.bitwise_or(
      tf.bitwise.left_shift(x, tf.constant(count, tf.uint32)),
      tf.bitwise.right_shift(x, tf.constant(32 - count, tf.uint32)))


def _quarter_rounds(a, b, c, d):
  """RFC 8439, section 2.1, on four columns at once; each is uint32 [4, n]."""
  first, second, third, fourth = _ROTATIONS
  a = a + b
  d = _rotate_left(tf.bitwise.bitwise_xor(d, a), first)
  c = c + d
  b = _rotate_left(tf.bitwise.bitwise_xor(b, c), second)
  a = a + b
  d = _rotate_left(tf.bitwise.bitwise_xor(d, a), third)
  c = c + d
  b = _rotate_left(tf.bitwise.bitwise_xor(b, c), fourth)
  return a, b, c, d


def _turn(x: tf.Tensor, count: int) -> tf.Tensor:
  """Rolls the rows up by `count`."""
  return tf.concat([x[count:], x[:count]], axis=0)


def blocks(key: tf.Tensor, counters: tf.Tensor, nonce: tf.Tensor) -> tf.Tensor:
  """The block function (RFC 8439, section 2.3) for many counters at once.

  The state is held as its four rows, each a matrix with a column per block, so
  that a round is a dozen operations on whole matrices; diagonal rounds are
  column rounds on rows that were turned. A loop keeps the graph small and keeps
  XLA from fusing rounds into each other, which would repeat work.

  Args:
    key: uint32 [8].
    counters: uint32 [n], a block each.
    nonce: uint32 [3].

  Returns:
    uint32 [16, n]; column i is the key stream of counters[i].
  """
  ones = tf.ones_like(counters)[tf.newaxis]
  rows = (
      tf.constant(_CONSTANTS, tf.uint32)[:, tf.newaxis] * ones,
      key[:4, tf.newaxis] * ones,
      key[4:, tf.newaxis] * ones,
      tf.concat([counters[tf.newaxis], nonce[:, tf.newaxis] * ones], axis=0))

  def one_round(i, a, b, c, d):
    a, b, c, d = _quarter_rounds(a, b, c, d)
    # Even rounds are followed by diagonal ones, odd rounds by column ones.
    even = tf.equal(i % 2, 0)
    b = tf.where(even, _turn(b, 1), _turn(b, 3))
    c = _turn(c, 2)
    d = tf.where(even, _turn(d, 3), _turn(d, 1))
    return i + 1, a, b, c, d

  _, *state = tf.while_loop(
      lambda i, *_: i < 20, one_round, (tf.constant(0), *rows),
      parallel_iterations=1)
  return tf.concat([x + y for x, y in zip(state, rows)], axis=0)


def words(key: tf.Tensor, count: int) -> tf.Tensor:
  """Uniform words under a key.

  The 256-bit key of the cipher is derived from the 128 bits of `key`, which is
  all the entropy that there is.

  Args:
    key: int64[2].
    count: How many, below 2^36.

  Returns:
    int32 [count].
  """
  material = tf.concat([keys.derive(key, 0), keys.derive(key, 1)], axis=0)
  # A bitcast to a smaller type adds a dimension: [4] int64 are [4, 2] uint32.
  cipher_key = tf.reshape(tf.bitcast(material, tf.uint32), [8])
  number = -(-count // 16)
  counters = tf.cast(tf.range(number, dtype=tf.int64), tf.uint32)
  stream = blocks(cipher_key, counters, tf.zeros([3], tf.uint32))
  return tf.bitcast(tf.reshape(stream, [number * 16])[:count], tf.int32)
