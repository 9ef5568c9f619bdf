"""Writes clients' data to SQLite in TFF's format, and keeps copies of files in it.

Rows go into a file in their order, whatever their clients; an index then finds those of
a client. The file gets its name when it is complete: a conversion that is killed leaves
nothing.

A copy is as private as the files. Its folder has mode 0700; it is found again by the
path, size, times of change and inode of each file, and by the options of reading them.
It carries checksums (`checksums`), so that damage is never taken for data.
"""

import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
import contextlib
import copy
import dataclasses
import errno
import fcntl
import hashlib
import json
import os
import pathlib
import re
import shlex
import sqlite3
import sys
import tempfile
from typing import Any
import weakref

import tqdm

from tasks import task
from tasks.sources import (
    checksums, columns as columns_lib, records, rows as rows_lib, sqlite)

# Version of a copy's content: a copy of another version is not used.
_VERSION = 2
_SPLIT = 'train'
_COPY = 'copy-'
_NAMES = re.compile(
    _COPY + r'[0-9a-f]{32}\.(sqlite|lock)|\.' + _COPY + r'[0-9a-f]{32}\..*\.partial')

# The file is not visible before it is complete, so it need not survive a crash. The
# deleted rows, of clients that are left out, must not stay in it.
_SETUP = f"""
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
PRAGMA secure_delete = ON;
{sqlite.TABLES}
CREATE TABLE element_spec (
    name TEXT NOT NULL, dtype TEXT NOT NULL, shape TEXT NOT NULL,
    as_bytes INTEGER NOT NULL);
CREATE TABLE skipped (client_id TEXT, message TEXT NOT NULL);
CREATE TABLE preparation (identity TEXT NOT NULL, sha256 TEXT NOT NULL);
BEGIN;
"""
_BATCH = 1000
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

  Returns the numbers of clients and of examples in the file.

  Raises:
    ValueError: On bad data that are not to be skipped. The message names the file,
      the line, the client and the field.
    OSError: If the file can't be written.
  """
  path = pathlib.Path(path)
  states = [reader.states() for reader in parts.values()] if states is None else states
  try:
    with sqlite.replacing(path) as partial:
      with contextlib.closing(
          sqlite3.connect(partial, isolation_level=None)) as connection:
        connection.executescript(_SETUP)
        splits = [_Split(connection, split, reader, fields, skips, for_store)
                  for split, reader in parts.items()]
        counts = _finish(connection, splits, skips, [identity, _sha256(parts.values())])
      if states != [reader.states() for reader in parts.values()]:
        raise ValueError(f'{path.name}: a file of the data changed while it was read')
    return counts
  except sqlite3.Error as error:
    raise OSError(f'{path} cannot be written: {error}') from error


def _sha256(readers: Iterable[rows_lib.Reader]) -> str:
  return json.dumps({
      os.fspath(path): sqlite.file_sha256.__wrapped__(path) for reader in readers
      for path in filter(os.path.isfile, reader.paths)})


def _finish(connection: sqlite3.Connection, splits: Sequence['_Split'],
            skips: task.Skips, preparation: Sequence[str]) -> tuple[int, int]:
  """Writes indices and counts; returns the numbers of clients and of examples."""
  spec = splits[0].spec
  for split in splits:
    if split.spec != spec:
      shown = [_short(', '.join(map(str, each)), 200) for each in (spec, split.spec)]
      raise ValueError(f'{split.name}: fields must be {shown[0]}, found {shown[1]}')
  execute, many = connection.execute, connection.executemany
  for statement in sqlite.INDICES.split(';'):
    execute(statement)
  for split in splits:
    many('UPDATE client_metadata SET num_examples = ?, checksum = ? WHERE '
         'split_name = ? AND client_id = ?', split.listed())
  # Clients with a bad row are left out as a whole.
  execute('DELETE FROM examples WHERE (split_name, client_id) IN (SELECT split_name, '
          'client_id FROM client_metadata WHERE num_examples = 0)')
  execute('DELETE FROM client_metadata WHERE num_examples = 0')
  many('INSERT INTO element_spec VALUES (?, ?, ?, ?)', (
      (f.name, f.dtype.name, ','.join(map(str, f.shape)), f.as_bytes) for f in spec))
  many('INSERT INTO skipped VALUES (?, ?)', skips.items())
  execute('INSERT INTO preparation VALUES (?, ?)', preparation)
  checksums.seal(connection)
  execute('COMMIT')
  return execute('SELECT count(*), sum(num_examples) FROM client_metadata').fetchone()


def _short(text: str, length: int = 500) -> str:
  """One line of a message in which names in the data may be anything."""
  text = ' '.join(text.encode('utf-8', 'backslashreplace').decode().splitlines())
  return text if len(text) <= length else f'{text[:length - 3]}...'


class _Split:
  """The rows of one split, written to the file in as many readings as it takes.

  Attributes:
    spec: The features that store the columns; empty before the first good row.
    clients: Client -> its index in the order of reading; without bad clients.
  """

  def __init__(self, connection: sqlite3.Connection, name: str, reader: rows_lib.Reader,
               fields: records.Fields, skips: task.Skips, for_store: bool):
    self.name, self._connection, self._reader = name, connection, reader
    self._fields, self._for_store = fields, for_store
    # None before the first good row decides them.
    self._columns = None if fields is None else list(map(
        columns_lib.Column, {field.column: field for field in fields}.values()))
    while True:
      # Bad clients, and bad records of unknown clients, of this reading.
      self._skips = task.Skips(skips.enabled)
      self.spec: list[columns_lib.Feature] = []
      self.clients: dict[str, int] = {}
      # For each client, by its index: the number of its examples that are written, and
      # their checksum. For a million clients dictionaries would take 100 MB.
      self._counts, self._checksums = array.array('Q'), array.array('Q')
      self._examples: list[tuple] = []
      self._clients: list[tuple] = []
      try:
        self._read()
        break
      except columns_lib.Again:
        for table in ('examples', 'client_metadata'):
          connection.execute(f'DELETE FROM {table} WHERE split_name = ?', [name])
    for client, message in self._skips.items():
      skips.client(client, task.BadClientError(message))
    if not self.clients:
      raise ValueError(f'{reader.name} has no client whose data are good')

  def _read(self) -> None:
    """Reads and writes all rows. Raises columns_lib.Again."""
    total = sum(state[1] for state in self._reader.states())
    with tqdm.tqdm(total=total or None, unit='B', unit_scale=True, dynamic_ncols=True,
                   delay=1.0, desc=f'{self._reader.name} ({self.name})') as bar:
      for row in self._reader.rows(bar.update):
        self._add(row)
    self._write()
    for client in self._skips.clients:
      self.clients.pop(client, None)

  def _add(self, row: rows_lib.Row) -> None:
    location, client, record = row
    try:
      if isinstance(record, ValueError):
        raise record
      if client is None:
        client = rows_lib.client_of(record, self._reader.client_field)
      serialized = columns_lib.serialize(*self._values(record))
    except ValueError as error:
      self._add_bad(location, client, error)
      return
    if client not in self.clients:
      self.clients[client] = len(self.clients)
      self._counts.append(0)
      self._checksums.append(0)
      location = _short(location) if self._for_store else ''
      self._clients.append((client, self.name, 0, location, 0))
    self._examples.append((self.name, client, serialized))
    if len(self._examples) >= _BATCH:
      self._write()

  def _values(self, record: Mapping[str, Any]
             ) -> tuple[list[columns_lib.Feature], dict[str, Any]]:
    """The features and their values in a record. Raises ValueError or Again."""
    client_field, columns = self._reader.client_field, self._columns
    if columns is None:
      columns = [columns_lib.Column(records.Field(name=name)) for name in record
                 if name != client_field]
      if len(columns) > _MAX_FIELDS:
        raise ValueError(f'fields must be at most {_MAX_FIELDS}, found {len(columns)}')
    elif not self.spec:  # What a bad record decides about them does not count.
      columns = list(map(copy.copy, columns))
    if self._fields is None and len(record) != len(columns) + (client_field in record):
      known = {client_field, *(column.field.column for column in columns)}
      if unknown := [name for name in record if name not in known]:
        raise ValueError(f'field {unknown[0]!r} is not in the first record')
    values = {column.field.column: column.value_in(record) for column in columns}
    self.spec = self.spec or [
        column.feature(as_bytes=self._for_store)
        for column in sorted(columns, key=lambda column: column.field.column)]
    self._columns = columns
    return self.spec, values

  def _add_bad(self, location: str, client: str | None, error: ValueError) -> None:
    if not isinstance(error, task.BadClientError):
      kind = ValueError if client is None else task.BadClientError
      name = client and f'client {_short(repr(client), 100)}'
      error = kind(_short(f'{", ".join(filter(None, (location, name)))}: {error}'))
    self._skips.client(client, error)

  def _write(self) -> None:
    if self._examples:
      hashes = checksums.hashes([serialized for _, _, serialized in self._examples])
      for (_, client, _), hash_ in zip(self._examples, hashes.numpy().tolist()):
        index = self.clients[client]
        self._counts[index] += 1
        self._checksums[index] = (
            self._checksums[index] + self._counts[index] * hash_) % 2**64
    for statement, values in (
        ('INSERT INTO examples VALUES (?, ?, ?)', self._examples),
        ('INSERT INTO client_metadata VALUES (?, ?, ?, ?, ?)', self._clients)):
      self._connection.executemany(statement, values)
      values.clear()

  def listed(self) -> Iterator[tuple[int, int, str, str]]:
    """Number of examples, checksum, split and name of each client that is not bad."""
    for client, index in self.clients.items():
      yield (self._counts[index], checksums.signed(self._checksums[index]), self.name,
             client)


def folder(cache_dir: str | os.PathLike[str] | None = None) -> pathlib.Path:
  """The folder of copies; by default tff_pipelines in the user's cache."""
  if cache_dir is not None:
    return pathlib.Path(cache_dir)
  return pathlib.Path(os.environ.get('XDG_CACHE_HOME') or '~/.cache').expanduser() / (
      'tff_pipelines')


