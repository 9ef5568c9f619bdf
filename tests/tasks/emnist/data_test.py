"""Tests of the data of tasks.emnist.task."""

import numpy as np
import pytest

from tasks import registry
from tasks.emnist import task as emnist_task
from tasks.sources import open_source
from tests import data_dir
from tests.tasks.sources import populations


def _all_rows(source):
  """Every training example as (label, bytes of the image), sorted."""
  rows = []
  for client in source.client_ids:
    examples = source.examples(client)
    rows.extend((int(y), x.tobytes()) for x, y in zip(examples['x'], examples['y']))
  return sorted(rows)


def test_embedded_seed_moves_examples_between_clients_only():
  first, other = (emnist_task.load(data_seed=seed) for seed in (0, 1))
  client = first.train.client_ids[0]
  assert not np.array_equal(first.train.examples(client)['x'],
                            other.train.examples(client)['x'])
  assert _all_rows(first.train) == _all_rows(other.train)
  for name in ('x', 'y'):
    np.testing.assert_array_equal(
        first.held_out['test'][name], other.held_out['test'][name])


@pytest.mark.parametrize('num_clients', [1, 100, 1437])
def test_embedded_population_has_the_clients_asked_for(num_clients):
  data = emnist_task.load(num_clients=num_clients)
  assert len(data.train.client_ids) == num_clients
  sizes = [len(data.train.examples(c)['y']) for c in data.train.client_ids]
  assert sum(sizes) == 1437 and min(sizes) >= 1
  assert str(num_clients) in data.privacy_unit


def test_embedded_images_are_like_mnist():
  data = emnist_task.load(num_clients=1)
  x = data.train.examples('0')['x']
  assert x.dtype == np.uint8 and x.shape == (1437, 28, 28)
  assert x.max() == 255
  frame = np.ones([28, 28], bool)
  frame[4:24, 4:24] = False
  assert np.all(x[:, frame] == 0)
  assert set(data.train.examples('0')['y'].tolist()) == set(range(10))
  assert len(data.held_out['test']['y']) == 360
  assert set(data.held_out['test']['y'].tolist()) == set(range(10))


@pytest.mark.parametrize('name, clients, classes, held_out', [
    ('mnist.npz', 539, 10, {'test_clients': 10_000}),
    ('unipen62_writers.npz', 318, 62, {'test_examples': 6_383})])
def test_real_files_become_clients(name, clients, classes, held_out):
  data = emnist_task.load(data_source='npz', data_path=data_dir.require(name))
  assert len(data.train.client_ids) == clients
  assert data.num_classes == classes
  assert {k: len(v['y']) for k, v in data.held_out.items()} == held_out
  assert data.train.element_spec['x'] == (np.dtype(np.uint8), (28, 28))
  assert data.train.element_spec['y'] == (np.dtype(np.int32), ())


def _image_population():
  """Clients of images as JSON has them."""
  rng = np.random.default_rng(0)
  return {f'w{i}': [dict(pixels=rng.integers(256, size=784).tolist(), label=int(y))
                    for y in rng.integers(62, size=2 + i % 3)] for i in range(10)}


@pytest.mark.parametrize('format_', sorted(populations.WRITERS))
def test_every_format_gives_the_task_its_clients(tmp_path, format_):
  population = _image_population()
  if format_ == 'csv':
    (tmp_path / 'data.csv').write_text('client,label,pixels\n' + ''.join(
        f'{client},{r["label"]},{" ".join(map(str, r["pixels"]))}\n'
        for client, r in populations.interleaved(population)))
    options = dict(data_source='csv', data_path=str(tmp_path / 'data.csv'))
  elif format_ == 'npz':
    rows = populations.interleaved(population)
    arrays = {'pixels': np.array([r['pixels'] for _, r in rows]).reshape([-1, 28, 28]),
              'label': np.array([r['label'] for _, r in rows]),
              'client': np.array([client for client, _ in rows])}
    np.savez(tmp_path / 'data.npz', **{
        f'{name}_{part}': array for name, array in arrays.items()
        for part in ('train', 'test')}, class_names=np.arange(62))
    options = dict(data_source='npz', data_path=str(tmp_path / 'data.npz'),
                   client_field='client')
  else:
    options = populations.WRITERS[format_](tmp_path, population)
  if format_ in ('leaf', 'folder', 'npz'):
    options.update(image_field='pixels', label_field='label')
  if format_ == 'leaf':
    options.update(dark_ink=False)
  data = emnist_task.load(**options)
  assert data.num_classes == 62
  held_out = set(population) - set(data.train.client_ids)
  assert len(held_out) == (0 if format_ == 'npz' else 1)
  for client in data.train.client_ids:
    actual = data.train.examples(client)
    assert actual['x'].dtype == np.uint8 and actual['y'].dtype == np.int32
    np.testing.assert_array_equal(
        actual['x'].reshape([-1, 784]), [r['pixels'] for r in population[client]])
    assert actual['y'].tolist() == [r['label'] for r in population[client]]
  for client in held_out:
    assert data.held_out['test_clients']['y'].tolist() == [
        r['label'] for r in population[client]]


