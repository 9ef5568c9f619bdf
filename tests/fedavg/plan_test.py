"""The plan accounts for what is executed."""

import functools
import json
import math

import dp_accounting
from dp_accounting import pld
import numpy as np
import pytest

from tff_pipelines.accounting.events import kinds as events
from tff_pipelines.accounting.guarantees import accountant, mechanisms, noise_budget
from tff_pipelines.common import decimals
from tff_pipelines.fedavg import plan as plan_lib, planning
from tff_pipelines.fedavg.plan import FedAvgPlan
from tff_pipelines.fedavg.settings import MECHANISMS, TrainSettings

PRIVATE = ('gaussian', 'skellam')


def _mechanism(**changes):
  return mechanisms.SumMechanism(**{
      'mechanism': 'skellam', 'clip': 0.3, 'bits': 18, 'cohort_size': 20.0,
      'population': 200, 'dimension': 1000, 'rounds': 10, 'sampling': 'poisson',
      **changes})


def _plan(epsilon=4.0, attributes=None, **changes):
  """A plan that meets a target, unless the noise is given or there is none."""
  if 'noise_multiplier' in changes or changes.get('mechanism') == 'none':
    epsilon = None
  return FedAvgPlan.calibrate(
      _mechanism(**changes), target_epsilon=epsilon, **(attributes or {}))


@pytest.mark.slow
@pytest.mark.parametrize('mechanism', PRIVATE)
@pytest.mark.parametrize('epsilon, sampling, cohort_size', [
    (0.5, 'poisson', 20.0), (8.0, 'fixed', 20.0), (0.5, 'none', 200.0)])
def test_calibrated_epsilon_comes_close_and_never_exceeds(
    mechanism, epsilon, sampling, cohort_size):
  plan = _plan(
      mechanism=mechanism, epsilon=epsilon, sampling=sampling, cohort_size=cohort_size)
  assert 0.999 * epsilon < plan.epsilon(10) <= epsilon
  assert plan.epsilon(11) > epsilon
  assert 0 == plan.epsilon(0) < plan.epsilon(1) < plan.epsilon(10)


def test_ledger_of_the_rounds_gives_the_epsilon_of_the_plan():
  plan = _plan(noise_multiplier=1.5)
  assert plan.mechanism.noise_multiplier == plan.params.noise_multiplier == 1.5
  composed = events.SelfComposed(event=plan.event(1), count=10)
  exact = accountant.epsilon(composed, plan.delta)
  # The plan also counts what sampling error of the noise consumes of delta.
  assert exact * (1 - 1e-12) <= plan.epsilon(10) == pytest.approx(exact, rel=1e-9)


def test_delta_is_well_below_one_over_the_population_unless_given():
  assert _plan().delta == 0.0029  # 200^-1.1 = 0.00294...
  assert _plan(attributes={'delta': 1e-6}).delta == 1e-6


def test_epsilon_of_the_server_ignores_sampling():
  plan, everyone = _plan(noise_multiplier=1.0), _plan(
      noise_multiplier=1.0, sampling='none', cohort_size=200.0)
  server = plan.guarantee(10).server.epsilon
  assert plan.epsilon(10) < server < plan.guarantee(11).server.epsilon
  assert everyone.guarantee(10).server.epsilon == everyone.epsilon(10)


def test_cohorts_are_sampled_as_the_event_accounts_for_them():
  poisson = _plan(attributes={'seed': 3})
  assert poisson.event(1).sampling_rate == 20 / 200 == poisson.scheme.expected_cohort / 200
  assert poisson.event(1).event.cohort_size == 20
  assert tuple(poisson.scheme.sample(1)) == tuple(poisson.scheme.sample(1))
  fixed = _plan(sampling='fixed')
  assert (fixed.event(1).cohort_size, fixed.event(1).population) == (20, 200)
  assert fixed.guarantee(10).adjacency == 'replace-one'
  assert len(set(fixed.scheme.sample(1).tolist())) == 20
  assert tuple(fixed.scheme.sample(1)) != tuple(fixed.scheme.sample(1))  # Unseeded.
  everyone = _plan(sampling='none', cohort_size=200.0)
  assert isinstance(everyone.event(1), events.DistributedSkellam)
  np.testing.assert_array_equal(everyone.scheme.sample(1), np.arange(200))


