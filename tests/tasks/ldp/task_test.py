"""Tasks of locally private distillation: the records of clients, and public ones."""

import numpy as np
import pytest

from tasks.ldp import task as tasks_lib


@pytest.fixture(scope='module')
def images_file(tmp_path_factory):
  """An .npz file of 300 small images, each with its own pixels."""
  rng = np.random.default_rng(0)
  path = tmp_path_factory.mktemp('data') / 'images.npz'
  np.savez(path, x_train=rng.integers(256, size=[300, 9, 8], dtype=np.uint8),
           y_train=np.arange(300) % 5,
           x_test=rng.integers(256, size=[40, 9, 8], dtype=np.uint8),
           y_test=np.arange(40) % 5)
  return path


def _npz(path, **options):
  return tasks_lib.build('npz', data_path=path, **{'num_clients': 6, **options})


def _rows(arrays):
  return {image.tobytes() for images in arrays for image in images}


def test_embedded_digits_need_no_file():
  task = tasks_lib.build('digits')
  assert (task.num_clients, len(task.holdings), task.num_classes) == (50, 50, 10)
  assert task.public.shape == (143, 16, 16, 1) and task.public.dtype == np.uint8
  assert len(task.test) == 360 and len(task.validation) == 0
  assert sum(len(held) for held in task.holdings) == 1797 - 360 - 143
  assert task.notes == ()
  assert 'not people' in task.privacy_unit or 'simulated' in task.privacy_unit


def test_every_training_record_is_public_or_of_one_client(images_file):
  task = _npz(images_file)
  assert task.num_classes == 5 and task.public.shape == (30, 9, 8, 1)
  held = [part.x for part in task.holdings]
  assert sum(map(len, held)) == 270 and max(map(len, held)) - min(map(len, held)) <= 1
  # No two images of the file are the same.
  assert len(_rows(held)) == 270 and not _rows(held) & _rows([task.public])
  assert not (_rows(held) | _rows([task.public])) & _rows([task.test.x])


def test_labels_stay_with_their_images(images_file):
  task = _npz(images_file)
  with np.load(images_file) as data:
    truth = {image.tobytes(): label for name in ('train', 'test')
             for image, label in zip(data[f'x_{name}'], data[f'y_{name}'])}
  for part in (*task.holdings, task.test):
    assert all(truth[image.tobytes()] == label for image, label in zip(part.x, part.y))


def test_the_seed_decides_the_deal_and_not_the_test_records(images_file):
  one, again, other = (_npz(images_file, data_seed=seed) for seed in (1, 1, 2))
  np.testing.assert_array_equal(one.public, again.public)
  np.testing.assert_array_equal(one.holdings[3].x, again.holdings[3].x)
  assert not np.array_equal(one.public, other.public)
  assert _rows([one.test.x]) == _rows([other.test.x])


def test_validation_records_come_from_the_test_part_and_leave_it(images_file):
  task = _npz(images_file, validation_records=15)
  assert (len(task.validation), len(task.test)) == (15, 25)
  assert not _rows([task.validation.x]) & _rows([task.test.x])


def test_partitions_deal_records_unevenly(images_file):
  task = _npz(images_file, partition='labels', labels_per_client=2)
  assert all(len(np.unique(held.y)) <= 2 for held in task.holdings)
  assert sum(map(len, task.holdings)) == 270


def test_stand_ins_overlap_and_say_so(images_file):
  task = _npz(images_file, num_clients=40, stand_ins=5, records_per_client=100)
  assert (task.num_clients, len(task.holdings)) == (40, 5)
  assert all(len(held) == 100 == len(_rows([held.x])) for held in task.holdings)
  assert len(_rows([held.x for held in task.holdings])) < 500
  assert '40 owners are supposed' in task.notes[0]
  assert task.notes[0].name == 'stand-ins for clients'
  assert 'stand in' in task.privacy_unit


def _arrays(**changes):
  return {**dict(
      x_train=np.zeros([40, 9, 8], np.uint8), y_train=np.arange(40) % 3,
      x_test=np.zeros([9, 9, 8], np.uint8), y_test=np.arange(9) % 3), **changes}


@pytest.mark.parametrize('name, changes, given, classes, counted', [
    ('npz', dict(y_test=np.arange(9)), None, 9, True), ('npz', {}, 6, 6, False),
    ('npz', dict(class_names=np.array(list('abcde'))), None, 5, False),
    ('mnist', {}, None, 10, False), ('mnist', {}, 3, 3, False),
    ('mnist', dict(num_classes=np.array(4)), None, 4, False)])
