"""Opens clients' data in files of any format, as raw sources.

  raw = open_source.open_raw(
      'jsonl', data_path='posts.jsonl.gz', client_field='client',
      fields=[records.Field(name='text', kind=records.TEXT)])
"""

from collections.abc import Callable, Iterator, Mapping
import dataclasses
import functools
import glob
import os
import pathlib
from typing import Any

import numpy as np

from tasks import checks, task
from tasks.sources import labelled, partition, records, rows, tables


@dataclasses.dataclass(frozen=True, kw_only=True)
class Format:
  """A format of clients' files.

  Attributes:
    reader: (fields, data_path, **options) -> reader of the rows of a part; None for
      files that are read in place, which need no copy.
    client_field: Default name of the field that names the client; None if the files
      name clients otherwise.
    parts: (data_path, client_field) -> name of each part -> options of its reader,
      where a file has all parts; None if a test part has files of its own.
    image, label: Names of these fields where none are given.
    dark_ink: Whether ink is near 0 in images of characters, where it is not said.
    suffixes: Ends of names of such files, before one of compression.
    has_header: Whether a file lists its columns, without its rows.
  """

  reader: Callable[..., rows.Reader] | None
  client_field: str | None = None
  parts: Callable[[str, str], dict[str, dict[str, str]]] | None = None
  image: str = 'pixels'
  label: str = 'label'
  dark_ink: bool = False
  suffixes: tuple[str, ...] = ()
  has_header: bool = False


def paths(pattern: str) -> list[str]:
  """The files that a --data_path names: paths and patterns between commas.

  Raises ValueError if a pattern fits no file, or a file is named twice.
  """
  result = []
  for part in pattern.split(','):
    # A file may have a name that looks like a pattern.
    names = [part] if os.path.exists(part) or not glob.has_magic(part) else (
        sorted(glob.glob(part, recursive=True)))
    if not part or not names:
      raise ValueError(f'data_path must name files, found {part!r}, which fits none')
    result += names
  if len(set(map(os.path.realpath, result))) != len(result):
    raise ValueError(f'data_path must name every file once, found {pattern!r}')
  return result


def files(pattern: str | None) -> list[str]:
  """The same, with all files that are below folders; none for None."""
  result = []
  for path in () if pattern is None else paths(pattern):
    below = (os.path.join(parent, name) for parent, _, names in os.walk(path)
             for name in names)
    result += sorted(below) if os.path.isdir(path) else [path]
  return result


def format_of(pattern: str, name: str = 'data_path') -> str:
  """The format that the names of files tell; that of a folder is `folder`.

  Raises ValueError if they tell none, or several, or a pattern fits no file.
  """
  def of_path(path: str) -> str | None:
    if os.path.isdir(path):
      return 'folder'
    suffix = pathlib.Path(path.lower().removesuffix('.gz')).suffix
    return next((key for key, format_ in FORMATS.items()
                 if suffix in format_.suffixes), None)

  found = set(map(of_path, paths(pattern)))
  if len(found) != 1 or None in found:
    known = ', '.join(suffix for format_ in FORMATS.values()
                      for suffix in format_.suffixes)
    rule = f'files of one format by their names ({known}), or data_source given'
    raise checks.wrong(name, rule, repr(pattern))
  return found.pop()


def whole_rows(data_source: str, data_path: str) -> Iterator[rows.Row]:
  """The rows of a training part with all columns, whichever names the client."""
  given = {'client_field': ''} if FORMATS[data_source].client_field else {}
  return readers(data_source, fields=None, data_path=data_path, **given)['train'].rows(
      lambda _: None)


def columns(data_source: str, data_path: str) -> list[str]:
  """The names of the columns by the header of files; none without a header."""
  row = next(whole_rows(data_source, data_path), None) if (
      FORMATS[data_source].has_header) else None
  return [] if row is None or isinstance(row.record, ValueError) else list(row.record)


