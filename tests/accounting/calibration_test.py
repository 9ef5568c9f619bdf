"""Calibration against published numbers, on the private side."""

import math

import numpy as np
import pytest

from aggregators import params as params_lib
from tff_pipelines.accounting.events import kinds as events
from tff_pipelines.accounting.guarantees import (
    accountant, answers, calibration, mechanisms)
from tff_pipelines.accounting.sampling import cohorts

POPULATION, COHORT, ROUNDS = 3400, 100, 1500
DELTA = 1 / POPULATION
emnist = params_lib.DistributedSumParams(
    clip=0.03, noise_multiplier=1.0, bits=18, dimension=1018174,
    cohort_size=COHORT).replace


def gaussian(z):
  return events.CentralGaussian(noise_multiplier=z)


def training(event):
  return events.SelfComposed(event=events.PoissonSampled(
          event=event, sampling_rate=COHORT / POPULATION), count=ROUNDS)


def skellam_training(params, surviving_fraction=1.0):
  return training(events.DistributedSkellam.from_params(params, surviving_fraction))


def noise_of(params, build_event, epsilon, delta=DELTA, **how):
  return calibration.noise_multiplier(
      lambda z: build_event(params.replace(noise_multiplier=z)), epsilon=epsilon,
      delta=delta, **how)


@pytest.mark.parametrize('bits,amplification,kind,expected', [
    (14, 'tight', 'rdp', 0.8681), (16, 'tight', 'rdp', 0.8492),
    (18, 'tight', 'rdp', 0.8480), (14, 'generic', 'auto', 0.9159),
    (16, 'generic', 'auto', 0.8938), (18, 'generic', 'auto', 0.8924),
    # As a Gaussian, of which it is a post-processing.
    (14, 'tight', 'auto', 0.80797), (16, 'tight', 'auto', 0.7924),
    (18, 'tight', 'auto', 0.7914)])
def test_federated_emnist_noise_multipliers(bits, amplification, kind, expected):
  assert noise_of(emnist(bits=bits), skellam_training, 10, accountant=kind,
      amplification=amplification) == pytest.approx(expected, abs=5e-5)


def test_federated_emnist_gaussian_noise_multipliers():
  def event_of(z):
    return training(gaussian(z))
  by_rdp = calibration.noise_multiplier(
      event_of, epsilon=10, delta=DELTA, accountant='rdp')
  assert by_rdp == pytest.approx(0.8479, abs=5e-5)
  by_pld = calibration.noise_multiplier(event_of, epsilon=10, delta=DELTA)
  assert by_pld < by_rdp
  assert accountant.epsilon(event_of(0.848), DELTA) == pytest.approx(8.49, abs=0.01)


@pytest.mark.parametrize('amplification', ['tight', 'generic'])
@pytest.mark.parametrize('epsilon', [1.5, 3.0, 10.0, 50.0])
def test_result_meets_the_target_and_a_little_less_noise_does_not(amplification, epsilon):
  def event_of(z):
    return skellam_training(emnist(noise_multiplier=z))
  z = calibration.noise_multiplier(
      event_of, epsilon=epsilon, delta=DELTA, amplification=amplification)
  assert accountant.epsilon(event_of(z), DELTA, amplification=amplification) <= epsilon
  assert accountant.epsilon(
      event_of(z * (1 - 2e-6)), DELTA, amplification=amplification) > epsilon


def test_published_local_noise_is_reproduced():
  params = emnist(clip=3.0, bits=30, dimension=2**24, cohort_size=16, fixed_scale=350.0)
  noise = noise_of(params, lambda p: events.SelfComposed(
      event=events.DistributedSkellam.from_params(p), count=150), 6, 0.01,
                   accountant='rdp')
  assert params.replace(noise_multiplier=noise).local_stddev_grid / 350 == (
      pytest.approx(11.435854, rel=1e-6))


@pytest.mark.parametrize('epsilon,exact,bits10,bits16', [
    (1, 0.1392, 0.1787, 0.1637), (6, 0.00583, 0.00713, 0.00667)])
def test_mean_estimation_noise_variances(epsilon, exact, bits10, bits16):
  def variance(z):
    return (z * 10 / 100)**2
  z = calibration.noise_multiplier(gaussian, epsilon=epsilon, delta=1e-5)
  assert variance(z) == pytest.approx(exact, rel=1e-3)
  for bits, expected in ((10, bits10), (16, bits16)):
    params = emnist(clip=10.0, bits=bits, dimension=250, k_stddevs=2.0)
    assert variance(noise_of(params, events.DistributedSkellam.from_params, epsilon, 1e-5,
        accountant='rdp')) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize('amplification,expected', [
    ('generic', (6.57, 7.42, 8.78, 11.80)), ('tight', (6.55, 7.35, 8.61, 12.92))])
