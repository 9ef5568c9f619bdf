"""Rows of clients' files, one after another, with bounded memory.

A reader yields a `Row` for each example of a client, and checks nothing of its values.
What is wrong with one row is the row's; what is wrong with a file is a ValueError that
names the file and, where lines count, the line.
"""

import collections
import contextlib
import csv as csv_lib
import dataclasses
import gzip
import hashlib
import io
import json
import os
import pathlib
import tempfile
from typing import Any, BinaryIO, Callable, Iterable, Iterator, Mapping, NamedTuple
from typing import Sequence
import warnings
import zlib

import numpy as np

from tasks import task
from tasks.sources import columns
from tasks.sources import janitor
from tasks.sources import npz_file
from tasks.sources import records

# A longer line, or user of LEAF, is a mistake: no more than this is read of one.
MAX_BYTES = 64 * 2**20

_GZIP_MAGIC = b'\x1f\x8b'
_BYTE_ORDER_MARK = b'\xef\xbb\xbf'
_PARQUET_ROWS = 4096
# Deeper, each level would cost ijson as much memory as all levels above it.
_MOST_LEVELS = 1000
# Signs that are no brackets or quotes, and what a bracket adds to the level.
_OTHERS = bytes(set(range(256)) - set(b'"[]{}'))
_STEPS = np.zeros(256, np.int8)
_STEPS[list(b'[{')], _STEPS[list(b']}')] = 1, -1
# What yajl is given at a time: it scans a text anew with each piece.
_LEAF_BYTES = 4 * 2**20

Path = str | os.PathLike[str]
# Told how many bytes of the files were read since it was last told.
Progress = Callable[[int], Any]


def _ignored(count: int) -> None:
  del count


class Row(NamedTuple):
  """One example of one client.

  Attributes:
    place: The file and, where lines count, the line.
    client: The client; None if that can't be told.
    record: Name of a column -> its value; or what is wrong.
  """

  place: str
  client: str | None
  record: Mapping[str, Any] | ValueError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reader:
  """What reads the rows of one population.

  Attributes:
    rows: Yields all rows; called again if a field turns out to be of another type.
    paths: The files, whose states are part of the identity.
    identity: What else decides what the rows are, as JSON.
    client_field: The column of the clients, which is not copied unless it is asked
      for; None if there is none.
    name: Of the files, for messages.
  """

  rows: Callable[[Progress], Iterator[Row]]
  paths: Sequence[str | os.PathLike[str]] = ()
  identity: Any = None
  client_field: str | None = None
  name: str = ''

  def states(self) -> list:
    """Path, size, times of change and inode of each file that there is."""
    return states(self.paths)


def states(paths: Iterable[Path]) -> list[list]:
  """Path, size, times of change and inode of each of these files that there is."""
  return [[os.path.abspath(path), status.st_size, status.st_mtime_ns,
           status.st_ctime_ns, status.st_ino]
          for path in filter(os.path.isfile, paths) for status in [os.stat(path)]]


def client_id_of(value: Any, name: str) -> str:
  """The id of a client from what a record has. Raises ValueError."""
  if isinstance(value, bool) or not isinstance(
      value, (str, int, np.integer)) or value == '':
    raise ValueError(
        f'field {name!r} must name the client by a text or an integer, found '
        f'{value!r}'[:200])
  found = str(value)
  if '\0' in found:
    raise ValueError(f'field {name!r} must not contain the character 0')
  found.encode('utf-8')  # UnicodeEncodeError is a ValueError.
  return found


class _Read(io.FileIO):
  """A file that tells how much of it was read."""

  def __init__(self, path: Path, progress: Progress):
    super().__init__(path)
    self._progress = progress

  def readinto(self, buffer) -> int:
    count = super().readinto(buffer)
    self._progress(count)
    return count


@contextlib.contextmanager
def opened(path: Path, progress: Progress = _ignored) -> Iterator[BinaryIO]:
  """A file for reading decompressed bytes.

  Damaged compression is a ValueError in the block; it names the file.
  """
  if not pathlib.Path(path).is_file():
    raise ValueError(f'{path} does not exist or is not a file')
  with io.BufferedReader(_Read(path, progress), 2**20) as file:
    if file.peek(2)[:2] != _GZIP_MAGIC:
      yield file
      return
    try:
      with gzip.GzipFile(fileobj=file) as decompressed:
        yield decompressed
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
      raise ValueError(
          f'{path} is damaged or cut off: gzip says {error}') from error


