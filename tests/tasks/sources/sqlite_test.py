"""Tests of tasks.sources.sqlite and of the files that store writes."""

import concurrent.futures
import sqlite3

import numpy as np
import pytest
import tensorflow as tf

from tasks import task
from tasks.sources import columns, records, sqlite as source_sqlite
from tests.tasks import official_file
from tests.tasks.sources import populations

FEATURE = columns.Feature(name='v', dtype=np.dtype(np.int64), shape=())


def _value(number):
  return columns.serialize([FEATURE], {'v': number})


@pytest.fixture(name='index', params=[False, True], ids=['no index', 'index'])
def _index(request):
  return request.param


def test_one_split_of_one_client_is_read(tmp_path, index):
  path = official_file.write(tmp_path / "it's 100%.sqlite", [
      ('a', "o'b", _value(3)), ('b', "o'b", _value(4)), ('a', 'c', _value(5)),
      ('a', "o'b", _value(2))], index=index)
  source = source_sqlite.SqliteSource(path, 'a')
  assert source.client_ids == ('c', "o'b")
  assert dict(source.element_spec) == {'v': (np.dtype(np.int64), ())}
  assert source.examples("o'b")['v'].tolist() == [3, 2]
  assert (source.read_in_graph is not None) == index
  if index:
    assert source.read_in_graph(tf.constant("o'b"))['v'].numpy().tolist() == [3, 2]
  assert source_sqlite.split_names(path) == ['a', 'b']


def test_many_examples_come_in_order_by_the_index_if_there_is_one(tmp_path, index):
  path = official_file.write(tmp_path / 'f', [
      ('a', f'c{i % 2}', _value(i)) for i in range(3000)], index=index)
  source = source_sqlite.SqliteSource(path, 'a')
  assert source.examples('c1')['v'].tolist() == list(range(1, 3000, 2))
  assert (source._rows is None) == index  # The rows of each client.


def test_sqlite_is_read_from_many_threads(tmp_path, index):
  path = official_file.write(tmp_path / 'f', [
      ('a', str(i), _value(i)) for i in range(40)], index=index)
  source = source_sqlite.SqliteSource(path, 'a')
  with concurrent.futures.ThreadPoolExecutor(4) as pool:
    values = list(pool.map(lambda c: int(source.examples(c)['v'][0]), source.client_ids))
  assert values == [int(c) for c in source.client_ids]


def test_missing_file_is_not_created(tmp_path):
  with pytest.raises(ValueError, match='gone.sqlite does not exist'):
    source_sqlite.SqliteSource(tmp_path / 'gone.sqlite', 'a')
  assert not list(tmp_path.iterdir())


def test_errors_name_the_file(tmp_path):
  text = tmp_path / 'text.sqlite'
  text.write_bytes(b'not a database, but long enough to look at' * 100)
  with pytest.raises(ValueError, match='text.sqlite is no SQLite file'):
    source_sqlite.SqliteSource(text, 'a')

  whole = official_file.write(
      tmp_path / 'whole', [('a', str(i), _value(i) * 40) for i in range(99)])
  cut = tmp_path / 'cut.sqlite'
  cut.write_bytes(whole.read_bytes()[:-4096])
  with pytest.raises(ValueError, match='cut.sqlite is no SQLite file'):
    source_sqlite.SqliteSource(cut, 'a')

  other = tmp_path / 'other.sqlite'
  connection = sqlite3.connect(other)
  connection.execute('CREATE TABLE client_metadata (client_id, split_name)')
  connection.execute("INSERT INTO client_metadata VALUES ('c', 'a')")
  connection.commit()
  connection.close()
  with pytest.raises(ValueError, match='other.sqlite .* no such table: exam'):
    source_sqlite.SqliteSource(other, 'a')

  with pytest.raises(ValueError, match="whole has no clients in split 'z'"):
    source_sqlite.SqliteSource(whole, 'z')


