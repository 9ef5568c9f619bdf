"""Tests of aggregators.plain_sum."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from aggregators import plain_sum
from aggregators.plain_sum import PlainSumFactory

VECTOR = tff.TensorType(np.float32, [3])
VECTORS = np.arange(12, dtype=np.float32).reshape(4, 3)


def _next(process, values):
  return process.next(process.initialize(), values)


def test_it_is_the_sum_and_nothing_is_measured(anywhere):
  output = _next(PlainSumFactory().create(VECTOR), list(VECTORS))
  np.testing.assert_array_equal(output.result, VECTORS.sum(axis=0))
  assert not output.measurements
  assert not np.any(output.state['server_key'])


def test_no_client_gives_zero(in_process):
  output = _next(PlainSumFactory().create(VECTOR), [])
  np.testing.assert_array_equal(output.result, np.zeros(3))


@pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf])
def test_a_client_of_nan_or_infinities_counts_as_zero(in_process, bad):
  values = [*VECTORS, np.array([1, bad, 1], np.float32)]
  process = PlainSumFactory(diagnostics=True).create(VECTOR)
  output = _next(process, values)
  np.testing.assert_array_equal(output.result, VECTORS.sum(axis=0))
  assert output.measurements['diagnostics'] == collections.OrderedDict(
      num_reporting=5, totals=collections.OrderedDict(clipped=0, not_finite=1))


def test_a_float64_beyond_float32_counts_as_zero(in_process):
  process = PlainSumFactory().create(tff.TensorType(np.float64, [2]))
  result = _next(process, [np.array([1e300, 0.0]), np.array([0.5, 0.0])]).result
  np.testing.assert_array_equal(result, [0.5, 0.0])
  assert result.dtype == np.float64


def test_clipped_counts_what_it_did():
  for vector, clip, expected in (([3.0, 4.0], 1.0, (1, 0)),
                                 ([3.0, np.nan], 1.0, (0, 1)),
                                 ([3.0, 4.0], float('inf'), (0, 0))):
    _, counts = plain_sum.clipped(tf.constant(vector), clip)
    assert tuple(map(int, counts.values())) == expected
