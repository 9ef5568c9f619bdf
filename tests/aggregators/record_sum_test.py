"""Sums over silos: each record is encoded by itself, each silo has one share of noise."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from aggregators import banded_sum, central_sum, distributed_sum, plain_sum
from aggregators.native import encoding
from aggregators.params import DistributedSumParams
from aggregators.record_sum import RecordSumFactory
from benchmarks import record_influence
from tests import statistics_lib
from tff_pipelines.simulation import native_chunks

DIMENSION = 100
PARAMS = DistributedSumParams(
    clip=1.0, noise_multiplier=2.0, bits=24, dimension=DIMENSION, cohort_size=20,
    max_cohort_size=40)
VECTORS = tff.TensorType(np.float32, [None, DIMENSION])


def _silos(*counts, scale=1.0):
  rng = np.random.default_rng(1)
  return [(scale * rng.normal(size=(n, DIMENSION))).astype(np.float32) for n in counts]


def _clipped_sum(silos):
  vectors = np.concatenate(silos).astype(np.float64)
  return (vectors / np.maximum(1.0, np.linalg.norm(vectors, axis=1)[:, None])).sum(axis=0)


def _outputs(process, rounds):
  state = process.initialize()
  for silos in rounds:
    output = process.next(state, silos)
    state = output.state
    yield output


def test_the_grid_is_that_of_all_vectors_and_the_noise_that_of_the_silos():
  params = PARAMS.over_silos(4)
  assert (params.scale, params.l2_sensitivity_squared, params.noise_variance) == (
      PARAMS.scale, PARAMS.l2_sensitivity_squared, PARAMS.noise_variance)
  assert params.local_stddev_grid == pytest.approx((PARAMS.total_noise_variance / 4)**0.5)
  assert (params.cohort_size, params.most_shares) == (4, 4)


@pytest.mark.parametrize('silos', [_silos(7, 0, 3, 12), _silos(0, 0, 0, 0),
                                   _silos(1, 1, 1, 40, scale=100.0)])
@pytest.mark.parametrize('build', [
    lambda: distributed_sum.DistributedSumFactory(PARAMS.over_silos(4)),
    lambda: central_sum.CentralSumFactory(clip=1.0, noise_multiplier=2.0)])
def test_releases_are_clipped_sums_with_the_noise_of_the_multiplier(
    in_process, build, silos):
  process = RecordSumFactory(build()).create(VECTORS)
  outputs = list(_outputs(process, [silos] * 60))
  errors = [output.result - _clipped_sum(silos) for output in outputs]
  statistics_lib.check_mean(np.ravel(errors), 0.0, 4.0)
  statistics_lib.check_variance(np.ravel(errors), 4.0)


@pytest.mark.parametrize('reporting', [2, 3, 4])
def test_silos_that_drop_out_leave_the_same_noise(in_process, reporting):
  params = PARAMS.over_silos(4, min_honest_fraction=0.5)
  silos = _silos(7, 5, 3, 12)[:reporting]
  process = RecordSumFactory(distributed_sum.DistributedSumFactory(params)).create(VECTORS)
  native_chunks.encoders.clear()
  outputs = list(_outputs(process, [*[silos] * 60, silos[:1]]))
  assert not native_chunks.encoders  # Kernels' parameters are those of single vectors.
  assert [o.measurements['suppressed'] for o in outputs] == [False] * 60 + [True]
  errors = [output.result - _clipped_sum(silos) for output in outputs[:-1]]
  statistics_lib.check_variance(np.ravel(errors), 8.0)  # v / h.


def test_rows_of_several_rounds_are_those_of_the_silos_sums(in_process):
  params = PARAMS.replace(noise_multiplier=1e-6, column=(2, 1), bits=28).over_silos(2)
  process = RecordSumFactory(banded_sum.BandedSumFactory(params)).create(VECTORS)
  rounds = _silos(5, 3), _silos(0, 9), _silos(4, 0)
  for silos, output in zip(rounds, _outputs(process, rounds)):
    np.testing.assert_allclose(output.result, _clipped_sum(silos), atol=1e-2)


def test_structures_have_a_first_axis_of_records(in_process):
  process = RecordSumFactory(plain_sum.PlainSumFactory()).create(
      tff.to_type(collections.OrderedDict(
          a=tff.TensorType(np.float32, [None, 2, 2]), b=tff.TensorType(np.float32, [None]))))
  silos = [collections.OrderedDict(
      a=np.arange(4 * n, dtype=np.float32).reshape(n, 2, 2), b=np.ones(n, np.float32))
           for n in (3, 0, 2)]
  result = process.next(process.initialize(), silos).result
  np.testing.assert_array_equal(result['a'], sum(s['a'].sum(axis=0) for s in silos))
  assert result['b'] == 5


@pytest.mark.parametrize('bits', [8, 12, 22])
def test_no_record_moves_the_integers_of_its_silo_by_more_than_the_bound(bits):
  found, bound = record_influence.largest(bits, 3000)
  assert 0.99 * bound < found <= bound


def test_kernels_and_graphs_add_the_same_integers():
  factory = distributed_sum.DistributedSumFactory(PARAMS.over_silos(3))
  vectors, keys = _silos(50)[0], np.arange(100).reshape(50, 2)
  state = factory.set_cohort_size(factory.initial_state(), 3)
  total, measured = factory.bare_sum(
      tf.constant(vectors), tf.constant(keys, tf.int64), state)
  native = encoding.EncodedSum.of(RecordSumFactory(factory).native_params, {
      'rotation_key': np.asarray(state['rotation_key']), 'cohort_size': np.int32(3)})
  native.add(vectors, keys)
  np.testing.assert_array_equal(total, native.total)
  assert [int(x) for x in measured.values()] == native.diagnostics.tolist()