@pytest.mark.parametrize('options', [
    {}, {'partition': 'iid', 'num_clients': 10}, {'held_out_fraction': 0.3}])
def test_npz_without_a_test_part_holds_clients_out(tmp_path, options):
  rng = np.random.default_rng(0)
  path = tmp_path / 'f.npz'
  np.savez(path, x_train=rng.integers(256, size=[40, 28, 28]).astype(np.uint8),
           y_train=rng.integers(10, size=40), writer_train=np.repeat(np.arange(10), 4))
  data = emnist_task.load(data_source='npz', data_path=str(path), **options)
  out = 3 if 'held_out_fraction' in options else 1
  assert len(data.train.client_ids) == 10 - out
  assert list(data.held_out) == ['test_clients']
  assert len(data.held_out['test_clients']['y']) == 4 * out


@pytest.mark.parametrize('writers, known', [([1, 9, 1], ['1']), ([8, 9, 8], None)])
def test_test_part_has_the_images_of_clients_that_train(tmp_path, writers, known):
  x, y = np.zeros([4, 28, 28], np.uint8), np.array([0, 1, 0, 1])
  np.savez(tmp_path / 'f.npz', x_train=x, y_train=y, writer_train=y, x_test=x[:3],
           y_test=np.arange(3), writer_test=np.array(writers))
  data = emnist_task.load(data_source='npz', data_path=str(tmp_path / 'f.npz'))
  source = data.held_out_of_clients
  assert (source and list(source.client_ids)) == known
  if known:
    assert source.examples('1')['y'].tolist() == [0, 2]


def test_npz_with_a_test_part_takes_no_held_out_fraction(tmp_path):
  x, y = np.zeros([4, 28, 28], np.uint8), np.array([0, 1, 0, 1])
  np.savez(tmp_path / 'f.npz', x_train=x, y_train=y, writer_train=y, x_test=x, y_test=y)
  with pytest.raises(ValueError, match='held_out_fraction is not used: the data have'):
    emnist_task.load(data_source='npz', data_path=str(tmp_path / 'f.npz'),
                     held_out_fraction=0.5)


def test_leaf_images_have_dark_ink(tmp_path):
  rows = [dict(x=[1.0] * 783 + [0.25], y=3)]
  options = populations.leaf(tmp_path, {'a': rows, 'b': rows})
  for more, ink in (({}, 191), ({'dark_ink': True}, 191), ({'dark_ink': False}, 64)):
    data = emnist_task.load(**options, **more)
    client, = data.train.client_ids
    assert data.train.examples(client)['x'][0, 27, 27] == ink


def test_prepared_floats_need_dark_ink_to_be_given(tmp_path):
  rows = [dict(pixels=[1.0] * 784, label=3)]
  raw = open_source.open_raw('jsonl', fields=None, data_path=populations.jsonl(
      tmp_path, {'a': rows, 'b': rows})['data_path']).train
  path = populations.prepared(tmp_path / 'f.sqlite', raw)
  options = dict(data_source='sqlite', data_path=str(path))
  with pytest.raises(ValueError, match='needs --dark_ink or --nodark_ink'):
    emnist_task.load(**options)
  for dark_ink, ink in ((True, 0), (False, 255)):
    data = emnist_task.load(**options, dark_ink=dark_ink)
    client, = data.train.client_ids
    assert np.all(data.train.examples(client)['x'] == ink)


