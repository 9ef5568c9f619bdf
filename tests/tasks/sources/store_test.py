"""Copies of clients' data: written once, found again, private, complete or absent."""

import json
import os
import pathlib
import signal
import sqlite3
import subprocess
import sys
import time

import numpy as np
import pytest

from tasks import task
from tasks.sources import open_source, store
from tests.programs import launcher
from tests.tasks.sources import populations


@pytest.fixture(name='cache')
def _cache(tmp_path):
  return tmp_path / 'cache'


def _open(options, cache, **more):
  options = {**options, 'cache_dir': str(cache), **more}
  return open_source.open_raw(
      options.pop('data_source'), fields=populations.FIELDS, **options)


def _copies(cache):
  return sorted(cache.glob('*.sqlite'))


@pytest.mark.parametrize('format_', sorted(set(populations.WRITERS) - {'sqlite'}))
def test_a_copy_is_private_and_found_again(tmp_path, cache, monkeypatch, capsys, format_):
  options = populations.WRITERS[format_](tmp_path, populations.POPULATION)
  first = _open(options, cache).train
  copy, = _copies(cache)
  assert cache.stat().st_mode & 0o777 == 0o700
  assert copy.stat().st_mode & 0o777 == 0o600
  said = capsys.readouterr()
  assert not said.out and f'copied to {copy}, ' in said.err
  assert 'MB of private data' in said.err and said.err.count('\n') == 1
  monkeypatch.setattr(store, 'write', None)  # Would be an error if called.
  again = _open(options, cache).train
  # Those of arrays and folders are sorted, others in the order of the files.
  ids = list(populations.POPULATION)
  assert list(again.client_ids) == list(first.client_ids) == (
      sorted(ids) if format_ in ('npz', 'folder') else ids)
  for client, rows in populations.POPULATION.items():
    populations.assert_same(again.examples(client), populations.expected(rows))
  assert again.read_in_graph is not None
  assert not capsys.readouterr().err


def test_what_changes_the_files_or_what_is_read_makes_a_copy_of_its_own(tmp_path, cache):
  options = populations.plain_jsonl(tmp_path, populations.POPULATION)
  path = pathlib.Path(options['data_path'])
  changes = (
      lambda: None, lambda: path.write_text(path.read_text().replace('-3', '-4')),
      lambda: os.utime(path, ns=(0, 0)),
      lambda: (path.rename(tmp_path / 'x'), path.write_text(
          (tmp_path / 'x').read_text()), os.utime(path, ns=(0, 0))))
  for number, change in enumerate(changes, start=1):
    change()
    source = _open(options, cache).train
    assert len(_copies(cache)) == number
  assert source.examples('ann')['number'].tolist()[0] == -4
  _open(options, cache, skip_bad_clients=True)
  assert len(_copies(cache)) == 5
  other = tmp_path / 'other.jsonl'
  other.write_bytes(path.read_bytes())
  _open({**options, 'data_path': str(other)}, cache)
  assert len(_copies(cache)) == 6
  with sqlite3.connect(_copies(cache)[0]) as connection:
    digests, = connection.execute('SELECT sha256 FROM preparation').fetchone()
  assert [len(digest) for digest in json.loads(digests).values()] == [64]


def _when_read(monkeypatch, change):
  """Calls a function between the reading of the files and of their digests."""
  digest = store._sha256
  monkeypatch.setattr(store, '_sha256', lambda readers: change() and digest(readers))


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path, cache, monkeypatch):
  options = populations.plain_jsonl(tmp_path, populations.POPULATION)
  path = pathlib.Path(options['data_path'])
  _when_read(monkeypatch, lambda: path.write_text(path.read_text() + '\n'))
  with pytest.raises(ValueError, match='changed while it was read'):
    _open(options, cache)
  assert not _copies(cache)


