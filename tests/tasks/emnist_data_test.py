"""Tests of tasks.emnist_data."""

import numpy as np
import pytest

from tasks import emnist_data
from tasks import sources
from tests import data_dir


def _all_rows(source):
  """Every training example as (label, bytes of the image), sorted."""
  rows = []
  for client in source.client_ids:
    examples = source.examples(client)
    rows.extend((int(y), x.tobytes())
                for x, y in zip(examples['x'], examples['y']))
  return sorted(rows)


def test_embedded_split_repeats_with_its_seed():
  first, again = (emnist_data.embedded(data_seed=5) for _ in range(2))
  assert first.train.client_ids == again.train.client_ids
  for client in first.train.client_ids:
    for name, array in first.train.examples(client).items():
      np.testing.assert_array_equal(array, again.train.examples(client)[name])


def test_embedded_seed_moves_examples_between_clients_only():
  first, other = (emnist_data.embedded(data_seed=seed) for seed in (0, 1))
  client = first.train.client_ids[0]
  assert not np.array_equal(first.train.examples(client)['x'],
                            other.train.examples(client)['x'])
  assert _all_rows(first.train) == _all_rows(other.train)
  for name in ('x', 'y'):
    np.testing.assert_array_equal(
        first.held_out['test'][name], other.held_out['test'][name])


@pytest.mark.parametrize('num_clients', [1, 100, 1437])
def test_embedded_population_has_the_clients_asked_for(num_clients):
  data = emnist_data.embedded(num_clients=num_clients)
  assert len(data.train.client_ids) == num_clients
  sizes = [len(data.train.examples(c)['y']) for c in data.train.client_ids]
  assert sum(sizes) == 1437 and min(sizes) >= 1
  assert str(num_clients) in data.privacy_unit


def test_embedded_images_are_like_mnist():
  data = emnist_data.embedded(num_clients=1)
  x = data.train.examples('0')['x']
  assert x.dtype == np.uint8 and x.shape == (1437, 28, 28)
  assert x.max() == 255
  frame = np.ones([28, 28], bool)
  frame[4:24, 4:24] = False
  assert np.all(x[:, frame] == 0)
  assert set(data.train.examples('0')['y'].tolist()) == set(range(10))
  assert len(data.held_out['test']['y']) == 360
  assert set(data.held_out['test']['y'].tolist()) == set(range(10))


def test_embedded_enlarging_keeps_mean_ink():
  # Bilinear interpolation leaves the mean of an image nearly as it was.
  from sklearn import datasets
  digits = datasets.load_digits()
  x, y = emnist_data._embedded_digits()
  np.testing.assert_array_equal(y, digits.target)
  small = digits.images.mean(axis=(1, 2)) / 16
  large = x[:, 4:24, 4:24].mean(axis=(1, 2)) / 255
  np.testing.assert_allclose(large, small, atol=0.02)
  correlation = [
      np.corrcoef(a.ravel(), b[4:24, 4:24].reshape([4, 5, 4, 5])[
          :, 2, :, 2].ravel())[0, 1]
      for a, b in zip(digits.images[:, ::2, ::2], x[:50])]
  assert np.mean(correlation) > 0.6  # Upright, not turned or mirrored.


def _population(*clients):
  return sources.ArraysByClient(
      {'x': np.zeros([len(clients), 28, 28], np.uint8)}, np.array(clients))


@pytest.mark.parametrize('writers, expected', [
    ([1, 2, 1], {'test_examples': [0, 1, 2]}),
    ([8, 9, 8], {'test_clients': [0, 1, 2]}),
    ([8, 1, 2], {'test_clients': [0], 'test_examples': [1, 2]}),
    (['8', '1', '2'], {'test_clients': [0], 'test_examples': [1, 2]}),
    (None, {'test': [0, 1, 2]}),
])
def test_held_out_sets_say_whose_examples_they_are(writers, expected):
  clients = None if writers is None else np.array(writers)
  sets = emnist_data.held_out_sets(
      {'y': np.arange(3)}, clients, _population(1, 2, 3))
  assert {name: s['y'].tolist() for name, s in sets.items()} == expected
  assert list(sets) == list(expected)  # The first heads the report.


@pytest.mark.parametrize('name, clients, classes, held_out', [
    ('mnist.npz', 539, 10, {'test_clients': 10_000}),
    ('unipen62_writers.npz', 318, 62, {'test_examples': 6_383}),
])
def test_real_files_become_clients(name, clients, classes, held_out):
  data = emnist_data.npz(data_path=data_dir.require(name))
  assert len(data.train.client_ids) == clients
  assert data.num_classes == classes
  assert {k: len(v['y']) for k, v in data.held_out.items()} == held_out
  assert data.train.element_spec['x'] == (np.dtype(np.uint8), (28, 28))
  assert data.train.element_spec['y'] == (np.dtype(np.int32), ())


def test_real_clients_have_their_own_rows():
  path = data_dir.require('mnist.npz')
  with np.load(path, allow_pickle=False) as arrays:
    x, y, writers = (arrays[k] for k in ('x_train', 'y_train', 'writer_train'))
  source = emnist_data.npz(data_path=path).train
  for client in (source.client_ids[0], source.client_ids[-1]):
    rows = writers == int(client)
    np.testing.assert_array_equal(source.examples(client)['x'], x[rows])
    np.testing.assert_array_equal(source.examples(client)['y'], y[rows])
