"""Tests of tasks.sources.records and of task.Skips."""

import uuid

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pandas
import pytest

from tasks import task
from tasks.sources import partition, records

_SPEC = {'y': (np.dtype(np.int32), ())}


def _source(values=(1, 2, 3, -4), clients=('a', 'b', 'a', 'c')):
  return records.ArraysByClient({'v': np.array(values)}, np.array(clients))


def _doubled(raw):
  if np.any(raw['v'] < 0):
    raise ValueError('v must not be negative')
  return {'y': (2 * raw['v']).astype(np.int32)}


def test_mapped_source_converts_the_client_that_is_read():
  seen = []

  def convert(raw):
    seen.append(raw['v'].tolist())
    return _doubled(raw)

  mapped = records.MappedSource(_source(), convert, _SPEC)
  assert list(mapped.client_ids) == ['a', 'b', 'c']
  assert not seen
  assert mapped.examples('a')['y'].tolist() == [2, 6]
  assert seen == [[1, 3]]


def test_mapped_source_names_the_client_in_errors():
  mapped = records.MappedSource(_source(), _doubled, _SPEC)
  with pytest.raises(task.BadClientError, match="client 'c': v must not be negative"):
    mapped.examples('c')
  with pytest.raises(ValueError, match="no client 'x'") as raised:
    mapped.examples('x')
  assert not isinstance(raised.value, task.BadClientError)


@pytest.mark.parametrize('examples, message', [
    ({'z': np.zeros(1, np.int32)}, r"must have the features \['y'\], found \['z'\]"),
    ({'y': np.zeros(1, np.int64)}, r'y must be int32 \[examples\], found int64'),
    ({'y': np.zeros([1, 2], np.int32)}, r'found int32 \[1, 2\]'),
    ({'y': np.zeros(1, np.int32), 'x': np.zeros(1)}, 'must have the features')])
def test_mapped_source_checks_the_results_of_conversions(examples, message):
  mapped = records.MappedSource(_source(), lambda raw: examples, _SPEC)
  with pytest.raises(task.BadClientError, match=message):
    mapped.examples('a')


def test_a_conversion_may_change_the_number_of_examples():
  mapped = records.MappedSource(
      _source(), lambda raw: {'y': np.zeros(0, np.int32)}, _SPEC)
  assert len(mapped.examples('a')['y']) == 0
  mapped = records.MappedSource(
      _source(), lambda raw: {'y': np.zeros(2, np.int32), 'x': np.zeros(3, np.int32)},
      {**_SPEC, 'x': _SPEC['y']})
  with pytest.raises(task.BadClientError, match='must have one length, found'):
    mapped.examples('a')


class _InGraph:
  """A source that a graph can read."""

  client_ids = ('a',)
  element_spec = {'v': (np.dtype(int), ())}
  read_in_graph = task.ReaderInGraph(
      lambda client_id: {'v': [client_id]}, element_spec,
      lambda client_ids: ({'v': list(client_ids)}, [1] * len(client_ids)))

  def examples(self, client_id):
    del client_id
    return {'v': np.zeros(1, int)}


def test_reading_in_graph_needs_source_and_conversion():
  in_graph = lambda raw: {'y': raw['v'] * 2}
  make = records.MappedSource
  assert task.reader_in_graph(make(_source(), _doubled, _SPEC,
                                   convert_in_graph=in_graph)) is None
  assert task.reader_in_graph(make(_InGraph(), _doubled, _SPEC)) is None
  read = task.reader_in_graph(
      make(_InGraph(), _doubled, _SPEC, convert_in_graph=in_graph))
  assert read('c') == read.convert(read.stored('c')[0]) == {'y': ['c', 'c']}
  subset = records.SubsetSource(_InGraph(), ['a'])
  assert task.reader_in_graph(subset)('c') == {'v': ['c']}


def test_subset_has_its_clients_only():
  subset = records.SubsetSource(_source(), ['c', 'a'])
  assert subset.client_ids == ('c', 'a')
  assert subset.examples('a')['v'].tolist() == [1, 3]
  with pytest.raises(ValueError, match="no client 'b'"):
    subset.examples('b')


def _many(count, prefix='c'):
  ids = np.array([f'{prefix}{i:05d}' for i in range(count)])
  return records.ArraysByClient({'v': np.arange(count)}, ids)


def test_split_depends_on_the_ids_alone():
  source = _many(50)
  train, held_out = records.split_clients(source, held_out_fraction=0.2)
  assert len(held_out.client_ids) == 10 and len(train.client_ids) == 40
  assert set(train.client_ids) | set(held_out.client_ids) == set(source.client_ids)
  turned = records.SubsetSource(source, reversed(source.client_ids))
  assert records.split_clients(
      turned, held_out_fraction=0.2)[1].client_ids == held_out.client_ids


