"""Tests of aggregators.local_dp: outputs follow the exact distributions."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from scipy import stats
import tensorflow as tf

from aggregators import local_dp
from tests import statistics_lib

KEY = np.array([2022, 3], np.int64)
COUNT = 200_000


def draw(mechanism, row, count=COUNT, key=KEY):
  """float64 [count, dimension]: outputs for one row of the input."""
  values = np.tile(np.asarray(row, np.float32), (count, 1))
  perturb = tf.function(mechanism.perturb, autograph=False)
  return perturb(tf.constant(values), tf.constant(key)).numpy().astype(np.float64)


ONE = [local_dp.Piecewise(epsilon=0.5), local_dp.Piecewise(epsilon=5.0),
       local_dp.Duchi(epsilon=1.0), local_dp.Laplace(epsilon=1.0),
       local_dp.Gaussian(noise_multiplier=0.5)]
MANY = [local_dp.Piecewise(epsilon=1.0, dimension=4),
        local_dp.Piecewise(epsilon=5.0, dimension=10),
        local_dp.Piecewise(epsilon=30.0, dimension=3),
        local_dp.Duchi(epsilon=2.0, dimension=4),
        local_dp.Duchi(epsilon=2.0, dimension=5),
        local_dp.Laplace(epsilon=5.0, dimension=10),
        local_dp.Gaussian(noise_multiplier=0.5, dimension=10)]
ANY = pytest.mark.parametrize(
    'mechanism', ONE + MANY,
    ids=lambda m: f'{type(m).__name__}_{m.dimension}')


@ANY
def test_outputs_are_unbiased_and_have_the_stated_variance(mechanism):
  row = np.linspace(-1, 1, mechanism.dimension) if mechanism.dimension > 1 else [0.3]
  drawn = draw(mechanism, row)
  for column, z in zip(drawn.T, row):
    variance = mechanism.variance(float(np.float32(z)))
    assert variance <= mechanism.worst_variance * (1 + 1e-9)
    statistics_lib.check_mean(column, z, variance)
    centred = column - z
    # Its own fourth moment says how far the mean square may be off.
    kurtosis = np.mean(centred**4) / variance**2 - 3
    statistics_lib.check_variance(centred, variance, max(0.0, kurtosis))


@pytest.mark.parametrize('epsilon', [0.5, 5.0])
@pytest.mark.parametrize('z', [-1.0, 0.0, 0.2, 1.0])
def test_piecewise_outputs_follow_the_exact_distribution(epsilon, z):
  mechanism = local_dp.Piecewise(epsilon=epsilon)
  dist = mechanism.distribution
  outputs = np.rint(draw(mechanism, [z])[:, 0] / dist.unit + dist.centre).astype(int)
  assert outputs.min() >= 0 and outputs.max() < dist.outputs
  counts = np.bincount(outputs, minlength=dist.outputs)
  position = (np.float64(np.float32(z)) + 1) / 2 * dist.starts
  low = math.floor(position)
  expected = dist.probabilities(low)
  if position > low:
    expected = (low + 1 - position) * expected + (
        position - low) * dist.probabilities(low + 1)
  assert statistics_lib.fits(counts, expected)
  # The same window, as likely as at another epsilon.
  odds = math.exp(epsilon * 1.1) * dist.window / dist.starts
  other = np.full(dist.outputs, 1 / (1 + odds) / dist.starts)
  other[low:low + dist.window] = odds / (1 + odds) / dist.window
  # A few wide bins see what is spread too thin over thousands of outputs.
  counts, expected, other = (
      in_wide_bins(x, dist, low) for x in (counts, expected, other))
  assert statistics_lib.fits(counts, expected)
  assert not statistics_lib.fits(counts, other)


def in_wide_bins(values, dist, start):
  """Sums over some bins inside the window of `start` and some outside."""
  parts = np.split(np.asarray(values, float), [start, start + dist.window])
  return np.array([
      chunk.sum() for part in parts if part.size
      for chunk in np.array_split(part, min(8, part.size))])


def test_an_input_at_the_end_has_nothing_beyond_its_window():
  # Where published code put half of what is outside the window.
  mechanism = local_dp.Piecewise(epsilon=1.0)
  dist = mechanism.distribution
  outputs = np.rint(draw(mechanism, [1.0])[:, 0] / dist.unit + dist.centre).astype(int)
  inside = np.mean(outputs >= dist.starts)
  assert inside == pytest.approx(dist.threshold / 2**62, abs=0.01)
  # One of the last outputs is not likelier than any other of the window.
  assert np.mean(outputs == dist.outputs - 1) < 3 * inside / dist.window


@pytest.mark.parametrize('dimension, epsilon, sampled', [
    (10, 1.0, 1), (10, 4.9, 1), (10, 5.0, 2), (10, 8.0, 3), (3, 30.0, 3), (1, 9.0, 1)])
def test_piecewise_sends_as_many_coordinates_as_the_rule_says(
    dimension, epsilon, sampled):
  mechanism = local_dp.Piecewise(epsilon=epsilon, dimension=dimension)
  assert mechanism.sampled == sampled
  drawn = draw(mechanism, np.zeros(dimension), 5000)
  # A coordinate that is sent may be 0 too, where the number of outputs is odd.
  assert np.max(np.sum(drawn != 0, axis=1)) == sampled
  assert np.mean(np.sum(drawn != 0, axis=1) == sampled) > 0.99


@pytest.mark.parametrize('dimension', [1, 3, 10])
@pytest.mark.parametrize('epsilon', [0.5, 1.0, 5.0, 7.5, 8.0, 12.3, 30.0])
def test_all_coordinates_that_are_sent_keep_the_budget_of_the_row(
    dimension, epsilon):
  # Which are sent is chosen by chance alone, so the ratios of those that are multiply.
  mechanism = local_dp.Piecewise(epsilon=epsilon, dimension=dimension)
  worst = mechanism.distribution.worst_ratio**mechanism.sampled
  with mpmath.workdps(60):
    ratio = mpmath.mpf(worst.numerator) / worst.denominator
    assert mpmath.exp(epsilon) * (1 - 1e-3) < ratio <= mpmath.exp(epsilon)


def test_every_set_of_coordinates_is_equally_likely_and_none_comes_twice():
  mechanism = local_dp.Piecewise(epsilon=5.0, dimension=5)
  drawn = draw(mechanism, np.full(5, 0.9))
  sets = {pair: 0 for pair in itertools.combinations(range(5), 2)}
  for row in drawn[np.sum(drawn != 0, axis=1) == 2][:50_000] != 0:
    sets[tuple(np.flatnonzero(row))] += 1
  assert statistics_lib.fits(list(sets.values()), np.full(10, 0.1))


def test_which_coordinates_are_sent_does_not_depend_on_the_input():
  mechanism = local_dp.Piecewise(epsilon=5.0, dimension=10)
  one, other = (draw(mechanism, row, 2000) for row in (np.ones(10), -np.ones(10)))
  np.testing.assert_array_equal(one != 0, other != 0)


@pytest.mark.parametrize('dimension', [3, 4])
def test_duchi_outputs_follow_the_exact_distribution(dimension):
  mechanism = local_dp.Duchi(epsilon=1.0, dimension=dimension)
  signs = np.array([1, -1, 1, 1][:dimension])
  drawn = draw(mechanism, signs)
  np.testing.assert_allclose(np.abs(drawn), mechanism.bound, rtol=1e-6)
  outputs = np.array(list(itertools.product((-1, 1), repeat=dimension)))
  codes = ((drawn > 0) * 2**np.arange(dimension - 1, -1, -1)).sum(axis=1)
  counts = np.bincount(codes, minlength=2**dimension)
  expected = [float(mechanism.probability(int(t @ signs))) for t in outputs]
  assert statistics_lib.fits(counts, expected)
  assert not statistics_lib.fits(counts, expected[::-1])


def test_laplace_noise_is_on_the_grid_of_its_distribution_and_clipped():
  mechanism = local_dp.Laplace(epsilon=4.0, dimension=2)
  drawn = draw(mechanism, [1.0, -1.0])[:, 0] * mechanism.steps
  np.testing.assert_array_equal(drawn, np.rint(drawn))
  assert np.abs(drawn).max() <= mechanism.limit
  edges = np.quantile(drawn, np.linspace(0, 1, 41)[1:-1])
  edges = np.unique(np.rint(edges)) + 0.5
  counts = np.histogram(drawn, [-np.inf, *edges, np.inf])[0]
  scale = mechanism.scale * mechanism.steps
  expected = np.diff(stats.laplace.cdf(
      [-np.inf, *edges, np.inf], loc=mechanism.steps, scale=scale))
  assert statistics_lib.fits(counts, expected)


def test_gaussian_noise_follows_its_distribution():
  mechanism = local_dp.Gaussian(noise_multiplier=0.5, dimension=2)
  drawn = draw(mechanism, [0.5, -0.5])[:, 0]
  stddev = 0.5 * 2 * math.sqrt(2)
  edges = 0.5 + stddev * np.linspace(-3, 3, 31) + 0.5 / mechanism.steps
  edges = (np.floor(edges * mechanism.steps) + 0.5) / mechanism.steps
  counts = np.histogram(drawn, [-np.inf, *edges, np.inf])[0]
  expected = np.diff(stats.norm.cdf([-np.inf, *edges, np.inf], 0.5, stddev))
  assert statistics_lib.fits(counts, expected)


@ANY
def test_rows_and_keys_differ_and_the_same_key_repeats(mechanism):
  row = np.full(mechanism.dimension, 0.25)
  first, again = draw(mechanism, row, 50), draw(mechanism, row, 50)
  other = draw(mechanism, row, 50, KEY + 1)
  np.testing.assert_array_equal(first, again)
  assert np.mean(first != other) > 0.05
  assert len(np.unique(first, axis=0)) > 1


@ANY
@pytest.mark.parametrize('bad, stands_for', [
    (7.0, 1.0), (-7.0, -1.0), (math.inf, 1.0), (-math.inf, -1.0), (math.nan, 0.0)])
def test_coordinates_outside_are_clipped_and_nan_counts_as_zero(
    mechanism, bad, stands_for):
  row = np.zeros(mechanism.dimension)
  row[0] = bad
  expected = np.zeros(mechanism.dimension)
  expected[0] = stands_for
  np.testing.assert_array_equal(
      draw(mechanism, row, 100), draw(mechanism, expected, 100))


@pytest.mark.parametrize('shape', [[10], [3, 9], [2, 3, 10]])
def test_values_of_another_shape_are_named(shape):
  mechanism = local_dp.Duchi(epsilon=1.0, dimension=10)
  with pytest.raises(ValueError, match='values must have the shape'):
    mechanism.perturb(tf.zeros(shape), tf.constant(KEY))


def test_probabilities_are_scaled_by_constants_alone():
  # Of rows of different ranges, so that a scaling by the range would show.
  probabilities = np.array([[0.2, 0.5, 0.3], [0.0, 1.0, 0.0], [1/3, 1/3, 1/3]])
  scaled = local_dp.scaled_probabilities(tf.constant(probabilities)).numpy()
  np.testing.assert_allclose(scaled, 2 * probabilities - 1)
  np.testing.assert_allclose(
      local_dp.unscaled_probabilities(scaled), probabilities)


@pytest.mark.parametrize('arguments, message', [
    (dict(name='coin', epsilon=1.0), 'mechanism must be one of'),
    (dict(name='duchi'), 'needs epsilon'),
    (dict(name='gaussian', epsilon=1.0), 'needs noise_multiplier'),
    (dict(name='laplace', epsilon=1.0, noise_multiplier=1.0), 'nothing else'),
    (dict(name='piecewise', epsilon=math.nan), 'epsilon .*nan'),
    (dict(name='piecewise', epsilon=1.0, dimension=0), 'dimension .*0'),
    (dict(name='piecewise', epsilon=500.0, dimension=3), 'epsilon'),
    (dict(name='duchi', epsilon=-1.0), 'epsilon .*-1')])
def test_wrong_requests_are_named(arguments, message):
  with pytest.raises(ValueError, match=message):
    local_dp.build(**{'dimension': 2, **arguments})
