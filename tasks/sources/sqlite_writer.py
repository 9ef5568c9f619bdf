"""Writes clients to an SQLite file in TFF's format, so that killing it does no harm.

A client's examples and its line in client_metadata are of one transaction: after
whatever end, a client is there as a whole or not at all. All is written to
FILE.partial, which becomes FILE when it is complete.
"""

import os
import pathlib
import sqlite3
from typing import Mapping

import numpy as np

from tasks.sources import example_proto
from tasks.sources import records

_TABLES = """
CREATE TABLE examples (
    split_name TEXT NOT NULL, client_id TEXT NOT NULL,
    serialized_example_proto BLOB NOT NULL);
CREATE TABLE client_metadata (
    client_id TEXT NOT NULL, split_name TEXT NOT NULL, num_examples INTEGER NOT NULL);
CREATE UNIQUE INDEX client_metadata_by_client
    ON client_metadata (split_name, client_id);
CREATE TABLE element_spec (
    name TEXT NOT NULL, dtype TEXT NOT NULL, shape TEXT NOT NULL);
CREATE TABLE preparation (identity TEXT NOT NULL);
"""

# A transaction ends after so many bytes.
_TRANSACTION_BYTES = 4 * 2**20


class SqliteWriter:
  """A file that is being written. Use as a context."""

  def __init__(self, path: str | os.PathLike[str], *,
               element_spec: records.ElementSpec, identity: str):
    """Begins to write, or goes on where an earlier process ended.

    Args:
      path: The file; it must not exist yet.
      element_spec: Of every client.
      identity: Says of which data this is; what an earlier process began is
        continued only if it was of the same.

    Raises:
      ValueError: If the file exists, if FILE.partial is of other data, or a field
        can't be stored.
      OSError: If the file can't be written, or another process is writing it.
    """
    self._path = pathlib.Path(path)
    self._partial = self._path.with_name(self._path.name + '.partial')
    self._features = example_proto.features(element_spec)
    if self._path.exists():
      raise ValueError(f'{self._path} exists already')
    self._path.parent.mkdir(parents=True, exist_ok=True)
    self._waiting = 0
    try:
      self._connection = sqlite3.connect(
          self._partial, isolation_level=None, timeout=1.0)
    except sqlite3.Error as error:
      raise OSError(f'{self._partial} cannot be written: {error}') from error
    try:
      # A lock for as long as the connection lives, so that nobody writes as well.
      self._execute('PRAGMA locking_mode = EXCLUSIVE')
      self._execute('BEGIN EXCLUSIVE')
      self._begin(identity)
      self.commit()
    except BaseException:
      self._connection.close()
      raise
    self._done = {
        split: frozenset(row[0] for row in self._execute(
            'SELECT client_id FROM client_metadata WHERE split_name = ?', split))
        for split, in self._execute(
            'SELECT DISTINCT split_name FROM client_metadata').fetchall()}

  def _execute(self, statement: str, *parameters) -> sqlite3.Cursor:
    try:
      return self._connection.execute(statement, parameters)
    except sqlite3.Error as error:
      raise OSError(f'{self._partial} cannot be written: {error}') from error

  def _begin(self, identity: str) -> None:
    """Makes the tables in a transaction, or finds those of the same identity."""
    if self._execute('SELECT count(*) FROM sqlite_master').fetchone() == (0,):
      for statement in _TABLES.split(';'):
        self._execute(statement)
      for feature in self._features:
        self._execute(
            'INSERT INTO element_spec VALUES (?, ?, ?)', feature.name,
            feature.dtype.name, ','.join(map(str, feature.shape)))
      self._execute('INSERT INTO preparation VALUES (?)', identity)
      return
    if read_identity(self._connection) != identity:
      raise ValueError(
          f'{self._partial} was begun from other data or with other flags: delete it '
          'to start anew')

  def __enter__(self) -> 'SqliteWriter':
    return self

  def __exit__(self, *exception) -> None:
    # What is not yet committed is rolled back, as if the process had been killed.
    self._connection.close()

  def has(self, split_name: str, client_id: str) -> bool:
    """Whether an earlier process wrote this client."""
    return client_id in self._done.get(split_name, ())

  def write(self, split_name: str, client_id: str,
            examples: Mapping[str, np.ndarray]) -> None:
    """Writes a client.

    Args:
      split_name: 'train', say.
      client_id: A client that is not in this split yet.
      examples: As the element_spec says, at least one.

    Raises:
      ValueError: If there is no example, or the id has the character 0.
    """
    count = len(next(iter(examples.values())))
    if not count:
      raise ValueError('there are no examples')
    if '\0' in client_id:
      raise ValueError(f'the client id {client_id!r} has the character 0')
    for serialized in example_proto.serialize(self._features, examples):
      self._execute('INSERT INTO examples VALUES (?, ?, ?)', split_name, client_id,
                    serialized)
      self._waiting += len(serialized)
    self._execute('INSERT INTO client_metadata VALUES (?, ?, ?)', client_id, split_name,
                  count)
    if self._waiting > _TRANSACTION_BYTES:
      self.commit()

  def commit(self) -> None:
    """Makes permanent what was written."""
    self._execute('COMMIT')
    self._execute('BEGIN EXCLUSIVE')
    self._waiting = 0

  def finish(self) -> tuple[int, int]:
    """Makes the file complete, and gives it its name.

    Returns:
      How many clients and how many examples it has, of all splits.
    """
    self._execute('CREATE INDEX examples_by_client ON examples (split_name, client_id)')
    counts = self._execute(
        'SELECT count(*), sum(num_examples) FROM client_metadata').fetchone()
    self._execute('COMMIT')
    self._connection.close()
    os.replace(self._partial, self._path)
    return counts


def read_identity(connection: sqlite3.Connection) -> str | None:
  """The identity of the data in a file; None if it has none."""
  try:
    return connection.execute('SELECT identity FROM preparation').fetchone()[0]
  except (sqlite3.Error, TypeError):
    return None
