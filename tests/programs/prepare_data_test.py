"""prepare_data: copies of every source, whole or not there."""

import json
import re
import shlex
import shutil
import sqlite3
import time

import matplotlib.image
import numpy as np
import pytest

from tasks.emnist import task as emnist_task
from tasks.sources import sqlite as source_sqlite
from tests.tasks.sources import populations

PREPARE = 'tff_pipelines.prepare_data'
TRAIN = 'tff_pipelines.train'


def _jsonl(folder):
  """Flags for a small file, with a test part."""
  (folder / 'test').mkdir()
  options = populations.jsonl(folder, populations.POPULATION)
  test = populations.jsonl(folder / 'test', {'zoe': populations.POPULATION['7']})
  return (f'--output={folder / "out.sqlite"}', '--data_source=jsonl',
          f'--data_path={options["data_path"]}', f'--test_path={test["data_path"]}')


def test_fields_are_copied_and_a_second_start_leaves_them_alone(programs, tmp_path):
  flags = _jsonl(tmp_path)
  run = programs.done(PREPARE, *flags)
  path = tmp_path / 'out.sqlite'
  assert run.stdout == f'{path}: 4 clients, 7 examples\n'
  for split, population in (('train', populations.POPULATION),
                            ('test', {'zoe': populations.POPULATION['7']})):
    source = source_sqlite.SqliteSource(path, split)
    assert set(source.client_ids) == set(population)
    for client, rows in population.items():
      populations.assert_same(source.examples(client), populations.expected(rows))
  before = path.read_bytes()
  run = programs.run(PREPARE, *flags)
  assert (run.code, run.stdout) == (0, f'{path} is complete already\n')
  assert path.read_bytes() == before

  for more in (['--fields=text'], ['--nodark_ink'], ['--task=emnist'],
               ['--test_path=']):
    run = programs.run(PREPARE, *flags, *more)
    assert run.code == 2 and run.stderr.startswith('error: ')
    assert path.read_bytes() == before


def test_a_roster_has_the_clients_without_their_examples(programs, tmp_path):
  assert programs.run(PREPARE, *_jsonl(tmp_path)).code == 0
  flags = ('--roster', '--data_source=sqlite', f'--data_path={tmp_path / "out.sqlite"}',
           f'--output={tmp_path / "roster.sqlite"}')
  run = programs.run(PREPARE, *flags)
  assert (run.code, run.stdout) == (
      0, f'{tmp_path / "roster.sqlite"}: 3 clients, without their examples\n'), run.stderr
  source = source_sqlite.SqliteSource(tmp_path / 'roster.sqlite', 'train')
  assert source.is_roster and set(source.client_ids) == set(populations.POPULATION)
  run = programs.run(PREPARE, *flags)
  assert run.code == 2 and run.stderr.endswith('roster.sqlite exists already\n')


@pytest.mark.parametrize('flags, message', [
    ([], 'output must be the path of a file, found none'),
    (['--output=x'], 'data_source must be given, or a task'),
    (['--output=x', '--data_source=jsonl'], 'data_source jsonl needs data_path'),
    (['--output=x', '--data_source=jsonl', '--data_path=gone'], 'gone does not exist'),
    (['--output=x', '--data_source=embedded'], 'data_source must be one of csv, fol'),
    (['--output=x', '--data_source=jsonl', '--num_clients=3'],
     'num_clients is not used with a copy of fields as they are'),
    (['--output=x', '--task=emnist', '--model=cnn_1m'], 'model is not used with a copy of data'),
    (['--output=x', '--task=emnist', '--fields=a'], 'fields is not used with task=emnist'),
    (['--output=x', '--roster', '--data_source=csv'],
     'roster needs data_source=sqlite, and neither task nor fields'),
    (['--output=x', '--roster', '--data_source=sqlite', '--data_path=a',
      '--test_split=b'], 'test_split is not used with a copy of fields as they are'),
    (['--output=/proc/x', '--task=emnist', '--num_clients=3'],
     "output=/proc/x can't be written")])
def test_wrong_flags_are_named(programs, flags, message):
  run = programs.run(PREPARE, *flags)
  assert run.code == 2, run.stderr
  last = run.stderr.splitlines()[-1]
  assert last.startswith('error: ') and message in last, run.stderr
  assert not {p.name for p in run.folder.iterdir()} - {'stderr', 'stdout'}


