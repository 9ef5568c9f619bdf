"""Tests of tasks.sources."""

import concurrent.futures
import sqlite3

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from tasks import sources

_SPEC = {'v': (np.dtype(np.int64), ())}


def _decode(serialized):
  return {'v': np.array([int(value) for value in serialized])}


def _write(path, rows, metadata=None):
  """Writes (split, client, serialized) rows in TFF's format."""
  if metadata is None:
    metadata = sorted({(client, split) for split, client, _ in rows})
  connection = sqlite3.connect(path)
  with connection:
    connection.execute(
        'CREATE TABLE examples (split_name TEXT NOT NULL, client_id TEXT NOT '
        'NULL, serialized_example_proto BLOB NOT NULL)')
    connection.execute(
        'CREATE TABLE client_metadata (client_id TEXT NOT NULL, split_name '
        'TEXT NOT NULL, num_examples INTEGER NOT NULL)')
    connection.executemany('INSERT INTO examples VALUES (?, ?, ?)', rows)
    connection.executemany(
        'INSERT INTO client_metadata VALUES (?, ?, 1)', metadata)
  connection.close()
  return path


@hypothesis.settings(deadline=None, max_examples=100)
@hypothesis.given(st.lists(st.integers(-3, 3), min_size=1, max_size=40))
def test_arrays_by_client_gives_back_every_example_in_order(clients):
  clients = np.array(clients)
  values = np.arange(clients.size)
  source = sources.ArraysByClient({'v': values, 'w': -values}, clients)
  assert list(source.client_ids) == [str(c) for c in np.unique(clients)]
  for client in source.client_ids:
    examples = source.examples(client)
    np.testing.assert_array_equal(
        examples['v'], values[clients == int(client)])
    np.testing.assert_array_equal(examples['w'], -examples['v'])


def test_arrays_by_client_takes_names_as_clients():
  source = sources.ArraysByClient(
      {'v': np.arange(3, dtype=np.int32)}, np.array(['b', 'a', 'b']))
  assert source.client_ids == ('a', 'b')
  assert source.examples('b')['v'].tolist() == [0, 2]
  assert dict(source.element_spec) == {'v': (np.dtype(np.int32), ())}


@pytest.mark.parametrize('clients', [[0, 0, 1], [1, 0, 1]])
def test_examples_of_a_client_cannot_be_written_to(clients):
  values = np.arange(3)
  source = sources.ArraysByClient({'v': values}, np.array(clients))
  with pytest.raises(ValueError, match='read-only'):
    source.examples('1')['v'][0] = 9
  values[0] = 0  # The caller's own array stays writable.


@pytest.mark.parametrize('values, clients, message', [
    (np.arange(3), np.array([0, 1]), 'v has shape .3. but there are 2 clients'),
    (np.zeros([0]), np.zeros([0], int), 'at least one example'),
    (np.arange(2), np.array([0.0, np.nan]), 'integer or string per example'),
    (np.arange(2), np.array([[0], [1]]), 'integer or string per example'),
])
def test_arrays_by_client_rejects(values, clients, message):
  with pytest.raises(ValueError, match=message):
    sources.ArraysByClient({'v': values}, clients)


def test_unknown_client_is_named(tmp_path):
  arrays = sources.ArraysByClient({'v': np.arange(1)}, np.array([5]))
  path = _write(tmp_path / 'f', [('a', '5', b'1')])
  sqlite = sources.SqliteSource(path, 'a', decode=_decode, element_spec=_SPEC)
  for source in (arrays, sqlite):
    with pytest.raises(ValueError, match="no client 'x'"):
      source.examples('x')


def test_sqlite_reads_one_split_of_one_client(tmp_path):
  path = _write(tmp_path / "it's 100%.sqlite", [
      ('a', "o'b", b'3'), ('b', "o'b", b'4'), ('a', 'c', b'5'),
      ('a', "o'b", b'2')])
  source = sources.SqliteSource(path, 'a', decode=_decode, element_spec=_SPEC)
  assert source.client_ids == ('c', "o'b")
  assert dict(source.element_spec) == _SPEC
  assert source.examples("o'b")['v'].tolist() == [3, 2]
  examples, clients = source.all_examples()
  assert examples['v'].tolist() == [3, 5, 2]
  assert clients.tolist() == ["o'b", 'c', "o'b"]


