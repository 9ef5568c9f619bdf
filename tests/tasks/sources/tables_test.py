"""Tables in text files as programs write them, and in Parquet."""

import datetime
import decimal
import gzip

import numpy as np
import pandas
import pyarrow
from pyarrow import parquet
import pytest

from tasks.sources import open_source, records

FIELDS = (records.Field(name='age', kind=records.MEASURE),
          records.Field(name='job', kind=records.CATEGORY))
PLAIN = 'client,age,job\na,1.5,käse\nb,,3\na,-2,"x;y"\n'


def _read(folder, content, name='t.csv', fields=FIELDS, **options):
  path = folder / name
  path.write_bytes(content if isinstance(content, bytes) else content.encode('utf-8'))
  return open_source.open_raw(
      'csv', data_path=str(path), fields=fields, no_cache=True, **options).train


def _rows(source):
  return {client: [values.tolist() for values in source.examples(client).values()]
          for client in source.client_ids}


EXPECTED = {'a': [[1.5, -2.0], ['käse', 'x;y']], 'b': [['gap'], ['3']]}


@pytest.mark.parametrize('name, content', [
    ('t.csv', PLAIN + '\n\n'), ('t.csv', PLAIN.replace('\n', '\r\n')),
    ('t.csv.gz', gzip.compress(PLAIN.encode(), mtime=0)),
    ('t.csv', PLAIN.encode('utf-8-sig')), ('t.csv', PLAIN.encode('cp1252')),
    ('t.csv', PLAIN.encode('utf-16')), ('t.tsv', PLAIN.replace(',', '\t')),
    ('t.csv', '\r\n' + PLAIN.replace(',', ';').replace('1.5', '"1,5"')),
    ('t.txt', PLAIN.replace(',', '\t').replace('1.5', '1,5').encode('utf-16-be').join(
        (b'\xfe\xff', b''))),
    ('t.csv', '"client";"age";"job"\na;1,50;käse\nb;NA;3.0\na;-2,;"x;y"\n'),
    ('t.csv', ',client,age,job\n0,a,1.5,käse\n1,b,nan,3\n2,a, -2 ,x;y\n'),
    ('t.csv', 'Unnamed: 0,client,age,job\n0,a,1.5,käse\n1,b,<NA>,3.00\n2,a,-2,x;y\n')])
def test_dialects_are_read_alike(tmp_path, name, content):
  found = _rows(_read(tmp_path, content, name))
  assert np.isnan(found['b'][0].pop()) and not found['b'][0].append('gap')
  assert found == EXPECTED


def test_windows_1252_is_decided_by_the_first_line_and_said(tmp_path, capsys):
  source = _read(tmp_path, PLAIN.encode('cp1252'))
  assert capsys.readouterr().err == (
      f'{tmp_path}/t.csv: not in UTF-8, read as Windows-1252\n')
  assert source.examples('a')['job'][0] == 'käse'
  _read(tmp_path, PLAIN)
  assert not capsys.readouterr().err


def test_files_of_several_dialects_are_one_population(tmp_path):
  (tmp_path / 'one.csv').write_text(PLAIN)
  pandas.DataFrame({'client': ['b', 'c'], 'age': [0.5, 7], 'job': ['k', 'l']}).to_csv(
      tmp_path / 'two.csv', sep=';', decimal=',')
  source = open_source.open_raw(
      'csv', data_path=f'{tmp_path}/*.csv', fields=FIELDS, no_cache=True).train
  assert source.client_ids == ('a', 'b', 'c')
  assert source.examples('b')['age'].tolist()[1:] == [0.5]


def test_no_person_is_split_by_a_float(tmp_path):
  source = _read(tmp_path, 'client,age,job\n12.0,1,x\n12,2,x\n 12 ,4,x\n012,3,x\n')
  assert source.client_ids == ('12', '012')
  path = tmp_path / 'f.parquet'
  pandas.DataFrame({'client': [12.0, 13.0], 'age': [1, 2], 'job': [1.0, None]}
                   ).to_parquet(path)
  source = open_source.open_raw('parquet', data_path=str(path), fields=FIELDS,
                                no_cache=True).train
  assert source.client_ids == ('12', '13')
  assert source.examples('12')['job'].tolist() == ['1']


@pytest.mark.parametrize('values, kind, expected', [
    (pyarrow.array([datetime.date(1970, 1, 3)] * 2), records.DATE, 2.0),
    (pyarrow.array([36 * 3600] * 2, pyarrow.timestamp('s')), records.DATE, 1.5),
    (pyarrow.array([86_400_000_000_000] * 2, pyarrow.timestamp('ns', 'Asia/Tokyo')),
     records.DATE, 1.0),
    (pyarrow.array(['1970-01-02'] * 2).dictionary_encode(), records.DATE, 1.0),
    (pyarrow.array([decimal.Decimal('2.50')] * 2), records.MEASURE, 2.5),
    (pyarrow.array([True] * 2), records.MEASURE, 1.0),
    (pyarrow.array([7] * 2, pyarrow.int8()), records.MEASURE, 7.0),
    (pyarrow.array([2.0] * 2, pyarrow.float32()), records.CATEGORY, '2'),
    (pyarrow.array([2.5] * 2), records.CATEGORY, '2.5'),
    (pyarrow.array([decimal.Decimal('3.00')] * 2), records.CATEGORY, '3'),
    (pyarrow.array([False] * 2), records.CATEGORY, 'false'),
    (pyarrow.array(['u'] * 2).dictionary_encode(), records.CATEGORY, 'u')])
def test_types_of_parquet_are_columns_with_gaps(tmp_path, values, kind, expected):
  values = pyarrow.concat_arrays([values, pyarrow.nulls(1, values.type)])
  table = pyarrow.table({'client': ['a'] * 3, 'v': values})
  parquet.write_table(table, tmp_path / 'f.parquet')
  source = open_source.open_raw(
      'parquet', data_path=str(tmp_path / 'f.parquet'), no_cache=True,
      fields=[records.Field(name='v', kind=kind)]).train
  first, _, gap = source.examples('a')['v'].tolist()
  assert first == expected and (gap == '' or gap != gap)


@pytest.mark.parametrize('names, expected', [
    ('a.csv', 'csv'), ('a.CSV.gz,b.tsv', 'csv'), ('a.jsonl.gz', 'jsonl'),
    ('a.json', 'leaf'), ('a.parquet', 'parquet'), ('a.npz', 'npz'), ('a.db', 'sqlite'),
    ('.', 'folder')])
def test_names_tell_the_format(names, expected):
  assert open_source.format_of(names) == expected


def test_columns_are_those_of_the_header(tmp_path):
  for content, names in ((',client;"a;b",c\n1,,2', ['client;"a;b"', 'c']),
                         (';client;"a;b\n"\n1;2;3', ['client', 'a;b\n'])):
    (tmp_path / 't.csv').write_text(content)
    assert open_source.columns('csv', str(tmp_path / 't.csv')) == names
  assert open_source.columns('jsonl', 'any') == []
