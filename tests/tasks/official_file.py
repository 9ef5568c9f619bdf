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


def write(path: pathlib.Path, rows: Iterable[Row]) -> None:
  """Writes (split, client, serialized record) rows to a new file."""
  rows = list(rows)
  connection = sqlite3.connect(path)
  with connection:
    connection.execute(
        'CREATE TABLE examples (split_name TEXT NOT NULL, client_id TEXT NOT '
        'NULL, serialized_example_proto BLOB NOT NULL)')
    connection.execute(
        'CREATE TABLE client_metadata (client_id TEXT NOT NULL, split_name '
        'TEXT NOT NULL, num_examples INTEGER NOT NULL)')
    connection.executemany('INSERT INTO examples VALUES (?, ?, ?)', rows)
    for client, split in sorted({(row[1], row[0]) for row in rows}):
      count = sum(row[:2] == (split, client) for row in rows)
      connection.execute(
          'INSERT INTO client_metadata VALUES (?, ?, ?)', (client, split, count))
  connection.close()
