"""TFF's official federated EMNIST, read from its SQLite file.

3,400 writers and 62 classes, or 3,383 writers and 10 digits; every writer has
training and test examples.
"""

import lzma
import os
import pathlib
import socket
import sqlite3
import tempfile
from typing import Sequence

import numpy as np
import tensorflow as tf

from tasks import sources

FILE_NAME = 'emnist_all.sqlite'
URL = f'https://storage.googleapis.com/tff-datasets-public/{FILE_NAME}.lzma'

ELEMENT_SPEC = {
    'x': (np.dtype(np.uint8), (28, 28)),
    'y': (np.dtype(np.int32), ()),
}

_FEATURES = {
    'pixels': tf.io.FixedLenFeature([28, 28], tf.float32),
    'label': tf.io.FixedLenFeature([], tf.int64),
}


def num_classes(only_digits: bool) -> int:
  return 10 if only_digits else 62


def open_split(path: str | os.PathLike[str], part: str, *,
               only_digits: bool) -> sources.SqliteSource:
  """One part of the official file.

  Args:
    path: The decompressed SQLite file.
    part: 'train' or 'test'.
    only_digits: Whether to read the 10 digits, or all 62 classes.

  Returns:
    A source of the features 'x', uint8 [28, 28] with ink 255, and 'y', int32.

  Raises:
    ValueError: If the file is missing, corrupted or in another format.
  """
  kind = 'digits_only' if only_digits else 'all'
  classes = num_classes(only_digits)
  return sources.SqliteSource(
      path, f'{kind}_{part}', element_spec=ELEMENT_SPEC,
      decode=lambda serialized: _decode(serialized, classes))


def _decode(serialized: Sequence[bytes], classes: int) -> dict[str, np.ndarray]:
  """Serialized tf.train.Examples -> 'x' and 'y', one row for each."""
  try:
    parsed = tf.io.parse_example(tf.constant(serialized, tf.string), _FEATURES)
  except tf.errors.InvalidArgumentError as error:
    # TF's message goes on over several lines, with the operation's name.
    raise ValueError(
        f'not an example with pixels [28, 28] and label: '
        f'{" ".join(error.message.split())[:200]}') from error
  pixels, label = parsed['pixels'].numpy(), parsed['label'].numpy()
  # Written so that NaN fails too.
  if not np.all((pixels >= 0) & (pixels <= 1)):
    raise ValueError('pixels must be in [0, 1]')
  if np.any((label < 0) | (label >= classes)):
    raise ValueError(
        f'label must be in [0, {classes}), found {label.min()} to '
        f'{label.max()}')
  # The official images are dark on light (1 is paper); MNIST has ink near 1.
  return {'x': np.rint((1.0 - pixels) * 255.0).astype(np.uint8),
          'y': label.astype(np.int32)}


def find_or_download(cache_dir: str | os.PathLike[str] | None) -> pathlib.Path:
  """The path of the SQLite file, downloaded by TFF if it is not in cache_dir.

  Args:
    cache_dir: The folder; None means TFF's own, .tff in the home directory.

  Raises:
    ValueError: If the download fails; says which file to put where.
  """
  folder = pathlib.Path.home() / '.tff' if cache_dir is None else pathlib.Path(
      cache_dir)
  path = folder / FILE_NAME
  if path.is_file():
    return path
  timeout = socket.getdefaulttimeout()
  try:
    folder.mkdir(parents=True, exist_ok=True)
    # TFF writes to the final name from the first byte on, and would take the
    # remains of a broken download for the data. Hence a folder of our own.
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
      socket.setdefaulttimeout(60)
      _tff_load_data(scratch)
      os.replace(pathlib.Path(scratch) / FILE_NAME, path)
  except (OSError, EOFError, lzma.LZMAError, sqlite3.Error) as error:
    raise ValueError(
        f'federated EMNIST is not in {folder} and cannot be downloaded '
        f'({error}): download {URL}, decompress it with unlzma, and put it '
        f'there as {FILE_NAME}') from error
  finally:
    socket.setdefaulttimeout(timeout)
  return path


def _tff_load_data(cache_dir: str) -> None:
  """Lets TFF download the file into cache_dir and open it."""
  # TFF takes seconds to import, and is not needed once the file is there.
  import tensorflow_federated as tff  # pylint: disable=g-import-not-at-top
  tff.simulation.datasets.emnist.load_data(cache_dir=cache_dir)
