"""The compiled kernels of `aggregators.native` against the graph form.

Tests of distributions run with both forms (`forms.py`).
"""

import itertools
import os
import subprocess
import sys
import zlib

import numpy as np
import pytest
import tensorflow as tf

from aggregators import (
    alias_table, chacha, distributed_sum, hadamard, keys, noisy_rounding, rotation,
    rounding, share_tables)
from aggregators.native import decoding, encoding, marks, random_bits, transform
from aggregators.params import DistributedSumParams
from benchmarks import native_integers
from tests.aggregators import forms
from tff_pipelines.simulation import native_chunks

KEY = np.array([2**40 + 3, -5], np.int64)

def _pair(key):
  return tuple(np.asarray(key, np.int64).view(np.uint64))


def test_random_bits_are_those_of_the_graph():
  memory = random_bits.scratch()
  for count in (2, 6, 62, 2000, 2048, 2050, 5002):
    for dtype in (tf.int32, tf.int64):
      wanted = chacha.random_bits(
          tf.constant(KEY), [count // (dtype.size // 4)], dtype).numpy().view(np.uint32)
      for first in {0, 1, min(64, count - 1), count // 2}:
        out = np.empty(min(count - first, random_bits.PIECE_NUMBERS), np.uint32)
        random_bits.fill(_pair(KEY), count, first, out, memory)
        np.testing.assert_array_equal(out, wanted[first:first + out.size])
    out = np.empty(count, np.uint32)
    random_bits.philox(_pair(KEY), out)
    np.testing.assert_array_equal(
        out, keys.random_bits(tf.constant(KEY), [count]).numpy().view(np.uint32))


@pytest.mark.parametrize('index', [0, 1, 77, 2**31, 2**33 + 5])
def test_derived_keys_are_those_of_the_graph(index):
  child = random_bits.derive(_pair(KEY), index, random_bits.scratch())
  assert child == _pair(chacha.derive(tf.constant(KEY), index))


@pytest.mark.parametrize('dim', [
    *(2**k for k in (*range(14), 17, 18, 19)),
    *(order * 2**k for order in hadamard.ORDERS for k in (6, 7, 8, 13)),
    *(first * second * 2**8 for first, second in itertools.combinations_with_replacement(
        hadamard.ORDERS, 2))])
def test_the_rotation_has_the_bits_of_the_graph(dim):
  vector = np.random.default_rng(dim).normal(size=dim).astype(np.float32)
  rotated = np.empty(dim, np.float32)
  transform.scaled_and_flipped(vector, np.float32(1), np.float32(dim**-0.5),
      transform.sign_bits(_pair(KEY), dim), rotated)
  transform.transform(rotated)
  assert native_integers.unequal(
      rotation.rotate(tf.constant(vector), KEY, 'hadamard').numpy(), rotated) == 0


@pytest.mark.parametrize('count', [1, 63, 64, 1000, 2**15 + 3])
def test_norms_are_those_of_the_graph(count):
  vector = np.random.default_rng(count).normal(size=count).astype(np.float32)
  assert transform.squared_norm(vector) == pytest.approx(
      float(rounding.squared_norm(tf.constant(vector))), rel=1e-13)


@pytest.mark.parametrize('case', native_integers.quick_cases(), ids=str)
def test_integers_are_those_of_the_graph(case):
  compared, different = native_integers.compare(case)
  assert compared > 0 and different == 0


@pytest.mark.parametrize('case', native_integers.quick_cases(), ids=str)
def test_decoded_sums_have_the_bits_of_the_graph(case):
  compared, different = native_integers.compare_decoded(case)
  assert compared > 0 and different == 0


_params = DistributedSumParams(
    clip=1.0, noise_multiplier=1.0, bits=16, dimension=3000, cohort_size=20).replace


EXTREMES = {'nan': [np.nan, 1.0], 'infinite': [1.0, -np.inf], 'zero': [0.0, -0.0],
    'huge': [3e38, -3e38, 1.0], 'subnormal': [1e-45, -1e-42],
    'longer than float32 holds': [1e20, 1e25]}


@pytest.mark.parametrize('name', EXTREMES)
def test_refusals_and_extreme_clients_are_those_of_the_graph(name):
  params = _params()
  vector = np.zeros(params.dimension, np.float32)
  vector[:len(EXTREMES[name])] = EXTREMES[name]
  table = share_tables.noise_table(params, 20)
  arguments = (vector, tf.constant(KEY), tf.constant(KEY), 20, params, table)
  graph, kernels = distributed_sum.encode(*arguments), forms.encode(*arguments)
  np.testing.assert_array_equal(graph.values, kernels.values)
  for key, value in graph.diagnostics.items():
    assert value == kernels.diagnostics[key], key
  assert kernels.diagnostics['not_finite'] == (name in ('nan', 'infinite'))


@pytest.mark.parametrize('mechanism', ['skellam', 'discrete_gaussian'])
@pytest.mark.parametrize('cohort', [20, 56, 1])
def test_unexpected_cohorts_are_encoded_as_by_the_graph(mechanism, cohort):
  # A cohort of 56 is not believed. The share of a single client takes several draws;
  # discrete Gaussian ones do not add up, and the graph draws what is beyond tables.
  params = _params(mechanism=mechanism, bits=18)
  table = share_tables.noise_table(params, cohort)
  vector = np.full(params.dimension, params.dimension**-0.5, np.float32)
  state = dict({f'noise_table/{name}': value for name, value in table.items()},
               rotation_key=KEY, cohort_size=np.int32(cohort))
  total = encoding.EncodedSum.of(params, state)
  if cohort == 1 and mechanism == 'discrete_gaussian':
    assert total is None
    return
  total.add(vector[np.newaxis], KEY[np.newaxis])
  graph = distributed_sum.encode(
      tf.constant(vector), tf.constant(KEY), KEY, cohort, params, table)
  np.testing.assert_array_equal(total.total, graph.values)
  assert total.diagnostics[2] == graph.diagnostics['cohort_disbelieved'] == (cohort == 56)
  # No share is drawn from the table of another cohort.
  assert encoding.EncodedSum.of(params, {**state, 'cohort_size': np.int32(19)}) is None


@pytest.mark.parametrize('dim', [500, 3001])
def test_ties_and_retries_are_those_of_the_graph(dim):
  table = alias_table.SKELLAM.build(12.0)
  # Thresholds equal to the bits that they are compared with: a tie in each cell.
  random = noisy_rounding.random_bits(
      chacha.derive(tf.constant(KEY), 0), dim, False, chacha).numpy()
  low, first = random[dim:], random[dim:] & (2**alias_table.FIRST_BITS - 1)
  threshold = np.full(table.packed.size, 2**21, np.int64)
  threshold[(low >> alias_table.FIRST_BITS) & (table.packed.size - 1)] = first
  packed = tf.constant(table.packed & (2**32 - 1) | threshold << 32)
  noise = noisy_rounding.TableNoise(
      packed=packed, tie=tf.constant(np.random.default_rng(0).integers(
          -2**63, 2**63 - 1, table.tie.size)),
      more_draws=tf.constant(2))
  retries = 0
  for bound in (dim, dim // 2, dim // 4):
    # All coordinates are 0.5: every try fits, every second one, and none.
    arguments = (np.full(dim, 0.5, np.float32), tf.constant(KEY), bound, noise, 16)
    graph = noisy_rounding.noisy_round(*arguments, compiled=False)
    kernels = forms.noisy_round(*arguments)
    np.testing.assert_array_equal(graph.values, kernels.values)
    assert graph.retries == kernels.retries
    assert graph.fell_back == kernels.fell_back == (bound == dim // 4)
    retries += int(graph.retries)
  assert retries >= 63


def test_the_known_sum_is_that_of_the_graph(monkeypatch):
  params, state, vectors, keys_of = encoding.known()
  table = {name.removeprefix('noise_table/'): value for name, value in state.items()
           if name.startswith('noise_table/')}
  graph = distributed_sum.encode(
      tf.constant(vectors[0]), tf.constant(keys_of[0]), state['rotation_key'],
      state['cohort_size'], params, table)
  known = encoding._KNOWN_SUM  # pylint: disable=protected-access
  assert zlib.crc32(graph.values.numpy().tobytes()) == known
  encoding.try_out()
  # Kernels that do something else are not used.
  monkeypatch.setattr(encoding, '_KNOWN_SUM', known ^ 1)
  monkeypatch.setattr(native_chunks, '_tried', [])
  with pytest.warns(RuntimeWarning, match='other integers'):
    assert native_chunks.kernels() == (None, None)


def test_other_shapes_and_dtypes_are_refused():
  # Compiled loops would write beyond their arrays.
  params = _params(noise_multiplier=0.0)
  total = encoding.EncodedSum.of(params, dict(rotation_key=KEY, cohort_size=np.int32(20)))
  vectors, keys_of = np.zeros([2, 3000], np.float32), np.zeros([2, 2], np.int64)
  for wrong in (vectors[:, :-1], np.zeros([2, 4096], np.float32), vectors[0],
                vectors.astype(np.float64)):
    with pytest.raises(ValueError, match='vectors must be float32 .*, 3000.'):
      total.add(wrong, keys_of)
  for wrong in (keys_of[:1], keys_of[:, :1], keys_of.astype(np.int32)):
    with pytest.raises(ValueError, match='keys must be int64 .2, 2.'):
      total.add(vectors, wrong)
  assert not total.total.any()
  for wrong in (np.zeros(3000, np.int32), np.zeros(4096, np.int64)):
    with pytest.raises(ValueError, match='total must be int32 .3072.'):
      decoding.decoded(params, wrong, np.float32(1), KEY)


@pytest.mark.slow
def test_every_processor_gives_the_known_sums(tmp_path):
  program = ('from aggregators.native import compiling, encoding\n'
             'encoding.try_out()\nprint(compiling.LANES)')
  environment = {**os.environ, 'NUMBA_CPU_NAME': 'x86-64', 'NUMBA_CPU_FEATURES': '',
                 'NUMBA_CACHE_DIR': str(tmp_path)}
  assert subprocess.run([sys.executable, '-c', program], env=environment, check=True,
      stdout=subprocess.PIPE, text=True).stdout == '8\n'


def test_marks_keep_the_parameters_to_the_last_bit():
  params = _params(clip=0.1 + 1e-17, noise_multiplier=1 / 3, min_honest_fraction=0.7)
  text = marks.text(params).encode()
  assert marks.parameters(text) == params
  for other in (params.replace(rotation='dft'), params.replace(bits=28)):
    assert not marks.is_supported(other)