@pytest.mark.parametrize('honest', [1.0, 0.7])
def test_event_has_the_numbers_that_the_sum_runs_with(honest):
  plan = _plan(min_honest_fraction=honest, assumed_colluders=1 if honest < 1 else 0)
  event, params = plan.event(1).event, plan.params
  assert event.noise_variance == params.noise_variance
  assert event.l1_sensitivity == params.l1_sensitivity
  assert event.l2_sensitivity == params.l2_sensitivity
  assert event.min_honest_fraction == params.min_honest_fraction == honest
  assert params.total_noise_variance == pytest.approx(event.noise_variance / honest)


@pytest.mark.parametrize('mechanism', ('none', *PRIVATE))
@pytest.mark.parametrize('sampling, cohort_size', [
    ('poisson', 20.0), ('fixed', 20.0), ('turns', 20.0), ('none', 200.0)])
def test_round_event_survives_json(mechanism, sampling, cohort_size):
  plan = _plan(mechanism=mechanism, sampling=sampling, cohort_size=cohort_size)
  event = plan.event(1)
  assert events.from_json(json.loads(json.dumps(event.to_json()))) == event


def test_none_guarantees_nothing():
  plan = _plan(mechanism='none')
  assert not plan.is_private and plan.params is None
  assert (plan.epsilon(1), plan.delta) == (math.inf, 0.0029)
  assert plan.mechanism.noise_multiplier is plan.target_epsilon is (
      plan.guarantee(3).outsiders) is None
  assert _plan(mechanism='none', population=1, cohort_size=1.0).delta is None


def test_calibrated_numbers_are_recorded_and_taken_over():
  plan = _plan()
  recorded = json.loads(json.dumps(plan.configuration(), allow_nan=False))
  assert recorded == {
      'noise_multiplier': plan.mechanism.noise_multiplier, 'delta': 0.0029,
      'dimension': 1000, 'population': 200, 'max_participations': None,
      'column': [1], 'bits': 18, 'rotation_order': '2^10'}
  settings = TrainSettings(epsilon=4.0, cohort_size=20.0, rounds=10,
                           sampling='poisson', max_participations=0)
  build = functools.partial(plan_lib.build, dimension=1000, population=200)
  assert build(settings).mechanism == plan.mechanism
  # What an earlier start was calibrated to holds, even if it would be another now.
  earlier = {**recorded, 'noise_multiplier': 0.9, 'delta': 1 / 200}
  other = build(settings, recorded=earlier)
  assert (other.mechanism.noise_multiplier, other.target_epsilon) == (0.9, 4)
  # So does its delta, whatever the default was then, unless one is given.
  assert other.delta == 1 / 200
  assert build(settings.replace(delta=1e-4), recorded=earlier).delta == 1e-4
  # Noise that was given is not calibrated and not recorded otherwise.
  given = settings.replace(epsilon=None, noise_multiplier=0.8)
  assert build(given, recorded=earlier).mechanism.noise_multiplier == 0.8


def test_added_rounds_must_meet_the_target_against_the_server_too():
  targets = dict(epsilon=None, attributes=dict(target_epsilon_server=8.0))
  noise = _plan(**targets).mechanism.noise_multiplier
  targets['attributes']['recorded_noise'] = noise
  more = _plan(**targets, rounds=20)
  cost = more.guarantee(20).server.epsilon
  assert cost > 8 and more.guarantee(20).outsiders.epsilon < 8
  with pytest.raises(ValueError, match=r'epsilon_server=8 was met by 10 rounds; 20 .* '
                     f'cost {decimals.epsilon(cost)}: give --epsilon_server anew'):
    planning.check_more_rounds(more, 10)
  # A limit on participations meets it in any number of rounds.
  targets['attributes']['recorded_noise'] = 2 * noise
  planning.check_more_rounds(_plan(**targets, rounds=20, max_participations=10), 10)


