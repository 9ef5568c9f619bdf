"""Converts clients' files to SQLite in TFF's format, once, as they are read.

Rows go into the file in their order, whatever their clients; an index then finds those
of a client. The file gets its name when it is complete: a conversion that is killed
leaves nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
import contextlib
import hashlib
import json
import os
import pathlib
import sqlite3
import tempfile
from typing import Any

import tqdm

from tasks import task
from tasks.sources import columns as columns_lib
from tasks.sources import example_proto
from tasks.sources import janitor
from tasks.sources import records
from tasks.sources import rows as rows_lib
from tasks.sources import sqlite

# The file is not visible before it is complete, so it need not survive a crash. The
# deleted rows, of clients that are left out, must not stay in it.
_SETUP = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
PRAGMA secure_delete = ON;
CREATE TABLE examples (
    split_name TEXT NOT NULL, client_id TEXT NOT NULL,
    serialized_example_proto BLOB NOT NULL);
CREATE TABLE client_metadata (
    client_id TEXT NOT NULL, split_name TEXT NOT NULL, num_examples INTEGER NOT NULL,
    place TEXT NOT NULL);
CREATE TABLE element_spec (
    name TEXT NOT NULL, dtype TEXT NOT NULL, shape TEXT NOT NULL,
    as_bytes INTEGER NOT NULL);
CREATE TABLE skipped (client_id TEXT, message TEXT NOT NULL);
CREATE TABLE preparation (identity TEXT NOT NULL, sha256 TEXT NOT NULL);
BEGIN;
"""
_BATCH = 1000
_ANOTHER = ValueError('another bad record')
# TensorFlow takes a second to parse an example with this many.
_MAX_FIELDS = 5000


def identity_of(path: str | os.PathLike[str]) -> str | None:
  """The identity of its data that `write` recorded in a file; None without one."""
  try:
    with sqlite.connected(path) as connection:
      return connection.execute('SELECT identity FROM preparation').fetchone()[0]
  except (ValueError, TypeError):
    return None


def write(path: str | os.PathLike[str], parts: Mapping[str, rows_lib.Reader], *,
          fields: records.Fields, skips: task.Skips, identity: str = '',
          states: Sequence | None = None, for_store: bool = False) -> tuple[int, int]:
  """Converts populations into the splits of one new file.

  Args:
    path: The file; an existing one is replaced when the new one is complete.
    parts: Name of a split -> its reader.
    fields: The fields to copy; None copies all fields of the first row, and then every
      row must have the same.
    skips: The treatment of bad rows and their clients.
    identity: Recorded in the file.
    states: The states of the files of each part that belong to `identity`; None for the
      present ones. If they differ in the end, nothing is written.
    for_store: Whether only `store` reads the file: then it says where each client was
      read, for messages, and holds lists of numbers as bytes, for speed.

  Returns:
    The numbers of clients and of examples in the file.

  Raises:
    ValueError: On bad data that are not to be skipped. The message names the file,
      the line, the client and the field.
    OSError: If the file can't be written.
  """
  path = pathlib.Path(path)
  states = [reader.states() for reader in parts.values()] if states is None else states
  descriptor, partial = tempfile.mkstemp(
      prefix=f'.{path.name}.', suffix='.partial', dir=path.parent)
  os.close(descriptor)
  deletion = janitor.deleted_with_process(partial)
  try:
    with contextlib.closing(
        sqlite3.connect(partial, isolation_level=None)) as connection:
      connection.executescript(_SETUP)
      attempts = {split: _read(connection, split, reader, fields, skips, for_store)
                  for split, reader in parts.items()}
      counts = _finish(
          connection, attempts, skips, [identity, _sha256(parts.values())])
    with open(partial, 'rb') as file:
      os.fsync(file.fileno())
    if states != [reader.states() for reader in parts.values()]:
      raise ValueError(f'{path.name}: a file of the data has changed while it was read')
    os.replace(partial, path)
    return counts
  except sqlite3.Error as error:
    raise OSError(f'{path} cannot be written: {error}') from error
  finally:
    deletion.communicate()  # Deletes the partial file, if there is one.


