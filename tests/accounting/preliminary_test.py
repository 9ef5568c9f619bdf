"""The release before the first round, against exact distributions."""

import dataclasses
import math

import mpmath
import numpy as np
import pytest

from tff_pipelines.accounting.divergences import pld
from tff_pipelines.accounting.events import kinds as events, preliminary
from tff_pipelines.accounting.guarantees import accountant, release_noise

DELTA = 1e-3


def _planned(items=1, epsilon=1.0, delta=DELTA, **more):
  return release_noise.planned(
      l2_sensitivity=math.sqrt(items), items=items, dimension=100 * items,
      epsilon=epsilon, delta=delta, **more)


def _exact_tail(variance, start):
  weight = lambda k: mpmath.exp(-mpmath.mpf(k)**2 / (2 * variance))
  reach = int(60 * math.sqrt(variance)) + 60
  total = mpmath.fsum(weight(k) for k in range(-reach, reach + 1))
  return mpmath.fsum(weight(k) for k in range(start, reach + 1)) / total


@pytest.mark.parametrize('variance', [0.05, 0.7, 12.0, 400.0])
@pytest.mark.parametrize('stddevs', [1, 4, 8])
def test_tail_is_at_least_the_exact_one_and_close_to_it(variance, stddevs):
  start = max(1, round(stddevs * math.sqrt(variance)))
  exact = float(_exact_tail(variance, start))
  assert exact <= preliminary.tail(variance, start) <= exact * 1.001 + 1e-300


@pytest.mark.parametrize('variance', [0.0009, 0.0049, 0.2])
def test_tail_is_that_of_the_rounded_deviation_that_the_sampler_uses(variance):
  rounded = mpmath.ceil(mpmath.sqrt(variance) * 2**24) / 2**24
  assert _exact_tail(rounded**2, 1) <= preliminary.tail(variance, 1)


@pytest.mark.parametrize('variance, items, most', [
    (0.3, 1, 1e-4), (30.0, 8, 1e-5), (700.0, 64, 2e-5)])
def test_threshold_is_the_least_that_fails_rarely_enough(variance, items, most):
  least = preliminary.threshold(variance, items, most)
  assert preliminary.failure(variance, items, least) <= most
  assert preliminary.failure(variance, items, least - 1) > most
  one = float(_exact_tail(variance, least - 1))
  assert 1 - (1 - one)**items <= most


def _masses(variance, mean, threshold, reach=400):
  """The distribution of a released count: index 0 is 'not released'."""
  k = np.arange(mean - reach, mean + reach + 1)
  mass = np.exp(-(k - mean)**2 / (2 * variance))
  mass /= mass.sum()
  kept = k >= threshold
  return dict([(None, mass[~kept].sum()), *zip(k[kept].tolist(), mass[kept])])


def _exact_delta(p, q, epsilon):
  return sum(max(0.0, mass - math.exp(epsilon) * q.get(key, 0.0))
             for key, mass in p.items())


def _pair(first, second):
  return {(a, b): p * q for a, p in first.items() for b, q in second.items()}


def _worst_delta(release, epsilon, others):
  """The exact delta of a client with a word of its own, and one that others have."""
  v, t = release.noise_variance, release.threshold
  own, absent = _masses(v, 1, t), {None: 1.0}
  with_client, without = own, absent
  if release.items == 2:
    with_client = _pair(own, _masses(v, others + 1, t))
    without = _pair(absent, _masses(v, others, t))
  return max(_exact_delta(with_client, without, epsilon),
             _exact_delta(without, with_client, epsilon))


@pytest.mark.parametrize('items', [1, 2])
@pytest.mark.parametrize('epsilon', [0.5, 2.0])
def test_exact_distributions_are_within_the_guarantee(items, epsilon):
  release = _planned(items, epsilon)
  assert accountant.epsilon(release, DELTA) <= epsilon
  for others in (0, 1, release.threshold - 2, release.threshold, 3 * release.threshold):
    if items == 2 and others:
      assert _worst_delta(release, epsilon, others) <= DELTA
  assert _worst_delta(dataclasses.replace(
      release, items=1, l2_sensitivity=1.0), epsilon, 0) <= DELTA
  # What the threshold is there for.
  low = dataclasses.replace(release, threshold=2, items=1, l2_sensitivity=1.0)
  assert _worst_delta(low, epsilon, 0) > DELTA


