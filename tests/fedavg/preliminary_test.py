"""Releases before the first round: drawn once, charged first, kept."""

import dataclasses
import json
import math
import shutil

import numpy as np
import pytest

from tasks import registry, task as task_lib
from tests import interrupts, tiny_task
from tests.programs import in_process
from tests.tasks.tabular import people
from tff_pipelines.accounting.events import (
    kinds as events, preliminary as preliminary_lib)
from tff_pipelines.accounting.guarantees import (
    accountant, ledger as ledger_lib, ledger_query, release_noise)
from tff_pipelines.common import decimals
from tff_pipelines.fedavg import preliminary, run as run_lib
from tff_pipelines.fedavg.settings import TrainSettings

pytestmark = pytest.mark.usefixtures('shared_context')

TEXTS = dict(task='text_classification', vocabulary='private_counts', num_clients=120,
             vocabulary_size=40, words_per_client=8, vocabulary_epsilon=20.0,
             epsilon=30.0, rounds=2, cohort_size=10.0, mechanism='gaussian')


def _event(items=4, epsilon=5.0):
  return release_noise.planned(
      l2_sensitivity=math.sqrt(items), items=items, dimension=10_000, epsilon=epsilon,
      delta=1e-3)


def _needed(totals, items=4, complete=dict):
  return task_lib.Preliminary(
      file='f', totals=lambda: totals, items=items, l2_sensitivity=math.sqrt(items),
      complete=complete)


def test_counts_have_the_noise_that_was_charged_and_rare_words_stay_out():
  event = _event()
  totals = {f'often {i}': 500 for i in range(2000)}
  totals |= {f'once {i}': 1 for i in range(2000)}
  drawn = preliminary.draw(_needed(totals), event, seed=1)
  # A word of one client passes with probability failure / items.
  assert not [word for word in drawn if word.startswith('once')]
  noise = np.array(list(drawn.values())) - 500
  assert len(noise) == 2000 and abs(noise.mean()) < 5 * math.sqrt(
      event.noise_variance / 2000)
  # Chi-squared of 2,000: within 5 standard deviations of its mean.
  ratio = np.mean(noise**2.0) / event.noise_variance
  assert abs(ratio - 1) < 5 * math.sqrt(2 / 2000)
  assert drawn == preliminary.draw(_needed(totals), event, seed=1)
  assert drawn != preliminary.draw(_needed(totals), event, seed=2)
  assert drawn != preliminary.draw(_needed(totals), event, seed=None)


def test_release_other_than_the_charged_one_is_refused():
  with pytest.raises(ValueError, match='not the one that was charged'):
    preliminary.draw(_needed({'a': 1}, items=9), _event(items=4), seed=1)


def _run(folder, **changes):
  settings = TrainSettings(**{**TEXTS, 'output_dir': str(folder), **changes})
  return run_lib.train(settings)


@pytest.fixture(name='whole', scope='module')
def _whole(shared_context, tmp_path_factory):
  """(summary, folder) of a finished run with a private vocabulary."""
  del shared_context
  folder = tmp_path_factory.mktemp('whole') / 'run'
  return _run(folder), folder


def _kinds(folder):
  return [line['event']['kind']
          for line in ledger_lib.Ledger(folder / 'ledger.jsonl').lines()]


def test_vocabulary_is_the_first_line_and_epsilon_covers_it(whole):
  summary, folder = whole
  assert _kinds(folder) == ['PreliminaryRelease', 'TurnSampled', 'TurnSampled']
  assert summary['rounds'] == 2
  assert 20 < summary['epsilon'] <= 30
  assert 19 < summary['details']['epsilon_preliminary'] <= 20
  answer = ledger_query.answer(folder / 'ledger.jsonl')
  assert answer.epsilon == pytest.approx(summary['epsilon'], rel=1e-9)
  report = (folder / 'report.txt').read_text()
  assert 'epsilon preliminary: ' in report and 'trusted party adds up' in report
  assert 'who know the cohorts' in summary['observers_server']
  assert 'the server and' not in summary['observers_server']
  vocabulary = json.loads((folder / 'vocabulary.json').read_text())
  assert vocabulary['made_from'] == 'noised counts of training clients'
  assert len(set(vocabulary['words'])) == 40
  assert not any('outside the guarantee' in w and 'vocabulary' in w
                 for w in summary['warnings'])


