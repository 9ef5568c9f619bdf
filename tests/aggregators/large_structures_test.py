"""Sums of large and odd structures, and the memory that they take."""

import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from aggregators import distributed_sum
from aggregators.distributed_sum import DistributedSumFactory
from aggregators.params import DistributedSumParams
from tests import statistics_lib


def _roundtrip(dimension, **changes):
  """The errors of one client's sum, grid units, and what they should be."""
  params = DistributedSumParams(
      clip=1.0, noise_multiplier=1.0, bits=16, dimension=dimension, cohort_size=1,
      **changes)
  factory = DistributedSumFactory(params)
  state = factory.initial_state()
  vector = np.full(dimension, 0.5 * dimension**-0.5, np.float32)
  sent, _ = factory.contribute(
      tf.constant(vector), tf.constant([dimension, 1], tf.int64), state)
  assert sent.shape == [params.padded_dimension]
  released = distributed_sum.decode(
      sent, 1, 1, tf.constant([1, 1], tf.int64), state['rotation_key'], params,
      table=state.get('noise_table')).vector.numpy()
  assert released.shape == (dimension,)
  return (released - vector) * params.scale, params.total_noise_variance


@pytest.mark.parametrize('rotation', ['hadamard', 'dft', 'none'])
@pytest.mark.parametrize('dimension', [1, 2, 3, 5, 127, 1025])
def test_small_dimensions_come_back(dimension, rotation):
  errors, variance = _roundtrip(dimension, rotation=rotation)
  # Gaussian, and one in 10^9 beyond six and a half standard deviations.
  assert np.all(np.abs(errors) < 6.5 * (variance + 1)**0.5)


@pytest.mark.parametrize('dimension', [
    2**16 + 1, 2**20, 2**17 - 1, pytest.param(2**24, marks=pytest.mark.slow)])
def test_large_dimensions_come_back_with_their_noise(dimension):
  errors, variance = _roundtrip(dimension)
  statistics_lib.check_variance(errors, variance + 1 / 6)
  statistics_lib.check_mean(errors, 0, variance)


def _peaks(module, *arguments) -> list[int]:
  environment = {**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '3',
                 # Freed vectors go back to the system at once, and what is
                 # kept does not depend on which threads asked for it.
                 'MALLOC_MMAP_THRESHOLD_': str(2**20), 'MALLOC_ARENA_MAX': '1'}
  printed = subprocess.run(
      [sys.executable, '-W', 'ignore', '-m', module, *map(str, arguments)],
      check=True, text=True, stdout=subprocess.PIPE, env=environment).stdout
  return list(map(int, printed.split()))


@pytest.mark.slow
def test_a_client_takes_the_vectors_that_the_docstring_says():
  """Between two sizes, so that tables, programs and libraries do not count.

  They differ by megabytes from process to process: between these sizes that is a
  tenth of a vector.
  """
  vectors, small, large = 6, 2**20, 2**23
  (before,), (after,) = (_peaks('tests.aggregators.encode_peak', size)
                         for size in (small, large))
  assert large - small < (after - before) / 4 < vectors * (large - small)
  assert f'{vectors} vectors' in ' '.join(distributed_sum.encode.__doc__.split())


@pytest.mark.slow
def test_the_peak_of_a_chunk_does_not_grow_with_the_cohort():
  few, many = _peaks('tests.fedavg.chunk_peak', 4, 16)
  # 12 clients more, of 4 MB each: not even four vectors more.
  assert many - few < 16 * 2**20
