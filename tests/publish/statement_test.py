"""Statements of runs of all kinds say the truth, and nothing of the operator's."""

import dataclasses
import json
import re

import numpy as np
import pytest

from tasks.sources import labelled
from tasks.task import Note
from tasks.text import vocabulary as vocabulary_lib
from tests import ledgers, tiny_task
from tests.fedavg import tiny_run
from tff_pipelines.accounting.events import base
from tff_pipelines.accounting.guarantees import ledger as ledger_lib
from tff_pipelines.experiment import report
from tff_pipelines.fedavg import plan as plan_lib, report as fedavg_report, warm_start
from tff_pipelines.experiment import statement

ROUNDS = 3


def _summary(folder, outcomes=('released',) * ROUNDS, starts=(1,) * ROUNDS, **changes):
  """The summary of a run with this ledger; outcomes and starts are by round."""
  settings, task = tiny_run.settings(folder, **changes), tiny_task.task()
  plan = plan_lib.build(settings, dimension=tiny_task.DIMENSION, population=8)
  folder.mkdir(exist_ok=True)
  ledger = ledger_lib.Ledger.create(folder / 'ledger.jsonl', **plan.header(ROUNDS))
  for index, (outcome, start) in enumerate(zip(outcomes, starts), 1):
    ledgers.append(ledger, plan.event(index), outcome=outcome, starts=start)
  guarantee = plan.guarantee_of(ledger)
  return report.summary_of(
      'train', guarantee, report.Outcome(result='', fields={
          **fedavg_report.fields(plan), 'task': 'tiny', 'algorithm': 'fedavg',
          'model': 'softmax'}),
      report.ordered([*guarantee.caveats, *fedavg_report.describe(task, plan).caveats]),
      rounds=ROUNDS, starts=starts[-1], configuration='')


def _shown(text, of):
  """The epsilon that a text states against these observers."""
  line, = (line for line in text.splitlines() if of in line and line.startswith('- **e'))
  return float(line.removeprefix('- **epsilon ').split(',')[0])


def test_private_run_states_both_numbers_rounded_up(tmp_path):
  summary = _summary(tmp_path, sampling='poisson')
  content = statement.statement(summary)
  assert content['private'] and not content['reasons']
  assert tuple(content) == statement.KEYS
  text = statement.in_words(content)
  assert text.startswith('# Privacy of this model\n')
  for name, of in (('epsilon', content['observers']),
                   ('epsilon_server', 'twice count twice')):
    assert content[name] == summary[name]
    assert content[name] <= _shown(text, of) < content[name] + 1e-4
  chosen = float(re.search(r'; epsilon is (\S+) whatever', text)[1])
  assert content['epsilon_server'] < content['epsilon_server_any_cohorts'] <= chosen
  assert chosen < summary['epsilon_server_any_cohorts'] + 1e-4
  assert content['adjacency_in_words'] in text and content['source'] in text
  assert 'not private' not in text and 'except for' not in text
  for words in ('probability of any result', ', plus 0.', 'of this training alone'):
    assert words in text


# Changes of settings, of the summary, and words of the broken rules; none if private.
VERDICTS = {
    'private': ({}, {}, []), 'seeded': ({'seed': 4}, {}, ['noise is predictable']),
    'no noise': ({'mechanism': 'none'}, {}, ['without a mechanism']),
    'delta of 1/N': ({'delta': 1 / 8}, {}, ['delta is not known to be below 1 over the number']),
    'delta that is rounded to 1/N': ({'delta': 0.12499}, {}, ['below 1 over']),
    'delta below 1/N': ({'delta': 0.12}, {}, []),
    'records of a delta': ({}, {'caveats': 'delta not below 1/records'}, ['below 1 over']),
    'delta for records of unknown number': (
        {}, {'caveats': 'delta to be compared with the records', 'population': None},
        ['below 1 over']),
    'delta of a record, not of a client': (
        {}, {'delta': 1 / 8, 'adjacency': base.INSTANCE}, []),
    'clients of unknown number': ({}, {'population': None}, ['below 1 over']),
    'unbounded': ({}, {'epsilon': None}, ['no finite epsilon']),
    'epsilon that hides no one': ({'noise_multiplier': 0.2}, {}, ['may detect everyone']),
    'diagnostics': ({'diagnostics': True}, {}, []), 'stopped by diagnostics': (
        {'diagnostics': True}, {'caveats': 'stopped early'}, [statement.STOPPED]),
    'warm start': ({}, {'caveats': 'warm start outside the guarantee'}, ['a text']),
    'stated aggregation': ({}, {'caveats': 'aggregation as stated'}, ['a text']),
    'rounds added by diagnostics': (
        {'diagnostics': True}, {'caveats': 'rounds added'}, [statement.STOPPED])}


