"""Tests of aggregators.normal."""

import numpy as np
import pytest
from scipy import stats
import tensorflow as tf

from aggregators import normal
from tests import statistics_lib

KEY = np.array([19, 58], np.int64)


def test_numbers_are_normal():
  drawn = normal.sample(KEY, [300_001]).numpy()
  assert drawn.dtype == np.float64 and drawn.shape == (300_001,)
  statistics_lib.check_mean(drawn, 0, 1.0)
  statistics_lib.check_variance(drawn, 1.0)
  edges = np.linspace(-4, 4, 81)
  counts, _ = np.histogram(drawn, [-np.inf, *edges, np.inf])
  probabilities = np.diff(stats.norm.cdf([-np.inf, *edges, np.inf]))
  assert statistics_lib.fits(counts, probabilities)
  # Not that of slightly other numbers.
  assert not statistics_lib.fits(
      counts, np.diff(stats.norm.cdf([-np.inf, *(edges / 1.03), np.inf])))


def test_the_two_numbers_of_a_pair_are_independent():
  drawn = normal.sample(KEY, [2, 200_000]).numpy()
  for one, other in ((drawn[0], drawn[1]), (drawn[0]**2, drawn[1]**2)):
    correlation = np.corrcoef(one, other)[0, 1]
    assert abs(correlation) < statistics_lib.Z / np.sqrt(200_000)
  radii = np.sum(drawn**2, axis=0)
  assert stats.kstest(radii, 'chi2', args=(2,)).pvalue > 1e-4


@pytest.mark.parametrize('integer, radius', [
    (0, normal.REACH), (-2**63, normal.REACH), (1, np.sqrt(2 * 62 * np.log(2))),
    (2**63 - 1, 0.0), (2**62, np.sqrt(2 * np.log(2))), (-1, 0.0)])
def test_an_integer_is_a_radius_and_none_is_cut_off(integer, radius):
  angles = np.array([0, 2**61, 2**62, -2**63], np.int64)
  numbers = normal.from_random_bits(
      tf.fill([4], tf.constant(integer, tf.int64)), tf.constant(angles)).numpy()
  expected = radius * np.concatenate([
      np.cos(angles * (np.pi / 2**63)), np.sin(angles * (np.pi / 2**63))])
  np.testing.assert_allclose(numbers, expected, atol=1e-12)


def test_tails_go_beyond_where_tensorflow_cuts_them_off():
  # Integers that are below 2^-25: one pair in 34 million has such a radius.
  integers = np.random.default_rng(1).integers(0, 2**38, 100_000)
  angles = np.random.default_rng(2).integers(-2**63, 2**63, 100_000)
  numbers = normal.from_random_bits(tf.constant(integers), tf.constant(angles)).numpy()
  radii = np.hypot(*np.split(numbers, 2))
  assert radii.min() > 5.88 and radii.max() > 6.9
  # Given that it is beyond r, its square is r^2 + an exponential of mean 2.
  beyond = radii**2 - 2 * 25 * np.log(2)
  assert stats.kstest(beyond, 'expon', args=(0, 2)).pvalue > 1e-4
  assert len(np.unique(radii)) > 99_990  # And no radius is one of many.
