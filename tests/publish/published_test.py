"""Published models where this project is not, and rows of files in their order."""

import pathlib
import subprocess
import sys
import zipfile

import numpy as np
import pandas
import pytest
import tensorflow as tf

from benchmarks import published
from tasks.tabular import columns as columns_lib, serving
from tasks.sources import further, records
from tests.programs import in_process
from tests.tasks.tabular import people
from tff_pipelines.common import files
from tff_pipelines.experiment import models
from tff_pipelines.publish import export

PREDICT, EVALUATE, EXPORT = (
    f'tff_pipelines.{name}' for name in ('predict', 'evaluate', 'export'))

pytestmark = [pytest.mark.usefixtures('shared_context'), pytest.mark.slow]


@pytest.fixture(scope='module', name='numpy_alone')
def _numpy_alone(tmp_path_factory):
  """The command of an interpreter that can import NumPy and nothing else."""
  folder = tmp_path_factory.mktemp('numpy')
  subprocess.run([sys.executable, '-m', 'venv', '--without-pip', folder], check=True)
  packages, = folder.glob('lib/python*/site-packages')
  for path in pathlib.Path(np.__file__).parents[1].glob('numpy*'):
    (packages / path.name).symlink_to(path)
  python = str(folder / 'bin/python')
  assert subprocess.run([python, '-I', '-c', 'import tensorflow'], check=False,
                        capture_output=True).returncode
  return [python, '-I']


@pytest.fixture(scope='module', name='runs')
def _runs(tmp_path_factory):
  """Label -> a run on the table of the benchmark, with exports next to it."""
  folder = tmp_path_factory.mktemp('table')
  published.write_table(folder, 60)
  return {label: published.trained(folder, label, 'mlp') for label in published.CASES}


@pytest.mark.parametrize('label', published.CASES)
def test_all_forms_predict_the_same_from_raw_rows(runs, numpy_alone, label):
  compared = list(published.compared(runs[label], sys.executable, numpy_alone))
  assert [form for form, _, _ in compared] == ['SavedModel', 'Keras', 'model.py']
  assert max(difference for *_, difference in compared) < published.TOLERANCE


@pytest.mark.parametrize('label', published.CASES)
def test_an_export_predicts_and_evaluates_as_its_run(programs, runs, tmp_path, label):
  run, alone = runs[label], tmp_path / 'export'
  subprocess.run(['cp', '-r', f'{run}-npz', alone], check=True)
  data = (f'--data_path={run.parent / "data.csv"}', '--no_cache', '--format=json')
  assert programs.done(EVALUATE, f'--run={alone}', *data).stdout == programs.done(
      EVALUATE, f'--run={run}', *data).stdout
  programs.done(PREDICT, f'--run={alone}', f'--data_path={run.parent / "rows.csv"}',
                '--probabilities', f'--output={tmp_path / "rows.csv"}')
  assert (tmp_path / 'rows.csv').read_bytes() == pathlib.Path(f'{run}.csv').read_bytes()
  for module, arguments, message in (
      (EVALUATE, (), 'data_path must be given'),
      (EXPORT, (f'--output_dir={tmp_path / "again"}',), 'is an export')):
    in_process.check_refused(programs.run(module, f'--run={alone}', *arguments), message)
  described = files.read_json(alone / models.DESCRIPTION)
  described['served']['settings']['task'] = 'my:task'
  files.write_json(alone / models.DESCRIPTION, described)
  in_process.check_refused(programs.run(
      EVALUATE, f'--run={alone}', *data), 'is an export of a task of your own')


def test_description_maps_columns_to_inputs(runs):
  described = files.read_json(
      pathlib.Path(f'{runs["sick"]}-savedmodel') / models.DESCRIPTION)
  assert described['columns'] == {
      'Age (years)': {'input': 'column_0', 'dtype': 'float64'},
      'income': {'input': 'income', 'dtype': 'float64'},
      'job': {'input': 'job', 'dtype': 'string'},
      'seen': {'input': 'seen', 'dtype': 'string'}}
  assert export._input_names(['a', 'A', '_b', 'c']) == {
      'a': 'column_0', 'A': 'column_1', '_b': 'column_2', 'c': 'c'}


@pytest.mark.parametrize('form', ['csv', 'jsonl', 'parquet'])
def test_output_rows_are_the_input_rows_in_their_order(
    programs, runs, tmp_path, monkeypatch, form):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  monkeypatch.setattr(further, '_CHUNK', 7)
  folder = runs['sick'].parent
  table = pandas.read_csv(folder / 'data.csv', dtype={'job': str}).drop(
      columns=['charges', 'sick'])
  order = np.random.default_rng(1).permutation(len(table))
  data = people.written(tmp_path, table.iloc[order].reset_index(drop=True), form)
  programs.done(PREDICT, f'--run={runs["sick"]}', f'--output={tmp_path / "p.csv"}',
                f'--data_source={form}', f'--data_path={data["data_path"]}')
  rows = in_process.rows(tmp_path / 'p.csv')
  by_index = in_process.rows(pathlib.Path(f'{runs["sick"]}.csv'))
  assert list(rows[0]) == ['client', 'index', 'class', 'probability']
  assert [row['index'] for row in rows] == [str(i) for i in range(len(table))]
  assert [row['client'] for row in rows] == list(table['client'].iloc[order])
  assert [row['class'] for row in rows] == [by_index[i]['class'] for i in order]
  assert not (tmp_path / 'cache').exists()