@pytest.mark.parametrize('name', VERDICTS)
def test_verdict_follows_from_the_rules(tmp_path, name):
  settings, changes, words = VERDICTS[name]
  summary = _summary(tmp_path, **settings)
  if (caveat := changes.get('caveats')) is not None:
    changes = {'caveats': [*summary['caveats'], caveat],
               'warnings': [*summary['warnings'], 'a text']}
  content = statement.statement({**summary, **changes})
  assert content['private'] == (not words)
  assert len(content['reasons']) == len(words)
  for word, reason in zip(words, content['reasons']):
    assert word in reason
  text = statement.in_words(content)
  assert ('Verdict: private' in text) == ('not private' not in text) == (not words)
  assert all(content['rules'].values()) == (not words)
  assert all(rule in text for rule in content['rules']) and len(content['rules']) == 9


def test_page_says_who_held_what_and_what_was_released_before(tmp_path):
  summary = {**_summary(tmp_path), 'about': {
      'unit_name': 'patient', 'data_description': 'heart rates of four hospitals',
      'raw_rows': 'The operator', 'version': '1.2', 'date': '2026-11-24'}}
  text = statement.in_words(statement.statement(summary))
  for words in ('Each patient: one client.', 'Data: heart rates of four hospitals',
                'The operator. Trust: ', 'Begun on: 2026-11-24', 'Version: 1.2',
                'Noise: ', 'No earlier release about the same people is stated'):
    assert words in text, words
  both = statement.in_words(statement.statement(summary, earlier={
      'count': 2, 'epsilon': 9.87654, 'delta': 0.002}))
  assert ('With 2 earlier ledgers about the same people, all releases together have '
          '**epsilon 9.8766 at delta 0.002**') in both


@pytest.mark.parametrize('epsilon, delta, word', [
    (4.0, 0.01, None), (None, 0.01, 'no finite epsilon'), (4.0, 1 / 8, 'below 1 over'),
    (11.0, 0.01, 'at epsilon 11.0000 a test')])
def test_earlier_releases_are_in_the_verdict(tmp_path, epsilon, delta, word):
  content = statement.statement(_summary(tmp_path), earlier={
      'count': 1, 'epsilon': epsilon, 'delta': delta})
  assert content['private'] == (word is None)
  assert [reason for reason in content['reasons'] if word and word in reason] == (
      content['reasons'])


@pytest.mark.parametrize('delta, word', [(0.01, None), (0.02, 'below 1 over')])
def test_earlier_delta_of_records_is_at_most_the_one_that_was_judged(
    tmp_path, delta, word):
  summary = {**_summary(tmp_path), 'adjacency': base.INSTANCE, 'delta': 0.01}
  reasons = statement.statement(summary, earlier={
      'count': 1, 'epsilon': 4.0, 'delta': delta})['reasons']
  assert len(reasons) == (word is not None) and all(word in text for text in reasons)


def test_run_by_turns_states_that_the_server_has_the_same_number(tmp_path):
  content = statement.statement(_summary(tmp_path))
  assert content['private'] and content['sampling'] == 'turns'
  assert content['epsilon'] == content['epsilon_server'] == (
      content['epsilon_server_any_cohorts'])
  text = statement.in_words(content)
  for of in (content['observers'], 'and hold no closed sum'):
    assert content['epsilon'] <= _shown(text, of) < content['epsilon'] + 1e-4
  assert 'whatever cohorts the server chooses' not in text
  assert 'closed sums simulated' in [caveat['name'] for caveat in content['caveats']]


def test_seeded_run_is_not_private_and_has_no_epsilon(tmp_path):
  content = statement.statement(_summary(tmp_path, seed=4))
  assert not content['private'] and content['epsilon'] is None
  assert content['reasons'] == ['the run was seeded: its noise is predictable']
  text = statement.in_words(content)
  assert text.startswith('# This model is not private\n')
  assert 'epsilon ' not in text.split('## What to know')[0]


def test_run_without_privacy_is_not_private(tmp_path):
  content = statement.statement(_summary(tmp_path, mechanism='none'))
  assert not content['private'] and content['adjacency'] is None
  assert content['reasons'] == [
      'it was trained without a mechanism that protects privacy']
  assert statement.in_words(content).startswith('# This model is not private\n')


def test_reasons_of_the_task_make_a_model_not_private(tmp_path):
  content = statement.statement(
      _summary(tmp_path), [Note('words', 'the words are of clients')])
  assert not content['private'] and content['reasons'] == ['the words are of clients']
  text = statement.in_words(content)
  assert '- the words are of clients\n' in text
  # The guarantee of the training is stated all the same.
  assert 'What the training guarantees apart from that:' in text
  assert _shown(text, content['observers']) >= content['epsilon']


def _counted_classes():
  parts = labelled.parts_of('file', {
      'x_train': np.zeros([3, 28, 28], np.uint8), 'y_train': np.arange(3),
      'writer_train': np.arange(3)}, ('x', 'y', 'writer'), num_classes=None,
                            convert=labelled.images)
  return parts.notes[0]


def _release_of_another_run():
  task = dataclasses.replace(tiny_task.task(), noised_files=('vocabulary.json',))
  plan = plan_lib.build(
      tiny_run.settings('unused'), dimension=tiny_task.DIMENSION, population=8)
  note, = (note for note in fedavg_report.describe(task, plan).caveats
           if note.name == 'release of another run')
  return note


