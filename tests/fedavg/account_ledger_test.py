"""Epsilon from ledgers alone, by the program and by the functions behind it.

Of one run, and of several on the same clients.
"""

import json
import math
import re

import pytest

from tests import known_cohorts, ledgers
from tests.fedavg import account_test
from tff_pipelines.accounting.events import kinds as events
from tff_pipelines.accounting.guarantees import (
    accountant, ledger as ledger_lib, ledger_query)

GAUSSIAN = events.CentralGaussian(noise_multiplier=2.0)


@pytest.fixture(name='path')
def _path(tmp_path):
  return tmp_path / 'ledger.jsonl'


def test_ledger_alone_gives_epsilon_and_says_whether_its_chain_holds(path):
  ledgers.written(path, events.PoissonSampled(
      event=events.CentralGaussian(noise_multiplier=0.848), sampling_rate=100 / 3400),
                  20, population=3400, trust_model='a trusted server', warnings=['mock'])
  result = account_test.as_json(f'--ledger={path}')
  expected = account_test.as_json(
      '--mechanism=gaussian', '--noise_multiplier=0.848', '--rounds=20',
      '--delta=0.00013', '--cohort_size=100', '--population=3400', '--sampling=poisson')
  assert list(result) == account_test.KEYS
  assert result['epsilon'] == pytest.approx(expected['epsilon'], rel=1e-7)
  for key in ('epsilon_server', 'epsilon_server_any_cohorts'):
    assert result[key] == pytest.approx(expected[key], rel=1e-7)
  assert result['epsilon_server'] == pytest.approx(known_cohorts.epsilon(
          *known_cohorts.law((20, 100 / 3400, None, 0.848)), 0.00013), rel=1e-7)
  assert (result['delta'], result['rounds']) == (0.00013, 20)
  assert result['trust_model'] == 'a trusted server'
  assert 'mock' in result['warnings']
  shown = account_test.run(f'--ledger={path}').stdout
  assert 'chain intact' in shown
  # Sentences of the header have no name, so all stand in full.
  assert '\ncaveats:\n- mock\n' in shown
  text = path.read_text().splitlines()
  path.write_text('\n'.join(text[:5] + text[6:]) + '\n')
  broken = account_test.run(f'--ledger={path}', '--format=json', code=1)
  answer = json.loads(broken.stdout)
  assert answer['epsilon'] is None
  assert any('line 6' in text for text in answer['warnings'])
  assert 'chain broken' in account_test.run(f'--ledger={path}', code=1).stdout
  path.write_text('no ledger\n' * 50)
  warnings = json.loads(
      account_test.run(f'--ledger={path}', '--format=json', code=1).stdout)['warnings']
  assert len(warnings) < 10 and 'problems more' in warnings[-1]


@pytest.mark.parametrize('name', ['', 'nowhere.jsonl'])
def test_a_ledger_that_is_no_file_is_named(tmp_path, name):
  done = account_test.run(f'--ledger={tmp_path / name}', code=2)
  assert f"ledger must be the ledger.jsonl of a run, found '{tmp_path}" in done.stderr


@pytest.mark.parametrize('share, exact', [(0.2, False), (1e3, True)])
def test_sampling_error_of_the_noise_consumes_delta(path, share, exact):
  delta, event = 1e-5, events.CentralGaussian(noise_multiplier=5.0)
  all_rounds = events.SelfComposed(event=event, count=20)
  at_half = accountant.epsilon(all_rounds, delta / 2, accountant='rdp')
  per_round = share * delta / (1 + math.exp(at_half)) / 20
  ledgers.written(path, event, 20, delta=delta, deviation_per_round=per_round)
  result = account_test.as_json(f'--ledger={path}')
  left = delta if exact else delta * (1 - share)
  assert result['epsilon'] == pytest.approx(
      accountant.epsilon(all_rounds, left), rel=1e-9)
  assert result['epsilon_server'] == result['epsilon']
  assert result['delta'] == delta
  assert any('ideal distributions' in text for text in result['warnings']) == exact


def test_noisy_predictions_that_a_restart_repeated_count_for_every_observer(tmp_path):
  event = events.SelfComposed(event=events.LocalGaussian(noise_multiplier=20.0), count=50)
  result = {}
  for starts in (1, 3):
    path = tmp_path / f'{starts}.jsonl'
    ledger = ledger_lib.Ledger.create(path, delta=1e-5)
    for start in (1, 1, starts):
      ledgers.append(ledger, event, starts=start)
    result[starts] = account_test.as_json(f'--ledger={path}')
    assert any('never repeated' in text for text in result[starts]['warnings'])
  for starts, rounds in ((1, 3), (3, 5)):
    assert result[starts]['epsilon'] == result[starts]['epsilon_server']
    assert result[starts]['epsilon'] == pytest.approx(accountant.epsilon(
        events.SelfComposed(event=event, count=rounds), 1e-5), rel=1e-9)


