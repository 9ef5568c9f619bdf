"""Numbers of a guarantee: from events, with whom they hold against."""

import dataclasses
import math
import re

import numpy as np
import pytest

from tests import known_cohorts, ledgers
from tests.experiment.example_plan import ExamplePlan, TERMS
from tff_pipelines.accounting.events import base, kinds as events
from tff_pipelines.accounting.guarantees import (
    accountant, ledger as ledger_lib, noise_budget, plan as guarantee)
from tff_pipelines.common import decimals

DELTA = 1e-3


def _epsilon(plan, rounds, **how):
  event = events.SelfComposed(event=plan.event(1), count=rounds)
  return accountant.epsilon(event, DELTA, **{'accountant': 'rdp', **how})


def _known(*parts, delta=DELTA):
  """Epsilon against whoever knows the cohorts; `parts` are (rounds, noise)."""
  law = known_cohorts.law(*((rounds, 0.1, None, noise) for rounds, noise in parts))
  return pytest.approx(known_cohorts.renyi_epsilon(*law, delta), rel=1e-7)


def test_rounds_of_one_event_are_one_composition():
  plan = ExamplePlan()
  assert plan.released(4) == events.SelfComposed(event=plan.event(1), count=4)
  changing = ExamplePlan(period=2)
  assert changing.released(3) == events.Composed(events=(
      events.SelfComposed(event=changing.event(1), count=2),
      events.SelfComposed(event=changing.event(3), count=1)))


def test_both_numbers_are_those_of_the_accountant():
  plan = ExamplePlan()
  result = plan.guarantee(7)
  assert result.outsiders.epsilon == _epsilon(plan, 7) == plan.epsilon(7)
  assert result.server.epsilon == _known((7, 1.0))
  assert result.server_any_cohorts.epsilon == _epsilon(plan, 7, amplification='none')
  assert result.outsiders.epsilon < result.server.epsilon < (
      result.server_any_cohorts.epsilon)
  assert (result.delta, result.adjacency) == (DELTA, base.ZERO_OUT)
  assert not result.seeded
  assert result.outsiders.accountant == 'rdp'
  assert result.outsiders.amplification == 'tight'
  assert result.server.amplification == 'average'
  assert result.server_any_cohorts.amplification == 'none'
  assert result.outsiders.consumed_delta is None
  assert plan.epsilon(0) == 0 < plan.epsilon(1) < plan.epsilon(2)


def test_accountant_and_amplification_are_those_of_the_plan():
  plan = ExamplePlan(amplification='generic')
  result = plan.guarantee(3)
  assert result.outsiders.epsilon == _epsilon(plan, 3, amplification='generic')
  assert result.outsiders.amplification == 'generic' and result.outsiders.order > 1
  assert result.server.epsilon == _known((3, 1.0))
  assert result.server_any_cohorts.epsilon == _epsilon(plan, 3, amplification='none')
  plan = ExamplePlan(accountant='auto', sampling_rate=1.0)
  result = plan.guarantee(3)
  assert result.outsiders.epsilon == _epsilon(plan, 3, accountant='auto')
  assert (result.outsiders.accountant, result.outsiders.order) == ('pld', None)


def test_without_a_number_for_the_server_none_is_stated():
  plan = ExamplePlan(terms=dataclasses.replace(TERMS, observers_server=None))
  result = plan.guarantee(2)
  assert result.server is result.server_any_cohorts is None


def test_repeated_rounds_cost_the_server_and_those_who_protect_themselves():
  plan = ExamplePlan(total_variation=1e-9)
  once, again = plan.guarantee(3), plan.guarantee(
      3, 2, seen=events.SelfComposed(event=plan.event(1), count=5))
  assert again.outsiders == once.outsiders
  seen = events.SelfComposed(event=events.CentralGaussian(noise_multiplier=1.0), count=5)
  assert again.server.epsilon == _known(
      (5, 1.0), delta=DELTA - again.server.consumed_delta)
  chosen = again.server_any_cohorts
  assert chosen.epsilon == accountant.epsilon(
      seen, DELTA - chosen.consumed_delta, accountant='rdp')
  assert again.server.consumed_delta > once.server.consumed_delta
  local = ExamplePlan(event_kind='local')
  seen = events.SelfComposed(event=local.event(1), count=5)
  assert local.guarantee(3, 2, seen=seen).outsiders.epsilon == _epsilon(local, 5)
  assert local.guarantee(3).outsiders.epsilon == _epsilon(local, 3)
  assert local.epsilon(3, 2) == _epsilon(local, 5)
  assert plan.epsilon(3, 2) == plan.epsilon(3)


