"""The accountant: limits, refusals, properties, RDP against PLD."""

import fractions
import math

import hypothesis
from hypothesis import strategies
import numpy as np
import pytest
from scipy import special

from tff_pipelines.accounting.divergences import curves, pld, skellam_distribution
from tff_pipelines.accounting.events import kinds as events
from tff_pipelines.accounting.guarantees import accountant

GAUSSIAN = events.CentralGaussian(noise_multiplier=1.0)
SKELLAM = events.DistributedSkellam(
    l1_sensitivity=900.0, l2_sensitivity=30.0, noise_variance=2500.0)


def sampled(event, rate, rounds):
  return events.SelfComposed(
      event=events.PoissonSampled(event=event, sampling_rate=rate), count=rounds)


def test_auto_takes_pld_where_the_worst_pair_is_known_and_rdp_elsewhere():
  known = [GAUSSIAN, sampled(GAUSSIAN, 0.1, 5), events.SkellamCount(noise_variance=9.0),
           events.Vote(scheme='ae', noise_stddev=4.0, level='instance'),
           events.Nfdp(records=100, subset_size=3),
           events.FixedSizeSampled(event=GAUSSIAN, cohort_size=1, population=10),
           events.Vote(scheme='knn', noise_stddev=4.0, neighbours=3)]
  # Of an unknown number of coordinates, or too little noise for a certificate.
  unknown = [SKELLAM, sampled(SKELLAM, 0.1, 5),
             events.Vote(scheme='knn', noise_stddev=0.5, neighbours=3)]
  assert [accountant.bound(e, 1e-3).accountant for e in known] == ['pld'] * 7
  assert [accountant.bound(e, 1e-3).accountant for e in unknown] == ['rdp'] * 3


def test_delta_zero_is_infinite_except_for_pure_dp():
  assert accountant.epsilon(GAUSSIAN, 0.0) == math.inf
  assert accountant.epsilon(SKELLAM, 0) == math.inf
  local = events.SelfComposed(event=events.Piecewise(epsilon=0.5), count=4)
  assert accountant.epsilon(local, 0.0) == 2.0
  assert accountant.epsilon(local, 1e-6) <= 2.0
  assert accountant.delta(local, 2.0) == 0.0


@pytest.mark.parametrize('ask, event, number, how, message', [
    *((accountant.epsilon, GAUSSIAN, delta, {}, 'delta')
      for delta in (math.nan, -1e-9, 1.0, 1.5, math.inf, True, '0.1', None)),
    *((accountant.delta, GAUSSIAN, epsilon, {}, 'epsilon')
      for epsilon in (math.nan, -1e-9, math.inf, None)),
    # Where no worst pair is known.
    *((accountant.epsilon, event, 1e-3, {'accountant': 'pld'}, 'accountant=pld')
      for event in (SKELLAM, sampled(SKELLAM, 0.1, 5), events.FixedSizeSampled(
          event=SKELLAM, cohort_size=1, population=10))),
    *((accountant.epsilon, GAUSSIAN, 0.1, {name: 'magic'}, name)
      for name in ('accountant', 'amplification')),
    (accountant.epsilon, 'gaussian', 0.1, {}, 'event')])
def test_impossible_arguments_are_refused_by_name(ask, event, number, how, message):
  with pytest.raises(ValueError, match=message):
    ask(event, number, **how)


def test_a_faulty_curve_is_an_error_not_an_epsilon(monkeypatch):
  monkeypatch.setattr(events.CentralSkellam, 'curve',
      lambda self, max_order, amplification: np.full(max_order - 1, np.nan))
  broken = events.CentralSkellam(
      l1_sensitivity=7.0, l2_sensitivity=6.0, noise_variance=5.0)
  with pytest.raises(ValueError, match='divergence'):
    accountant.epsilon(broken, 1e-3, accountant='rdp')


@pytest.mark.slow
def test_extreme_noise_gives_the_right_limits():
  assert accountant.epsilon(events.CentralGaussian(noise_multiplier=0), 1e-5) == math.inf
  tiny = events.CentralGaussian(noise_multiplier=1e-5)
  assert accountant.epsilon(tiny, 1e-5) > 1e9
  assert accountant.epsilon(tiny, 1e-5, accountant='rdp') > 1e9
  for kind in ('auto', 'rdp'):
    large = accountant.epsilon(
        events.CentralGaussian(noise_multiplier=1e8), 1e-5, accountant=kind)
    assert 0 <= large < 1e-2
  huge = events.SkellamCount(noise_variance=1e30)  # Too many values to be listed.
  assert accountant.bound(huge, 1e-5).accountant == 'pld'
  assert 0 <= accountant.epsilon(huge, 1e-5) < 1e-2