def test_split_holds_out_some_but_not_too_many(monkeypatch):
  monkeypatch.setattr(records, 'MAX_HELD_OUT_CLIENTS', 7)
  assert len(records.split_clients(_many(500))[1].client_ids) == 7
  assert len(records.split_clients(_many(2))[1].client_ids) == 1
  train, none = records.split_clients(_many(2), held_out_fraction=0)
  assert none is None and len(train.client_ids) == 2


@pytest.mark.parametrize('count, fraction, message', [
    (5, 1.0, r'held_out_fraction must be in \[0, 1\), found 1.0'),
    (5, -0.1, 'held_out_fraction'), (5, float('nan'), 'held_out_fraction'),
    (1, 0.1, 'leaves none of the 1 clients to train on')])
def test_split_rejects(count, fraction, message):
  with pytest.raises(ValueError, match=message):
    records.split_clients(_many(count), held_out_fraction=fraction)


def test_gather_puts_clients_end_to_end():
  examples, clients = records.gather(_source())
  assert examples['v'].tolist() == [1, 3, 2, -4]
  assert clients.tolist() == ['a', 'a', 'b', 'c']
  few, _ = records.gather(_many(100), max_clients=10)
  again, _ = records.gather(_many(100), max_clients=10)
  assert len(few['v']) == 10 and few['v'].tolist() == again['v'].tolist()


def test_gather_raises_or_skips_bad_clients():
  mapped = records.MappedSource(_source(), _doubled, _SPEC)
  for skips in (None, task.Skips()):
    with pytest.raises(task.BadClientError, match="client 'c'"):
      records.gather(mapped, skips=skips)
  skips = task.Skips(True)
  assert records.gather(mapped, skips=skips)[1].tolist() == ['a', 'a', 'b']
  assert list(skips.clients) == ['c']
  bad = records.MappedSource(_source((-1,), ('c',)), _doubled, _SPEC)
  with pytest.raises(ValueError, match='there is no example in the 1 clients'):
    records.gather(bad, skips=task.Skips(True))


def test_skips_count_a_client_once():
  skips = task.Skips(True)
  assert skips.describe() is None
  skips.client('a', ValueError('first'))
  skips.client('a', ValueError('second'))
  skips.client(None, ValueError('third'))
  assert skips.describe() == (
      'skipped 1 bad clients and 1 bad records of no known client, which is outside '
      'the guarantee; the first: first')
  with pytest.raises(ValueError, match='other'):
    task.Skips().client(None, ValueError('other'))


def test_held_out_comes_from_the_test_part_or_from_the_clients():
  train, test = _many(20), _many(5, 'd')
  population, held_out = records.with_held_out(train, test, skips=task.Skips())
  assert population is train and len(held_out['test_clients']['v']) == 5
  population, held_out = records.with_held_out(
      train, None, skips=task.Skips(), held_out_fraction=0.5)
  assert len(population.client_ids) == 10 and len(held_out['test_clients']['v']) == 10
  with pytest.raises(ValueError, match='held_out_fraction is not used'):
    records.with_held_out(train, test, skips=task.Skips(), held_out_fraction=0.5)
  with pytest.raises(ValueError, match='held_out_fraction must be above 0'):
    records.with_held_out(train, None, skips=task.Skips(), held_out_fraction=0.0)


@pytest.mark.parametrize('arguments, message', [
    ({'kind': 'word'}, "kind must be one of text, .*found 'word'"),
    ({'optional': True}, 'kind of optional .* must be one of text, integer, float'),
    ({'optional': True, 'kind': 'number'}, 'kind of optional')])
def test_fields_are_checked(arguments, message):
  with pytest.raises(ValueError, match=message):
    records.Field(name='f', **arguments)


def _population(*clients):
  return records.ArraysByClient(
      {'x': np.zeros([len(clients), 28, 28], np.uint8)}, np.array(clients))


@pytest.mark.parametrize('writers, expected', [
    ([1, 2, 1], {'test_examples': [0, 1, 2]}),
    ([8, 9, 8], {'test_clients': [0, 1, 2]}),
    ([8, 1, 2], {'test_clients': [0], 'test_examples': [1, 2]}),
    (['8', '1', '2'], {'test_clients': [0], 'test_examples': [1, 2]})])
def test_held_out_sets_say_whose_examples_they_are(writers, expected):
  sets = records.held_out_sets(
      {'y': np.arange(3)}, np.array(writers), _population(1, 2, 3))
  assert {name: s['y'].tolist() for name, s in sets.items()} == expected
  assert list(sets) == list(expected)  # The first heads the report.