def test_bad_clients_of_a_copy_are_reported_each_time(tmp_path, cache):
  path = tmp_path / 'f.jsonl'
  path.write_text('{"client": "a", "v": 1}\n{"client": "b", "v": "x"}\nz\n')
  for _ in range(2):
    raw = open_source.open_raw('jsonl', fields=None, data_path=str(path),
                               skip_bad_clients=True, cache_dir=str(cache))
    assert raw.train.client_ids == ('a',)
    assert 'line 2' in raw.skips.clients['b'] and 'line 3' in raw.skips.records[0]
    assert len(raw.skips.records) == 1
  with pytest.raises(ValueError, match="line 2, client 'b'"):
    open_source.open_raw('jsonl', fields=None, data_path=str(path), cache_dir=str(cache))


def test_errors_found_later_name_the_line_of_the_file(tmp_path, cache):
  options = populations.plain_jsonl(tmp_path, populations.POPULATION)
  source = _open(options, cache).train
  assert source.where('7') == f'{options["data_path"]}, line 3, client \'7\''
  with pytest.raises(ValueError, match="no client 'x'") as raised:
    source.examples('x')
  assert not isinstance(raised.value, task.BadClientError)


def test_a_folder_that_can_not_be_written_is_named(tmp_path):
  options = populations.plain_jsonl(tmp_path, populations.POPULATION)
  with pytest.raises(OSError, match='cache_dir=/proc/x'):
    _open(options, '/proc/x')


def test_purge_deletes_copies_and_nothing_else(tmp_path, cache):
  for format_ in ('jsonl', 'csv'):
    _open(populations.WRITERS[format_](tmp_path, populations.POPULATION), cache)
  (cache / f'.copy-{"0" * 32}.sqlite.7.partial').write_bytes(b'123')
  others = {'emnist_all.sqlite', 'my-copy-of-a-thesis.doc', 'copy-2024.sqlite'}
  for name in others:
    (cache / name).write_bytes(b'4')
  (cache / f'copy-{"1" * 32}.sqlite').mkdir()
  number, size = store.purge(cache)
  assert number == 2 and size > 1000
  assert {path.name for path in cache.iterdir() if path.is_file()} == others
  assert store.purge(tmp_path / 'gone') == (0, 0)


# Opens a file with many clients; prints when it has, and waits.
_PROGRAM = '''
import sys, time
from tasks.sources import open_source
raw = open_source.open_raw(sys.argv[5], fields=None, data_path=sys.argv[1],
                           cache_dir=sys.argv[2], no_cache=bool(sys.argv[3]))
print(len(raw.train.client_ids), raw.train.examples('c7')['v'][0], flush=True)
time.sleep(float(sys.argv[4]))
'''


def _start(path, cache, *, no_cache='', seconds=0, tmp, format_='jsonl'):
  return subprocess.Popen(
      [sys.executable, '-c', _PROGRAM, str(path), str(cache), no_cache, str(seconds),
       format_],
      cwd=launcher.ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
      env={**os.environ, 'TMPDIR': str(tmp)})


def _many(tmp_path):
  path = tmp_path / 'many.jsonl'
  path.write_text(''.join(f'{{"client": "c{i % 500}", "v": {i}}}\n' for i in range(5000)))
  return path


def _wait_for(condition, seconds=60):
  deadline = time.monotonic() + seconds
  while not condition():
    assert time.monotonic() < deadline
    time.sleep(0.005)


def test_files_that_come_while_a_folder_is_read_are_not_in_its_copy(
    tmp_path, cache, monkeypatch):
  options = populations.clients_folder(tmp_path, populations.POPULATION)
  folder = tmp_path / 'clients' / 'ann'
  with monkeypatch.context() as patch:
    _when_read(patch, lambda: (folder / '3.jsonl').write_text(
        (folder / '1.jsonl').read_text()))
    assert len(_open(options, cache).train.examples('ann')['number']) == 2
  assert len(_open(options, cache).train.examples('ann')['number']) == 3


def test_a_folder_that_is_two_clients_is_refused(tmp_path, cache):
  options = populations.clients_folder(tmp_path, populations.POPULATION)
  (tmp_path / 'clients' / 'bob').symlink_to(tmp_path / 'clients' / 'ann')
  with pytest.raises(ValueError, match="'ann' and 'bob' are one folder, by a link"):
    _open(options, cache)


