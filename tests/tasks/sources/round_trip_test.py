"""Every format returns the records that were written, and so does an SQLite copy."""

import pathlib
import tempfile

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest
import tensorflow as tf

from tasks import registry
from tasks.sources import open_source, sqlite as source_sqlite, values
from tasks.text import data as text_data
from tests.tasks.sources import populations

# Texts that all formats can hold: NumPy's end at their last character that is not 0.
_TEXTS = st.text(st.characters(exclude_characters='\0', exclude_categories=['Cs']),
                 max_size=12)
_INTEGERS = st.integers(-2**63, 2**63 - 1)
_REALS = st.floats(allow_nan=False, allow_infinity=False)
# Names of folders too, neither hidden nor split at a separator.
_CLIENTS = st.text(st.characters(exclude_characters='\0/.', exclude_categories=['Cs']),
                   min_size=1, max_size=12)
_VECTORS = st.sampled_from(
    [st.lists(_INTEGERS, min_size=2, max_size=2),
     st.lists(_REALS, min_size=2, max_size=2)])


@st.composite
def _populations(draw):
  vectors = draw(_VECTORS)
  record = st.fixed_dictionaries(dict(
      text=_TEXTS, number=_INTEGERS, real=_REALS, vector=vectors))
  return draw(st.dictionaries(
      _CLIENTS, st.lists(record, min_size=1, max_size=4), min_size=1, max_size=4))


def _open(options):
  options = dict(options)
  return open_source.open_raw(
      options.pop('data_source'), fields=populations.FIELDS, **options)


def _copied(folder, source):
  """A source as prepare_data copies it."""
  path = populations.prepared(folder / "copy's.sqlite", source)
  return source_sqlite.SqliteSource(path, 'train')


def _read_in_graph(source, client):
  tensors = source.read_in_graph(tf.constant(client))
  arrays = {}
  for name, tensor in tensors.items():
    array = tensor.numpy()
    if array.dtype == object:
      array = np.array([text.decode() for text in array] + [None], object)[:-1]
    arrays[name] = array
  return arrays


@pytest.mark.parametrize('format_', [
    pytest.param(name, marks=[pytest.mark.slow] * (name not in ('csv', 'sqlite')))
    for name in sorted(populations.WRITERS)])
@hypothesis.settings(deadline=None, max_examples=20)
@hypothesis.given(population=_populations())
@hypothesis.example(population=populations.POPULATION)
def test_every_example_comes_back_and_again_from_sqlite(format_, population):
  # A text table has no id like 'NULL'; '7.0' is the id '7'.
  hypothesis.assume(all(values.client_id(client) == client and (
      client not in values.GAPS) for client in population))
  # The one integer that yajl takes for an overflow.
  hypothesis.assume(format_ != 'leaf' or not any(
      -2**63 in (row['number'], *row['vector'])
      for rows in population.values() for row in rows))
  with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    source = _open(populations.WRITERS[format_](folder, population)).train
    assert set(source.client_ids) == set(population)
    copy = _copied(folder, source)
    assert set(copy.client_ids) == set(population)
    for client, rows in population.items():
      wanted = populations.expected(rows)
      populations.assert_same(source.examples(client), wanted)
      populations.assert_same(copy.examples(client), wanted)
    populations.assert_same(_read_in_graph(copy, client), wanted)


@pytest.mark.parametrize('dtype', [
    'bool', 'int8', 'int16', 'int32', 'int64', 'uint8', 'uint16', 'uint32', 'uint64',
    'float16', 'float32', 'float64'])
def test_every_type_of_number_comes_back_from_sqlite(tmp_path, dtype):
  rng = np.random.default_rng(0)
  info = None if dtype == 'bool' else (
      np.finfo(dtype) if 'float' in dtype else np.iinfo(dtype))
  extremes = [0, 1] if info is None else [info.min, info.max]
  values = np.array([extremes, rng.integers(0, 2, 2)], dtype)[:, :, np.newaxis]

  class Source:
    client_ids = ('c',)
    element_spec = {'v': (values.dtype, (2, 1)), 's': (values.dtype, ())}

    def examples(self, client_id):
      del client_id
      return {'v': values, 's': values[:, 0, 0]}

  copy = _copied(tmp_path, Source())
  populations.assert_same(copy.examples('c'), Source().examples('c'))
  populations.assert_same(_read_in_graph(copy, 'c'), Source().examples('c'))
  assert dict(copy.element_spec) == Source.element_spec


def test_tff_reads_what_prepare_data_writes(tmp_path):
  tff = pytest.importorskip('tensorflow_federated')
  source = _open(populations.jsonl(tmp_path, populations.POPULATION)).train
  _copied(tmp_path, source)
  theirs = tff.simulation.datasets.load_and_parse_sql_client_data(
      str(tmp_path / "copy's.sqlite"),
      {'text': tf.TensorSpec([], tf.string), 'number': tf.TensorSpec([], tf.int64),
       'vector': tf.TensorSpec([2], tf.int64)}, 'train')
  # TFF puts ids into queries as they are, so not those with a quote.
  for client in ('ann', '7'):
    rows = list(theirs.create_tf_dataset_for_client(client).as_numpy_iterator())
    wanted = populations.expected(populations.POPULATION[client])
    assert [row['text'].decode() for row in rows] == wanted['text'].tolist()
    assert [row['number'] for row in rows] == wanted['number'].tolist()
    np.testing.assert_array_equal([row['vector'] for row in rows], wanted['vector'])


# What tasks know of the data that ship, and must be told of files.
TOLD = {
    'images': {'num_classes': 10}, 'tabular': {'public_bounds': 'columns.json'},
    'text_classification': {'class_names': tuple(sorted(
        {tags.split('|')[0] for _, tags in text_data.speeches()}))}}


@pytest.mark.parametrize('name', [name for name in registry.TASKS if name != 'emnist'])
def test_tasks_make_the_same_of_the_data_that_ship_and_of_their_copy(
    tmp_path, monkeypatch, name):
  monkeypatch.chdir(tmp_path)
  raw, _ = registry.open_raw(name, num_clients=20)
  path = populations.prepared(tmp_path / 'copy.sqlite', raw.train, raw.test)
  direct = registry.build(name, num_clients=20)
  for file, text in direct.files.items():
    (tmp_path / file).write_text(text)
  copied = registry.build(
      name, data_source='sqlite', data_path=str(path), **TOLD.get(name, {}))
  assert set(copied.train.client_ids) == set(direct.train.client_ids)
  assert copied.files == direct.files  # The vocabulary.
  for client in direct.train.client_ids:
    populations.assert_same(copied.train.examples(client), direct.train.examples(client))
  (_, theirs), (_, ours) = *copied.held_out.items(), *direct.held_out.items()
  populations.assert_same(theirs, ours)
