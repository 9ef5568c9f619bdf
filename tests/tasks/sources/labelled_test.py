"""Tests of tasks.sources.labelled."""

import pathlib

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from tasks.sources import labelled
from tests import data_dir


def _arrays(**changes):
  """A small correct file's arrays; a change to None leaves an array out."""
  rng = np.random.default_rng(0)
  arrays = {
      'x_train': rng.integers(0, 256, [6, 28, 28]).astype(np.uint8),
      'y_train': np.array([0, 1, 2, 2, 1, 0], np.uint8),
      'writer_train': np.array([7, 7, 3, 3, 7, 9], np.int16),
      'x_test': rng.integers(0, 256, [3, 28, 28]).astype(np.uint8),
      'y_test': np.array([2, 0, 1], np.uint8),
      'writer_test': np.array([1, 3, 3], np.int16), **changes}
  return {name: a for name, a in arrays.items() if a is not None}


def _save(path, **changes):
  np.savez_compressed(path, **_arrays(**changes))
  return path


def _with(name, row, value, dtype=None):
  """A copy of the correct array with one entry replaced."""
  array = _arrays()[name]
  array = array.astype(dtype if dtype is not None else array.dtype)
  array[row] = value
  return array


def test_a_correct_file_comes_back(tmp_path):
  train, test, num_classes, _ = labelled.read(_save(tmp_path / 'f.npz'))
  expected = _arrays()
  for part, images in (('train', train), ('test', test)):
    np.testing.assert_array_equal(images.x, expected[f'x_{part}'])
    np.testing.assert_array_equal(images.y, expected[f'y_{part}'])
    np.testing.assert_array_equal(images.clients, expected[f'writer_{part}'])
    assert images.x.dtype == np.uint8 and images.y.dtype == np.int32
  assert num_classes == 3


def test_the_test_part_or_its_writers_may_be_absent(tmp_path):
  _, test, *_ = labelled.read(_save(tmp_path / 'f.npz', writer_test=None))
  assert test.clients is None
  path = _save(tmp_path / 'f.npz', x_test=None, y_test=None, writer_test=None)
  train, test, num_classes, _ = labelled.read(path)
  assert len(train.x) == 6 and test is None and num_classes == 3
  for left in ('x_test', 'y_test', 'writer_test'):
    gone = {name: None for name in ('x_test', 'y_test', 'writer_test') if name != left}
    with pytest.raises(ValueError, match='has no array .*_test'):
      labelled.read(_save(tmp_path / 'f.npz', **gone))


@pytest.mark.parametrize('changes, given, expected', [
    ({'num_classes': np.array(7)}, None, 7),
    ({'num_classes': np.array([7], np.uint8)}, None, 7),
    ({'class_names': np.array(list('abcde'))}, None, 5),
    ({'num_classes': np.array(5), 'class_names': np.array(list('abcde'))}, None, 5),
    ({'num_classes': np.array(7)}, 4, 4),
    ({}, 4, 4),
    # Counted from both parts.
    ({'y_test': np.array([2, 0, 4], np.uint8)}, None, 5),
    ({'y_train': np.zeros(6, int)}, None, 3)])
def test_classes_are_those_that_are_given_or_stated_or_counted(
    tmp_path, changes, given, expected):
  path = _save(tmp_path / 'f.npz', **changes)
  assert labelled.read(path, num_classes=given).num_classes == expected


def _stated(path):
  return labelled.stated_classes(path, labelled.arrays(path, (), labelled.CLASS_ARRAYS))


def test_a_file_that_states_no_classes_says_so(tmp_path):
  path = _save(tmp_path / 'f.npz')
  assert _stated(path) is None
  note, = labelled.read(path).notes
  path = _save(tmp_path / 'f.npz', num_classes=np.array(7))
  assert _stated(path) == 7 and not labelled.read(path).notes
  # It does not depend on the labels: no record can change it.
  path = _save(tmp_path / 'f.npz', num_classes=np.array(7), y_train=np.full(6, 900))
  assert _stated(path) == 7
  assert 'number of classes, 3, was counted from labels, private ones' in note
  assert 'outside the guarantee' in note