def test_a_file_is_not_given_twice(tmp_path, cache):
  options = populations.plain_jsonl(tmp_path, populations.POPULATION)
  path = options['data_path']
  (tmp_path / 'link.jsonl').symlink_to(path)
  with pytest.raises(ValueError, match='data_path must name every file once'):
    _open({**options, 'data_path': f'{path},{tmp_path}/link.jsonl'}, cache)
  with pytest.raises(ValueError, match='test_path and data_path must differ'):
    _open(options, cache, test_path=f'{tmp_path}/link.jsonl')


def test_a_bad_record_decides_nothing_of_others(tmp_path, cache):
  path = tmp_path / 'f.jsonl'
  path.write_text('{"client": "eve", "v": [1, 2, 3], "w": {}}\n'
                  + '{"client": "a", "v": [1, 2], "w": 1}\n' * 2)
  raw = open_source.open_raw('jsonl', fields=None, data_path=str(path),
                             skip_bad_clients=True, cache_dir=str(cache))
  assert raw.train.client_ids == ('a',)
  assert raw.train.examples('a')['v'].tolist() == [[1, 2]] * 2
  assert list(raw.skips.clients) == ['eve']


def test_nothing_of_a_client_that_is_left_out_stays_in_the_copy(tmp_path, cache):
  path = tmp_path / 'f.jsonl'
  path.write_text(''.join(
      json.dumps({'client': client, 'v': f'{word} {i}'}) + '\n' for i in range(500)
      for client, word in (('good', 'kept'), ('bad', 'forgotten')))
                  + '{"client": "bad", "v": 1}\n')
  open_source.open_raw('jsonl', fields=None, data_path=str(path),
                       skip_bad_clients=True, cache_dir=str(cache))
  content = _copies(cache)[0].read_bytes()
  assert b'kept 7' in content and b'forgotten' not in content


@pytest.mark.slow
def test_killed_conversions_of_arrays_leave_nothing(tmp_path, cache):
  path, tmp = tmp_path / 'f.npz', tmp_path / 'tmp'
  tmp.mkdir()
  count = 400_000
  np.savez(path, client_train=np.arange(count) % 500, v_train=np.arange(count))
  with _start(path, cache, tmp=tmp, format_='npz') as process:
    _wait_for(lambda: any(partial.stat().st_size > 100_000
                          for partial in cache.glob('.*.partial')))
    process.kill()
    assert process.wait() == -signal.SIGKILL
  _wait_for(lambda: not list(cache.glob('.*.partial')) and not list(tmp.iterdir()))
  assert not _copies(cache)


def test_without_a_cache_the_copy_goes_with_the_source(tmp_path, cache, monkeypatch):
  options = populations.plain_jsonl(tmp_path, populations.POPULATION)
  tmp = tmp_path / 'tmp'
  tmp.mkdir()
  monkeypatch.setattr('tempfile.tempdir', str(tmp))
  raw = _open(options, cache, no_cache=True)
  copy, = tmp.iterdir()
  assert copy.stat().st_mode & 0o777 == 0o600
  assert len(raw.train.examples('ann')['number']) == 2
  del raw
  _wait_for(lambda: not list(tmp.iterdir()))
  assert not cache.exists()


@pytest.mark.slow
def test_without_a_cache_the_copy_goes_with_a_killed_process(tmp_path, cache):
  path, tmp = _many(tmp_path), tmp_path / 'tmp'
  tmp.mkdir()
  with _start(path, cache, no_cache='yes', tmp=tmp, seconds=60) as process:
    assert process.stdout.readline() == '500 7\n'
    assert list(tmp.glob('copy-*'))
    process.kill()
  _wait_for(lambda: not list(tmp.iterdir()))
  assert not cache.exists()


@pytest.mark.slow
def test_two_processes_may_convert_at_once(tmp_path, cache):
  path, tmp = _many(tmp_path), tmp_path / 'tmp'
  tmp.mkdir()
  processes = [_start(path, cache, tmp=tmp) for _ in range(2)]
  for process in processes:
    assert process.communicate(timeout=120)[0] == '500 7\n'
    assert process.returncode == 0
  assert len(_copies(cache)) == 1 and not list(cache.glob('.*.partial'))
