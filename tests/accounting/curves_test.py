"""Renyi curves, and their amplification, against divergences summed or integrated.

`dp_accounting_test` has other oracles.
"""

import functools

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
  gaps = [np.max(curves.skellam(l1=s, l2=s, variance=(1.5 * s)**2) / gaussian - 1)
      for s in (1.0, 10.0, 1e3)]
  assert gaps[0] > gaps[1] > gaps[2] > 0
  assert gaps[2] < 1e-3


@pytest.mark.parametrize('epsilon', [1e-3, 0.5, 3.0, 50.0])
def test_pure_curve_is_the_divergence_of_randomized_response(epsilon):
  with mpmath.workdps(60):
    truth = 1 / (1 + mpmath.exp(-epsilon))
    expected = [float(mpmath.log(truth**a * (1 - truth)**(1 - a) +
                         (1 - truth)**a * truth**(1 - a)) / (a - 1)) for a in (2, 5, 40)]
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


def exact_curve(log_p, log_q, max_order):
  return np.array([divergence(log_p, log_q, alpha) for alpha in range(2, max_order + 1)])


@pytest.mark.parametrize('variance, rate, shift', [
    (0.5, 1e-3, 1), (0.5, 0.3, 2), (4.0, 0.03, 2), (4.0, 0.9, 1), (50.0, 0.03, 1),
    (50.0, 0.9, 2)])
def test_tight_bound_is_the_divergence_of_the_mixture(variance, rate, shift):
  moved, base = skellam_logs(variance, shift)
  mixed = np.logaddexp(np.log(rate) + moved, np.log1p(-rate) + base)
  exact = exact_curve(mixed, base, 20)
  amplified = curves.poisson(exact_curve(moved, base, 20), rate)
  np.testing.assert_allclose(amplified, exact, rtol=1e-7, atol=1e-12)
  # The other direction is the smaller one.
  assert (exact_curve(base, mixed, 20) <= amplified * (1 + 1e-9) + 1e-13).all()


BOUNDS = pytest.mark.parametrize('bound', [
    curves.poisson, functools.partial(curves.poisson, generic=True), curves.fixed_size])


def test_generic_bound_is_between_tight_and_three_times_its_moment():
  curve = curves.skellam(l1=20, l2=4, variance=25.0)
  alpha = curves.orders()
  tight = curves.poisson(curve, 0.03)
  generic = curves.poisson(curve, 0.03, generic=True)
  assert (generic >= tight).all() and (generic > tight * 1.01).any()
  assert (generic * (alpha - 1) <= tight * (alpha - 1) + np.log(3) + 1e-9).all()


@pytest.mark.parametrize('fraction', [0.001, 0.03, 0.5])
def test_fixed_size_bound_equals_its_sum_in_exact_arithmetic(fraction):
  curve = curves.gaussian(3.0, 40)
  amplified = curves.fixed_size(curve, fraction)
  with mpmath.workdps(50):
    for alpha in (2, 3, 10, 40):
      gamma = mpmath.mpf(fraction)
      first = mpmath.exp(curve[0])
      total = 1 + gamma**2 * mpmath.binomial(alpha, 2) * min(4 * (first - 1), 2 * first)
      for j in range(3, alpha + 1):
        total += 2 * gamma**j * mpmath.binomial(alpha, j) * mpmath.exp(
            (j - 1) * mpmath.mpf(curve[j - 2]))
      bound = min(float(mpmath.log(total) / (alpha - 1)), curve[alpha - 2])
      assert amplified[alpha - 2] == pytest.approx(bound, rel=1e-9)


@pytest.mark.parametrize('fraction', [0.25, 0.5])
@pytest.mark.parametrize('variance', [4.0, 50.0])
def test_fixed_size_bound_holds_for_replaced_and_for_zeroed_clients(fraction, variance):
  """Clients hold -1, 0 or 1; the others' values are 0, sampled or not."""
  reach = skellam_distribution.reach(variance)
  k = np.arange(-reach, reach + 1)
  moved = {shift: np.exp(skellam_distribution.log_pmf(k - shift, variance))
           for shift in (-1, 0, 1)}

  def released(value):
    return np.log(fraction * moved[value] + (1 - fraction) * moved[0])

  bound = curves.fixed_size(
      curves.skellam(l1=2, l2=2, variance=variance, max_order=16), fraction)
  for first in (-1, 0, 1):
    for second in (-1, 0, 1):
      exact = exact_curve(released(first), released(second), 16)
      assert (exact <= bound * (1 + 1e-9) + 1e-12).all()


@BOUNDS
def test_amplified_is_never_above_unamplified_nor_nan(bound):
  rng = np.random.default_rng(5)
  for _ in range(30):
    curve = np.sort(rng.lognormal(0, 3, 255))
    amplified = bound(curve, float(10**rng.uniform(-6, 0)))
    assert (amplified <= curve).all() and (amplified >= 0).all()


@BOUNDS
def test_infinite_orders_stay_infinite_and_spare_the_lower_ones(bound):
  curve = np.arange(1.0, 64.0)
  curve[40:] = np.inf
  amplified = bound(curve, 0.01)
  assert np.isfinite(amplified[:40]).all()
  assert np.isinf(amplified[40:]).all()
  assert np.isinf(bound(np.full(63, np.inf), 0.01)).all()


def test_huge_divergences_do_not_overflow():
  amplified = curves.poisson(np.linspace(1e5, 1e8, 1023), 1e-9)
  assert np.isfinite(amplified).all() and (amplified > 1e4).all()


@pytest.mark.parametrize('rate', [1e-6, 0.1, 1.0])
def test_pure_amplification_has_its_closed_form(rate):
  assert curves.pure_poisson(0.7, rate) == pytest.approx(
      np.log(1 + rate * (np.exp(0.7) - 1)), rel=1e-9)
  assert curves.pure_poisson(1000.0, rate) == pytest.approx(1000 + np.log(rate))
  assert curves.pure_poisson(np.inf, rate) == np.inf


@pytest.mark.parametrize('rate', [1e-6, 1e-8, 1e-10, 1e-14])
def test_tiny_sampling_rates_lose_nothing_to_rounding(rate):
  # For q -> 0 the excess of the moment is C(alpha, 2) q^2 (e^eps(2) - 1).
  alpha = curves.orders(64)
  curve = alpha / (2 * 10.0**2)
  leading = alpha / 2 * rate**2 * np.expm1(curve[0])
  np.testing.assert_allclose(curves.poisson(curve, rate), leading, rtol=1e-2)
  amplified = curves.fixed_size(curve, rate)
  second = min(4 * np.expm1(curve[0]), 2 * np.exp(curve[0]))
  np.testing.assert_allclose(amplified, alpha / 2 * rate**2 * second, rtol=1e-2)