def test_sqlite_decodes_only_the_client_that_is_read(tmp_path):
  path = _write(tmp_path / 'f', [('a', str(i), b'%d' % i) for i in range(50)])
  seen = []

  def decode(serialized):
    seen.extend(serialized)
    return _decode(serialized)

  source = sources.SqliteSource(path, 'a', decode=decode, element_spec=_SPEC)
  assert seen == []
  source.examples('7')
  assert seen == [b'7']


def test_sqlite_reads_everything_in_pieces(tmp_path, monkeypatch):
  monkeypatch.setattr(sources, '_MANY_ROWS', 3)
  path = _write(tmp_path / 'f', [('a', 'c', b'%d' % i) for i in range(10)])
  source = sources.SqliteSource(path, 'a', decode=_decode, element_spec=_SPEC)
  examples, clients = source.all_examples()
  assert examples['v'].tolist() == list(range(10))
  assert clients.tolist() == ['c'] * 10


def test_sqlite_is_read_from_many_threads(tmp_path):
  path = _write(tmp_path / 'f', [('a', str(i), b'%d' % i) for i in range(40)])
  source = sources.SqliteSource(path, 'a', decode=_decode, element_spec=_SPEC)
  with concurrent.futures.ThreadPoolExecutor(4) as pool:
    values = list(pool.map(
        lambda c: int(source.examples(c)['v'][0]), source.client_ids))
  assert values == [int(c) for c in source.client_ids]


def test_sqlite_does_not_create_a_missing_file(tmp_path):
  with pytest.raises(ValueError, match='gone.sqlite does not exist'):
    sources.SqliteSource(
        tmp_path / 'gone.sqlite', 'a', decode=_decode, element_spec=_SPEC)
  assert not list(tmp_path.iterdir())


def test_sqlite_errors_name_the_file(tmp_path):
  text = tmp_path / 'text.sqlite'
  text.write_bytes(b'not a database, but long enough to look at' * 100)
  with pytest.raises(ValueError, match='text.sqlite cannot be read'):
    sources.SqliteSource(text, 'a', decode=_decode, element_spec=_SPEC)

  whole = _write(
      tmp_path / 'whole', [('a', str(i), b'1' * 500) for i in range(99)])
  cut = tmp_path / 'cut.sqlite'
  cut.write_bytes(whole.read_bytes()[:-4096])
  with pytest.raises(ValueError, match='cut.sqlite cannot be read'):
    sources.SqliteSource(cut, 'a', decode=_decode, element_spec=_SPEC)

  other = tmp_path / 'other.sqlite'
  connection = sqlite3.connect(other)
  connection.execute('CREATE TABLE client_metadata (client_id, split_name)')
  connection.execute("INSERT INTO client_metadata VALUES ('c', 'a')")
  connection.commit()
  connection.close()
  with pytest.raises(ValueError, match='other.sqlite .* no such table: exam'):
    sources.SqliteSource(other, 'a', decode=_decode, element_spec=_SPEC)

  with pytest.raises(ValueError, match="whole has no clients in split 'z'"):
    sources.SqliteSource(whole, 'z', decode=_decode, element_spec=_SPEC)


def test_sqlite_bad_example_names_file_and_client(tmp_path):
  path = _write(
      tmp_path / 'f.sqlite',
      [('a', 'good', b'1'), ('a', 'bad', b'x'), ('b', 'text', '1')],
      metadata=[('good', 'a'), ('bad', 'a'), ('none', 'a'), ('text', 'b')])
  source = sources.SqliteSource(path, 'a', decode=_decode, element_spec=_SPEC)
  with pytest.raises(ValueError, match="f.sqlite, .*client 'bad': invalid"):
    source.examples('bad')
  with pytest.raises(ValueError, match="f.sqlite, .*client 'none': no exam"):
    source.examples('none')
  with pytest.raises(ValueError, match="f.sqlite, .*'good' to 'bad': invalid"):
    source.all_examples()
  source = sources.SqliteSource(path, 'b', decode=_decode, element_spec=_SPEC)
  with pytest.raises(ValueError, match="client 'text': .* is not a blob"):
    source.examples('text')