def _sha256(readers: Iterable[rows_lib.Reader]) -> str:
  digests = {}
  for reader in readers:
    for path in filter(os.path.isfile, reader.paths):
      with open(path, 'rb') as file:
        digests[os.fspath(path)] = hashlib.file_digest(file, 'sha256').hexdigest()
  return json.dumps(digests)


def _read(connection: sqlite3.Connection, split: str, reader: rows_lib.Reader,
          fields: records.Fields, skips: task.Skips, for_store: bool) -> '_Attempt':
  """Converts the rows of a split, in as many attempts as it takes."""
  columns = None if fields is None else list(map(
      columns_lib.Column, {field.column: field for field in fields}.values()))
  while True:
    attempt = _Attempt(connection, split, reader, columns, all_fields=fields is None,
                       skip=skips.enabled, for_store=for_store)
    try:
      attempt.run()
      break
    except columns_lib.Again:
      columns = attempt.columns
      for table in ('examples', 'client_metadata'):
        connection.execute(f'DELETE FROM {table} WHERE split_name = ?', [split])
  for client, message in attempt.skips.items():
    skips.client(client, task.BadClientError(message))
  if not attempt.counts:
    raise ValueError(f'{reader.name} has no client whose data are good')
  return attempt


def _finish(connection: sqlite3.Connection, attempts: Mapping[str, '_Attempt'],
            skips: task.Skips, preparation: Sequence[str]) -> tuple[int, int]:
  """Writes indices and counts; returns the numbers of clients and of examples."""
  spec = next(iter(attempts.values())).spec
  for split, attempt in attempts.items():
    if attempt.spec != spec:
      wanted, found = (_short(', '.join(
          f'{f.name!r} {f.dtype} {list(f.shape)}' for f in features), 200)
                       for features in (spec, attempt.spec))
      raise ValueError(f'fields of the {split} part must be those of the others, '
                       f'{wanted}, found {found}')
  execute, many = connection.execute, connection.executemany
  execute('CREATE INDEX examples_by_client ON examples (split_name, client_id)')
  execute('CREATE UNIQUE INDEX client_metadata_by_client ON client_metadata '
          '(split_name, client_id)')
  for split, attempt in attempts.items():
    many('UPDATE client_metadata SET num_examples = ? WHERE split_name = ? AND '
         'client_id = ?', ((n, split, client) for client, n in attempt.counts.items()))
  # Clients with a bad row are left out as a whole.
  execute('DELETE FROM examples WHERE (split_name, client_id) IN (SELECT split_name, '
          'client_id FROM client_metadata WHERE num_examples = 0)')
  execute('DELETE FROM client_metadata WHERE num_examples = 0')
  many('INSERT INTO element_spec VALUES (?, ?, ?, ?)', (
      (f.name, f.dtype.name, ','.join(map(str, f.shape)), f.as_bytes) for f in spec))
  many('INSERT INTO skipped VALUES (?, ?)', skips.items())
  execute('INSERT INTO preparation VALUES (?, ?)', preparation)
  execute('COMMIT')
  return execute('SELECT count(*), sum(num_examples) FROM client_metadata').fetchone()


def _short(text: str, length: int = 500) -> str:
  """One line of a message in which names in the data may be anything."""
  text = ' '.join(text.encode('utf-8', 'backslashreplace').decode().splitlines())
  return text if len(text) <= length else f'{text[:length - 3]}...'


