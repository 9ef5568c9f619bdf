"""account --explain: the steps are the numbers, by the same calls."""

import dataclasses
import re

import pytest

from tests import known_cohorts, ledgers
from tests.fedavg import account_test
from tff_pipelines.accounting.events import kinds as events
from tff_pipelines.accounting.guarantees import accountant

DELTA = 1e-5
SUM = events.DistributedSkellam(
    l1_sensitivity=900.0, l2_sensitivity=30.0, noise_variance=2500.0,
    cohort_size=100.0, min_honest_fraction=0.8)
ROUND = events.PoissonSampled(
    event=SUM, sampling_rate=0.02, max_participations=4, least_cohort=50)


def _steps(path, *flags):
  """Observer -> its steps, each (text, epsilon), the number itself first."""
  result = account_test.as_json(f'--ledger={path}', '--explain', *flags)
  assert set(account_test.KEYS) < set(result)
  observers = {}
  for step in result['steps']:
    if step['level'] == 0:
      current = observers.setdefault(
          re.match(r'against (\S+ ?\S*)', step['step'])[1].strip(','), [])
    current.append((step['step'], step['epsilon']))
  return result, observers


def _number(steps, text):
  (found,) = {epsilon for step, epsilon in steps if text in step}
  return found


def test_steps_of_rounds_with_dropouts_and_a_limit(tmp_path):
  path = ledgers.written(
      tmp_path / 'ledger', ROUND, 10, delta=DELTA, deviation_per_round=1e-12)
  result, steps = _steps(path)
  observers, server, chosen, participants = (steps[name] for name in (
      'observers of', 'the server', 'a server', 'participants who'))
  for found, key in ((observers, 'epsilon'), (server, 'epsilon_server'),
                     (chosen, 'epsilon_server_any_cohorts'),
                     (participants, 'epsilon_participant')):
    assert found[0][1] == result[key] == _number(found, 'sampling error')
  # Observers of the models add no share: to them none of the noise is known.
  whole = dataclasses.replace(SUM, noise_variance=2500.0 / 0.8)
  hidden = dataclasses.replace(ROUND, event=whole)
  assert _number(observers, 'alone') == pytest.approx(
      accountant.epsilon(hidden, DELTA), rel=1e-9)
  assert _number(observers, 'are hidden') == pytest.approx(accountant.epsilon(
      events.SelfComposed(event=hidden, count=10), DELTA), rel=1e-9)
  for found, event in ((observers, whole), (server, SUM)):
    assert _number(found, 'may be any') == pytest.approx(accountant.epsilon(
        events.SelfComposed(event=event, count=4), DELTA), rel=1e-9)
    assert _number(found, 'drawn by the rule, under') == pytest.approx(
        known_cohorts.renyi_epsilon(*known_cohorts.law((10, 0.02, 4, 1.0)), DELTA,
                                    accountant.curve(event)), rel=1e-9)
  assert _number(server, 'drawn by the rule, under') < result['epsilon_server'] < (
      _number(server, 'may be any')) == _number(chosen, 'all releases')
  assert _number(chosen, 'alone') == accountant.epsilon(SUM, DELTA)
  assert any('at most 4 times to the 10' in text for text, _ in server)
  # All of the noise, of which 0.8 is counted on, without one of fifty shares.
  assert any('variance 3062.5' in text for text, _ in participants)
  assert any('min_honest_fraction 0.8' in text for text, _ in server)
  colluding = _steps(path, '--colluders=5')[1]['participants who']
  assert colluding[0][1] > participants[0][1]


def test_a_person_is_explained_by_one_client(tmp_path):
  path = ledgers.written(tmp_path / 'ledger', events.PoissonSampled(
      event=events.CentralGaussian(noise_multiplier=2.0), sampling_rate=0.1), 5,
                         delta=DELTA)
  result, steps = _steps(path, '--clients_per_person=2')
  person = steps['observers, for']
  assert _number(person, 'for one client') == result['epsilon']
  assert person[0][1] == result['epsilon_person'] == _number(person, 'are hidden')


def test_a_vote_in_lines():
  flags = ('--mechanism=ae_vote', '--queries=500', '--noise_stddev=25', '--delta=1e-3')
  lines = account_test.run(*flags, '--explain').stdout.splitlines()
  assert lines[0].startswith('neighbouring inputs: one client')
  assert lines[1].endswith('at delta 0.001: 2.7355') and '  500 x Vote' in lines
  assert '    one of them alone: 0.0633' in lines
  assert '  all releases: 2.7355' in lines


def test_local_answers_are_the_same_to_every_observer(tmp_path):
  event = events.LocalAnswers(event=events.Duchi(epsilon=0.5), groups=2,
                              queries_before=0, queries_after=6)
  result, steps = _steps(ledgers.written(tmp_path / 'ledger', event, 2, delta=DELTA))
  assert result['epsilon'] == result['epsilon_server'] > 1
  for found in steps.values():
    assert found[0][1] == result['epsilon'] == _number(found, 'all releases')
    assert _number(found, 'alone') == accountant.epsilon(event, DELTA)


def test_a_target_is_explained_at_the_noise_that_was_found():
  flags = ('--mechanism=gaussian', '--delta=1e-5', '--rounds=3')
  found = account_test.as_json(
      '--query=noise_multiplier', '--epsilon=2', *flags, '--explain')
  again = account_test.as_json(
      f'--noise_multiplier={found["noise_multiplier"]!r}', *flags, '--explain')
  assert found['steps'] == again['steps'] and found['epsilon'] <= 2


@pytest.mark.parametrize('flags, words', [
    (['--mechanism=none', '--format=csv'], 'explain needs query'),
    (['--mechanism=gaussian', '--query=table'], 'explain needs query'),
    (['--mechanism=ae_vote', '--queries=5', '--noise_stddev=9', '--delta=1e-3',
      '--bound=paper'], 'explain needs bound=tight')])
def test_what_has_no_steps_is_refused_in_one_line(flags, words):
  done = account_test.run(*flags, '--explain', code=2)
  assert words in done.stderr and done.stderr.count('\n') == 1


def test_participant_of_a_cohort_of_one_is_named(tmp_path):
  _, steps = _steps(ledgers.written(tmp_path / 'ledger', events.PoissonSampled(
      event=SUM, sampling_rate=0.1), 2, delta=DELTA))
  (_, against), *rest = steps['participants who']
  assert against is None
  assert ('a cohort may be of one participant, who knows all of its noise; cohorts drawn '
          'by the rule rarely are') in [text for text, _ in rest]
