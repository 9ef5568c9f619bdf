"""Models of every task that others' tests leave out, served by TensorFlow alone."""

import importlib
import json

import numpy as np
import pytest

from tests.programs import in_process
from tests.publish import alone, checked
from tests.tasks.sources import populations
from tests.tasks.tabular import people

SMALL = ('--mechanism=none', '--rounds=1', '--cohort_size=3')

pytestmark = [pytest.mark.usefixtures('shared_context'), pytest.mark.slow]


def _trained(programs, folder, *flags):
  programs.done('tff_pipelines.train', *SMALL, *flags, f'--output_dir={folder}')
  return in_process.summary(folder)


def _table(folder):
  return ('--task=tabular', f'--public_bounds={people.bounds(folder)}',
          '--label_field=pay'), people.written(folder, people.rows())


def _images(folder):
  rng = np.random.default_rng(0)
  return ('--task=images', '--class_names=cat,dog', '--image_field=x'), _jsonl(folder, {
      f'c{i}': [{'x': rng.integers(256, size=[14, 14, 3]).tolist(),
                 'label': ('cat', 'dog')[i % 2]}] for i in range(12)})


def _texts(folder):
  return ('--task=text_classification', '--class_names=no,yes'), _jsonl(folder, {
      f'c{i}': [{'text': f'a {mood} day', 'label': label}] for i, (mood, label) in
      enumerate([('good', 'yes'), ('bad', 'no')] * 6)})


def _jsonl(folder, clients):
  populations.jsonl(folder, clients, 'data.jsonl')
  return dict(data_source='jsonl', data_path=str(folder / 'data.jsonl'))


@pytest.mark.parametrize('task', [_table, _images, _texts])
def test_tasks_of_files(programs, tmp_path, task):
  flags, source = task(tmp_path)
  data = tuple(f'--{name}={value}' for name, value in source.items())
  summary = _trained(programs, tmp_path / 'run', *flags, *data)
  assert checked.own_figures(programs, tmp_path / 'run') == summary['held_out']
  table, content = checked.round_trip(programs, tmp_path / 'run', tmp_path, data)
  assert len(table) >= 12 and not content['private']


@pytest.mark.parametrize('name, activation', [
    ('images', 'softmax'), ('tokens', 'softmax'), ('tags', None), ('number', None),
    ('functional', None)])
def test_tasks_of_ones_own(programs, tmp_path, name, activation):
  folder = tmp_path / 'run'
  module = 'tests.publish.own_models'
  summary = _trained(programs, folder, f'--task={module}:{name}')
  assert checked.own_figures(programs, folder) == summary['held_out']
  examples = dict(getattr(importlib.import_module(module), name)().held_out['test'])
  y = examples.pop('y')
  checked.exported(programs, folder, tmp_path / 'saved')
  outputs = alone.served(tmp_path / 'saved/saved_model', **examples)
  measured = summary['held_out']['test']
  (tmp_path / 'rows.jsonl').write_text(''.join(
      json.dumps(dict(zip(examples, (value.tolist() for value in row)))) + '\n'
      for row in zip(*examples.values())))
  programs.done('tff_pipelines.predict', f'--run={folder}', '--data_source=jsonl',
                f'--data_path={tmp_path / "rows.jsonl"}', '--probabilities',
                f'--output={tmp_path / "rows.csv"}')
  rows = in_process.rows(tmp_path / 'rows.csv')
  key = 'value' if name == 'number' else 'probabilities'
  column = next(column for column in rows[0] if column.startswith(
      ('value_', 'probability_', 'probabilities_')))
  np.testing.assert_allclose(
      [float(row[column]) for row in rows], outputs[key][:, 0], rtol=1e-5)
  if name == 'number':
    assert np.mean(np.abs(outputs['value'][:, 0] - y)) == pytest.approx(
        measured['mae'], rel=1e-5)
  else:
    assert np.mean(outputs['class'] == y) == pytest.approx(measured['accuracy'])
  form = programs.run('tff_pipelines.export', f'--run={folder}', '--format=keras',
                      f'--output_dir={tmp_path / "keras"}')
  if name == 'functional':
    assert form.code == 2 and 'is for models from Keras' in form.stderr
    return
  assert form.code == 0, form.stderr
  network = alone.served(tmp_path / 'keras/model.keras', **examples)['outputs']
  if activation:
    network = np.exp(network) / np.exp(network).sum(axis=1, keepdims=True)
  np.testing.assert_allclose(
      network, outputs['value' if name == 'number' else 'probabilities'], atol=1e-6)
