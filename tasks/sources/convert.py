"""Converts clients' files to SQLite in TFF's format, once, as they are read.

Rows go into the file in their order, whatever clients they are of; an index then finds
those of a client. What is written gets its name when it is complete: a conversion that
is killed leaves nothing.
"""

from collections.abc import Mapping, Sequence
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

_TABLES = """
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
"""
_BATCH = 1000
_ANOTHER = (None, ValueError('another bad record'))
# TensorFlow takes a second to parse an example of so many.
_MOST_FIELDS = 5000


def identity_of(path: str | os.PathLike[str]) -> str | None:
  """What `write` recorded of its data in a file; None if nothing is."""
  try:
    with sqlite.connected(path) as connection:
      return connection.execute('SELECT identity FROM preparation').fetchone()[0]
  except (ValueError, TypeError):
    return None


def write(path: str | os.PathLike[str], parts: Mapping[str, rows_lib.Reader], *,
          fields: Sequence[records.Field] | None, skips: task.Skips,
          identity: str = '', states: Sequence | None = None,
          for_store: bool = False) -> tuple[int, int]:
  """Converts populations into the splits of one new file.

  Args:
    path: Of the file; one that is there is replaced when the new one is complete.
    parts: Name of a split -> what reads it.
    fields: What to copy; None copies all fields of the first row, and then every row
      must have the same.
    skips: What to do about bad rows and their clients.
    identity: Recorded in the file.
    states: Of the files of each part, that `identity` was made of; None for the present
      ones. If they are others in the end, nothing is written.
    for_store: Whether only `store` reads the file: then it tells where each client
      was read, for messages, and holds lists of numbers as bytes, for speed.

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
    conversion = _Conversion(partial, skips, for_store)
    try:
      for split, reader in parts.items():
        conversion.part(split, reader, fields)
      counts = conversion.finish(identity, _sha256(parts.values()))
    finally:
      conversion.close()
    with open(partial, 'rb') as file:
      os.fsync(file.fileno())
    if states != [reader.states() for reader in parts.values()]:
      raise ValueError(f'{path.name}: a file of the data has changed while it was read')
    os.replace(partial, path)
    return counts
  except sqlite3.Error as error:
    raise OSError(f'{path} cannot be written: {error}') from error
  finally:
    deletion.communicate()  # Deletes what is left.


def _sha256(readers) -> str:
  digests = {}
  for reader in readers:
    for path in filter(os.path.isfile, reader.paths):
      with open(path, 'rb') as file:
        digests[os.fspath(path)] = hashlib.file_digest(file, 'sha256').hexdigest()
  return json.dumps(digests)


class _Conversion:
  """A file that is being written."""

  def __init__(self, path: str, skips: task.Skips, for_store: bool):
    self._skips, self._for_store = skips, for_store
    self._spec: list[example_proto.Feature] | None = None
    self._counts: dict[str, Mapping[str, int]] = {}
    self._connection = sqlite3.connect(path, isolation_level=None)
    # Nobody sees the file before it is complete, so it need not survive a crash. What is
    # deleted, of clients that are left out, must not stay in it.
    for statement in ('PRAGMA journal_mode = OFF', 'PRAGMA synchronous = OFF',
                      'PRAGMA secure_delete = ON', *_TABLES.split(';'), 'BEGIN'):
      self._connection.execute(statement)

  def close(self) -> None:
    self._connection.close()

  def part(self, split: str, reader: rows_lib.Reader,
           fields: Sequence[records.Field] | None) -> None:
    """Converts the rows of a split."""
    columns = None if fields is None else [
        columns_lib.Column(field)
        for field in {field.column: field for field in fields}.values()]
    while True:
      attempt = _Attempt(self._connection, split, reader, columns,
                         all_fields=fields is None, skip=self._skips.enabled,
                         for_store=self._for_store)
      try:
        attempt.run()
        break
      except columns_lib.Again:
        columns = attempt.columns
        for table in ('examples', 'client_metadata'):
          self._connection.execute(f'DELETE FROM {table} WHERE split_name = ?', [split])
    for client, error in attempt.skipped:
      if client is None:
        self._skips.record(error)
      else:
        self._skips.client(client, error)
    if not attempt.counts:
      raise ValueError(f'{reader.name} has no client whose data are good')
    self._counts[split] = attempt.counts
    spec = attempt.features()
    if self._spec not in (None, spec):
      raise ValueError(f'fields of the {split} part must be those of the others, '
                       f'{_in_words(self._spec)}, found {_in_words(spec)}')
    self._spec = spec

  def finish(self, identity: str, sha256: str) -> tuple[int, int]:
    """Writes what is known at the end; the numbers of clients and of examples."""
    execute, many = self._connection.execute, self._connection.executemany
    execute('CREATE INDEX examples_by_client ON examples (split_name, client_id)')
    execute('CREATE UNIQUE INDEX client_metadata_by_client ON client_metadata '
            '(split_name, client_id)')
    for split, counts in self._counts.items():
      many('UPDATE client_metadata SET num_examples = ? WHERE split_name = ? AND '
           'client_id = ?', ((n, split, client) for client, n in counts.items()))
    # Clients with a bad row are left out as a whole.
    execute('DELETE FROM examples WHERE (split_name, client_id) IN (SELECT split_name, '
            'client_id FROM client_metadata WHERE num_examples = 0)')
    execute('DELETE FROM client_metadata WHERE num_examples = 0')
    many('INSERT INTO element_spec VALUES (?, ?, ?, ?)', (
        (feature.name, feature.dtype.name, ','.join(map(str, feature.shape)),
         feature.as_bytes)
        for feature in self._spec))
    many('INSERT INTO skipped VALUES (?, ?)', (
        *self._skips.clients.items(), *((None, text) for text in self._skips.records)))
    execute('INSERT INTO preparation VALUES (?, ?)', [identity, sha256])
    counts = execute(
        'SELECT count(*), sum(num_examples) FROM client_metadata').fetchone()
    execute('COMMIT')
    return counts


def _in_words(spec: Sequence[example_proto.Feature]) -> str:
  return _short(', '.join(f'{f.name!r} {f.dtype} {list(f.shape)}' for f in spec), 200)


def _short(text: str, length: int = 500) -> str:
  """One line of a message in which names in the data may be anything."""
  text = ' '.join(text.encode('utf-8', 'backslashreplace').decode().splitlines())
  return text if len(text) <= length else f'{text[:length - 3]}...'


class _Attempt:
  """One reading of the rows of a split.

  Attributes:
    columns: What is copied; None before the first row tells it.
    counts: Client -> number of its examples; without bad clients.
    skipped: Bad clients, or None for records of nobody, and what is wrong with them.
  """

  def __init__(self, connection: sqlite3.Connection, split: str,
               reader: rows_lib.Reader, columns: list[columns_lib.Column] | None, *,
               all_fields: bool, skip: bool, for_store: bool):
    self.columns, self.counts, self.skipped = columns, {}, []
    self._connection, self._split, self._reader = connection, split, reader
    self._all_fields, self._skip, self._for_store = all_fields, skip, for_store
    self._spec: list[example_proto.Feature] = []
    self._known = [(column.dtype, column.shape) for column in columns or ()]
    self._bad: set[str] = set()
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
    for client in self._bad:
      self.counts.pop(client, None)

  def _add(self, row: rows_lib.Row) -> None:
    place, client, record = row
    try:
      if isinstance(record, ValueError):
        raise record
      serialized = example_proto.serialize(*self._values(record))
    except ValueError as error:
      if not self._spec:
        self._forget()
      self._is_bad(place, client, error)
      return
    if client not in self.counts:
      self.counts[client] = 0
      place = _short(place) if self._for_store else ''
      self._clients.append((client, self._split, 0, place))
    self.counts[client] += 1
    self._examples.append((self._split, client, serialized))
    if len(self._examples) >= _BATCH:
      self._write()

  def _forget(self) -> None:
    """A record that is bad decides nothing of those after it."""
    if not self._known:
      self.columns = None
    for column, (dtype, shape) in zip(self.columns or (), self._known):
      column.dtype, column.shape = dtype, shape

  def _values(self, record: Mapping[str, Any]
             ) -> tuple[list[example_proto.Feature], dict[str, Any]]:
    """What is stored of a record, and how. Raises ValueError or Again."""
    if self.columns is None:
      names = [name for name in record if name != self._reader.client_field]
      if len(names) > _MOST_FIELDS:
        raise ValueError(f'there are {len(names)} fields, more than {_MOST_FIELDS}: '
                         'numbers of one kind belong into one list')
      self.columns = [columns_lib.Column(records.Field(name=name)) for name in names]
    if self._all_fields and len(record) != len(self.columns) + (
        self._reader.client_field in record):
      known = {column.field.column for column in self.columns}
      for name in record:
        if name not in known and name != self._reader.client_field:
          raise ValueError(f'field {name!r} is not in the first record: name the '
                           'fields to read')
    values = {}
    for column in self.columns:
      name = column.field.column
      if name not in record and not column.field.optional:
        there = ', '.join(map(repr, record))
        raise ValueError(
            f'there is no field {name!r}; there are {there[:200] or "none"}')
      values[name] = column.value(record.get(name))
    self._spec = self._spec or self.features()
    return self._spec, values

  def features(self) -> list[example_proto.Feature]:
    """How the columns, whose types are known, are stored."""
    return example_proto.features({
        column.field.column: (column.dtype, column.shape or ())
        for column in self.columns}, as_bytes=self._for_store)

  def _is_bad(self, place: str, client: str | None, error: ValueError) -> None:
    if not isinstance(error, task.BadClientError):
      kind, where = ValueError, [place]
      if client is not None:
        kind = task.BadClientError
        where.append(f'client {_short(repr(client), 100)}')
      error = kind(_short(f'{", ".join(filter(None, where))}: {error}'))
    if not self._skip:
      raise error
    if client is None:
      # Of many records of nobody, what is wrong is kept of the first alone.
      self.skipped.append((None, error) if len(self.skipped) < _BATCH else _ANOTHER)
    elif client not in self._bad:
      self._bad.add(client)
      self.skipped.append((client, error))

  def _write(self) -> None:
    for table, values in (('examples', self._examples),
                          ('client_metadata', self._clients)):
      if values:
        marks = ', '.join('?' * len(values[0]))
        self._connection.executemany(f'INSERT INTO {table} VALUES ({marks})', values)
        values.clear()