def _lines(path: Path, progress: Progress) -> Iterator[tuple[str, bytes]]:
  """Each line of a file, and its place."""
  number = 0
  try:
    with opened(path, progress) as file:
      # The limit stops the reading: the line need not fit into memory.
      while content := file.readline(MAX_BYTES + 1):
        number += 1
        if len(content) > MAX_BYTES:
          raise ValueError(f'{path}, line {number}: longer than '
                           f'{MAX_BYTES // 2**20} MiB')
        if number == 1:
          content = content.removeprefix(_BYTE_ORDER_MARK)
        yield f'{path}, line {number}', content
  except ValueError as error:
    if 'damaged' in str(error):
      raise ValueError(f'{error} after line {number}') from error
    raise
  if number == 0:
    raise ValueError(f'{path} is empty')


def decoded(content: bytes) -> str:
  try:
    return content.decode('utf-8')
  except UnicodeDecodeError as error:
    raise ValueError(f'not UTF-8: {error}') from error


def _no_constant(name: str) -> None:
  raise ValueError(f'not JSON: {name} is no number')


_JSON = json.JSONDecoder(parse_constant=_no_constant)


def _parse_json(content: bytes) -> Mapping[str, Any]:
  try:
    found = _JSON.decode(decoded(content))
  except json.JSONDecodeError as error:
    raise ValueError(f'not JSON: {error.msg} at character {error.pos}') from error
  except RecursionError:
    raise ValueError('not JSON that can be read: nested too deeply') from None
  if not isinstance(found, dict):
    raise ValueError(f'must be a JSON object, found {type(found).__name__}')
  return found


Records = Iterator[tuple[str, Mapping[str, Any] | ValueError]]


def jsonl(paths: Sequence[Path], progress: Progress) -> Records:
  """The place and the record of every line that is not empty."""
  for path in paths:
    for place, content in _lines(path, progress):
      if not content.strip():
        continue
      try:
        yield place, _parse_json(content)
      except ValueError as error:
        yield place, error


def csv(paths: Sequence[Path], progress: Progress) -> Records:
  """The place and the record of every row; RFC 4180 in UTF-8, with one header."""
  # A cell left open by a missing quote would otherwise end as too long at 128 kB.
  csv_lib.field_size_limit(MAX_BYTES)
  header = None
  for path in paths:
    rows = _csv_rows(path, progress)
    place, found = next(rows, (f'{path}, line 1', None))
    if found is None:
      raise ValueError(f'{place}: there is no header')
    names = collections.Counter(found)
    for name, count in names.items():
      if not name or count > 1:
        raise ValueError(
            f'{place}: columns must have names of their own, found {name[:100]!r}')
    header = header or found
    if found != header:
      raise ValueError(f'{place}: the header must be that of {paths[0]}')
    for place, cells in rows:
      yield place, dict(zip(header, map(columns.Cell, cells))) if len(
          cells) == len(header) else ValueError(
              f'there are {len(cells)} cells, but {len(header)} columns in the header')


def _csv_rows(path: Path, progress: Progress) -> Iterator[tuple[str, list[str]]]:
  """The place and the cells of every row that is not empty."""
  here = began = ''

  def lines():
    nonlocal here, began
    for here, content in _lines(path, progress):
      began = began or here
      yield decoded(content)

  reader = csv_lib.reader(lines(), strict=True)
  while True:
    began = ''
    try:
      cells = next(reader, None)
    except (csv_lib.Error, ValueError) as error:
      text = str(error)
      if 'unexpected end' in text or 'field larger' in text:
        text = 'a quote is not closed'
      elif isinstance(error, csv_lib.Error):
        text = f'not CSV: {text}'
      raise ValueError(
          text if os.fspath(path) in text else f'{began or here}: {text}') from error
    if cells is None:
      return
    if len(cells) > 1 or ''.join(cells).strip():
      yield began, cells


