"""Further files for a trained model: every client, converted as in the training."""

import numpy as np
import pytest

from tasks import registry
from tasks.sources import further
from tests.tasks.sources import populations

_LABELS = {'ann': [3, 1], 'ben': [0], 'carl': [7, 7], 'dan': [2]}


def _images():
  """Client -> records of images, in a form that every writer takes."""
  rng = np.random.default_rng(2)
  return {client: [dict(text='t', number=label, real=0.5, vector=rng.integers(
      256, size=784).tolist()) for label in labels] for client, labels in _LABELS.items()}


@pytest.mark.parametrize('name', populations.WRITERS)
def test_images_of_every_format_are_read_as_in_the_training(name, tmp_path):
  population = _images()
  if name == 'npz':
    population = {client: [{**record, 'vector': np.reshape(
        record['vector'], [28, 28]).tolist()} for record in rows]
                  for client, rows in population.items()}
  given = populations.WRITERS[name](tmp_path, population)
  if name == 'npz':
    given['client_field'] = 'client'
  built = registry.build('emnist', image_field='vector', label_field='number',
                         num_classes=10, **given)
  source = built.reader(labelled=True, data_path=given['data_path'])
  bare = built.reader(labelled=False, data_path=given['data_path'])
  # Held-out clients, too.
  assert set(source.client_ids) == set(population) == set(bare.client_ids)
  assert len(built.train.client_ids) == len(population) - 1
  for client in built.train.client_ids:
    populations.assert_same(source.examples(client), dict(built.train.examples(client)))
  for client, labels in _LABELS.items():
    assert source.examples(client)['y'].tolist() == labels
    assert set(bare.examples(client)) == {'x'}
    assert len(bare.examples(client)['x']) == len(labels)


@pytest.mark.parametrize('name', ['csv', 'folder', 'leaf', 'npz', 'sqlite'])
def test_texts_of_every_format_are_read_as_in_the_training(name, tmp_path):
  population = {f'role{i}': [dict(text=f'Speech {i}', number=1, real=0.5, vector=[1])]
                for i in range(4)}
  given = populations.WRITERS[name](tmp_path, population)
  built = registry.build('shakespeare', sequence_length=11, **given)
  source = built.reader(labelled=True, data_path=given['data_path'])
  assert set(source.client_ids) == set(population)
  for client in built.train.client_ids:
    populations.assert_same(source.examples(client), dict(built.train.examples(client)))
  # 'Speech 1' and its beginning: no end, which 12 tokens would have.
  row, = built.reader(labelled=False, data_path=given['data_path']).examples(
      'role1')['tokens']
  assert np.count_nonzero(row) == 9 and row[-3:].tolist() == [0, 0, 0]


def test_tables_and_classes_of_texts_need_no_labels(tmp_path):
  bounds = tmp_path / 'bounds.json'
  bounds.write_text('{"real": [0, 2], "number": [0, 9]}')
  population = {f'p{i}': [dict(text=f'a b{i}', number=i % 3, real=i / 4, vector=[1])]
                for i in range(8)}
  given = populations.jsonl(tmp_path, population)
  table = registry.build('tabular', label_field='number', num_classes=3,
                         feature_fields=('real',), public_bounds=str(bounds), **given)
  words = tmp_path / 'words'
  words.write_text('a\nb1\n')
  texts = registry.build('text_classification', label_field='number', num_classes=3,
                         vocabulary=str(words), **given)
  (tmp_path / 'bare').mkdir()
  bare = populations.jsonl(tmp_path / 'bare', {
      client: [{'text': rows[0]['text'], 'real': rows[0]['real']}]
      for client, rows in population.items()})['data_path']
  for built in (table, texts):
    labelled = built.reader(labelled=True, data_path=given['data_path'])
    unlabelled = built.reader(labelled=False, data_path=bare)
    assert set(labelled.client_ids) == set(unlabelled.client_ids) == set(population)
    for client in population:
      both = labelled.examples(client)
      assert both.pop('y') == [int(client[1:]) % 3]
      populations.assert_same(unlabelled.examples(client), both)
    with pytest.raises(ValueError, match="there is no field 'number'"):
      built.reader(labelled=True, data_path=bare)


