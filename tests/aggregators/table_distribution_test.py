"""Draws from tables of Skellam noise, and rounding with them, against the distribution.

From the smallest variances that are of use to those of the largest table. Seeds
are fixed; every test also shows what it would have rejected.
"""

import numpy as np
import pytest
from scipy import stats
import tensorflow as tf

from aggregators import alias_table, modular_sum, noisy_rounding
from tests import statistics_lib

# Tests run with the graph form and with the kernels.
pytestmark = pytest.mark.usefixtures('form')

D = 2**18
# The last one is within a hundredth of what 2^19 cells reach.
LARGEST = 4.9e8
VARIANCES = (0.05, 0.7, 12.0, 3000.0, LARGEST)


def _rounded(vector, variance, key=(7, 8), bits=30):
  table = alias_table.SKELLAM.build(variance)
  values, retries, fell_back = noisy_rounding.noisy_round(
      tf.constant(vector, tf.float32), tf.constant(key, tf.int64), 2**61,
      noisy_rounding.TableNoise(
          packed=tf.constant(table.packed), tie=tf.constant(table.tie)),
      bits)
  assert int(retries) == 0 and not bool(fell_back)
  return modular_sum.unwrap(values, bits).numpy().astype(np.int64)


def _noise(variance, **arguments):
  return _rounded(np.zeros(D, np.float32), variance, **arguments)


def _bulk(noise, variance):
  """Counts of values in bins, and the function that gives their probabilities."""
  width = max(1, int(variance**0.5 / 8))
  reach = int(np.ceil(4 * variance**0.5 / width)) + 1
  edges = np.arange(-reach, reach + 2) * width  # Bins [edge, next edge).
  indices = np.clip(np.searchsorted(edges, noise, side='right'), 0, edges.size)
  counts = np.bincount(indices, minlength=edges.size + 1)

  def probabilities(v):
    dist = stats.skellam(v / 2, v / 2)
    if v > 1e6:  # SciPy's is not exact there; Gaussian up to 1 / v.
      below = stats.norm.cdf((edges - 0.5) / v**0.5)
    else:
      below = dist.cdf(edges - 1)
    return np.diff(np.concatenate([[0.0], below, [1.0]]))

  return counts, probabilities


@pytest.mark.parametrize('variance', VARIANCES)
def test_frequencies_are_those_of_the_distribution_and_of_no_other(variance):
  counts, probabilities = _bulk(_noise(variance), variance)
  assert counts.sum() == D
  assert statistics_lib.fits(counts, probabilities(variance))
  for wrong in (0.9, 1.1):
    assert not statistics_lib.fits(counts, probabilities(wrong * variance))


@pytest.mark.parametrize('variance, threshold', [
    (0.05, 2), (0.7, 4), (12.0, 12), (LARGEST, 3.3 * LARGEST**0.5)])
def test_tails_have_the_mass_of_the_distribution(variance, threshold):
  noise = np.concatenate([_noise(variance, key=(3, i)) for i in range(4)])
  count = np.sum(np.abs(noise) >= threshold)
  if variance > 1e6:
    exact = 2 * stats.norm.sf(threshold / variance**0.5)
  else:
    exact = 2 * stats.skellam.sf(threshold - 1, variance / 2, variance / 2)
  error = (exact * noise.size)**0.5
  assert 50 < exact * noise.size < noise.size / 300
  assert abs(count - exact * noise.size) <= statistics_lib.Z * error
  # Half of the tail, or twice, would have been seen.
  assert abs(count - 2 * exact * noise.size) > statistics_lib.Z * error
  assert abs(count - exact * noise.size / 2) > statistics_lib.Z * error


def test_coordinates_and_keys_are_independent():
  first, second = _noise(3000.0), _noise(3000.0, key=(7, 9))
  for a, b in ((first, second), (first[1:], first[:-1]), (first[2:], first[:-2])):
    statistics_lib.check_mean(a * b.astype(np.float64), 0, 3000.0**2)


@pytest.mark.parametrize('variance', [0.05, 12.0, LARGEST])
@pytest.mark.parametrize('fraction', [0.125, 0.5])
def test_rounding_is_unbiased_and_independent_of_the_noise(variance, fraction):
  # The same random bits decide the rounding, the cell and the alias.
  vector = np.full(D, 5 + fraction, np.float32)
  errors = _rounded(vector, variance) - (5 + fraction)
  whole = variance + fraction * (1 - fraction)
  third = 3 * variance**2 + variance
  kurtosis = ((third + 6 * variance * fraction * (1 - fraction) +
               fraction * (1 - fraction) * (1 - 3 * fraction * (1 - fraction)))
              / whole**2 - 3)
  statistics_lib.check_variance(errors, whole, kurtosis)
  statistics_lib.check_mean(errors, 0, whole)
  # Fewer bits than noise can hide: the noise of the same key, taken off.
  ups = _rounded(vector, variance) - _noise(variance) - 5
  assert set(np.unique(ups)) == {0, 1}
  statistics_lib.check_mean(ups, fraction, fraction * (1 - fraction))
  noise = _noise(variance)
  statistics_lib.check_mean(
      (ups - fraction) * noise, 0, fraction * (1 - fraction) * variance)


def test_smallest_fractions_round_as_seldom_as_they_should():
  # 23 bits decide: 2^-12 of the coordinates go up.
  ups = np.concatenate([_rounded(np.full(D, 2.0**-12, np.float32), 0.05, key=(5, i)) -
      _noise(0.05, key=(5, i)) for i in range(8)])
  expected = ups.size * 2.0**-12
  assert abs(ups.sum() - expected) <= statistics_lib.Z * expected**0.5
  assert abs(ups.sum() - 2 * expected) > statistics_lib.Z * expected**0.5
