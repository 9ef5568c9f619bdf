"""Where clients' examples come from: arrays in memory, or an SQLite file."""

import contextlib
import os
import pathlib
import sqlite3
import types
from typing import Any, Callable, Iterator, Mapping, Sequence

import numpy as np

_MANY_ROWS = 2048


class ArraysByClient:
  """Examples in memory, sorted once by client so that reading one is a slice.

  Implements tasks.task.ClientSource. The arrays that `examples` returns are
  read-only views.
  """

  def __init__(self, examples: Mapping[str, np.ndarray],
               clients: np.ndarray):
    """Sorts the examples by client; a client keeps the order of its examples.

    Args:
      examples: Feature name -> array; all share their first dimension.
      clients: [examples] integers or strings, the client of each example.

    Raises:
      ValueError: If there is no example, or lengths differ.
    """
    clients = np.asarray(clients)
    if clients.ndim != 1 or clients.dtype.kind not in 'iuU':
      raise ValueError(
          'clients must be one integer or string per example, found '
          f'{clients.dtype} {list(clients.shape)}')
    if clients.size == 0:
      raise ValueError('there must be at least one example, found none')
    for name, array in examples.items():
      if array.shape[:1] != clients.shape:
        raise ValueError(
            f'{name} has shape {list(array.shape)} but there are '
            f'{clients.size} clients: they must have the same length')
    order = np.argsort(clients, kind='stable')
    ids, starts = np.unique(clients[order], return_index=True)
    self._arrays = {}
    for name, array in examples.items():
      # Already sorted data, as many files are, need no second copy.
      in_order = bool(np.all(order[1:] > order[:-1]))
      array = array.view() if in_order else array[order]
      array.flags.writeable = False
      self._arrays[name] = array
    ends = [*starts[1:].tolist(), clients.size]
    self._slices = {
        str(client): slice(start, end)
        for client, start, end in zip(ids.tolist(), starts.tolist(), ends)}
    self.client_ids: Sequence[str] = tuple(self._slices)
    self.element_spec = types.MappingProxyType(
        {name: (a.dtype, a.shape[1:]) for name, a in self._arrays.items()})

  def examples(self, client_id: str) -> dict[str, np.ndarray]:
    """All examples of a client. Raises ValueError for an unknown client."""
    if client_id not in self._slices:
      raise ValueError(f'there is no client {client_id!r}')
    rows = self._slices[client_id]
    return {name: array[rows] for name, array in self._arrays.items()}


class SqliteSource:
  """One split of an SQLite file in TFF's format, a client read at a time.

  Implements tasks.task.ClientSource. The file has the tables
  `examples(split_name, client_id, serialized_example_proto)` and
  `client_metadata(client_id, split_name, num_examples)`. Nothing but the ids is
  kept in memory, and no connection is kept open, so a source may be used from
  any thread or process.
  """

  def __init__(
      self, path: str | os.PathLike[str], split_name: str, *,
      decode: Callable[[Sequence[bytes]], dict[str, np.ndarray]],
      element_spec: Mapping[str, tuple[np.dtype, tuple[int, ...]]]):
    """Reads the client ids.

    Args:
      path: The SQLite file.
      split_name: Which examples: 'train', say.
      decode: Serialized examples -> feature arrays with one row for each. Its
        ValueErrors are given the file and the client.
      element_spec: Feature name -> (NumPy dtype, shape of one example).

    Raises:
      ValueError: If the file is missing, is not SQLite or not in TFF's format,
        or has no client in this split.
    """
    self._path = pathlib.Path(path)
    self._split_name = split_name
    self._decode = decode
    self.element_spec = types.MappingProxyType(dict(element_spec))
    with self._connect() as connection:
      rows = connection.execute(
          'SELECT DISTINCT client_id FROM client_metadata WHERE split_name = ? '
          'ORDER BY client_id', [split_name]).fetchall()
      # Naming the columns finds out now if the table is not what is expected.
      connection.execute(
          'SELECT client_id, split_name, serialized_example_proto '
          'FROM examples LIMIT 1').fetchall()
    if not rows:
      raise ValueError(f'{self._path} has no clients in split {split_name!r}')
    self.client_ids: Sequence[str] = tuple(row[0] for row in rows)
    self._known = frozenset(self.client_ids)

  @contextlib.contextmanager
  def _connect(self) -> Iterator[sqlite3.Connection]:
    if not self._path.is_file():
      raise ValueError(f'{self._path} does not exist or is not a file')
    # Read-only: SQLite would create a missing file, and lock an existing one.
    uri = f'{self._path.resolve().as_uri()}?mode=ro'
    try:
      with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
        yield connection
    except sqlite3.Error as error:
      raise ValueError(
          f'{self._path} cannot be read as an SQLite file of TFF\'s format: '
          f'{error}') from error

  def _decoded(self, serialized: Sequence[bytes],
               where: str) -> dict[str, np.ndarray]:
    try:
      # SQLite columns take values of any type, whatever the table declares.
      if not all(isinstance(value, bytes) for value in serialized):
        raise ValueError('serialized_example_proto is not a blob')
      return self._decode(serialized)
    except ValueError as error:
      raise ValueError(f'{self._path}, {where}: {error}') from error

  def examples(self, client_id: str) -> dict[str, np.ndarray]:
    """All examples of a client.

    Raises:
      ValueError: If the client is unknown or has no examples, or the file is
        corrupted; the message names the file and the client.
    """
    if client_id not in self._known:
      raise ValueError(f'there is no client {client_id!r}')
    with self._connect() as connection:
      rows = connection.execute(
          'SELECT serialized_example_proto FROM examples '
          'WHERE client_id = ? AND split_name = ? ORDER BY rowid',
          [client_id, self._split_name]).fetchall()
    where = f'split {self._split_name!r}, client {client_id!r}'
    if not rows:
      raise ValueError(f'{self._path}, {where}: no examples')
    return self._decoded([row[0] for row in rows], where)

  def all_examples(self) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Every example of the split, in the file's order, and its client.

    Returns:
      The feature arrays, and the client ids as an array of strings.
    """
    parts: list[dict[str, np.ndarray]] = []
    clients: list[Any] = []
    with self._connect() as connection:
      cursor = connection.execute(
          'SELECT client_id, serialized_example_proto FROM examples '
          'WHERE split_name = ? ORDER BY rowid', [self._split_name])
      while rows := cursor.fetchmany(_MANY_ROWS):
        clients.extend(row[0] for row in rows)
        parts.append(self._decoded(
            [row[1] for row in rows],
            f'split {self._split_name!r}, clients {rows[0][0]!r} to '
            f'{rows[-1][0]!r}'))
    if not parts:
      raise ValueError(
          f'{self._path} has no examples in split {self._split_name!r}')
    arrays = {
        name: np.concatenate([part[name] for part in parts])
        for name in self.element_spec}
    return arrays, np.array(clients, dtype=str)
