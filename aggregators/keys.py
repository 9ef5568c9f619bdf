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


def fresh() -> tf.Tensor:
  """A new key from the operating system, int64[2]; differs at every call.

  The file is read by a dataset, which TensorFlow treats as stateful: graph
  optimisation neither folds it into a constant nor shares it between calls.
  """
  lines = tf.data.TextLineDataset([_KERNEL_UUID, _KERNEL_UUID]).batch(
      2, drop_remainder=True)
  uuids = lines.get_single_element()
  digits = tf.strings.regex_replace(uuids, '-', '')
  characters = tf.reshape(tf.io.decode_raw(digits, tf.uint8), [2, 2, 16])
  characters = tf.cast(characters, tf.int64)
  # '0'..'9' are 48..57 and 'a'..'f' are 97..102.
  nibbles = tf.where(characters >= 97, characters - 87, characters - 48)
  shifts = tf.range(60, -4, -4, dtype=tf.int64)
  halves = tf.reduce_sum(tf.bitwise.left_shift(nibbles, shifts), axis=-1)
  # A UUID has 6 fixed bits, none of them at the same place in both halves, so
  # the exclusive or of the halves is 64 uniform bits.
  return tf.bitwise.bitwise_xor(halves[:, 0], halves[:, 1])


def from_seed(seed: int) -> np.ndarray:
  """The key of a simulation seed, a non-negative integer; int64[2]."""
  if isinstance(seed, bool) or int(seed) != seed or seed < 0:
    raise ValueError(f'seed must be a non-negative integer, found {seed!r}')
  digest = hashlib.sha256(f'simulation seed {int(seed)}'.encode()).digest()
  return np.frombuffer(digest[:16], dtype=np.int64).copy()


def derive(key: tf.Tensor, index) -> tf.Tensor:
  """The key number `index` (an integer >= 0) below `key`; int64[2].

  One Philox block at a counter of its own: keys of different indices are as
  independent as the generator's outputs, and all 128 bits of `key` count.
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