def test_chosen_fields_have_their_kinds(programs, tmp_path):
  path = tmp_path / 'f.jsonl'
  path.write_text('{"client": "a", "v": 1, "w": 2}\n{"client": "a", "v": 3}\n')
  flags = ['--data_source=jsonl', f'--data_path={path}',
           f'--output={tmp_path / "out.sqlite"}']
  assert 'there is no field' in programs.run(PREPARE, *flags).stderr
  assert 'kind must be one of' in programs.run(PREPARE, *flags, '--fields=v:word').stderr
  programs.done(PREPARE, *flags, '--fields=v:float,w:integer?')
  examples = source_sqlite.SqliteSource(tmp_path / 'out.sqlite', 'train').examples('a')
  assert examples['v'].dtype == np.float64 and examples['v'].tolist() == [1, 3]
  assert examples['w'].dtype == np.int64 and examples['w'].tolist() == [2, 0]


def test_bad_clients_are_skipped_and_counted(programs, tmp_path):
  path = tmp_path / 'f.jsonl'
  path.write_text('{"client": "a", "v": 1}\n{"client": "b", "v": "x"}\nz\n')
  flags = ['--data_source=jsonl', f'--data_path={path}',
           f'--output={tmp_path / "out.sqlite"}']
  run = programs.run(PREPARE, *flags)
  assert run.code == 2 and "line 2, client 'b': field 'v'" in run.stderr
  assert sorted(p.name for p in tmp_path.iterdir()) == ['f.jsonl']
  run = programs.done(PREPARE, *flags, '--skip_bad_clients')
  assert '1 clients, 1 examples' in run.stdout
  assert 'skipped 1 bad clients and 1 bad records of no known client' in run.stdout


@pytest.mark.slow
def test_killed_copies_leave_nothing_and_start_again(launcher, tmp_path):
  path = tmp_path / 'f.jsonl'
  rng = np.random.default_rng(0)
  with open(path, 'w', encoding='utf-8') as file:
    for i in range(4000):
      file.write(json.dumps(
          {'client': str(i % 900), 'v': rng.integers(2**40, size=600).tolist()}) + '\n')
  flags = ['--data_source=jsonl', f'--data_path={path}',
           f'--output={tmp_path / "out.sqlite"}']
  run = launcher.start(PREPARE, *flags)
  while run.poll() is None and not any(
      partial.stat().st_size > 10**6 for partial in tmp_path.glob('.out*.partial')):
    time.sleep(0.002)
  run.kill()
  assert run.code == -9, run.stderr
  deadline = time.monotonic() + 60
  while list(tmp_path.iterdir()) != [path]:
    assert time.monotonic() < deadline
    time.sleep(0.01)
  run = launcher.run(PREPARE, *flags)
  assert run.code == 0 and '900 clients, 4,000 examples' in run.stdout, run.stderr
  assert sorted(p.name for p in tmp_path.iterdir()) == ['f.jsonl', 'out.sqlite']


def test_an_output_of_data_that_changed_is_not_complete(programs, tmp_path):
  rng = np.random.default_rng(0)
  path, output = tmp_path / 'f.npz', tmp_path / 'out.sqlite'
  flags = ['--task=emnist', '--data_source=npz', f'--data_path={path}',
           f'--output={output}', '--num_classes=10']
  for records, code in ((20, 0), (30, 2)):
    np.savez(path, x_train=rng.integers(256, size=[records, 28, 28]).astype(np.uint8),
             y_train=rng.integers(10, size=records), writer_train=np.arange(records) % 4)
    run = programs.run(PREPARE, *flags)
    assert run.code == code, run.stderr
  assert 'exists already and is of other data' in run.stderr
  assert programs.run(PREPARE, *flags).code == 2
  # With bad clients left out it is another file.
  lines = tmp_path / 'f.jsonl'
  lines.write_text('{"client": "a", "v": 1}\n{"client": "b", "v": "x"}\n')
  flags = ['--data_source=jsonl', f'--data_path={lines}',
           f'--output={tmp_path / "two.sqlite"}']
  assert programs.run(PREPARE, *flags, '--skip_bad_clients').code == 0
  assert programs.run(PREPARE, *flags).code == 2


