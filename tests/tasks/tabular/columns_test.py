"""Columns: what is publicly known of them, and their encoding."""

import json
import math

import numpy as np
import pytest

from tasks.tabular import columns as columns_lib

AGE = columns_lib.Number.of_bounds('age', 10, 30)
JOB = columns_lib.Category(name='job', categories=('a', 'b'))


def test_bounds_are_encoded_as_minus_one_and_one_and_cut_off_what_is_beyond():
  encoded = AGE.encode(np.array([10.0, 20.0, 30.0, -5.0, 99.0]), 'error')
  assert encoded.dtype == np.float32 and encoded.shape == (5, 1)
  np.testing.assert_array_equal(encoded[:, 0], [-1, 0, 1, -1, 1])


def test_categories_are_encoded_as_ones_in_their_order():
  encoded = JOB.encode(np.array(['b', 'a'], object), 'error')
  np.testing.assert_array_equal(encoded, [[0, 1], [1, 0]])


def test_gaps_are_refused_by_name_or_imputed():
  ages, jobs = np.array([10.0, math.nan]), np.array(['a', ''], object)
  for column, values in ((AGE, ages), (JOB, jobs)):
    with pytest.raises(ValueError, match=f"column '{column.name}' must have a value in "
                       'every row, found none in example 1'):
      column.encode(values, 'error')
  np.testing.assert_array_equal(AGE.encode(ages, 'impute'), [[-1], [0]])
  np.testing.assert_array_equal(JOB.encode(jobs, 'impute'), [[1, 0], [0, 0]])


def test_unseen_category_is_refused_by_name_or_is_none_of_the_others():
  values = np.array(['a', 'zebra'], object)
  with pytest.raises(ValueError, match="column 'job' must be one of 'a', 'b', found "
                     "'zebra' in example 1"):
    JOB.encode(values, 'error')
  np.testing.assert_array_equal(JOB.encode(values, 'impute'), [[1, 0], [0, 0]])


@pytest.mark.parametrize('column, values, message', [
    (AGE, [20.0, 31.0], r"label 'age' must be in \[10, 30\], found 31 in example 1"),
    (AGE, [math.nan], "column 'age' must have a value in every row"),
    (JOB, ['a', 'c'], "label 'job' must be one of 'a', 'b', found 'c' in example 1"),
    (JOB, [''], "column 'job' must have a value in every row")])
def test_labels_are_neither_cut_off_nor_imputed(column, values, message):
  values = np.array(values, object if column is JOB else float)
  with pytest.raises(ValueError, match=message):
    column.target(values)


def test_sample_gives_mean_and_deviation_of_numbers_and_the_values_of_others():
  known = columns_lib.sampled({
      'x': np.array([1.0, 3.0, np.nan]), 'same': np.array([4, 4, 4]),
      'b': np.array([True, False, True]), 't': np.array(['v', None, 'u'], object)})
  x = known['x']
  assert (x.center, x.scale, x.low, x.high) == (2.0, 1.0, -8.0, 12.0)
  assert known['same'].scale == 1.0  # A constant column says nothing, and harms not.
  assert known['b'].categories == ('false', 'true')
  assert known['t'].categories == ('u', 'v')


def test_sample_is_read_as_data_are(tmp_path):
  path = tmp_path / 'sample.csv'
  path.write_text(';person;size;seen;code;note;empty\n' + ''.join(
      f'{i};{i};{i},5;1970-01-{i + 1:02};{i % 2}.0;{note};NA\n'
      for i, note in enumerate(['NA', 'x', 'nan', '7'])), encoding='cp1252')
  known = columns_lib.sampled(columns_lib.read_sample(str(path)), None, {'person'})
  assert set(known) == {'size', 'seen', 'code', 'note'}
  assert (known['size'].center, known['seen'].center) == (2.0, 1.5)
  assert (known['seen'].kind, known['code'].kind) == ('date', 'measure')
  assert known['note'].categories == ('7', 'NA', 'nan', 'x')