def check_public(name: str, path: str | None, options: Mapping[str, Any]) -> None:
  """Raises ValueError if a file of a test part, or a public one, is one of the data."""
  own = set(map(os.path.realpath, files(path)))
  for other in ('data_path', 'test_path'):
    if common := own.intersection(map(os.path.realpath, files(options.get(other)))):
      raise ValueError(f'{name} and {other} must differ, found {min(common)} in both')


_OF_ALL = ('skip_bad_clients', 'person_field', 'held_out_records')


def options(data_source: str) -> tuple[str, ...]:
  """The options of `open_raw` that a format uses; data_path is always needed."""
  format_ = FORMATS[data_source]
  if format_.reader is None:
    return ('data_path', 'train_split', 'test_split', *_OF_ALL)
  return ('data_path', *(['client_field'] if format_.client_field else []),
          *([] if format_.parts else ['test_path']),
          'cache_dir', 'no_cache', *_OF_ALL)


def readers(data_source: str, *, fields: records.Fields, data_path: str,
            test_path: str | None = None, **given: Any) -> dict[str, rows.Reader]:
  """Readers of the rows of a training part and, if there is one, of a test part.

  Arguments are those of `open_raw`.
  """
  format_ = FORMATS[data_source]
  if format_.reader is None:
    return {split: rows.of_source(source, [data_path])
            for split, source in _splits(fields, data_path, **given).items()}
  check_public('test_path', test_path, {'data_path': data_path})
  if format_.client_field:
    given.setdefault('client_field', format_.client_field)
  parts = {'train': {}} if test_path is None else {'train': {}, 'test': {}}
  if format_.parts:
    parts = format_.parts(data_path, given['client_field'])
  result = {}
  for split, of_part in parts.items():
    path = data_path if format_.parts or split == 'train' else test_path
    reader = format_.reader(fields, path, **given, **of_part)
    result[split] = dataclasses.replace(
        reader, name=path, client_field=given.get('client_field'),
        identity={'format': data_source, **reader.identity})
  return result


def of_files(read: Callable[..., Iterator[rows.Row]], fields: records.Fields,
             data_path: str, *, selects: bool = False, **identity: str) -> rows.Reader:
  """The reader of a part in files.

  Args:
    read: (paths, progress) -> rows.
    fields: Fields to read; None for all.
    data_path: Paths and patterns, as in `paths`; of a file with all parts its path.
    selects: Whether `read` also takes `fields`, and the identity, as keywords.
    **identity: Options that decide what the rows are.
  """
  files_ = [data_path] if 'suffix' in identity else paths(data_path)
  for path in files_:
    checks.file(path)
  wanted = {'fields': fields, **identity} if selects else {}
  return rows.Reader(rows=functools.partial(read, files_, **wanted), paths=files_,
                     identity=identity)


def _npz_parts(data_path: str, client_field: str) -> dict[str, dict[str, str]]:
  names = labelled.array_names(data_path)
  if f'{client_field}_train' not in names and client_field in names:
    return {'train': {'suffix': ''}}
  return {split: {'suffix': f'_{split}'} for split in ('train', 'test')
          if split == 'train' or f'{client_field}_test' in names}


def check_options(data_source: str, given: Mapping[str, Any]) -> None:
  """Raises ValueError unless these are options of a format, data_path among them."""
  checks.choice('data_source', data_source, FORMATS)
  checks.options(f'data_source {data_source}', given, options(data_source), ['data_path'])