@pytest.mark.parametrize('changes, limit', [
    ({}, 2), (dict(simulated_dropout_rate=0.1), 2), (dict(min_honest_fraction=0.8), 2),
    (dict(simulated_dropout_rate=0.1, min_honest_fraction=0.8), None),
    (dict(assumed_colluders=1, min_honest_fraction=0.8), None),
    (dict(simulated_dropout_rate=0.1, min_honest_fraction=0.8, max_participations=1), 1)])
def test_default_limit_never_takes_the_amplification(changes, limit):
  plan = plan_lib.build(TrainSettings(
      cohort_size=20.0, rounds=10, noise_multiplier=1.0, sampling='poisson', **changes),
                        dimension=1000, population=200)
  assert plan.mechanism.max_participations == limit
  if limit != 1:
    assert plan.event(1).pivotal_probability < 0.5


def test_certificates_of_all_numbers_are_stated():
  chosen = _plan(noise_multiplier=1.0).guarantee(10)
  one, other = chosen.server.certificates, chosen.server_any_cohorts.certificates
  assert {*map(str, one)} != {*map(str, other)}
  for certificates in (one, other):
    assert certificates[0] in chosen.to_json()['skellam_as_gaussian']
  plan = _plan(noise_multiplier=1.0, sampling='fixed', cohort_size=2.0)
  guarantee = plan.guarantee(10)
  of_participant, = guarantee.participant.certificates
  assert of_participant['variance'] < 0.6 * guarantee.server.certificates[0]['variance']
  for stated in (guarantee.to_json()['skellam_as_gaussian'],
                 plan.header(10)['certificates']):
    assert of_participant in stated and guarantee.server.certificates[0] in stated


@pytest.mark.slow
def test_unit_of_privacy_and_words_reach_the_guarantee():
  terms, central = (plan_lib.build(
      TrainSettings(rounds=2, mechanism=mechanism), dimension=1000, population=200,
      privacy_unit='one writer').guarantee(2).terms for mechanism in (
          'skellam', 'gaussian'))
  assert (terms.privacy_unit, terms.sampling) == ('one writer', 'turns')
  assert terms.secure_aggregation and not central.secure_aggregation
  assert 'tables' in terms.sampler and '2110.04995' in terms.source
  assert 'trusted' in central.trust_model
  assert 'the server is trusted' in central.observers_server


@pytest.mark.parametrize('noise', [{}, {'noise_multiplier': 1.0}])
def test_each_number_of_rounds_pays_for_its_own_draws(noise):
  plan = _plan(attributes={'delta': 1e-9}, **noise)
  consumed = [plan.guarantee(n).outsiders.consumed_delta for n in (1, 5, 10)]
  assert 0 < consumed[0] < consumed[1] < consumed[2]
  assert consumed[2] == noise_budget.consumed_by(
      plan.released(10), 10 * plan.total_variation, 1e-9)


@pytest.mark.parametrize('changes, message', [
    ({'epsilon': 0.0}, 'epsilon must be greater than 0'),
    ({'epsilon': None}, 'noise_multiplier must be given'),
    ({'noise_multiplier': 0.0}, 'noise_multiplier must be greater'),
    *(({'attributes': {'delta': delta}}, 'delta must be .*strictly between 0 and 1')
      for delta in (0.0, 1.0)),
    ({'clip': None}, 'clip must be given'),
    ({'bits': 4}, 'bits=4 are too few for a cohort'),
    ({'cohort_size': 201.0}, 'cohort_size=201 is larger than the population'),
    *(({'sampling': 'fixed', 'cohort_size': 20.5, 'mechanism': mechanism},
       'cohort_size must be an integer') for mechanism in ('skellam', 'none')),
    ({'sampling': 'none'}, 'cohort_size must be the population, 200'),
    ({'population': 1, 'cohort_size': 1.0}, 'delta must be strictly'),
    ({'assumed_colluders': 1}, 'assumed_colluders=1 leave fewer'),
    ({'min_honest_fraction': 0.0}, 'min_honest_fraction')])
def test_plan_that_is_impossible_is_refused_by_name(changes, message):
  with pytest.raises(ValueError, match=message):
    _plan(**changes)


def _caveats(plan):
  return {note.name: str(note) for note in plan.guarantee(10).caveats}


