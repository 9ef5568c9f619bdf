"""ChaCha20 (RFC 8439) in integer operations: a cryptographic counter generator.

For noise that must stay unpredictable even to an observer of a great part of it. The
functions are those of `aggregators.keys`, under the same keys: either is a `generator`.

A key is 128 bits, which ChaCha takes as they are: twice, with constants of their own
(D. J. Bernstein, ChaCha, a variant of Salsa20, 2008). RFC 8439 has 256 bits only.
"""

import functools

import numpy as np
import tensorflow as tf

_CONSTANTS = {4: np.frombuffer(b'expand 16-byte k', '<u4'),
              8: np.frombuffer(b'expand 32-byte k', '<u4')}
# First 32 bits of the nonce: the streams of random bits and of keys never meet.
_BITS, _KEYS = 0, 1


def _rotate_left(x: tf.Tensor, count: int) -> tf.Tensor:
  return (tf.bitwise.left_shift(x, tf.constant(count, tf.uint32)) |
          tf.bitwise.right_shift(x, tf.constant(32 - count, tf.uint32)))


def _quarter_rounds(a, b, c, d):
  """RFC 8439, section 2.1, on four columns at once; each is uint32 [4, n]."""
  for of_d, of_b in ((16, 12), (8, 7)):
    a = a + b
    d = _rotate_left(d ^ a, of_d)
    c = c + d
    b = _rotate_left(b ^ c, of_b)
  return a, b, c, d


# Traced once for a number of blocks, however often a graph calls it.
@functools.partial(tf.function, autograph=False)
def blocks(key: tf.Tensor, counters: tf.Tensor, nonce: tf.Tensor) -> tf.Tensor:
  """The block function (RFC 8439, section 2.3) for many counters at once.

  The state is held as its four rows, each a matrix with a column per block; diagonal
  rounds are column rounds on rows that were turned. A loop keeps the graph small and
  keeps XLA from fusing rounds into each other, which would repeat work.

  Args:
    key: uint32 [8], or [4] for a key of 128 bits; or with a last dimension of n, for a
      key of each block.
    counters: uint32 [n], a block each.
    nonce: uint32 [3].

  Returns uint32 [16, n]; column i is the key stream of counters[i].
  """
  ones = tf.ones_like(counters)[tf.newaxis]
  of_block = tf.reshape(key, [key.shape[0], -1])
  rows = (tf.constant(_CONSTANTS[key.shape[0]], tf.uint32)[:, tf.newaxis] * ones,
          of_block[:4] * ones, of_block[-4:] * ones,
          tf.concat([counters[tf.newaxis], nonce[:, tf.newaxis] * ones], axis=0))

  def turned(x, count):
    return tf.concat([x[count:], x[:count]], axis=0)

  def two_rounds(i, a, b, c, d):
    a, b, c, d = _quarter_rounds(a, b, c, d)
    a, b, c, d = _quarter_rounds(a, turned(b, 1), turned(c, 2), turned(d, 3))
    return i + 1, a, turned(b, 3), turned(c, 2), turned(d, 1)

  _, *state = tf.while_loop(
      lambda i, *_: i < 10, two_rounds, (tf.constant(0), *rows), parallel_iterations=1)
  return tf.concat([x + y for x, y in zip(state, rows)], axis=0)


def _stream(key: tf.Tensor, counters: tf.Tensor, purpose: int, high=0,
            run=blocks) -> tf.Tensor:
  """`blocks` of a key, int64[2], for a purpose; uint32 [16, n]."""
  # A bitcast to a smaller type adds a dimension: [2] int64 are [2, 2] uint32.
  cipher_key = tf.reshape(tf.bitcast(tf.convert_to_tensor(key, tf.int64), tf.uint32), [4])
  nonce = tf.stack([tf.cast(x, tf.uint32) for x in (purpose, high, 0)])
  return run(cipher_key, counters, nonce)


# Starting operations takes most of the time of few blocks: as one compiled
# program they take a tenth of it.
_compiled_stream = tf.function(_stream, jit_compile=True, autograph=False)
# TensorFlow lowers loops of functions that are called so, and XLA then refuses them.
_inlined_stream = functools.partial(_stream, run=blocks.python_function)


