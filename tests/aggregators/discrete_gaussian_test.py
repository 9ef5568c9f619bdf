"""Tests of the discrete Gaussian sampler and its tables against the exact law."""

import functools

import mpmath
import numpy as np
import pytest
from scipy import stats
import tensorflow as tf

from aggregators import alias_draw
from aggregators import alias_table
from aggregators import discrete_gaussian
from aggregators import discrete_gaussian_table
from aggregators import keys
from aggregators import skellam_table
from tests import statistics_lib

KEY = np.array([2025, 11], np.int64)
COUNT = 200_000
# Below one grid unit, around it, in and beyond tables, and the largest.
VARIANCES = [0.05, 0.25, 0.3, 0.99, 1.0, 1.3, 5.0, 21.0, 625.0, 1e4, 1e8, 1e12,
             2.0**52]
IN_TABLES = [v for v in VARIANCES if v <= 1e4]


@functools.cache
def _sampler(count):
  return tf.function(
      lambda key, variance: discrete_gaussian.sample(key, [count], variance))


@functools.cache
def _by_sampler(variance, count=COUNT, number=0):
  return _sampler(count)(
      tf.constant(KEY + number), tf.constant(variance, tf.float64)).numpy()


@functools.cache
def _by_table(variance, count=COUNT, number=0):
  table = discrete_gaussian_table.build(variance)
  key = tf.constant(KEY + number)
  words = keys.random_bits(keys.derive(key, 0), [2, count], tf.int32)
  high = tf.bitwise.bitwise_and(words[1], 255)
  return alias_draw.draw(
      words[0], high, keys.derive(key, 1), tf.constant(table.packed),
      tf.constant(table.tie)).numpy().astype(np.int64)


DRAWS = ([pytest.param(_by_sampler, v, id=f'sampler-{v:g}') for v in VARIANCES] +
         [pytest.param(_by_table, v, id=f'table-{v:g}') for v in IN_TABLES])


def _pmf(variance):
  """Values and their probabilities, summed in float64."""
  reach = int(13 * variance**0.5) + 6
  k = np.arange(-reach, reach + 1)
  weights = np.exp(-k.astype(np.float64)**2 / (2 * variance))
  return k, weights / weights.sum()