@pytest.mark.parametrize('num_classes', [1, 1001, 0, -3, 2.0, True])
def test_an_impossible_number_of_classes_is_named(tmp_path, num_classes):
  path = _save(tmp_path / 'f.npz')
  with pytest.raises(ValueError, match=f'num_classes must .*found {num_classes!r}'):
    labelled.read(path, num_classes=num_classes)
  with pytest.raises(ValueError, match=(
      r'f.npz: y_train: labels must be in \[0, 2\), found 2 in row 2')):
    labelled.read(path, num_classes=2)


@pytest.mark.parametrize('changes, message', [
    ({'num_classes': np.array(2.0)}, 'num_classes must be one integer, found float'),
    ({'num_classes': np.array([2, 3])}, r'num_classes must be one integer, .*\[2\]'),
    ({'num_classes': np.array(1)}, 'num_classes must be an integer from 2 to 1000'),
    ({'num_classes': np.array(4), 'class_names': np.array(list('abc'))},
     'class_names must be 4, found 3')])
def test_a_malformed_statement_of_classes_is_named(tmp_path, changes, message):
  path = _save(tmp_path / 'f.npz', **changes)
  for read in (_stated, labelled.read):
    with pytest.raises(ValueError, match=f'f.npz: {message}') as raised:
      read(path)
    assert '\n' not in str(raised.value)


def test_other_types_of_images_become_bytes(tmp_path):
  x = _arrays()['x_train']
  for other in (x / 255.0, (x / 255.0).astype(np.float32), x.astype(np.int64)):
    train, *_ = labelled.read(_save(tmp_path / 'f.npz', x_train=other))
    assert train.x.dtype == np.uint8
    np.testing.assert_array_equal(train.x, x)


@pytest.mark.parametrize('changes, message', [
    ({'x_train': None, 'writer_train': None}, 'no array x_train, writer_train'),
    ({'y_test': None}, 'no array y_test'),
    ({'x_train': np.zeros([6, 28, 27], np.uint8)},
     r'x_train must be \[examples, 28, 28\], found uint8 \[6, 28, 27\]'),
    ({'x_test': np.zeros([3, 28, 28, 3], np.uint8)}, 'x_test must be .examples'),
    ({'x_test': np.zeros([3, 784], np.uint8)}, 'x_test must be .examples'),
    ({'x_train': np.zeros([0, 28, 28], np.uint8)}, 'x_train is empty'),
    ({'x_train': np.zeros([6, 28, 28], bool)},
     r'x_train must be numbers \[records, ...\], found bool'),
    ({'x_train': _with('x_train', (4, 0, 0), 256, np.int32)},
     r'x_train must be in \[0, 255\], found 256 in row 4'),
    ({'x_train': _with('x_train', (4, 0, 0), -1, np.int32)}, 'found -1 in row 4'),
    ({'x_test': np.full([3, 28, 28], np.nan)},
     'x_test must be finite, found nan in row 0'),
    ({'x_test': np.full([3, 28, 28], np.inf)}, 'x_test must be finite'),
    ({'x_test': np.full([3, 28, 28], 1.5)}, r'x_test must be in \[0, 1\]'),
    ({'y_train': np.zeros([5], int)}, 'y_train: .* integer for each of 6 records, .*5'),
    ({'y_test': np.zeros([4], int)}, 'y_test: .* integer for each of 3 records, .*4'),
    ({'y_train': np.zeros([0], int)}, 'y_train: .* for each of 6 records, .*0'),
    ({'y_train': np.zeros([6, 1], int)}, 'y_train: labels must be one integer for'),
    ({'y_train': np.zeros([6])}, 'y_train: labels must be one integer .* float64'),
    ({'y_train': np.full([6], np.nan)}, 'y_train: labels must be one integer'),
    ({'y_train': np.array(list('abcdef'))}, 'y_train: labels must be one integer'),
    ({'y_train': _with('y_train', 3, -2, int)},
     r'y_train: labels must be in \[0, 1000\), found -2 in row 3'),
    ({'y_train': _with('y_train', 3, 10**12, int)},
     r'y_train: labels must be in \[0, 1000\), found 1000000000000 in row 3'),
    ({'y_train': np.zeros([6], int), 'y_test': np.zeros([3], int)},
     'f.npz: y has only the label 0: nothing to learn'),
    ({'y_test': _with('y_test', 1, 3), 'num_classes': np.array(3)},
     r'y_test: labels must be in \[0, 3\), found 3 in row 1'),
    ({'class_names': np.array(['a', 'b'])},
     r'y_train: labels must be in \[0, 2\), found 2'),
    ({'class_names': np.array([['a', 'b', 'c']])}, 'class_names must be a list'),
    ({'writer_train': np.zeros([7], int)},
     'writer_train must be .* for each of 6 records, .*7'),
    ({'writer_test': np.zeros([2], int)}, 'writer_test .* each of 3 records, .*2'),
    ({'writer_train': np.full([6], np.nan)},
     'writer_train must be one integer or string for each of 6 records, found float64'),
    ({'y_train': np.array([0, 'a', 2, 1, 1, 0], dtype=object)},
     'corrupted: .*allow_pickle')])