def test_suppressed_rounds_leave_no_number_for_the_server():
  result = ExamplePlan().guarantee(3, suppressed=True)
  assert result.server is result.server_any_cohorts is None
  assert guarantee.SUPPRESSED in result.caveats
  assert result.lines()[1] == 'none against the server: rounds suppressed'
  values = result.to_json()
  assert values['epsilon_server'] is values['epsilon_server_any_cohorts'] is None
  assert result.outsiders.epsilon == ExamplePlan().epsilon(3)


def test_sampling_error_is_taken_from_delta():
  plan = ExamplePlan(total_variation=1e-6)
  bound = plan.guarantee(10).outsiders
  event = plan.released(10)
  assert bound.consumed_delta == pytest.approx(
      noise_budget.consumed_by(event, 1e-5, DELTA), rel=1e-12)
  assert 0 < bound.consumed_delta < DELTA / 2
  assert bound.epsilon == accountant.epsilon(
      event, DELTA - bound.consumed_delta, accountant='rdp')
  assert bound.epsilon > ExamplePlan().epsilon(10)
  # That is enough at the epsilon that was found.
  assert noise_budget.consumed(1e-5, bound.epsilon) <= bound.consumed_delta
  assert [note.name for note in bound.caveats] == ['cohorts assumed to be hidden']


def test_sampling_error_beyond_half_of_delta_is_a_caveat():
  plan = ExamplePlan(total_variation=1e-3)
  result = plan.guarantee(10)
  assert result.outsiders.consumed_delta > DELTA / 2
  assert result.outsiders.epsilon == ExamplePlan().epsilon(10)
  names = [note.name for note in result.caveats]
  assert names.count('epsilon of ideal distributions') == 1
  note = next(n for n in result.caveats if n.name == 'epsilon of ideal distributions')
  assert f'{result.outsiders.consumed_delta:.3g} of delta' in note
  assert any(n.startswith('against the server: epsilon is that of ideal')
             for n in result.caveats)
  # A total variation is at most 1.
  assert ExamplePlan(total_variation=1.0).guarantee(10).outsiders.consumed_delta == 1


def test_seeded_plan_guarantees_nothing():
  plan = ExamplePlan(seed=0)
  result = plan.guarantee(3)
  assert result.seeded and result.server is None
  assert result.caveats[0] == guarantee.SEEDED
  assert plan.epsilon_name == 'epsilon_if_unseeded'
  assert ExamplePlan().epsilon_name == 'epsilon'
  values = result.to_json()
  for name in ('epsilon', 'epsilon_server', 'epsilon_server_any_cohorts',
               'consumed_delta'):
    assert values[name] is None, name
  assert values['epsilon_if_unseeded'] == ExamplePlan().epsilon(3)
  line, = result.lines()
  assert line.startswith('none, the run is seeded (without the seed: ')
  assert result.details()[0].startswith('epsilon: none, the run is seeded')
  assert not any('the server and the clients' in line for line in result.details())


def test_plan_without_privacy_guarantees_nothing():
  plan = ExamplePlan(private=False, delta=None)
  result = plan.guarantee(3)
  assert result.outsiders is result.server is result.adjacency is None
  assert plan.epsilon(3) == math.inf and plan.epsilon(0) == 0
  assert result.lines() == ['none: nothing is guaranteed']
  assert 'epsilon: none, nothing is guaranteed' in result.details()
  values = result.to_json()
  for name in ('epsilon', 'epsilon_server', 'epsilon_server_any_cohorts',
               'epsilon_if_unseeded', 'delta', 'adjacency', 'adjacency_in_words',
               'observers', 'observers_server', 'accountant'):
    assert values[name] is None, name
  assert ExamplePlan(private=False, delta=None, seed=1).guarantee(1).caveats == (
      guarantee.SEEDED,)


def test_infinite_epsilon_is_null_in_json_and_said():
  result = dataclasses.replace(
      ExamplePlan().guarantee(2), outsiders=guarantee.Bound(epsilon=math.inf))
  assert result.to_json()['epsilon'] is None
  assert result.lines()[0].startswith('inf at delta 0.001')