def test_classes_are_public_or_the_task_says_that_they_were_counted(
    tmp_path, name, changes, given, classes, counted):
  np.savez(tmp_path / 'a.npz', **_arrays(**changes))
  task = tasks_lib.build(
      name, data_path=tmp_path / 'a.npz', num_clients=3, num_classes=given)
  assert task.num_classes == classes
  assert any('was counted from labels, private ones among them' in note
             for note in task.notes) == counted
  supposed = tasks_lib.build(
      name, data_path=tmp_path / 'a.npz', num_clients=9, stand_ins=2,
      records_per_client=5, num_classes=given)
  assert len(supposed.notes) == 1 + counted  # One is about stand-ins.


@pytest.mark.parametrize('options, message', [
    (dict(num_clients=0), 'num_clients .*0'),
    (dict(num_clients=271), 'num_clients .*271'),
    (dict(public_records=1), 'public_records .*1'),
    (dict(public_records=300), 'public_records .*300'),
    (dict(validation_records=40), 'validation_records .*40'),
    (dict(validation_records=-1), 'validation_records .*-1'),
    (dict(data_seed=-1), 'data_seed .*-1'),
    (dict(records_per_client=5), 'must be given together'),
    (dict(stand_ins=3), 'must be given together'),
    (dict(stand_ins=7, records_per_client=5), 'stand_ins .*7'),
    (dict(stand_ins=3, records_per_client=271), 'records_per_client .*271'),
    (dict(stand_ins=3, records_per_client=5, partition='iid'), 'not use partition'),
    (dict(partition='odd'), 'partition'), (dict(epsilon=3), 'does not use epsilon')])
def test_bad_options_are_named(images_file, options, message):
  with pytest.raises(ValueError, match=message):
    _npz(images_file, **options)


@pytest.mark.parametrize('changes, message', [
    (dict(x_train=np.zeros([4, 9, 8])), 'images must be uint8'),
    (dict(x_train=np.zeros([4, 5, 8], np.uint8)), 'height >= 8'),
    (dict(x_train=np.zeros([4, 64], np.uint8)), 'images must be uint8'),
    (dict(y_test=np.array([0, 2]), num_classes=np.array(2)), 'found 2 in row 1')])
def test_bad_files_are_named(tmp_path, changes, message):
  arrays = dict(x_train=np.zeros([4, 9, 8], np.uint8), y_train=np.arange(4) % 2,
                x_test=np.zeros([2, 9, 8], np.uint8), y_test=np.arange(2))
  np.savez(tmp_path / 'bad.npz', **{**arrays, **changes})
  with pytest.raises(ValueError, match=message):
    tasks_lib.build('npz', data_path=tmp_path / 'bad.npz', num_clients=1)


def test_bad_paths_and_names_are_named(tmp_path):
  with pytest.raises(ValueError, match='task must be one of'):
    tasks_lib.build('emnist')
  with pytest.raises(ValueError, match='needs data_path'):
    tasks_lib.build('npz')
  with pytest.raises(ValueError, match='does not use data_path'):
    tasks_lib.build('digits', data_path='x.npz')
  with pytest.raises(ValueError, match='does not exist'):
    tasks_lib.build('mnist', data_path=tmp_path / 'none.npz')


def test_a_failed_download_says_what_to_do(monkeypatch):
  import tensorflow as tf  # pylint: disable=g-import-not-at-top

  def fails():
    raise Exception('URL fetch failure')  # As Keras raises it.

  monkeypatch.setattr(tf.keras.datasets.mnist, 'load_data', fails)
  with pytest.raises(ValueError, match='URL fetch failure; pass data_path'):
    tasks_lib.build('mnist')


def test_keras_arrays_are_taken_as_they_come(monkeypatch):
  import tensorflow as tf  # pylint: disable=g-import-not-at-top
  x = np.random.default_rng(0).integers(256, size=[40, 32, 32, 3], dtype=np.uint8)
  y = np.arange(40, dtype=np.uint8)[:, np.newaxis] % 10  # Columns.
  monkeypatch.setattr(
      tf.keras.datasets.cifar10, 'load_data', lambda: ((x, y), (x[:20], y[:20])))
  task = tasks_lib.build('cifar10', num_clients=4)
  assert task.public.shape == (4, 32, 32, 3) and len(task.test) == 20
