"""Renyi curves against divergences summed or integrated directly."""

import mpmath
import numpy as np
import pytest
from scipy import special

from tff_pipelines.accounting.divergences import curves, skellam_distribution


def divergence(log_p, log_q, alpha):
  return special.logsumexp(alpha * log_p + (1 - alpha) * log_q) / (alpha - 1)


def skellam_logs(variance, shift):
  """log-probabilities of shift + Sk and of Sk on a common support."""
  reach = skellam_distribution.reach(variance) + shift
  k = np.arange(-reach, reach + 1)
  return (skellam_distribution.log_pmf(k - shift, variance),
          skellam_distribution.log_pmf(k, variance))


@pytest.mark.parametrize('variance', [0.5, 4.0, 100.0])
@pytest.mark.parametrize('shift', [1, 3])
def test_skellam_curve_bounds_the_divergence_in_both_directions(variance, shift):
  moved, base = skellam_logs(variance, shift)
  curve = curves.skellam(l1=shift, l2=shift, variance=variance, max_order=24)
  for alpha in range(2, 25):
    for first, second in ((moved, base), (base, moved)):
      assert divergence(first, second, alpha) <= curve[alpha - 2] * (1 + 1e-12)


def test_skellam_curve_bounds_two_coordinates():
  moved, base = skellam_logs(9.0, 1)
  curve = curves.skellam(l1=2, l2=2**0.5, variance=9.0, max_order=16)
  for alpha in range(2, 17):
    assert 2 * divergence(moved, base, alpha) <= curve[alpha - 2]


def test_skellam_curve_approaches_the_gaussian_as_the_grid_becomes_finer():
  gaussian = curves.gaussian(1.5)
  gaps = [
      np.max(curves.skellam(l1=s, l2=s, variance=(1.5 * s)**2) / gaussian - 1)
      for s in (1.0, 10.0, 1e3)]
  assert gaps[0] > gaps[1] > gaps[2] > 0
  assert gaps[2] < 1e-3


@pytest.mark.parametrize('epsilon', [1e-3, 0.5, 3.0, 50.0])
def test_pure_curve_is_the_divergence_of_randomized_response(epsilon):
  with mpmath.workdps(60):
    truth = 1 / (1 + mpmath.exp(-epsilon))
    expected = [
        float(mpmath.log(truth**a * (1 - truth)**(1 - a) +
                         (1 - truth)**a * truth**(1 - a)) / (a - 1))
        for a in (2, 5, 40)]
  curve = curves.pure(epsilon)
  np.testing.assert_allclose(curve[[0, 3, 38]], expected, rtol=1e-9)
  assert (curve <= epsilon).all()


def test_gap_of_discrete_gaussian_sums_equals_its_sum_and_is_safe_when_long():
  exact = 10 * sum(np.exp(-2 * np.pi**2 * 0.3 * k / (k + 1)) for k in range(1, 1000))
  assert curves.discrete_gaussian_sum_gap(0.3, 1000) == pytest.approx(exact)
  k = np.arange(1, 10**6)
  long = 10 * np.exp(-2 * np.pi**2 * 0.3 * k / (k + 1)).sum()
  assert curves.discrete_gaussian_sum_gap(0.3, 10**6) >= long


def test_discrete_gaussian_without_enough_local_noise_has_no_guarantee():
  curve = curves.distributed_discrete_gaussian(
      l1=1, l2=1, variance=2.4, local_variance=0.24, clients=10, dimension=1)
  assert np.isinf(curve).all()


def test_zero_noise_is_infinite_not_zero():
  assert np.isinf(curves.skellam(l1=1, l2=1, variance=0)).all()
  assert np.isinf(curves.gaussian(0)).all()


def test_tiny_and_huge_noise_overflow_to_the_private_side():
  tiny = curves.skellam(l1=1e9, l2=1e6, variance=1e-300)
  assert (tiny > 1e100).all() and not np.isnan(tiny).any()
  assert (curves.gaussian(1e-200) == np.inf).all()
  huge = curves.gaussian(1e150)
  assert (huge >= 0).all() and not np.isnan(huge).any()


@pytest.mark.parametrize('bad', [np.array([0.1, np.nan]), np.array([-1e-9, 0.1])])
def test_faulty_curves_are_refused_not_read_as_zero(bad):
  with pytest.raises(ValueError, match='divergence'):
    curves.checked(bad, 'an event')
