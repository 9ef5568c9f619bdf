"""Privacy loss distributions against closed forms, sums and dp_accounting."""

import math

from dp_accounting.pld import privacy_loss_distribution as dp_pld
import numpy as np
import pytest
from scipy import special
from scipy import stats

from tff_pipelines.accounting import pairs
from tff_pipelines.accounting import pld
from tff_pipelines.accounting import skellam_distribution


def gaussian_delta(z, epsilon):
  """Analytic Gaussian mechanism (arXiv 1805.06530, Theorem 8)."""
  a, b = 1 / (2 * z), epsilon * z
  return special.ndtr(a - b) - math.exp(
      epsilon + special.log_ndtr(-a - b))


def skellam_delta(shift, variance, epsilon, rate=1.0):
  """Hockey-stick divergence of one release, summed; the worse direction."""
  reach = skellam_distribution.reach(variance) + shift
  k = np.arange(-reach, reach + 1)
  moved = np.exp(skellam_distribution.log_pmf(k - shift, variance))
  base = np.exp(skellam_distribution.log_pmf(k, variance))
  mixed = rate * moved + (1 - rate) * base
  return max(np.maximum(mixed - math.exp(epsilon) * base, 0).sum(),
             np.maximum(base - math.exp(epsilon) * mixed, 0).sum())


def gaussian(z):
  return pairs.Gaussian(noise_multiplier=z)


def skellam(variance, shift=1):
  return pairs.Skellam(shift=shift, variance=variance)


def poisson(pair, rate):
  return pairs.Poisson(pair=pair, sampling_rate=rate)


@pytest.mark.parametrize('z', [0.05, 0.5, 1.0, 7.0, 1e4])
@pytest.mark.parametrize('count', [1, 100])
@pytest.mark.parametrize('delta', [0.1, 1e-5, 1e-12])
def test_gaussian_epsilon_agrees_with_the_closed_form(z, count, delta):
  found = pld.epsilon(((gaussian(z), count),), delta)
  joint = z / math.sqrt(count)
  assert gaussian_delta(joint, found) <= delta * (1 + 1e-6)
  if found > 1e-6:
    assert gaussian_delta(joint, found * 0.998) > delta


@pytest.mark.parametrize('z,rate,count,delta', [
    (0.848, 100 / 3400, 1500, 1 / 3400), (0.6, 0.01, 200, 1e-6),
    (2.0, 0.3, 50, 1e-5), (0.5, 1e-5, 1000, 1e-6)])
def test_sampled_gaussian_agrees_with_dp_accounting(z, rate, count, delta):
  oracle = dp_pld.from_gaussian_mechanism(
      z, sampling_prob=rate, value_discretization_interval=1e-4
  ).self_compose(count).get_epsilon_for_delta(delta)
  found = pld.epsilon(((poisson(gaussian(z), rate), count),), delta)
  assert found == pytest.approx(oracle, rel=1e-3)


@pytest.mark.parametrize('variance', [0.05, 1.0, 30.0, 1e4])
@pytest.mark.parametrize('shift', [1, 5])
@pytest.mark.parametrize('rate', [1.0, 0.2])
@pytest.mark.parametrize('delta', [1e-2, 1e-6])
def test_one_skellam_release_agrees_with_its_sum(variance, shift, rate, delta):
  pair = skellam(variance, shift)
  if rate < 1:
    pair = poisson(pair, rate)
  found = pld.epsilon(((pair, 1),), delta)
  assert skellam_delta(shift, variance, found, rate) <= delta * (1 + 1e-6)
  if found > 1e-6:
    assert skellam_delta(shift, variance, found * 0.997, rate) > delta


def test_composed_small_noise_agrees_with_brute_force():
  variance, count = 1.0, 3
  reach = 40
  k = np.arange(-reach, reach + 1)
  log_p = skellam_distribution.log_pmf(k - 1, variance)
  log_q = skellam_distribution.log_pmf(k, variance)
  p = np.exp(log_p[:, None, None] + log_p[None, :, None] + log_p[None, None, :])
  q = np.exp(log_q[:, None, None] + log_q[None, :, None] + log_q[None, None, :])
  found = pld.epsilon(((skellam(variance), count),), 1e-3)
  assert np.maximum(p - math.exp(found) * q, 0).sum() <= 1e-3
  assert np.maximum(p - math.exp(found * 0.998) * q, 0).sum() > 1e-3