def test_order_stops_at_the_block_of_the_best_one_without_losing_it():
  for noise in (0.3, 1.0, 30.0, 1e3):
    event = events.CentralGaussian(noise_multiplier=noise)
    epsilon, order = accountant.renyi_epsilon(event, 1e-6)
    alpha = curves.orders()
    every = (curves.gaussian(noise) + np.log1p(-1 / alpha) -
             (np.log(1e-6) + np.log(alpha)) / (alpha - 1))
    assert epsilon == pytest.approx(max(0, every.min()), rel=1e-12)
    assert order == np.argmin(every) + 2


positive = strategies.floats(0.05, 50.0)
deltas = strategies.floats(1e-12, 0.5)
rates = strategies.floats(1e-5, 1.0)
counts = strategies.integers(1, 5000)
more = strategies.floats(1.0, 10.0)
QUICK = hypothesis.settings(max_examples=60, deadline=None, derandomize=True)


def epsilon_of(z, rate, count, delta, num_reporting=1.0):
  event = events.DistributedSkellam(
      l1_sensitivity=1e4, l2_sensitivity=100.0, noise_variance=1e4 * z**2 * num_reporting)
  return accountant.epsilon(sampled(event, rate, count), delta)


@QUICK
@hypothesis.given(positive, rates, counts, deltas, more)
def test_epsilon_is_monotone_in_noise_rate_rounds_delta_and_dropouts(
    z, rate, count, delta, factor):
  here = epsilon_of(z, rate, count, delta)
  slack = 1 + 1e-9
  assert here >= 0 and not math.isnan(here)
  assert epsilon_of(z * factor, rate, count, delta) <= here * slack
  assert epsilon_of(z, rate / factor, count, delta) <= here * slack
  assert epsilon_of(z, rate, math.ceil(count / factor), delta) <= here * slack
  assert epsilon_of(z, rate, count, min(0.9, delta * factor)) <= here * slack
  assert epsilon_of(z, rate, count, delta, 1 / factor) >= here / slack


@pytest.mark.slow
def test_rdp_is_never_below_the_exact_delta_at_ten_thousand_settings():
  """At the RDP epsilon the exact delta of a release is within the target.

  5,000 scalar Skellam releases, summed over their values, and 5,000 composed
  Gaussians, by the closed form; both directions are the same by symmetry.
  """
  rng = np.random.default_rng(20260)
  worst = 0.0
  for _ in range(5000):
    variance = float(10**rng.uniform(-2, 4))
    shift = int(rng.integers(1, 6))
    delta = float(10**rng.uniform(-10, -0.5))
    epsilon, _ = accountant.epsilon_of_curve(
        curves.skellam(l1=shift, l2=shift, variance=variance), delta)
    half = int(12 * math.sqrt(variance)) + 30
    k = np.arange(-half, half + 1, dtype=np.float64)
    logs = skellam_distribution.log_pmf(
        np.arange(-half, half + 1 + shift, dtype=np.float64), variance)
    p, loss = np.exp(logs[:k.size]), logs[:k.size] - logs[shift:]
    exact = float(p @ -np.expm1(np.minimum(epsilon - loss, 0)))
    worst = max(worst, exact / delta)
    assert exact <= delta * (1 + 1e-9), (variance, shift, delta)
  noise = 10**rng.uniform(-1, 2, 5000)
  target = 10**rng.uniform(-10, -0.5, 5000)
  count = rng.integers(1, 2000, 5000)
  for z, delta, times in zip(noise, target, count):
    epsilon, _ = accountant.epsilon_of_curve(times * curves.gaussian(float(z)), delta)
    joint = z / math.sqrt(times)
    a, b = 0.5 / joint, epsilon * joint
    exact = special.ndtr(a - b) - math.exp(
        min(700.0, epsilon) + special.log_ndtr(-a - b)) if epsilon < 700 else (
            special.ndtr(a - b))
    worst = max(worst, exact / delta)
    assert exact <= delta * (1 + 1e-9), (z, delta, times)
  assert worst > 0.1  # The comparison has power: RDP comes near.