def test_release_that_a_crash_lost_stays_charged(tmp_path, whole, capsys):
  folder = tmp_path / 'run'
  with interrupts.interrupted(preliminary, 'draw'):
    _run(folder)
  assert _kinds(folder) == ['PreliminaryRelease']
  capsys.readouterr()
  summary = _run(folder, resume=True)
  assert _kinds(folder)[:3] == ['PreliminaryRelease', 'PreliminaryRelease', 'TurnSampled']
  assert summary['rounds'] == 2 and summary['epsilon'] > whole[0]['epsilon'] + 10
  # What is printed before the first round, and after each, counts it twice, too.
  plan = capsys.readouterr().out.split('\n\n')[0]
  assert f'epsilon     {decimals.epsilon(summary["epsilon"])} at delta' in plan
  last = in_process.rows(folder / 'metrics.csv')[-1]
  assert float(last['epsilon']) == pytest.approx(summary['epsilon'], rel=1e-9)
  assert summary['details']['epsilon_preliminary'] > 30
  assert 'charged 2 times' in (folder / 'report.txt').read_text()


@pytest.mark.parametrize('left, message', [
    ('', 'ledger.jsonl is missing: what was released is not known'),
    ('header', 'has no charge for .*vocabulary.json'),
    ('damaged', 'ledger.jsonl line 2 must be JSON'),
    ('of no release', 'ledger.jsonl line 2 must be an object with a hash')])
def test_release_without_its_charge_is_not_used(tmp_path, left, message):
  folder = tmp_path / 'run'
  with interrupts.interrupted(run_lib.TrainExperiment, 'keep'):
    _run(folder)
  ledger = folder / 'ledger.jsonl'
  kept = ledger.read_text().splitlines(keepends=True)
  assert len(kept) == 2 and (folder / 'vocabulary.json').exists()
  ledger.unlink()
  if left:
    ledger.write_text(kept[0] + {
        'header': '', 'damaged': kept[1][40:], 'of no release': '[1]\n'}[left])
  with pytest.raises(ValueError, match=message):
    _run(folder, resume=True)


def test_release_that_is_lost_after_rounds_were_committed_is_not_drawn_again(
    tmp_path, whole):
  folder = tmp_path / 'run'
  shutil.copytree(whole[1], folder)
  (folder / 'vocabulary.json').unlink()
  with pytest.raises(ValueError, match='vocabulary.json is missing, and it is released '
                     'once only'):
    _run(folder, resume=True)


@pytest.mark.slow
def test_added_rounds_count_the_release_once_and_all_rounds(tmp_path, capsys):
  folder, more = tmp_path / 'run', dict(sampling='fixed', noise_multiplier=3.0,
                                        epsilon=None)
  first = _run(folder, **more)
  kept = (folder / 'vocabulary.json').read_bytes()
  capsys.readouterr()
  added = _run(folder, **more, rounds=5, resume=True)
  plan = capsys.readouterr().out.split('\n\n')[0]
  assert (folder / 'vocabulary.json').read_bytes() == kept
  lines = ledger_lib.Ledger(folder / 'ledger.jsonl').lines()
  assert [preliminary_lib.count([line]) for line in lines] == [1, 0, 0, 0, 0, 0]
  assert {line['event']['kind'] for line in lines[1:]} == {'FixedSizeSampled'}
  release, a_round = (events.from_json(line['event']) for line in (lines[0], lines[-1]))
  # Participants may have seen a round twice: each start counts.
  for summary, rounds, repeats in ((first, 2, 0), (added, 5, 1)):
    rounds = events.SelfComposed(event=a_round, count=rounds)
    whole = events.Composed(events=(release, rounds))
    server = events.Composed(events=(release, rounds.without_sampling(),
        *[a_round.repeated().without_sampling()] * repeats))
    for name, event in (('epsilon', whole), ('epsilon_server_any_cohorts', server)):
      assert summary[name] == pytest.approx(
          accountant.epsilon(event, summary['delta']), rel=1e-6)
    assert summary['epsilon'] < summary['epsilon_server'] < (
        summary['epsilon_server_any_cohorts'])
  assert first['epsilon'] < added['epsilon']
  assert f'epsilon     {decimals.epsilon(added["epsilon"])} at delta' in plan
  for key, value in first['details'].items():
    assert '_at_delta_' in key or added['details'][key] == value
  assert 'rounds added' in added['caveats']


