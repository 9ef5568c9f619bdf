"""Tests of aggregators.distributed_sum: the sum that comes out."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from aggregators import (
    distributed_sum, keys, modular_sum, rotation, share_tables, structures)
from aggregators.distributed_sum import DistributedSumFactory
from aggregators.params import DistributedSumParams
from tests import statistics_lib
from tests.aggregators import central_sum_test
from tff_pipelines.simulation import contexts

N, D = 50, 1000
_params = DistributedSumParams(
    clip=1.0, noise_multiplier=1.0, bits=16, dimension=D, cohort_size=N).replace


def _process(params, value_type=None, **arguments):
  if value_type is None:
    value_type = tff.TensorType(np.float32, [params.dimension])
  if arguments.get('simulation_seed') is not None:
    value_type = structures.keyed_type(value_type)
  return DistributedSumFactory(params, **arguments).create(value_type)


def _with_key(value, *path):
  digits = [int(x) for x in path]
  return collections.OrderedDict(
      value=value, key=np.random.SeedSequence(digits).generate_state(
          2, np.uint64).view(np.int64))


def _updates(count=N, dim=D, seed=0):
  """Updates of which half are longer than a clip of 1."""
  rng = np.random.default_rng(seed)
  shared = rng.normal(size=dim)
  vectors = shared + rng.normal(size=(count, dim))
  vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
  return (vectors * rng.uniform(0.2, 1.8, size=(count, 1))).astype(np.float32)


def _errors(params, rounds, seed=5):
  """Errors against the exact clipped sum, grid units, of a seeded run."""
  vectors = _updates(dim=params.dimension)
  exact = central_sum_test.clipped_sum(vectors, params.clip)
  process = _process(params, simulation_seed=seed)
  state = process.initialize()
  errors = []
  for r in range(rounds):
    output = process.next(
        state, [_with_key(v, seed, r, i) for i, v in enumerate(vectors)])
    state = output.state
    errors.append((output.result - exact) * params.scale)
  return np.array(errors)


@pytest.mark.parametrize('changes', [
    dict(), pytest.param(dict(rotation='dft'), marks=pytest.mark.slow),
    pytest.param(dict(rotation='none', clip=0.5), marks=pytest.mark.slow),
    # So little noise that the rounding is half of the error.
    pytest.param(dict(noise_multiplier=6e-4), marks=pytest.mark.slow),
    # No noise: rounding alone.
    dict(noise_multiplier=0.0),
    # Shares beyond any table: differences of Poisson draws.
    pytest.param(dict(bits=22, noise_multiplier=2.0), marks=pytest.mark.slow),
    pytest.param(dict(min_honest_fraction=0.5), marks=pytest.mark.slow)])
def test_error_has_the_predicted_variance_and_mean_zero(in_process, changes):
  params = _params(**changes)
  errors = _errors(params, rounds=4)
  # The fractions are uniform, so a rounding has the variance 1/6.
  variance = params.total_noise_variance + N / 6
  if changes.get('rotation') == 'none':
    assert params.scale / D**0.5 > 20
  statistics_lib.check_variance(errors, variance)
  statistics_lib.check_mean(errors, 0, variance)
  # In the direction of the signal too: no coordinate is shrunk.
  exact = central_sum_test.clipped_sum(_updates(), params.clip)
  along = errors @ exact / np.linalg.norm(exact)
  assert np.all(np.abs(along) <= 5 * variance**0.5)


def _integers(params, vectors, rotation_key, seed, round_number, cohort_size=N):
  """What the clients of a seeded round send, mapped to signed integers."""
  encode = tf.function(lambda v, k: distributed_sum.encode(
          v, k, rotation_key, cohort_size, params).values, autograph=False)
  sent = [encode(v, _with_key(0, seed, round_number, i)['key'])
          for i, v in enumerate(vectors)]
  return np.array([modular_sum.unwrap(s, params.bits).numpy() for s in sent])


@pytest.mark.parametrize('dim, kind', [
    (1024, 'none'), (1024, 'hadamard'), (1000, 'dft'), (1, 'hadamard'),
    (20 * 2**6, 'hadamard'), (12 * 2**7, 'hadamard'), (28 * 2**6, 'hadamard')])
def test_without_noise_the_release_is_the_exact_rounded_sum(in_process, dim, kind):
  params = _params(noise_multiplier=0.0, dimension=dim, rotation=kind)
  vectors = _updates(dim=dim)
  process = _process(params, simulation_seed=3)
  state = process.initialize()
  output = process.next(state, [_with_key(v, 3, 0, i) for i, v in enumerate(vectors)])

  integers = _integers(params, vectors, state['rotation_key'], 3, 0)
  total = integers.astype(np.int64).sum(axis=0)
  # What is released, rotated again, is that sum, integer by integer.
  again = rotation.rotate(tf.constant(output.result), state['rotation_key'], kind).numpy()
  in_grid = again.astype(np.float64) * params.scale
  np.testing.assert_array_equal(np.rint(in_grid), total)
  np.testing.assert_allclose(in_grid, total, atol=0.02)
  # And each integer is the floor or the ceiling of the scaled, clipped update.
  for sent, vector in zip(integers, vectors):
    clipped = vector / max(1.0, np.linalg.norm(vector.astype(np.float64)))
    rotated = rotation.rotate(
        tf.constant(clipped, tf.float32), state['rotation_key'], kind)
    assert np.max(np.abs(sent - rotated.numpy() * params.scale)) < 1.001
    assert sent @ sent <= params.l2_sensitivity_squared


@pytest.mark.slow
def test_with_noise_the_integers_of_several_workers_are_those_of_one(
    in_process, _two_worker_context):
  params = _params(rotation='none')
  vectors = _updates(20)
  process = _process(params, simulation_seed=8)
  state = process.initialize()
  values = [_with_key(v, 8, 0, i) for i, v in enumerate(vectors)]
  one = process.next(state, values)
  with contexts.installed(_two_worker_context):
    two = process.next(state, values)
  np.testing.assert_array_equal(one.result, two.result)
  for name, value in one.state.items():
    tf.nest.map_structure(np.testing.assert_array_equal, value, two.state[name])


@pytest.mark.parametrize('bits', [2, 3, 8, 15, 16, 22, 23, 30])
def test_every_number_of_bits_has_the_right_noise(bits):
  dim = 8192
  params = _params(
      dimension=dim, cohort_size=1, k_stddevs=3.0, rotation='none', bits=bits,
      noise_multiplier=1.0 if bits <= 22 else 1e-4)
  DistributedSumFactory(params)  # Does not refuse it.
  table = None
  if bits in (2, 8, 15):  # Compiling takes a second.
    table = share_tables.noise_table(params, 1)
  sent = distributed_sum.encode(
      tf.zeros([dim]), tf.constant([bits, 2], tf.int64), [0, 0], 1, params, table)
  assert int(tf.reduce_min(sent.values)) >= 0
  assert int(tf.reduce_max(sent.values)) < 2**bits
  out = distributed_sum.decode(sent.values, 1, 1, [0, 3], [0, 0], params)
  variance = params.total_noise_variance
  statistics_lib.check_variance(out.vector.numpy() * params.scale, variance, 1 / variance)


BFLOAT16 = tf.bfloat16.as_numpy_dtype
STRUCTURES = {'scalar': np.float32, 'mixed': collections.OrderedDict(
        b=[(np.float32, [3]), (np.float64, [])],
        a=((BFLOAT16, [2, 1]), collections.OrderedDict(c=(np.float16, [5])))),
    'an empty tensor': [(np.float32, [0]), (np.float32, [2])]}


@pytest.mark.parametrize('name', sorted(STRUCTURES))
def test_structures_come_back_in_their_shape_and_dtype(in_process, name):
  value_type = tff.to_type(STRUCTURES[name])
  layout = structures.FlatLayout(value_type)
  params = _params(dimension=layout.size, cohort_size=3, noise_multiplier=0.0, clip=100.0)
  process = _process(params, value_type)
  result_type = process.next.type_signature.result.result.member
  assert result_type.is_equivalent_to(value_type)

  template = tff.types.structure_from_tensor_type_tree(
      lambda t: tf.TensorSpec(t.shape, t.dtype), value_type)
  rng = np.random.default_rng(0)
  clients = [tf.nest.map_structure(
      lambda s: rng.uniform(-1, 1, s.shape).astype(s.dtype.as_numpy_dtype), template)
             for _ in range(3)]
  output = process.next(process.initialize(), clients)
  tf.nest.assert_same_structure(output.result, template)
  for spec, total, *parts in zip(*map(tf.nest.flatten, (
      template, output.result, *clients))):
    assert np.asarray(total).dtype == spec.dtype.as_numpy_dtype
    assert np.shape(total) == spec.shape
    expected = sum(np.asarray(p, np.float64) for p in parts)
    # Of rounding: half a grid unit per client and coordinate, and the dtype.
    np.testing.assert_allclose(np.asarray(total, np.float64), expected, rtol=0.01,
        atol=0.02 + 8 * 3 / params.scale)


@pytest.mark.parametrize('value_type, error, message', [
    (tff.TensorType(np.int32, [D]), TypeError, 'float .*int32'),
    (tff.to_type([(np.float32, [D]), np.bool_]), TypeError, 'float .*bool'),
    (tff.TensorType(np.str_, [D]), TypeError, 'float .*str'),
    (tff.TensorType(np.float32, [None]), TypeError, r'known shape.*float32\[\?\]'),
    (tff.TensorType(np.float32, None), TypeError, 'known shape'),
    (tff.StructType([('a', tff.TensorType(np.float32, [D]))]), TypeError,
     r"Python containers, found StructType\(\[\('a'"),
    (tff.TensorType(np.float32, [999]), ValueError, 'dimension=1000, found 999')])
def test_values_that_cannot_be_summed_are_named(value_type, error, message):
  with pytest.raises(error, match=message):
    _process(_params(), value_type)


def test_noise_beyond_the_sampler_is_refused_by_bits_and_variance():
  params = _params(bits=30, noise_multiplier=3.0, cohort_size=2)
  assert params.total_noise_variance > 1.3e14
  with pytest.raises(ValueError, match=r'variance of .*e\+1[5-9] .* bits=30'):
    DistributedSumFactory(params)
  DistributedSumFactory(params.replace(noise_multiplier=0.0))


def test_a_cohort_beyond_int32_is_refused():
  params = _params(bits=30, cohort_size=2.0**31, noise_multiplier=0.0)
  with pytest.raises(ValueError, match='cohort_size must be below 2\\^31'):
    DistributedSumFactory(params)


@pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf])
def test_a_client_of_nan_or_infinities_sends_its_noise_alone(bad):
  params = _params(dimension=4096, cohort_size=4)
  vector = np.ones(4096, np.float32)
  vector[17] = bad
  sent = distributed_sum.encode(
      tf.constant(vector), tf.constant([1, 2], tf.int64), [0, 0], 4, params)
  noise = modular_sum.unwrap(sent.values, params.bits).numpy()
  statistics_lib.check_variance(noise, params.total_noise_variance / 4)
  statistics_lib.check_mean(noise, 0, params.total_noise_variance / 4)


def test_diagnostics_count_what_happened_at_clients(in_process):
  process = _process(_params(cohort_size=6), diagnostics=True)
  vectors = np.full([6, D], 1e-3, np.float32)
  vectors[:2] = 1.0
  vectors[5] = np.nan
  output = process.next(process.initialize(), list(vectors))
  diagnostics = output.measurements['diagnostics']
  assert diagnostics['num_reporting'] == 6
  assert 0 <= diagnostics['totals'].pop('rounding_retries') < 60
  assert diagnostics['totals'] == dict(
      clipped=2, not_finite=1, cohort_disbelieved=0, rounding_fallbacks=0)


def test_unseeded_runs_never_repeat(in_process):
  params = _params(dimension=100)
  process = _process(params)
  vectors = list(_updates(5, 100))
  state = process.initialize()
  results = [process.next(state, vectors) for _ in range(3)]
  for i in range(3):
    for j in range(i):
      assert np.mean(results[i].result != results[j].result) > 0.9
      assert np.any(results[i].state['rotation_key'] != results[j].state['rotation_key'])
  assert np.any(process.initialize()['rotation_key'] != state['rotation_key'])


@pytest.mark.slow
def test_the_wrapped_fraction_tells_enough_bits_from_too_few(in_process):
  def estimate(params):
    # Seeded: of a full field the estimate has a deviation of 0.0043.
    process = _process(params, simulation_seed=6)
    return float(process.next(process.initialize(),
        [_with_key(v, 6, 0, i) for i, v in enumerate(_updates())]).measurements[
            'estimated_wrapped_fraction'])

  roomy = estimate(_params(k_stddevs=8.0))
  # At 4 standard deviations the Gaussian tail of a field is 6e-5; the updates
  # here are shorter and not all parallel.
  usual = estimate(_params())
  assert roomy < 1e-9 < usual < 1e-4
  # A sum that fills the field evenly.
  full = estimate(_params(fixed_scale=_params().scale * 50))
  assert full == pytest.approx(1 / 12, abs=0.01)


def test_measurements_are_public_unless_diagnostics_are_asked_for():
  measured = lambda **k: _process(_params(), **k).next.type_signature.result.measurements
  public = tff.to_type(collections.OrderedDict(
      scale=np.float32, estimated_wrapped_fraction=np.float32, suppressed=np.bool_))
  off = measured()
  assert off.is_equivalent_to(tff.FederatedType(public, tff.SERVER))
  on = measured(diagnostics=True)
  totals = collections.OrderedDict(
      clipped=np.int32, not_finite=np.int32, cohort_disbelieved=np.int32,
      rounding_retries=np.int32, rounding_fallbacks=np.int32)
  assert on.is_equivalent_to(tff.FederatedType(tff.to_type(collections.OrderedDict(
          public=public, diagnostics=collections.OrderedDict(
              num_reporting=np.int32, totals=totals))), tff.SERVER))


def test_keys_of_a_round_are_derived_and_not_the_seed_itself():
  key = np.array(keys.from_seed(1))
  state = DistributedSumFactory(_params(), simulation_seed=1).initial_state()
  drawn = {tuple(np.array(state[name])) for name in ('rotation_key', 'server_key')}
  assert len(drawn | {tuple(key)}) == 3
