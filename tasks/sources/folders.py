"""A folder per client: what is in it are the client's examples.

Files are read in the order of their paths below the client's folder:
  .jsonl, .jsonl.gz   a record a line
  .csv, .csv.gz       a row a line, with a header
  .npz                arrays that share their first dimension
  .txt                one example with the one field 'text'
  .png, .jpg, .jpeg, .bmp   one example with the fields 'image', uint8 [height,
                      width] or [height, width, 3], and, if the file is in a folder
                      of its own below the client's, 'label', that folder's name
All files of all clients must have the same fields. Names with a dot in front are
ignored.
"""

import os
import pathlib
import types
from typing import Any, Callable, Mapping, Sequence

import numpy as np

from tasks.sources import columns as columns_lib
from tasks.sources import line_files
from tasks.sources import npz_file
from tasks.sources import record_index
from tasks.sources import records
from tasks.sources import csv_files as source_csv
from tasks.sources import jsonl as source_jsonl
from tasks import task

# Field -> its values: a list as in JSON, or an array.
_Part = Mapping[str, Sequence[Any] | np.ndarray]


class FolderSource:
  """Clients that are folders. Implements tasks.task.ClientSource."""

  def __init__(self, path: str | os.PathLike[str], *,
               fields: Sequence[records.Field] | None, skips: task.Skips):
    """Lists the folders, and reads the first client to learn of the fields.

    Args:
      path: The folder of the clients' folders.
      fields: What to read; None reads all fields of the first client, and then
        every client must have the same.
      skips: What to do about bad clients.

    Raises:
      ValueError: If there is no folder in it, or the first client is bad and not
        to be skipped.
    """
    self._path = pathlib.Path(path)
    if not self._path.is_dir():
      raise ValueError(f'{self._path} does not exist or is not a folder')
    with os.scandir(self._path) as entries:
      ids = sorted(entry.name for entry in entries
                   if entry.is_dir() and not entry.name.startswith('.'))
    if not ids:
      raise ValueError(f'{self._path} has no folder: each client must have its own')
    for client in ids:
      try:
        client.encode('utf-8')
      except UnicodeEncodeError as error:
        raise ValueError(f'{self._path}: the name of the folder {client!r} is not '
                         'UTF-8') from error
    self._only_these = fields is not None
    self._fields = fields
    self._spec: records.ElementSpec | None = None
    for number, client in enumerate(ids):
      try:
        first = self._read(client)
        break
      except task.BadClientError as error:
        skips.client(client, error)
    else:
      raise ValueError(f'{self._path} has no client whose data are good')
    self._spec = {name: (a.dtype, a.shape[1:]) for name, a in first.items()}
    self.element_spec = types.MappingProxyType(self._spec)
    self.client_ids: Sequence[str] = tuple(ids[number:])
    self._known = frozenset(self.client_ids)

  def where(self, client_id: str) -> str:
    """The folder, for messages."""
    return os.fspath(self._path / client_id)

  def examples(self, client_id: str) -> dict[str, np.ndarray]:
    """All examples of a client. Raises task.BadClientError."""
    if client_id not in self._known:
      raise ValueError(f'there is no client {client_id!r}')
    return self._read(client_id)

  def _read(self, client_id: str) -> dict[str, np.ndarray]:
    folder = self._path / client_id
    try:
      parts = [(path, self._fields_of(path, _read_file(path, folder)))
               for path in _files(folder)]
      if not parts:
        raise ValueError(f'{folder} is empty: there are no examples')
      if self._fields is None:
        self._fields = [records.Field(name=name) for name in parts[0][1]]
      return self._joined(folder, parts)
    except (ValueError, OSError) as error:
      where = '' if os.fspath(folder) in str(error) else f'{folder}: '
      raise task.BadClientError(f'{where}{error}') from error

  def _fields_of(self, path: pathlib.Path, part: _Part) -> _Part:
    """Checks the names of a file's fields, and their lengths."""
    lengths = {name: len(values) for name, values in part.items()}
    if len(set(lengths.values())) > 1:
      raise ValueError(f'{path}: fields differ in length: {lengths}')
    for field in self._fields or ():
      if field.column not in part and not field.optional:
        raise ValueError(f'{path}: there is no field {field.column!r}; there are '
                         f'{", ".join(map(repr, part)) or "none"}')
    if self._fields is not None and not self._only_these:
      more = set(part) - {field.column for field in self._fields}
      if more:
        raise ValueError(f'{path}: field {min(more)!r} is not in the first client\'s '
                         'files: name the fields to read')
    return part

  def _joined(self, folder: pathlib.Path, parts) -> dict[str, np.ndarray]:
    """The fields of all files of a client, end to end."""
    found = {}
    for field in self._fields:
      arrays = [_array(path, field, part, self._spec) for path, part in parts]
      if len({(array.dtype, array.shape[1:]) for array in arrays}) > 1:
        raise ValueError(f'field {field.column!r} differs in type or shape between '
                         'files')
      found[field.name] = array = np.concatenate(arrays)
      if self._spec is not None:
        dtype, shape = self._spec[field.name]
        if array.dtype != dtype or array.shape[1:] != shape:
          raise ValueError(
              f'field {field.column!r} must be {dtype} {list(shape)} as in the first '
              f'client, found {array.dtype} {list(array.shape[1:])}')
    if not len(next(iter(found.values()))):
      raise ValueError(f'{folder}: there are no examples')
    return found