@pytest.mark.slow
def test_task_of_ones_own_is_resumed_only_if_it_is_built_from_the_release(tmp_path):
  task = tiny_task.task()

  def complete(counts):
    return dataclasses.replace(
        task, files={'f': str(sorted(counts))}, noised_files=('f',))

  needed = dataclasses.replace(task, preliminary=_needed(
      {'a': 500}, items=1, complete=complete))
  settings = TrainSettings(
      task=needed, mechanism='gaussian', epsilon=9.0, rounds=1, cohort_size=4.0,
      clip=0.5, client_batch_size=3, delta=0.01, output_dir=str(tmp_path / 'run'))
  summary = run_lib.train(settings)
  assert 'epsilon_preliminary' in summary['details']
  with pytest.raises(ValueError, match='the task must be built from it'):
    run_lib.train(settings.replace(resume=True))
  again = run_lib.train(settings.replace(resume=True, task=complete({'a': 500})))
  assert again['epsilon'] == summary['epsilon']
  assert 'release of another run' not in again['caveats']


def test_contributions_of_a_client_are_bounded():
  task = registry.build('text_classification', vocabulary='private_counts',
                        num_clients=20, words_per_client=5)
  totals = task.preliminary.totals()
  assert task.preliminary.items == 5
  assert sum(totals.values()) <= 5 * 18 and max(totals.values()) <= 18


def test_tags_and_words_share_one_release():
  task = registry.build('stackoverflow_tag', vocabulary='private_counts',
                        num_clients=20, words_per_client=5, vocabulary_size=30,
                        num_labels=6)
  assert task.preliminary.items == 5 + 8
  assert {kind for kind, _ in task.preliminary.totals()} == {'word', 'label'}
  done = task.preliminary.complete({('word', 'the'): 9, ('label', 'hamlet'): 7})
  kept = json.loads(done.files['vocabulary.json'])
  assert kept['words'][0] == 'the' and kept['labels'][:2] == ['hamlet', '<unused-1>']
  assert [w.shape for w in done.model.initial_weights(0)] == [
      w.shape for w in task.model.initial_weights(0)]
  with pytest.raises(ValueError, match='have 0 words and 0 labels'):
    task.preliminary.complete({})


@pytest.mark.parametrize('changes, message', [
    (dict(mechanism='none', epsilon=None, vocabulary_epsilon=None),
     'vocabulary=private_counts needs noise: mechanism=none'),
    (dict(vocabulary=None), 'vocabulary_epsilon is not used with vocabulary=None'),
    (dict(epsilon=19.0),
     r'costs epsilon=19\.\d+ alone, which leaves nothing of the target')])
def test_settings_that_leave_no_room_are_one_line(tmp_path, changes, message):
  with pytest.raises(ValueError, match=message):
    _run(tmp_path / 'run', **changes)


def _tabular(folder, table, **options):
  return registry.build('tabular', **{
      **people.written(folder, table), 'label_field': 'pay', 'statistics_epsilon': 1.0,
      'public_bounds': people.bounds(folder), **options})