def test_caveats_are_those_of_plan_events_and_numbers_each_once():
  note = guarantee.Caveat('grid', 'the grid is coarse')
  plan = ExamplePlan(noise=0.1, caveats=(note, note), delta=0.5,
      terms=dataclasses.replace(TERMS, secure_aggregation='simulated'))
  result = plan.guarantee(30)
  names = [caveat.name for caveat in result.caveats]
  assert names == ['secure aggregation simulated', 'grid', 'cohorts assumed to be hidden',
      'large epsilon', 'delta not below 1/population']
  assert result.to_json()['secure_aggregation'] == 'simulated'
  assert 'secure aggregation: simulated' in result.details()


def test_details_say_everything_in_sentences():
  plan = ExamplePlan(total_variation=1e-9)
  text = '\n'.join(plan.guarantee(3).details())
  for expected in ('against those who see the models (rdp, tight amplification)',
      'against the server and the clients', 'adjacency zero-out: one client',
      'privacy unit: one client', 'sampling: poisson', 'trust model: the server is',
      'source: arXiv 1607.00133', 'noise: exact tables; sampling error consumes '):
    assert expected in text, expected
  unknown = dataclasses.replace(TERMS, sampler='tables, and more: no bound is proved')
  assert 'consumes at least' in '\n'.join(ExamplePlan(
      total_variation=1e-9, terms=unknown).guarantee(3).details())
  other = dataclasses.replace(TERMS, adjacency='one record is replaced')
  assert ExamplePlan(terms=other).guarantee(1).adjacency_in_words == (
      'one record is replaced')


def test_numbers_against_the_server_say_how_cohorts_are_drawn():
  result = ExamplePlan().guarantee(3)
  drawn, chosen = (decimals.epsilon(bound.epsilon) for bound in (
      result.server, result.server_any_cohorts))
  assert result.lines()[1] == (
      f'{drawn} against the server ({chosen} whatever cohorts it chooses)')
  trusted = dataclasses.replace(result, terms=dataclasses.replace(
      TERMS, against_server='the participants'))
  assert trusted.lines()[1] == f'{drawn} ({chosen} in any cohorts) against the participants'
  details = result.details()
  against = 'at delta 0.001 against the server and the clients'
  assert details[1:3] == [
      f'epsilon {drawn} {against}: cohorts drawn by the rule, independently of what was '
      'opened; restarts are charged',
      f'epsilon {chosen} {against}, whatever cohorts the server chooses']
  drawn = decimals.rounded_up(result.server.epsilon)
  assert f'it is {drawn} ({chosen} whatever cohorts the server chooses)' in (
      result.sentences())
  # Those who know cohorts that are drawn by the rule may be bounded as observers are.
  same = dataclasses.replace(result, server=result.outsiders)
  assert f'({chosen} whatever cohorts the server chooses)' in same.sentences()
  # One number, whoever draws the cohorts, and nothing to assume.
  for same in (ExamplePlan(sampling_rate=1.0), ExamplePlan(event_kind='local')):
    result = same.guarantee(3)
    assert result.server.epsilon == result.server_any_cohorts.epsilon
    text = '\n'.join((*result.lines(), *result.details(), result.sentences()))
    assert 'whatever cohorts' not in text and 'drawn by' not in text


def test_further_numbers_are_shown_and_go_into_the_summary():
  result = dataclasses.replace(ExamplePlan().guarantee(1), further={
      'epsilon_published': 1.00000001, 'none': None})
  assert 'epsilon published: 1.0001' in result.details()
  assert not any(line.startswith('none') for line in result.details())


@pytest.mark.parametrize('seed', range(4))
def test_nothing_that_is_guaranteed_is_printed_below_what_it_is(seed):
  rng = np.random.default_rng(seed)
  template = ExamplePlan(total_variation=1e-9).guarantee(1)
  for _ in range(100):
    epsilon, server, chosen, published = 10**rng.uniform(-6, 5, size=4)
    delta, consumed = 10**rng.uniform(-12, 0, size=2)
    result = dataclasses.replace(
        template, delta=delta, further={'epsilon_published': float(published)},
        outsiders=guarantee.Bound(epsilon=epsilon, consumed_delta=consumed),
        server=guarantee.Bound(epsilon=server),
        server_any_cohorts=guarantee.Bound(epsilon=chosen))
    for lines in (result.lines(), result.details()):
      shown = [re.search(r'^(?:epsilon )?(\S+) (?:at delta (\S+) )?against', line)
               for line in lines[:2]]
      assert epsilon <= float(shown[0][1]) <= epsilon + 1.01e-4
      assert delta <= float(shown[0][2]) <= 1.0002 * delta
      assert server <= float(shown[1][1]) <= server + 1.01e-4
    text = '\n'.join(lines)
    for shown in (re.search(r'\((\S+) whatever cohorts', '\n'.join(result.lines())),
                  re.search(r'epsilon (\S+) at .*, whatever cohorts', text),
                  re.search(r'\((\S+) whatever cohorts', result.sentences())):
      assert chosen <= float(shown[1]) <= chosen + 1.01e-4
    assert consumed <= float(re.search(r'consumes (\S+) of delta', text)[1])
    assert published <= float(re.search(r'published: (\S+)', text)[1])
    seeded = dataclasses.replace(result, seeded=True).lines()[0]
    assert epsilon <= float(re.search(r'without the seed: (\S+) at', seeded)[1])


