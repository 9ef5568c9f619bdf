"""The Skellam distribution against mpmath and against itself."""

import mpmath
import numpy as np
import pytest

from tff_pipelines.accounting.divergences import skellam_distribution


@pytest.mark.parametrize('variance', [1e-8, 1e-3, 0.3, 1.0, 30.0, 59.0, 61.0,
                                      625.0, 1e4, 2e9, 1e12])
def test_log_pmf_equals_mpmath_in_the_bulk_and_in_the_far_tails(variance):
  k = np.array([0, 1, 2, 5, 20, 59, 60, 100, 2000, 10**5])
  with mpmath.workdps(50):
    expected = []
    for value in k:
      bessel = mpmath.besseli(int(value), mpmath.mpf(variance))
      expected.append(float(mpmath.log(bessel) - mpmath.mpf(variance)))
  np.testing.assert_allclose(
      skellam_distribution.log_pmf(k, variance), expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize('variance', [0.01, 1.0, 60.0, 625.0, 1e6])
def test_probabilities_sum_to_one_and_have_the_variance(variance):
  reach = skellam_distribution.reach(variance)
  k = np.arange(-reach, reach + 1)
  p = np.exp(skellam_distribution.log_pmf(k, variance))
  assert p.sum() == pytest.approx(1, abs=1e-12)
  assert p @ k.astype(float)**2 == pytest.approx(variance, rel=1e-10)


@pytest.mark.parametrize('variance', [0.01, 1.0, 625.0, 1e6])
def test_values_beyond_the_reach_are_negligible(variance):
  reach = skellam_distribution.reach(variance)
  assert skellam_distribution.log_pmf(np.array([reach + 1]), variance)[0] < -700
  assert skellam_distribution.log_pmf(np.array([reach // 2]), variance)[0] > -700


@pytest.mark.parametrize('margin', [-40, -1, 0, 1, 7, 100])
def test_tail_includes_ties(margin):
  variance = 242.0
  k = np.arange(margin, 900)
  expected = np.exp(skellam_distribution.log_pmf(k, variance)).sum()
  assert skellam_distribution.tail(margin, variance) == pytest.approx(expected, rel=1e-10)


def test_tail_far_beyond_the_reach_is_an_upper_bound_not_zero_or_nan():
  assert 0 <= skellam_distribution.tail(10**6, 4.0) < 1e-300


@pytest.mark.parametrize('variance', [0.0, -1.0, float('nan'), float('inf')])
def test_impossible_variances_are_refused_by_name(variance):
  with pytest.raises(ValueError, match='variance'):
    skellam_distribution.log_pmf(np.array([0]), variance)
