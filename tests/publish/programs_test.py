"""Export, evaluate and predict as a user runs them, on one small run of files."""

import collections
import datetime
import json
import os
import pathlib
import shutil

import numpy as np
from pyarrow import parquet
import pytest

from tests import ledgers
from tests.programs import in_process
from tests.publish import alone
from tests.tasks.sources import populations
from tff_pipelines.accounting.guarantees import ledger as ledger_lib
from tff_pipelines.common import files
from tff_pipelines.experiment import configurations, models, pages, statement

TRAIN, EXPORT, EVALUATE, PREDICT = (
    f'tff_pipelines.{name}' for name in ('train', 'export', 'evaluate', 'predict'))
CLIENTS = 12
FIELDS = ('--task=emnist', '--data_source=jsonl', '--image_field=vector',
          '--label_field=number', '--num_classes=10')

pytestmark = [pytest.mark.usefixtures('shared_context'), pytest.mark.slow]

def by_client(rows):
  """(client, index among the client's) -> row, of rows in the order of a file."""
  seen, result = collections.Counter(), {}
  for row in rows:
    result[row['client'], seen[row['client']]] = row
    seen[row['client']] += 1
  return result


def population(clients=CLIENTS, prefix='writer', labels=True):
  """Client -> records of two images each."""
  rng = np.random.default_rng(5)
  return {f'{prefix}-{i}': [
      {'vector': rng.integers(256, size=784).tolist(),
       **({'number': int(rng.integers(10))} if labels else {})} for _ in range(2)]
          for i in range(clients)}


@pytest.fixture(scope='module')
def trained(programs, tmp_path_factory):
  """The folder of the data, and that of a run on them."""
  folder = tmp_path_factory.mktemp('trained')
  populations.jsonl(folder, population(), 'private.jsonl')
  programs.done(
      TRAIN, *FIELDS, f'--data_path={folder / "private.jsonl"}', '--rounds=2',
      '--cohort_size=4', f'--output_dir={folder / "run"}')
  return folder, folder / 'run'


@pytest.fixture(scope='module')
def exported(programs, trained, tmp_path_factory):
  """Format -> folder of an export."""
  base, folders = tmp_path_factory.mktemp('exported'), {}
  for name in ('npz', 'savedmodel'):
    run = programs.done(EXPORT, f'--run={trained[1]}', f'--format={name}',
                        f'--output_dir={base / name}')
    assert f'{statement.TEXT}, {models.DESCRIPTION}' in run.stdout
    folders[name] = base / name
  return folders


@pytest.fixture(scope='module')
def predicted(programs, trained):
  """Rows of the predictions of the run's own file."""
  folder, run = trained
  programs.done(PREDICT, f'--run={run}', f'--output={folder / "rows.csv"}',
                f'--data_path={folder / "private.jsonl"}')
  return in_process.rows(folder / 'rows.csv')


def test_statement_has_the_numbers_of_the_summary_and_no_other_keys(trained, exported):
  summary = in_process.summary(trained[1])
  for folder in exported.values():
    content = json.loads((folder / statement.JSON).read_text())
    assert tuple(content) == statement.KEYS
    assert set(statement.KEYS) == {
        'version', 'private', 'reasons', 'rules', 'task', 'algorithm', 'model', 'mechanism',
        'epsilon', 'epsilon_server', 'epsilon_server_any_cohorts',
        'epsilon_participant', 'clients_per_person', 'epsilon_person',
        'epsilon_server_person', 'delta', 'adjacency', 'adjacency_in_words',
        'privacy_unit', 'observers', 'observers_server', 'observers_participant',
        'least_cohort', 'sampling', 'trust_model', 'secure_aggregation', 'accountant',
        'amplification', 'source', 'sampler', 'about', 'earlier', 'audit', 'caveats'}
    assert content['private'] and content['reasons'] == []
    for name in ('epsilon', 'epsilon_server', 'epsilon_server_any_cohorts', 'delta',
                 'source', 'observers'):
      assert content[name] == summary[name] is not None
    published = {caveat['name'] for caveat in content['caveats']}
    assert {'secure aggregation simulated'} <= published <= set(summary['caveats'])