def test_word_of_a_single_client_is_released_as_rarely_as_is_said():
  release = _planned(8)
  own = _masses(release.noise_variance, 1, release.threshold)
  one = 1 - own[None]
  assert 1 - (1 - one)**8 <= release.failure_probability() <= 0.1 * DELTA


def _worlds(variance, least, change):
  """The distributions of a release whose inputs differ as `change` says.

  Args:
    variance, least: Of the noise, and the threshold.
    change: (count with the client, count without it) for each word; a word that no
      client has is not in the release.
  """
  sides = ({(): 1.0}, {(): 1.0})
  for counts in change:
    masses = [_masses(variance, count, least, reach=25) if count else {None: 1.0}
              for count in counts]
    sides = tuple(map(_pair, sides, masses))
  return sides


# Words of their own, and words that others have, of clients with two words.
_ZEROED = [[(1, 0), (1, 0)], [(1, 0), (9, 8)], [(9, 8), (30, 29)], [(9, 8), (2, 1)]]
_REPLACED = [[(1, 0), (1, 0), (0, 1), (0, 1)], [(1, 0), (9, 8), (29, 30), (0, 1)],
             [(9, 8), (8, 9)]]
_TWO_OF_A_PERSON = [[(2, 0), (2, 0)], [(1, 0), (1, 0), (1, 0), (1, 0)],
                    [(2, 0), (30, 28)], [(9, 7), (30, 28)]]


@pytest.mark.parametrize('stated, changes', [(lambda event: event, _ZEROED),
    (lambda event: events.FixedSizeSampled(
        event=event, cohort_size=9, population=9), _REPLACED),
    (lambda event: event.scaled(2), _TWO_OF_A_PERSON)])
@pytest.mark.parametrize('epsilon', [0.0, 0.3, 1.0, 2.0, 4.0])
def test_pairs_of_counts_dominate_both_directions_by_enumeration(
    stated, changes, epsilon):
  variance, least = 9.0, 8
  # Words of one or two clients fail so often that it shows.
  event = stated(events.PreliminaryRelease(
      l2_sensitivity=math.sqrt(2), noise_variance=variance, dimension=4, items=2,
      threshold=least))
  spent = accountant.delta(event, epsilon, accountant='pld')
  worlds = [_worlds(variance, least, change) for change in changes]
  exact = [max(_exact_delta(p, q, epsilon), _exact_delta(q, p, epsilon))
           for p, q in worlds]
  assert 0.4 * spent < max(exact) <= spent
  # Where epsilon covers the counts, the leak is needed.
  counts = pld.delta(event.as_gaussian(1e-12).factors('tight')[:1], epsilon)
  assert epsilon < 2 or max(exact) > counts


@pytest.mark.parametrize('z', [0.8, 3.0])
@pytest.mark.parametrize('kind', [events.EvaluationRelease, events.PreliminaryRelease])
def test_a_release_is_accounted_as_gaussian_noise_or_by_renyi_divergences(kind, z):
  release = kind(l2_sensitivity=5.0, noise_variance=(5 * z)**2, dimension=2)
  gaussian = events.CentralGaussian(noise_multiplier=z)
  least, most = (accountant.epsilon(gaussian, 1e-5, accountant=name)
                 for name in ('pld', 'rdp'))
  for name in ('pld', 'auto'):
    assert accountant.epsilon(events.Composed(events=(
        release, events.NoPrivacy())), 1e-5, accountant=name) == math.inf
  # Little noise on a coarse grid is less like a Gaussian.
  assert least < accountant.epsilon(release, 1e-5) < (most if z < 1 else 0.97 * most)
  assert accountant.epsilon(release, 1e-5, accountant='rdp') == pytest.approx(most)
  assert release.failure_probability() == 0


def _error_of_rounding(variance, kept):
  """How far the masses of a rounded Gaussian are from the discrete one's, relatively.

  Args:
    variance: That of the discrete Gaussian.
    kept: Of this variance is the random rounding, the rest is the Gaussian's.
  """
  with mpmath.workdps(40):
    weigh = lambda d, v: mpmath.exp(-mpmath.mpf(d)**2 / (2 * v))
    inner, steps = variance - kept, 4  # Trapezoids are exact for what is so smooth.
    xs = [mpmath.mpf(i) / steps for i in range(-160, 161)]
    density = [weigh(x, inner) / steps / mpmath.sqrt(2 * mpmath.pi * inner) / sum(
        weigh(j - x, kept) for j in range(round(x) - 25, round(x) + 26)) for x in xs]
    norm = sum(weigh(k, variance) for k in range(-150, 151))
    return max(abs(sum(p * weigh(k - x, kept) for p, x in zip(density, xs))
                   / (weigh(k, variance) / norm) - 1) for k in (0, 3))