def _array(path: pathlib.Path, field: records.Field, part: _Part,
           spec: records.ElementSpec | None) -> np.ndarray:
  values = part.get(field.column)
  try:
    if isinstance(values, np.ndarray):
      return columns_lib.from_array(field, values)
    if values is None:
      values = [None] * len(next(iter(part.values())))
    observed = columns_lib.Observed(field)
    if field.kind is None and spec is not None:
      # As the first client has it.
      dtype = spec[field.name][0]
      kind = records.TEXT if dtype == records.TEXT_DTYPE else (
          records.FLOAT if dtype.kind == 'f' else records.INTEGER)
      observed = columns_lib.Observed(
          records.Field(name=field.name, source_name=field.column, kind=kind))
    cells = path.name.removesuffix('.gz').endswith('.csv')
    values = [columns_lib.parse_cell(value, observed.kind)
              if cells and value is not None else value for value in values]
    for value in values:
      observed.observe(value)
    column = observed.column()
    return column.array([column.value(value) for value in values])
  except ValueError as error:
    raise ValueError(f'{path}: {error}') from error


def _files(folder: pathlib.Path) -> list[pathlib.Path]:
  """All files below a client's folder, in the order of their paths."""
  found = []
  for parent, folders, names in os.walk(folder):
    folders[:] = [name for name in folders if not name.startswith('.')]
    found += [pathlib.Path(parent) / name for name in names
              if not name.startswith('.')]
  return sorted(found)


def _read_file(path: pathlib.Path, folder: pathlib.Path) -> _Part:
  name = path.name.lower().removesuffix('.gz')
  for suffix, read in _READERS.items():
    if name.endswith(suffix):
      return read(path, folder)
  raise ValueError(f'{path} is of no known kind: {", ".join(_READERS)}')


def _jsonl(path: pathlib.Path, folder: pathlib.Path) -> _Part:
  del folder
  return _of_records(path, source_jsonl.located_records(path))


def _csv(path: pathlib.Path, folder: pathlib.Path) -> _Part:
  del folder
  return _of_records(path, source_csv.located_records(path))


def _of_records(path: pathlib.Path, located) -> _Part:
  """Lists by field of a file's records, which all have the fields of the first."""
  part: dict[str, list] = {}
  for line, record in located:
    if not part:
      part = {name: [] for name in record}
    if set(record) - set(part):
      raise ValueError(
          f'{record_index.place(path, line, None)}: field '
          f'{min(set(record) - set(part))!r} is not in the file\'s first record')
    for name, values in part.items():
      values.append(record.get(name))
  return part


def _npz(path: pathlib.Path, folder: pathlib.Path) -> _Part:
  del folder
  return npz_file.read(path, npz_file.names(path))


def _txt(path: pathlib.Path, folder: pathlib.Path) -> _Part:
  del folder
  with line_files.opened(path) as file:
    content = file.read(line_files.MAX_LINE_BYTES + 1)
  if len(content) > line_files.MAX_LINE_BYTES:
    raise ValueError(f'{path}: longer than {line_files.MAX_LINE_BYTES // 2**20} MiB')
  try:
    return {'text': [line_files.decoded(content)]}
  except ValueError as error:
    raise ValueError(f'{path}: {error}') from error


def _image(path: pathlib.Path, folder: pathlib.Path) -> _Part:
  # Comes with matplotlib; not needed for other kinds.
  from PIL import Image  # pylint: disable=g-import-not-at-top
  try:
    with Image.open(path) as image:
      pixels = np.asarray(image.convert('L' if image.mode in ('1', 'L') else 'RGB'))
  # Damage shows as OSError, SyntaxError, ValueError and DecompressionBombError.
  except Exception as error:
    raise ValueError(f'{path} is no image that can be read: {error}') from error
  part = {'image': pixels[np.newaxis]}
  if path.parent != folder:
    label = path.parent.name
    part['label'] = [int(label) if label.isdecimal() else label]
  return part


_READERS: Mapping[str, Callable[[pathlib.Path, pathlib.Path], _Part]] = {
    '.jsonl': _jsonl, '.csv': _csv, '.npz': _npz, '.txt': _txt, '.png': _image,
    '.jpg': _image, '.jpeg': _image, '.bmp': _image}
