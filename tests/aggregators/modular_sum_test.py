"""Tests of aggregators.modular_sum against Python's integers."""

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from aggregators import modular_sum, tff_internals

BITS = [2, 3, 8, 15, 16, 17, 29, 30]


def _centred(value, bits):
  """The representative of a Python integer in [-2^(bits-1), 2^(bits-1))."""
  half = 2**(bits - 1)
  return (int(value) + half) % 2**bits - half


def _edges(bits, low, high):
  half = 2**(bits - 1)
  edges = [0, 1, -1, half - 1, half, half + 1, -half, -half - 1, 2 * half - 1,
           2 * half, -2 * half, low, high, low + 1, high - 1]
  return [x for x in edges if low <= x <= high]


@pytest.mark.parametrize('bits', BITS)
@pytest.mark.parametrize('dtype', [np.int32, np.int64])
def test_wrap_and_unwrap_agree_with_python_integers(bits, dtype):
  info = np.iinfo(dtype)
  drawn = np.random.default_rng(bits).integers(
      info.min, info.max, size=1000, dtype=dtype, endpoint=True)
  values = np.concatenate([np.array(_edges(bits, info.min, info.max), dtype), drawn])
  wrapped = modular_sum.wrap(tf.constant(values), bits)
  assert wrapped.dtype == tf.int32
  np.testing.assert_array_equal(wrapped, [int(v) % 2**bits for v in values])
  np.testing.assert_array_equal(
      modular_sum.unwrap(wrapped, bits), [_centred(v, bits) for v in values])


@hypothesis.settings(deadline=None, max_examples=60, derandomize=True)
@hypothesis.given(bits=st.sampled_from(BITS),
    values=st.lists(st.integers(-2**62, 2**62), min_size=1, max_size=40))
def test_a_running_sum_is_the_sum_modulo_the_field(bits, values):
  wrapped = [modular_sum.wrap(tf.constant([v], tf.int64), bits) for v in values]
  total = wrapped[0]
  for value in wrapped[1:]:
    total = modular_sum.add(total, value, bits)
  assert int(modular_sum.unwrap(total, bits)[0]) == _centred(sum(values), bits)


@pytest.mark.parametrize('bits', BITS)
def test_overflow_of_int32_is_harmless(bits):
  # 500 of the largest values: up to 2^39, far beyond an int32.
  count, largest = 500, 2**bits - 1
  total = tf.reduce_sum(tf.fill([count], tf.constant(largest, tf.int32)))
  result = modular_sum.unwrap(modular_sum.wrap(total, bits), bits)
  assert int(result) == _centred(count * largest, bits) == _centred(-count, bits)


@pytest.mark.parametrize('context', ['in_process', 'one_worker', 'two_workers'])
@pytest.mark.parametrize('bits', [2, 30])
def test_a_federated_sum_is_the_sum_modulo_the_field(request, context, bits):
  request.getfixturevalue(context)

  @tff.federated_computation(
      tff.FederatedType(tff.TensorType(np.int32, [3]), tff.CLIENTS))
  def total(values):
    return tff_internals.secure_modular_sum(values, 2**bits)

  assert total.type_signature.result == tff.FederatedType(
      tff.TensorType(np.int32, [3]), tff.SERVER)
  drawn = np.random.default_rng(bits).integers(0, 2**bits, size=[20, 3], dtype=np.int32)
  drawn[:, 0] = 2**bits - 1
  expected = [sum(map(int, column)) % 2**bits for column in drawn.T]
  assert total(list(drawn)).tolist() == expected
  assert total([]).tolist() == [0, 0, 0]
