"""Wrong tables: one line that names column, value and rule, exit code 2, nothing left."""

import gc
import io
import json
import tempfile

import pandas
import pytest

from tests.programs import in_process

pytestmark = pytest.mark.usefixtures('shared_context', 'short_collections')

BOUNDS = {'age': [0, 100], 'job': ['clerk', 'cook'],
          'seen': ['2015-01-01', '2024-12-31'], 'pay': [0, 50]}
TABLE = 'person,age,job,seen,pay\n' + ''.join(
    f'p{i // 2},{20 + i},{"cook" if i % 3 else "clerk"},2020-01-{i + 1:02},{10 + i}\n'
    for i in range(24))
SAMPLE = 'sample.csv'


@pytest.fixture(scope='module')
def short_collections():
  gc.freeze()  # What earlier tests have left takes seconds to look through.
  yield
  gc.unfreeze()


def _parquet(**columns):
  file = io.BytesIO()
  pandas.read_csv(io.StringIO(TABLE)).assign(**columns).to_parquet(file)
  return file.getvalue()


def _file(content, name='people.csv'):
  return {'files': {name: content}, 'data_path': name}


def _changed(old, new, **flags):
  assert old in TABLE
  return {**_file(TABLE.replace(old, new)), **flags}


def _bounds(content=None, **columns):
  return {'files': {'bounds.json': content or json.dumps({**BOUNDS, **columns})}}


def _sample(content, **flags):
  return {'files': {SAMPLE: content}, 'public_sample': SAMPLE, **flags}


FILES = [
    (_file(''), 'people.csv is empty'),
    (_file(TABLE.splitlines()[0]), 'people.csv has no client whose data are good'),
    (_changed('job,', 'age,'), "people.csv, line 1: columns must differ, found 'age'"),
    (_changed('job,', ','), "line 1: columns must differ, found ''"),
    (_changed('p0,20', '20'), 'line 2: there are 4 cells, but 5 columns in the header'),
    (_changed('p0,20', '"p0,20'), 'people.csv, line 2: a quote is not closed'),
    (_file(TABLE.encode() + b'p\x81,1,cook,2020-01-01,1'), 'line 26: not Windows-1252: '),
    (_file(f'{TABLE}é,1,cook,2020-01-01,1\n'.encode() + b'\xe9,1,cook,2020-01-01,1'),
     'people.csv, line 27: not UTF-8: '),
    (_file(TABLE.encode('utf-16')[:-1]), 'people.csv, line 24 or the next, in UTF-16: '),
    (_file(b'\x1f\x8b\x08' + bytes(40), 'people.csv.gz'), 'is damaged or cut off: gzip'),
    (_file(TABLE.replace(',', ';').replace(';21;', ';2,5;').replace(';22;', ';2.250;')),
     "client 'p1': field 'age' must be numbers with one decimal mark, a comma or a "
     "point, found '2.250'"),
    ({**_changed('job,', 'work,'), 'data_path': 'good.csv,people.csv'},
     'people.csv, line 1: the header must be that of good.csv'),
    ({'data_path': 'good.csv,good.csv'}, 'data_path must name every file once'),
    ({'data_path': 'nowhere.csv'}, 'nowhere.csv does not exist or is not a file'),
    ({'data_path': '*.tsv'}, "data_path must name files, found '*.tsv', which fits none"),
    (_file(TABLE, 'people.dat'), 'data_path must be files of one format by their names '
     '(.csv, .tsv, .jsonl, .json, .npz, .parquet, .sqlite, .db), or data_source given, '
     "found 'people.dat'"),
    ({'data_path': 'tmp', 'client_field': None}, 'tmp has no folder: each client must have its own'),
    (_file(TABLE, 'people.parquet'), 'people.parquet: Parquet magic bytes not found'),
    ({'test_path': 'good.csv'}, 'test_path and data_path must differ, found ')]

COLUMNS = [
    ({'client_field': 'nobody'}, "line 2: there is no field 'nobody'; there are 'person',"
     " 'age'"),
    ({'client_field': None}, "there is no field 'client'; there are 'person'"),
    (_changed('pay\n', 'wage\n'), "client 'p0': there is no field 'pay'; there are "),
    (_bounds(height=[0, 2]), "client 'p0': there is no field 'height'; there are "),
    (_changed('p0,', ','), "people.csv, line 2: client field 'person' must be a text or "
     "an integer, in full, in every row, found ''"),
    (_changed('p1,', 'nan,'), "line 4: client field 'person' must be a text or an "
     "integer, in full, in every row, found 'nan'"),
    (_changed('p1,', '1.23E+11,'), "every row, found '1.23E+11'"),
    (_file('{"person": 1.5}', 'people.jsonl'), 'in every row, found 1.5'),
    (_file(_parquet(person=[1.0] * 23 + [None]), 'people.parquet'),
     "people.parquet, row 24: client field 'person' must be a text or an integer, in "
     'full, in every row, found '),
    (_changed(',20,', ',old,'), "people.csv, line 2, client 'p0': field 'age' must be a "
     "number, found a text: 'old'"),
    (_changed(',20,', ',inf,'), "'age' must be a number, found a text: 'inf'"),
    (_changed(',20,', ',2020-01-01,'), "must be a number, found a text: '2020-01-01'"),
    (_changed(',20,', ',"1,250",'), "field 'age' must be a number, found a text: '1,250'"),
    (_changed('2020-01-03', '17'), "line 4, client 'p1': field 'seen' must be a date such "
     "as 2024-03-01, found a text: '17'"),
    (_changed('2020-01-03', '01.03.2020'), "2024-03-01, found a text: '01.03.2020'"),
    (_file(_parquet(seen=17.5), 'people.parquet'), "row 1, client 'p0': field 'seen' "
     "must be a date such as 2024-03-01, found a text: '17.5'"),
    (_changed(',20,', ',NA,'), "people.csv, line 2, client 'p0': column 'age' must "
     'have a value in every row, found none; --missing=impute encodes it'),
    (_changed(',2020-01-01,', ',NaT,'), "column 'seen' must have a value in every row"),
    (_changed(',clerk,', ',,'), "column 'job' must have a value in every row, found "
     'none; --missing=impute'),
    (_changed(',clerk,', ',king,'), "column 'job' must be one of 'clerk', 'cook', "
     "found 'king'; --missing=impute"),
    (_changed(',10\n', ',51\n'), "label 'pay' must be in [0, 50], found 51"),
    (_changed(',10\n', ',\n', missing='impute'), "label 'pay' must have a value in "
     'every row, found none'),
    (_changed('clerk', 'king', label_field='job', class_names='clerk,cook'),
     "label 'job' must be one of 'clerk', 'cook', found 'king'"),
    (_changed(',10\n', ',3.0\n', num_classes=3),
     "label 'pay' must be one of '0', '1', '2', found '3'")]

