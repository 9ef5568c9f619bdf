"""Seeded random rotations that spread a vector evenly over its coordinates.

y = H diag(signs) x with H orthonormal: the L2 norm stays, and each coordinate
of y is sub-Gaussian with variance ||x||^2 / D (arXiv 2110.04995, section 4).
All functions are pure; the same key gives the same rotation on every machine.
"""

import numpy as np
import tensorflow as tf

from aggregators import keys

# One pass multiplies by a 128 x 128 matrix at most: large enough that few
# passes over memory are needed, small enough that the matrix stays in cache.
_MAX_LOG_RADIX = 7


def _log_radices(log_dim: int) -> list[int]:
  """Splits log2 of the dimension into nearly equal parts of at most 7."""
  passes = max(1, -(-log_dim // _MAX_LOG_RADIX))
  return [(log_dim + i) // passes for i in range(passes)]


def _sylvester(log_size: int) -> np.ndarray:
  matrix = np.ones([1, 1], np.float32)
  for _ in range(log_size):
    matrix = np.block([[matrix, matrix], [matrix, -matrix]])
  return matrix


def walsh_hadamard(vector: tf.Tensor) -> tf.Tensor:
  """The Walsh-Hadamard transform of float32 [D], D a power of two, unscaled.

  Its own inverse up to the factor 1/D. The transform is a Kronecker product of
  smaller ones: each pass contracts the leading axis with a small Hadamard
  matrix and moves it to the back, so that after all passes the axes stand in
  their first order and nothing was transposed on its own.
  """
  dim = vector.shape[0]
  log_dim = int(dim).bit_length() - 1
  if 2**log_dim != dim:
    raise ValueError(f'the length must be a power of two, found {dim}')
  if log_dim == 0:
    return vector
  for log_radix in _log_radices(log_dim):
    block = tf.reshape(vector, [2**log_radix, -1])
    vector = tf.matmul(block, _sylvester(log_radix), transpose_a=True)
  return tf.reshape(vector, [dim])


def signs(key: tf.Tensor, dim: int) -> tf.Tensor:
  """Uniform signs +1 and -1, float32 [dim]; one random bit each."""
  count = -(-dim // 32)
  bits = keys.words(key, [count], tf.int32)[:, tf.newaxis]
  masks = np.left_shift(np.uint32(1), np.arange(32, dtype=np.uint32))
  set_bits = tf.bitwise.bitwise_and(bits, masks.view(np.int32))
  values = tf.where(tf.equal(set_bits, 0), 1.0, -1.0)
  return tf.reshape(values, [count * 32])[:dim]


def _dft_phases(key: tf.Tensor, half: int) -> tf.Tensor:
  angles = 2 * np.pi * keys.uniform(key, [half], tf.float64)
  return tf.complex(tf.cos(angles), tf.sin(angles))


def _to_complex(vector: tf.Tensor) -> tf.Tensor:
  # In double precision: TensorFlow's transform of a million float32 numbers is
  # off by 4e-4 of the norm, always upwards.
  first, second = tf.split(tf.cast(vector, tf.float64), 2)
  return tf.complex(first, second)


def _to_real(pairs: tf.Tensor) -> tf.Tensor:
  both = tf.concat([tf.math.real(pairs), tf.math.imag(pairs)], axis=0)
  return tf.cast(both, tf.float32)


def rotate(vector: tf.Tensor, key: tf.Tensor, kind: str) -> tf.Tensor:
  """Rotates a padded vector. Norm-preserving up to float32 rounding.

  Args:
    vector: float32 [D]; D a power of two for 'hadamard', even for 'dft'.
    key: int64[2], shared by all clients of a round and the server.
    kind: 'hadamard', 'dft' or 'none'.

  Returns:
    float32 [D].
  """
  dim = vector.shape[0]
  if kind == 'hadamard':
    return walsh_hadamard(vector * signs(key, dim)) * np.float32(dim**-0.5)
  if kind == 'dft':
    phased = _to_complex(vector) * _dft_phases(key, dim // 2)
    return _to_real(tf.signal.fft(phased) * (dim // 2)**-0.5)
  if kind == 'none':
    return vector
  raise ValueError(f"rotation must be 'hadamard', 'dft' or 'none', found {kind!r}")


def unrotate(vector: tf.Tensor, key: tf.Tensor, kind: str) -> tf.Tensor:
  """The inverse of `rotate` for the same key and kind; float32 [D]."""
  dim = vector.shape[0]
  if kind == 'hadamard':
    return walsh_hadamard(vector) * signs(key, dim) * np.float32(dim**-0.5)
  if kind == 'dft':
    spread = tf.signal.ifft(_to_complex(vector)) * (dim // 2)**0.5
    return _to_real(spread * tf.math.conj(_dft_phases(key, dim // 2)))
  if kind == 'none':
    return vector
  raise ValueError(f"rotation must be 'hadamard', 'dft' or 'none', found {kind!r}")