def parquet(paths: Sequence[Path], progress: Progress,
            wanted: Mapping[str, bool] | None = None) -> Records:
  """The place and the record of every row.

  Args:
    paths: The files.
    progress: See `Progress`.
    wanted: The columns to read, and whether a file may lack them; None reads all.
  """
  # A quarter of a second to import, which other formats need not pay.
  from pyarrow import parquet as parquet_lib  # pylint: disable=g-import-not-at-top
  for path in paths:
    try:
      with opened(path, progress) as raw:
        # Arrow warns on the terminal of types that it does not load.
        with warnings.catch_warnings(action='ignore'):
          file = parquet_lib.ParquetFile(raw)
          schema = file.schema_arrow
          extended = [field.name for field in schema if _is_extended(field.type)]
        if extended:
          raise ValueError(
              f'column {extended[0]!r} must be of a type of Arrow\'s own')
        for name, optional in (wanted or {}).items():
          if name not in schema.names and not optional:
            raise ValueError(f'there is no column {name!r}; there are '
                             f'{", ".join(map(repr, schema.names))}')
        number = 0
        for batch in file.iter_batches(_PARQUET_ROWS, columns=wanted and [
            name for name in schema.names if name in wanted]):
          for record in batch.to_pylist():
            number += 1
            yield f'{path}, row {number}', record
    # Damage shows as ArrowException, OSError, OverflowError and more.
    except Exception as error:
      detail = ' '.join(str(error).split())[:300] or type(error).__name__
      raise ValueError(
          detail if os.fspath(path) in detail else f'{path}: {detail}') from error


def _is_extended(arrow_type) -> bool:
  """Whether a type of Arrow, or one in it, is not Arrow's own: it may end the process."""
  import pyarrow  # pylint: disable=g-import-not-at-top
  return isinstance(arrow_type, pyarrow.BaseExtensionType) or any(
      _is_extended(arrow_type.field(i).type) for i in range(arrow_type.num_fields))


def by_field(found: Records, client_field: str) -> Iterator[Row]:
  """Rows of records that name their client."""
  for place, record in found:
    client = None
    if not isinstance(record, ValueError):
      try:
        if client_field not in record:
          there = ', '.join(map(repr, record))
          raise ValueError(f'there is no field {client_field!r} of the client; there '
                           f'are {there[:200] or "none"}')
        client = client_id_of(record[client_field], client_field)
      except ValueError as error:
        record = error
    yield Row(place, client, record)


