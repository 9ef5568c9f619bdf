"""TFF's official federated EMNIST, an SQLite file.

3,400 writers and 62 classes, or 3,383 writers and 10 digits; every writer has
training and test examples. Images are dark on light: 1 is paper.
"""

import os

from tasks.emnist import image_records
from tasks import official
from tasks.sources import sqlite as source_sqlite

FILE = official.File(
    what='federated EMNIST', name='emnist_all.sqlite', load='emnist.load_data')

IMAGE_FIELD, LABEL_FIELD = 'pixels', 'label'


def num_classes(only_digits: bool) -> int:
  return 10 if only_digits else 62


def open_split(path: str | os.PathLike[str], part: str, *,
               only_digits: bool) -> source_sqlite.SqliteSource:
  """One part of the official file.

  Args:
    path: The decompressed SQLite file.
    part: 'train' or 'test'.
    only_digits: Whether to read the 10 digits, or all 62 classes.

  Returns:
    A raw source of the fields of image_records, with dark ink.

  Raises:
    ValueError: If the file is missing, corrupted or in another format.
  """
  kind = 'digits_only' if only_digits else 'all'
  return source_sqlite.SqliteSource(
      path, f'{kind}_{part}',
      fields=image_records.fields(IMAGE_FIELD, LABEL_FIELD))