@pytest.mark.parametrize('epsilon,count', [(0.1, 100), (1.0, 10), (2.0, 1)])
def test_randomized_response_composes_as_a_binomial(epsilon, count):
  truth = special.expit(epsilon)
  lies = np.arange(count + 1)
  p = stats.binom.pmf(lies, count, 1 - truth)
  loss = epsilon * (count - 2 * lies)
  found = pld.epsilon(((pairs.RandomizedResponse(epsilon=epsilon), count),), 1e-4)

  def delta(at):
    return np.sum(p * -np.expm1(np.minimum(at - loss, 0)))

  assert delta(found) <= 1e-4 * (1 + 1e-9)
  assert delta(found * 0.997) > 1e-4


def test_a_leak_is_exact_at_and_around_its_probability():
  leak = ((pairs.Leak(probability=0.1), 1),)
  assert pld.epsilon(leak, 0.1) == 0
  assert pld.epsilon(leak, 0.2) == 0
  assert pld.epsilon(leak, 0.09) == math.inf
  assert pld.delta(leak, 0.0) == 0.1
  twice = ((pairs.Leak(probability=0.1), 2),)
  assert pld.delta(twice, 3.0) == pytest.approx(0.19)
  assert pld.delta(((pairs.Leak(probability=1.0), 1),), 5.0) == 1.0


def test_different_mechanisms_compose():
  z = 3.0
  leak = 1e-4
  found = pld.epsilon(
      ((gaussian(z), 2), (pairs.Leak(probability=leak), 1)), 1e-3)
  # A leak on top: delta = leak + (1 - leak) delta_gaussian.
  inner = (1e-3 - leak) / (1 - leak)
  assert gaussian_delta(z / math.sqrt(2), found) <= inner * (1 + 1e-6)
  assert gaussian_delta(z / math.sqrt(2), found * 0.998) > inner


@pytest.mark.parametrize('factors,delta', [
    (((skellam(625.0), 500),), 1e-3),
    (((skellam(625.0), 1000),), 1e-3),
    (((skellam(750.0**2), 412),), 1e-4),
    (((poisson(gaussian(0.848), 100 / 3400), 1500),), 1 / 3400),
    (((poisson(skellam(4.0), 0.1), 50),), 1e-5),
    (((gaussian(1.0), 1),), 1e-50),
])
def test_optimistic_and_pessimistic_agree_to_a_tenth_of_a_percent(factors, delta):
  low, high = pld.epsilon_bounds(factors, delta)
  assert low <= high
  assert high - low <= 1e-3 * high
  assert high == pld.epsilon(factors, delta)


@pytest.mark.parametrize('factors', [
    ((skellam(25.0, 2), 30),), ((gaussian(0.7), 5),),
    ((poisson(gaussian(1.1), 0.05), 300),)])
@pytest.mark.parametrize('epsilon', [0.1, 1.0, 4.0])
def test_delta_and_epsilon_are_inverse(factors, epsilon):
  delta = pld.delta(factors, epsilon)
  assert pld.epsilon(factors, delta) == pytest.approx(epsilon, rel=2e-3)


def test_delta_bounds_hold_the_closed_form():
  for epsilon in (0.0, 0.5, 3.0, 12.0):
    low, high = pld.delta_bounds(((gaussian(1.0), 1),), epsilon)
    assert low <= gaussian_delta(1.0, epsilon) <= high


def test_too_many_values_are_refused_by_name():
  with pytest.raises(pairs.TooLarge, match='variance'):
    pld.epsilon(((skellam(1e20), 1),), 1e-5)


def test_poisson_atoms_dominate_in_both_directions():
  one = poisson(skellam(2.0), 0.25)
  for epsilon in (0.0, 0.05, 0.2, 0.6):
    exact = skellam_delta(1, 2.0, epsilon, 0.25)
    assert pld.delta(((one, 1),), epsilon) >= exact * (1 - 1e-9)
