"""Tests of tasks.text.shakespeare."""

import gzip
import json

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest
import tensorflow as tf

from tasks import task
from tasks.models import text as text_models
from tasks.sources import open_source
from tasks.text import shakespeare
from tests import data_dir
from tests.tasks.sources import populations

SPEECHES = {
    'hamlet/GHOST': ['Swear.'], 'hamlet/HAMLET': ['To be, or not to be.', 'x' * 300],
    'macbeth/ROSS': ['No.', 'Words, words, words.', 'Ay.', 'Ha!', 'So it will.'],
    'macbeth/SON': ['Mother?']}


def _file(path, speeches, field='text'):
  with gzip.open(path, 'wt', encoding='utf-8') as file:
    for client, texts in speeches.items():
      for text in texts:
        file.write(json.dumps({'client': client, field: text}) + '\n')
  return str(path)


def _texts(rows):
  """Rows of tokens as text."""
  names = text_models.Special(86).names(shakespeare.CHARACTERS)
  return [''.join(names[token] for token in row if token) for row in rows]


def _built(path, **options):
  return shakespeare.build(
      data_source='jsonl', data_path=path, sequence_length=30, **options)


def test_run_without_a_file_has_the_text_that_ships():
  built = shakespeare.build()
  assert isinstance(built, task.Task) and built.model.name == 'lstm_small'
  assert list(built.held_out) == ['test']
  assert len(built.train.client_ids) >= 100  # The trainer's default cohort.
  assert 'simulated' in built.privacy_unit
  assert built.warnings == () and not built.files
  for client in built.train.client_ids:
    tokens = built.train.examples(client)['tokens']
    assert tokens.dtype == np.uint8 and tokens.shape[1:] == (81,) and len(tokens)


def test_last_fifth_of_a_clients_speeches_is_for_tests_alone(tmp_path):
  path = _file(tmp_path / 'a.jsonl.gz', SPEECHES)
  built = _built(path, held_out_fraction=0.25)
  assert len(built.train.client_ids) == 3 and list(built.held_out) == [
      'test_clients', 'test_examples']
  others = set(SPEECHES) - set(built.train.client_ids)
  assert ''.join(_texts(built.held_out['test_clients']['tokens'])) == ''.join(
      f'<begin>{text}<end>' for client in others for text in SPEECHES[client])
  assert _texts(built.train.examples('macbeth/ROSS')['tokens']) == [
      '<begin>No.<end>', '<begin>Words, words, words.<end>', '<begin>Ay.<end>',
      '<begin>Ha!<end>']
  assert _texts(built.held_out['test_examples']['tokens']) == ['<begin>So it will.<end>']
  assert {client: _texts(built.held_out_of_clients.examples(client)['tokens'])
          for client in built.train.client_ids} == {
              client: ['<begin>So it will.<end>'] * (client == 'macbeth/ROSS')
              for client in built.train.client_ids}


