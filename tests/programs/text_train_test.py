"""The trainer on texts: what is kept, reused and reported."""

import json
import shutil

import pytest

from tests.programs import in_process
from tests.publish import checked
from tests.tasks.sources import populations

TRAIN = 'tff_pipelines.train'
SMALL = ('--cohort_size=4', '--vocabulary_size=30', '--num_clients=40', '--seed=5')
RUNS = {
    'shakespeare': ['--task=shakespeare', '--cohort_size=4', '--num_clients=40',
                    '--sequence_length=20', '--rounds=1', '--max_examples_per_client=2'],
    'word': ['--task=stackoverflow_word', '--rounds=1', *SMALL],
    'tag': ['--task=stackoverflow_tag', '--rounds=2', '--mechanism=gaussian',
            '--num_labels=6', *SMALL]}

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('shared_context')]


@pytest.fixture(name='runs', scope='module')
def _runs(shared_context, tmp_path_factory):
  """Name -> (finished run, its output folder)."""
  base = tmp_path_factory.mktemp('texts')
  finished = {}
  for name, arguments in RUNS.items():
    finished[name] = _train(*arguments, folder=base / name), base / name
    assert finished[name][0].code == 0, finished[name][0].stderr
  return finished


def _train(*arguments, folder):
  return in_process.run(TRAIN, *arguments, f'--output_dir={folder}', folder=folder.parent)


def _report(folder):
  return (folder / 'report.txt').read_text()


@pytest.mark.parametrize('name, metrics', [
    ('shakespeare', {'accuracy', 'accuracy_all_tokens', 'loss'}),
    ('word', {'accuracy', 'accuracy_all_tokens', 'loss'}),
    ('tag', {'accuracy', 'recall_at_5', 'loss'})])
def test_texts_that_ship_are_learnt_from(runs, name, metrics):
  run, folder = runs[name]
  summary = in_process.summary(folder)
  assert set(summary['held_out']['test']) == metrics
  headline = 'recall_at_5' if name == 'tag' else 'accuracy'
  assert summary['headline'] == headline
  assert f'{headline}=' in run.stderr  # The progress bar.
  assert 'simulated' in summary['privacy_unit']
  breakdown = summary['breakdown']['test']
  right = sum(entry['right'] for entry in breakdown['classes'])
  assert right / breakdown['count'] == pytest.approx(
      summary['held_out']['test'][headline], abs=1e-6)
  assert not breakdown['outside_guarantee']
  assert f'test, right by {breakdown["kind"]}' in _report(folder)
  assert f'\nweakest     {breakdown["kind"]} ' in run.stdout


def test_characters_are_reported_by_group_and_what_they_are_taken_for(runs):
  _, folder = runs['shakespeare']
  breakdown = in_process.summary(folder)['breakdown']['test']
  groups = {group['name']: group['count'] for group in breakdown['groups']}
  assert groups['lower case'] > groups['upper case'] > 0
  assert sum(groups.values()) == breakdown['count']
  assert breakdown['confusions'] and 'most frequent mistakes' in _report(folder)
  # No list of words, nothing about it.
  assert not (folder / 'vocabulary.json').exists()
  warnings = in_process.summary(folder)['warnings']
  assert not any('vocabulary' in text for text in warnings)


@pytest.mark.parametrize('name', RUNS)
def test_models_of_texts_leave_the_run(runs, name, programs, tmp_path):
  _, folder = runs[name]
  assert checked.own_figures(programs, folder) == in_process.summary(folder)['held_out']
  populations.jsonl(tmp_path, {'ann': [{'text': 'To be or not to be, that is'}]},
                    'texts.jsonl')
  table, content = checked.round_trip(
      programs, folder, tmp_path,
      ('--data_source=jsonl', f'--data_path={tmp_path / "texts.jsonl"}'))
  is_counted = any('vocabulary' in reason for reason in content['reasons'])
  kept = tmp_path / 'export' / 'vocabulary.json'
  # Characters are a public list.
  assert is_counted == kept.exists() == (name != 'shakespeare')
  assert content['private'] == (name == 'shakespeare')
  assert len(table) == (2 if name == 'shakespeare' else 1)  # Rows of 21 characters.


@pytest.mark.parametrize('name', ['word', 'tag'])
def test_vocabulary_is_kept_and_said_to_be_outside_the_guarantee(runs, name):
  run, folder = runs[name]
  kept = json.loads((folder / 'vocabulary.json').read_text())
  assert len(kept['words']) == 30 and kept['made_from'] == 'training clients'
  assert len(kept['labels']) == (6 if name == 'tag' else 0)
  warnings = in_process.summary(folder)['warnings']
  warning, = (text for text in warnings if 'vocabulary' in text)
  assert 'outside the guarantee' in warning and '--vocabulary' in warning
  assert f'warning: {warning}' in _report(folder)
  assert run.stdout.count('vocabulary') == 2  # Before the first round, and at the end.
  # Whoever has the ledger alone knows it too.
  header = json.loads((folder / 'ledger.jsonl').read_text().splitlines()[0])
  assert warning in json.dumps(header)


def test_resumed_run_reads_the_vocabulary_that_it_kept(runs, tmp_path):
  _, whole = runs['tag']
  folder = tmp_path / 'run'
  arguments = ['--rounds=2' if a == '--rounds=1' else a for a in RUNS['tag']]
  shutil.copytree(whole, folder)
  # A run that ended before its first round left its configuration and vocabulary.
  for name in ('private/checkpoints', 'tensorboard'):
    shutil.rmtree(folder / name)
  for name in ('metrics.csv', 'summary.json', 'report.txt', 'model.npz'):
    (folder / name).unlink()
  header, *_ = (folder / 'ledger.jsonl').read_text().splitlines(keepends=True)
  (folder / 'ledger.jsonl').write_text(header)
  words = json.loads((folder / 'vocabulary.json').read_text())
  run = _train(*arguments, '--resume', folder=folder)
  assert run.code == 0, run.stderr
  assert in_process.summary(folder)['held_out'] == in_process.summary(whole)['held_out']
  # With another vocabulary in its place it is not continued.
  words['words'][:2] = reversed(words['words'][:2])
  (folder / 'vocabulary.json').write_text(json.dumps(words))
  run = _train(*arguments, '--resume', folder=folder)
  assert run.code == 2
  assert 'vocabulary.json is damaged: its SHA-256 is not in' in run.stderr
