"""Every mechanism, rotation and rounding bound of the distributed sum."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from aggregators import alias_table, distributed_sum, modular_sum, noises, share_tables
from aggregators.distributed_sum import DistributedSumFactory
from aggregators.params import DistributedSumParams, ROTATIONS
from tests import statistics_lib

N = 20
_params = DistributedSumParams(
    clip=1.0, noise_multiplier=1.0, bits=18, dimension=4096, cohort_size=N,
    rotation='none').replace


def _sent(params, num_selected=N, key=1, table=None, vector=None):
  """A client's integers, unwrapped, int64."""
  if vector is None:
    vector = tf.zeros([params.dimension])
  values = distributed_sum.encode(
      vector, tf.constant([key, 2], tf.int64), [0, 0], num_selected, params, table).values
  return modular_sum.unwrap(values, params.bits).numpy().astype(np.int64)


def _released(params, total, num_reporting, num_selected, key=3):
  total = modular_sum.wrap(tf.constant(total, tf.int64), params.bits)
  out = distributed_sum.decode(
      total, num_reporting, num_selected, [0, key], [0, 0], params)
  return out.vector.numpy() * params.scale, bool(out.measurements['suppressed'])


@pytest.mark.slow
@pytest.mark.parametrize('mechanism, rotation, beta, dimension', [
    *zip(noises.NOISES, itertools.cycle(ROTATIONS), itertools.cycle([0.6, 0.0]),
         itertools.repeat(1001)),
    ('skellam', 'dft', 0.0, 1001), ('skellam', 'dft', 0.0, 7),
    ('skellam', 'hadamard', 0.0, 1),
    *[('skellam', 'hadamard', 0.6, d) for d in (1200, 1500, 1700, 36_000)]])
def test_the_sum_comes_back_with_the_noise_of_the_guarantee(
    in_process, mechanism, rotation, beta, dimension):
  params = _params(mechanism=mechanism, rotation=rotation, beta=beta, dimension=dimension,
      noise_multiplier=1e-2, k_stddevs=8.0)
  vectors = np.random.default_rng(0).normal(size=(N, dimension))
  vectors *= 0.9 / np.linalg.norm(vectors, axis=1, keepdims=True)
  vectors = vectors.astype(np.float32)
  process = DistributedSumFactory(params).create(tff.TensorType(np.float32, [dimension]))
  output = process.next(process.initialize(), list(vectors))
  errors = (np.asarray(output.result) - vectors.sum(axis=0)) * params.scale
  # Noise, and rounding of at most a quarter a client.
  variance = params.total_noise_variance + N / 4
  assert np.sum(errors**2) < dimension * variance * (
      1 + statistics_lib.Z * (4 / dimension)**0.5 + 20 / dimension)
  if dimension > 1000:
    assert np.sum(errors**2) > 0.7 * dimension * params.total_noise_variance
  assert not output.measurements['suppressed']


@pytest.mark.parametrize('mechanism, noise_multiplier', [
    ('skellam', 1.0), ('skellam', 60.0), ('discrete_gaussian', 0.3),
    ('discrete_gaussian', 1.0), ('discrete_gaussian', 30.0)])
def test_shares_by_table_and_by_sampler(monkeypatch, mechanism, noise_multiplier):
  params = _params(mechanism=mechanism, noise_multiplier=noise_multiplier, bits=14)
  assert share_tables.table_log_size(params) is not None
  variance = params.total_noise_variance / N
  drawn = [_sent(params)]
  monkeypatch.setattr(share_tables, 'table_draws', lambda _: None)
  drawn.append(_sent(params))
  for noise in drawn:
    statistics_lib.check_variance(noise, variance, 1 / variance)
    statistics_lib.check_mean(noise, 0, variance)
  # Other integers from the same key.
  assert np.mean(drawn[0] != drawn[1]) > 0.3


def test_discrete_gaussian_shares_beyond_the_tables():
  params = _params(mechanism='discrete_gaussian', bits=29, cohort_size=2, k_stddevs=6.0)
  assert share_tables.table_log_size(params) is None
  variance = params.total_noise_variance / 2
  assert variance > 1e12
  statistics_lib.check_variance(_sent(params, num_selected=2), variance)


@pytest.mark.parametrize('num_selected', [N, 17, 1])
def test_a_table_is_that_of_the_share_of_its_cohort(num_selected):
  params = _params(mechanism='discrete_gaussian')
  assert not share_tables.has_all_noise(params)
  table = share_tables.noise_table(params, num_selected)
  variance = share_tables.share_variance(params, num_selected)
  assert (table['variance'] == variance) == (num_selected >= 0.75 * N)
  statistics_lib.check_variance(_sent(params, num_selected, table=table), variance)