def test_degenerate_grid_needs_a_flag_and_then_warns():
  coarse = {'bits': 6, 'noise_multiplier': 1.0}
  with pytest.raises(ValueError, match='degenerate setting.*bits=7 would do'):
    _plan(**coarse)
  result = _caveats(_plan(**coarse, attributes={'allow_degenerate': True}))
  assert 'degenerate grid' in result['degenerate grid']


def test_seed_and_diagnostics_are_warned_of():
  seeded, measured = 'seeded: not private', 'diagnostics outside the guarantee'
  assert not {seeded, measured} & set(_caveats(_plan()))
  result = _caveats(_plan(attributes={'seed': 0, 'diagnostics': True}))
  assert result[seeded].startswith('seeded run: no privacy guarantee')
  assert result[measured].startswith('diagnostics measure raw')
  assert 'outside the guarantee' in result[measured]


@pytest.mark.parametrize('mechanism', MECHANISMS)
def test_simulated_secure_aggregation_is_warned_of(mechanism):
  assert ('secure aggregation simulated' in _caveats(_plan(mechanism=mechanism))) == (
      mechanism not in ('gaussian', 'silo_noise', 'own', 'none'))


def test_what_mechanism_and_rotation_do_not_promise_is_warned_of():
  both = {'approximate amplification', 'no rotation'}
  assert not both & _caveats(_plan()).keys()
  assert both <= _caveats(_plan(mechanism='discrete_gaussian', rotation='none',
                                beta=0.0, noise_multiplier=2.0)).keys()
  fixed = _caveats(_plan(mechanism='discrete_gaussian', sampling='fixed'))
  assert 'approximate amplification' not in fixed


@pytest.mark.parametrize('value, text', [
    (0.0, '0.0000'), (7.99991, '8.0000'), (7.9999, '7.9999'), (1.00001, '1.0001'),
    (math.nextafter(0.06, 1), '0.0601'), (5e-324, '0.0001'), (math.inf, 'inf')])
def test_epsilon_is_described_rounded_up(value, text):
  assert decimals.epsilon(value) == text


@pytest.mark.slow
def test_bits_that_would_do_are_named_where_no_noise_meets_the_target():
  with pytest.raises(ValueError, match=r'bits=6 are too few .*; bits=\d+ would do'):
    _plan(bits=6, epsilon=8.0, dimension=7346, rounds=20)


def test_one_number_against_all_but_those_who_hold_sums_or_shares():
  rows = dict(sampling='turns', column=(2, 1), epsilon=3.0)
  plan = _plan(**rows, min_honest_fraction=0.8)
  found = plan.guarantee(10)
  # Observers see all of the noise, the server what honest clients left at least.
  assert found.outsiders.epsilon < found.server.epsilon == found.of_everyone.epsilon <= 3
  first, participant = found.lines()
  assert first.startswith(decimals.epsilon(found.server.epsilon))
  assert first.endswith(' who holds no closed sum and no share of the noise')
  assert participant.startswith(decimals.epsilon(found.participant.epsilon))
  # A participant is not among them: it knows its share.
  whole = _plan(**rows).guarantee(10)
  assert whole.participant.epsilon > 3 >= whole.of_everyone.epsilon
  # Rows of suppressed rounds stay closed; the sums of rows of one do not.
  assert plan.guarantee(10, suppressed=True).of_everyone == found.of_everyone
  single = _plan(**rows | dict(column=(1,), min_honest_fraction=0.8)).guarantee(
      10, suppressed=True)
  assert single.of_everyone is single.server is None


def test_rows_have_the_bits_that_keep_rounding_small_and_keep_them():
  def build(recorded=None, **changes):
    return plan_lib.build(
        TrainSettings(noise_multiplier=2.0, cohort_size=50.0, rounds=40, clip=0.3,
                      **changes), dimension=10**6, population=5000, recorded=recorded)

  plan, params = build(), build().params
  assert len(plan.mechanism.column) > 5
  assert 18 < params.bits == plan.configuration()['bits']
  assert params.l2_sensitivity < 1.02 * params.clip_grid
  fewer = params.replace(bits=params.bits - 1)
  assert fewer.l2_sensitivity > 1.02 * fewer.clip_grid
  # Sums alone need no more than by default, and what is given is taken.
  for changes in (dict(sampling='poisson'), dict(bands=1)):
    assert build(**changes).params.bits == 18
  assert build(bits=22).params.bits == 22
  resumed = build({**json.loads(json.dumps(plan.configuration())), 'bits': 20})
  assert resumed.params.bits == 20
  assert resumed.mechanism.column == plan.mechanism.column


