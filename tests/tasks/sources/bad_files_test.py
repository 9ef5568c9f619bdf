"""Malformed files: an error with file, line, client and field, or a counted skip."""

import gzip
import itertools
import json

import numpy as np
import pyarrow
from pyarrow import parquet
import pytest

from tasks.sources import open_source, records
from tests.tasks.sources import populations

FIELDS = (
    records.Field(name='text', kind=records.TEXT),
    records.Field(name='number', kind=records.INTEGER))

GOOD = [{'client': 'a', 'text': 'x', 'number': 1},
        {'client': 'b', 'text': 'y', 'number': 2},
        {'client': 'a', 'text': 'z', 'number': 3}]


def _open(data_source, path, fields=FIELDS, **options):
  return open_source.open_raw(data_source, fields=fields, data_path=str(path), **options)


def _error(data_source, path, message, fields=FIELDS, **options):
  """Asserts that opening fails with one line that matches the message."""
  with pytest.raises(ValueError, match=message) as raised:
    raw = _open(data_source, path, fields, **options)
    for client in raw.train.client_ids:
      raw.train.examples(client)
  assert '\n' not in str(raised.value)
  assert len(str(raised.value)) < 600
  return str(raised.value)


def _rest(data_source, path, clients, *, skipped=(), bad_records=0):
  """The data of the clients that are left, after some bad ones are skipped."""
  raw = _open(data_source, path, skip_bad_clients=True)
  assert raw.train.client_ids == clients and list(raw.skips.clients) == list(skipped)
  assert len(raw.skips.records) == bad_records
  return raw


def _lines(path, lines):
  content = b''.join(
      (line if isinstance(line, bytes) else json.dumps(line).encode()) + b'\n'
      for line in lines)
  path.write_bytes(gzip.compress(content) if path.suffix == '.gz' else content)
  return path


def _with(**changes):
  """The second record, changed; a change to ... takes a field away."""
  return {name: value for name, value in {**GOOD[1], **changes}.items()
          if value is not ...}


OF_A_CLIENT = [
    (_with(number=...), "client 'b': there is no field 'number'; there are 'client'"),
    (_with(number=None), "'b': field 'number' is missing, null or empty"),
    (_with(number='2'), "'b': field 'number' must be an integer, found a text: '2'"),
    (_with(number=2.5), "'b': field 'number' must be an integer, found a float: 2.5"),
    (_with(number=2**63), "'b': field 'number' must be a 64-bit integer, found 9223"),
    (_with(number=[2]), r"'b': field 'number' must be of the shape \[\], found \[1"),
    (_with(text=3), "'b': field 'text' must be a text, found an integer: 3"),
    (_with(text={'a': 1}), "'b': field 'text' must be a text, a number or a list"),
    (_with(text=['a|b', 'c']), "'b': field 'text' must be texts without '.', found 'a"),
    (_with(text=['a', 1]), "'b': field 'text' must be a list of texts or num"),
    (_with(text=[[1], [1, 2]]), "'b': field 'text' must be a list of texts or"),
    (_with(text='\ud800'), "'b': field 'text' is not valid Unicode"),
    (b'{"client": "b", "text": ' + b'[' * 50 + b'1' + b']' * 50 + b', "number": 1}',
     "'b': field 'text' must be a")]
OF_UNKNOWN_CLIENTS = [
    (b'{"client": "b", "text": "y"', 'line 2: not JSON: .* at character'),
    (b'garbage', 'line 2: not JSON'),
    (b'[1, 2]', 'line 2: must be a JSON object, found list'),
    (b'{"client": "b", "text": "y", "number": NaN}', 'line 2: not JSON: NaN is no'),
    (b'{"client": "b", "text": "\xff", "number": 1}', 'line 2: not UTF-8'),
    (b'[' * 100_000, 'line 2: not JSON'),
    (_with(client=...), "line 2: there is no field 'client'; there are"),
    (_with(client=''), "line 2: client field 'client' must be a text or an"),
    (_with(client=1.5), "line 2: client field 'client' must be .* found 1.5"),
    (_with(client=True), "line 2: client field 'client' must be"),
    (_with(client='a\0'), "line 2: field 'client' must not contain the character 0")]