@pytest.mark.parametrize('change, message', [
    (dict(label=62), r'label must be in \[0, 62\), found 62 in example 0'),
    (dict(pixels=[256] + [0] * 783), r'pixels must be in \[0, 255\], found 256')])
def test_values_out_of_range_are_named_with_line_and_client(tmp_path, change, message):
  population = _image_population()
  population['w4'][0].update(change)
  options = populations.jsonl(tmp_path, population)
  train = emnist_task.load(**options).train
  assert 'w4' in train.client_ids
  with pytest.raises(ValueError, match="line 5, client 'w4': .*" + message):
    train.examples('w4')


def test_wrong_image_shape_is_named(tmp_path):
  population = _image_population()
  population['w4'][0].update(pixels=[0] * 783)
  options = populations.jsonl(tmp_path, population)
  with pytest.raises(
      ValueError, match=r"client 'w4': field 'pixels' must be of the shape \[784\]"):
    emnist_task.load(**options)
  rows = [dict(pixels=[0] * 100, label=0)]
  options = populations.jsonl(tmp_path, {'a': rows, 'b': rows})
  with pytest.raises(ValueError, match=r'must have the shape .28, 28. or .784., found'):
    emnist_task.load(**options)


@pytest.mark.parametrize('partition, options', [
    ('iid', {}), ('dirichlet', {'dirichlet_alpha': 0.1}),
    ('labels', {'labels_per_client': 1}), ('size', {'size_exponent': 2.0})])
def test_npz_files_without_clients_are_partitioned(tmp_path, partition, options):
  rng = np.random.default_rng(0)
  arrays = dict(x_train=rng.integers(256, size=[200, 28, 28]).astype(np.uint8),
                y_train=np.arange(200) % 4, x_test=np.zeros([5, 28, 28], np.uint8),
                y_test=np.zeros(5, int))
  path = tmp_path / 'f.npz'
  np.savez(path, **arrays)
  with pytest.raises(ValueError, match='no array writer_train.*pass --partition'):
    emnist_task.load(data_source='npz', data_path=path)
  data = emnist_task.load(data_source='npz', data_path=path, partition=partition,
                          num_clients=12, **options)
  assert len(data.train.client_ids) == 12 and 'simulated' in data.privacy_unit
  assert list(data.held_out) == ['test']
  assert data.label_counts.shape == (12, 4) and data.label_counts.sum() == 200
  for client in data.train.client_ids:
    counts = np.bincount(data.train.examples(client)['y'], minlength=4)
    np.testing.assert_array_equal(counts, data.label_counts[int(client)])
  np.savez(path, **arrays, writer_train=np.zeros(200, int))
  again = emnist_task.load(data_source='npz', data_path=path, partition=partition,
                           num_clients=12, **options)
  assert again.train.client_ids == data.train.client_ids
  unpartitioned = emnist_task.load(data_source='npz', data_path=path)
  assert unpartitioned.label_counts is None and list(unpartitioned.held_out) == ['test']
  # What is of the file may be private; what ships is not.
  assert data.test_of_files and unpartitioned.test_of_files
  built = registry.build('emnist', data_source='npz', data_path=path,
                         partition=partition, num_clients=12, **options)
  assert built.test_of_files and built.label_counts is not None
  assert not emnist_task.load(partition=partition, num_clients=12,
                              **options).test_of_files


def test_classes_of_npz_files_are_given_or_counted_with_a_warning(tmp_path):
  arrays = dict(x_train=np.zeros([6, 28, 28], np.uint8), y_train=np.arange(6) % 3,
                writer_train=np.arange(6) % 2, x_test=np.zeros([1, 28, 28], np.uint8),
                y_test=np.zeros(1, int))
  path = tmp_path / 'f.npz'
  np.savez(path, **arrays)
  options = dict(data_source='npz', data_path=path)
  counted = registry.build('emnist', **options)
  note, = counted.warnings
  assert 'counted from labels' in note and 'outside the guarantee' in note
  given = emnist_task.load(num_classes=5, **options)
  assert given.num_classes == 5 and not given.warnings
  with pytest.raises(ValueError, match=r'f.npz: y_train: .* in \[0, 2\), found 2'):
    emnist_task.load(num_classes=2, **options)
  np.savez(path, **arrays, class_names=np.array(list('abcd')))
  named = emnist_task.load(**options)
  assert named.num_classes == 4 and not named.warnings