def _of_silos(silos, honest=1.0, **settings):
  return plan_lib.build(TrainSettings(**{**dict(
      protect='record', sampling='records', epsilon=1, delta=1e-3, rounds=20, batch_size=40,
      min_honest_fraction=honest, bits=24), **settings}),
                        dimension=10, population=400, silos=silos)


def _with_noise(noise_multiplier, steps, delta=1e-3):
  return pld.PLDAccountant().compose(dp_accounting.PoissonSampledDpEvent(
      0.1, dp_accounting.GaussianDpEvent(noise_multiplier)), steps).get_epsilon(delta)


@pytest.mark.parametrize('silos, honest, target', [
    (1, 1.0, 'epsilon'), (4, 0.5, 'epsilon_participant'), (4, 1.0, 'epsilon_participant')])
def test_epsilon_of_silos_is_against_one_that_runs_the_server(silos, honest, target):
  plan = _of_silos(silos, honest)
  found = plan.guarantee(20)
  assert 0.98 < found.numbers()[target] <= 1 and found.of_everyone.epsilon <= 1
  assert not any('unbounded' in line for line in found.lines())
  # One share of those that are counted on is known.
  noise = plan.mechanism.noise_multiplier * (1 - (silos > 1) / (honest * silos))**0.5
  assert 0.98 < _with_noise(noise, 20) < 1.01
  assert found.further['epsilon_server_at_delta_1e-6'] == pytest.approx(
      _with_noise(noise, 20, 1e-6), rel=0.02)
  # What restarts repeat, it saw.
  again = plan.guarantee(20, 5, seen=plan.released(25)).of_everyone.epsilon
  assert _with_noise(noise, 25) * 0.99 < again < 1.02 * _with_noise(noise, 25)
  if silos > 1:
    # And the sums of suppressed rounds.
    suppressed = plan.guarantee(20, suppressed=True)
    assert suppressed.participant is suppressed.server is None
    assert 'against observers of the models who hold neither' in suppressed.lines()[0]


@pytest.mark.parametrize('settings', [{}, dict(bands=2)])
def test_nothing_is_proved_against_who_knows_all_that_is_counted_on(settings):
  # With bands a row has sums of earlier rounds, whose silos may be missing in the last.
  with pytest.raises(ValueError, match='min_honest_fraction=0.5 must be above 1/2'):
    _of_silos(2, 0.5, **settings)
  plan = _of_silos(2, 0.5, epsilon=None, noise_multiplier=1.0, **settings)
  found = plan.guarantee(20)
  assert found.participant.epsilon == math.inf
  words = ' '.join([*found.lines(), *found.details()])
  assert 'no other honest silo may be left' in words and 'inf ' not in words
  assert not words.endswith('inf') and 'cohort may be of one' not in words
  assert 'against silos unbounded, as no other honest silo' in found.sentences()


def test_words_of_two_numbers_differ_where_only_observers_are_a_target():
  plan = FedAvgPlan.calibrate(
      mechanism=_mechanism(sampling='records', silos=4, min_honest_fraction=0.5, bits=24),
      delta=1e-3, target_epsilon=2.0)
  terms, found = plan.terms, plan.guarantee(10)
  assert terms.everyone == 'all who hold neither it nor a share of the noise'
  assert terms.against.startswith('observers of the models')
  assert found.outsiders.epsilon < found.of_everyone.epsilon <= 2 < found.participant.epsilon


def test_sums_of_suppressed_rows_of_records_stay_closed():
  event = _of_silos(3, batch_size=20, bands=2).event(1)
  assert event.keeps_closed() and not _of_silos(3).event(1).keeps_closed()
