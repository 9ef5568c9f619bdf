"""Checks what export, evaluate and predict make of a finished run of any family."""

import json

import numpy as np

from tasks.sources import records
from tests.programs import in_process
from tests.publish import alone
from tff_pipelines.common import files
from tff_pipelines.experiment import models
from tff_pipelines.experiment import statement
from tff_pipelines.publish import run as run_lib


def own_figures(programs, folder, *flags):
  """The metrics that evaluate prints of a run, on its own data without other flags."""
  return json.loads(programs.done(
      'tff_pipelines.evaluate', f'--run={folder}', '--format=json', *flags).stdout)


def images(programs, folder, shape, tmp_path, *party):
  """Checks a classifier of records of a shape; returns its statement.

  TensorFlow alone must predict as `predict` does, and `evaluate` must agree with both.
  """
  rng = np.random.default_rng(1)
  path = tmp_path / 'data.npz'
  np.savez(path, x_test=rng.integers(256, size=(7, *shape)).astype(np.uint8),
           y_test=np.arange(7) % 3)
  data = ('--data_source=npz', f'--data_path={path}')
  table, content = round_trip(programs, folder, tmp_path, data, *party)
  assert [(row['client'], int(row['index'])) for row in table] == [
      ('nobody', i) for i in range(7)]
  measured = own_figures(programs, folder, *party, *data)
  named = np.array([int(row['class']) for row in table])
  assert np.isclose(measured['data']['accuracy'], np.mean(named == np.arange(7) % 3))
  return content


def round_trip(programs, folder, tmp_path, data, *party):
  """Checks that TensorFlow alone gives the predictions that `predict` writes.

  `data` are flags of `predict`. Returns rows of the predictions, and the statement.
  """
  programs.done('tff_pipelines.predict', f'--run={folder}', *party, *data,
                f'--output={tmp_path / "rows.csv"}')
  table = in_process.rows(tmp_path / 'rows.csv')
  content = exported(programs, folder, tmp_path / 'export', *party)
  programs.done('tff_pipelines.predict', f'--run={tmp_path / "export"}', *data,
                f'--output={tmp_path / "again.csv"}')
  assert (tmp_path / 'again.csv').read_bytes() == (tmp_path / 'rows.csv').read_bytes()
  described = json.loads((tmp_path / 'export' / models.DESCRIPTION).read_text())
  run = run_lib.read_finished(str(folder), *(flag.partition('=')[2] for flag in party))
  source = run.serving(run.trained()).reader(labelled=False, **dict(
      flag.removeprefix('--').split('=') for flag in data))
  examples, _ = records.gather(source)
  assert {name: [array.dtype.name, list(array.shape[1:])]
          for name, array in examples.items()} == {
              name: list(spec.values()) for name, spec in described['inputs'].items()}
  outputs = alone.served(tmp_path / 'export' / 'saved_model', **examples)
  assert {name: list(spec.values()) for name, spec in described['outputs'].items()} == {
      name: [array.dtype.name, list(array.shape[1:])] for name, array in outputs.items()}
  if 'value' in outputs:
    np.testing.assert_allclose(
        outputs['value'].ravel(), [float(row['value']) for row in table], rtol=1e-6)
  else:
    names = described['classes'] or [str(i) for i in range(max(outputs['class']) + 1)]
    # Of two classes that are as probable up to rounding, either may be named.
    chosen = [names.index(row['class']) for row in table]
    for found in (chosen, outputs['class']):
      np.testing.assert_allclose(
          outputs['probabilities'][np.arange(len(table)), found],
          [float(row['probability']) for row in table], atol=1e-6)
  return table, content


def exported(programs, folder, target, *party):
  """Exports a SavedModel; returns the statement."""
  programs.done(
      'tff_pipelines.export', f'--run={folder}', *party, f'--output_dir={target}')
  content = json.loads((target / statement.JSON).read_text())
  summary = json.loads((folder / files.SUMMARY).read_text())
  assert tuple(content) == statement.KEYS
  for name in ('epsilon', 'epsilon_server', 'epsilon_server_any_cohorts', 'delta',
               'adjacency', 'mechanism'):
    assert content[name] == summary[name]
  text = (target / statement.TEXT).read_text()
  assert text.startswith('# Privacy of this model' if content['private'] else
                         '# This model is not private')
  return content
