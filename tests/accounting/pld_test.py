"""Privacy loss distributions against closed forms, sums and inversion."""

import math

import numpy as np
import pytest
from scipy import optimize, special, stats

from tests import known_cohorts
from tests.accounting import curves_test
from tff_pipelines.accounting.divergences import (
    counts, pairs, pld, skellam_distribution)


def epsilon_of(factors, delta):
  return pld.bracket(factors, delta)[0]


def gaussian_delta(z, epsilon):
  """Analytic Gaussian mechanism (arXiv 1805.06530, Theorem 8)."""
  return known_cohorts.gaussian_delta(epsilon, z**-2)


def skellam_delta(shift, variance, epsilon, rate=1.0):
  """Hockey-stick divergence of one release, summed; the worse direction."""
  moved, base = np.exp(curves_test.skellam_logs(variance, shift))
  mixed = rate * moved + (1 - rate) * base
  return max(np.maximum(mixed - math.exp(epsilon) * base, 0).sum(),
             np.maximum(base - math.exp(epsilon) * mixed, 0).sum())


def inverted_delta(log_p, log_q, count, epsilon):
  """Delta of `count` releases, by inversion of the moments of their total loss.

  With M(s) = E[e^(s loss)] it is the integral of M(s)^count e^(-s epsilon) /
  (s (s + 1)) over s = theta + it, theta > 0, over 2 pi i.
  """
  loss = log_p - log_q

  def log_moment(theta):
    return special.logsumexp(log_p + theta * loss)

  theta = math.exp(optimize.minimize_scalar(
      lambda x: count * log_moment(math.exp(x)) - math.exp(x) * epsilon,
      bounds=(0, 7), method='bounded').x)
  log_peak = log_moment(theta)
  tilted = np.exp(log_p + theta * loss - log_peak)
  kept = tilted > 1e-20
  tilted, loss = tilted[kept], loss[kept]
  mean = tilted @ loss
  width = 1 / math.sqrt(count * (tilted @ (loss - mean)**2))
  t = np.linspace(-12 * width, 12 * width, 401)
  s = theta + 1j * t
  moments = np.exp(1j * np.outer(t, loss - mean)) @ tilted
  values = moments**count * np.exp(1j * t * (count * mean - epsilon)) / (s * (s + 1))
  return math.exp(count * log_peak - theta * epsilon) * (
      values.real.sum() * (t[1] - t[0]) / (2 * math.pi))


def gaussian_logs(z):
  """log-probabilities of N(1, z^2) and of N(0, z^2) on the same fine cells."""
  edges = np.linspace(-20 * z, 20 * z + 1, 20_001)
  middles, log_cell = (edges[1:] + edges[:-1]) / 2, math.log(edges[1] - edges[0])
  return [stats.norm.logpdf(middles, mean, z) + log_cell for mean in (1, 0)]


def sampled_logs(logs, rate):
  moved, base = logs
  return [np.logaddexp(np.log(rate) + moved, np.log1p(-rate) + base), base]


def gaussian(z):
  return pairs.Gaussian(noise_multiplier=z)


def skellam(variance, shift=1):
  return pairs.Skellam(shift=shift, variance=variance)


def poisson(pair, rate):
  return pairs.Poisson(pair=pair, sampling_rate=rate)


def check(factors, delta, exact, slack=1e-6, below=0.998):
  """Asserts that epsilon is safe by the function `exact`, and a little less is not."""
  epsilon = epsilon_of(factors, delta)
  assert exact(epsilon) <= delta * (1 + slack)
  assert epsilon <= 1e-6 or exact(epsilon * below) > delta


@pytest.mark.parametrize('z, count, delta', [
    (0.05, 1, 1e-5), (0.05, 100, 0.1), (0.5, 1, 0.1), (0.5, 100, 1e-12),
    (1.0, 1, 1e-12), (1.0, 100, 1e-5), (7.0, 100, 0.1), (7.0, 1, 1e-5),
    (1e4, 1, 1e-12), (1e4, 100, 1e-5)])
def test_gaussian_epsilon_agrees_with_the_closed_form(z, count, delta):
  check(((gaussian(z), count),), delta,
        lambda epsilon: gaussian_delta(z / math.sqrt(count), epsilon))


@pytest.mark.slow
@pytest.mark.parametrize('variance, shift, rate, delta', [
    (0.05, 1, 1.0, 1e-2), (0.05, 5, 0.2, 1e-6), (1.0, 1, 0.2, 1e-2),
    (1.0, 5, 1.0, 1e-6), (30.0, 1, 1.0, 1e-6), (30.0, 5, 0.2, 1e-2),
    (1e4, 1, 0.2, 1e-6), (1e4, 5, 1.0, 1e-2)])
