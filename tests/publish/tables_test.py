"""Tables with texts of data, which a spreadsheet must not execute."""

import csv
import dataclasses
import types

import numpy as np
from pyarrow import parquet
import pytest

from tasks import task as task_lib
from tests import tiny_task
from tff_pipelines.common import files
from tff_pipelines.publish import apply, run as run_lib, settings

CLIENTS = ('=1+1', '+cmd', '-7', '@SUM(A1)', '\t=1', '\r=1', '\n=1', "it's", 'a=1')
CLASSES = ('=A1', '-1', 'plain')


def _predicted(tmp_path, monkeypatch, output):
  source = types.SimpleNamespace(
      client_ids=CLIENTS, examples=lambda client: tiny_task.examples(3, len(client)))
  model = dataclasses.replace(
      tiny_task.MODEL,
      predict=lambda weights, batch: {
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
