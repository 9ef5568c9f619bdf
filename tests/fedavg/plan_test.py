"""What is accounted is what is executed."""

import json
import math

import numpy as np
import pytest

from tff_pipelines import privacy_plan
from tff_pipelines.accounting import accountant
from tff_pipelines.accounting import events
from tff_pipelines.accounting import request as request_lib

PRIVATE = ('gaussian', 'skellam')


def _request(**changes):
  return request_lib.Request(**{
      'query': 'epsilon', 'mechanism': 'skellam', 'epsilon': 4.0, 'clip': 0.3,
      'bits': 18, 'cohort_size': 20.0, 'population': 200, 'dimension': 1000,
      'rounds': 10, 'sampling': 'poisson', **changes})


def _plan(given=frozenset(), simulation_seed=None, diagnostics=False,
          noise_generator='philox', **changes):
  return privacy_plan.PrivacyPlan.calibrate(
      _request(**changes), given=given, simulation_seed=simulation_seed,
      diagnostics=diagnostics, noise_generator=noise_generator)


@pytest.mark.parametrize('mechanism', PRIVATE)
@pytest.mark.parametrize('epsilon', [0.5, 8.0])
@pytest.mark.parametrize('sampling, cohort_size', [
    ('poisson', 20.0), ('fixed', 20.0), ('none', 200.0)])
def test_calibrated_epsilon_comes_close_and_never_exceeds(
    mechanism, epsilon, sampling, cohort_size):
  plan = _plan(mechanism=mechanism, epsilon=epsilon, sampling=sampling,
               cohort_size=cohort_size)
  assert 0.999 * epsilon < plan.epsilon(10) <= epsilon
  assert plan.epsilon(11) > epsilon
  assert 0 == plan.epsilon(0) < plan.epsilon(1) < plan.epsilon(10)


def test_noise_multiplier_is_taken_as_given():
  plan = _plan(epsilon=None, noise_multiplier=1.5)
  assert plan.request.noise_multiplier == plan.params.noise_multiplier == 1.5
  exact = accountant.epsilon(plan.request.event(), plan.request.delta)
  assert exact <= plan.epsilon(10) == pytest.approx(exact, rel=1e-9)


def test_delta_is_one_over_the_population_unless_given():
  assert _plan().request.delta == 1 / 200
  assert _plan(delta=1e-6).request.delta == 1e-6


def test_unamplified_epsilon_ignores_sampling():
  plan, everyone = _plan(noise_multiplier=1.0, epsilon=None), _plan(
      noise_multiplier=1.0, epsilon=None, sampling='none', cohort_size=200.0)
  assert plan.epsilon_unamplified(10) > plan.epsilon(10)
  assert everyone.epsilon_unamplified(10) == everyone.epsilon(10)
  assert plan.epsilon_unamplified(11) > plan.epsilon_unamplified(10)
  assert plan.epsilon_unamplified(0) == 0


def test_poisson_sampler_draws_at_the_rate_of_the_event():
  plan = _plan(simulation_seed=3)
  event = plan.round_event
  assert isinstance(event, events.PoissonSampled)
  assert event.sampling_rate == 20 / 200
  rounds = 400
  counts = np.zeros(200)
  sizes = []
  for number in range(rounds):
    cohort = plan.sampler.sample(number)
    counts[cohort] += 1
    sizes.append(len(cohort))
  deviation = math.sqrt(rounds * 0.1 * 0.9)
  # 200 clients: five standard deviations are exceeded once in 10^4 seeds.
  assert np.abs(counts - rounds * 0.1).max() < 5 * deviation
  assert np.var(sizes) == pytest.approx(200 * 0.1 * 0.9, rel=0.35)
  assert event.event.cohort_size == 20


def test_fixed_sampler_draws_subsets_of_the_size_of_the_event():
  plan = _plan(sampling='fixed')
  event = plan.round_event
  assert isinstance(event, events.FixedSizeSampled)
  assert (event.cohort_size, event.population) == (20, 200)
  assert plan.guarantee(10).adjacency == 'replace-one'
  cohorts = [plan.sampler.sample(number) for number in range(20)]
  assert all(len(set(cohort.tolist())) == 20 for cohort in cohorts)
  assert len({tuple(cohort) for cohort in cohorts}) == 20


def test_without_sampling_everyone_takes_part_and_nothing_is_amplified():
  plan = _plan(sampling='none', cohort_size=200.0)
  assert isinstance(plan.round_event, events.DistributedSkellam)
  np.testing.assert_array_equal(plan.sampler.sample(1), np.arange(200))