def test_exported_files_have_the_modes_of_the_umask(tmp_path, exported):
  (tmp_path / 'folder').mkdir()
  (tmp_path / 'file').touch()
  expected = {is_folder: (tmp_path / name).stat().st_mode
              for is_folder, name in ((True, 'folder'), (False, 'file'))}
  for export in exported.values():
    for path in (export, *export.rglob('*')):
      assert path.stat().st_mode == expected[path.is_dir()], path


def test_exported_files_have_nothing_of_the_operator(trained, exported):
  folder, run = trained
  day = configurations.begun_on(run)
  year = str(datetime.date.today().year)
  ledger = [json.loads(line) for line in (run / files.LEDGER).read_text().splitlines()]
  forbidden = [
      os.fspath(folder), folder.name, 'private.jsonl', 'writer-', 'cohort_size',
      'starts', 'diagnostics', os.path.expanduser('~/'), os.getcwd(),
      configurations.read(run)['hash'],
      *(line['time'] for line in ledger), *(line['hash'] for line in ledger)]
  for export in exported.values():
    for path in filter(pathlib.Path.is_file, export.rglob('*')):
      content = path.read_bytes()
      assert not [text for text in forbidden if text.encode() in content], path
      if path.suffix in ('.json', '.md'):
        # The day of the statement is no time of a round.
        words = content.decode().split()
        assert {word.strip('",') for word in words if f'{year}-' in word} <= {day}
  assert sorted(path.name for path in exported['npz'].iterdir()) == [
      statement.TEXT, models.DESCRIPTION, models.ARRAYS, statement.JSON]
  for export in exported.values():
    served = json.loads((export / models.DESCRIPTION).read_text())['served']
    assert served == {'family': 'train', 'has_files': True, 'settings': {
        'task': 'emnist', 'num_classes': 10, 'data_source': 'jsonl',
        'image_field': 'vector', 'label_field': 'number'}}


def test_arrays_are_named_in_the_order_of_the_layers(trained, exported):
  with np.load(exported['npz'] / models.ARRAYS) as arrays:
    assert arrays.files == [
        f'{layer}/{array}' for layer in ('convolution_0', 'convolution_1', 'output')
        for array in ('kernel', 'bias')]
    assert arrays['output/kernel'].shape == (384, 10)
    kept = files.read_arrays(trained[1] / models.ARRAYS)
    for name in arrays.files:
      np.testing.assert_array_equal(arrays[name], kept[name])
  described = json.loads((exported['npz'] / models.DESCRIPTION).read_text())
  assert described['inputs'] == {'x': {'dtype': 'uint8', 'shape': [28, 28]}}
  assert described['outputs']['probabilities'] == {'dtype': 'float32', 'shape': [10]}
  assert described['classes'] == list('0123456789')


def test_tensorflow_alone_serves_the_saved_model_with_the_same_predictions(
    exported, predicted):
  images = np.array([record['vector'] for records in population().values()
                     for record in records], np.uint8).reshape(-1, 28, 28)
  outputs = alone.served(exported['savedmodel'] / 'saved_model', x=images)
  of_row = by_client(predicted)
  keys = [(client, i) for client, records in population().items()
          for i in range(len(records))]
  assert set(of_row) == set(keys) and len(keys) == 2 * CLIENTS
  rows = [of_row[key] for key in keys]
  assert [int(row['class']) for row in rows] == outputs['class'].tolist()
  np.testing.assert_allclose(
      [float(row['probability']) for row in rows],
      np.max(outputs['probabilities'], axis=1), atol=1e-6)


def test_evaluation_of_files_is_over_all_their_clients(programs, trained, predicted):
  done = programs.done(EVALUATE, f'--run={trained[1]}', '--format=json',
                       f'--data_path={trained[0] / "private.jsonl"}')
  measured = json.loads(done.stdout)['data']
  truth = {(client, i): record['number'] for client, records in population().items()
           for i, record in enumerate(records)}
  right = [int(row['class']) == truth[key] for key, row in by_client(predicted).items()]
  assert measured['accuracy'] == pytest.approx(np.mean(right))
  assert measured['loss'] > 0