def test_a_malformed_file_is_named_with_its_array(tmp_path, changes, message):
  path = _save(tmp_path / 'f.npz', **changes)
  with pytest.raises(ValueError, match=message) as raised:
    labelled.read(path)
  assert str(path) in str(raised.value)
  assert '\n' not in str(raised.value)


@pytest.mark.parametrize('damage', [
    b'', b'text', b'PK\x03\x04' + b'\0' * 100, b'\x93NUMPY\x01\x00', 0.1, 0.5, 0.99])
def test_a_file_that_is_not_npz_or_was_cut_off_is_named(tmp_path, content, damage):
  path = tmp_path / 'f.npz'
  path.write_bytes(damage if isinstance(damage, bytes) else
                   content[:int(len(content) * damage)])
  with pytest.raises(ValueError, match='f.npz is not an npz file, or corr'):
    labelled.read(path)


def test_a_single_array_or_folder_or_missing_file_is_named(tmp_path):
  np.save(tmp_path / 'one.npy', np.arange(5))
  with pytest.raises(ValueError, match='one.npy is not an npz file'):
    labelled.read(tmp_path / 'one.npy')
  for path in (tmp_path, tmp_path / 'gone.npz'):
    with pytest.raises(ValueError, match=f'{path} does not exist'):
      labelled.read(path)


@pytest.fixture(name='content', scope='module')
def _content(tmp_path_factory):
  return _save(tmp_path_factory.mktemp('npz') / 'f.npz').read_bytes()


@hypothesis.settings(
    deadline=None, max_examples=300,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(position=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
@hypothesis.example(position=0.98, flip=128)  # In the name of an optional array.
def test_one_wrong_byte_is_an_error_or_harmless(tmp_path, content, position, flip):
  damaged = bytearray(content)
  damaged[int(position * len(content))] ^= flip
  path = pathlib.Path(tmp_path) / 'damaged.npz'
  path.write_bytes(damaged)
  try:
    train, test, *_ = labelled.read(path)
  except ValueError as error:
    assert 'damaged.npz' in str(error)
    assert '\n' not in str(error)
  else:
    np.testing.assert_array_equal(train.x, _arrays()['x_train'])
    np.testing.assert_array_equal(train.y, _arrays()['y_train'])
    np.testing.assert_array_equal(test.x, _arrays()['x_test'])


def test_damaged_lzma_member_of_a_real_file_is_an_error(tmp_path):
  content = bytearray(data_dir.require('unipen62_writers.npz').read_bytes())
  content[len(content) // 2] ^= 0xff
  path = tmp_path / 'damaged.npz'
  path.write_bytes(content)
  with pytest.raises(ValueError, match='damaged.npz is not an npz file'):
    labelled.read(path)


@pytest.mark.parametrize('name, examples, classes, writers', [
    ('mnist.npz', (60_000, 10_000), 10, (539, 297)),
    ('unipen62_writers.npz', (58_338, 6_383), 62, (318, 318))])
def test_real_files_are_read(name, examples, classes, writers):
  train, test, num_classes, _ = labelled.read(data_dir.require(name))
  assert (len(train.x), len(test.x)) == examples
  assert num_classes == classes
  assert (np.unique(train.clients).size, np.unique(test.clients).size) == writers


def test_rows_keep_their_clients_and_joined_parts_lose_them():
  data = labelled.Labelled(x=np.eye(3), y=np.arange(3), clients=np.array(list('abc')))
  some = data.rows(np.array([2, 0]))
  assert some.y.tolist() == [2, 0] and some.clients.tolist() == ['c', 'a']
  both = labelled.concatenated([data, some])
  assert len(both) == 5 and both.y.tolist() == [0, 1, 2, 2, 0] and both.clients is None
  assert both.rows(both.y == 2).clients is None