def test_sample_names_columns_that_say_little():
  sample = {
      'age': [20.0, None, 30.0], 'job': ['a', 'b', 'zebra'], 'one': ['1', '1.0', '1'],
      'good': [1, 2, 2]}
  assert columns_lib.doubtful(sample, [
      AGE, JOB, columns_lib.Category(name='one', categories=('0', '1')),
      columns_lib.Number.of_bounds('good', 0, 5)]) == [
          'age (1 of 3 missing or unknown)', 'job (1 of 3 missing or unknown)',
          'one (one value)']


@pytest.mark.parametrize('texts, refused', [
    (['0', '100'], True), (['0.5', '1', '3'], True), (['0', '1'], False),
    (['1', '2', '9'], False), (['1.0', '2.0'], False), (['7', 'x'], False)])
def test_texts_that_look_like_bounds_must_say_that_they_are_codes(
    tmp_path, texts, refused):
  path = tmp_path / 'bounds.json'
  path.write_text(json.dumps({'a': {'categories': texts}}))
  assert columns_lib.read(path)['a'].categories == tuple(texts)
  path.write_text(json.dumps({'a': texts}))
  if refused:
    with pytest.raises(ValueError, match="'a' must be numbers without quotes"):
      columns_lib.read(path)
  else:
    assert columns_lib.read(path)['a'].width == len(texts)


def test_categories_are_known_however_programs_write_them():
  column = columns_lib.Category(name='c', categories=('3.0', 'True', 'x'))
  values = np.array(['3', 'true', 'x'], object)
  np.testing.assert_array_equal(column.encode(values, 'error'), np.eye(3))
  assert column.target(values).tolist() == [0, 1, 2]


def test_kept_columns_are_read_as_they_were(tmp_path):
  columns = columns_lib.Columns(features=(AGE, JOB), label=columns_lib.Category(
      name='y', categories=('0', '1')), made_from='public sample')
  path = tmp_path / columns_lib.FILE
  path.write_text(columns.dumps())
  assert columns_lib.read(path) == columns
  assert columns.width == 3 and columns.is_classification


@pytest.mark.parametrize('content, message', [
    ('[]', 'must be an object of columns'), ({'age': [1, 1]}, 'lower first'),
    ('{"age": [0, NaN]}', 'bounds must be finite'),
    ('{"age": [0, Infinity]}', 'bounds must be finite'),
    ({'age': [True, 2]}, 'bounds must be finite'),
    ({'age': 'young'}, r"column 'age' must be \[low, high\], or texts"),
    ({'job': ['a', 1]}, 'bounds must be finite'),
    ({'format': 'columns 1', 'features': []}, 'label')])
def test_malformed_bounds_are_one_line_that_names_file_and_column(
    tmp_path, content, message):
  path = tmp_path / 'bounds.json'
  path.write_text(content if isinstance(content, str) else json.dumps(content))
  with pytest.raises(ValueError, match=f'public_bounds=.*bounds.json: .*{message}'
                     ) as raised:
    columns_lib.read(path)
  assert '\n' not in str(raised.value)


def _chosen(known, **choice):
  return columns_lib.choose(known, **{
      'label_field': 'y', 'feature_fields': None, 'classes': (),
      'client_field': 'client', 'made_from': 'public bounds', **choice})


def test_features_are_all_known_columns_but_label_and_clients():
  y = columns_lib.Number.of_bounds('y', 0, 1)
  client = columns_lib.Number.of_bounds('client', 0, 1)
  known = {'age': AGE, 'y': y, 'client': client, 'job': JOB}
  assert _chosen(known).features == (AGE, JOB)
  assert _chosen(known, feature_fields=('job', 'client')).features == (JOB, client)
  assert _chosen(known, classes=('0', '1')).label.categories == ('0', '1')


@pytest.mark.parametrize('choice, message', [
    ({'label_field': 'one'}, "label 'one' must have 2 classes"),
    ({'feature_fields': ('job', 'job'), 'classes': ('a', 'b')},
     'features must be at least 1 texts that differ'),
    ({'feature_fields': (), 'classes': ('a', 'b')}, 'features must be at least 1')])
def test_columns_that_can_not_be_chosen_are_named(choice, message):
  known = {'age': AGE, 'job': JOB,
           'one': columns_lib.Category(name='one', categories=('only',))}
  with pytest.raises(ValueError, match=message):
    _chosen(known, **choice)
