"""SQLite files in TFF's format: read by client, by Python or inside a graph.

The tables are `examples(split_name, client_id, serialized_example_proto)` and
`client_metadata(client_id, split_name, num_examples)`. Files that prepare_data wrote have
an index on examples(split_name, client_id), checksums (`checksums`), and the table
`element_spec(name, dtype, shape)`, which describes the examples; in other files the first
example does. A roster (`rosters`) is a file without the examples of the splits that its
table `roster(split_name, sha256)` names, with the digest of the complete file.
"""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import os
import pathlib
import sqlite3
import tempfile
import types
from typing import Any, Iterator, Sequence

from absl import logging
import numpy as np
import tensorflow as tf

from tasks import checks, task
from tasks.sources import checksums, columns, ids, records, rows as rows_lib

# No client has more examples; TensorFlow needs some number.
_MAX_EXAMPLES = 2**31 - 1
# The remedy for a damaged file that is no copy, and the damage that reading finds.
REMEDY = 'delete it, and let prepare_data write it again'
_EXAMPLES = 'the examples of a client don\'t have their checksum'

# Formats that `store` and `rosters` write.
TABLES = """
CREATE TABLE examples (
    split_name TEXT NOT NULL, client_id TEXT NOT NULL,
    serialized_example_proto BLOB NOT NULL);
CREATE TABLE client_metadata (
    client_id TEXT NOT NULL, split_name TEXT NOT NULL, num_examples INTEGER NOT NULL,
    place TEXT NOT NULL, checksum INTEGER NOT NULL);
"""
INDICES = """
CREATE INDEX examples_by_client ON examples (split_name, client_id);
CREATE UNIQUE INDEX client_metadata_by_client
    ON client_metadata (split_name, client_id);
"""

_BY_CLIENT = ('SELECT serialized_example_proto FROM examples '
              'WHERE split_name = ? AND client_id = ? ORDER BY rowid')
_LISTED = 'SELECT {} FROM client_metadata WHERE split_name = ? AND client_id = ?'
_BY_ROWS = ('SELECT serialized_example_proto FROM examples '
            'WHERE rowid IN (SELECT value FROM json_each(?)) ORDER BY rowid')


@contextlib.contextmanager
def connected(path: str | os.PathLike[str]) -> Iterator[sqlite3.Connection]:
  """Connects for reading. SQLite's errors become ValueErrors."""
  checks.file(path)
  # Read-only: SQLite would create a missing file, and lock an existing one.
  uri = f'{pathlib.Path(path).resolve().as_uri()}?mode=ro'
  try:
    with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
      yield connection
  except (sqlite3.Error, UnicodeDecodeError) as error:
    raise ValueError(f'{path} is no SQLite file of TFF\'s format: {error}') from error


@contextlib.contextmanager
def replacing(path: pathlib.Path) -> Iterator[str]:
  """The path of a file that replaces another at the end of the block, or is deleted."""
  descriptor, partial = tempfile.mkstemp(
      prefix=f'.{path.name}.', suffix='.partial', dir=path.parent)
  os.close(descriptor)
  deletion = rows_lib.deleted_with_process(partial)
  try:
    yield partial
    with open(partial, 'rb') as file:
      os.fsync(file.fileno())
    os.replace(partial, path)
  finally:
    deletion.communicate()  # Deletes the partial file, if there is one.


@contextlib.contextmanager
def undamaged(path: str | os.PathLike[str],
              remedy: str | None = None) -> Iterator[sqlite3.Connection]:
  """Connects for reading a file that may have checksums.

  With them, or with the remedy of a file that is known to have them, SQLite's errors
  and any other ValueError become task.DamagedDataErrors.
  """
  has_checksums = remedy is not None and os.path.isfile(path)
  try:
    with connected(path) as connection:
      has_checksums = has_checksums or checksums.are_in(connection)
      yield connection
  except ValueError as error:
    if not has_checksums or isinstance(error, task.DamagedDataError):
      raise
    # SQLite's own words, if they are the cause.
    raise damaged(path, error.__cause__ or error, remedy or REMEDY) from error


