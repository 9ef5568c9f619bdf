"""Keys: where every random bit of a graph comes from.

A key is an int64[2] tensor, 128 bits. A key is used either to derive further
keys or to draw numbers, never for both. Draws are counter based (Philox), so a
key and a shape give the same numbers on every machine.

Fresh keys come from the kernel's generator, read anew whenever the graph runs.
TensorFlow's own non-deterministic ops do not qualify: they are Mersenne
Twisters seeded once per process with 32 bits.
"""

import hashlib

import numpy as np
import tensorflow as tf

_PHILOX = 1
# The kernel prints a new random (version 4) UUID at every read: 122 bits each.
_KERNEL_UUID = '/proc/sys/kernel/random/uuid'
# Places of the 32 hexadecimal digits in a UUID's text: all but the hyphens.
_UUID_DIGITS = np.reshape(
    [i for i in range(36) if i not in (8, 13, 18, 23)], [2, 16]).astype(np.int32)


def fresh() -> tf.Tensor:
  """A new key from the operating system, int64[2]; differs at every call.

  It has the 122 random bits of one UUID. The file is read by a dataset, which
  TensorFlow treats as stateful: graph optimisation neither folds it into a
  constant nor shares it between calls. Raw operations, as what tf.data puts
  around a dataset costs five times the reading.
  """
  lines = tf.raw_ops.TextLineDataset(
      filenames=_KERNEL_UUID, compression_type='', buffer_size=64)
  uuid, = tf.raw_ops.DatasetToSingleElement(
      dataset=lines, output_types=[tf.string], output_shapes=[[]])
  characters = tf.gather(tf.io.decode_raw(uuid, tf.uint8), _UUID_DIGITS)
  characters = tf.cast(characters, tf.int64)
  # '0'..'9' are 48..57 and 'a'..'f' are 97..102.
  nibbles = (tf.bitwise.bitwise_and(characters, 15) +
             9 * tf.bitwise.right_shift(characters, tf.constant(6, tf.int64)))
  shifts = np.arange(60, -4, -4, dtype=np.int64)
  halves = tf.reduce_sum(tf.bitwise.left_shift(nibbles, shifts), axis=-1)
  # Spreads the 6 fixed bits of a UUID over the whole key.
  return derive(halves, 0)


def from_seed(seed: int) -> np.ndarray:
  """The key of a simulation seed, a non-negative integer; int64[2]."""
  if isinstance(seed, bool) or int(seed) != seed or seed < 0:
    raise ValueError(f'seed must be a non-negative integer, found {seed!r}')
  digest = hashlib.sha256(f'simulation seed {int(seed)}'.encode()).digest()
  return np.frombuffer(digest[:16], dtype=np.int64).copy()


def derive(key: tf.Tensor, index) -> tf.Tensor:
  """The key number `index` (an integer >= 0) below `key`; int64[2].

  One Philox block at a counter of its own; all 128 bits of `key` count. Philox is
  not a cryptographic generator: who knows one child and finds the first word of
  `key`, by a search of some 2^60 blocks, knows the siblings. So a key whose child
  becomes public has no secret children (`structures.independent_key`).
  """
  key = tf.bitcast(tf.convert_to_tensor(key, tf.int64), tf.uint64)
  counter = tf.stack([tf.cast(index, tf.uint64), key[1]])
  return tf.raw_ops.StatelessRandomUniformFullIntV2(
      shape=[2], key=key[:1], counter=counter, alg=_PHILOX, dtype=tf.int64)


def words(key: tf.Tensor, shape, dtype=tf.int32) -> tf.Tensor:
  """Uniform words over the whole range of an integer `dtype`."""
  return tf.random.stateless_uniform(
      shape, seed=key, minval=None, maxval=None, dtype=dtype, alg='philox')


def uniform(key: tf.Tensor, shape, dtype=tf.float32) -> tf.Tensor:
  """Uniform numbers in [0, 1)."""
  return tf.random.stateless_uniform(shape, seed=key, dtype=dtype, alg='philox')
