"""Seeded random rotations that spread a vector evenly over its coordinates.

y = H diag(signs) x with H orthonormal: the L2 norm stays, and each coordinate
of y is sub-Gaussian with variance ||x||^2 / D (arXiv 2110.04995, section 4).
All functions are pure; the same key gives the same rotation on every machine.
"""

import math

import numpy as np
import tensorflow as tf

from aggregators import hadamard, keys, params
from tff_pipelines.common import validate

# One pass multiplies by a 16 x 16 matrix at most. Measured at 2^20: passes of
# 16 take 1.3 ns a coordinate, of 32 1.4, of 128 3.0, of 1024 16.
_LOG_RADIX = 4
# Over vectors of at least 2^8 coordinates matrix libraries add the terms of a product in
# their order. Powers of two below that, and the bits of the index that are left over,
# take passes of radix 2, whose sums have one order: the result has the same bits on
# every machine, and in `native.transform`.
_LEAST_LOG_DIM = 8


def transformed(vector: tf.Tensor, scale: float = 1.0) -> tf.Tensor:
  """`scale` times the Hadamard transform of float32 [D]; D as `hadamard.factors` has it.

  Its own inverse up to the factor 1/D. Each pass contracts the leading axis with a
  small Hadamard matrix and moves it to the back, so that nothing is transposed.
  """
  dim = vector.shape[0]
  orders = hadamard.factors(dim)
  if math.frexp(scale)[0] != 0.5:  # Only powers of two commute with rounding.
    vector, scale = vector * np.float32(scale), 1.0
  elif dim == 1:
    vector *= np.float32(scale)
  log_dim = (dim // math.prod(orders)).bit_length() - 1
  sixteens = 0 if log_dim < _LEAST_LOG_DIM else log_dim // _LOG_RADIX
  for radix in (*orders, *[2] * (log_dim - sixteens * _LOG_RADIX),
                *[2**_LOG_RADIX] * sixteens):
    matrix = hadamard.matrix(radix) * np.float32(scale)
    vector = tf.matmul(tf.reshape(vector, [radix, -1]), matrix, transpose_a=True)
    scale = 1.0
  return tf.reshape(vector, [dim])


def sign_bits(key: tf.Tensor, dim: int) -> tf.Tensor:
  """Random bits, one for the sign of each of `dim` coordinates; int32 [dim / 32]."""
  return keys.random_bits(key, [-(-dim // 32)], tf.int32)


def flip(vector: tf.Tensor, signs: tf.Tensor) -> tf.Tensor:
  """Negates the coordinates of float32 [dim] whose bit of `sign_bits` is set."""
  dim = vector.shape[0]
  # Moves bit k to the sign bit, which is then xored into the coordinate's.
  shifts = np.arange(31, -1, -1, dtype=np.int32)
  moved = tf.bitwise.left_shift(signs[:, tf.newaxis], shifts) & np.int32(-2**31)
  flipped = tf.bitcast(vector, tf.int32) ^ tf.reshape(moved, [-1])[:dim]
  return tf.bitcast(flipped, tf.float32)


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


def rotate_flipped(flipped: tf.Tensor) -> tf.Tensor:
  """The Hadamard rotation of a vector whose signs are flipped already."""
  return transformed(flipped, flipped.shape[0]**-0.5)


def rotate(vector: tf.Tensor, key: tf.Tensor, kind: str) -> tf.Tensor:
  """Rotates a padded vector, float32 [D]. Norm-preserving up to float32 rounding.

  Args:
    vector: float32 [D]; D as `transformed` takes it for 'hadamard', even for 'dft'.
    key: int64[2], shared by all clients of a round and the server.
    kind: 'hadamard', 'dft' or 'none'.
  """
  validate.one_of(params.ROTATIONS, rotation=kind)
  dim = vector.shape[0]
  if kind == 'hadamard':
    return rotate_flipped(flip(vector, sign_bits(key, dim)))
  if kind == 'dft':
    phased = _to_complex(vector) * _dft_phases(key, dim // 2)
    return _to_real(tf.signal.fft(phased) * (dim // 2)**-0.5)
  return vector


def unrotate(vector: tf.Tensor, key: tf.Tensor, kind: str) -> tf.Tensor:
  """The inverse of `rotate` for the same key and kind; float32 [D]."""
  validate.one_of(params.ROTATIONS, rotation=kind)
  dim = vector.shape[0]
  if kind == 'hadamard':
    return flip(rotate_flipped(vector), sign_bits(key, dim))
  if kind == 'dft':
    spread = tf.signal.ifft(_to_complex(vector)) * (dim // 2)**0.5
    return _to_real(spread * tf.math.conj(_dft_phases(key, dim // 2)))
  return vector
