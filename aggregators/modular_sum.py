"""Sums of integers modulo 2^bits, and the values that they stand for.

A modulus that is a power of two makes reduction a bit mask, and int32
overflow on the way harmless: 2^bits divides 2^32.
"""

import tensorflow as tf


def wrap(values: tf.Tensor, bits: int) -> tf.Tensor:
  """The representatives in [0, 2^bits) of int32 or int64 values; int32."""
  return tf.cast(values & (2**bits - 1), tf.int32)


def add(left: tf.Tensor, right: tf.Tensor, bits: int) -> tf.Tensor:
  """The sum modulo 2^bits of two wrapped int32 tensors; int32."""
  return wrap(left + right, bits)


def unwrap(values: tf.Tensor, bits: int) -> tf.Tensor:
  """The representatives in [-2^(bits-1), 2^(bits-1)) of wrapped int32 values."""
  return tf.where(values >= 2**(bits - 1), values - 2**bits, values)