def open_copy(reader: rows_lib.Reader, *, fields: records.Fields,
           skips: task.Skips, cache_dir: str | os.PathLike[str] | None = None,
           no_cache: bool = False) -> sqlite.SqliteSource:
  """Opens the clients of files from their copy, which is written if there is none.

  Args:
    reader: Reads the files.
    fields: The fields to read; None reads all fields of the first row.
    skips: The treatment of bad clients; gets those that were left out.
    cache_dir: See `folder`.
    no_cache: Write a copy for this process alone, in the folder of temporary files,
      that is deleted when the process ends, however it does.

  Raises ValueError on bad data that are not to be skipped; OSError if the copy can't be
  written.
  """
  given = dict(parts={_SPLIT: reader}, fields=fields, for_store=True,
               skips=task.Skips(skips.enabled))
  if no_cache:
    descriptor, name = tempfile.mkstemp(prefix=_COPY, suffix='.sqlite')
    os.close(descriptor)
    with contextlib.ExitStack() as stack:
      stack.callback(rows_lib.deleted_with_process(name).communicate)
      write(name, **given)
      source = _source(reader, pathlib.Path(name), fields, skips, '',
                       'start again, with another folder in TMPDIR')
      weakref.finalize(source, stack.pop_all().close)
      return source
  states = reader.states()
  identity = json.dumps([
      _VERSION, reader.identity, reader.client_field, states, skips.enabled,
      None if fields is None else [dataclasses.astuple(field) for field in fields]])
  directory = folder(cache_dir)
  key = hashlib.sha256(identity.encode('utf-8', 'surrogateescape')).hexdigest()[:32]
  path = directory / f'{_COPY}{key}.sqlite'
  try:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if directory.stat().st_uid != os.geteuid():
      raise PermissionError(errno.EPERM, 'it is another user\'s folder')
    lock = open(os.open(path.with_suffix('.lock'),
                        os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600), 'rb')
  except OSError as error:
    raise OSError(f'cache_dir={directory} can\'t be written: {error.strerror}; give '
                  '--cache_dir, or --no_cache') from error
  with lock:
    # Waits for another process that writes the same copy.
    fcntl.flock(lock, fcntl.LOCK_EX)
    if not path.exists():
      try:
        write(path, **given, identity=identity, states=[states])
      except BaseException:
        path.with_suffix('.lock').unlink(missing_ok=True)
        raise
      size = path.stat().st_size
      size = f'{size / 1e9:.1f} GB' if size >= 1e9 else f'{size / 1e6:.1f} MB'
      print(f'{reader.name}: copied to {path}, {size} of private data. --no_cache '
            'keeps no copy, prepare_data --purge deletes all', file=sys.stderr)
  return _source(reader, path, fields, skips, identity, (
      'it is a copy that can be made again; start again, or resume, after python -m '
      'tff_pipelines.prepare_data --purge ' + shlex.quote(f'--cache_dir={directory}')))


def _source(reader: rows_lib.Reader, path: pathlib.Path, fields: records.Fields,
            skips: task.Skips, identity: str, remedy: str) -> sqlite.SqliteSource:
  """Opens a copy. Raises task.DamagedDataError if it is damaged, or of other data."""
  if path.is_file() and identity_of(path) != identity:
    raise sqlite.damaged(path, 'it is no copy of these data', remedy)
  source = sqlite.SqliteSource(
      path, _SPLIT, fields=fields, copy_of=reader.name, remedy=remedy)
  with sqlite.undamaged(path, remedy) as connection:
    skipped = connection.execute('SELECT * FROM skipped').fetchall()
  for client, message in skipped:
    skips.client(client, task.BadClientError(message))
  return source


def purge(cache_dir: str | os.PathLike[str] | None = None) -> tuple[int, int]:
  """Deletes all copies in a folder, unfinished ones too; their number and bytes."""
  number = size = 0
  for path in folder(cache_dir).glob(f'*{_COPY}*'):
    if _NAMES.fullmatch(path.name) and path.is_file():
      with contextlib.suppress(FileNotFoundError):
        number, size = number + (path.suffix == '.sqlite'), size + path.stat().st_size
        path.unlink()
  return number, size