def test_one_skellam_release_agrees_with_its_sum(variance, shift, rate, delta):
  pair = skellam(variance, shift)
  check(((poisson(pair, rate) if rate < 1 else pair, 1),), delta,
        lambda epsilon: skellam_delta(shift, variance, epsilon, rate), below=0.997)


def test_composed_small_noise_agrees_with_brute_force():
  k = np.arange(-40, 41)
  logs = (skellam_distribution.log_pmf(k - shift, 1.0) for shift in (1, 0))
  p, q = (np.exp(log[:, None, None] + log[None, :, None] + log[None, None, :])
          for log in logs)
  check(((skellam(1.0), 3),), 1e-3, slack=0,
        exact=lambda epsilon: np.maximum(p - math.exp(epsilon) * q, 0).sum())


@pytest.mark.parametrize('epsilon,count', [(0.1, 100), (1.0, 10), (2.0, 1)])
def test_randomized_response_composes_as_a_binomial(epsilon, count):
  truth = special.expit(epsilon)
  lies = np.arange(count + 1)
  p = stats.binom.pmf(lies, count, 1 - truth)
  loss = epsilon * (count - 2 * lies)
  check(((pairs.RandomizedResponse(epsilon=epsilon), count),), 1e-4,
        lambda at: np.sum(p * -np.expm1(np.minimum(at - loss, 0))), 1e-9, 0.997)


def test_a_leak_is_exact_at_and_around_its_probability():
  leak = ((pairs.Leak(probability=0.1), 1),)
  assert epsilon_of(leak, 0.1) == 0
  assert epsilon_of(leak, 0.2) == 0
  assert epsilon_of(leak, 0.09) == math.inf
  assert pld.delta(leak, 0.0) == 0.1
  twice = ((pairs.Leak(probability=0.1), 2),)
  assert pld.delta(twice, 3.0) == pytest.approx(0.19)
  assert pld.delta(((pairs.Leak(probability=1.0), 1),), 5.0) == 1.0


def test_different_mechanisms_compose():
  z, leak = 3.0, 1e-4
  check(((gaussian(z), 2), (pairs.Leak(probability=leak), 1)), 1e-3, slack=9e-7,
        exact=lambda epsilon: leak + (1 - leak) * gaussian_delta(
            z / math.sqrt(2), epsilon))


@pytest.mark.parametrize('pair,count,delta,logs', [
    (skellam(625.0), 500, 1e-3, curves_test.skellam_logs(625.0, 1)),
    (skellam(625.0), 1000, 1e-3, curves_test.skellam_logs(625.0, 1)),
    (skellam(750.0**2), 412, 1e-4, curves_test.skellam_logs(750.0**2, 1)),
    (poisson(gaussian(0.848), 100 / 3400), 1500, 1 / 3400,
     sampled_logs(gaussian_logs(0.848), 100 / 3400)),
    (poisson(skellam(4.0), 0.1), 50, 1e-5,
     sampled_logs(curves_test.skellam_logs(4.0, 1), 0.1)),
    (gaussian(1.0), 1, 1e-50, gaussian_logs(1.0))])
def test_epsilon_is_safe_and_within_a_tenth_of_a_percent(pair, count, delta, logs):
  check(((pair, count),), delta, lambda at: max(
      inverted_delta(*logs, count, at), inverted_delta(*logs[::-1], count, at)),
        below=0.999)


@pytest.mark.parametrize('epsilon', [0.05, 0.6])
def test_delta_of_a_sampled_release_is_safe_in_both_directions(epsilon):
  exact = skellam_delta(1, 2.0, epsilon, 0.25)
  assert pld.delta(((poisson(skellam(2.0), 0.25), 1),), epsilon) >= exact * (1 - 1e-9)


@pytest.mark.parametrize('epsilon', [0.0, 0.5, 3.0, 12.0])
def test_delta_is_safe_and_near_the_closed_form(epsilon):
  exact = gaussian_delta(1.0, epsilon)
  assert exact <= pld.delta(((gaussian(1.0), 1),), epsilon) <= 1.002 * exact
  assert inverted_delta(*gaussian_logs(1.0), 1, epsilon) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize('z, rate, delta', [
    (0.5, 1e-6, 1e-8), (1.0, 1e-5, 1e-9), (2.6, 2e-5, 1e-8), (0.2, 1e-4, 1e-10),
    (20.0, 1e-3, 1e-6)])
