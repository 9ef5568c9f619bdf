"""Small files in the SQLite format of TFF's official data sets."""

from collections.abc import Iterable, Mapping
import pathlib
import sqlite3
from typing import Any

import numpy as np
import tensorflow as tf

Row = tuple[str, str, bytes]


def example(features: Mapping[str, Any]) -> bytes:
  """Serializes a record of texts, floats and integers as TFF's files have them."""
  record = tf.train.Example()
  for name, value in features.items():
    feature = record.features.feature[name]
    if isinstance(value, str):
      feature.bytes_list.value.append(value.encode())
    elif isinstance(value, int):
      feature.int64_list.value.append(value)
    else:
      feature.float_list.value.extend(np.ravel(value))
  return record.SerializeToString()


def write(path: pathlib.Path, rows: Iterable[Row],
          metadata: Iterable[tuple[str, str]] | None = None,
          index: bool = False) -> pathlib.Path:
  """Writes rows to a new file.

  Args:
    path: Path of the file, which is returned.
    rows: (split, client, serialized record).
    metadata: (client, split) pairs to list; None for those of the rows.
    index: Whether the file gets an index by client.
  """
  rows = list(rows)
  if metadata is None:
    metadata = {(client, split) for split, client, _ in rows}
  connection = sqlite3.connect(path)
  with connection:
    connection.execute(
        'CREATE TABLE examples (split_name TEXT NOT NULL, client_id TEXT NOT '
        'NULL, serialized_example_proto BLOB NOT NULL)')
    connection.execute(
        'CREATE TABLE client_metadata (client_id TEXT NOT NULL, split_name '
        'TEXT NOT NULL, num_examples INTEGER NOT NULL)')
    connection.executemany('INSERT INTO examples VALUES (?, ?, ?)', rows)
    for client, split in sorted(metadata):
      count = sum(row[:2] == (split, client) for row in rows)
      connection.execute(
          'INSERT INTO client_metadata VALUES (?, ?, ?)', (client, split, count))
    if index:
      connection.execute('CREATE INDEX i ON examples (client_id, split_name)')
  connection.close()
  return path