def test_unseeded_cohorts_do_not_repeat_and_seeded_ones_do():
  plain, seeded = _plan(), _plan(simulation_seed=3)
  assert tuple(plain.sampler.sample(1)) != tuple(plain.sampler.sample(1))
  assert tuple(seeded.sampler.sample(1)) == tuple(seeded.sampler.sample(1))
  assert tuple(seeded.sampler.sample(1)) != tuple(seeded.sampler.sample(2))


@pytest.mark.parametrize('honest', [1.0, 0.7])
def test_event_has_the_numbers_that_the_sum_runs_with(honest):
  plan = _plan(min_honest_fraction=honest, assumed_colluders=1 if honest < 1 else 0)
  event = plan.round_event.event
  assert event.noise_variance == plan.params.noise_variance
  assert event.l1_sensitivity == plan.params.l1_sensitivity
  assert event.l2_sensitivity == plan.params.l2_sensitivity
  assert event.min_honest_fraction == plan.params.min_honest_fraction == honest
  assert plan.params.total_noise_variance == pytest.approx(
      event.noise_variance / honest)


@pytest.mark.parametrize('mechanism', ('none', *PRIVATE))
@pytest.mark.parametrize('sampling, cohort_size', [
    ('poisson', 20.0), ('fixed', 20.0), ('none', 200.0)])
def test_round_event_survives_json(mechanism, sampling, cohort_size):
  plan = _plan(mechanism=mechanism, sampling=sampling, cohort_size=cohort_size)
  event = plan.round_event
  assert events.from_json(json.loads(json.dumps(event.to_json()))) == event


def test_ledger_of_the_rounds_gives_the_epsilon_of_the_plan():
  plan = _plan()
  composed = events.SelfComposed(event=plan.round_event, count=7)
  exact = accountant.epsilon(composed, plan.request.delta)
  # The plan also counts what the sampler of the noise takes of delta.
  assert exact <= plan.epsilon(7) == pytest.approx(exact, rel=1e-9)


def test_none_guarantees_nothing():
  plan = _plan(mechanism='none')
  assert not plan.is_private and plan.params is None
  assert plan.epsilon(1) == math.inf
  assert plan.request.epsilon is plan.request.noise_multiplier is None


CHANGES = [
    {'mechanism': 'gaussian'}, {'epsilon': 4.5},
    {'epsilon': None, 'noise_multiplier': 1.0}, {'delta': 1e-4}, {'clip': 0.31},
    {'bits': 17}, {'beta': 0.5}, {'k_stddevs': 3.5}, {'min_honest_fraction': 0.9},
    {'assumed_colluders': 1, 'min_honest_fraction': 0.9}, {'cohort_size': 21.0},
    {'rounds': 11}, {'sampling': 'fixed'}, {'amplification': 'generic'},
    {'accountant': 'rdp'}, {'allow_degenerate': True}, {'simulation_seed': 1},
    {'diagnostics': True}, {'noise_generator': 'chacha20'}, {'population': 201}, {'dimension': 1001}]


def test_configuration_hash_changes_with_everything_that_privacy_hangs_on():
  hashes = [privacy_plan.configuration_hash(_plan(**change).configuration())
            for change in ({}, *CHANGES)]
  assert len(set(hashes)) == len(hashes)
  again = privacy_plan.configuration_hash(_plan().configuration())
  assert again == hashes[0]
  assert len(again) == 64


def test_configuration_is_json():
  found = _plan(simulation_seed=2).configuration()
  assert json.loads(json.dumps(found, allow_nan=False)) == found


@pytest.mark.parametrize('changes, message', [
    ({'epsilon': 0.0}, 'epsilon must be greater than 0'),
    ({'epsilon': -1.0}, 'epsilon must be greater than 0'),
    ({'epsilon': None}, 'epsilon must be given'),
    ({'noise_multiplier': 1.0}, 'epsilon and noise_multiplier must not both'),
    ({'epsilon': None, 'noise_multiplier': 0.0}, 'noise_multiplier must be greater'),
    ({'delta': 0.0}, 'delta must be strictly between 0 and 1'),
    ({'delta': 1.0}, 'delta must be strictly between 0 and 1'),
    ({'clip': 0.0}, 'clip must be greater than 0'),
    ({'clip': None}, 'clip must be given'),
    ({'bits': 4}, 'bits=4 are too few for a cohort'),
    ({'bits': 31}, 'bits must be at most 30'),
    ({'cohort_size': 0.5}, 'cohort_size must be at least 1'),
    ({'cohort_size': 201.0}, 'cohort_size=201 is larger than the population'),
    ({'sampling': 'fixed', 'cohort_size': 20.5}, 'cohort_size must be an integer'),
    ({'sampling': 'none'}, 'cohort_size must be the population, 200'),
    ({'population': 1, 'cohort_size': 1.0}, 'delta must be given'),
    ({'assumed_colluders': 1}, 'assumed_colluders=1 leave fewer'),
    ({'min_honest_fraction': 0.0}, 'min_honest_fraction'),
    ({'mechanism': 'laplace'}, 'mechanism must be one of')])