def test_every_repeated_round_costs_the_server_what_that_round_costs(path):
  dear, cheap = (events.CentralGaussian(noise_multiplier=z) for z in (1.0, 100.0))
  ledger = ledger_lib.Ledger.create(path, delta=1e-5)
  for event, starts in ((dear, 1), (dear, 3), (cheap, 3)):
    ledgers.append(ledger, event, starts=starts)
  result = account_test.as_json(f'--ledger={path}')
  def epsilon(count):
    return accountant.epsilon(events.Composed(events=(
        events.SelfComposed(event=dear, count=count), cheap)), 1e-5)
  assert result['epsilon'] == pytest.approx(epsilon(2), rel=1e-7)
  for key in ('epsilon_server', 'epsilon_server_any_cohorts'):
    assert result[key] == pytest.approx(epsilon(4), rel=1e-7)


@pytest.mark.parametrize('amplification', ['tight', 'none'])
def test_records_that_agents_sample_are_hidden_from_the_server(path, amplification):
  event = events.SampledRecords(
      event=events.CentralGaussian(noise_multiplier=1.1), sampling_rate=0.05)
  ledgers.written(path, event, 5, deviation_per_round=0.0)
  row = ledger_query.answer(path, delta=1e-5, amplification=amplification)
  assert row.epsilon_server == row.epsilon == accountant.epsilon(
      events.SelfComposed(event=event, count=5), 1e-5, amplification=amplification)
  # Nor does it choose them.
  assert row.server_any_cohorts.epsilon == row.epsilon
  assert row.terms.sampling == 'records'  # Who subtracts a share is a silo.


def test_answers_that_are_charged_before_they_are_given_can_not_be_missing(path):
  ledgers.written(path, events.LocalAnswers(
      event=events.Duchi(epsilon=0.5), groups=2, queries_before=0, queries_after=6))
  result = account_test.as_json(f'--ledger={path}', '--delta=1e-9')
  assert 0 < result['epsilon'] <= 1.5
  assert not any('never repeated' in text for text in result['warnings'])


def test_a_suppressed_round_leaves_no_epsilon_against_the_server(path):
  ledger = ledger_lib.Ledger.create(path, delta=1e-5)
  for outcome in ('released', 'suppressed', 'released'):
    ledgers.append(ledger, events.DistributedSkellam(
        l1_sensitivity=900.0, l2_sensitivity=30.0, noise_variance=2500.0,
        cohort_size=100.0), outcome=outcome)
  answer = account_test.as_json(f'--ledger={path}')
  assert answer['epsilon'] > 0
  assert answer['epsilon_server'] is answer['epsilon_server_any_cohorts'] is None
  assert any('no epsilon holds against it' in text for text in answer['warnings'])
  text = ' '.join(account_test.run(f'--ledger={path}').stdout.split())
  assert 'does not hold against the server' in text


def test_a_silo_that_may_run_the_server_saw_what_the_server_saw(path, tmp_path):
  event = events.SampledRecords(sampling_rate=0.05, event=events.DistributedSkellam(
      l1_sensitivity=900.0, l2_sensitivity=30.0, noise_variance=2500.0, cohort_size=4.0))
  ledger = ledger_lib.Ledger.create(path, delta=1e-5)
  for starts in (1, 3):
    ledgers.append(ledger, event, starts=starts)
  found = ledger_query.answer(path).numbers()
  four = ledger_query.answer(ledgers.written(
      tmp_path / 'four.jsonl', event, 4, delta=1e-5)).numbers()
  assert found['epsilon_participant'] == pytest.approx(four['epsilon_participant'])
  assert found['epsilon'] < four['epsilon'] < four['epsilon_participant'] < 20
  ledgers.append(ledger, event, outcome='suppressed')
  assert ledger_query.answer(path).numbers()['epsilon_participant'] is None


def test_function_answers_as_the_program_and_refuses_a_broken_chain(path):
  ledger = ledger_lib.Ledger.create(path, delta=1e-5)
  with pytest.raises(ValueError, match='at least one round'):
    ledger_query.answer(path)
  for _ in range(3):
    ledgers.append(ledger, GAUSSIAN)
  assert ledger_query.answer(path).to_json() == account_test.as_json(f'--ledger={path}')
  assert ledger_query.answer(path, accountant='rdp').outsiders.order is not None
  larger = ledger_query.answer(path, delta=1e-3)
  assert larger.epsilon < ledger_query.answer(path).epsilon and larger.delta == 1e-3
  path.write_text(path.read_text().replace('2.0', '9.0'))
  with pytest.raises(ValueError, match='intact chain'):
    ledger_query.answer(path)


def test_ledger_without_delta_and_population_needs_one(path):
  ledgers.written(path, GAUSSIAN)
  assert 'delta must be given' in account_test.run(f'--ledger={path}', code=2).stderr


DELTA = 1e-5


