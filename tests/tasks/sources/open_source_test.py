"""Tests of tasks.sources.open_source and of the options of formats."""

import ast
import functools
import io
import json
import zipfile

import numpy as np
from PIL import Image
import pytest

from tasks.sources import open_source, rows as rows_lib
from tests import modules
from tests.tasks.sources import populations


def _open(options, fields=populations.FIELDS, **more):
  options = {**options, **more}
  return open_source.open_raw(options.pop('data_source'), fields=fields, **options)


@pytest.mark.parametrize('format_', sorted(
    set(populations.WRITERS) - {*populations.CELLS, 'jsonl, two files'}))
def test_without_fields_everything_is_read(tmp_path, format_):
  options = populations.WRITERS[format_](tmp_path, populations.POPULATION)
  source = _open(options, fields=None).train
  for client, rows in populations.POPULATION.items():
    populations.assert_same(source.examples(client), populations.expected(rows))


@pytest.mark.parametrize('format_', ['csv', 'folder', 'jsonl', 'leaf', 'parquet'])
def test_a_test_part_has_files_of_its_own(tmp_path, format_):
  few = {'zoe': populations.POPULATION['ann']}
  (tmp_path / 'test').mkdir()
  train = populations.WRITERS[format_](tmp_path, populations.POPULATION)
  test = populations.WRITERS[format_](tmp_path / 'test', few)
  raw = _open(train, test_path=test['data_path'])
  assert set(raw.train.client_ids) == set(populations.POPULATION)
  assert raw.test.client_ids == ('zoe',)
  assert _open(train).test is None


def _notes(paths, progress):
  """A format of one's own: lines of a client and a text."""
  for path in paths:
    with rows_lib.open_file(path, progress) as file:
      for number, line in enumerate(file, 1):
        client, text = rows_lib.decoded(line).rstrip().split(' ', 1)
        yield rows_lib.Row(f'{path}, line {number}', client, {'text': text})


def test_a_format_is_a_reader_and_its_entry(tmp_path, monkeypatch):
  monkeypatch.setitem(open_source.FORMATS, 'notes', open_source.Format(
      reader=functools.partial(open_source.of_files, _notes)))
  path = tmp_path / 'a.notes'
  path.write_text('ann first\nbob second\nann third one\n')
  (tmp_path / 'b.notes').write_text('zoe last\n')
  raw = _open(dict(data_source='notes', data_path=str(path)), fields=None,
              test_path=str(tmp_path / 'b.notes'))
  assert raw.train.client_ids == ('ann', 'bob') and raw.test.client_ids == ('zoe',)
  assert raw.train.examples('ann')['text'].tolist() == ['first', 'third one']
  assert 'test_path' in open_source.options('notes')
  path.write_text('ann \xff\n', encoding='latin-1')
  with pytest.raises(ValueError, match='not UTF-8'):
    _open(dict(data_source='notes', data_path=str(path)), fields=None)


def test_formats_are_named_where_they_are_entered():
  # Arrays of npz files also train without a copy, and TensorFlow names SQLite.
  names = {*open_source.FORMATS} - {'npz', 'sqlite'}
  assert {m.name for m in modules.modules().values() if m.name.startswith('tasks/')
          for node in ast.walk(m.tree) if isinstance(node, ast.Constant)
          and node.value in names} == {'tasks/sources/open_source'}


def test_npz_parts_and_files_without_parts(tmp_path):
  path = tmp_path / 'f.npz'
  np.savez(path, who_train=[1, 2, 1], v_train=[1., 2., 3.], who_test=[2], v_test=[4.],
           names=['a', 'b'])
  raw = _open(dict(data_source='npz', data_path=str(path)), fields=None,
              client_field='who')
  assert raw.train.examples('1')['v'].tolist() == [1, 3]
  assert raw.test.examples('2')['v'].tolist() == [4]
  np.savez(path, domain=['a', 'b'], x=np.zeros([2, 3]), class_names=['u', 'v', 'w'])
  raw = _open(dict(data_source='npz', data_path=str(path)), fields=None,
              client_field='domain')
  assert raw.test is None
  assert dict(raw.train.element_spec) == {'x': (np.dtype(float), (3,))}


def test_client_field_may_have_another_name(tmp_path):
  path = tmp_path / 'f.jsonl'
  path.write_text(json.dumps({'who': 7, 'v': 1}) + '\n\n')
  raw = _open(dict(data_source='jsonl', data_path=str(path)), fields=None,
              client_field='who')
  assert raw.train.client_ids == ('7',)
  with pytest.raises(ValueError, match="there is no field 'client'; there are"):
    _open(dict(data_source='jsonl', data_path=str(path)), fields=None)


def test_a_byte_order_mark_is_no_part_of_the_data(tmp_path):
  path = tmp_path / 'f.csv'
  path.write_bytes(b'\xef\xbb\xbfclient,v\r\na,1\r\nb,"2"\r\n')
  raw = _open(dict(data_source='csv', data_path=str(path)), fields=None)
  assert raw.train.examples('a')['v'].tolist() == [1]
  assert raw.train.examples('b')['v'].tolist() == [2]


def test_lists_of_texts_are_joined(tmp_path):
  path = tmp_path / 'f.jsonl'
  path.write_text(json.dumps({'client': 'a', 'tags': ['x', 'y']}) + '\n'
                  + json.dumps({'client': 'a', 'tags': []}) + '\n')
  raw = _open(dict(data_source='jsonl', data_path=str(path)), fields=None)
  assert raw.train.examples('a')['tags'].tolist() == ['x|y', '']


