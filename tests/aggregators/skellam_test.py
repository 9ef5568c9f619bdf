"""Tests of aggregators.skellam against the exact law."""

import numpy as np
import pytest
from scipy import stats
import tensorflow as tf

from aggregators import skellam
from tests import statistics_lib

KEY = np.array([2024, 7], np.int64)
# The last ones are sums of several draws, up to as many as there may be.
VARIANCES = [0.01, 0.3, 5.0, 19.0, 21.0, 625.0, 1e4, 1e6, 1e9, 1e10, 2e10, 5e10,
             1e12, skellam.MAX_VARIANCE]


def _draw(variance, count=None, key=KEY):
  if count is None:
    count = 200_000 if variance <= 5e10 else 20_000
    count = 5000 if variance > 2e12 else count
  return skellam.sample(tf.constant(key), [count], variance).numpy()


@pytest.mark.parametrize('variance', VARIANCES)
def test_variance_and_mean(variance):
  samples = _draw(variance)
  assert samples.dtype == np.int64
  statistics_lib.check_variance(samples, variance, excess_kurtosis=1 / variance)
  statistics_lib.check_mean(samples, 0, variance)


def _eighth_moment(v):
  # All even cumulants of the law are v.
  return v + 28 * v**2 + 35 * v**2 + 210 * v**3 + 105 * v**4


@pytest.mark.parametrize('variance', [0.3, 5.0, 21.0, 625.0, 1e6, 2e10, 5e10])
def test_fourth_moment(variance):
  samples = _draw(variance).astype(np.float64)
  fourth = 3 * variance**2 + variance
  statistics_lib.check_mean(
      samples**4, fourth, _eighth_moment(variance) - fourth**2)


def _counts_and_probabilities(samples, variance, hypothesis):
  """Counts of samples drawn at `variance`, probabilities at `hypothesis`."""
  law = stats.skellam(hypothesis / 2, hypothesis / 2)
  reach = int(np.ceil(6 * hypothesis**0.5)) + 8
  if variance <= 1e4:
    k = np.arange(-reach, reach + 1)
    probabilities = law.pmf(k)
    # The ends hold the tails.
    probabilities[0] += law.cdf(-reach - 1)
    probabilities[-1] += law.sf(reach)
    counts = np.bincount(np.clip(samples, -reach, reach) + reach,
                         minlength=k.size)
    return counts, probabilities
  # The law is Gaussian up to 1/variance; the outer bins are its tails.
  edges = np.concatenate([[-np.inf], np.linspace(-4, 4, 101), [np.inf]])
  counts, _ = np.histogram(samples / hypothesis**0.5, np.nan_to_num(edges))
  return counts, np.diff(stats.norm.cdf(edges))


@pytest.mark.parametrize('variance', VARIANCES)
def test_frequencies_are_those_of_the_law_and_of_no_other(variance):
  samples = _draw(variance)
  assert statistics_lib.fits(
      *_counts_and_probabilities(samples, variance, variance))
  for wrong in (2 / 3, 3 / 2):
    assert not statistics_lib.fits(
        *_counts_and_probabilities(samples, variance, wrong * variance))


def test_the_tails_are_heavier_than_gaussian_as_they_should_be():
  variance, threshold = 5.0, 9
  samples = _draw(variance, 2_000_000)
  count = np.sum(np.abs(samples) >= threshold)
  exact = 2 * stats.skellam.sf(threshold - 1, variance / 2, variance / 2)
  gaussian = 2 * stats.norm.sf((threshold - 0.5) / variance**0.5)
  error = (exact * samples.size)**0.5
  assert abs(count - exact * samples.size) <= statistics_lib.Z * error
  assert abs(count - gaussian * samples.size) > statistics_lib.Z * error


def test_shares_add_up_to_the_law_of_the_whole():
  variance, clients = 30.0, 10
  total = sum(
      _draw(variance / clients, 100_000, np.array([1, i])) for i in range(clients))
  assert statistics_lib.fits(
      *_counts_and_probabilities(total, variance, variance))


def test_coordinates_are_independent():
  samples = _draw(100.0).astype(np.float64)
  for lag in (1, 2, 3, 4, 256):
    statistics_lib.check_mean(samples[lag:] * samples[:-lag], 0, 100.0**2)


def test_draws_follow_from_the_key():
  np.testing.assert_array_equal(_draw(50.0, 1000), _draw(50.0, 1000))
  assert np.mean(_draw(50.0, 1000) != _draw(50.0, 1000, KEY + 1)) > 0.8


@pytest.mark.parametrize('max_variance', [None, 10.0, 1e12])
def test_no_variance_means_zeros(max_variance):
  samples = skellam.sample(
      tf.constant(KEY), [1000], 0.0, max_variance=max_variance)
  np.testing.assert_array_equal(samples, np.zeros(1000))


@pytest.mark.parametrize('max_variance', [100.0, 1.9e10, 2e11])
def test_the_largest_possible_variance_does_not_change_the_law(max_variance):
  sample = tf.function(lambda v: skellam.sample(
      tf.constant(KEY), [50_000], v, max_variance=max_variance))
  samples = sample(tf.constant(100.0, tf.float64)).numpy()
  statistics_lib.check_variance(samples, 100.0, 0.01)
  assert statistics_lib.fits(*_counts_and_probabilities(samples, 100.0, 100.0))


def test_a_python_variance_is_taken_in_float64():
  variance = 1e12 + 1.0  # A float32 would be 995 less.
  np.testing.assert_array_equal(
      _draw(variance, 1000),
      skellam.sample(tf.constant(KEY), [1000],
                     tf.constant(variance, tf.float64), max_variance=variance))


def test_variances_beyond_the_sampler_are_refused_by_bits_and_variance():
  skellam.check_variance(skellam.MAX_VARIANCE, 30, 'the noise')
  with pytest.raises(ValueError, match=r'the noise .* 1\.3e\+14 .* bits=29'):
    skellam.check_variance(1.3e14, 29, 'the noise')
  with pytest.raises(ValueError, match='inf .* bits=29'):
    skellam.check_variance(float('inf'), 29, 'the noise')
  with pytest.raises(ValueError, match='nan .* bits=29'):
    skellam.check_variance(float('nan'), 29, 'the noise')


@pytest.mark.parametrize('variance', [1.3e14, float('inf'), float('nan'), -1.0])
def test_sampling_of_impossible_variances_is_refused(variance):
  with pytest.raises(ValueError, match='variance'):
    skellam.sample(tf.constant(KEY), [2], variance)