@pytest.mark.parametrize('z, rate, count, delta', [
    (1.0686, 1.269e-6, 33497, 2.68e-8), (1.6437, 2.2e-4, 1612, 3.83e-5),
    (50.0, 1e-5, 10**8, 1e-6), (0.3, 1.0, 3, 1e-2)])
def test_auto_is_never_above_any_accountant(z, rate, count, delta):
  event = sampled(events.CentralGaussian(noise_multiplier=z), rate, count)
  both = [accountant.bound(event, delta, accountant=kind) for kind in ('pld', 'rdp')]
  best = accountant.bound(event, delta)
  assert best.epsilon == min(bound.epsilon for bound in both)
  assert best.accountant == min(both, key=lambda bound: bound.epsilon).accountant
  assert (best.order is None) == (best.accountant == 'pld')
  epsilon = best.epsilon
  assert accountant.delta(event, epsilon) == min(
      accountant.delta(event, epsilon, accountant=kind) for kind in ('pld', 'rdp'))


def test_a_coarse_grid_is_a_caveat_of_its_own_number_alone(monkeypatch):
  event = sampled(GAUSSIAN, 0.05, 1000)
  fine = accountant.bound(event, 1e-5).epsilon
  monkeypatch.setattr(pld, '_MAX_GRID', 1 << 13)
  accountant._epsilon.cache_clear()
  coarse = accountant.bound(event, 1e-5, accountant='pld')
  named = [c for c in coarse.caveats if c.name == 'coarse grid of privacy losses']
  assert coarse.epsilon > fine and len(named) == 1
  stated = float(named[0].split('by up to ')[1].rstrip('%'))
  assert fine >= coarse.epsilon / (1 + stated / 100)
  best = accountant.bound(event, 1e-5)
  assert best.accountant == 'rdp' or named[0] in best.caveats
  assert accountant.bound(event, 1e-5, accountant='rdp').caveats == coarse.caveats[:1]
  accountant._epsilon.cache_clear()


@pytest.mark.parametrize('population, delta', [
    (2, 0.46), (20, 0.037), (200, 0.0029), (539, 0.00098), (3400, 0.00013),
    (9999, 3.9e-5), (10_000, 1e-5), (35_111, 1e-5), (35_112, 9.9e-6),
    (10**6, 2.5e-7), (10**9, 1.2e-10)])
def test_the_default_delta_is_well_below_one_over_the_population(population, delta):
  found = accountant.default_delta(population)
  assert found == delta
  # Its tenth power against that of N^-1.1, in integers.
  exact = fractions.Fraction(found)**10 * population**11
  assert exact <= 1 + 1e-12 and found < 1 / population
  assert accountant.warnings_about(1.0, found, population) == []


@pytest.mark.parametrize('units', [3, 49, 200, 539, 3400, 10**6])
@pytest.mark.parametrize('of', ['population', 'records'])
def test_a_delta_is_warned_of_from_one_over_the_number_on(units, of):
  at = accountant.warnings_about(1.0, 1 / units, units, of)
  assert [caveat.name for caveat in at] == [f'delta not below 1/{of}']
  # Three digits are printed, rounded up.
  below = math.nextafter(1 / units, 0)
  assert accountant.warnings_about(1.0, below, units, of) == at
  assert accountant.warnings_about(1.0, 0.99 / units, units, of) == []


def test_a_delta_is_judged_by_what_neighbouring_inputs_differ_in():
  record = events.SampledRecords(
      event=events.CentralGaussian(noise_multiplier=1.0), sampling_rate=1.0)
  client = events.CentralGaussian(noise_multiplier=1.0)
  sizes = dict(population=10, records=100)
  for event, delta, warned in (
      (record, 0.01, True), (record, 0.009, False), (client, 0.01, False),
      (client, 0.1, True)):
    assert bool(accountant.bound(event, delta, **sizes).caveats) == warned
  caveat, = accountant.bound(record, 1e-4, population=10).caveats
  assert 'well below 1 over the number of records' in str(caveat)
  assert accountant.bound(record, 1e-6, population=10).caveats == ()