@pytest.mark.parametrize('line, message', OF_A_CLIENT)
@pytest.mark.parametrize('name', ['f.jsonl', 'f.jsonl.gz'])
def test_bad_record_is_named_or_its_client_skipped(tmp_path, name, line, message):
  path = _lines(tmp_path / name, [GOOD[0], line, GOOD[2]])
  assert f"{path}, line 2, client 'b': " in _error('jsonl', path, message)
  raw = _rest('jsonl', path, ('a',), skipped='b')
  assert raw.train.examples('a')['number'].tolist() == [1, 3]
  assert 'skipped 1 bad clients and 0 bad records' in raw.skips.describe()


@pytest.mark.parametrize('line, message', OF_UNKNOWN_CLIENTS)
def test_bad_record_of_an_unknown_client_is_named_or_skipped(tmp_path, line, message):
  path = _lines(tmp_path / 'f.jsonl', [GOOD[0], line, GOOD[2]])
  assert f'{path}, line 2: ' in _error('jsonl', path, message)
  raw = _rest('jsonl', path, ('a',), bad_records=1)
  assert 'skipped 0 bad clients and 1 bad records' in raw.skips.describe()


def test_a_client_with_one_bad_record_is_skipped_as_a_whole(tmp_path):
  path = _lines(tmp_path / 'f.jsonl', [*GOOD, {**GOOD[0], 'number': 'x'}])
  assert 'line 4' in _rest('jsonl', path, ('b',), skipped='a').skips.clients['a']


def test_nothing_left_after_skipping_is_an_error(tmp_path):
  for name, line in (('f.jsonl', _with(number='x')), ('g.jsonl', b'garbage')):
    path = _lines(tmp_path / name, [line])
    _error('jsonl', path, f'{name} has no client whose data are good',
           skip_bad_clients=True)


def test_types_may_not_change_where_no_kind_is_given(tmp_path):
  for first, second, message in (
      ('x', 1, "'v' must be a text, as before, found an integer: 1"),
      (1, 'x', "'v' must be an integer, as before, found a text: 'x'"),
      (1.5, 'x', "'v' must be a float, as before, found a text: 'x'"),
      ([1, 2], [1], r"'v' must be of the shape \[2\], found \[1\]")):
    path = _lines(tmp_path / 'f.jsonl', [
        {'client': 'a', 'v': first}, {'client': 'b', 'v': second}])
    _error('jsonl', path, "line 2, client 'b': field " + message, fields=None)
  path = _lines(tmp_path / 'f.jsonl', [
      {'client': 'a', 'v': 1}, {'client': 'b', 'v': 2.5}])
  source = _open('jsonl', path, fields=None).train
  assert source.examples('a')['v'].dtype == np.float64


def test_fields_beyond_the_first_record_are_not_dropped(tmp_path):
  path = _lines(tmp_path / 'f.jsonl', [
      {'client': 'a', 'v': 1}, {'client': 'b', 'v': 2, 'w': 3}])
  _error('jsonl', path, "line 2, client 'b': field 'w' is not in the first record",
         fields=None)


def test_optional_fields_may_be_missing_or_null(tmp_path):
  fields = (records.Field(name='t', source_name='text', kind='text', optional=True),
            records.Field(name='n', source_name='number', kind='float', optional=True))
  path = _lines(tmp_path / 'f.jsonl', [_with(text=None), _with(number=...), GOOD[1]])
  examples = _open('jsonl', path, fields).train.examples('b')
  assert examples['t'].tolist() == ['', 'y', 'y']
  assert examples['n'].tolist() == [2.0, 0.0, 2.0]


@pytest.mark.parametrize('data_source, name', [
    ('jsonl', 'f.jsonl'), ('jsonl', 'f.jsonl.gz'), ('csv', 'f.csv'),
    ('leaf', 'f.json'), ('parquet', 'f.parquet'), ('npz', 'f.npz'),
    ('sqlite', 'f.sqlite'), ('folder', 'f')])
