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
def test_the_divisor_is_the_constant_and_not_the_number_reporting(
    in_process, clients):
  process = ExpectedMeanFactory(PlainSumFactory(), 4.5).create(
      tff.TensorType(np.float32, [2]))
  result = process.next(
      process.initialize(), [np.array([1.0, -2.0], np.float32)] * clients).result
  np.testing.assert_allclose(
      result, np.array([1.0, -2.0]) * clients / 4.5, rtol=1e-6)


def test_structures_and_dtypes_are_kept_even_where_the_divisor_exceeds_them(
    in_process):
  value_type = tff.to_type(collections.OrderedDict(
      a=[(np.float16, [2]), (np.float64, [])],
      b=(tf.bfloat16.as_numpy_dtype, [1])))
  process = ExpectedMeanFactory(PlainSumFactory(), 100_000).create(value_type)
  value = collections.OrderedDict(
      a=[np.array([1000, -3000], np.float16), np.float64(7)],
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


@pytest.mark.slow
def test_a_round_of_tffs_federated_averaging_runs_with_it(in_process):
  spec = (tf.TensorSpec([None, 4], tf.float32), tf.TensorSpec([None], tf.int32))

  def model_fn():
    model = tf.keras.Sequential(
        [tf.keras.layers.InputLayer([4]), tf.keras.layers.Dense(3)])
    return tff.learning.models.from_keras_model(
        model, input_spec=spec,
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))

  params = DistributedSumParams(
      clip=1.0, noise_multiplier=0.01, bits=20, dimension=15, cohort_size=3)
  process = tff.learning.algorithms.build_unweighted_fed_avg(
      model_fn,
      client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1),
      server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
      model_aggregator=ExpectedMeanFactory(DistributedSumFactory(params), 3))
  rng = np.random.default_rng(0)
  labels = np.arange(30) % 3
  examples = (np.eye(4)[labels] + rng.normal(size=[30, 4]) / 10).astype(np.float32)
  clients = [
      tf.data.Dataset.from_tensor_slices(
          (examples, labels.astype(np.int32))).batch(10) for _ in range(3)]
  state = process.initialize()
  losses = []
  for _ in range(5):
    output = process.next(state, clients)
    state = output.state
    losses.append(output.metrics['client_work']['train']['loss'])
  assert output.metrics['aggregator']['scale'] == pytest.approx(params.scale)
  assert losses[-1] < 0.9 * losses[0]