def test_dropouts_that_nothing_tops_up_cost_epsilon(amplification, expected):
  params = emnist(noise_multiplier=noise_of(
      emnist(), skellam_training, 6, accountant='rdp', amplification=amplification))
  epsilons = [accountant.epsilon(skellam_training(params, fraction), DELTA,
                                 accountant='rdp', amplification=amplification)
              for fraction in (0.9, 0.8, 0.7, 0.5)]
  assert epsilons == pytest.approx(expected, abs=6e-3)


@pytest.mark.slow
def test_rounds_are_the_maximum_that_keeps_the_target():
  params = emnist(noise_multiplier=0.9)
  def event_of(count):
    return events.SelfComposed(event=skellam_training(params).event, count=count)
  rounds = calibration.rounds(event_of, epsilon=8, delta=DELTA)
  assert accountant.epsilon(event_of(rounds), DELTA) <= 8
  assert accountant.epsilon(event_of(rounds + 1), DELTA) > 8


def test_bits_are_the_minimum_that_keeps_the_target():
  def event_of(bits):
    return skellam_training(emnist(bits=bits, noise_multiplier=0.855))
  fewest = calibration.bits(event_of, epsilon=10, delta=DELTA)
  assert accountant.epsilon(event_of(fewest), DELTA) <= 10
  assert accountant.epsilon(event_of(fewest - 1), DELTA) > 10


def answered(kind, bits=None, **query):
  return answers.answer(answers.Query(kind=kind, epsilon=10.0, delta=DELTA, **query),
      mechanisms.SumMechanism(
          mechanism='skellam', clip=0.03, bits=bits, dimension=1018174,
          cohort_size=COHORT, population=POPULATION, rounds=ROUNDS, sampling='poisson'))


def test_suggested_bits_are_the_minimum_within_one_percent_of_the_gaussian():
  found = answered('bits')
  assert found.noise_multiplier <= 1.01 * 0.84794
  assert noise_of(emnist(bits=found.bits - 1), skellam_training, 10,
                  accountant='rdp') > 1.01 * 0.84793


@pytest.mark.slow
def test_degenerate_grids_are_refused_and_the_error_names_bits_that_do():
  with pytest.raises(ValueError, match='degenerate') as error:
    answered('noise_multiplier', 11)
  bits = int(str(error.value).split('bits=')[-1].split()[0])
  assert answered('noise_multiplier', bits).epsilon <= 10


def test_a_grid_that_holds_nothing_says_so_in_one_line():
  params = emnist(clip=1.0, noise_multiplier=50.0, bits=4, dimension=1, cohort_size=10)
  assert params.l2_sensitivity_squared == 0
  with pytest.raises(ValueError, match='degenerate setting') as error:
    events.DistributedSkellam.from_params(params)
  assert 'bits=4' in str(error.value) and '\n' not in str(error.value)


@pytest.mark.parametrize('ask, event_of, epsilon, delta, message', [
    *((calibration.noise_multiplier, gaussian, epsilon, delta, message)
      for epsilon, delta, message in (
          (0.0, 0.1, 'epsilon|delta'), (-1.0, 0.1, 'epsilon|delta'),
          (math.nan, 0.1, 'epsilon|delta'), (1.0, 1.0, 'epsilon|delta'),
          (1.0, math.nan, 'epsilon|delta'), (1.0, 0.0, 'cannot be reached'))),
    (calibration.noise_multiplier, lambda z: events.Nfdp(records=10, subset_size=1),
     1.0, 0.5, 'without noise'),
    (calibration.rounds, lambda n: events.SelfComposed(
        event=events.NoPrivacy(), count=n), 1.0, 0.1, 'not even 1'),
    (calibration.rounds, lambda _: events.PostProcessing(), 1.0, 0.1, 'unbounded')])
def test_targets_that_are_impossible_or_out_of_reach_are_refused(
    ask, event_of, epsilon, delta, message):
  with pytest.raises(ValueError, match=message):
    ask(event_of, epsilon=epsilon, delta=delta)


def test_cohort_quantile_is_exceeded_once_in_a_thousand_rounds():
  quantile = cohorts.upper_quantile(POPULATION, COHORT / POPULATION)
  sizes = np.random.default_rng(1).binomial(POPULATION, COHORT / POPULATION, 10**6)
  assert (sizes > quantile).mean() <= 1e-3
  assert 1e-3 < (sizes > quantile - 1).mean() * 1.2
  assert cohorts.upper_quantile(7, 1.0) == 7
  assert cohorts.upper_quantile(10, 1e-9) == 1
  with pytest.raises(ValueError, match='sampling_rate'):
    cohorts.upper_quantile(10, math.nan)