def test_predictions_need_no_labels_and_have_the_same_rows_in_parquet(
    programs, trained, predicted, tmp_path):
  populations.jsonl(tmp_path, population(labels=False), 'unlabelled.jsonl')
  programs.done(PREDICT, f'--run={trained[1]}',
                f'--data_path={tmp_path / "unlabelled.jsonl"}',
                f'--output={tmp_path / "rows.parquet"}')
  table = parquet.read_table(tmp_path / 'rows.parquet').to_pylist()
  # The labels came from the same generator: only the first image is the same.
  assert table[0] == {
      'client': 'writer-0', 'index': 0, 'class': predicted[0]['class'],
      'probability': float(predicted[0]['probability'])}
  assert len(table) == 2 * CLIENTS
  done = programs.run(EVALUATE, f'--run={trained[1]}',
                      f'--data_path={tmp_path / "unlabelled.jsonl"}')
  assert done.code == 2 and "there is no field 'number'" in done.stderr


def test_resuming_a_finished_run_writes_its_model_again(programs, trained, tmp_path):
  folder, run = tmp_path / 'run', trained[1]
  shutil.copytree(run, folder)
  (folder / models.ARRAYS).unlink()
  done = programs.run(EXPORT, f'--run={folder}', f'--output_dir={tmp_path / "x"}')
  assert done.code == 2 and '--resume writes it' in done.stderr
  programs.done(
      TRAIN, *FIELDS, f'--data_path={trained[0] / "private.jsonl"}', '--rounds=2',
      '--cohort_size=4', f'--output_dir={folder}', '--resume')
  kept, again = (files.read_arrays(path / models.ARRAYS) for path in (run, folder))
  assert list(kept) == list(again)
  for name in kept:
    np.testing.assert_array_equal(kept[name], again[name])


def test_run_that_was_stopped_is_finished_if_its_summary_has_all_that_is_charged(
    programs, trained, tmp_path):
  folder = tmp_path / 'run'
  shutil.copytree(trained[1], folder)
  ledger = ledger_lib.Ledger(folder / files.LEDGER)
  ledgers.append(ledger, ledger.event(), outcome=ledger_lib.UNUSED,
                 configuration_hash=ledger.lines()[0]['configuration'])
  export = (EXPORT, f'--run={folder}', '--format=npz',
            f'--output_dir={tmp_path / "export"}')
  done = programs.run(*export)
  assert done.code == 2 and 'its ledger does not prove the guarantee' in done.stderr
  charged = pages.verdict_on(folder)
  files.write_json(folder / files.SUMMARY, {
      **in_process.summary(folder), **charged.guarantee.numbers()})
  programs.done(*export)


def test_a_run_whose_data_are_gone_still_serves(programs, trained, tmp_path):
  folder = tmp_path / 'run'
  shutil.copytree(trained[1], folder)
  files.write_json(folder / files.PATHS, {'data_path': str(tmp_path / 'gone.jsonl')})
  done = programs.run(PREDICT, f'--run={folder}', '--data_source=embedded',
                      f'--output={tmp_path / "rows.csv"}')
  assert done.code == 0 and '1,797 predictions' in done.stdout, done.stderr
  done = programs.run(EVALUATE, f'--run={folder}')
  assert done.code == 2 and 'gone.jsonl does not exist' in done.stderr


def _summarised(name, change):
  def damage(run):
    summary = in_process.summary(run)
    files.write_json(run / files.SUMMARY, {**summary, name: change(summary[name])})
  return damage


def _edited(run):
  text = (run / files.LEDGER).read_text()
  (run / files.LEDGER).write_text(text.replace('"round":1', '"round":3'))