def test_bad_example_names_file_and_client(tmp_path, index):
  path = official_file.write(
      tmp_path / 'f.sqlite',
      [('a', 'good', _value(1)), ('a', 'bad', b'x'), ('a', 'text', 'x')],
      metadata=[('good', 'a'), ('bad', 'a'), ('none', 'a'), ('text', 'a')], index=index)
  source = source_sqlite.SqliteSource(path, 'a')
  for client, message in (
      ('bad', "not an example with 'v'"), ('none', 'no examples'),
      ('text', 'serialized_example_proto is not a blob')):
    with pytest.raises(task.BadClientError,
                       match=f"f.sqlite, split 'a', client '{client}': {message}"):
      source.examples(client)
  with pytest.raises(ValueError, match="no client 'x'"):
    source.examples('x')


def test_fields_are_chosen_renamed_and_checked(tmp_path):
  path = official_file.write(tmp_path / 'f.sqlite', [('a', 'c', _value(1))])

  def source(**field):
    return source_sqlite.SqliteSource(path, 'a', fields=[records.Field(**field)])

  assert source(name='w', source_name='v', kind='integer').examples(
      'c')['w'].tolist() == [1]
  assert source(name='v', kind='float').examples('c')['v'].tolist() == [1]
  assert source(name='t', kind='text', optional=True).examples('c')['t'].tolist() == ['']
  assert source(name='n', kind='float', optional=True).examples('c')['n'].tolist() == [0]
  with pytest.raises(ValueError, match="client 'c': there is no field 'w'; there are"):
    source(name='w')
  with pytest.raises(ValueError, match="field 'v' must be text, found integer"):
    source(name='v', kind='text')


def _source(**clients):
  return populations.Clients(clients)


def test_written_files_have_tffs_tables_and_are_replaced_as_a_whole(tmp_path):
  path = tmp_path / 'f.sqlite'
  path.write_text('of before')
  populations.prepared(
      path, _source(b={'v': np.array([1, 2])}, a={'v': np.array([3])}),
      _source(a={'v': np.array([4])}))
  assert list(tmp_path.iterdir()) == [path]
  assert path.stat().st_mode & 0o777 == 0o600
  source = source_sqlite.SqliteSource(path, 'train')
  assert source.is_prepared and source.read_in_graph is not None
  assert source.client_ids == ('a', 'b')
  assert source.examples('b')['v'].tolist() == [1, 2]
  with sqlite3.connect(path) as connection:
    assert connection.execute(
        'SELECT client_id, split_name, num_examples FROM client_metadata '
        'ORDER BY 2, 1').fetchall() == [
            ('a', 'test', 1), ('a', 'train', 1), ('b', 'train', 2)]
  # A copy that is only of this process tells the clients in their first order.
  copy = source_sqlite.SqliteSource(path, 'train', copy_of='x')
  assert copy.client_ids == ('b', 'a')


@pytest.mark.parametrize('values, message', [
    (np.array(['2020-01-01'], 'datetime64[s]'), "'v' must be texts or numbers, found d"),
    (np.array([1j]), "'v' must be texts or numbers, found complex128"),
    (np.zeros([1, 2, 0]), r"'v' is empty, of the shape \(2, 0"),
    (np.zeros([0]), 'there are no examples'),
    (np.array([np.nan]), "'v' must be finite, found nan"),
    (np.array([np.inf], np.float32), "'v' must be finite, found inf")])
def test_values_that_can_not_be_stored_are_named(tmp_path, values, message):
  with pytest.raises(ValueError, match=f"client 'a': .*{message}"):
    populations.prepared(tmp_path / 'f.sqlite', _source(a={'v': values}))
  assert not list(tmp_path.iterdir())


def test_parts_must_have_the_same_fields(tmp_path):
  with pytest.raises(ValueError, match='test: fields must be'):
    populations.prepared(tmp_path / 'f', _source(a={'v': np.array([1])}),
                         _source(a={'v': np.array([1.5])}))


def test_a_file_that_can_not_be_written_is_named(tmp_path):
  (tmp_path / 'file').write_text('')
  with pytest.raises(OSError, match='file'):
    populations.prepared(tmp_path / 'file' / 'g', _source(a={'v': np.array([1])}))
