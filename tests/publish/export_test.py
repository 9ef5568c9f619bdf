"""Parts of exports, and of tables of predictions, that no small run shows."""

import csv
import dataclasses
import json
import types
import zipfile

import numpy as np
from pyarrow import parquet
import pytest
import tensorflow as tf

from tasks import task as task_lib
from tests import tiny_task
from tff_pipelines.common import files
from tff_pipelines.experiment import models
from tff_pipelines.publish import apply, export, run as run_lib, settings


def _keras(weights):
  model = tf.keras.Sequential([tf.keras.Input([3]), tf.keras.layers.Dense(2)])
  model.set_weights(weights)
  return model


def _serving(name='x', to_keras=None):
  """A linear model of one feature."""
  return task_lib.Serving(
      inputs={name: (np.dtype(np.float32), (3,))}, model=task_lib.Model(
          name='linear', loss=None, metrics=None, to_keras=to_keras,
          initial_weights=lambda seed: [np.ones([3, 2], np.float32),
                                        np.zeros(2, np.float32)],
          predict=lambda weights, batch: {
              'value': tf.matmul(batch[name], weights[0]) + weights[1]}))


def test_model_of_keras_is_kept_without_times(tmp_path):
  weights = [np.arange(6, dtype=np.float32).reshape(3, 2), np.float32([7, 8])]
  trained = models.Trained.of(_serving(to_keras=_keras), weights)
  trained.write(tmp_path / 'run')
  loaded = tf.keras.models.load_model(tmp_path / 'run' / models.KERAS)
  for mine, theirs in zip(weights, loaded.get_weights(), strict=True):
    np.testing.assert_array_equal(mine, theirs)
  with zipfile.ZipFile(tmp_path / 'run' / models.KERAS) as archive:
    assert {info.date_time[0] for info in archive.infolist()} == {1980}
    assert 'date_saved' not in json.loads(archive.read('metadata.json'))
  kept = models.read(tmp_path / 'run')
  assert list(kept.arrays) == ['weight_000', 'weight_001']
  assert kept.inputs == trained.inputs and kept.name == 'linear'


def test_weights_that_are_not_as_many_as_their_names_are_refused():
  model = task_lib.Model(name='m', initial_weights=None, loss=None, metrics=None,
                         weight_names=('a', 'a'))
  with pytest.raises(ValueError, match='weight_names must be 2 different names'):
    model.named([1, 2])


def test_names_that_tensorflow_would_change_are_refused_by_a_saved_model(tmp_path):
  serving = _serving('age of a person')
  trained = models.Trained.of(serving, serving.model.initial_weights(0))
  with pytest.raises(ValueError, match="found 'age of a person'"):
    export._write_saved_model(tmp_path / 'saved', serving, trained)
  # Predictions by name need no signature.
  predict = export.predict_function(serving, trained.weights)
  np.testing.assert_array_equal(predict(tf.ones([4, 3]))['value'], np.full([4, 2], 3.0))


CLIENTS = ('=1+1', '+cmd', '-7', '@SUM(A1)', '\t=1', '\r=1', '\n=1', "it's", 'a=1')
CLASSES = ('=A1', '-1', 'plain')


def _predicted(tmp_path, monkeypatch, output):
  source = types.SimpleNamespace(
      client_ids=CLIENTS, examples=lambda client: tiny_task.examples(3, len(client)))
  model = dataclasses.replace(
      tiny_task.MODEL, predict=lambda weights, batch: {
          **tiny_task.predict(weights, batch), '=column': -batch['x'][:, 0]},
      breakdown=task_lib.Breakdown(kind='class', names=CLASSES, count=lambda *_: {}))
  serving = task_lib.Serving(
      model=model, inputs={'x': (np.dtype(np.float32), (tiny_task.FEATURES,))},
      reader=lambda **_: source)
  monkeypatch.setattr(run_lib, 'read_finished', lambda *_: types.SimpleNamespace(
      trained=lambda: types.SimpleNamespace(weights=tiny_task.initial_weights(0)),
      serving=lambda _: serving))
  path = tmp_path / output
  apply.predict(settings.PredictSettings(
      run='run', output=str(path), data_source='jsonl', data_path='d'))
  return path


def test_predictions_in_csv_have_no_formula_and_numbers_stay(tmp_path, monkeypatch):
  path = _predicted(tmp_path, monkeypatch, 'p.csv')
  with open(path, encoding='utf-8', newline='') as file:
    names, *rows = csv.reader(file)
  assert names == ['client', 'index', 'class', 'probability', "'=column"]
  assert list(dict.fromkeys(row[0] for row in rows)) == [
      *(f"'{client}" for client in CLIENTS[:7]), *CLIENTS[7:]]
  assert {row[2] for row in rows} <= {"'=A1", "'-1", 'plain'}
  assert {row[2] for row in rows} & {"'=A1", "'-1"}
  # Negative numbers are no texts.
  assert any(float(row[4]) < 0 and row[4].startswith('-') for row in rows)


def test_predictions_in_parquet_have_the_texts_as_they_are(tmp_path, monkeypatch):
  rows = parquet.read_table(_predicted(tmp_path, monkeypatch, 'p.parquet')).to_pylist()
  assert list(dict.fromkeys(row['client'] for row in rows)) == list(CLIENTS)
  assert list(rows[0]) == ['client', 'index', 'class', 'probability', '=column']
  assert rows[0]['index'] == 0 and isinstance(rows[0]['=column'], float)


@pytest.mark.parametrize('cell, written', [
    ('=1', "'=1"), ('-x', "'-x"), ('-1', "'-1"), (-1, '-1'), (-1.5, '-1.5'), ('', ''),
    (None, ''), (np.float32(-2), '-2.0'), ('x=1', 'x=1'), ("'=1", "'=1"),
    ('a;=1', '"a;=1"'), ('a\r=1', '"a\r=1"'), ('a\t=1', '"a\t=1"'),
    ('a,"=1', '"a,""=1"')])
def test_every_table_neutralises_texts_alone(tmp_path, cell, written):
  files.write_table(tmp_path / 't.csv', [{'@name': cell, 'n': 1}])
  assert (tmp_path / 't.csv').read_bytes().decode() == f"'@name,n\n{written},1\n"