def _ledger(folder, name, event, rounds, **header):
  return ledgers.written(folder / f'{name}.jsonl', event, rounds, **{
      'population': 1000, 'delta': DELTA, 'trust_model': f'trust of {name}', **header})


def _answer(*paths, **how):
  return ledger_query.together(paths, **how)


def test_gaussian_runs_add_up_as_one_gaussian(tmp_path):
  paths = [_ledger(tmp_path, 'a', GAUSSIAN, 3),
           _ledger(tmp_path, 'b', GAUSSIAN, 3),  # The same settings, once more.
           _ledger(tmp_path, 'c', events.CentralGaussian(noise_multiplier=1.0), 2)]
  answer = _answer(*paths)
  # 6 / 4 + 2 / 1 of squared signal to noise.
  alone = events.CentralGaussian(noise_multiplier=1 / math.sqrt(6 / 4 + 2))
  assert answer.epsilon == pytest.approx(accountant.epsilon(alone, DELTA), rel=2e-3)
  assert (answer.delta, answer.rounds) == (DELTA, 8)
  assert answer.terms.trust_model == 'trust of a; trust of b; trust of c'
  assert _answer(paths[0]) == ledger_query.answer(paths[0])
  printed = account_test.as_json(f'--ledger={",".join(map(str, paths))}')
  assert printed['epsilon'] == answer.epsilon
  shown = account_test.run(f'--ledger={paths[0]},{paths[2]}').stdout
  assert f'ledger: {paths[0]}, chain intact' in shown
  assert f'ledger: {paths[2]}, chain intact' in shown


def test_limits_on_participations_are_those_of_each_run(tmp_path):
  event = events.PoissonSampled(event=GAUSSIAN, sampling_rate=0.1, max_participations=2)
  paths = [_ledger(tmp_path, name, event, 10) for name in 'ab']
  answer = _answer(*paths)
  # Two of each run, and not two of twenty rounds.
  exact = events.SelfComposed(event=GAUSSIAN, count=4)
  assert answer.server_any_cohorts.epsilon == pytest.approx(
      accountant.epsilon(exact, DELTA), rel=1e-6)
  assert answer.epsilon_server == pytest.approx(known_cohorts.epsilon(
          *known_cohorts.law(*[(10, 0.1, 2, 2.0)] * 2), DELTA), rel=1e-7)
  observers = events.SelfComposed(event=event, count=20)
  assert answer.epsilon == pytest.approx(accountant.epsilon(observers, DELTA), rel=2e-3)


def test_sampling_error_of_all_runs_is_taken_off_delta(tmp_path):
  paths = [_ledger(tmp_path, name, GAUSSIAN, rounds, deviation_per_round=1e-10)
           for name, rounds in (('a', 1), ('b', 4))]
  one, both = _answer(paths[1]).epsilon, _answer(*paths).epsilon
  ideal = accountant.epsilon(events.SelfComposed(event=GAUSSIAN, count=5), DELTA)
  assert both > ideal and both > one


def test_the_smallest_delta_counts_unless_one_is_given(tmp_path):
  paths = [_ledger(tmp_path, 'a', GAUSSIAN, 1, delta=1e-6),
           _ledger(tmp_path, 'b', GAUSSIAN, 1, delta=None, population=200)]
  assert _answer(*paths).delta == 1e-6
  assert _answer(paths[1]).delta == 0.0029
  assert _answer(*paths, delta=1e-4).delta == 1e-4


@pytest.mark.parametrize('what, message', [
    ('seeded', 'ledger must be of a run without a seed, found .*b.jsonl'),
    ('again', 'ledger must name different ones: .*a.jsonl and .*b.jsonl'),
    ('other', 'ledger must name runs of one adjacency, found zero-out in .*, local in '),
    ('missing', 'ledger must be the ledger.jsonl of a run, found .*b.jsonl')])
def test_ledgers_without_an_epsilon_together_are_refused_in_one_line(
    tmp_path, what, message):
  first = _ledger(tmp_path, 'a', GAUSSIAN, 2)
  second = tmp_path / 'b.jsonl'
  if what == 'again':
    second.write_bytes(first.read_bytes())
  elif what != 'missing':
    _ledger(tmp_path, 'b', events.LocalGaussian(noise_multiplier=1.0)
            if what == 'other' else GAUSSIAN, 2, seeded=what == 'seeded')
  done = account_test.run(f'--ledger={first},{second}', code=2)
  line, = done.stderr.strip().splitlines()
  assert re.search(message, line), line


def test_a_broken_chain_among_several_gives_no_number(tmp_path):
  first, second = (_ledger(tmp_path, name, GAUSSIAN, 2) for name in 'ab')
  second.write_text(second.read_text().replace('released', 'suppressed', 1))
  done = account_test.run(f'--ledger={first},{second}', code=1)
  assert f'{first}, chain intact' in done.stdout
  assert f'{second}, chain broken' in done.stdout
