"""Gaussian noise in floating point whose tails are not cut off.

TensorFlow's own sampler draws nothing beyond 5.68 standard deviations, and one pair in
some ten million lies exactly on the circle of that radius around the origin: seen
around the wrong mean it gives the data away. Here a pair's radius comes from 63 random
bits: it reaches to 9.34, and what is cut off there has a probability of 2^-63.

Guarantees that rest on floating point are those of ideal arithmetic: low bits reveal
something of the data (Mironov, CCS 2012).
"""

import math

import numpy as np
import tensorflow as tf

from aggregators import keys

# No pair of numbers is further from the origin than this.
REACH = math.sqrt(2 * 63 * math.log(2))


def sample(key: tf.Tensor, shape) -> tf.Tensor:
  """Independent normal numbers by Box and Muller's method, with the key of this draw.

  float64 of the static shape, each in [-REACH, REACH].
  """
  size = int(np.prod(shape, dtype=np.int64))
  radius, angle = tf.unstack(keys.random_bits(key, [2, -(-size // 2)], tf.int64))
  return tf.reshape(from_random_bits(radius, angle)[:size], shape)


def from_random_bits(radius: tf.Tensor, angle: tf.Tensor) -> tf.Tensor:
  """Normal numbers, float64 [2 n], from uniform int64 [n] and [n]."""
  # 63 bits, in (0, 1]; a float64 is fine enough near 0, where it counts.
  uniform = (tf.cast(radius & tf.int64.max, tf.float64) + 1.0) * 2.0**-63
  length = tf.sqrt(-2.0 * tf.math.log(uniform))
  turn = tf.cast(angle, tf.float64) * (math.pi * 2.0**-63)
  return tf.concat([length * tf.cos(turn), length * tf.sin(turn)], axis=0)


def add(values: tf.Tensor, stddev: float, key: tf.Tensor, count=1) -> tf.Tensor:
  """Adds noise of `count` sources, each of this deviation, to float32 values; float32."""
  if stddev == 0:
    return values
  total = stddev * tf.sqrt(tf.cast(count, tf.float64))
  noisy = tf.cast(values, tf.float64) + total * sample(key, values.shape)
  return tf.cast(noisy, tf.float32)
