"""Checks what export, evaluate and predict make of a finished run of any family."""

import csv
import json

import numpy as np
import tensorflow as tf

from tff_pipelines.experiment import files
from tff_pipelines.exports import statement


def _run(programs, name, *arguments):
  done = programs.run(f'tff_pipelines.{name}', *arguments)
  assert done.code == 0, done.stderr
  return done


def own_figures(programs, folder, *party):
  """The metrics that evaluate prints of a run without data."""
  return json.loads(_run(
      programs, 'evaluate', f'--run={folder}', '--format=json', *party).stdout)


def rows(path):
  """The rows of a CSV file of predictions."""
  with open(path, encoding='utf-8') as file:
    return list(csv.DictReader(file))


def images(programs, folder, shape, tmp_path, *party):
  """Checks a classifier of records of a shape; returns its statement.

  The SavedModel must predict as `predict` does, and `evaluate` must agree with both.
  """
  rng = np.random.default_rng(1)
  x = rng.integers(256, size=(7, *shape)).astype(np.uint8)
  path = tmp_path / 'data.npz'
  np.savez(path, x_test=x, y_test=np.arange(7) % 3)
  data = ('--data_source=npz', f'--data_path={path}')
  _run(programs, 'predict', f'--run={folder}', *party, *data,
       f'--output={tmp_path / "rows.csv"}')
  table = rows(tmp_path / 'rows.csv')
  assert [(row['client'], int(row['index'])) for row in table] == [
      ('nobody', i) for i in range(7)]
  measured = json.loads(_run(
      programs, 'evaluate', f'--run={folder}', *party, *data, '--format=json').stdout)
  named = np.array([int(row['class']) for row in table])
  assert np.isclose(measured['data']['accuracy'], np.mean(named == np.arange(7) % 3))
  content = exported(programs, folder, tmp_path / 'export', *party)
  serve = tf.saved_model.load(str(tmp_path / 'export' / 'saved_model')).signatures[
      'serving_default']
  outputs = {name: value.numpy() for name, value in serve(x=tf.constant(x)).items()}
  np.testing.assert_array_equal(outputs['class'], named)
  np.testing.assert_allclose(
      outputs['probabilities'].max(axis=1),
      [float(row['probability']) for row in table], atol=1e-6)
  return content


def exported(programs, folder, target, *party):
  """Exports a SavedModel; returns the statement."""
  _run(programs, 'export', f'--run={folder}', *party, f'--output_dir={target}')
  content = json.loads((target / statement.JSON).read_text())
  summary = json.loads((folder / files.SUMMARY).read_text())
  assert tuple(content) == statement.KEYS
  for name in ('epsilon', 'epsilon_server', 'delta', 'adjacency', 'mechanism'):
    assert content[name] == summary[name]
  text = (target / statement.TEXT).read_text()
  assert text.startswith('# Privacy of this model' if content['private'] else
                         '# This model is not private')
  return content