def test_bad_rows_are_named_or_skipped_by_their_index(programs, tmp_path):
  table = people.rows()
  data = people.written(tmp_path, table)
  run = tmp_path / 'run'
  programs.done('tff_pipelines.train', '--task=tabular', '--rounds=1',
                '--mechanism=none', '--cohort_size=3', f'--output_dir={run}',
                f'--public_bounds={people.bounds(tmp_path)}', '--label_field=pay',
                *(f'--{name}={value}' for name, value in data.items()))
  bad = tmp_path / 'bad.csv'
  lines = [line.split(',') for line in pathlib.Path(
      data['data_path']).read_text().splitlines()]
  names = lines[0]
  lines[3][names.index('age')], lines[6][names.index('job')] = '', 'pilot'
  lines[9][names.index('age')] = 'old'
  bad.write_text('\n'.join(map(','.join, lines)) + '\n')
  flags = f'--run={run}', f'--data_path={bad}', f'--output={tmp_path / "p.csv"}'
  done = programs.run(PREDICT, *flags)
  # A cell is no number: the chunk is not complete. Else the first bad row counts.
  in_process.check_refused(done, f'{bad}, line 10: ')
  lines[9][names.index('age')] = '30'
  fixed = tmp_path / 'fixed.csv'
  fixed.write_text('\n'.join(map(','.join, lines)) + '\n')
  in_process.check_refused(programs.run(
      PREDICT, flags[0], f'--data_path={fixed}', flags[2]), f'{fixed}, line 4: ')
  assert not (tmp_path / 'p.csv').exists()
  done = programs.done(PREDICT, *flags, '--skip_bad_clients')
  assert 'skipped 3 bad rows' in done.stderr
  assert [int(row['index']) for row in in_process.rows(tmp_path / 'p.csv')] == [
      i for i in range(len(table)) if i not in (2, 5, 8)]


def _columns():
  return columns_lib.Columns(
      made_from=columns_lib.BOUNDS, features=(
          columns_lib.Number.of_bounds('n', 1, 100, is_log=True),
          columns_lib.Number.of_bounds('d', 0, 20000, kind=records.DATE),
          columns_lib.Category(name='c', categories=('a', '3', 'true'))),
      label=columns_lib.Number.of_bounds('y', 0, 1))


RAW = {'n': [5.0, 1000.0, np.nan], 'c': ['a', '3', 'unknown'],
       'd': ['2001-02-03', '2024-02-29 12:30:01.5+01:00', '']}


def _tensors(raw):
  return {name: tf.constant(values, tf.float64 if name == 'n' else tf.string)
          for name, values in raw.items()}


def test_graphs_encode_raw_columns_as_runs_do():
  columns = _columns()
  raw = {'n': np.array(RAW['n']), 'c': np.array(RAW['c'], object), 'd': np.array(
      [records.days(day) if day else np.nan for day in RAW['d']])}
  encoded = tf.function(serving.raw_columns(columns, 'impute').encode)(_tensors(RAW))
  np.testing.assert_allclose(
      encoded['x'], columns.encode(raw, 'impute'), rtol=1e-6, atol=1e-7)
  whole = serving.raw_columns(columns, 'error').encode(_tensors({
      'n': [1.0, 2.0], 'd': ['1970-01-01'] * 2, 'c': ['3.0', 'TRUE']}))['x']
  np.testing.assert_array_equal(whole[:, 2:], [[0, 1, 0], [0, 0, 1]])


@pytest.mark.parametrize('name, value', [
    ('n', np.nan), ('n', np.inf), ('c', 'unknown'), ('c', ''), ('d', '')])
def test_graphs_refuse_what_runs_refuse(name, value):
  good = {column: values[:1] for column, values in RAW.items()}
  encode = tf.function(serving.raw_columns(_columns(), 'error').encode)
  encode(_tensors(good))
  with pytest.raises(tf.errors.InvalidArgumentError, match=f'column {name} must'):
    encode(_tensors({**good, name: [value]}))


DATES = ('0001-01-01', '1900-03-01', '2000-02-29', '2023-02-29', '2023-13-01',
         '2023-00-10', '2023-04-31', '1969-12-31T23:59', '2024-03-01 00:30+0530',
         '2024-03-01T12:30:59.25-07', '2024-03-01T24:00', '2024-03-01T10:10+24:00',
         '2024-03-01T10:10Z', '24-03-01', 'x')


@pytest.mark.parametrize('text', DATES)
def test_graphs_read_dates_as_files_are_read(text):
  wanted = records.days(text)
  if wanted is None:
    with pytest.raises(tf.errors.InvalidArgumentError, match='column seen must'):
      serving.days(tf.constant([text]), 'seen')
  else:
    days = serving.days(tf.constant([text]), 'seen')
    np.testing.assert_allclose(days, [wanted], rtol=1e-14)


def _recurrent():
  tokens = tf.keras.Input([4], dtype='int32')
  x = tf.keras.layers.Embedding(7, 3, mask_zero=True)(tokens)
  x = tf.keras.layers.GRU(3, return_sequences=True)(x)
  return tf.keras.Model(tokens, tf.keras.layers.Dense(3)(tf.keras.layers.LSTM(2)(x)))


def test_keras_files_name_nothing_that_is_private_to_keras_2(tmp_path):
  network = _recurrent()
  models.write_keras(tmp_path / 'model.keras', network)
  with zipfile.ZipFile(tmp_path / 'model.keras') as archive:
    config = archive.read('config.json').decode()
  assert not [text for text in ('keras.src', 'time_major', 'Functional')
              if text in config]
  assert '"batch_input_shape": [null, null]' not in config
  x = np.random.default_rng(0).integers(7, size=(5, 4))
  np.testing.assert_array_equal(
      tf.keras.models.load_model(tmp_path / 'model.keras')(x), network(x))