def test_missing_empty_and_foreign_files_are_named(tmp_path, data_source, name):
  path = tmp_path / name
  _error(data_source, path, f'{path} does not exist')
  if data_source != 'folder':
    path.write_bytes(b'')
    _error(data_source, path, f'{path}')
    path.write_bytes(b'\x89PNG\r\n\x1a\n' + bytes(range(256)) * 4)
    _error(data_source, path, f'{path}')
  else:
    path.mkdir()
    _error(data_source, path, f'{path} has no folder')


@pytest.mark.parametrize('format_, part', [
    *itertools.product(['jsonl.gz', 'leaf', 'npz', 'parquet'], [0.2, 0.6, 0.97]),
    ('jsonl', None), ('csv', None)])
def test_a_file_that_is_cut_off_is_named(tmp_path, format_, part):
  """A part of it is left; for None five bytes of its last line, which is named."""
  options = populations.WRITERS[format_](tmp_path, populations.POPULATION)
  path = options['data_path']
  content = (tmp_path / path).read_bytes()
  end = int(part * len(content)) if part else content.rstrip().rindex(b'\n') + 6
  (tmp_path / path).write_bytes(content[:end])
  message = _error(options['data_source'], path, '.' if part else r', line \d: ',
                   fields=populations.FIELDS)
  assert path in message