@hypothesis.settings(deadline=None, max_examples=100)
@hypothesis.given(st.lists(st.integers(-3, 3), min_size=1, max_size=40))
def test_arrays_by_client_gives_back_every_example_in_order(clients):
  clients = np.array(clients)
  values = np.arange(clients.size)
  source = records.ArraysByClient({'v': values, 'w': -values}, clients)
  assert list(source.client_ids) == [str(c) for c in np.unique(clients)]
  for client in source.client_ids:
    examples = source.examples(client)
    np.testing.assert_array_equal(examples['v'], values[clients == int(client)])
    np.testing.assert_array_equal(examples['w'], -examples['v'])


def test_arrays_by_client_takes_names_as_clients():
  source = records.ArraysByClient(
      {'v': np.arange(3, dtype=np.int32)}, np.array(['b', 'a', 'b']))
  assert source.client_ids == ('a', 'b')
  assert source.examples('b')['v'].tolist() == [0, 2]
  assert dict(source.element_spec) == {'v': (np.dtype(np.int32), ())}
  with pytest.raises(ValueError, match="no client 'x'"):
    source.examples('x')


@pytest.mark.parametrize('clients', [[0, 0, 1], [1, 0, 1]])
def test_examples_of_a_client_cannot_be_written_to(clients):
  values = np.arange(3)
  source = records.ArraysByClient({'v': values}, np.array(clients))
  with pytest.raises(ValueError, match='read-only'):
    source.examples('1')['v'][0] = 9
  values[0] = 0  # The caller's own array stays writable.


@pytest.mark.parametrize('clients, ids', [
    (np.array(['a', 2.0, 'a'], object), ('2', 'a')),
    (pandas.Series(['y', 'x', 'y'], dtype='category'), ('x', 'y')),
    (pandas.array([2, 10, 10], 'Int64'), ('2', '10')),
    ([9.0, 10.0, 9.0], ('10', '9')),
    (['9.0', '10', '9'], ('10', '9')),
    ([uuid.UUID(int=1), uuid.UUID(int=0), uuid.UUID(int=1)],
     (str(uuid.UUID(int=0)), str(uuid.UUID(int=1))))])
def test_ids_of_arrays_are_of_any_type(clients, ids):
  source = records.ArraysByClient({'v': np.arange(3)}, clients)
  assert source.client_ids == ids
  assert [len(source.examples(client)['v']) for client in ids] == [1, 2]


@pytest.mark.parametrize('values, clients, message', [
    (np.arange(3), np.array([0, 1]), 'v must be as long as the 2 clients, found'),
    (np.zeros([0]), np.zeros([0], int), r'found int64 \[0\]'),
    (np.arange(2), np.array([0.0, np.nan]), 'whole numbers, found nan in row 1'),
    (np.arange(2), np.array([0.5, 1.0]), 'whole numbers, found 0.5 in row 0'),
    (np.arange(2), ['a', None], 'whole numbers, found None in row 1'),
    (np.arange(2), np.array(['2020-01-01', 'NaT'], 'datetime64[D]'), 'NaT.* in row 1'),
    (np.arange(2), pandas.array([7, None], 'Int64'), 'found .* in row 1'),
    (np.arange(2), np.array([[0], [1]]), 'one id per example')])
def test_arrays_by_client_rejects(values, clients, message):
  with pytest.raises(ValueError, match=message):
    records.ArraysByClient({'v': values}, clients)


def test_a_record_is_held_out_by_itself_and_a_person_with_all_of_its_records():
  texts = np.array([f'text {i}' for i in range(2000)], object)
  persons = np.array([f'p{i // 4}' for i in range(2000)], object)
  for fields in ({'text': texts}, {'text': texts, records.PERSON: persons}):
    def part(rows, held_out, fields=fields):
      source = records.ArraysByClient(
          {name: array[rows] for name, array in fields.items()}, np.full(len(rows), 'a'))
      part = partition.PartOfRecords(source, 0.1, held_out=held_out)
      return part.examples('a')['text'].tolist()

    every = np.arange(2000)
    train, test = part(every, False), part(every, True)
    assert set(train) | set(test) == set(texts) and not set(train) & set(test)
    assert 120 < len(test) < 280
    assert [x for x in train if x != 'text 0'] == part(every[1:], False)
    if records.PERSON in fields:
      assert {int(x[5:]) // 4 for x in test}.isdisjoint(int(x[5:]) // 4 for x in train)


def test_examples_of_a_record_are_its_persons():
  raw = {'text': np.array(['good day. bad day.', ''], object),
         records.PERSON: np.array(['alice', 'bob'], object)}
  source = records.MappedSource(
      records.ArraysByClient(raw, np.array(['a', 'a'])), lambda raw: {'x': np.array([
          len(part) for text in raw['text'] for part in text.split('.') if part],
          np.int64)},
      {'x': (np.int64, ())}, one_to_one=False)
  persons = source.examples('a')[records.PERSON]
  assert len(persons) == 2 and persons[0] == persons[1]