def derive(key: tf.Tensor, index) -> tf.Tensor:
  """The child of a key at an index, an integer in [0, 2^63); int64[2].

  Children reveal neither `key` nor their siblings, short of a search of all keys.
  """
  index = tf.cast(index, tf.int64)
  stream = _compiled_stream(
      tf.convert_to_tensor(key, tf.int64), tf.cast(index, tf.uint32)[tf.newaxis], _KEYS,
      tf.cast(tf.bitwise.right_shift(index, 32), tf.uint32))
  return tf.bitcast(tf.reshape(stream[:4, 0], [2, 2]), tf.int64)


def children(key: tf.Tensor, first, end, stream=_inlined_stream) -> tf.Tensor:
  """The children at the indices first to end - 1, below 2^32; int64[end - first, 2]."""
  found = stream(key, tf.cast(tf.range(first, end), tf.uint32), _KEYS)
  return tf.bitcast(tf.reshape(tf.transpose(found[:4]), [-1, 2, 2]), tf.int64)


def split(key: tf.Tensor, count: int) -> list[tf.Tensor]:
  """The children of a key at the indices 0 to count - 1, in one operation."""
  return tf.unstack(children(key, 0, count, _compiled_stream), count)


@functools.partial(tf.function, jit_compile=True, autograph=False)
def _compiled_grandchildren(key: tf.Tensor, first: tf.Tensor, each: int) -> tf.Tensor:
  """`grandchildren` by the children at _PIECE indices from `first` on."""
  found = _stream(key, first + tf.cast(tf.range(_PIECE), tf.uint32), _KEYS)[:4]
  nonce = tf.constant([_KEYS, 0, 0], tf.uint32)
  streams = [blocks(found, tf.fill([_PIECE], tf.constant(index, tf.uint32)), nonce)[:4]
             for index in range(each)]
  return tf.bitcast(tf.reshape(
      tf.transpose(tf.stack(streams), [2, 0, 1]), [_PIECE, each, 2, 2]), tf.int64)


def grandchildren(key: tf.Tensor, count: tf.Tensor, each: int) -> tf.Tensor:
  """The first `each` children of the first `count` children; int64 [count, each, 2].

  In one compiled program for _PIECE children, where one by one starting programs takes
  most of the time.
  """
  pieces = (count + _PIECE - 1) // _PIECE
  found = tf.map_fn(
      lambda piece: _compiled_grandchildren(key, tf.cast(piece * _PIECE, tf.uint32), each),
      tf.range(pieces), fn_output_signature=tf.TensorSpec([_PIECE, each, 2], tf.int64),
      parallel_iterations=1)
  return tf.reshape(found, [-1, each, 2])[:count]


# This many blocks at a time stay in the cache nearest to the processor, which makes a
# compiled program three times as fast; of twice as many XLA divides every step among
# threads, whose meetings take longer than the step.
_PIECE = 128


def random_bits(key: tf.Tensor, shape, dtype=tf.int32) -> tf.Tensor:
  """Uniform integers over the whole range of `dtype`, int32 or int64; static shape."""
  return _random_bits(key, shape, dtype, lambda counters: tf.transpose(
      tf.reshape(_compiled_stream(key, counters, _BITS), [16, -1, _PIECE]), [1, 0, 2]))


def random_bits_in_pieces(key: tf.Tensor, shape, dtype=tf.int32) -> tf.Tensor:
  """The same, in the order that is best in a compiled program, and only there."""
  return _random_bits(key, shape, dtype, lambda counters: tf.map_fn(
      lambda piece: _stream(key, piece, _BITS), tf.reshape(counters, [-1, _PIECE]),
      fn_output_signature=tf.uint32, parallel_iterations=1))


def _random_bits(key: tf.Tensor, shape, dtype, long_stream) -> tf.Tensor:
  count = int(np.prod(shape, dtype=np.int64)) * dtype.size // 4
  num_blocks = -(-count // 16)
  is_short = num_blocks <= _PIECE  # Those are of few sizes, as each is a program.
  size = (1 << (num_blocks - 1).bit_length() if is_short else
          -(-num_blocks // _PIECE) * _PIECE)
  counters = tf.cast(tf.range(size, dtype=tf.int64), tf.uint32)
  stream = (_compiled_stream(key, counters, _BITS)[:, :num_blocks] if is_short else
            long_stream(counters))
  stream = tf.reshape(stream, [-1])[:count]
  if dtype.size == 8:
    stream = tf.reshape(stream, [-1, 2])
  return tf.reshape(tf.bitcast(stream, dtype), shape)
