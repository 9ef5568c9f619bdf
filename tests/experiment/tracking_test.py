"""Trackers get settings, metrics and the summary of a run, and no paths of data."""

import json
import sys

import pandas as pd
import pytest

from tff_pipelines import api
from tff_pipelines.experiment import tracking

_REASON = 'requirements-tracking.txt is not installed'
mlflow = pytest.importorskip('mlflow', reason=_REASON)
pytest.importorskip('wandb', reason=_REASON)
pytestmark = pytest.mark.slow


def _of_wandb(path):
  """Config, rows and summary in a file of Weights & Biases."""
  from wandb.proto import wandb_internal_pb2  # pylint: disable=g-import-not-at-top
  from wandb.sdk.internal import datastore  # pylint: disable=g-import-not-at-top
  store, config, rows, summary = datastore.DataStore(), {}, [], {}
  store.open_for_scan(str(path))
  while data := store.scan_data():
    record = wandb_internal_pb2.Record.FromString(data)
    rows.append({})
    for items, values in ((record.run.config.update, config),
                          (record.summary.update, summary),
                          (record.history.item, rows[-1])):
      values.update({item.key or '/'.join(item.nested_key): json.loads(item.value_json)
                     for item in items})
  store.close()
  rows = [row for row in rows if 'epsilon_so_far' in row]
  return config, rows, {**rows[-1], **summary}


def test_both_trackers_have_the_run_and_no_paths(shared_context, tmp_path):
  data, trackers = tmp_path / 'where_data_lie', tmp_path / 'trackers'
  data.mkdir(), trackers.mkdir()
  pd.DataFrame({'person': [i // 4 for i in range(400)], 'x': range(400),
                'y': ['no', 'yes'] * 200}).to_csv(data / 'table.csv', index=False)
  (data / 'bounds.json').write_text('{"x": [0, 400], "y": ["no", "yes"]}')
  settings = api.TrainSettings(
      task='tabular', data_source='csv', data_path=str(data / 'table.csv'),
      public_bounds=str(data / 'bounds.json'), client_field='person', label_field='y',
      cohort_size=20., epsilon=3., delta=1e-3, rounds=2, output_dir=str(tmp_path / 'run'))
  mlflow.set_tracking_uri(f'file:{trackers}/mlflow')
  with (tracking.mlflow_callback(settings) as one,
        tracking.wandb_callback(settings, mode='offline', dir=str(trackers)) as other):
    result = api.train(settings, callbacks=[one, other])
    one.finish(result)
    other.finish(result)
  client, page = mlflow.MlflowClient(), (result.folder / 'report.html').read_bytes()
  (run,) = client.search_runs(['0'])
  assert run.info.status == 'FINISHED' and not run.data.tags['mlflow.user']
  rows = [{name: client.get_metric_history(run.info.run_id, name)[i].value
           for name in ('epsilon_so_far', 'test_clients/loss')} for i in (0, 1)]
  for config, rows, summary in (
      (run.data.params, rows, {**run.data.metrics, **run.data.tags}),
      _of_wandb(*trackers.glob('wandb/offline-*/*.wandb'))):
    assert float(config['epsilon']) == 3 and config['mechanism'] == 'skellam'
    assert [(row['epsilon_so_far'], row['test_clients/loss']) for row in rows] == list(
        zip(result.metrics['epsilon'], result.metrics['test_clients/loss']))
    for name in ('epsilon', 'epsilon_server', 'delta', 'observers', 'value'):
      assert summary[name] == result.summary[name] is not None
    assert summary['caveats'].split(', ') == list(result.summary['caveats'])
  paths = [path for path in trackers.rglob('*') if path.is_file()]
  assert [path.read_bytes() for path in paths if path.name == 'report.html'] == [page] * 2
  assert not [path for path in paths if data.name.encode() in path.read_bytes()]
  assert data.name not in str(tracking._public(  # pylint: disable=protected-access
      settings.replace(validation_path=str(data))))


def test_a_run_that_fails_is_logged_as_failed(tmp_path):
  mlflow.set_tracking_uri(f'file:{tmp_path}/mlflow')
  with pytest.raises(OSError), tracking.mlflow_callback(api.TrainSettings()):
    raise OSError
  assert mlflow.MlflowClient().search_runs(['0'])[0].info.status == 'FAILED'


@pytest.mark.parametrize('name', ['mlflow', 'wandb'])
def test_a_missing_library_is_named_with_its_remedy(monkeypatch, name):
  monkeypatch.setitem(sys.modules, name, None)
  with pytest.raises(ImportError, match=f'^{name} must be installed, by: make tracking$'):
    with getattr(tracking, f'{name}_callback')(api.TrainSettings()):
      pass