def test_sqlite_files_without_an_index_get_one(programs, tmp_path):
  path, output = tmp_path / 'f.sqlite', tmp_path / 'out.sqlite'
  options = populations.sqlite(tmp_path, populations.POPULATION)
  shutil.copy(options['data_path'], path)
  with sqlite3.connect(path) as connection:
    connection.execute('DROP INDEX examples_by_client')
  assert source_sqlite.SqliteSource(path, 'train').read_in_graph is None
  programs.done(PREPARE, '--data_source=sqlite', f'--data_path={path}',
                f'--output={output}')
  source = source_sqlite.SqliteSource(output, 'train')
  assert source.read_in_graph is not None
  for client, rows in populations.POPULATION.items():
    populations.assert_same(source.examples(client), populations.expected(rows))


@pytest.mark.slow
def test_purge_deletes_the_copies_that_training_made(programs, tmp_path):
  options = populations.jsonl(tmp_path, {
      f'c{i}': [dict(pixels=[i] * 784, label=i % 10)] * 3 for i in range(12)})
  cache = tmp_path / 'cache'
  flags = ['--rounds=1', '--cohort_size=4', '--mechanism=none', '--data_source=jsonl',
           f'--data_path={options["data_path"]}']
  run = programs.run(TRAIN, *flags, f'--cache_dir={cache}',
                     f'--output_dir={tmp_path / "cached"}')
  assert run.code == 0 and f'copied to {cache}/copy-' in run.stderr, run.stderr
  assert len(list(cache.glob('*.sqlite'))) == 1
  run = programs.run(PREPARE, '--purge', f'--cache_dir={cache}')
  assert run.code == 0 and run.stdout.startswith(f'{cache}: 1 copies deleted, ')
  assert not list(cache.iterdir())
  run = programs.run(TRAIN, *flags, '--no_cache', f'--cache_dir={cache}',
                     f'--output_dir={tmp_path / "not_cached"}')
  assert run.code == 0 and 'copied' not in run.stderr, run.stderr
  assert not list(cache.iterdir())
  one, other = ((tmp_path / name / 'metrics.csv').read_text().splitlines()[0]
                for name in ('cached', 'not_cached'))
  assert one == other


@pytest.mark.slow
def test_a_damaged_copy_ends_a_start_and_the_run_resumes_after_purging(
    programs, tmp_path):
  options = populations.jsonl(tmp_path, {
      f'c{i}': [dict(pixels=[i] * 784, label=i % 10)] * 3 for i in range(12)})
  cache, folder = tmp_path / 'my cache', tmp_path / 'run'
  flags = ['--cohort_size=4', '--mechanism=none', '--data_source=jsonl',
           f'--data_path={options["data_path"]}', f'--cache_dir={cache}',
           f'--output_dir={folder}']
  assert programs.run(TRAIN, *flags, '--rounds=1').code == 0
  ledger = (folder / 'ledger.jsonl').read_bytes()
  copy, = cache.glob('*.sqlite')
  copy.write_bytes(copy.read_bytes()[:-4096])
  run = programs.run(TRAIN, *flags, '--rounds=2', '--resume')
  assert run.code == 2 and not run.stdout
  said, command = re.fullmatch(
      '(.*) start again, or resume, after python -m (.*)\n', run.stderr).groups()
  assert said.startswith(f'error: {copy} is damaged (')
  assert options['data_path'] not in run.stderr
  assert (folder / 'ledger.jsonl').read_bytes() == ledger
  assert programs.run(*shlex.split(command)).code == 0 and not copy.exists()
  programs.done(TRAIN, *flags, '--rounds=2', '--resume')


@pytest.mark.slow
def test_simulated_clients_are_copied_and_drawn(programs, tmp_path):
  output = tmp_path / 'digits.sqlite'
  flags = ['--partition=labels', '--labels_per_client=3', '--num_clients=30']
  programs.done(PREPARE, '--task=emnist', f'--output={output}', *flags)
  figure = matplotlib.image.imread(f'{output}.clients.png')
  assert len(np.unique(figure.reshape([-1, figure.shape[-1]]), axis=0)) > 10
  direct = emnist_task.load(partition='labels', labels_per_client=3, num_clients=30)
  copied = emnist_task.load(data_source='sqlite', data_path=str(output), num_classes=10)
  assert copied.train.read_in_graph is not None
  assert set(copied.train.client_ids) == set(direct.train.client_ids)
  for client in direct.train.client_ids:
    populations.assert_same(copied.train.examples(client), direct.train.examples(client))
    assert len(np.unique(direct.train.examples(client)['y'])) == 3
  populations.assert_same(copied.held_out['test_clients'], direct.held_out['test'])
