"""Tests of aggregators.expected_mean."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from aggregators.distributed_sum import DistributedSumFactory
from aggregators.expected_mean import ExpectedMeanFactory
from aggregators.params import DistributedSumParams
from aggregators.plain_sum import PlainSumFactory


@pytest.mark.parametrize('clients', [0, 1, 4, 9])
def test_the_divisor_is_the_constant_and_not_the_number_reporting(in_process, clients):
  process = ExpectedMeanFactory(PlainSumFactory(), 4.5).create(
      tff.TensorType(np.float32, [2]))
  result = process.next(
      process.initialize(), [np.array([1.0, -2.0], np.float32)] * clients).result
  np.testing.assert_allclose(result, np.array([1.0, -2.0]) * clients / 4.5, rtol=1e-6)


def test_structures_and_dtypes_are_kept_even_where_the_divisor_exceeds_them(in_process):
  value_type = tff.to_type(collections.OrderedDict(
      a=[(np.float16, [2]), (np.float64, [])], b=(tf.bfloat16.as_numpy_dtype, [1])))
  process = ExpectedMeanFactory(PlainSumFactory(), 100_000).create(value_type)
  value = collections.OrderedDict(a=[np.array([1000, -3000], np.float16), np.float64(7)],
      b=np.array([512], tf.bfloat16.as_numpy_dtype))
  result = process.next(process.initialize(), [value] * 2).result
  assert result['a'][0].dtype == np.float16
  np.testing.assert_allclose(result['a'][0], [0.02, -0.06], rtol=2e-3)
  np.testing.assert_allclose(result['a'][1], 14e-5, rtol=1e-9)
  np.testing.assert_allclose(np.float64(result['b']), [1024e-5], rtol=1e-2)


def test_set_cohort_size_reaches_the_sum_if_it_has_one():
  params = DistributedSumParams(
      clip=1.0, noise_multiplier=1.0, bits=14, dimension=3, cohort_size=4)
  factory = ExpectedMeanFactory(DistributedSumFactory(params), 4)
  state = DistributedSumFactory(params).initial_state()
  assert factory.set_cohort_size(state, 3)['cohort_size'] == 3
  plain = ExpectedMeanFactory(tff.aggregators.SumFactory(), 4)
  assert plain.set_cohort_size((), 3) == ()


@pytest.mark.parametrize('bad', [0, -1, float('nan'), float('inf'), None, True])
def test_impossible_cohorts_are_named(bad):
  with pytest.raises(ValueError, match=f'expected_cohort_size .*{bad}'):
    ExpectedMeanFactory(PlainSumFactory(), bad)
