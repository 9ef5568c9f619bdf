"""Samplers and tables of integer noise, against the exact distributions."""

from fractions import Fraction as F
import functools

import mpmath
import numpy as np
import pytest
from scipy import stats
import tensorflow as tf

from aggregators import alias_draw, alias_table, discrete_gaussian, skellam
from tests import statistics_lib

KEY = np.array([2025, 11], np.int64)
COUNT = 200_000
# Below one grid unit, around it, in and beyond tables, and the largest.
VARIANCES = [0.05, 0.25, 0.3, 0.99, 1.0, 1.3, 5.0, 21.0, 625.0, 1e4, 1e8, 1e12, 2.0**52]
IN_TABLES = [v for v in VARIANCES if v <= 1e4]
# The last ones are sums of several draws, up to as many as there may be.
OF_SKELLAM = [0.01, 0.3, 5.0, 19.0, 21.0, 625.0, 1e4, 1e6, 1e9, 1e10, 2e10, 5e10,
              1e12, skellam.MAX_VARIANCE]


@functools.cache
def _sampler(count):
  return tf.function(
      lambda key, variance: discrete_gaussian.sample(key, [count], variance),
      autograph=False)


@functools.cache
def _gaussian(variance, count=COUNT, number=0):
  return _sampler(count)(
      tf.constant(KEY + number), tf.constant(variance, tf.float64)).numpy()


@functools.cache
def _by_table(variance, count=COUNT, number=0):
  table = alias_table.DISCRETE_GAUSSIAN.build(variance)
  return alias_draw.sample(tf.constant(KEY + number), [count], table).numpy()


@functools.cache
def _skellam(variance, count=None, number=0):
  if count is None:  # Sums of many draws take long.
    count = COUNT if variance <= 5e10 else 20_000 if variance <= 2e12 else 5000
  return skellam.sample(tf.constant(KEY + number), [count], variance).numpy()


SAMPLES = ([pytest.param(_gaussian, v, id=f'sampler-{v:g}') for v in VARIANCES] +
           [pytest.param(_by_table, v, id=f'table-{v:g}') for v in IN_TABLES] +
           [pytest.param(_skellam, v, id=f'skellam-{v:g}') for v in OF_SKELLAM])


def _pmf(draw, variance):
  """Values and their probabilities, in float64."""
  reach = int(13 * variance**0.5) + 6
  k = np.arange(-reach, reach + 1)
  weights = np.exp(-k.astype(np.float64)**2 / (2 * variance))
  if draw is _skellam:
    weights = stats.skellam.pmf(k, variance / 2, variance / 2)
  return k, weights / weights.sum()


