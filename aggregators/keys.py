"""Keys: the source of every random bit of a graph.

A key is an int64[2] tensor, 128 bits. A key is used either to derive further
keys or to draw numbers, never for both. Draws are counter based (Philox), so a
key and a shape give the same numbers on every machine.

Fresh keys come from the kernel's generator, read again whenever the graph runs:
TensorFlow's own are Mersenne Twisters, seeded once per process with 32 bits.
"""

import hashlib

import numpy as np
import tensorflow as tf

from tff_pipelines.common import validate

_PHILOX = 1
# Counters from here on are for random bits, those below for keys.
_BITS = 2**63
# The kernel prints a new random (version 4) UUID at every read: 122 bits each.
_KERNEL_UUID = '/proc/sys/kernel/random/uuid'
# Positions of the 32 hexadecimal digits in a UUID's text: all but the hyphens.
_UUID_DIGITS = np.reshape(
    [i for i in range(36) if i not in (8, 13, 18, 23)], [2, 16]).astype(np.int32)


# Name scope of the operations of `fresh`; the last of them is called 'key'. Executors
# of graphs may put other random bits of the kernel in its place.
FRESH = 'fresh_kernel_key'


def fresh() -> tf.Tensor:
  """A new key from the operating system, int64[2]; differs at every call.

  It has the 122 random bits of one UUID. TensorFlow takes reading a file for a pure
  function of its name, which optimisation may fold, share or move out of a loop. So the
  name comes from a stateful operation, different at every call as far as it knows.
  """
  with tf.name_scope(FRESH):
    # Always 0.
    index = tf.raw_ops.RandomUniformInt(
        shape=tf.constant([], tf.int32), minval=tf.constant(0), maxval=tf.constant(1))
    uuid = tf.io.read_file(tf.gather([_KERNEL_UUID], index))
    characters = tf.gather(tf.io.decode_raw(uuid, tf.uint8), _UUID_DIGITS)
    characters = tf.cast(characters, tf.int64)
    # '0'..'9' are 48..57 and 'a'..'f' are 97..102.
    nibbles = (characters & 15) + 9 * tf.bitwise.right_shift(
        characters, tf.constant(6, tf.int64))
    shifts = np.arange(60, -4, -4, dtype=np.int64)
    halves = tf.reduce_sum(tf.bitwise.left_shift(nibbles, shifts), axis=-1)
    # Spreads the 6 fixed bits of a UUID over the whole key.
    return tf.identity(derive(halves, 0), name='key')


def from_seed(seed: int) -> np.ndarray:
  """The key of a simulation seed, a non-negative integer; int64[2]."""
  validate.integer(seed=seed, low=0)
  return from_text(f'simulation seed {int(seed)}')


def from_text(text: str) -> np.ndarray:
  """The key of a text, by its SHA-256; int64[2]."""
  return np.frombuffer(hashlib.sha256(text.encode()).digest()[:16], np.int64).copy()


def _draw(key: tf.Tensor, counter, shape, dtype) -> tf.Tensor:
  """Philox blocks from a counter on: low half `counter`, high half key[1]."""
  key, high = tf.unstack(tf.bitcast(tf.convert_to_tensor(key, tf.int64), tf.uint64), 2)
  return tf.raw_ops.StatelessRandomUniformFullIntV2(
      shape=shape, key=tf.stack([key]), counter=tf.stack([counter, high]), alg=_PHILOX,
      dtype=dtype)


def derive(key: tf.Tensor, index) -> tf.Tensor:
  """The child of a key at an index, an integer >= 0; int64[2].

  Philox is not a cryptographic generator: an attacker who knows one child and finds
  the first half of `key`, by a search of some 2^60 blocks, knows the siblings. So a key
  whose child becomes public has no secret children.
  """
  return _draw(key, tf.cast(index, tf.uint64), [2], tf.int64)


def children(key: tf.Tensor, first, end) -> tf.Tensor:
  """The children of a key at the indices first to end - 1; int64[end - first, 2]."""
  return _draw(key, tf.cast(first, tf.uint64), [end - first, 2], tf.int64)


def split(key: tf.Tensor, count: int) -> list[tf.Tensor]:
  """The children of a key at the indices 0 to count - 1, in one operation."""
  return tf.unstack(children(key, 0, count))


def random_bits(key: tf.Tensor, shape, dtype=tf.int32) -> tf.Tensor:
  """Uniform integers over the whole range of an integer `dtype`."""
  return _draw(key, tf.constant(_BITS, tf.uint64), shape, dtype)


# The name of `chacha` for what is best in a compiled program.
random_bits_in_pieces = random_bits


def uniform(key: tf.Tensor, shape, dtype=tf.float32) -> tf.Tensor:
  """Uniform numbers in [0, 1)."""
  return tf.random.stateless_uniform(shape, seed=key, dtype=dtype, alg='philox')