def open_raw(data_source: str, *, fields: records.Fields,
             skip_bad_clients: bool = False, person_field: str | None = None,
             held_out_records: float | None = None, **given: Any) -> records.RawData:
  """Opens files, of whose clients a copy in SQLite is written unless there is one.

  Args:
    data_source: One of FORMATS.
    fields: The fields to read; None reads all.
    skip_bad_clients: Skip and count clients and records that are bad.
    person_field: Field that names the person of a record, in every record; None if
      persons are not told apart.
    held_out_records: Fraction of each client's records, or persons, that are the test
      part where there is no other; None for none.
    **given: Some of `options(data_source)`. data_path: the files, between commas or
      as patterns. test_path: those of a test part. client_field: the field or
      column that names the client. cache_dir, no_cache: see `store.open_copy`.
      train_split, test_split: of SQLite; 'train', or the only one, and 'test', if
      there is one.

  Raises ValueError on an unknown format, an option that it does not use, one that it
  needs and lacks, and bad data; OSError if the copy can't be written.
  """
  check_options(data_source, given)
  # Imports TensorFlow, which takes seconds and settings do not need.
  from tasks.sources import store  # pylint: disable=g-import-not-at-top
  skips = task.Skips(skip_bad_clients)
  if person_field is not None:
    fields = [*fields, records.Field(
        name=records.PERSON, source_name=person_field, kind=records.CATEGORY,
        complete=True, noun='person field')]
  if FORMATS[data_source].reader is None:
    parts = _splits(fields, **given)
  else:
    cache = {name: given.pop(name) for name in ('cache_dir', 'no_cache') if name in given}
    parts = {split: store.open_copy(reader, fields=fields, skips=skips, **cache)
             for split, reader in readers(data_source, fields=fields, **given).items()}
  train, test = partition.with_part(parts['train'], parts.get('test'), held_out_records)
  return records.RawData(train=train, test=test, skips=skips)


def _splits(fields: records.Fields, data_path: str, train_split: str | None = None,
            test_split: str | None = None) -> dict[str, task.ClientSource]:
  """The parts of an SQLite file."""
  from tasks.sources import sqlite  # pylint: disable=g-import-not-at-top
  names = sqlite.split_names(data_path)
  if train_split is None:
    train_split = names[0] if len(names) == 1 else 'train'
  if test_split is None and 'test' in names and train_split != 'test':
    test_split = 'test'
  chosen = {'train': train_split, 'test': test_split}
  for split in filter(None, chosen.values()):
    if split not in names:
      raise ValueError(f'{data_path}: split must be one of {names}, found {split!r}')
  return {part: sqlite.SqliteSource(data_path, split, fields=fields)
          for part, split in chosen.items() if split is not None}


def _folders(path: rows.Path) -> dict[str, list[pathlib.Path]]:
  """The clients of a folder of folders, sorted, and the files of each."""
  path = pathlib.Path(path)
  if not path.is_dir():
    raise ValueError(f'{path} does not exist or is not a folder')
  ids = sorted(entry.name for entry in path.iterdir()
               if entry.is_dir() and not entry.name.startswith('.'))
  if not ids:
    raise ValueError(f'{path} has no folder: each client must have its own')
  seen: dict[str, str] = {}
  for client in ids:
    if client.encode('utf-8', 'replace').decode() != client:
      raise ValueError(f'{path}: the name of the folder {client!r} is not UTF-8')
    other = seen.setdefault(os.path.realpath(path / client), client)
    if other != client:
      raise ValueError(f'{path}: {other!r} and {client!r} are one folder, by a link')
  return {client: _below(path / client) for client in ids}


_TABLES = ('.csv', '.tsv')
_IMAGES = ('.png', '.jpg', '.jpeg', '.bmp')


def _below(client: pathlib.Path) -> list[pathlib.Path]:
  """All files below a client's folder, in the order of their paths."""
  result = []
  for parent, folders, names in os.walk(client):
    folders[:] = [name for name in folders if not name.startswith('.')]
    result += [pathlib.Path(parent) / name for name in names if not name.startswith('.')]
  return sorted(result)


def _of_folder(fields: records.Fields, data_path: str) -> rows.Reader:
  """The reader of a folder of folders; all fields are read."""
  del fields
  clients = _folders(data_path)
  return rows.Reader(
      rows=functools.partial(_folder, data_path, clients),
      paths=[file for files_ in clients.values() for file in files_],
      identity={'clients': list(clients)})