@pytest.mark.parametrize('num_reporting', [N, 15, 10, 1, 0])
def test_missing_shares_are_topped_up_to_the_same_variance(num_reporting):
  params = _params(mechanism='discrete_gaussian', min_honest_fraction=0.5, bits=16)
  table = share_tables.noise_table(params, N)
  total = sum((_sent(params, key=i, table=table) for i in range(num_reporting)),
              start=np.zeros(params.dimension, np.int64))
  noise, suppressed = _released(params, total, num_reporting, N)
  assert suppressed == (num_reporting < 10)
  statistics_lib.check_variance(noise, params.total_noise_variance)
  assert params.total_noise_variance == pytest.approx(2 * params.noise_variance)


@pytest.mark.parametrize('bits, draws', [(14, 1), (18, 3), (24, None)])
def test_the_noise_of_a_server_is_of_tables_or_of_the_sampler(bits, draws):
  params = _params(mechanism='skellam_central', bits=bits, cohort_size=1,
                   fixed_scale=2.0**bits / 8)
  assert share_tables.server_draws(params) == draws
  noise, _ = _released(params, np.zeros(4096, np.int64), 1, 1)
  variance = params.total_noise_variance
  statistics_lib.check_variance(noise, variance)
  statistics_lib.check_mean(noise, 0, variance)
  other, _ = _released(params, np.zeros(4096, np.int64), 1, 1, key=4)
  statistics_lib.check_mean(noise * other, 0, variance**2)
  # Power: without one of the draws the variance is seen to be too small.
  if draws == 3:
    with pytest.raises(AssertionError):
      statistics_lib.check_variance(noise * (2 / 3)**0.5, variance)


@pytest.mark.slow
def test_no_cohort_has_smaller_discrete_gaussian_shares_than_accounted_for():
  params = _params(mechanism='discrete_gaussian', max_cohort_size=30)
  smallest = params.total_noise_variance / 30
  for num_selected in (0, 1, 20, 30, 31, 1000):
    share = share_tables.share_variance(params, num_selected)
    assert share >= smallest
    if num_selected in (1, 1000):
      statistics_lib.check_variance(_sent(params, num_selected), share)
  # All of a larger cohort together have more noise, and nothing is added to it.
  noise, _ = _released(params, np.zeros(4096, np.int64), 40, 40)
  np.testing.assert_array_equal(noise, 0)


def test_discrete_gaussian_shares_below_half_a_grid_unit_are_refused():
  params = _params(mechanism='discrete_gaussian', noise_multiplier=1e-5)
  assert params.local_stddev_grid < 0.5
  with pytest.raises(ValueError, match=r'at least 0\.5 grid units .* bits=18'):
    DistributedSumFactory(params)
  DistributedSumFactory(params.replace(mechanism='skellam'))
  # What counts is the largest cohort, not the expected one.
  params = _params(mechanism='discrete_gaussian', bits=12, noise_multiplier=0.006)
  DistributedSumFactory(params)
  with pytest.raises(ValueError, match='cohorts of up to 600'):
    DistributedSumFactory(params.replace(max_cohort_size=600.0, fixed_scale=params.scale))


def test_a_trusted_server_adds_all_the_noise_and_clients_none():
  params = _params(mechanism='skellam_central', min_honest_fraction=0.5,
                   assumed_colluders=N)
  assert params.total_noise_variance == params.noise_variance
  np.testing.assert_array_equal(_sent(params), 0)
  assert share_tables.table_log_size(params) is None
  vector = tf.one_hot(5, params.dimension)
  assert _sent(params, vector=vector)[5] == pytest.approx(params.clip_grid, abs=2)
  for num_reporting in (N, 3, 0):
    noise, suppressed = _released(
        params, np.zeros(params.dimension, np.int64), num_reporting, N)
    assert not suppressed
    statistics_lib.check_variance(noise, params.noise_variance)


# Shares may need several draws from a table.
_wide = _params(dimension=2**16, cohort_size=2).replace


def test_tables_of_one_draw_are_used_as_far_as_they_reach():
  # 2^19 cells reach 2^18, and the tail of 2^-100 begins at 11.77 standard
  # deviations: variances up to 4.96e8.
  assert alias_table.SKELLAM.fits(4.9e8) and not alias_table.SKELLAM.fits(5.0e8)
  assert alias_table.SKELLAM.log_size(4.9e8) == alias_table.MAX_LOG_SIZE == 19
  for cohort_size, draws in ((10, 1), (5, 1), (2, 2), (1, 3)):
    assert share_tables.table_draws(_wide(cohort_size=cohort_size)) == draws
  assert share_tables.table_draws(_wide(bits=20, cohort_size=1)) is None