def test_folders_may_have_texts_tables_arrays_and_images(tmp_path):
  def folder(name):
    path = tmp_path / name / 'client'
    path.mkdir(parents=True)
    return path

  def read(name):
    raw = _open(dict(data_source='folder', data_path=str(tmp_path / name)), fields=None)
    return raw.train.examples('client')

  path = folder('texts')
  (path / 'b.txt').write_text('second')
  (path / 'a.txt').write_text('first\n')
  assert read('texts')['text'].tolist() == ['first\n', 'second']

  path = folder('tables')
  (path / 'a.csv').write_text('v,t\n1,x\n2,y\n')
  (path / 'b.csv').write_text('t,v\nz,3\n')
  examples = read('tables')
  assert examples['v'].tolist() == [1, 2, 3]
  assert examples['t'].tolist() == ['x', 'y', 'z']

  path = folder('arrays')
  np.savez(path / 'a.npz', x=np.ones([2, 3], np.uint8), y=['u', 'v'])
  with zipfile.ZipFile(path / 'a.npz', 'a') as archive:
    archive.writestr('readme.txt', 'Not an array: ignored.')
  examples = read('arrays')
  assert examples['x'].dtype == np.uint8 and examples['y'].tolist() == ['u', 'v']

  path = folder('images')
  for label, shade in ((3, 10), (4, 20)):
    content = io.BytesIO()
    Image.fromarray(np.full([5, 4], shade, np.uint8)).save(content, 'png')
    (path / str(label)).mkdir()
    (path / str(label) / 'a.png').write_bytes(content.getvalue())
  examples = read('images')
  assert examples['image'].shape == (2, 5, 4) and examples['image'].dtype == np.uint8
  assert examples['image'][:, 0, 0].tolist() == [10, 20]
  assert examples['label'].tolist() == [3, 4]


def test_clients_of_a_folder_must_have_the_fields_of_the_first(tmp_path):
  for client, row in (('a', {'v': 1}), ('b', {'v': 2.5}), ('c', {'v': 1, 'w': 2})):
    (tmp_path / client).mkdir()
    (tmp_path / client / 'f.jsonl').write_text(json.dumps(row) + '\n')
  options = dict(data_source='folder', data_path=str(tmp_path))
  with pytest.raises(ValueError, match="field 'w' is not in the first record"):
    _open(options, fields=None)
  (tmp_path / 'c' / 'f.jsonl').unlink()
  (tmp_path / 'c').rmdir()
  # As anywhere, integers are taken for floats where one of them is.
  source = _open(options, fields=None).train
  assert source.examples('a')['v'].tolist() == [1.0]
  assert source.examples('b')['v'].tolist() == [2.5]


def test_cells_of_a_folder_are_of_the_kind_of_the_first_client(tmp_path):
  for client, rows in (('a', 'x,1.5'), ('b', '12,3')):
    (tmp_path / client).mkdir()
    (tmp_path / client / 'f.csv').write_text(f't,v\n{rows}\n')
  source = _open(dict(data_source='folder', data_path=str(tmp_path)), fields=None).train
  examples = source.examples('b')
  assert examples['t'].tolist() == ['12']
  assert examples['v'].dtype == np.float64 and examples['v'].tolist() == [3.0]


def test_bad_clients_before_the_first_good_one_are_skipped(tmp_path):
  for client, content in (('a', 'garbage\n'), ('b', '{"v": 1}\n')):
    (tmp_path / client).mkdir()
    (tmp_path / client / 'f.jsonl').write_text(content)
  options = dict(data_source='folder', data_path=str(tmp_path))
  with pytest.raises(ValueError, match="a/f.jsonl, line 1, client 'a': not JSON"):
    _open(options, fields=None)
  raw = _open(options, fields=None, skip_bad_clients=True)
  assert raw.train.client_ids == ('b',)
  assert list(raw.skips.clients) == ['a']


def test_patterns_and_commas_name_several_files(tmp_path):
  for name in ('b1', 'b2', 'a', 'odd[1]'):
    (tmp_path / name).write_text('')
  assert open_source.paths(f'{tmp_path}/b*,{tmp_path}/a') == [
      f'{tmp_path}/b1', f'{tmp_path}/b2', f'{tmp_path}/a']
  assert open_source.paths(f'{tmp_path}/odd[1]') == [f'{tmp_path}/odd[1]']
  for pattern, message in (
      (f'{tmp_path}/z*', 'which fits none'), ('', "found '', which fits none"),
      (f'{tmp_path}/a,{tmp_path}/a', 'must name every file once')):
    with pytest.raises(ValueError, match=message):
      open_source.paths(pattern)


@pytest.mark.parametrize('data_source, options, message', [
    ('xml', {}, f'data_source must be one of {", ".join(open_source.FORMATS)}, found'),
    ('jsonl', {}, 'data_source jsonl needs data_path'),
    ('leaf', {'data_path': 'f', 'client_field': 'c'}, 'leaf does not use client_field'),
    ('sqlite', {'data_path': 'f', 'test_path': 'g'}, 'sqlite does not use test_path')])
def test_bad_options_are_named(data_source, options, message):
  with pytest.raises(ValueError, match=message):
    open_source.open_raw(data_source, fields=None, **options)