def _ledger(plan, path, outcomes, starts, more=()):
  result = ledger_lib.Ledger.create(path, **plan.header(len(outcomes), more))
  for index, (outcome, start) in enumerate(zip(outcomes, starts), start=1):
    ledgers.append(result, plan.event(index), outcome=outcome, starts=start)
  return result


def test_guarantee_of_a_ledger_counts_restarts_and_suppressed_rounds(tmp_path):
  plan = ExamplePlan(period=1)
  result = plan.guarantee_of(_ledger(plan, tmp_path / 'one', ['released'] * 3, [1, 1, 1]))
  assert result == plan.guarantee(3)
  restarted = plan.guarantee_of(_ledger(
      plan, tmp_path / 'two', ['released'] * 3, [1, 3, 3]))
  assert restarted.outsiders == result.outsiders
  # The second round, which is cheaper than the first, may have been run thrice.
  seen = events.Composed(events=(
      plan.event(1), events.SelfComposed(event=plan.event(2), count=3), plan.event(3)))
  assert restarted.server.epsilon == _known((1, 1.0), (3, 2.0), (1, 4.0))
  assert restarted.server_any_cohorts.epsilon == pytest.approx(
      accountant.epsilon(seen, DELTA, accountant='rdp', amplification='none'), rel=1e-7)
  suppressed = plan.guarantee_of(_ledger(
      plan, tmp_path / 'three', ['released', 'suppressed', 'released'], [1, 1, 1]))
  assert suppressed.server is None and guarantee.SUPPRESSED in suppressed.caveats
  assert suppressed.outsiders == result.outsiders


def test_header_of_a_ledger_has_the_caveats_of_the_whole_run(tmp_path):
  plan = ExamplePlan(seed=3, total_variation=1e-9, caveats=(
      guarantee.Caveat('grid', 'the grid is coarse'),))
  header = _ledger(
      plan, tmp_path / 'ledger', ['released'], [1], ['held-out data']).header()
  assert header['population'] == 100 and header['delta'] == DELTA
  assert header['adjacency'] == base.ZERO_OUT and header['seeded']
  assert header['deviation_per_round'] == 1e-9
  assert header['trust_model'] == TERMS.trust_model
  assert header['warnings'][0] == guarantee.SEEDED
  assert 'the grid is coarse' in header['warnings']
  assert header['warnings'][-1] == 'held-out data'


def test_epsilons_at_a_small_delta_stand_beside_those_of_the_run():
  plan = ExamplePlan()
  result = plan.guarantee(7)
  assert result.further['epsilon_at_delta_1e-6'] == accountant.epsilon(
      plan.released(7), 1e-6, accountant='rdp')
  assert result.further['epsilon_server_at_delta_1e-6'] == _known((7, 1.0), delta=1e-6)
  assert result.further['epsilon_at_delta_1e-6'] > result.outsiders.epsilon
  assert any(line.startswith('epsilon at delta 1e-6: ') for line in result.details())
  assert not any('1e-6' in line for line in result.lines())
  suppressed = plan.guarantee(7, suppressed=True)
  assert suppressed.further['epsilon_server_at_delta_1e-6'] is None
  assert suppressed.further['epsilon_at_delta_1e-6'] is not None
  for nothing_more in (ExamplePlan(delta=1e-6), ExamplePlan(seed=1)):
    assert set(nothing_more.guarantee(7).further.values()) == {None}
  # Seven rounds off by 1e-6 each leave nothing of a delta of 1e-6.
  off = ExamplePlan(total_variation=1e-6).guarantee(7)
  assert off.outsiders.consumed_delta > 0
  assert set(off.further.values()) == {None}
