"""Rows of clients' files, one after another, with bounded memory.

A reader yields a `Row` for each example of a client, and does not check its values. A
bad row carries its own error; a bad file raises a ValueError that names the file and,
where lines count, the line.
"""

import codecs
import contextlib
import dataclasses
import decimal
import gzip
import hashlib
import io
import json
import os
import subprocess
import tempfile
from typing import Any, BinaryIO, Callable, Iterator, Mapping, NamedTuple, Sequence
import warnings
import zlib

import numpy as np

from tasks import checks, task
from tasks.sources import labelled, records, values as values_lib

# A line, or a user of LEAF, that is longer is an error, found without reading it all.
MAX_BYTES = 64 * 2**20
_TOO_LONG = f'longer than {MAX_BYTES // 2**20} MiB'

# Deeper, each level would cost ijson as much memory as all levels above it.
_MAX_LEVELS = 1000
_TOO_DEEP = 'not JSON that can be read: nested too deeply'
# The bytes that are neither bracket nor quote, and what a bracket adds to the level.
_OTHERS = bytes(set(range(256)) - set(b'"[]{}'))
_STEPS = np.zeros(256, np.int8)
_STEPS[list(b'[{')], _STEPS[list(b']}')] = 1, -1
# The piece that yajl gets: it scans a text from its start with each one.
_LEAF_BYTES = 4 * 2**20

Path = str | os.PathLike[str]
# Called with the number of bytes that were read since the last call.
Progress = Callable[[int], Any]


class Row(NamedTuple):
  """One example of one client.

  Attributes:
    location: The file and, where lines count, the line.
    client: The client; None if the record names it, or it is not known.
    record: Name of a column -> its value; or the error.
  """

  location: str
  client: str | None
  record: Mapping[str, Any] | ValueError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reader:
  """Reads the rows of one population.

  Attributes:
    rows: Yields all rows; called again if a field turns out to be of another type.
    paths: The files, whose states are part of the identity.
    identity: The options that decide what the rows are, as JSON.
    client_field: The column of the clients, which is copied only if it is asked for;
      None if rows have their clients.
    name: The name of the files in messages.
  """

  rows: Callable[[Progress], Iterator[Row]]
  paths: Sequence[Path]
  identity: Any
  client_field: str | None = None
  name: str = 'the data'

  def states(self) -> list[list]:
    """Path, size, times of change and inode of each file that there is."""
    return [[os.path.abspath(path), status.st_size, status.st_mtime_ns,
             status.st_ctime_ns, status.st_ino]
            for path in filter(os.path.isfile, self.paths)
            for status in [os.stat(path)]]


def deleted_with_process(*paths: Path) -> subprocess.Popen:
  """Deletes files and folders when this process ends.

  Returns the process that waits for the end; its `communicate` deletes at once.
  """
  return subprocess.Popen(
      ['/bin/sh', '-c', 'cat > /dev/null; rm -rf -- "$@"', 'sh', *map(os.fspath, paths)],
      stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
      start_new_session=True)


def client_of(record: Mapping[str, Any], name: str) -> str:
  """The id of the client that a field of a record names. Raises ValueError."""
  if name not in record:
    raise records.no_field(name, record)
  value = record[name]
  client = values_lib.client_id(value) if not isinstance(value, bool) and isinstance(
      value, (str, int, np.integer, float, np.floating, decimal.Decimal)) else None
  if client is None or isinstance(value, Cell) and value in values_lib.GAPS:
    raise checks.wrong(f'client field {name!r}', 'a text or an integer, in full, in '
                       'every row', repr(value))
  if '\0' in client:
    raise ValueError(f'field {name!r} must not contain the character 0')
  client.encode('utf-8')  # UnicodeEncodeError is a ValueError.
  return client


class Cell(str):
  """A cell of a text file: its text and its column decide its type."""


class CommaCell(Cell):
  """A cell of a file in which commas may be decimal."""


