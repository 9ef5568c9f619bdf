"""Checksums in the SQLite files that `store` and `rosters` write.

They find accidents (a bit that flipped, a file that was cut off), not forgery: a file
is as trustworthy as its folder. Neither kind makes a start or a round read more than it
uses, so a start doesn't depend on the size of the file:

* A client's examples have one in the column `checksum` of `client_metadata`. It is
  verified whenever they are read, by Python or by a graph.
* Everything that opening a split reads has a SHA-256 in the table
  `checksums(split_name, clients_order, sha256)`, verified at each opening: the ids in
  either of their orders, the names of the splits, the fields, and what was skipped.

So damage is found when, and only when, what is damaged would be used.
"""

import hashlib
import sqlite3
from typing import Sequence

import numpy as np
import tensorflow as tf

from tasks.sources import ids as ids_lib

# The orders in which clients are read: of the file, or sorted.
ORDERS = ('rowid', 'client_id COLLATE BINARY')

# In the header, for files in which the name of a table is damaged: 'TFFP' in ASCII.
_APPLICATION = 0x54464650
# Without a table of ours, a file is from elsewhere.
_TABLES = ('element_spec', 'preparation', 'roster', 'skipped')
_TABLE = 'checksums'
# TensorFlow gives the 64-bit FarmHash modulo this, which is nearly all of it.
_BUCKETS = 2**63 - 1
# Number of ids that are read at a time.
_BATCH = 4096


def hashes(serialized: tf.Tensor | Sequence[bytes]) -> tf.Tensor:
  """Int64 [n] in [0, 2^63), the hash of each of n texts."""
  return tf.strings.to_hash_bucket_fast(serialized, _BUCKETS)


def of(serialized: tf.Tensor | Sequence[bytes]) -> tf.Tensor:
  """The checksum of a client's examples in their order, int64 []; pure TensorFlow.

  Args:
    serialized: String [n], the examples.

  Returns the sum over the examples of hash times number, counted from 1, modulo 2^64:
  one that is changed, missing, moved or there twice makes another sum.
  """
  count = tf.size(serialized, out_type=tf.int64)
  return tf.reduce_sum(hashes(serialized) * tf.range(1, count + 1))


def of_each(serialized: Sequence[bytes], lengths: Sequence[int]) -> list[int]:
  """The checksums `of` clients, one after the other, of numbers of examples >= 1."""
  starts = np.cumsum([0, *lengths])[:-1]
  numbers = np.arange(len(serialized)) - np.repeat(starts, lengths) + 1
  return np.add.reduceat(hashes(serialized).numpy() * numbers, starts).tolist()


def signed(total: int) -> int:
  """An integer modulo 2^64, as SQLite and TensorFlow hold it."""
  return (total + 2**63) % 2**64 - 2**63


def tables(connection: sqlite3.Connection) -> set[str]:
  """The names of a file's tables."""
  return {name for name, in connection.execute(
      "SELECT name FROM sqlite_master WHERE type = 'table'")}


def are_in(connection: sqlite3.Connection) -> bool:
  """Whether a file was written with checksums, even if their table is damaged."""
  application, = connection.execute('PRAGMA application_id').fetchone()
  return application == _APPLICATION or not tables(connection).isdisjoint(
      (_TABLE, *_TABLES))


def read_ids(connection: sqlite3.Connection, split_name: str, order: str) -> ids_lib.Ids:
  """The clients of a split in one of ORDERS. Raises ValueError if one is no text."""
  clients = connection.execute('SELECT DISTINCT client_id FROM client_metadata WHERE '
                               f'split_name = ? ORDER BY {order}', [split_name])
  return ids_lib.Ids([client for client, in rows]
                     for rows in iter(lambda: clients.fetchmany(_BATCH), []))


def seal(connection: sqlite3.Connection) -> None:
  """Writes what `verify` compares, as the last change of a file."""
  execute = connection.execute
  execute(f'PRAGMA application_id = {_APPLICATION}')
  execute(f'CREATE TABLE {_TABLE} (split_name TEXT NOT NULL, clients_order TEXT NOT '
          'NULL, sha256 TEXT NOT NULL)')
  execute(f"INSERT INTO {_TABLE} SELECT DISTINCT split_name, clients_order.column1, '' "
          f'FROM client_metadata, (VALUES (?), (?)) AS clients_order', ORDERS)
  for split_name, order in execute(
      f'SELECT split_name, clients_order FROM {_TABLE}').fetchall():
    digest = _digest(connection, split_name, read_ids(connection, split_name, order))
    execute(f'UPDATE {_TABLE} SET sha256 = ? WHERE split_name = ? AND '
            'clients_order = ?', (digest, split_name, order))


def verify(connection: sqlite3.Connection, split_name: str, order: str,
           ids: ids_lib.Ids) -> None:
  """Raises ValueError unless all that opening a split reads is as it was written."""
  expected, = connection.execute(
      f'SELECT sha256 FROM {_TABLE} WHERE split_name = ? AND clients_order = ?',
      (split_name, order)).fetchone() or [None]
  if expected != _digest(connection, split_name, ids):
    raise ValueError(f'split {split_name!r} does not have its checksum')


def split_names(connection: sqlite3.Connection) -> list[str]:
  """The splits that have checksums, sorted."""
  return [name for name, in connection.execute(
      f'SELECT DISTINCT split_name FROM {_TABLE} ORDER BY 1')]


def _digest(connection: sqlite3.Connection, split_name: str, ids: ids_lib.Ids) -> str:
  digest = hashlib.sha256(repr([split_name, split_names(connection)]).encode())
  for table in sorted(tables(connection).intersection(_TABLES)):
    rows = connection.execute(f'SELECT * FROM {table} ORDER BY rowid').fetchall()
    digest.update(repr([table, rows]).encode())
  ids_lib.update(digest, ids)
  return digest.hexdigest()