class _Bounded:
  """A JSON file of bounded depth and, between two calls of `next_value`, length."""

  def __init__(self, file: BinaryIO, path: Path):
    self._file, self._path, self._at, self._limit = file, path, 0, MAX_BYTES
    self._level, self._in_text, self._rest = 0, 0, b''

  def next_value(self) -> None:
    self._limit = self._at + MAX_BYTES

  def read(self, size: int) -> bytes:
    # A piece may hold the ends of several values: one piece more than the limit.
    if self._at > self._limit + size:
      raise ValueError(f'{self._path}: before byte {self._at}: a value of more than '
                       f'{MAX_BYTES // 2**20} MiB')
    content = self._file.read(size)
    self._at += len(content)
    if self._deepest(content) > _MOST_LEVELS:
      raise ValueError(f'{self._path}: before byte {self._at}: not JSON that can be '
                       'read: nested too deeply')
    return content

  def _deepest(self, content: bytes) -> int:
    """The deepest level in the next piece."""
    # Escaped signs go first: then texts have no quotes but their own.
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

  `user_data` is an object of user -> field -> list with one item per example; no more
  than one user is in memory. A user is in one file only.
  """
  seen: set[str] = set()
  for path in paths:
    counts: dict[str, int] = {}
    for user, found in _leaf_values(path, progress, 'kvitems', 'user_data'):
      if user in seen:
        raise ValueError(f'{path}: client {user[:100]!r} is there twice')
      seen.add(user)
      counts[user] = -1
      try:
        client_id_of(user, 'user_data')
        counts[user] = _lengths(found)
      except ValueError as error:
        yield Row(os.fspath(path), user, error)
        continue
      for values in zip(*found.values()):
        yield Row(os.fspath(path), user, dict(zip(found, values)))
    try:
      wrong = _wrong_counts(counts, *(
          next(_leaf_values(path, _ignored, 'items', name), None)
          for name in ('users', 'num_samples')))
    except ValueError as error:
      raise ValueError(f'{path}: {error}') from error
    for user, error in wrong.items():
      yield Row(os.fspath(path), user, error)


def _wrong_counts(counts: Mapping[str, int], users: Any,
                  numbers: Any) -> dict[str, ValueError]:
  """User -> what is wrong with its num_samples. Raises ValueError for the lists."""
  if not isinstance(users, list) or not counts:
    raise ValueError('must have the lists users and num_samples, and user_data of at '
                     'least one user')
  if not isinstance(numbers, list) or len(numbers) != len(users):
    raise ValueError('num_samples must be a list of one number per user')
  users = [str(user) for user in users]
  for user in set(users) ^ set(counts):
    raise ValueError(
        f'client {user[:100]!r} is in users or in user_data, but not in both')
  if len(set(users)) != len(users):
    raise ValueError('users must not name a client twice')
  return {user: ValueError(f'num_samples is {number!r}, but there are {counts[user]} '
                           'examples')
          for user, number in zip(users, numbers) if counts[user] not in (-1, number)}


def _leaf_values(path: Path, progress: Progress, what: str, prefix: str) -> Iterator:
  """Values below a key of the outer object, as ijson reads them."""
  import ijson  # pylint: disable=g-import-not-at-top
  with opened(path, progress) as file:
    bounded = _Bounded(file, path)
    try:
      for value in getattr(ijson, what)(
          bounded, prefix, use_float=True, buf_size=_LEAF_BYTES):
        yield value
        bounded.next_value()
    except (ijson.JSONError, UnicodeDecodeError) as error:
      raise ValueError(
          f'{path}: not JSON, or cut off: {" ".join(str(error).split())[:200]}'
      ) from error


def _lengths(found: Any) -> int:
  """The number of examples of a user of LEAF. Raises ValueError."""
  if not isinstance(found, dict):
    raise ValueError(f'must be an object of lists, found {type(found).__name__}')
  for name, values in found.items():
    if not isinstance(values, list):
      raise ValueError(f'field {name!r} must be a list of one item per example, found '
                       f'{type(values).__name__}')
  return one_length(found)


def one_length(found: Mapping[str, Sequence]) -> int:
  lengths = {name: len(values) for name, values in found.items()}
  if len(set(lengths.values())) > 1:
    raise ValueError(f'fields differ in length: {lengths}')
  if not any(lengths.values()):
    raise ValueError('there are no examples')
  return next(iter(lengths.values()))


def npz(path: Path, *, suffix: str, client_field: str,
        fields: Sequence[records.Field] | None) -> Iterator[Row]:
  """Arrays of one part of an .npz file, sorted by client.

  Args:
    path: The file.
    suffix: Of the names of the part's arrays: '_train', '_test' or ''.
    client_field: The array of the clients, without the suffix.
    fields: What is wanted; None takes all arrays with a value per example.
  """
  there = npz_file.names(path)
  names = [name.removesuffix(suffix) for name in there if name.endswith(suffix)]
  for name in (client_field, *(field.column for field in fields or ())):
    if name not in names:
      of = ' of the clients' if name == client_field else ''
      raise ValueError(f'{path}: there is no array {name + suffix!r}{of}')
  if fields is not None:
    names = list(dict.fromkeys([client_field, *(field.column for field in fields)]))
  with contextlib.ExitStack() as stack:
    folder = tempfile.mkdtemp()
    stack.callback(janitor.deleted_with_process(folder).communicate)
    arrays = {name: npz_file.mapped(path, name + suffix, folder) for name in names}
    clients = arrays[client_field]
    if clients.ndim != 1 or clients.dtype.kind not in 'iuU' or not clients.size:
      raise ValueError(
          f'{path}: clients must be one integer or string per example, at least one, '
          f'found {clients.dtype} {list(clients.shape)}')
    for name, array in list(arrays.items()):
      if array.shape[:1] == clients.shape and (fields is not None or (
          name != client_field)):
        continue
      if fields is None or name == client_field:
        del arrays[name]  # The clients, names of classes and the like.
      elif not array.ndim:
        raise ValueError(f'{path}: field {name!r} must have one value per example, '
                         'found a scalar')
      else:
        raise ValueError(f'{path}: {name} has shape {list(array.shape)} but there are '
                         f'{clients.size} clients: they must have the same length')
    if not arrays:
      raise ValueError(f'{path}: no array has as many rows as '
                       f'{client_field + suffix!r}')
    for row in np.argsort(clients, kind='stable').tolist():
      place = f'{path}, row {row}'
      try:
        client = client_id_of(clients[row], client_field)
      except ValueError as error:
        yield Row(place, None, error)
        continue
      yield Row(place, client, {name: array[row] for name, array in arrays.items()})


def of_source(source: task.ClientSource, paths: Sequence[Path] = ()) -> Reader:
  """What reads the rows of a source of any kind; paths: the files behind it."""
  def rows(progress: Progress) -> Iterator[Row]:
    del progress
    for client in source.client_ids:
      try:
        examples = source.examples(client)
      except ValueError as error:
        yield Row('', client, error)
        continue
      count = len(next(iter(examples.values())))
      if not count:
        yield Row('', client, ValueError('there are no examples'))
      for row in range(count):
        yield Row('', client, {name: array[row] for name, array in examples.items()})

  ids = hashlib.sha256('\0'.join(source.client_ids).encode('utf-8', 'replace'))
  return Reader(rows=rows, name='the data', paths=paths, identity=ids.hexdigest())