def _with_bias(layer, value):
  def damage(run):
    arrays = files.read_arrays(run / models.ARRAYS)
    arrays[f'{layer}/bias'] = np.array(value, np.float32)
    files.write_arrays(run / models.ARRAYS, arrays)
  return damage


@pytest.mark.parametrize('damage, message', [
    (lambda run: (run / files.SUMMARY).unlink(), 'is not finished'),
    (_summarised('rounds', lambda rounds: rounds - 1), 'is not finished'),
    (_summarised('epsilon', lambda epsilon: epsilon / 2),
     'its ledger does not prove the guarantee'),
    (_edited, 'the chain does not hold'),
    (_with_bias('convolution_0', [0] * 9), 'found those of another'),
    (_with_bias('output', [np.nan] + [0] * 9), 'NaN or infinite weights'),
    (lambda run: (run / models.DESCRIPTION).write_text('{'), 'missing or damaged')])
def test_runs_that_cannot_be_exported_say_why_in_one_line(
    programs, trained, tmp_path, damage, message):
  shutil.copytree(trained[1], tmp_path / 'run')
  damage(tmp_path / 'run')
  in_process.check_refused(programs.run(
      EXPORT, f'--run={tmp_path / "run"}', f'--output_dir={tmp_path / "export"}'),
                           message)
  assert sorted(path.name for path in tmp_path.iterdir()) == ['run']


@pytest.mark.parametrize('module, arguments, message', [
    (EXPORT, ['--output_dir=x'], 'run must be given'),
    (EXPORT, ['--run=RUN'], 'output_dir must be given'),
    (EXPORT, ['--run=nowhere', '--output_dir=x'], 'run=nowhere holds no run'),
    (EXPORT, ['--run=RUN', '--output_dir=RUN'], 'is not empty'),
    (EXPORT, ['--run=RUN', '--output_dir=x', '--format=onnx'],
     "format must be one of keras, npz, savedmodel, found 'onnx'"),
    (EXPORT, ['--run=RUN', '--output_dir=x', '--format=keras'],
     'format=keras is for models from Keras'),
    (EXPORT, ['--run=RUN', '--output_dir=x', '--party=party_0'],
     "party must be one of none, found 'party_0'"),
    (PREDICT, ['--run=RUN', '--output=x.csv'], 'data_path must be given'),
    (PREDICT, ['--run=RUN', '--data_path=d', '--output=x.txt'],
     'output must end with .csv or .parquet'),
    (PREDICT, ['--run=RUN', '--data_path=missing.jsonl', '--output=x.csv'],
     "missing.jsonl does not exist"),
    (PREDICT, ['--run=RUN', '--data_path=RUN/summary.json', '--data_source=csv',
               '--output=x.csv'], 'summary.json, line'),
    (EVALUATE, ['--run=RUN', '--data_source=leaf', '--client_field=c',
                '--data_path=d'], 'data_source leaf does not use client_field'),
    (EVALUATE, ['--run=RUN', '--data_source=npz'], 'needs data_path'),
    (EVALUATE, ['--run=RUN', '--data_source=embedded', '--text_field=t'],
     'does not use text_field'),
    (EVALUATE, ['--run=RUN', '--data_path=DATA', '--image_field=number'],
     'images must have the shape')])
def test_mistakes_are_one_line(programs, trained, module, arguments, message):
  folder, run = trained
  done = programs.run(module, *(
      argument.replace('RUN', os.fspath(run)).replace(
          'DATA', os.fspath(folder / 'private.jsonl')) for argument in arguments))
  error, = (line for line in done.stderr.splitlines() if ': copied to ' not in line)
  assert done.code == 2 and message in error
  assert not any(done.folder.iterdir())


def test_output_that_exists_is_left_alone(programs, trained, tmp_path):
  path = tmp_path / 'rows.csv'
  path.write_text('mine')
  done = programs.run(PREDICT, f'--run={trained[1]}', '--data_source=embedded',
                      f'--output={path}')
  assert done.code == 2 and 'exists: choose another file' in done.stderr
  assert path.read_text() == 'mine'