def _folder(path: rows.Path, clients: Mapping[str, list[pathlib.Path]],
            progress: rows.Progress) -> Iterator[rows.Row]:
  """The rows of all clients of a folder of folders.

  Files are read in the order of their paths below the client's folder:
    .jsonl, .jsonl.gz   a record a line
    .csv, .tsv, .csv.gz a row a line, with a header
    .npz                arrays that share their first dimension
    .txt                one example with the one field 'text'
    .png, .jpg, .jpeg, .bmp   one example with the fields 'image', uint8 [height,
                        width] or [height, width, 3], and, if the file is in a folder
                        of its own below the client's, 'label', that folder's name
  Names with a dot in front are ignored.
  """
  for client, files_ in clients.items():
    folder, is_empty = pathlib.Path(path) / client, True
    try:
      for file in files_:
        for row in _file(file, folder, progress):
          is_empty = False
          yield row._replace(client=client)
      if is_empty:
        raise ValueError('there are no examples')
    except (ValueError, OSError) as error:
      yield rows.Row(os.fspath(folder), client, ValueError(error))


def _file(path: pathlib.Path, client: pathlib.Path,
          progress: rows.Progress) -> Iterator[rows.Row]:
  checks.file(path)  # Reading a pipe would not end.
  suffix = pathlib.Path(path.name.lower().removesuffix('.gz')).suffix
  if suffix in ('.jsonl', *_TABLES):
    return (tables.csv if suffix in _TABLES else rows.jsonl)([path], progress)
  if suffix == '.npz':
    return _arrays(path, progress)
  if suffix == '.txt':
    return iter([rows.Row(os.fspath(path), None, {'text': rows.text(path, progress)})])
  if suffix in _IMAGES:
    return iter([rows.Row(os.fspath(path), None, _image(path, client, progress))])
  raise ValueError(f'{path} is none of .jsonl, {", ".join(_TABLES)}, .npz, .txt, '
                   f'{", ".join(_IMAGES)}')


def _arrays(path: pathlib.Path, progress: rows.Progress) -> Iterator[rows.Row]:
  progress(path.stat().st_size)
  arrays = labelled.arrays(path, (), labelled.array_names(path))
  with checks.located(path):
    count = rows.common_length(arrays)
  for row in range(count):
    yield rows.Row(f'{path}, row {row}', None,
                   {name: array[row] for name, array in arrays.items()})


def _image(path: pathlib.Path, client: pathlib.Path,
           progress: rows.Progress) -> dict[str, Any]:
  # Not needed for other files.
  from PIL import Image  # pylint: disable=g-import-not-at-top
  progress(path.stat().st_size)
  try:
    # Despite its name, a file may be of a format that starts programs.
    with Image.open(path, formats=('PNG', 'JPEG', 'BMP')) as image:
      pixels = np.asarray(image.convert('L' if image.mode in ('1', 'L') else 'RGB'))
  # Damage shows as OSError, SyntaxError, ValueError and DecompressionBombError.
  except Exception as error:
    raise ValueError(f'{path} is no image that can be read: {error}') from error
  if path.parent == client:
    return {'image': pixels}
  label = path.parent.name
  return {'image': pixels, 'label': int(label) if label.isdecimal() else label}


def _format(read: Callable[..., Iterator[rows.Row]], *, selects: bool = False,
            **rest: Any) -> Format:
  return Format(reader=functools.partial(of_files, read, selects=selects), **rest)


# Tasks add sources of their own: embedded and official.
FORMATS = {
    'csv': _format(tables.csv, client_field='client', suffixes=_TABLES,
                   has_header=True),
    'folder': Format(reader=_of_folder, image='image'),
    'jsonl': _format(rows.jsonl, client_field='client', suffixes=('.jsonl',)),
    'leaf': _format(rows.leaf, image='x', label='y', dark_ink=True,
                    suffixes=('.json',)),
    'npz': _format(rows.npz, selects=True, client_field='client', parts=_npz_parts,
                   image='x', label='y', suffixes=('.npz',)),
    'parquet': _format(rows.parquet, selects=True, client_field='client',
                       suffixes=('.parquet',), has_header=True),
    'sqlite': Format(reader=None, suffixes=('.sqlite', '.db'))}
# Those whose files are rows, one after another.
OF_ROWS = ('csv', 'jsonl', 'parquet')
# Options of all formats, for flags.
OPTIONS = tuple(sorted({name for format_ in FORMATS for name in options(format_)}))