def damaged(path: str | os.PathLike[str], cause: Exception | str,
            remedy: str) -> task.DamagedDataError:
  """The error of a damaged file, in one line."""
  return task.DamagedDataError(f'{path} is damaged ({cause}): {remedy}')


def split_names(path: str | os.PathLike[str]) -> list[str]:
  """The splits that a file has, sorted. Raises ValueError."""
  with undamaged(path) as connection:
    names = [name for name, in connection.execute(
        'SELECT DISTINCT split_name FROM client_metadata ORDER BY 1')]
    if checksums.are_in(connection) and names != checksums.split_names(connection):
      raise ValueError('the names of the splits differ between its tables')
    return names


@functools.lru_cache(maxsize=8)
def file_sha256(path: str | os.PathLike[str], *state: int) -> str:
  """Digest of a file in a state, for which it is read once."""
  del state
  with open(path, 'rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


@dataclasses.dataclass(frozen=True)
class FileProof:
  """Describes a split to another process, which proves that it has the same."""

  path: pathlib.Path
  split_name: str
  copy_of: str | None = None
  remedy: str | None = None

  @property
  def name(self) -> str:
    return f'data of split {self.split_name!r} in {self.path}'

  def digest(self, *, in_worker: bool) -> bytes:
    """See simulation.proofs: of the ids in their order, element spec and file.

    In a worker a roster is an error; elsewhere it stands for its file.
    """
    source = SqliteSource(
        self.path, self.split_name, copy_of=self.copy_of, remedy=self.remedy)
    if in_worker and source.is_roster:
      raise ValueError(source.lacks_examples)
    digest = hashlib.sha256(f'{source.sha256}\0{source.element_spec}'.encode())
    ids.update(digest, source.client_ids)
    return digest.digest()


class SqliteSource:
  """One split of a file. Implements tasks.task.ClientSource.

  It may be used from any thread or process. Only the ids are kept in memory; without
  an index of clients, the rows of each client are kept too.

  Attributes:
    is_prepared: Whether prepare_data wrote the file, or it is a copy: then it has
      checksums, which are verified here and whenever a client is read.
    is_roster: Whether the file lacks the examples of this split.
  """

  def __init__(self, path: str | os.PathLike[str], split_name: str, *,
               fields: records.Fields = None,
               copy_of: str | None = None, remedy: str | None = None):
    """Reads the client ids, and the types and shapes of the examples.

    Args:
      path: The SQLite file.
      split_name: The split to read: 'train', for example.
      fields: The fields to read; None reads all.
      copy_of: The files that this one is a copy of, for messages: its clients have
        their order there. None for a file that is no copy, whose clients are sorted.
      remedy: What to do if the file is damaged, for messages, of a file that is known
        to have checksums.

    Raises:
      task.DamagedDataError: If a file that prepare_data wrote, or a copy, is damaged.
      ValueError: If the file is missing, is not SQLite or not in TFF's format, has
        no client in this split, or lacks a field or has it in another kind.
    """
    self._path = pathlib.Path(path).absolute()
    self._split_name, self._copy_of = split_name, copy_of
    self._rows: dict[str, str] | None = None
    with undamaged(path, remedy) as connection:
      self.is_prepared = remedy is not None or checksums.are_in(connection)
      self._remedy = remedy or (REMEDY if self.is_prepared else None)
      first, stored = self._read(connection)
    if not self.client_ids:
      raise ValueError(f'{path} has no clients in split {split_name!r}')
    where = '' if first is None else f', {self._where(first[0])}'
    with checks.located(f'{path}{where}'):
      self._parser = columns.Parser(stored or columns.inferred(_blob(first[1])), fields)
    self.element_spec = types.MappingProxyType(self._parser.element_spec)
    if not self._has_index:
      logging.warning(
          '%s has no index of clients, so all of it is read once, and workers do not '
          'read it themselves: prepare_data writes one that has', self._path)

  def _read(self, connection: sqlite3.Connection
            ) -> tuple[tuple | None, list[columns.Feature]]:
    """The first example and the features that the file describes."""
    order = checksums.ORDERS[self._copy_of is None]
    with checks.located(self._path):
      self.client_ids: Sequence[str] = checksums.read_ids(
          connection, self._split_name, order)
    # There may be no such split in a file that prepare_data wrote, but is in a copy.
    if self.is_prepared and (self.client_ids or self._copy_of is not None):
      checksums.verify(connection, self._split_name, order, self.client_ids)
    # With names of columns, a table of another form is an error now.
    first = connection.execute(
        'SELECT client_id, serialized_example_proto FROM examples '
        'WHERE split_name = ? LIMIT 1', [self._split_name]).fetchone()
    self._has_index = any('client_id=?' in str(row[-1]) for row in connection.execute(
        f'EXPLAIN QUERY PLAN {_BY_CLIENT}', ['', '']))
    # The digest of the complete file, if this is a roster of the split.
    self._complete_sha256, = (
        self.is_prepared and 'roster' in checksums.tables(connection) and
        connection.execute('SELECT sha256 FROM roster WHERE split_name = ?',
                           [self._split_name]).fetchone()) or [None]
    self.is_roster = self._complete_sha256 is not None
    if self.client_ids and first is None and not self.is_roster:
      raise ValueError(f'{self._path} has no examples in split {self._split_name!r}')
    return first, [] if not self.is_prepared else [
        columns.Feature(name=name, dtype=np.dtype(dtype), as_bytes=bool(as_bytes),
                        shape=tuple(int(size) for size in shape.split(',') if size))
        for name, dtype, shape, as_bytes in connection.execute(
            'SELECT * FROM element_spec')]

  @property
  def sha256(self) -> str:
    """SHA-256 of the complete file. Raises OSError."""
    if self.is_roster:
      return self._complete_sha256
    state = os.stat(self._path)
    return file_sha256(self._path, state.st_size, state.st_mtime_ns, state.st_ino)

  @property
  def lacks_examples(self) -> str:
    """The message of reading a roster."""
    return (f'{self._path} is a roster: the examples of its split '
            f'{self._split_name!r} are only where clients train')

  @property
  def data_proof(self) -> FileProof:
    """See task.data_proof."""
    return FileProof(self._path, self._split_name, self._copy_of, self._remedy)

  def _where(self, client_id: str) -> str:
    return f'split {self._split_name!r}, client {client_id!r}'

  def where(self, client_id: str) -> str:
    """The file, the split or the line, and the client, for messages."""
    if self._copy_of is None:
      return f'{self._path}, {self._where(client_id)}'
    with undamaged(self._path, self._remedy) as connection:
      location, = connection.execute(_LISTED.format('place'), [
          self._split_name, client_id]).fetchone() or [self._copy_of]
    return f'{location}, client {client_id!r}'

  def examples(self, client_id: str) -> dict[str, np.ndarray]:
    """All examples of a client, in the file's order.

    Raises:
      task.BadClientError: If it has no examples, or they are no examples.
      task.DamagedDataError: If they don't have their checksum.
      ValueError: If the client is unknown, or the file can't be read or is a roster.
    """
    if self.is_roster:
      raise ValueError(self.lacks_examples)
    with undamaged(self._path, self._remedy) as connection:
      serialized = self._serialized(connection, client_id)
      # Without checksums there may be no index of the listed clients either.
      listed = [] if serialized and not self.is_prepared else connection.execute(
          _LISTED.format('checksum' if self.is_prepared else 1),
          [self._split_name, client_id]).fetchall()
    if not (serialized or listed or self.is_prepared and client_id in self.client_ids):
      raise ValueError(f'there is no client {client_id!r}')
    if self.is_prepared and not (serialized and {bytes} == set(map(type, serialized)) and
                                 listed == [(int(checksums.of(serialized)),)]):
      raise damaged(self._path, _EXAMPLES, self._remedy)
    try:
      if not serialized:
        raise ValueError('no examples')
      return self._parser.arrays(list(map(_blob, serialized)))
    except ValueError as error:
      raise task.BadClientError(f'{self.where(client_id)}: {error}') from error

  def _serialized(self, connection: sqlite3.Connection, client_id: str) -> list:
    """The examples of a client as they are stored; empty for an unknown one."""
    query = _BY_CLIENT, [self._split_name, client_id]
    if not self._has_index:
      # Client -> the numbers of its rows, as JSON.
      self._rows = self._rows or dict(connection.execute(
          'SELECT client_id, json_group_array(rowid) FROM examples '
          'WHERE split_name = ? GROUP BY client_id', [self._split_name]))
      query = _BY_ROWS, [self._rows.get(client_id, '[]')]
    return [value for value, in connection.execute(*query)]

  def _stored(self, client_ids: Sequence[str]) -> tuple[dict[str, np.ndarray], list[int]]:
    """See task.ReaderInGraph: all by one connection, decoded at once."""
    with undamaged(self._path, self._remedy) as connection:
      of_clients = [self._serialized(connection, client) for client in client_ids]
      listed = [checksum for client in client_ids for checksum, in connection.execute(
          _LISTED.format('checksum'), [self._split_name, client])] if self.is_prepared else None
    if not all(of_clients):
      raise ValueError('a client has no examples')
    serialized = list(map(_blob, itertools.chain.from_iterable(of_clients)))
    lengths = list(map(len, of_clients))
    if lengths and listed not in (None, checksums.of_each(serialized, lengths)):
      raise damaged(self._path, _EXAMPLES, self._remedy)
    return {name: tensor.numpy() for name, tensor in self._parser.tensors(
        tf.constant(serialized, tf.string)).items()}, lengths

  @property
  def read_in_graph(self) -> task.ReaderInGraph | None:
    """See task.reader_in_graph; None without an index of clients."""
    return task.ReaderInGraph(self._in_graph, self.element_spec, self._stored) if (
        self._has_index) else None

  def _in_graph(self, client_id: tf.Tensor) -> dict[str, tf.Tensor]:
    # TensorFlow's SQLite takes no parameters, but in standard SQL only a quote ends a
    # text, and in SQLite also a zero.
    split_name = self._split_name.replace("'", "''")
    where = tf.strings.join([
        f"split_name = '{split_name}' AND client_id = '",
        tf.strings.regex_replace(tf.strings.regex_replace(client_id, "'", "''"),
                                 r'\x00', "' || char(0) || '"), "'"])
    # One query for both: a second would take as long as the first.
    checksum = tf.strings.join(
        ['(SELECT checksum FROM client_metadata WHERE ', where, ')']
    ) if self.is_prepared else '0'
    query = tf.strings.join(['SELECT serialized_example_proto, ', checksum,
                             ' FROM examples WHERE ', where, ' ORDER BY rowid'])
    rows = tf.data.experimental.SqlDataset(
        'sqlite', os.fspath(self._path), query, (tf.string, tf.int64))
    # Fails if there are none, as `examples` does.
    serialized, expected = rows.batch(_MAX_EXAMPLES).get_single_element()
    if self.is_prepared:
      # Not tf.debugging's assertions, which are branches.
      holds = tf.reduce_all(tf.equal(expected, checksums.of(serialized)))
      message = damaged(self._path, _EXAMPLES, self._remedy)
      with tf.control_dependencies(
          [tf.raw_ops.Assert(condition=holds, data=[str(message)])]):
        serialized = tf.identity(serialized)
    return self._parser.tensors(serialized)


def _blob(value: Any) -> bytes:
  # SQLite columns take values of any type, despite the table's declaration.
  if not isinstance(value, bytes):
    raise ValueError('serialized_example_proto is not a blob')
  return value
