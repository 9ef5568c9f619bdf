"""Data of the FedMD tasks: the parties' records, and that none is dealt twice."""

import numpy as np
import pytest

from tasks.fedmd import data as fedmd_data
from tests.tasks import official_file

Choice = fedmd_data.Choice


def _rows(data):
  """Records as a set of bytes, with their labels."""
  return {(x.tobytes(), int(y)) for x, y in zip(data.x, data.y)}


def _images(count, seed, shape=(28, 28)):
  return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def _assert_disjoint(data):
  sets = [*(_rows(party) for party in data.parties), _rows(data.test)]
  assert sum(map(len, sets)) == len(set().union(*sets))
  assert [len(s) for s in sets[:-1]] == [len(p) for p in data.parties]


@pytest.mark.parametrize('parties', [1, 3, 10])
def test_digits_are_dealt_out_evenly(parties):
  data = fedmd_data.digits(Choice(split='iid', num_clients=parties))
  assert len(data.parties) == parties and data.public_classes == 4
  assert {len(party) for party in data.parties} == {859 // parties}
  # Some of the little images are equal, so not by their bytes.
  assert sum(map(len, data.parties)) + len(data.test) <= 1797 - len(data.public)
  assert set(data.public.y) == {0, 1, 2, 3}
  assert set(data.test.y) == set(range(6)) and data.classes == 6
  assert data.public.x.shape[1:] == data.test.x.shape[1:] == (8, 8, 1)


def test_digits_noniid_have_one_digit_of_every_class():
  data = fedmd_data.digits(Choice(split='noniid', num_clients=4))
  assert data.classes == 3 and set(data.test.y) == {0, 1, 2}
  from sklearn import datasets  # pylint: disable=g-import-not-at-top
  digits = datasets.load_digits()
  images = np.rint(digits.images * (255 / 16)).astype(np.uint8)
  kind = {image.tobytes(): int(y) for image, y in zip(images, digits.target)}
  kinds = [{kind[x.tobytes()] for x in party.x} for party in data.parties]
  assert kinds == [{4, 6, 8}, {5, 7, 9}, {4, 6, 8}, {5, 7, 9}]
  for party in data.parties:
    assert len(set(np.bincount(party.y))) == 1  # Equally many of each class.
  assert not _rows(data.parties[0]) & _rows(data.parties[2])


def test_split_follows_from_its_seed_and_the_test_set_does_not():
  first, again, other = (
      fedmd_data.digits(Choice(split='iid', num_clients=2, seed=seed))
      for seed in (0, 0, 1))
  np.testing.assert_array_equal(first.parties[0].x, again.parties[0].x)
  assert _rows(first.parties[0]) != _rows(other.parties[0])
  np.testing.assert_array_equal(first.test.x, other.test.x)


def _write_letters(folder, *, writers=4, per_writer=12, **changes):
  names = np.array(list('0aAbBcdefz'))
  count = writers * per_writer
  arrays = {'class_names': names}
  for number, part in enumerate(('train', 'test')):
    arrays[f'x_{part}'] = _images(count, number)
    arrays[f'y_{part}'] = (np.arange(count) % len(names)).astype(np.uint8)
    arrays[f'writer_{part}'] = np.repeat(np.arange(writers), per_writer)
  np.savez(folder / 'unipen62_writers.npz', **{**arrays, **changes})
  np.savez(folder / 'mnist.npz', x_train=_images(30, 5), y_train=np.arange(30) % 10)
  return arrays


def test_letters_are_those_from_a_to_f(tmp_path):
  arrays = _write_letters(tmp_path)
  data = fedmd_data.mnist_letters(Choice(split='iid', num_clients=2), data_path=tmp_path)
  numbers = [arrays['class_names'].tolist().index(letter) for letter in 'abcdef']
  kept = np.isin(arrays['y_train'], numbers)
  assert sum(map(len, data.parties)) == kept.sum() // 2 * 2
  label = {x.tobytes(): numbers.index(y) for x, y in zip(
      arrays['x_train'][kept], arrays['y_train'][kept])}
  for party in data.parties:
    assert [label[x.tobytes()] for x in party.x] == party.y.tolist()
  _assert_disjoint(data)


def test_letters_noniid_are_of_the_writers_with_the_most(tmp_path):
  writer = np.array([3] * 20 + [7] * 8 + [5] * 12 + [9] * 8)
  arrays = _write_letters(tmp_path, writer_train=writer)
  data = fedmd_data.mnist_letters(
      Choice(split='noniid', num_clients=2), data_path=tmp_path)
  of = {x.tobytes(): w for x, w in zip(arrays['x_train'], writer)}
  assert [{of[x.tobytes()] for x in party.x} for party in data.parties] == [{3}, {5}]
  assert data.party == 'one writer'


def test_letters_come_from_the_official_emnist_where_it_is_given(tmp_path):
  official_file.write(tmp_path / 'emnist_all.sqlite', [
      # Digits and upper case are left out; 36 is the small a.
      (split, writer, official_file.example({
          'pixels': np.full(784, (label + (writer == 'f1')) / 100), 'label': label}))
      for split in ('all_train', 'all_test') for writer in ('f0', 'f1')
      for label in (3, 10, 36, 37, 38, 39, 40, 41, 42)])
  _write_letters(tmp_path)
  (tmp_path / 'unipen62_writers.npz').unlink()
  data = fedmd_data.mnist_letters(
      Choice(split='noniid', num_clients=2), data_path=tmp_path, cache_dir=tmp_path)
  assert [len(party) for party in data.parties] == [6, 6]
  for number, party in enumerate(data.parties):
    assert party.y.tolist() == [0, 1, 2, 3, 4, 5]
    # 1 is paper there, and 0 here.
    wanted = [round((1 - (label + number) / 100) * 255) for label in range(36, 42)]
    np.testing.assert_allclose(party.x[:, 0, 0, 0], wanted, atol=1)
  assert len(data.test) == 12


def _write_cifar(folder, fine_per_class=5, per_fine=8):
  np.savez(folder / 'cifar10_subset.npz', x_train=_images(20, 1, (32, 32, 3)),
           y_train=np.arange(20) % 10)
  arrays = {}
  for number, part in enumerate(('train', 'test')):
    # Fine classes 0 to 29 in superclasses 0 to 5, and those of the iid task.
    fine = np.repeat([*range(30), 63, 71, 82], per_fine)
    arrays[f'x_{part}'] = _images(len(fine), 7 + number, (32, 32, 3))
    arrays[f'y_fine_{part}'] = fine
    arrays[f'y_coarse_{part}'] = np.where(fine < 30, fine // fine_per_class, 9)
  np.savez(folder / 'cifar100_subset.npz', **arrays)
  return arrays


def test_cifar_iid_has_the_six_fine_classes(tmp_path):
  arrays = _write_cifar(tmp_path)
  data = fedmd_data.cifar(Choice(split='iid', num_clients=4), data_path=tmp_path)
  fine = {x.tobytes(): y for x, y in zip(arrays['x_train'], arrays['y_fine_train'])}
  actual = [(fine[x.tobytes()], y) for p in data.parties for x, y in zip(p.x, p.y)]
  assert len(actual) == 48
  assert set(actual) == set(zip(fedmd_data.CIFAR_CLASSES, range(6)))
  _assert_disjoint(data)


@pytest.mark.parametrize('parties, size', [(3, 48), (5, 48), (10, 24)])
def test_cifar_noniid_has_one_fine_class_of_every_superclass(tmp_path, parties, size):
  arrays = _write_cifar(tmp_path)
  data = fedmd_data.cifar(Choice(split='noniid', num_clients=parties), data_path=tmp_path)
  fine = {x.tobytes(): y for x, y in zip(arrays['x_train'], arrays['y_fine_train'])}
  for number, party in enumerate(data.parties):
    kinds = [fine[x.tobytes()] for x in party.x]
    assert set(zip(kinds, party.y.tolist())) == {
        (5 * c + number % 5, c) for c in range(6)}
    assert len(party) == size
  _assert_disjoint(data)


def test_default_records_in_all_are_at_most_those_of_the_paper(tmp_path, monkeypatch):
  _write_cifar(tmp_path)
  monkeypatch.setattr(fedmd_data, '_CIFAR_IN_ALL', 40)
  for split, size in (('iid', 10), ('noniid', 6)):
    data = fedmd_data.cifar(Choice(split=split, num_clients=4), data_path=tmp_path)
    assert {len(party) for party in data.parties} == {size}
    data = fedmd_data.cifar(Choice(split=split, num_clients=4, records_per_client=12),
                            data_path=tmp_path)
    assert {len(party) for party in data.parties} == {12}


@pytest.mark.parametrize('choice, message', [
    (Choice(split='iid', num_clients=1000), 'num_clients=1000 with 1 .* the 859'),
    (Choice(split='iid', num_clients=10, records_per_client=86),
     'num_clients=10 with 86 records each are more than the 859'),
    (Choice(split='noniid', num_clients=2, records_per_client=40),
     'a multiple of the 3'),
    (Choice(split='noniid', num_clients=1000), 'num_clients=1000 with 1 records')])
def test_too_many_parties_or_records_are_named(choice, message):
  with pytest.raises(ValueError, match=message):
    fedmd_data.digits(choice)


@pytest.mark.parametrize('changes, message', [
    (dict(x_train=np.zeros([48, 28, 28], np.float32)), 'images must be uint8'),
    (dict(y_train=np.zeros([47], np.uint8)),
     'y_train: labels must be one integer for each'),
    (dict(y_train=np.full([48], -1)),
     r'y_train: labels must be in \[0, 32768\), found -1'),
    (dict(writer_train=np.zeros([3], int)), 'writer_train must be .* for each of 48'),
    (dict(class_names=np.array(list('xyz'))), 'class_names must have a, b'),
    (dict(y_test=np.zeros([48], np.uint8)), 'has no image of class')])
def test_bad_arrays_are_named_with_their_file(tmp_path, changes, message):
  _write_letters(tmp_path, **changes)
  with pytest.raises(ValueError, match=message) as caught:
    fedmd_data.mnist_letters(Choice(split='iid', num_clients=2), data_path=tmp_path)
  assert 'unipen62_writers.npz' in str(caught.value)


def test_letters_noniid_refuse_impossible_choices(tmp_path):
  _write_letters(tmp_path)
  for choice, message in (
      (Choice(split='noniid', num_clients=5),
       'num_clients must be <= 4 writers, found 5'),
      (Choice(split='noniid', num_clients=2, records_per_client=3), 'is not used')):
    with pytest.raises(ValueError, match=message):
      fedmd_data.mnist_letters(choice, data_path=tmp_path)


def test_missing_files_are_named(tmp_path):
  with pytest.raises(ValueError, match='mnist.npz does not exist'):
    fedmd_data.mnist_letters(Choice(split='iid', num_clients=2), data_path=tmp_path)
  with pytest.raises(ValueError, match='must hold cifar10.npz or cifar10_subset.npz'):
    fedmd_data.cifar(Choice(split='iid', num_clients=2), data_path=tmp_path)
