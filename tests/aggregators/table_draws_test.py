"""Tests of shares of noise that are the sum of several draws from one table."""

import numpy as np
import pytest
import tensorflow as tf

from aggregators import distributed_sum
from aggregators import modular_sum
from aggregators import share_tables
from aggregators import skellam_table
from aggregators.params import DistributedSumParams
from tests import statistics_lib

D = 2**16
KEY = np.array([3, 4], np.int64)


def _params(**changes):
  return DistributedSumParams(**{**dict(
      clip=1.0, noise_multiplier=1.0, bits=18, dimension=D, cohort_size=2,
      rotation='none'), **changes})


def test_tables_of_one_draw_are_used_as_far_as_they_reach():
  # 2^19 cells reach 2^18, and the tail of 2^-100 begins at 11.77 standard
  # deviations: variances up to 4.96e8.
  assert skellam_table.fits(4.9e8) and not skellam_table.fits(5.0e8)
  assert skellam_table.log_size(4.9e8) == skellam_table.MAX_LOG_SIZE == 19
  for cohort_size, draws in ((10, 1), (5, 1), (2, 2), (1, 3)):
    assert share_tables.table_draws(_params(cohort_size=cohort_size)) == draws
  assert share_tables.table_draws(_params(bits=20, cohort_size=1)) is None


@pytest.mark.parametrize('cohort_size, draws', [(2, 2), (1, 3)])
def test_shares_beyond_one_table_are_sums_of_draws_with_their_law(
    cohort_size, draws):
  params = _params(cohort_size=cohort_size)
  share = share_tables.share_variance(params, cohort_size)
  assert not skellam_table.fits(share / 0.75)
  table = share_tables.noise_table(params, cohort_size)
  assert table['variance'] == share / draws
  values = distributed_sum.encode(
      tf.zeros([D]), tf.constant(KEY), [0, 0], cohort_size, params, table).values
  noise = modular_sum.unwrap(values, params.bits).numpy()
  statistics_lib.check_variance(noise, share, 1 / share)
  statistics_lib.check_mean(noise, 0, share)
  # It was the table: the Poisson law gives other integers from the same key.
  poisson = distributed_sum.encode(
      tf.zeros([D]), tf.constant(KEY), [0, 0], cohort_size, params).values
  assert np.mean(values.numpy() != poisson.numpy()) > 0.9


def test_draws_of_one_share_are_independent():
  # Twice the same draw would have twice the variance of two draws.
  params = _params()
  table = share_tables.noise_table(params, 2)
  sent = distributed_sum.encode(
      tf.zeros([D]), tf.constant(KEY), [0, 0], 2, params, table).values
  noise = modular_sum.unwrap(sent, params.bits).numpy()
  first, second = noise[::2].astype(float), noise[1::2].astype(float)
  assert abs(np.corrcoef(first, second)[0, 1]) < 6 / len(first)**0.5
  assert abs(np.var(noise) / share_tables.share_variance(params, 2) - 1) < 0.05


def test_discrete_gaussian_shares_are_never_sums_of_draws():
  params = _params(mechanism='discrete_gaussian')
  assert not share_tables.tables(params).fits(
      share_tables.share_variance(params, 2) / 0.75)
  assert share_tables.table_log_size(params) is None