def test_one_release_of_rare_clients_agrees_with_the_closed_form(z, rate, delta):
  # Only a release with the client tells.
  check(((poisson(gaussian(z), rate), 1),), delta,
        lambda at: rate * gaussian_delta(z, math.log1p(math.expm1(at) / rate)))


def transformed_epsilon(log_p, log_q, count, delta, size=1 << 21):
  """Epsilon of `count` releases in one direction, by a transform of plain losses."""
  loss, p = log_p - log_q, np.exp(log_p)
  kept = p > 1e-16
  loss, p = loss[kept], p[kept]
  step = (6 * loss.max() - 6 * loss.min()) / size
  index = np.floor(loss / step)
  up = p * (loss / step - index)  # The mean of every loss is kept.
  mass = np.zeros(size)
  np.add.at(mass, index.astype(int), p - up)
  np.add.at(mass, index.astype(int) + 1, up)
  total = np.fft.irfft(np.fft.rfft(mass)**count, size)
  losses = step * np.fft.fftfreq(size, 1 / size)
  return optimize.brentq(lambda epsilon: (total * np.maximum(
      -np.expm1(epsilon - losses), 0)).sum() - delta, 0, 1)


@pytest.mark.parametrize('pair, count, delta, logs', [
    (poisson(skellam(43.949, 5), 1.75185e-6), 38591, 5.85e-5,
     sampled_logs(curves_test.skellam_logs(43.949, 5), 1.75185e-6)),
    (poisson(gaussian(1.6437), 2.2e-4), 1612, 3.83e-5,
     sampled_logs(gaussian_logs(1.6437), 2.2e-4))])
def test_rare_large_losses_do_not_dictate_the_grid(pair, count, delta, logs):
  epsilon, lowest = pld.bracket(((pair, count),), delta)
  exact = max(transformed_epsilon(*logs, count, delta),
              transformed_epsilon(*logs[::-1], count, delta))
  assert lowest == epsilon == pytest.approx(exact, rel=5e-3)


def test_unequal_releases_share_a_grid():
  """Many quiet rounds alongside one loud release, which alone is a binary choice."""
  quiet, loud = (poisson(gaussian(20.0), 1e-4), 10_000), 6.0
  epsilon = epsilon_of((quiet, (pairs.RandomizedResponse(epsilon=loud), 1)), 1e-6)
  assert loud <= epsilon <= 1.001 * (loud + epsilon_of((quiet,), 1e-6))


@pytest.mark.parametrize('largest', [1 << 9, 1 << 11, 1 << 13])
def test_a_grid_that_is_too_coarse_says_how_much_it_may_cost(monkeypatch, largest):
  pair, count, delta = poisson(gaussian(0.848), 100 / 3400), 1500, 1 / 3400
  exact, same = pld.bracket(((pair, count),), delta)
  assert exact == same
  monkeypatch.setattr(pld, '_MAX_GRID', largest)
  epsilon, lowest = pld.bracket(((pair, count),), delta)
  assert 0 < lowest < exact < epsilon
  assert lowest > 0.9 * exact or largest < 1 << 13


def test_too_many_values_are_refused_by_name():
  with pytest.raises(pairs.TooLarge, match='variance'):
    epsilon_of(((skellam(1e20), 1),), 1e-5)


@pytest.mark.parametrize('delta', [1e-17, 1e-22, 1e-25, 1e-40])
def test_epsilon_has_all_digits_of_a_delta_far_below_the_round_off(delta):
  """Two answers of a coin that rarely says anything, in rounds that rarely happen."""
  odds, answered, number = 0.007, 0.01, counts.binomial(2, 1e-5)
  found = epsilon_of(((pairs.RandomizedResponse(epsilon=odds, answered=answered),
                        number),), delta)
  once, twice = number.weights[1:]
  truth = answered * special.expit(odds)
  lie, nothing = answered * special.expit(-odds), 1 - answered
  exact = sum(weight * max(0.0, -math.expm1(found - loss)) for weight, loss in (
      (once * truth + 2 * twice * truth * nothing, odds), (twice * truth**2, 2 * odds),
      (2 * twice * truth * lie, 0.0)))
  assert exact <= delta * (1 + 1e-8)


@pytest.mark.parametrize('count', [15, 1500, 15_000])
def test_large_epsilons_are_neither_lost_in_the_largest_nor_the_smallest_numbers(count):
  # Nearly every round has the client, so the exact Gaussian number is hardly above.
  sampled = pairs.Poisson(pair=gaussian(0.4), sampling_rate=1 - 1e-9)
  exact = epsilon_of(((gaussian(0.4), count),), 1e-6)
  assert exact * (1 - 1e-6) <= epsilon_of(((sampled, count),), 1e-6) <= 1.002 * exact
