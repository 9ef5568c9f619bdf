"""SQLite files in TFF's format: read by client, by Python or inside a graph.

The tables are `examples(split_name, client_id, serialized_example_proto)` and
`client_metadata(client_id, split_name, num_examples)`. Files that prepare_data
wrote have an index on examples(split_name, client_id), and the table
`element_spec(name, dtype, shape)`, which describes the examples; in other files the
first example does. A roster (`rosters`) is a file without the examples of the splits that
its table `roster(split_name, sha256)` names, with the digest of the complete file.
"""

import contextlib
import dataclasses
import functools
import hashlib
import os
import pathlib
import sqlite3
import types
from typing import Any, Iterator, Sequence

from absl import logging
import numpy as np
import tensorflow as tf

from tasks.sources import columns
from tasks.sources import ids
from tasks.sources import records
from tasks import task

# No client has more examples; TensorFlow needs some number.
_MAX_EXAMPLES = 2**31 - 1
# Number of ids that are read at a time.
_BATCH = 4096

_BY_CLIENT = ('SELECT serialized_example_proto FROM examples '
              'WHERE split_name = ? AND client_id = ? ORDER BY rowid')
_BY_ROWS = ('SELECT serialized_example_proto FROM examples '
            'WHERE rowid IN (SELECT value FROM json_each(?)) ORDER BY rowid')


@contextlib.contextmanager
def connected(path: str | os.PathLike[str]) -> Iterator[sqlite3.Connection]:
  """Connects for reading. SQLite's errors become ValueErrors."""
  path = pathlib.Path(path)
  if not path.is_file():
    raise ValueError(f'{path} does not exist or is not a file')
  # Read-only: SQLite would create a missing file, and lock an existing one.
  uri = f'{path.resolve().as_uri()}?mode=ro'
  try:
    with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
      yield connection
  except sqlite3.Error as error:
    raise ValueError(f'{path} cannot be read as an SQLite file of TFF\'s format: '
                     f'{error}') from error


def split_names(path: str | os.PathLike[str]) -> list[str]:
  """The splits that a file has, sorted. Raises ValueError."""
  with connected(path) as connection:
    return [name for name, in connection.execute(
        'SELECT DISTINCT split_name FROM client_metadata ORDER BY 1')]


