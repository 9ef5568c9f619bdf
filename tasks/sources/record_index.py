"""Where the records of each client lie in files, and a source that reads them.

Of a record the index keeps where it begins, its length and its line: some thirty
bytes, and the client's id once. Records of one client need not stand together.
Files that can't be read from the middle, because they are compressed, are copied
decompressed to a temporary file that is gone when the process ends.
"""

import array
import os
import pathlib
import tempfile
import threading
import types
from typing import Any, Callable, Mapping, Sequence
import weakref

import numpy as np

from tasks.sources import columns as columns_lib
from tasks.sources import line_files
from tasks import task

# Takes a record apart: its bytes -> column's name in the file -> its values, one
# or, in formats that have several examples in a record, many.
Parse = Callable[[bytes], Mapping[str, Sequence[Any]]]


class Files:
  """Files by number, read at any place."""

  def __init__(self):
    self._paths: list[pathlib.Path] = []
    self._copies: dict[int, Any] = {}
    self._sizes: dict[int, int] = {}  # Of the copies; asking the file takes long.
    self._lock = threading.Lock()

  def add(self, path: str | os.PathLike[str], copied: bool | None = None) -> int:
    """Adds a file and returns its number.

    Args:
      path: The file.
      copied: Whether records are kept by `copy`; None: if it is compressed.
    """
    self._paths.append(pathlib.Path(path))
    number = len(self._paths) - 1
    if line_files.is_compressed(path) if copied is None else copied:
      copy = tempfile.TemporaryFile()  # pylint: disable=consider-using-with
      weakref.finalize(self, copy.close)
      self._copies[number] = copy
      self._sizes[number] = 0
    return number

  def copy(self, number: int, content: bytes, offset: int) -> int:
    """Keeps a record if it must be; returns where it lies from now on."""
    if number not in self._copies:
      return offset
    offset = self._sizes[number]
    self._copies[number].write(content)
    self._sizes[number] += len(content)
    return offset

  def path(self, number: int) -> pathlib.Path:
    return self._paths[number]

  def read(self, number: int, offset: int, length: int) -> bytes:
    """The bytes of a record. Raises ValueError if the file has become shorter."""
    if number in self._copies:
      with self._lock:
        self._copies[number].flush()
      content = os.pread(self._copies[number].fileno(), length, offset)
    else:
      with open(self._paths[number], 'rb') as file:
        content = os.pread(file.fileno(), length, offset)
    if len(content) != length:
      raise ValueError(f'{self._paths[number]} has become shorter since it was opened')
    return content


class RecordIndex:
  """Grows a record at a time, and is then sorted by client."""

  def __init__(self):
    self._numbers: dict[str, int] = {}
    self._clients = array.array('q')
    self._places = array.array('q')  # File, offset, length and line of each.
    self._rows: dict[str, np.ndarray] | None = None

  def add(self, client_id: str, file: int, offset: int, length: int,
          line: int) -> None:
    number = self._numbers.setdefault(client_id, len(self._numbers))
    self._clients.append(number)
    self._places.extend((file, offset, length, line))

  def __contains__(self, client_id: str) -> bool:
    return client_id in self._numbers

  def sort(self) -> None:
    """Makes the index ready to be read."""
    clients = np.frombuffer(self._clients, np.int64)
    order = np.argsort(clients, kind='stable')
    self._sorted = np.frombuffer(self._places, np.int64).reshape([-1, 4])[order]
    self._starts = np.searchsorted(
        clients[order], np.arange(len(self._numbers) + 1))
    self._clients = self._places = None

  def client_ids(self) -> list[str]:
    """In the order in which they appear."""
    return list(self._numbers)

  def rows(self, client_id: str) -> np.ndarray:
    """int64 [records, 4]: file, offset, length, line; in the order of the files."""
    number = self._numbers[client_id]
    return self._sorted[self._starts[number]:self._starts[number + 1]]


class IndexedSource:
  """Clients whose records lie in indexed files. Implements task.ClientSource."""

  def __init__(self, files: Files, index: RecordIndex,
               columns: Sequence[columns_lib.Column], parse: Parse, *,
               bad_clients: Mapping[str, str]):
    """Makes a source.

    Args:
      files: The files.
      index: Sorted.
      columns: What is read of a record.
      parse: Takes a record's bytes apart.
      bad_clients: Clients that are left out, found bad before.

    Raises:
      ValueError: If no client is left.
    """
    self._files, self._index = files, index
    self._columns, self._parse = tuple(columns), parse
    self.client_ids: Sequence[str] = tuple(
        client for client in index.client_ids() if client not in bad_clients)
    self._known = frozenset(self.client_ids)
    if not self.client_ids:
      raise ValueError(f'{files.path(0)} has no client whose data are good')
    self.element_spec = types.MappingProxyType(
        columns_lib.element_spec(self._columns))

  def where(self, client_id: str) -> str:
    """The file, the first line and the client, for messages."""
    if client_id not in self._known:
      return f'client {client_id!r}'
    file, _, _, line = self._index.rows(client_id)[0].tolist()
    return place(self._files.path(file), line, client_id)

  def examples(self, client_id: str) -> dict[str, np.ndarray]:
    """All records of a client, in the order of the files."""
    if client_id not in self._known:
      raise ValueError(f'there is no client {client_id!r}')
    values: dict[str, list] = {column.name: [] for column in self._columns}
    for file, offset, length, line in self._index.rows(client_id).tolist():
      try:
        found = self._parse(self._files.read(file, offset, length))
        for column in self._columns:
          values[column.name].extend(map(column.value, found[column.source_name]))
      except (ValueError, KeyError) as error:
        raise task.BadClientError(
            f'{place(self._files.path(file), line, client_id)}: {error}') from error
    return {column.name: column.array(values[column.name])
            for column in self._columns}


def place(path: str | os.PathLike[str], line: int, client_id: str | None) -> str:
  """Where a record is, for messages; line 0 means that lines do not count."""
  parts = [os.fspath(path)]
  if line:
    parts.append(f'line {line}')
  if client_id is not None:
    parts.append(f'client {client_id!r}')
  return ', '.join(parts)


def client_id_of(value: Any, name: str) -> str:
  """The id of a client from what a record has. Raises ValueError."""
  if isinstance(value, bool) or not isinstance(value, (str, int)) or value == '':
    raise ValueError(
        f'field {name!r} must name the client by a text or an integer, found '
        f'{value!r}'[:200])
  found = str(value)
  if '\0' in found:
    raise ValueError(f'field {name!r} must not contain the character 0')
  found.encode('utf-8')  # UnicodeEncodeError is a ValueError.
  return found