def _moment(draw, variance, order):
  if variance > 1e4:  # The Gaussian's, up to 1 / v.
    return variance**(order // 2) * [1, 1, 3][order // 2]
  k, p = _pmf(draw, variance)
  return float(np.sum(k.astype(np.float64)**order * p))


@pytest.mark.parametrize('draw, variance', SAMPLES)
def test_mean_and_variance(draw, variance):
  samples = draw(variance)
  assert samples.dtype == np.int64
  second, fourth = _moment(draw, variance, 2), _moment(draw, variance, 4)
  statistics_lib.check_mean(samples, 0, second)
  if second > 0.005:  # Below, all but a few samples are 0.
    statistics_lib.check_variance(samples, second, fourth / second**2 - 3)


def _counts_and_probabilities(draw, samples, variance):
  if variance <= 2e4:
    k, p = _pmf(draw, variance)
    return np.bincount(np.clip(samples, k[0], k[-1]) - k[0], minlength=k.size), p
  edges = np.concatenate([[-np.inf], np.linspace(-4, 4, 101), [np.inf]])
  counts, _ = np.histogram(samples / variance**0.5, np.nan_to_num(edges))
  return counts, np.diff(stats.norm.cdf(edges))


@pytest.mark.parametrize('draw, variance', SAMPLES)
def test_frequencies_are_those_of_the_distribution_and_of_no_other(draw, variance):
  samples = draw(variance)
  assert statistics_lib.fits(*_counts_and_probabilities(draw, samples, variance))
  if _moment(draw, variance, 2) > 0.005:
    for wrong in (2 / 3, 3 / 2):
      assert not statistics_lib.fits(
          *_counts_and_probabilities(draw, samples, wrong * variance))


@pytest.mark.parametrize('draw', [_gaussian, _skellam])
def test_coordinates_are_independent(draw):
  samples = draw(100.0).astype(np.float64)
  for lag in (1, 2, 3, 4, 256):
    statistics_lib.check_mean(samples[lag:] * samples[:-lag], 0, 100.0**2)


@pytest.mark.parametrize('draw, sample', [
    (_gaussian, discrete_gaussian.sample), (_skellam, skellam.sample)])
def test_samples_follow_from_the_key(draw, sample):
  np.testing.assert_array_equal(draw(50.0, 999), sample(tf.constant(KEY), [999], 50.0))
  assert np.mean(draw(50.0, 999) != draw(50.0, 999, 1)) > 0.8


@pytest.mark.parametrize('draw, threshold', [
    (_gaussian, 11), (_gaussian, 13), (_by_table, 11), (_by_table, 13), (_skellam, 12)])
def test_tails_have_the_mass_of_the_distribution(draw, threshold):
  samples = draw(9.0, 2_000_000)
  k, p = _pmf(draw, 9.0)
  expected = p[np.abs(k) >= threshold].sum() * samples.size
  count, error = np.sum(np.abs(samples) >= threshold), expected**0.5
  assert expected > 10
  assert abs(count - expected) <= statistics_lib.Z * error + 1
  if draw is _skellam:  # Heavier than Gaussian tails, as they should be.
    k, p = _pmf(_gaussian, 9.0)
    gaussian = p[np.abs(k) >= threshold].sum() * samples.size
    assert abs(count - gaussian) > statistics_lib.Z * error


def test_skellam_shares_add_up_to_the_distribution_of_the_whole():
  total = sum(_skellam(3.0, 100_000, i) for i in range(10))
  assert statistics_lib.fits(*_counts_and_probabilities(_skellam, total, 30.0))


@pytest.mark.parametrize('sampler, error', [
    (skellam, ValueError), (discrete_gaussian, tf.errors.InvalidArgumentError)])
@pytest.mark.parametrize('excess', [-1.0, 1.02, float('inf'), float('nan')])
def test_impossible_variances_fail_instead_of_giving_no_noise(sampler, error, excess):
  variance = excess * sampler.MAX_VARIANCE
  with pytest.raises(error, match='variance'):
    sampler.sample(tf.constant(KEY), [2], variance)
  shown = f'{variance:.3g}'.replace('+', '\\+')
  if not excess < 0:
    with pytest.raises(ValueError, match=f'the noise .* {shown} .* bits=29'):
      sampler.check_variance(variance, 29, 'the noise')
  sampler.check_variance(sampler.MAX_VARIANCE, 29, 'the noise')


@pytest.mark.parametrize('numerator, denominator', [
    (0, 5), (1, 5), (5, 5), (1, 2), (3 * 2**50, 2**52), (1, 2**53)])
def test_bernoulli_of_an_exponential(numerator, denominator):
  count = 400_000
  outcomes = discrete_gaussian._bernoulli_exp(  # pylint: disable=protected-access
      tf.constant(KEY), tf.fill([count], tf.constant(numerator, tf.int64)),
      tf.constant(denominator, tf.int64)).numpy()
  p = np.exp(-numerator / denominator)
  statistics_lib.check_mean(outcomes, p, max(p * (1 - p), 1e-12))
  if 0.1 < p < 0.9:
    with pytest.raises(AssertionError):
      statistics_lib.check_mean(outcomes, p + 0.01, p * (1 - p))


@pytest.mark.parametrize('bound', [1, 2, 3, 7, 1000])
def test_uniform_integers_below_a_bound(bound):
  uniform = discrete_gaussian._below(  # pylint: disable=protected-access
      tf.constant(KEY), 100_000, tf.constant(bound, tf.int64)).numpy()
  assert uniform.min() >= 0 and uniform.max() < bound
  if bound > 1:
    assert statistics_lib.fits(
        np.bincount(uniform, minlength=bound), np.full(bound, 1 / bound))


def test_uniform_integers_are_redrawn_where_some_would_be_favoured():
  bound = 2**53 - 111  # One integer in 600 is beyond its largest multiple.
  uniform = discrete_gaussian._below(  # pylint: disable=protected-access
      tf.constant(KEY), 400_000, tf.constant(bound, tf.int64)).numpy()
  counts = np.bincount(uniform // (bound // 64 + 1), minlength=64)
  assert statistics_lib.fits(counts, np.full(64, 1 / 64))


@pytest.mark.parametrize('variance', [0.01, 0.25, 1.0, F(10, 3), 5000.3])
def test_tables_are_exact_to_the_total_variation_that_they_state(variance):
  with mpmath.workdps(80):
    exact = statistics_lib.table_probabilities(
        alias_table.DISCRETE_GAUSSIAN.build(variance))
    weights = [mpmath.exp(-mpmath.mpf(k)**2 / (2 * mpmath.mpmathify(variance)))
               for k in range(2 * len(exact))]
    total = weights[0] + 2 * mpmath.fsum(weights[1:])
    assert 0 < mpmath.fsum(max(0, mpmath.mpmathify(p) - weights[abs(k)] / total)
                           for k, p in enumerate(exact, start=-(len(exact) // 2))) < (
                               alias_table.TOTAL_VARIATION)


@pytest.mark.parametrize('variance', [0.7, 3.7, F(10, 3), 30.0])
def test_skellam_tables_are_exact_too(variance):
  table = alias_table.SKELLAM.build(variance)
  assert 0 < statistics_lib.table_distance(table, variance) < 2.0**-86


def test_tables_refuse_what_does_not_fit():
  for bad in (0.0, -1.0, float('nan'), 1e11):
    assert not alias_table.DISCRETE_GAUSSIAN.fits(bad)
    with pytest.raises(ValueError, match='variance'):
      alias_table.DISCRETE_GAUSSIAN.build(bad)
  assert alias_table.DISCRETE_GAUSSIAN.build(5.0, 9).packed.size == 2**9
  with pytest.raises(ValueError, match='weights'):
    alias_table.build([1, 1, 1], alias_table.MAX_LOG_SIZE + 1)