def test_statistics_are_bounded_by_client_and_standardise(tmp_path):
  table = people.rows(80)
  task = _tabular(tmp_path, table)
  needed = task.preliminary
  totals = needed.totals()
  assert set(totals) == {('mean', 'age'), ('square', 'age')} and needed.dimension == 2
  count = len(task.train.client_ids)
  done = needed.complete(totals)
  kept = json.loads(done.files['columns.json'])
  assert kept['made_from'] == 'noised statistics'
  age = next(c for c in kept['features'] if c['name'] == 'age')
  ages = table[table.person.isin(task.train.client_ids)].age
  assert count == 72 and abs(age['center'] - ages.mean()) < 0.1
  assert age['scale'] == pytest.approx(ages.std(), rel=0.02)
  x = np.concatenate([done.train.examples(c)['x'][:, 0] for c in done.train.client_ids])
  assert abs(x.mean()) < 0.01 and x.std() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize('ages', [(0.0, 0.0), (100.0, 100.0), (50.0, 50.0), (0.0, 90.0)])
def test_no_rows_of_a_client_exceed_the_sensitivity_of_the_statistics(tmp_path, ages):
  # One of two clients is held out.
  task = _tabular(tmp_path, people.rows(2).assign(age=ages * 2))
  norm = np.linalg.norm(list(task.preliminary.totals().values()))
  assert len(task.train.client_ids) == 1 and norm <= task.preliminary.l2_sensitivity
  if ages[0] == ages[1] != 50:
    assert norm > 0.99 * task.preliminary.l2_sensitivity


@pytest.mark.parametrize('ages', [(0.0, 0.0), (50.0, 50.0), (0.0, 100.0)])
@pytest.mark.parametrize('classes', ['nn', 'ny', 'yy'])
def test_no_rows_of_a_client_exceed_the_sensitivity_of_statistics_and_classes(
    tmp_path, ages, classes):
  table = people.rows(2).assign(age=ages * 2, rich=list(classes * 2))
  task = _tabular(tmp_path, table, label_field='rich', class_names=('n', 'y'),
                  class_weights=('balanced',), feature_fields=('age',))
  needed = task.preliminary
  totals = needed.totals()
  norm = np.linalg.norm(list(totals.values()))
  assert needed.dimension == len(totals) == 4 and norm <= needed.l2_sensitivity
  assert (norm > 0.99 * needed.l2_sensitivity) == (ages == (0.0, 0.0) and classes != 'ny')
  assert [totals['class', name] for name in 'ny'] == [
      512 * classes.count(name) for name in 'ny']


@pytest.mark.parametrize('options', [
    dict(label_field='rich', class_names=('no', 'yes'), class_weights=('balanced',),
         feature_fields=('job',), mechanism='gaussian', rounds=1),
    pytest.param(dict(label_field='pay', rounds=2), marks=pytest.mark.slow)])
def test_noised_statistics_say_what_they_cost_and_are_kept(tmp_path, options):
  folder = tmp_path / 'run'
  settings = dict(task='tabular', **people.written(tmp_path, people.rows(80)), **options,
      public_bounds=people.bounds(tmp_path), statistics_epsilon=2.0, epsilon=8.0,
      cohort_size=20.0, output_dir=str(folder))
  summary = run_lib.train(TrainSettings(**settings))
  assert _kinds(folder)[0] == 'PreliminaryRelease' and summary['epsilon'] <= 8
  assert summary['details']['epsilon_preliminary'] == pytest.approx(2, rel=1e-4)
  kept = (folder / 'columns.json').read_text()
  if 'class_weights' in options:
    weights = json.loads(kept)['label']['weights']
    assert weights == pytest.approx([1, 1], abs=0.3) and weights[0] != weights[1]
  else:
    assert summary['headline'] == 'mae'
  assert run_lib.train(TrainSettings(**settings, resume=True)) == {**summary, 'starts': 2}
  assert (folder / 'columns.json').read_text() == kept