@pytest.mark.parametrize('caveat', [
    _counted_classes, _release_of_another_run, lambda: vocabulary_lib.OUTSIDE,
    lambda: warm_start.WarmStart(weights=[], digest='').caveat(is_public=False)])
def test_what_reached_the_model_outside_the_guarantee_makes_it_not_private(
    tmp_path, caveat):
  summary, caveat = _summary(tmp_path), caveat()
  summary['caveats'].append(caveat.name)
  summary['warnings'].append(str(caveat))
  for reasons in ([], [str(caveat)]):  # Those of the task are not listed twice.
    content = statement.statement(summary, reasons)
    assert not content['private'] and content['reasons'] == [str(caveat)]
  assert statement.in_words(content).startswith('# This model is not private\n')


@pytest.mark.parametrize('outside, diagnostics, private', [
    ([], False, True), (['test_clients'], False, False), ([], True, False)])
def test_stop_that_saw_metrics_outside_the_guarantee_makes_a_model_not_private(
    tmp_path, outside, diagnostics, private):
  summary = {**_summary(tmp_path, diagnostics=diagnostics), 'outside_guarantee': outside}
  assert statement.statement(summary)['private']
  summary['caveats'].append('stopped early')
  summary['warnings'].append('the run was stopped')
  content = statement.statement(summary)
  assert content['private'] == private
  assert content['reasons'] == [statement.STOPPED] * (not private)


def test_a_participant_has_a_number_of_its_own(tmp_path):
  for sampling, least, words in (
      ('poisson', None, 'in cohorts drawn by the rule'),
      ('turns', 4, 'in cohorts of at least 4, drawn by the rule'),
      ('epochs', 4, 'in cohorts of at least 4, drawn by the rule')):
    content = statement.statement(_summary(tmp_path / sampling, sampling=sampling))
    assert content['least_cohort'] == least
    participant = content['epsilon_participant']
    assert participant > content['epsilon_server']
    shown = _shown(statement.in_words(content), words)
    assert participant <= shown < participant + 1e-4
  unbounded = statement.in_words({**content, 'epsilon_participant': None})
  assert 'no epsilon** against a participant' in unbounded


def test_a_person_with_several_clients_is_in_the_statement(tmp_path):
  summary = {**_summary(tmp_path), 'clients_per_person': 3, 'epsilon_person': 12.34567}
  text = statement.in_words(statement.statement(summary))
  assert ('- for a person who owns 3 clients the first epsilon is **12.3457**, and the '
          'second none\n') in text


def test_suppressed_rounds_leave_no_number_against_the_server(tmp_path):
  outcomes = ('released', 'suppressed', 'released')
  content = statement.statement(_summary(tmp_path, outcomes=outcomes, sampling='poisson'))
  assert content['epsilon'] is not None and content['epsilon_server'] is None
  assert 'suppressed rounds' in [caveat['name'] for caveat in content['caveats']]
  text = statement.in_words(content)
  assert f'**no epsilon** against {content["observers_server"]}' in text


def test_suppressed_rows_leave_the_number_against_the_server(tmp_path):
  suppressed, released = (statement.statement(_summary(
      tmp_path / name, outcomes=('released', name, 'released')))
                          for name in ('suppressed', 'released'))
  assert suppressed['epsilon_server'] == released['epsilon_server'] is not None
  assert 'suppressed rounds' not in [caveat['name'] for caveat in suppressed['caveats']]


def test_restarted_rounds_count_against_the_server(tmp_path):
  plain = statement.statement(_summary(tmp_path / 'plain'))
  content = statement.statement(_summary(tmp_path / 'restarted', starts=(1, 2, 3)))
  assert content['epsilon'] == plain['epsilon']
  assert content['epsilon_server'] > plain['epsilon_server']
  assert content['private']
  assert _shown(statement.in_words(content), 'twice count twice') >= (
      content['epsilon_server'])


def test_caveats_that_name_clients_or_count_are_told_without(tmp_path):
  summary = {
      **_summary(tmp_path), 'caveats': ['vote repeated', 'answers lost'],
      'warnings': ['repeated after 3 of ann', 'answers to 17 queries were lost']}
  content = statement.statement(summary)
  assert [caveat['name'] for caveat in content['caveats']] == summary['caveats']
  for text in (json.dumps(content['caveats']),
               statement.in_words(content).split('## What to know')[1]):
    assert not [word for word in ('ann', '17', '3') if word in text]
    assert 'they count as given' in text


def test_caveats_of_the_operators_files_are_left_out(tmp_path):
  summary = _summary(tmp_path, diagnostics=True)
  assert {'diagnostics outside the guarantee', 'held-out metrics not protected'} <= set(
      summary['caveats'])
  summary['caveats'].append('no better than a constant by accuracy')
  summary['warnings'].append('on test_clients: accuracy 0.5')
  content = statement.statement(summary)
  text = json.dumps(content) + statement.in_words(content)
  assert not [word for word in ('diagnostics', 'held-out', 'constant', 'accuracy')
              if word in text]
  assert not set(content) & {'cohort_size', 'starts', 'population', 'configuration'}