class _Attempt:
  """One reading of the rows of a split.

  Attributes:
    columns: The columns to copy; None before the first row decides them.
    spec: The features that store the columns; empty before the first good row.
    counts: Client -> number of its examples; without bad clients.
    skips: Bad clients, and bad records of unknown clients.
  """

  def __init__(self, connection: sqlite3.Connection, split: str,
               reader: rows_lib.Reader, columns: list[columns_lib.Column] | None, *,
               all_fields: bool, skip: bool, for_store: bool):
    self.columns, self.skips = columns, task.Skips(skip)
    self.spec: list[example_proto.Feature] = []
    self.counts: dict[str, int] = {}
    self._connection, self._split, self._reader = connection, split, reader
    self._all_fields, self._for_store = all_fields, for_store
    self._known = [(column.dtype, column.shape) for column in columns or ()]
    self._examples: list[tuple] = []
    self._clients: list[tuple] = []

  def run(self) -> None:
    """Reads and writes all rows."""
    total = sum(state[1] for state in self._reader.states())
    with tqdm.tqdm(total=total or None, unit='B', unit_scale=True, dynamic_ncols=True,
                   delay=1.0, desc=f'{self._reader.name} ({self._split})') as bar:
      for row in self._reader.rows(bar.update):
        self._add(row)
    self._write()
    for client in self.skips.clients:
      self.counts.pop(client, None)

  def _add(self, row: rows_lib.Row) -> None:
    location, client, record = row
    try:
      if isinstance(record, ValueError):
        raise record
      if client is None:
        client = rows_lib.client_of(record, self._reader.client_field)
      serialized = example_proto.serialize(*self._values(record))
    except ValueError as error:
      if not self.spec:
        self._forget()
      self._add_bad(location, client, error)
      return
    if client not in self.counts:
      self.counts[client] = 0
      location = _short(location) if self._for_store else ''
      self._clients.append((client, self._split, 0, location))
    self.counts[client] += 1
    self._examples.append((self._split, client, serialized))
    if len(self._examples) >= _BATCH:
      self._write()

  def _forget(self) -> None:
    """Undoes what a bad record decided about the columns."""
    if not self._known:
      self.columns = None
    for column, (dtype, shape) in zip(self.columns or (), self._known):
      column.dtype, column.shape = dtype, shape

  def _values(self, record: Mapping[str, Any]
             ) -> tuple[list[example_proto.Feature], dict[str, Any]]:
    """The features and their values in a record. Raises ValueError or Again."""
    client_field = self._reader.client_field
    if self.columns is None:
      names = [name for name in record if name != client_field]
      if len(names) > _MAX_FIELDS:
        raise ValueError(f'there are {len(names)} fields, more than {_MAX_FIELDS}: '
                         'numbers of one kind belong into one list')
      self.columns = [columns_lib.Column(records.Field(name=name)) for name in names]
    if self._all_fields and len(record) != len(self.columns) + (client_field in record):
      known = {client_field, *(column.field.column for column in self.columns)}
      for name in record:
        if name not in known:
          raise ValueError(f'field {name!r} is not in the first record: name the '
                           'fields to read')
    values = {}
    for column in self.columns:
      name = column.field.column
      if name not in record and not column.field.optional:
        raise ValueError(f'there is no field {name!r}; there are '
                         f'{records.names(record)}')
      values[name] = column.value(record.get(name))
    self.spec = self.spec or example_proto.features({
        column.field.column: (column.dtype, column.shape or ())
        for column in self.columns}, as_bytes=self._for_store)
    return self.spec, values

  def _add_bad(self, location: str, client: str | None, error: ValueError) -> None:
    if not isinstance(error, task.BadClientError):
      kind, source = ValueError, [location]
      if client is not None:
        kind = task.BadClientError
        source.append(f'client {_short(repr(client), 100)}')
      error = kind(_short(f'{", ".join(filter(None, source))}: {error}'))
    # Of many records of unknown clients, only the first keep their messages.
    if client is None and len(self.skips.records) >= _BATCH:
      error = _ANOTHER
    self.skips.client(client, error)

  def _write(self) -> None:
    for statement, values in (
        ('INSERT INTO examples VALUES (?, ?, ?)', self._examples),
        ('INSERT INTO client_metadata VALUES (?, ?, ?, ?)', self._clients)):
      self._connection.executemany(statement, values)
      values.clear()
