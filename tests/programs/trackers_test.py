"""Trackers get settings, metrics and the summary of a run, and no paths of data."""

import json

import pytest

from examples import log_to_mlflow, log_to_wandb
from tff_pipelines import api

mlflow = pytest.importorskip(
    'mlflow', reason='requirements-tracking.txt is not installed')
pytestmark = pytest.mark.slow


def _of_wandb(path):
  """Config, rows and summary in a file of Weights & Biases."""
  import wandb  # pylint: disable=g-import-not-at-top
  from wandb.proto import wandb_internal_pb2  # pylint: disable=g-import-not-at-top
  from wandb.sdk.internal import datastore  # pylint: disable=g-import-not-at-top
  wandb.teardown()  # Its process writes the file; a finished run may lie in a buffer.
  store, config, rows, summary = datastore.DataStore(), {}, [], {}
  store.open_for_scan(str(path))
  while data := store.scan_data():
    record, row = wandb_internal_pb2.Record.FromString(data), {}
    for items, values in ((record.run.config.update, config), (record.history.item, row),
                          (record.summary.update, summary)):
      values.update({item.key or '/'.join(item.nested_key): json.loads(item.value_json)
                     for item in items})
    rows += [row] if 'epsilon_so_far' in row else []
  store.close()
  return config, rows, {**rows[-1], **summary}


def test_both_trackers_have_the_run_and_no_paths(shared_context, tmp_path):
  data, trackers = tmp_path / 'where_data_lie', tmp_path / 'trackers'
  data.mkdir(), trackers.mkdir()
  (data / 'table.csv').write_text('person,x,y\n' + ''.join(
      f'{i // 4},{i},{i % 2}\n' for i in range(400)))
  (data / 'bounds.json').write_text('{"x": [0, 400], "y": ["0", "1"]}')
  settings = api.TrainSettings(
      task='tabular', data_source='csv', data_path=str(data / 'table.csv'),
      public_bounds=str(data / 'bounds.json'), client_field='person', label_field='y',
      cohort_size=20., epsilon=3., delta=1e-3, rounds=2, output_dir=str(tmp_path / 'run'))
  mlflow.set_tracking_uri(f'file:{trackers}/mlflow')
  result = log_to_mlflow.main(settings)
  other = log_to_wandb.main(settings.replace(output_dir=str(tmp_path / 'other')),
                            mode='offline', dir=str(trackers))
  client = mlflow.MlflowClient()
  (run,) = client.search_runs(['0'])
  assert run.info.status == 'FINISHED' and not run.data.tags['mlflow.user']
  names = 'epsilon_so_far', 'test_clients/loss'
  rows = [{name: client.get_metric_history(run.info.run_id, name)[i].value
           for name in names} for i in (0, 1)]
  for done, (config, rows, summary) in (
      (result, (run.data.params, rows, {**run.data.metrics, **run.data.tags})),
      (other, _of_wandb(*trackers.glob('wandb/offline-*/*.wandb')))):
    assert float(config['epsilon']) == 3 and config['mechanism'] == 'skellam'
    assert [[row[name] for name in names] for row in rows] == (
        done.metrics[['epsilon', 'test_clients/loss']].to_numpy().tolist())
    for name in ('epsilon', 'epsilon_server', 'delta', 'observers', 'value'):
      assert summary[name] == done.summary[name] is not None
    assert summary['caveats'].split(', ') == list(done.summary['caveats'])
  paths = [path for path in trackers.rglob('*') if path.is_file()]
  pages = [path.read_bytes() for path in paths if path.name == 'report.html']
  assert sorted(pages) == sorted((each.folder / 'report.html').read_bytes()
                                 for each in (result, other))
  assert not [path for path in paths if data.name.encode() in path.read_bytes()]
  assert data.name not in str(log_to_mlflow.public(
      settings.replace(validation_path=str(data))))