def test_plan_that_is_impossible_is_refused_by_name(changes, message):
  with pytest.raises(ValueError, match=message):
    _plan(**changes)


@pytest.mark.parametrize('mechanism', privacy_plan.MECHANISMS)
@pytest.mark.parametrize('value', [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize('name', [
    'epsilon', 'noise_multiplier', 'delta', 'clip', 'beta', 'k_stddevs',
    'min_honest_fraction', 'cohort_size'])
def test_number_that_is_not_finite_is_refused_even_if_unused(
    mechanism, value, name):
  with pytest.raises(ValueError, match=f'{name} must be a finite number'):
    privacy_plan.check(_request(mechanism=mechanism, **{name: value}))


def test_sampling_is_checked_without_privacy_too():
  with pytest.raises(ValueError, match='cohort_size must be an integer'):
    _plan(mechanism='none', sampling='fixed', cohort_size=20.5)


def test_degenerate_grid_needs_a_flag_and_then_warns():
  coarse = {'bits': 6, 'epsilon': None, 'noise_multiplier': 1.0}
  with pytest.raises(ValueError, match='degenerate setting.*bits=7 would do'):
    _plan(**coarse)
  warnings = _plan(**coarse, allow_degenerate=True).warnings(10)
  assert any('degenerate grid' in text for text in warnings)


@pytest.mark.parametrize('mechanism, given, expected', [
    ('skellam', {'clip', 'bits', 'beta', 'epsilon', 'delta', 'sampling'}, set()),
    ('gaussian', {'clip', 'epsilon', 'delta', 'rounds'}, set()),
    ('gaussian', {'bits', 'beta', 'k_stddevs', 'min_honest_fraction'},
     {'bits', 'beta', 'k_stddevs', 'min_honest_fraction'}),
    ('none', {'rounds', 'sampling', 'cohort_size'}, set()),
    ('none', {'clip', 'epsilon', 'noise_multiplier', 'delta', 'bits'},
     {'clip', 'epsilon', 'noise_multiplier', 'delta', 'bits'})])
def test_flags_without_effect_are_reported(mechanism, given, expected):
  warnings = _plan(given=frozenset(given), mechanism=mechanism).warnings(10)
  found = {text.split()[0].removeprefix('--') for text in warnings
           if 'is not used by' in text}
  assert found == expected


def test_colluders_of_a_central_mechanism_are_reported():
  warnings = _plan(mechanism='gaussian', assumed_colluders=3,
                   given=frozenset({'assumed_colluders'})).warnings(10)
  assert '--assumed_colluders is not used by mechanism=gaussian' in warnings


def test_seed_and_diagnostics_are_warned_of():
  assert not any('seed' in text or 'diagnostics' in text
                 for text in _plan().warnings(10))
  warnings = _plan(simulation_seed=0, diagnostics=True).warnings(10)
  assert any(text.startswith('seeded run: no guarantee') for text in warnings)
  assert any(text.startswith('diagnostics are on') and 'outside the guarantee' in text
             for text in warnings)


@pytest.mark.parametrize('value, text', [
    (0.0, '0.0000'), (7.99991, '8.0000'), (7.9999, '7.9999'), (1.00001, '1.0001'),
    (math.nextafter(0.06, 1), '0.0601'), (5e-324, '0.0001'), (math.inf, 'inf')])
def test_epsilon_is_described_rounded_up(value, text):
  assert privacy_plan.describe_epsilon(value) == text


def test_bits_that_would_do_are_named_where_no_noise_meets_the_target():
  request = _request(bits=6, epsilon=8.0, dimension=7346, rounds=20)
  with pytest.raises(ValueError, match=r'bits=6 are too few .*; bits=\d+ would do'):
    privacy_plan.PrivacyPlan.calibrate(request)
