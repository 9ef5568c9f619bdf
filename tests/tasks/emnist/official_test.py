"""Tests of TFF's official EMNIST, on a small file in its format."""

import lzma
import sqlite3
import urllib.error

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tasks import registry, task
from tasks.emnist import task as emnist_task
from tests.tasks import official_file


def _example(pixels, label):
  """Serializes one example: 1.0 is the white paper."""
  return official_file.example({'pixels': pixels, 'label': label})


def _write(folder, rows):
  """Writes emnist_all.sqlite with (split, client, serialized) rows."""
  official_file.write(folder / emnist_task.OFFICIAL.name, rows)


def _paper(row, column, ink):
  """A white page with one spot of ink."""
  pixels = np.ones([28, 28])
  pixels[row, column] = 1.0 - ink
  return pixels


def _train(folder, only_digits):
  """The task's training examples of a file in a folder."""
  return emnist_task.open_official(
      folder / emnist_task.OFFICIAL.name, 'train', only_digits=only_digits)


@pytest.fixture(name='cache')
def _cache(tmp_path):
  rows = []
  for kind, labels in (('all', (0, 35, 61)), ('digits_only', (0, 5, 9))):
    for client in ('f0000_14', 'f0001_41'):
      for label in labels:
        rows.append((f'{kind}_train', client, _example(
            _paper(label % 28, 3, 1.0), label)))
      rows.append((f'{kind}_test', client, _example(_paper(2, 4, 0.2), labels[0])))
  _write(tmp_path, rows)
  return tmp_path


def test_ink_becomes_255_and_paper_0(cache):
  source = _train(cache, only_digits=True)
  assert source.client_ids == ('f0000_14', 'f0001_41')
  examples = source.examples('f0001_41')
  assert examples['x'].dtype == np.uint8 and examples['y'].dtype == np.int32
  assert examples['x'].shape == (3, 28, 28)
  assert examples['y'].tolist() == [0, 5, 9]
  for image, label in zip(examples['x'], examples['y']):
    expected = np.zeros([28, 28])
    expected[label, 3] = 255
    np.testing.assert_array_equal(image, expected)


def test_tff_reads_the_same_examples(cache):
  theirs, _ = tff.simulation.datasets.emnist.load_data(
      only_digits=False, cache_dir=str(cache))
  ours = _train(cache, only_digits=False)
  assert list(ours.client_ids) == theirs.client_ids
  for client in ours.client_ids:
    expected = list(theirs.create_tf_dataset_for_client(client).as_numpy_iterator())
    examples = ours.examples(client)
    assert examples['y'].tolist() == [e['label'] for e in expected]
    np.testing.assert_allclose(
        1.0 - examples['x'] / 255.0, [e['pixels'] for e in expected],
        atol=0.5 / 255 + 1e-6)


@pytest.mark.parametrize('only_digits, classes', [(True, 10), (False, 62)])
def test_task_from_the_cache(cache, only_digits, classes):
  built = registry.build(
      'emnist', data_source='official', cache_dir=str(cache), only_digits=only_digits)
  assert len(built.train.client_ids) == 2
  assert list(built.held_out) == ['test_examples']
  held_out = built.held_out['test_examples']
  assert held_out['x'].shape == (2, 28, 28)
  assert held_out['x'][0, 2, 4] == 51
  assert built.model.initial_weights(0)[-1].shape == (classes,)


@pytest.mark.parametrize('name, serialized, message', [
    ('large label', _example(np.ones([28, 28]), 10),
     r'label must be in \[0, 10\), found 10'),
    ('negative label', _example(np.ones([28, 28]), -1), r'label must be in \[0, 10\)'),
    ('white above 1', _example(np.full([28, 28], 1.1), 1), r'must be in \[0, 1\]'),
    ('nan', _example(np.full([28, 28], np.nan), 1), r'pixels must be in \[0, 1\]'),
    ('small', _example(np.ones([27, 28]), 1),
     r"not an example with 'pixels' float32 \[784\], 'label'"),
    ('no protobuf', b'not a protocol buffer', "not an example with 'pixels'"),
    ('nothing', tf.train.Example().SerializeToString(), "an example with 'pixels'")])
def test_bad_examples_name_file_and_client(tmp_path, name, serialized, message):
  del name
  _write(tmp_path, [
      ('digits_only_train', 'f0000_00', _example(np.ones([28, 28]), 1)),
      ('digits_only_train', 'f0007_00', serialized)])
  source = _train(tmp_path, only_digits=True)
  source.examples('f0000_00')
  with pytest.raises(task.BadClientError, match=message) as raised:
    source.examples('f0007_00')
  assert emnist_task.OFFICIAL.name in str(raised.value)
  assert 'f0007_00' in str(raised.value)
  assert '\n' not in str(raised.value)


def test_bad_clients_are_skipped_and_counted(tmp_path):
  rows = [(split, client, _example(np.ones([28, 28]), label))
          for split in ('digits_only_train', 'digits_only_test')
          for client, label in (('f0000_00', 1), ('f0007_00', 62))]
  _write(tmp_path, rows)
  with pytest.raises(task.BadClientError, match="'f0007_00'.* found 62"):
    emnist_task.load(data_source='official', cache_dir=tmp_path, only_digits=True)
  data = emnist_task.load(
      data_source='official', cache_dir=tmp_path, only_digits=True, skip_bad_clients=True)
  assert len(data.held_out['test_examples']['y']) == 1
  assert list(data.skips.clients) == ['f0007_00']
  assert 'found 62' in data.skips.describe()


@pytest.mark.parametrize('error', [
    urllib.error.URLError('no network'), lzma.LZMAError('corrupt input'),
    sqlite3.DatabaseError('malformed'), TimeoutError('timed out')])
def test_failed_download_names_the_file_and_its_folder(tmp_path, monkeypatch, error):
  def fail(cache_dir):
    # What TFF leaves behind when the connection breaks.
    with open(f'{cache_dir}/{emnist_task.OFFICIAL.name}', 'wb') as f:
      f.write(b'half')
    raise error

  monkeypatch.setattr(tff.simulation.datasets.emnist, 'load_data', fail)
  cache = tmp_path / 'cache'
  with pytest.raises(ValueError, match='cannot be downloaded') as raised:
    emnist_task.load(data_source='official', cache_dir=cache)
  for part in (str(cache), 'https://', emnist_task.OFFICIAL.name + '.lzma', str(error)):
    assert part in str(raised.value)
  assert '\n' not in str(raised.value)
  assert not list(cache.iterdir())  # Else it would be taken for the data.


def test_a_download_ends_up_in_the_cache(tmp_path, cache, monkeypatch):
  content = (cache / emnist_task.OFFICIAL.name).read_bytes()

  def download(cache_dir):
    with open(f'{cache_dir}/{emnist_task.OFFICIAL.name}', 'wb') as f:
      f.write(content)

  monkeypatch.setattr(tff.simulation.datasets.emnist, 'load_data', download)
  path = emnist_task.OFFICIAL.find_or_download(tmp_path / 'new')
  assert path.read_bytes() == content
  assert list((tmp_path / 'new').iterdir()) == [path]