def test_sources_without_files_are_read_whole():
  built = registry.build('emnist', num_clients=7)
  source = built.reader(labelled=True)
  counts = [len(source.examples(client)['y']) for client in source.client_ids]
  assert sum(counts) == 1797
  with pytest.raises(ValueError, match='data_path must be files of one format by'):
    built.reader(labelled=True, data_path='BUILD')
  texts = registry.build('shakespeare', num_clients=5)
  assert len(texts.reader(labelled=False).client_ids) == 5


def test_options_of_the_training_hold_for_its_source_alone(tmp_path):
  given = populations.csv_file(tmp_path, _images())
  built = registry.build('emnist', image_field='vector', label_field='number',
                         num_classes=10, **given)
  other = populations.jsonl(tmp_path, _images())
  with pytest.raises(ValueError, match="there is no field 'pixels'"):
    built.reader(labelled=True, **other)
  source = built.reader(
      labelled=True, image_field='vector', label_field='number', **other)
  assert set(source.client_ids) == set(_LABELS)
  with pytest.raises(ValueError, match='does not use train_split'):
    built.reader(labelled=True, train_split='x', **other)


def test_arrays_need_no_clients_and_all_their_parts_count(tmp_path):
  path = str(tmp_path / 'data.npz')
  x = np.arange(5 * 12, dtype=np.uint8).reshape(5, 3, 4)
  np.savez(path, x_train=x[:3], y_train=[0, 1, 2], x_test=x[3:], y_test=[1, 0],
           writer_test=[8, 9])
  read = further.reader((3, 4), np.dtype(np.uint8), 3)
  source = read(labelled=True, data_path=path)
  assert set(source.client_ids) == {further.NOBODY, '8', '9'}
  np.testing.assert_array_equal(source.examples(further.NOBODY)['x'], x[:3])
  assert source.examples('9')['y'].tolist() == [0]
  bare = read(labelled=False, data_path=path, label_field='none')
  assert set(bare.examples('8')) == {'x'}


@pytest.mark.parametrize('arrays, message', [
    (dict(x=np.zeros((2, 3, 5), np.uint8), y=[0, 0]),
     r"client 'nobody': records must be of the shape \[3, 4\], found uint8 \[2, 3, 5\]"),
    (dict(x=np.zeros((2, 6, 2), np.uint8), y=[0, 0]), 'records must be of the shape'),
    (dict(x=np.full((2, 3, 4), 256), y=[0, 0]), r'records must be in \[0, 255\]'),
    (dict(x=np.full((2, 3, 4), np.nan), y=[0, 0]), r'records must be in \[0, 1\]'),
    (dict(x=np.zeros((2, 3, 4), np.uint8), y=[0, 3]), r'labels must be in \[0, 3\)'),
    (dict(x=np.zeros((2, 3, 4), np.uint8), y=[0.0, 1.0]),
     'labels must be one integer for each'),
    (dict(x=np.zeros((2, 3, 4), np.uint8)), 'has no array y'),
    (dict(y=[1]), 'has no array x, x_train or x_test'),
    (dict(x=np.zeros((2, 3, 4), np.uint8), y=[1]), 'must be as long|of the shape')])
def test_records_that_do_not_fit_are_one_line(tmp_path, arrays, message):
  path = str(tmp_path / 'data.npz')
  np.savez(path, **arrays)
  with pytest.raises(ValueError, match=message) as raised:
    source = further.reader((3, 4), np.dtype(np.uint8), 3)(labelled=True, data_path=path)
    source.examples(further.NOBODY)
  assert '\n' not in str(raised.value)


def test_vectors_are_converted_and_must_be_finite(tmp_path):
  path = str(tmp_path / 'data.npz')
  np.savez(path, x=np.array([[1, 3], [0, 2]]), writer=[0, 1])
  read = further.reader((2,), np.dtype(np.float32), 3, lambda name, x: x / 2)
  source = read(labelled=False, data_path=path)
  assert source.examples('0')['x'].tolist() == [[0.5, 1.5]]
  assert source.examples('0')['x'].dtype == np.float32
  np.savez(path, x=np.array([[1, np.inf]]))
  with pytest.raises(ValueError, match='records must be finite'):
    read(labelled=False, data_path=path).examples(further.NOBODY)