def test_clients_keep_some_rows_evenly_spaced(tmp_path):
  path = _file(tmp_path / 'a.jsonl.gz', {
      'a': [f'{i:02}' for i in range(12)], 'b': ['x'], 'c': ['y']})
  every = _built(path, held_out_fraction=0.34).train
  some = _built(path, held_out_fraction=0.34, max_examples_per_client=3).train
  for client in some.client_ids:
    rows = every.examples(client)['tokens']
    expected = rows[[0, len(rows) // 3, 2 * len(rows) // 3]] if len(rows) > 3 else rows
    np.testing.assert_array_equal(some.examples(client)['tokens'], expected)
  assert max(len(some.examples(c)['tokens']) for c in some.client_ids) <= 3


def test_held_out_sets_are_cut_to_the_same_rows_in_every_run(tmp_path):
  path = _file(tmp_path / 'a.jsonl.gz', {
      str(i): [f'{i} {j}' for j in range(10)] for i in range(20)})
  first, again = (_built(path, max_test_examples=7).held_out for _ in range(2))
  for name in ('test_clients', 'test_examples'):
    assert first[name]['tokens'].shape == (7, 31)
    np.testing.assert_array_equal(first[name]['tokens'], again[name]['tokens'])


def test_held_out_texts_of_a_client_do_not_depend_on_those_of_others(tmp_path):
  speeches = {str(i): [f'{i} {j}' for j in range(10)] for i in range(20)}
  whole = _built(_file(tmp_path / 'a.jsonl.gz', speeches), max_test_examples=7)
  some = _built(_file(tmp_path / 'b.jsonl.gz', {
      **speeches, '3': ['x'] * 50, '4': ['x']}), max_test_examples=7)
  for client in whole.train.client_ids:
    rows, again = (_texts(built.held_out_of_clients.examples(client)['tokens'])
                   for built in (whole, some))
    assert rows == [f'<begin>{client} {j}<end>' for j in (8, 9)]
    assert again == rows if client not in '34' else len(again) == 10 * (client == '3')


def test_test_part_makes_both_held_out_sets(tmp_path):
  train = _file(tmp_path / 'a.jsonl.gz', SPEECHES)
  test = _file(tmp_path / 'b.jsonl.gz', {
      'hamlet/GHOST': ['Adieu.'], 'lear/FOOL': ['Nuncle.']})
  built = _built(train, test_path=test)
  assert set(built.train.client_ids) == set(SPEECHES)
  assert len(built.train.examples('macbeth/ROSS')['tokens']) == 5
  assert _texts(built.held_out['test_clients']['tokens']) == ['<begin>Nuncle.<end>']
  assert _texts(built.held_out['test_examples']['tokens']) == ['<begin>Adieu.<end>']
  source = built.held_out_of_clients
  assert source.client_ids == ('hamlet/GHOST',)
  assert _texts(source.examples('hamlet/GHOST')['tokens']) == ['<begin>Adieu.<end>']


def _sqlite(path, data_path):
  """The records of a file as prepare_data copies them."""
  raw = open_source.open_raw('jsonl', fields=None, data_path=data_path).train
  return str(populations.prepared(path, raw))


# Compiled once: hypothesis gives it texts of every number and length.
_IN_GRAPH = tf.function(
    lambda texts: shakespeare._rows_in_graph(texts, 6),
    input_signature=[tf.TensorSpec([None], tf.string)])


@hypothesis.settings(deadline=None, max_examples=100)
@hypothesis.given(texts=st.lists(st.one_of(
    st.text(shakespeare.CHARACTERS, max_size=20),
    st.text(st.characters(exclude_categories=['Cs']), max_size=20)), max_size=4))
@hypothesis.example(texts=['', 'abcd', 'abcde', 'abcdef', '\u20ac\0\x7f\x80'])
def test_graphs_make_the_rows_that_python_makes(texts):
  wanted = [shakespeare.character_rows(text, 6) for text in texts]
  actual = _IN_GRAPH(tf.constant([text.encode() for text in texts], tf.string)).numpy()
  assert actual.dtype == np.uint8
  np.testing.assert_array_equal(
      actual, np.concatenate([np.zeros([0, 7], np.uint8), *wanted]))


@pytest.mark.parametrize('limit', [None, 3])
def test_roles_of_sqlite_are_read_where_they_train(tmp_path, limit):
  data_path = _file(tmp_path / 'a.jsonl.gz', SPEECHES)
  path = _sqlite(tmp_path / 'a.sqlite', data_path)
  built = shakespeare.build(data_source='sqlite', data_path=path, sequence_length=30,
                            max_examples_per_client=limit)
  read = task.reader_in_graph(built.train)
  wanted = _built(data_path, max_examples_per_client=limit).train
  assert built.train.client_ids == tuple(sorted(wanted.client_ids))
  for client in built.train.client_ids:
    rows = built.train.examples(client)['tokens']
    np.testing.assert_array_equal(rows, wanted.examples(client)['tokens'])
    np.testing.assert_array_equal(
        tf.function(read)(tf.constant(client))['tokens'].numpy(), rows)
  # Of files of lines, the copy is read.
  rows = wanted.examples(client)['tokens']
  np.testing.assert_array_equal(
      tf.function(task.reader_in_graph(wanted))(tf.constant(client))['tokens'], rows)


@pytest.mark.parametrize('options, message', [
    ({'model': 'gpt'}, "model must be one of lstm_256, lstm_small, found 'gpt'"),
    ({'sequence_length': 0}, 'sequence_length must be an integer from 1 on, found 0'),
    ({'max_examples_per_client': 0}, 'max_examples_per_client must be an integer from'),
    ({'max_test_examples': -1}, 'max_test_examples must be an integer .*, found -1'),
    ({'data_source': 'x'}, "data_source must be one of csv, embedded.*found 'x'"),
    ({'data_path': 'f'}, 'data_source embedded does not use data_path; its options'),
    ({'num_clients': 376}, 'num_clients must be an integer from 2 to the 375 speeches'),
    ({'data_source': 'jsonl'}, 'data_source jsonl needs data_path'),
    ({'data_source': 'official', 'num_clients': 3},
     'data_source official does not use num_clients')])
def test_bad_options_are_one_clear_line(options, message):
  with pytest.raises(ValueError, match=message) as raised:
    shakespeare.build(**options)
  assert '\n' not in str(raised.value)


def test_missing_field_names_file_line_and_field(tmp_path):
  path = _file(tmp_path / 'a.jsonl.gz', {'a': ['x'], 'b': ['y']}, field='line')
  with pytest.raises(ValueError, match=r"line 1, client 'a': there is no field 'text'"):
    _built(path)
  assert len(_built(path, text_field='line').train.client_ids) == 1


def test_roles_of_the_plays():
  path = data_dir.require('shakespeare_roles.jsonl.gz')
  built = shakespeare.build(data_source='jsonl', data_path=str(path))
  assert len(built.train.client_ids) == 1_206
  assert {name: len(rows['tokens']) for name, rows in built.held_out.items()} == {
      'test_clients': 2000, 'test_examples': 2000}
  for rows in built.held_out.values():
    known = text_models.Special(86).is_proper(rows['tokens'])
    assert known.sum() > 0.7 * rows['tokens'].size
    assert np.mean(rows['tokens'] == 87) < 1e-4  # Nearly all characters are known.