def _moment(variance, order):
  if variance > 1e5:  # Equal to the Gaussian's but for exp(-2 pi^2 v).
    return variance**(order // 2) * [1, 1, 3, 15, 105][order // 2]
  k, p = _pmf(variance)
  return float(np.sum(k.astype(np.float64)**order * p))


@pytest.mark.parametrize('draw, variance', DRAWS)
def test_mean_and_variance(draw, variance):
  samples = draw(variance)
  assert samples.dtype == np.int64 and samples.shape == (COUNT,)
  second, fourth = _moment(variance, 2), _moment(variance, 4)
  statistics_lib.check_mean(samples, 0, second)
  if variance >= 0.25:  # Below, all but a few draws are 0.
    statistics_lib.check_variance(samples, second, fourth / second**2 - 3)


@pytest.mark.parametrize('draw, variance', DRAWS)
def test_fourth_moment(draw, variance):
  samples = draw(variance).astype(np.float64) / variance**0.5
  fourth = _moment(variance, 4) / variance**2
  eighth = _moment(variance, 8) / variance**4
  statistics_lib.check_mean(samples**4, fourth, eighth - fourth**2)


def _counts_and_probabilities(samples, variance):
  if variance <= 1e5:
    k, p = _pmf(variance)
    kept = np.clip(samples, k[0], k[-1]) - k[0]
    return np.bincount(kept, minlength=k.size), p
  edges = np.concatenate([[-np.inf], np.linspace(-4, 4, 101), [np.inf]])
  counts, _ = np.histogram(samples / variance**0.5, np.nan_to_num(edges))
  return counts, np.diff(stats.norm.cdf(edges))


@pytest.mark.parametrize('draw, variance', DRAWS)
def test_frequencies_are_those_of_the_law_and_of_no_other(draw, variance):
  samples = draw(variance)
  assert statistics_lib.fits(*_counts_and_probabilities(samples, variance))
  if variance >= 0.25:
    for wrong in (2 / 3, 3 / 2):
      assert not statistics_lib.fits(
          *_counts_and_probabilities(samples, wrong * variance))


def test_half_a_grid_unit_is_told_from_a_rounded_gaussian():
  samples = _by_sampler(0.25)
  k, _ = _pmf(0.25)
  rounded = stats.norm.cdf((k + 0.5) / 0.5) - stats.norm.cdf((k - 0.5) / 0.5)
  counts = np.bincount(samples - k[0], minlength=k.size)
  assert not statistics_lib.fits(counts, rounded)


@pytest.mark.parametrize('draw', [_by_sampler, _by_table])
def test_tails_beyond_four_standard_deviations(draw):
  samples = draw(9.0, 2_000_000)
  k, p = _pmf(9.0)
  for threshold in (11, 12, 13):
    expected = p[np.abs(k) >= threshold].sum() * samples.size
    found = np.sum(np.abs(samples) >= threshold)
    assert abs(found - expected) <= statistics_lib.Z * expected**0.5 + 1
  assert expected > 10


def test_a_standard_deviation_between_grid_units_is_not_rounded_to_one():
  # 2^-23 of itself is all that is added: 1.5 is not taken as 2.
  samples = _by_sampler(2.25)
  assert not statistics_lib.fits(*_counts_and_probabilities(samples, 4.0))
  assert not statistics_lib.fits(*_counts_and_probabilities(samples, 2.0))


def test_coordinates_are_independent():
  samples = _by_sampler(100.0).astype(np.float64)
  for lag in (1, 2, 3, 4, 256):
    statistics_lib.check_mean(samples[lag:] * samples[:-lag], 0, 100.0**2)


def test_draws_follow_from_the_key():
  again = discrete_gaussian.sample(tf.constant(KEY), [999], 50.0)
  np.testing.assert_array_equal(_by_sampler(50.0, 999), again)
  other = _by_sampler(50.0, 999, 1)
  assert np.mean(_by_sampler(50.0, 999) != other) > 0.8


def test_shapes_and_no_variance():
  found = discrete_gaussian.sample(tf.constant(KEY), [3, 5], 7.0)
  assert found.shape == [3, 5] and found.dtype == tf.int64
  np.testing.assert_array_equal(
      discrete_gaussian.sample(tf.constant(KEY), [1000], 0.0), np.zeros(1000))


@pytest.mark.parametrize('variance', [-1.0, 2.0**53, float('inf'), float('nan')])
def test_impossible_variances_fail_instead_of_giving_no_noise(variance):
  with pytest.raises(tf.errors.InvalidArgumentError, match='variance'):
    discrete_gaussian.sample(
        tf.constant(KEY), [2], tf.constant(variance, tf.float64)).numpy()


@pytest.mark.parametrize('variance', [2.0**53, float('inf'), float('nan')])
def test_variances_beyond_the_sampler_are_refused_by_bits_and_variance(variance):
  discrete_gaussian.check_variance(2.0**52, 29, 'the noise')
  with pytest.raises(ValueError, match='the noise .* bits=29'):
    discrete_gaussian.check_variance(variance, 29, 'the noise')


@pytest.mark.parametrize('numerator, denominator', [
    (0, 5), (1, 5), (5, 5), (1, 2), (3 * 2**50, 2**52), (1, 2**53)])
def test_bernoulli_of_an_exponential(numerator, denominator):
  count = 400_000
  found = discrete_gaussian._bernoulli_exp(  # pylint: disable=protected-access
      tf.constant(KEY), tf.fill([count], tf.constant(numerator, tf.int64)),
      tf.constant(denominator, tf.int64)).numpy()
  p = np.exp(-numerator / denominator)
  statistics_lib.check_mean(found, p, max(p * (1 - p), 1e-12))
  if 0.1 < p < 0.9:
    with pytest.raises(AssertionError):
      statistics_lib.check_mean(found, p + 0.01, p * (1 - p))


@pytest.mark.parametrize('bound', [1, 2, 3, 7, 1000])
def test_uniform_integers_below_a_bound(bound):
  found = discrete_gaussian._below(  # pylint: disable=protected-access
      tf.constant(KEY), 100_000, tf.constant(bound, tf.int64)).numpy()
  assert found.min() >= 0 and found.max() < bound
  if bound > 1:
    assert statistics_lib.fits(
        np.bincount(found, minlength=bound), np.full(bound, 1 / bound))


def test_uniform_integers_are_redrawn_where_the_word_would_favour_some():
  bound = 2**53 - 111  # One word in 600 is beyond its largest multiple.
  found = discrete_gaussian._below(  # pylint: disable=protected-access
      tf.constant(KEY), 400_000, tf.constant(bound, tf.int64)).numpy()
  counts = np.bincount(found // (bound // 64 + 1), minlength=64)
  assert statistics_lib.fits(counts, np.full(64, 1 / 64))


def _distance(table, probability):
  """Total variation distance of a table from a distribution, by mpmath."""
  exact = statistics_lib.table_probabilities(table)
  assert sum(exact) == 1
  differences = [
      abs(mpmath.mpf(p.numerator) / p.denominator - probability(abs(k)))
      for k, p in enumerate(exact, start=-(len(exact) // 2))]
  return mpmath.fsum(differences) / 2


@pytest.mark.parametrize('variance', [0.01, 0.25, 1.0, 2.7, 5000.3])
def test_tables_are_exact_to_the_total_variation_that_they_state(variance):
  with mpmath.workdps(80):
    table = discrete_gaussian_table.build(variance)
    reach = 3 * discrete_gaussian_table.reach(variance)
    weights = [mpmath.exp(-mpmath.mpf(k)**2 / (2 * mpmath.mpf(variance)))
               for k in range(max(reach, table.packed.size))]
    total = weights[0] + 2 * mpmath.fsum(weights[1:])
    assert _distance(table, lambda k: weights[k] / total) < (
        discrete_gaussian_table.TOTAL_VARIATION)


@pytest.mark.parametrize('variance', [0.7, 30.0])
def test_skellam_tables_are_exact_too(variance):
  with mpmath.workdps(80):
    distance = _distance(
        skellam_table.build(variance),
        lambda k: mpmath.exp(-variance) * mpmath.besseli(k, variance))
    assert distance < skellam_table.TOTAL_VARIATION


def test_tables_refuse_what_does_not_fit():
  for bad in (0.0, -1.0, float('nan'), 1e11):
    assert not discrete_gaussian_table.fits(bad)
    with pytest.raises(ValueError, match='variance'):
      discrete_gaussian_table.build(bad)
  assert discrete_gaussian_table.build(5.0, 9).log_size == 9
  with pytest.raises(ValueError, match='weights'):
    alias_table.symmetric(1.0, [1, 1, 1], 2)