@functools.lru_cache(maxsize=8)
def _sha256(path: pathlib.Path, *state: int) -> str:
  """Of a file in a state, for which it is read once."""
  del state
  with open(path, 'rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


@dataclasses.dataclass(frozen=True)
class FileProof:
  """Describes a split to another process, which proves that it has the same.

  Attributes:
    path: Absolute path of the file, the same everywhere.
    split_name: The split.
    copy_of: As of SqliteSource.
  """

  path: pathlib.Path
  split_name: str
  copy_of: str | None = None

  @property
  def name(self) -> str:
    return f'data of split {self.split_name!r} in {self.path}'

  def digest(self, *, in_worker: bool) -> bytes:
    """SHA-256 of the ids in their order, the element spec and the file's SHA-256.

    Args:
      in_worker: Whether a roster is an error; elsewhere it stands for its file.

    Raises:
      OSError, ValueError: If the file can't be read.
    """
    source = SqliteSource(self.path, self.split_name, copy_of=self.copy_of)
    if in_worker and source.is_roster:
      raise ValueError(source.lacks_examples)
    digest = hashlib.sha256(f'{source.sha256}\0{source.element_spec}'.encode())
    ids.update(digest, source.client_ids)
    return digest.digest()


class SqliteSource:
  """One split of a file. Implements tasks.task.ClientSource.

  Only the ids are kept in memory, as `ids.Ids`, and no connection is kept open, so a
  source may be used from any thread or process. Without an index of clients, the rows
  of each client are kept too.

  Attributes:
    is_prepared: Whether prepare_data wrote the file.
    is_roster: Whether the file lacks the examples of this split.
  """

  def __init__(self, path: str | os.PathLike[str], split_name: str, *,
               fields: records.Fields = None,
               copy_of: str | None = None):
    """Reads the client ids, and the types and shapes of the examples.

    Args:
      path: The SQLite file.
      split_name: The split to read: 'train', for example.
      fields: The fields to read; None reads all.
      copy_of: The files that this one is a copy of, for messages: its clients have
        their order there. None for a file that is no copy, whose clients are sorted.

    Raises:
      ValueError: If the file is missing, is not SQLite or not in TFF's format, has
        no client in this split, or lacks a field or has it in another kind.
    """
    self._path = pathlib.Path(path).absolute()
    self._split_name, self._copy_of = split_name, copy_of
    order = 'rowid' if copy_of is not None else 'client_id COLLATE BINARY'
    with connected(path) as connection:
      clients = connection.execute(
          'SELECT DISTINCT client_id FROM client_metadata WHERE split_name = ? '
          f'ORDER BY {order}', [split_name])
      try:
        self.client_ids: Sequence[str] = ids.Ids(
            [client for client, in rows]
            for rows in iter(lambda: clients.fetchmany(_BATCH), []))
      except ValueError as error:
        raise ValueError(f'{path}: {error}') from None
      # With names of columns, a table of another form is an error now.
      first = connection.execute(
          'SELECT client_id, serialized_example_proto FROM examples '
          'WHERE split_name = ? LIMIT 1', [split_name]).fetchone()
      plan = connection.execute(
          f'EXPLAIN QUERY PLAN {_BY_CLIENT}', ['', '']).fetchall()
      stored = self._stored(connection)
      self._complete_sha256 = self._of_roster(connection)
    self.is_roster = self._complete_sha256 is not None
    if not self.client_ids:
      raise ValueError(f'{path} has no clients in split {split_name!r}')
    if first is None and not self.is_roster:
      raise ValueError(f'{path} has no examples in split {split_name!r}')
    try:
      self._parser = columns.Parser(
          stored or columns.inferred(_blob(first[1])), fields)
    except ValueError as error:
      raise ValueError(f'{path}, {self._where(first[0])}: {error}') from error
    self.is_prepared = bool(stored)
    self.element_spec = types.MappingProxyType(self._parser.element_spec)
    self._has_index = any('client_id=?' in str(row[-1]) for row in plan)
    self._rows: dict[str, str] | None = None
    if not self._has_index:
      logging.warning(
          '%s has no index of clients, so all of it is read once, and workers do not '
          'read it themselves: prepare_data writes one that has', self._path)

  def _of_roster(self, connection: sqlite3.Connection) -> str | None:
    """Digest of the complete file, if this is a roster of the split."""
    if connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND "
                          "name = 'roster'").fetchone() is None:
      return None
    sha256, = connection.execute('SELECT sha256 FROM roster WHERE split_name = ?',
                                 [self._split_name]).fetchone() or [None]
    return sha256

  @property
  def sha256(self) -> str:
    """SHA-256 of the complete file. Raises OSError."""
    if self.is_roster:
      return self._complete_sha256
    state = os.stat(self._path)
    return _sha256(self._path, state.st_size, state.st_mtime_ns, state.st_ino)

  @property
  def lacks_examples(self) -> str:
    """The message of reading a roster."""
    return (f'{self._path} is a roster: the examples of its split '
            f'{self._split_name!r} are only where clients train')

  @property
  def data_proof(self) -> FileProof:
    """See task.data_proof."""
    return FileProof(self._path, self._split_name, self._copy_of)

  def _stored(self, connection: sqlite3.Connection) -> list[columns.Feature]:
    """The features that the file describes; empty if it has no description."""
    if connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND "
                          "name = 'element_spec'").fetchone() is None:
      return []
    rows = connection.execute('SELECT * FROM element_spec').fetchall()
    try:
      return [
          columns.Feature(
              name=name, dtype=np.dtype(dtype), as_bytes=any(as_bytes),
              shape=tuple(int(size) for size in shape.split(',') if size))
          for name, dtype, shape, *as_bytes in rows]
    except (TypeError, ValueError, AttributeError) as error:
      raise ValueError(
          f'{self._path}: table element_spec is damaged: {error}') from error

  def _where(self, client_id: str) -> str:
    return f'split {self._split_name!r}, client {client_id!r}'

  def where(self, client_id: str) -> str:
    """The file, the split or the line, and the client, for messages."""
    if self._copy_of is None:
      return f'{self._path}, {self._where(client_id)}'
    with connected(self._path) as connection:
      location, = connection.execute(
          'SELECT place FROM client_metadata WHERE split_name = ? AND client_id = ?',
          [self._split_name, client_id]).fetchone() or [self._copy_of]
    return f'{location}, client {client_id!r}'

  def examples(self, client_id: str) -> dict[str, np.ndarray]:
    """All examples of a client, in the file's order.

    Raises:
      task.BadClientError: If it has no examples, or they are damaged.
      ValueError: If the client is unknown, or the file can't be read or is a roster.
    """
    if self.is_roster:
      raise ValueError(self.lacks_examples)
    with connected(self._path) as connection:
      if self._has_index:
        query = _BY_CLIENT, [self._split_name, client_id]
      else:
        # Client -> the numbers of its rows, as JSON.
        self._rows = self._rows or dict(connection.execute(
            'SELECT client_id, json_group_array(rowid) FROM examples '
            'WHERE split_name = ? GROUP BY client_id', [self._split_name]))
        query = _BY_ROWS, [self._rows.get(client_id, '[]')]
      serialized = [value for value, in connection.execute(*query)]
      if not serialized and connection.execute(
          'SELECT 1 FROM client_metadata WHERE split_name = ? AND client_id = ?',
          [self._split_name, client_id]).fetchone() is None:
        raise ValueError(f'there is no client {client_id!r}')
    try:
      if not serialized:
        raise ValueError('no examples')
      return self._parser.arrays(list(map(_blob, serialized)))
    except ValueError as error:
      raise task.BadClientError(f'{self.where(client_id)}: {error}') from error

  @property
  def read_in_graph(self):
    """See task.reader_in_graph; None without an index of clients."""
    return self._in_graph if self._has_index else None

  def _in_graph(self, client_id: tf.Tensor) -> dict[str, tf.Tensor]:
    # TensorFlow's SQLite takes no parameters, but in standard SQL only a quote ends a
    # text, and in SQLite also a zero.
    split_name = self._split_name.replace("'", "''")
    query = tf.strings.join([
        'SELECT serialized_example_proto FROM examples WHERE '
        f"split_name = '{split_name}' AND client_id = '",
        tf.strings.regex_replace(tf.strings.regex_replace(client_id, "'", "''"),
                                 r'\x00', "' || char(0) || '"), "' ORDER BY rowid"])
    rows = tf.data.experimental.SqlDataset(
        'sqlite', os.fspath(self._path), query, (tf.string,))
    # Fails if there are none, as `examples` does.
    serialized, = rows.batch(_MAX_EXAMPLES).get_single_element()
    return self._parser.tensors(serialized)


def _blob(value: Any) -> bytes:
  # SQLite columns take values of any type, despite the table's declaration.
  if not isinstance(value, bytes):
    raise ValueError('serialized_example_proto is not a blob')
  return value