@pytest.mark.parametrize('name', ['f.jsonl.gz', 'f.json.gz', 'f.csv.gz'])
def test_damaged_compression_is_named(tmp_path, name):
  data_source = {'jsonl': 'jsonl', 'json': 'leaf', 'csv': 'csv'}[name.split('.')[1]]
  rows = 500
  path = _lines(tmp_path / name, [
      {'client': f'c{i}', 'text': str(np.random.default_rng(i).random()), 'number': i}
      for i in range(rows)])
  if data_source == 'leaf':
    data = {f'c{i}': {'text': [str(i)], 'number': [i]} for i in range(rows)}
    populations.write_text(path, json.dumps(dict(
        users=list(data), num_samples=[1] * rows, user_data=data)))
  if data_source == 'csv':
    populations.write_text(path, 'client,text,number\n' + ''.join(
        f'c{i},{i * 7919},{i}\n' for i in range(rows)))
  _open(data_source, path)
  content = bytearray(path.read_bytes())
  content[-6] ^= 0xff  # Of the checksum: all the lines come before it.
  path.write_bytes(content)
  _error(data_source, path, f'{path} is damaged or cut off: gzip says')
  content[-6] ^= 0xff
  path.write_bytes(content[:len(content) // 2])
  _error(data_source, path, f'{path} is damaged or cut off: gzip says')


def test_a_line_of_two_gigabytes_is_refused_without_reading_it(tmp_path):
  path = tmp_path / 'f.jsonl.gz'
  good = gzip.compress((json.dumps(GOOD[0]) + '\n').encode())
  # The members of a gzip file: the same one 128 times. After eight there is damage,
  # which a reader that continues would report instead.
  piece = gzip.compress(b'x' * 2**24)
  long = piece * 8 + b'damage' + piece * 120
  path.write_bytes(good + gzip.compress(b'{"client": "b", "text": "') + long)
  _error('jsonl', path, f'{path}, line 2: longer than 64 MiB')
  _error('csv', path, f'{path}, line 2: longer than 64 MiB')
  path.write_bytes(gzip.compress(b'{"users": ["a"], "user_data": {"a": "') + long)
  _error('leaf', path, f'{path}: before byte [0-9]+: a value longer than 64')


LEAF = {'users': ['a', 'b'], 'num_samples': [2, 1], 'user_data': {
    'a': {'text': ['x', 'y'], 'number': [1, 2]}, 'b': {'text': ['z'], 'number': [3]}}}


def _leaf(tmp_path, **changes):
  path = tmp_path / 'f.json'
  path.write_text(json.dumps({**LEAF, **changes}), encoding='utf-8')
  return path


def _of_b(**changes):
  return {**LEAF['user_data'], 'b': {
      name: values for name, values in {
          **LEAF['user_data']['b'], **changes}.items() if values is not ...}}


@pytest.mark.parametrize('changes, message', [
    ({'user_data': _of_b(number=...)}, "there is no field 'number'; there are 'text'"),
    ({'user_data': _of_b(number=[])}, "fields differ in length: {'text': 1, 'num"),
    ({'user_data': _of_b(text=[], number=[])}, 'there are no examples'),
    ({'user_data': _of_b(number=['x'])}, "'number' must be an integer, found a text"),
    ({'user_data': _of_b(number=3)}, "'number' must be a list, found 3"),
    ({'user_data': {**LEAF['user_data'], 'b': [1]}}, 'must be an object of lists'),
    ({'num_samples': [2, 5]}, 'num_samples is 5, but there are 1 examples')])
def test_bad_leaf_user_is_named_or_skipped(tmp_path, changes, message):
  path = _leaf(tmp_path, **changes)
  assert f"{path}, client 'b': " in _error('leaf', path, message)
  raw = _rest('leaf', path, ('a',), skipped='b')
  assert raw.train.examples('a')['text'].tolist() == ['x', 'y']


@pytest.mark.parametrize('text, message', [
    (json.dumps({**LEAF, 'users': ['a'], 'num_samples': [2]}),
     "users must be those of user_data, each once"),
    (json.dumps({**LEAF, 'users': ['a', 'a', 'b'], 'num_samples': [2, 2, 1]}),
     'users must be those of user_data, each once'),
    (json.dumps({**LEAF, 'num_samples': [2]}), 'num_samples must be a list of one nu'),
    (json.dumps({'users': [], 'num_samples': []}), 'must have the lists users and num'),
    (json.dumps(LEAF) + 'x', 'not JSON, or cut off: .* trailing garbage'),
    (json.dumps(LEAF)[:-3], 'not JSON, or cut off: .* premature EOF'),
    ('[1]', 'must have the lists users and num_samples'),
    ('{"users": 1 "user_data": {}}', 'must have|where|not JSON'),
    ('{"user_data": {"a": {"text": ["x"], "number": [1]}, "a": {}}}',
     "client 'a' is there twice")])
def test_bad_leaf_file_is_named(tmp_path, text, message):
  path = tmp_path / 'f.json'
  path.write_text(text, encoding='utf-8')
  assert str(path) in _error('leaf', path, message)


def test_leaf_user_in_two_files_is_refused(tmp_path):
  first = _leaf(tmp_path)
  second = tmp_path / 'g.json'
  second.write_text(first.read_text())
  _error('leaf', f'{first},{second}', f"{second}: client 'a' is there twice")


@pytest.mark.parametrize('text, message', [
    ('client,text,number\na,x,1,2\n', 'line 2: there are 4 cells, but 3'),
    ('client,text,number\na,"x"y,1\n', 'line 2: not CSV'),
    ('who,text,number\na,x,1\n', "line 2: there is no field 'client'"),
    ('client,text,count\na,x,1\n', "line 2, client 'a': there is no field 'number'"),
    ('client,text,number\na,x,1\nb,y,z\n',
     "line 3, client 'b': field 'number' must be an integer, found a text: 'z'"),
    ('client,text,number\na,x,1\nb,y,1.5\n', "line 3, client 'b': .* a float: 1.5"),
    ('client,text,number\na,x,1\nb,y,\n', "line 3, client 'b': field 'number' is m"),
    ('client,text,number\n', 'has no record|no client whose'),
    ('\n\n', 'line 1: there is no header')])
def test_bad_csv_is_named(tmp_path, text, message):
  path = tmp_path / 'f.csv'
  path.write_text(text, encoding='utf-8')
  assert str(path) in _error('csv', path, message)


def test_csv_column_that_begins_with_numbers_must_continue_with_them(tmp_path):
  path = tmp_path / 'f.csv'
  path.write_text('client,v\na,12\nb,007\n')
  _error('csv', path, "line 3, client 'b': field 'v' must be an integer, as before, f",
         fields=None)
  source = _open('csv', path, [records.Field(name='v', kind='text')]).train
  assert source.examples('b')['v'].tolist() == ['007']


@pytest.mark.parametrize('rows, message', [
    ([{'client': 'a', 'text': 'x'}], "there is no field 'number'; there are 'client'"),
    ([{'client': 'a', 'text': 'x', 'number': None}], "client 'a': field 'number' is"),
    ([{'client': 'a', 'text': 'x', 'number': 1.5}], "client 'a': field 'number' must"),
    ([{'client': None, 'text': 'x', 'number': 1}], "field 'client' must be a text"),
    ([{'client': 'a', 'text': b'x', 'number': 1}], "'text' must be a text, a number")])
def test_bad_parquet_is_named(tmp_path, rows, message):
  path = tmp_path / 'f.parquet'
  parquet.write_table(pyarrow.Table.from_pylist(rows), path)
  assert str(path) in _error('parquet', path, message)


def test_bad_parquet_clients_are_skipped(tmp_path):
  path = tmp_path / 'f.parquet'
  rows = [*GOOD, {'client': 'c', 'text': 'x', 'number': None},
          {'client': None, 'text': 'x', 'number': 1}]
  parquet.write_table(pyarrow.Table.from_pylist(rows), path)
  _rest('parquet', path, ('a', 'b'), skipped='c', bad_records=1)


def _folder(tmp_path, files):
  for name, content in files.items():
    path = tmp_path / 'clients' / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
  return tmp_path / 'clients'


_JSONL = b'{"text": "x", "number": 1}\n'


@pytest.mark.parametrize('name, content, message', [
    ('b/f.jsonl', b'{"text": "x"}\n', "line 1, client 'b': there is no field 'number'"),
    ('b/f.jsonl', b'{"text": "x", "number": "y"}\n', "line 1, .*: field 'number' must"),
    ('b/f.jsonl', b'nothing\n', "b/f.jsonl, line 1, client 'b': not JSON"),
    ('b/f.jsonl', b'', 'b/f.jsonl is empty'),
    ('b/f.dat', b'', 'b/f.dat is none of .jsonl, .csv'),
    ('b/f.npz', b'x', 'b/f.npz is not an npz file, or corrupted'),
    ('b/f.png', b'x', 'b/f.png is no image that can be read'),
    ('b/.hidden', b'', "b, client 'b': there are no examples")])
def test_bad_client_folder_is_named_or_skipped(tmp_path, name, content, message):
  path = _folder(tmp_path, {'a/f.jsonl': _JSONL, name: content, 'c/f.jsonl': _JSONL})
  _error('folder', path, message)
  raw = _rest('folder', path, ('a', 'c'), skipped='b')
  examples, clients = records.gather(raw.train)
  assert clients.tolist() == ['a', 'c'] and examples['number'].tolist() == [1, 1]


@pytest.mark.parametrize('arrays, message', [
    ({'client_train': [1, 2], 'text_train': ['a', 'b']}, "has no array 'number_train'"),
    ({'text_train': ['a'], 'number_train': [1]}, "has no array 'client_train'"),
    ({'client_train': [1, 2], 'text_train': ['a'], 'number_train': [1]},
     'must be as long as the 2 clients'),
    ({'client_train': [1.5], 'text_train': ['a'], 'number_train': [1]},
     "client field 'client' must be a text or an integer, in full, in every row, fo"),
    ({'client_train': [1], 'text_train': [2], 'number_train': [1]},
     "field 'text' must be a text, found an integer"),
    ({'client_train': [1], 'text_train': [['a']], 'number_train': [1]},
     "field 'text' must be one text per example"),
    ({'client_train': [1], 'text_train': ['a'], 'number_train': 1},
     'number must be as long as the 1 clients, found')])
def test_bad_npz_is_named(tmp_path, arrays, message):
  path = tmp_path / 'f.npz'
  np.savez(path, **{name: np.array(array) for name, array in arrays.items()})
  assert str(path) in _error('npz', path, message)