class _CountedFile(io.FileIO):
  """A file that reports how much of it was read."""

  def __init__(self, path: Path, progress: Progress):
    super().__init__(path)
    self._progress = progress

  def readinto(self, buffer) -> int:
    count = super().readinto(buffer)
    self._progress(count)
    return count


@contextlib.contextmanager
def open_file(path: Path, progress: Progress) -> Iterator[BinaryIO]:
  """Opens a file for reading decompressed bytes.

  Damaged compression raises a ValueError in the block; it names the file.
  """
  checks.file(path)
  with io.BufferedReader(_CountedFile(path, progress), 2**20) as file:
    if file.peek(2)[:2] != b'\x1f\x8b':  # gzip's first bytes.
      yield file
      return
    try:
      with gzip.GzipFile(fileobj=file) as decompressed:
        yield decompressed
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
      raise ValueError(f'{path} is damaged or cut off: gzip says {error}') from error


def lines(path: Path, progress: Progress,
          opened: Callable[[BinaryIO], Any] = lambda file: file
          ) -> Iterator[tuple[str, Any]]:
  """The location and the content of every line of what `opened` opens."""
  number = 0
  with open_file(path, progress) as binary:
    file = opened(binary)
    # The limit stops the reading: the line need not fit into memory.
    while content := file.readline(MAX_BYTES + 1):
      number += 1
      if len(content) > MAX_BYTES:
        raise ValueError(f'{path}, line {number}: {_TOO_LONG}')
      yield f'{path}, line {number}', content
  if number == 0:
    raise ValueError(f'{path} is empty')


def decoded(content: bytes, encoding: str = 'UTF-8') -> str:
  """The text that is encoded so. Raises ValueError."""
  try:
    return content.decode(encoding)
  except UnicodeDecodeError as error:
    raise ValueError(f'not {encoding}: {error}') from error


def text(path: Path, progress: Progress) -> str:
  """The text in a file. Raises ValueError."""
  with checks.located(path), open_file(path, progress) as file:
    content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
      raise ValueError(_TOO_LONG)
    return decoded(content)


def _no_constant(name: str) -> None:
  raise ValueError(f'not JSON: {name} is no number')


_JSON = json.JSONDecoder(parse_constant=_no_constant)


def _parsed(content: bytes) -> Mapping[str, Any] | ValueError:
  """The record of a line of JSON, or the error."""
  try:
    record = _JSON.decode(decoded(content))
    if not isinstance(record, dict):
      raise ValueError(f'must be a JSON object, found {type(record).__name__}')
    return record
  except json.JSONDecodeError as error:
    return ValueError(f'not JSON: {error.msg} at character {error.pos}')
  except RecursionError:
    return ValueError(_TOO_DEEP)
  except ValueError as error:
    return error


def jsonl(paths: Sequence[Path], progress: Progress) -> Iterator[Row]:
  """A row for every line that is not empty."""
  for path in paths:
    for location, content in lines(path, progress):
      if content.strip():
        yield Row(location, None, _parsed(content.removeprefix(codecs.BOM_UTF8)))


def parquet(paths: Sequence[Path], progress: Progress, *, client_field: str,
            fields: records.Fields) -> Iterator[Row]:
  """A row for every row of the tables; None for the fields reads all columns."""
  # Column to read -> whether a file may lack it.
  wanted = None if fields is None else {
      client_field: False, **{field.column: field.optional for field in fields}}
  # Takes a quarter of a second to import.
  from pyarrow import parquet as parquet_lib  # pylint: disable=g-import-not-at-top
  for path in paths:
    # Damage shows as ArrowException, OSError, OverflowError and more.
    with checks.located(path, Exception), open_file(path, progress) as raw:
      # Arrow prints warnings about types that it does not load.
      with warnings.catch_warnings(action='ignore'):
        file = parquet_lib.ParquetFile(raw)
        schema = file.schema_arrow
        extended = [field.name for field in schema if _is_extended(field.type)]
      if extended:
        raise ValueError(f'column {extended[0]!r} must be of a type of Arrow\'s own')
      for name, optional in (wanted or {}).items():
        if name not in schema.names and not optional:
          raise records.no_field(name, schema.names)
      batches = file.iter_batches(4096, columns=wanted and [
          name for name in schema.names if name in wanted])
      for number, record in enumerate(
          (record for batch in batches for record in batch.to_pylist()), start=1):
        yield Row(f'{path}, row {number}', None, record)


