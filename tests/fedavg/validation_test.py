"""The best model by a public validation set: chosen, kept, resumed and reported."""

import dataclasses
import json

import pytest

from tasks import registry
from tasks.task import VALIDATION
from tests import interrupts, tiny_task
from tests.fedavg import tiny_run
from tff_pipelines.experiment import metrics as metrics_lib
from tff_pipelines.fedavg import run, validation

# So large a rate that the last model is not the best.
SETTINGS = dict(rounds=5, seed=4, server_learning_rate=8.0, mechanism='gaussian',
                accountant='rdp')


class Validated(tiny_run.TinyExperiment):
  """Training on `tiny_task` with a validation set."""

  def build_task(self):
    task = super().build_task()
    return dataclasses.replace(task, held_out={
        **task.held_out, VALIDATION: tiny_task.examples(60, 4)})


def _experiment(folder, **changes):
  return Validated(tiny_run.settings(folder, **{**SETTINGS, **changes}))


def _losses(folder):
  """Loss on the validation set by round."""
  rows = metrics_lib.read(folder / 'metrics.csv', 'round')
  return {index: float(row['validation/loss']) for index, row in rows.items()}


@pytest.fixture(name='whole', scope='module')
def _whole(shared_context, tmp_path_factory):
  folder = tmp_path_factory.mktemp('whole') / 'run'
  return folder, _experiment(folder).run()


def test_model_of_the_lowest_loss_is_the_result(whole):
  folder, summary = whole
  losses = _losses(folder)
  best = min(losses, key=losses.get)
  assert best < 5 and summary['details']['chosen_round'] == best
  rows = metrics_lib.read(folder / 'metrics.csv', 'round')
  for name, values in summary['held_out'].items():
    # Scores are computed once, at the end.
    for metric in values.keys() & {key.partition('/')[2] for key in rows[best]}:
      value = values[metric]
      assert float(rows[best][f'{name}/{metric}']) == pytest.approx(value), name
  assert VALIDATION not in summary['outside_guarantee']
  assert 'validation set stated as public' in summary['caveats']
  report = (folder / 'report.txt').read_text()
  assert f'model: that of round {best}, of the lowest loss' in report


def test_choice_costs_nothing_and_changes_no_round(whole, tmp_path):
  plain = tiny_run.experiment(tmp_path / 'plain', **SETTINGS).run()
  folder, summary = whole
  assert summary['epsilon_if_unseeded'] == plain['epsilon_if_unseeded']
  rows, others = (metrics_lib.read(path / 'metrics.csv', 'round')
                  for path in (folder, tmp_path / 'plain'))
  for index, row in others.items():
    assert row.items() <= rows[index].items()
  assert plain['details']['chosen_round'] is None


def test_resumed_run_keeps_the_best_model_of_its_first_start(whole, tmp_path):
  best = whole[1]['details']['chosen_round']
  with interrupts.after_commit(best + 1), pytest.raises(KeyboardInterrupt):
    _experiment(tmp_path / 'run').run()
  resumed = _experiment(tmp_path / 'run', resume=True).run()
  assert resumed['starts'] == 2
  assert resumed['details'] == whole[1]['details']
  assert resumed['held_out'] == whole[1]['held_out']


def _write(path, clients, text='a post about trees and seas '):
  """A file of a few posts of each client."""
  path.write_text(''.join(json.dumps({
      'client': client, 'text': f'{text} {client} {i}', 'title': '',
      'tags': 'xyz'[i]}) + '\n' for client in clients for i in range(3)))
  return str(path)


@pytest.fixture(name='posts')
def _posts(tmp_path):
  return {'data_source': 'jsonl', 'num_labels': 3, 'vocabulary_size': 9,
          'data_path': _write(tmp_path / 'train.jsonl', [f'c{i}' for i in range(12)])}


def test_public_files_are_read_with_the_vocabulary_of_the_task(posts, tmp_path):
  task = registry.build('stackoverflow_tag', **posts)
  path = _write(tmp_path / 'public.jsonl', ['p', 'q'], 'trees and other words')
  examples = validation.examples(task, path, posts)
  words = json.loads(task.files['vocabulary.json'])['words']
  assert len(examples['y']) == 6
  row = [words[number - 1] for number in examples['x'][0] if number]
  assert row[:2] == ['trees', 'and'] and 'words' not in row
  assert examples['x'].shape[1:] == task.train.element_spec['x'][1]


@pytest.mark.parametrize('clients, message', [
    (['c3', 'new'], 'must not have clients of the population'),
    (None, 'and data_path must differ')])
def test_data_of_the_population_are_refused(posts, tmp_path, clients, message):
  task = registry.build('stackoverflow_tag', **posts)
  path = posts['data_path'] if clients is None else _write(
      tmp_path / 'public.jsonl', clients)
  with pytest.raises(ValueError, match=f'^validation_path.*{message}'):
    validation.examples(task, path, posts)


def test_other_validation_data_are_another_run(tmp_path):
  experiment = _experiment(tmp_path / 'run')
  task = experiment.build_task()
  other = dataclasses.replace(task, held_out={
      **task.held_out, VALIDATION: tiny_task.examples(60, 5)})
  one, two = (experiment.identity(t) for t in (task, other))
  assert one['data_fingerprint'] == two['data_fingerprint']
  assert one['validation_fingerprint'] != two['validation_fingerprint']
  assert 'validation_fingerprint' not in experiment.identity(tiny_task.task())


def test_program_reads_a_validation_set(shared_context, tmp_path, posts):
  settings = tiny_run.settings(
      tmp_path / 'run', task='stackoverflow_tag', rounds=1, mechanism='none', **posts,
      validation_path=_write(tmp_path / 'public.jsonl', ['p']))
  summary = run.train(settings)
  assert summary['held_out'][VALIDATION]['loss'] > 0
  again = settings.replace(validation_path=_write(
      tmp_path / 'other.jsonl', ['p', 'q']), resume=True)
  with pytest.raises(ValueError, match='validation_path .* differ'):
    run.train(again)