@pytest.mark.parametrize('variance, distance', [(6.0, 1e-4), (9.0, 1e-9), (20.0, 1e-20)])
def test_discrete_gaussian_is_made_of_a_gaussian_up_to_the_distance(variance, distance):
  release = preliminary.EvaluationRelease(
      l2_sensitivity=1.0, noise_variance=variance, dimension=1)
  kept = variance - release.as_gaussian(distance).noise_multiplier**2
  assert 0 < kept < variance / 2
  # Half the largest relative error bounds the total variation distance.
  assert _error_of_rounding(variance, kept) / 2 <= distance
  assert _error_of_rounding(variance, kept / 5) / 2 > distance


def test_failure_is_taken_off_delta():
  release = _planned(4)
  failed = release.failure_probability()
  bare = dataclasses.replace(release, items=0, threshold=None)
  assert accountant.epsilon(release, DELTA) == pytest.approx(
      accountant.epsilon(bare, DELTA - failed), abs=2 * failed)
  assert accountant.delta(release, 3.0) == pytest.approx(
      accountant.delta(bare, 3.0) + failed, rel=1e-3)
  assert accountant.epsilon(release, 0.9 * failed) == math.inf


def test_release_and_rounds_are_composed_below_the_sum_of_their_epsilons():
  release = _planned(4)
  rounds = events.SelfComposed(count=20, event=events.PoissonSampled(
      sampling_rate=0.1, event=events.CentralGaussian(noise_multiplier=1.2)))
  both = events.Composed(events=(release, rounds))
  assert both.failure_probability() == release.failure_probability()
  alone, spent = accountant.epsilon(rounds, DELTA), accountant.bound(both, DELTA)
  assert alone < spent.epsilon < 0.95 * accountant.epsilon(
      both, DELTA, accountant='rdp') < 1 + alone
  assert spent.accountant == 'pld'


def test_release_and_rounds_of_all_clients_cost_what_one_gaussian_does():
  release = _planned(4)
  rounds = events.SelfComposed(
      event=events.CentralGaussian(noise_multiplier=9.0), count=20)
  epsilon = accountant.epsilon(events.Composed(events=(release, rounds)), DELTA)
  failed = release.failure_probability()

  def delta(mu):  # arXiv 1805.06530, Theorem 8; the leak is in addition.
    tail = lambda x: mpmath.ncdf(-x)
    return failed + (1 - failed) * (
        tail(epsilon / mu - mu / 2) - math.exp(epsilon) * tail(epsilon / mu + mu / 2))

  ratio = lambda variance: math.sqrt(release.l2_sensitivity**2 / variance + 20 / 9.0**2)
  assert delta(ratio(release.noise_variance)) <= DELTA
  # Less than a grid's unit of the variance is given away.
  assert delta(ratio(release.noise_variance - 2.0)) > 0.99 * DELTA


@pytest.mark.parametrize('items, times', [(4, math.sqrt(2)), (0, 2)])
def test_replaced_client_has_twice_the_sensitivity_or_that_of_two_counts(items, times):
  plan = lambda **more: release_noise.planned(
      l2_sensitivity=10.0, items=items, dimension=50, epsilon=1.0, delta=DELTA, **more)
  release = plan(replace_one_of=50)
  assert release.adjacency == 'replace-one'
  assert 0.99 < accountant.epsilon(release, DELTA) <= 1
  inner = release_noise.release_of(release)
  assert inner.noise_multiplier == pytest.approx(
      times * plan().noise_multiplier, rel=0.01)


def test_sampling_does_not_amplify_what_may_fail():
  for sampled in (dict(kind=events.PoissonSampled, sampling_rate=0.5),
                  dict(kind=events.FixedSizeSampled, cohort_size=3, population=9)):
    with pytest.raises(ValueError, match='cannot be amplified: it may fail'):
      sampled.pop('kind')(event=_planned(), **sampled)


@pytest.mark.parametrize('change, message', [
    (dict(items=0), 'threshold must be given exactly where keys are private'),
    (dict(threshold=1), 'threshold must be at least 2'),
    (dict(items=9), 'l2_sensitivity must be at least the square root of items=9'),
    (dict(noise_variance=0.0), 'noise_variance must be')])
def test_parameters_that_contradict_each_other_are_refused(change, message):
  with pytest.raises(ValueError, match=message):
    dataclasses.replace(_planned(4), **change)