def _is_extended(arrow_type) -> bool:
  """Whether a type or one in it is an extension, which may end the process."""
  import pyarrow  # pylint: disable=g-import-not-at-top
  return isinstance(arrow_type, pyarrow.BaseExtensionType) or any(
      _is_extended(arrow_type.field(i).type) for i in range(arrow_type.num_fields))


class _Bounded:
  """A JSON file of bounded depth and, between two calls of `next_value`, length."""

  def __init__(self, file: BinaryIO):
    self._file, self._at, self._limit = file, 0, MAX_BYTES
    self._level, self._in_text, self._rest = 0, 0, b''

  def next_value(self) -> None:
    self._limit = self._at + MAX_BYTES

  def read(self, size: int) -> bytes:
    # A piece may hold the ends of several values: one piece more than the limit.
    if self._at > self._limit + size:
      raise ValueError(f'before byte {self._at}: a value {_TOO_LONG}')
    content = self._file.read(size)
    self._at += len(content)
    if self._max_level(content) > _MAX_LEVELS:
      raise ValueError(f'before byte {self._at}: {_TOO_DEEP}')
    return content

  def _max_level(self, content: bytes) -> int:
    """The maximum level in the next piece."""
    # Escaped characters go first: the quotes that remain begin and end texts.
    content = (self._rest + content).replace(b'\\\\', b'').replace(b'\\"', b'')
    self._rest = b'\\' if content.endswith(b'\\') else b''
    parts = content.translate(None, _OTHERS).split(b'"')
    outside = b''.join(parts[self._in_text::2])
    self._in_text ^= (len(parts) - 1) & 1
    levels = self._level + np.cumsum(
        _STEPS[np.frombuffer(outside, np.uint8)], dtype=np.int64)
    before, self._level = self._level, int(levels[-1]) if levels.size else self._level
    return int(levels.max(initial=before))


def leaf(paths: Sequence[Path], progress: Progress) -> Iterator[Row]:
  """LEAF's JSON: objects of `users`, `num_samples` and `user_data`.

  `user_data` is an object of user -> field -> list with one item per example; one user
  is in memory at a time. A user is in one file only.
  """
  seen: set[str] = set()
  for path in paths:
    with checks.located(path):
      yield from _leaf(os.fspath(path), progress, seen)


def _leaf(path: str, progress: Progress, seen: set[str]) -> Iterator[Row]:
  """The rows of one file, of users that have not been seen."""
  counts: dict[str, int | None] = {}  # None for a bad user.
  for user, fields in _leaf_values(path, progress, 'kvitems', 'user_data'):
    if user in seen:
      raise ValueError(f'client {user[:100]!r} is there twice')
    seen.add(user)
    counts[user] = None
    try:
      client_of({'user_data': user}, 'user_data')
      if not isinstance(fields, dict):
        raise ValueError(f'must be an object of lists, found {type(fields).__name__}')
      counts[user] = common_length(fields)
    except ValueError as error:
      yield Row(path, user, error)
      continue
    for values in zip(*fields.values()):
      yield Row(path, user, dict(zip(fields, values)))
  users, numbers = (next(_leaf_values(path, lambda _: None, 'items', name), None)
                    for name in ('users', 'num_samples'))
  if not isinstance(users, list) or not counts:
    raise ValueError('must have the lists users and num_samples, and user_data')
  if not isinstance(numbers, list) or len(numbers) != len(users):
    raise ValueError('num_samples must be a list of one number per user')
  users = [str(user) for user in users]
  if sorted(users) != sorted(counts):
    raise checks.wrong('users', 'those of user_data, each once', users)
  for user, number in zip(users, numbers):
    if counts[user] not in (None, number):
      yield Row(path, user, ValueError(
          f'num_samples is {number!r}, but there are {counts[user]} examples'))