KNOWLEDGE = [
    (_bounds('{"age"'), 'public_bounds=bounds.json: must be JSON: Expecting'),
    (_bounds(age=[3, 1]), "column 'age': bounds must be finite, the lower first, found "
     '[3, 1]'),
    (_bounds(age=['0', '100']), "column 'age' must be numbers without quotes if it has "
     'numbers, {"categories": [...]} if these are codes, found [\'0\', \'100\']'),
    (_bounds(seen=['01.01.2015', '31.12.2024']), "column 'seen' must be dates such as "
     '2024-03-01, found'),
    (_bounds(seen=['2020-01-01'] * 3), "column 'seen' must be [first, last] of its dates"),
    (_bounds(age={'range': [0, 1]}), 'column \'age\' must be an object of "bounds" or'),
    (_bounds(age={'bounds': [0, 9], 'log': True}), 'a log scale must be greater than 0'),
    (_bounds(job=['3', '3.0']), "column 'job': categories, as numbers, must be at least "
     '1 texts that differ, found 3, 3'),
    ({'public_bounds': None}, 'task tabular needs what is publicly known of the columns'),
    ({'label_field': 'wage'}, "column 'wage' has no public bounds, nor a public sample"),
    ({'feature_fields': 'age,city'}, "column 'city' has no public bounds, nor a public"),
    ({'feature_fields': 'age,pay'}, "label_field 'pay' must not be a feature"),
    ({'public_sample': 'no.csv'}, 'public_sample=no.csv: no.csv does not exist'),
    ({'public_sample': 'good.csv'}, 'public_sample and data_path must differ, found '),
    (_sample(TABLE.splitlines()[0]), 'public_sample=sample.csv: must have rows, found no'),
    (_sample('age,city\n1\n'), 'public_sample=sample.csv: sample.csv, line 2: there are 1 '
     'cells'),
    (_sample('age,city\nold,x\n'), "public_sample: field 'age' must be a "
     "number, found a text: 'old'"),
    (_sample('size\n1\n-inf\n'), "public_sample: column 'size' must be finite, "
     'found -inf'),
    (_sample('name\n' + ''.join(f'n{i}\n' for i in range(1001))),
     "public_sample: column 'name': categories must be at most 1000, found 10"),
    (_sample('size\nNA\n\n', feature_fields='age,size'), "column 'size' has no public bo"),
    (_sample('age\n1\n', statistics_epsilon=1), 'statistics_epsilon is not used with a '
     'public sample')]

FLAGS = [
    ({'missing': 'drop'}, "missing must be one of error, impute, found 'drop'"),
    ({'model': 'logistic'}, "model must be one of linear, mlp, found 'logistic'"),
    ({'num_classes': 1}, 'num_classes must be'),
    ({'held_out_fraction': 1}, 'held_out_fraction must be'),
    ({'statistics_epsilon': 9, 'held_out_fraction': 0.1, 'no_cache': 'true'},
     'costs epsilon=9 alone'),
    ({'data_source': 'xlsx'}, 'data_source must be one of '),
    ({'partition': 'iid'}, 'partition is not used with task=tabular')]


@pytest.mark.parametrize('change, message', FILES + COLUMNS + KNOWLEDGE + FLAGS)
def test_wrong_table_is_one_line_and_nothing_is_left(
    tmp_path, monkeypatch, change, message):
  (tmp_path / 'tmp').mkdir()
  monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path / 'tmp'))
  files = {'good.csv': TABLE, 'bounds.json': json.dumps(BOUNDS), **change.get('files', {})}
  for name, content in files.items():
    (tmp_path / name).write_bytes(
        content if isinstance(content, bytes) else content.encode())
  flags = {'data_path': 'good.csv', 'client_field': 'person', 'label_field': 'pay',
           'public_bounds': 'bounds.json', 'held_out_fraction': 0.9, **change}
  run = in_process.run(
      'tff_pipelines.train', '--task=tabular', '--rounds=1', '--cohort_size=1',
      '--output_dir=run', '--cache_dir=cache', *(
          f'--{name}={value}' for name, value in flags.items()
          if name != 'files' and value is not None), folder=tmp_path)
  in_process.check_refused(run, message)
  gc.collect()  # A copy of its own goes with the source that reads it.
  left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob('*')}
  assert left - {'cache'} == {*files, 'tmp'}