def _leaf_values(path: str, progress: Progress, what: str, prefix: str) -> Iterator:
  """Values below a key of the outer object, by the function of ijson of that name."""
  import ijson  # pylint: disable=g-import-not-at-top
  with open_file(path, progress) as file:
    bounded = _Bounded(file)
    try:
      for value in getattr(ijson, what)(
          bounded, prefix, use_float=True, buf_size=_LEAF_BYTES):
        yield value
        bounded.next_value()
    except (ijson.JSONError, UnicodeDecodeError) as error:
      raise ValueError(f'not JSON, or cut off: {checks.one_line(error)}') from error


def common_length(fields: Mapping[str, Sequence]) -> int:
  """The length of all fields. Raises ValueError if they differ or are empty."""
  for name, values in fields.items():
    if not isinstance(values, list) and not getattr(values, 'ndim', 0):
      raise ValueError(f'field {name!r} must be a list, found {values!r}'[:300])
  lengths = {name: len(values) for name, values in fields.items()}
  if len(set(lengths.values())) > 1:
    raise ValueError(f'fields differ in length: {lengths}')
  if not any(lengths.values()):
    raise ValueError('there are no examples')
  return next(iter(lengths.values()))


def npz(paths: Sequence[Path], progress: Progress, *, suffix: str, client_field: str,
        fields: records.Fields) -> Iterator[Row]:
  """Rows of the arrays of one part of an .npz file, sorted by client.

  Args:
    paths: The one file.
    progress: Not called: all is read before the first row.
    suffix: The end of the names of the part's arrays: '_train', '_test' or ''.
    client_field: The array of the clients, without the suffix.
    fields: The arrays to read; None reads all that have a value per example.
  """
  del progress
  path, = paths
  names = [name.removesuffix(suffix) for name in labelled.array_names(path)
           if name.endswith(suffix)]
  wanted = dict.fromkeys([client_field, *(field.column for field in fields or ())])
  for name in wanted:
    if name not in names:
      raise ValueError(f'{path} has no array {name + suffix!r}')
  with contextlib.ExitStack() as stack:
    folder = tempfile.mkdtemp()
    stack.callback(deleted_with_process(folder).communicate)
    arrays = {name: labelled.mapped(path, name + suffix, folder)
              for name in (names if fields is None else wanted)}
    clients = arrays[client_field]
    if fields is None:  # Without names of classes and the like.
      arrays = {name: array for name, array in arrays.items()
                if array.shape[:1] == clients.shape}
      if len(arrays) == 1:  # The clients.
        raise ValueError(f'{path}: no array is as long as {client_field + suffix!r}')
    with checks.located(path):
      order = records.client_order(arrays, clients)
    for row in order.tolist():
      yield Row(f'{path}, row {row}', None,
                {name: array[row] for name, array in arrays.items()})


def of_source(source: task.ClientSource, paths: Sequence[Path] = ()) -> Reader:
  """A reader of the rows of any source; paths: the files behind it."""
  def rows(progress: Progress) -> Iterator[Row]:
    del progress
    for client in source.client_ids:
      try:
        examples = source.examples(client)
        count = common_length(examples)
      except task.DamagedDataError:
        raise
      except ValueError as error:
        yield Row('', client, error)
        continue
      for row in range(count):
        yield Row('', client, {name: array[row] for name, array in examples.items()})

  ids = hashlib.sha256('\0'.join(source.client_ids).encode('utf-8', 'replace'))
  return Reader(rows=rows, paths=paths, identity=ids.hexdigest())
