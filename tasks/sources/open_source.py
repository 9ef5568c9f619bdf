"""Opens clients' data in files of any format, as raw sources.

  raw = open_source.open_raw(
      'jsonl', data_path='posts.jsonl.gz', client_field='client',
      fields=[records.Field(name='text', kind=records.TEXT)])
"""

from collections.abc import Mapping
import functools
import glob
import os
import pathlib
from typing import Any

from tasks import checks
from tasks import task
from tasks.sources import folders
from tasks.sources import labelled
from tasks.sources import records
from tasks.sources import rows

# Those with a field that names the client, and others; all but sqlite and folder are
# functions of `rows`. Tasks add sources of their own: embedded and official.
_BY_FIELD = ('csv', 'jsonl', 'npz', 'parquet')
FORMATS = tuple(sorted((*_BY_FIELD, 'folder', 'leaf', 'sqlite')))


def paths(pattern: str) -> list[str]:
  """The files that a --data_path names: paths and patterns between commas.

  Raises:
    ValueError: If a pattern fits no file, or a file is named twice.
  """
  result = []
  for part in pattern.split(','):
    # A file may have a name that looks like a pattern.
    names = [part] if pathlib.Path(part).exists() or not glob.has_magic(part) else (
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


def options(data_source: str) -> tuple[str, ...]:
  """The options of `open_raw` that a format uses; data_path is always needed."""
  if data_source == 'sqlite':
    return 'data_path', 'train_split', 'test_split', 'skip_bad_clients'
  return ('data_path', *(['client_field'] if data_source in _BY_FIELD else []),
          *([] if data_source == 'npz' else ['test_path']),
          'skip_bad_clients', 'cache_dir', 'no_cache')


# Those of all formats, for flags.
OPTIONS = tuple(sorted({name for format_ in FORMATS for name in options(format_)}))


def readers(data_source: str, *, fields: records.Fields, data_path: str,
            test_path: str | None = None, **given: Any) -> dict[str, rows.Reader]:
  """Readers of the rows of a training part and, if there is one, of a test part.

  Arguments are those of `open_raw`.
  """
  if data_source == 'sqlite':
    return {split: rows.of_source(source, [data_path])
            for split, source in _splits(fields, data_path, **given).items()}
  common = set(map(os.path.realpath, files(data_path))) & set(
      map(os.path.realpath, files(test_path)))
  if common:
    raise ValueError(f'test_path must name other files than data_path, found '
                     f'{min(common)} in both')
  read = functools.partial(_reader, data_source, fields)
  if data_source in _BY_FIELD:
    given.setdefault('client_field', 'client')
  if data_source != 'npz':
    return {split: read(path, **given) for split, path in (
        ('train', data_path), ('test', test_path)) if path is not None}
  names, client = labelled.array_names(data_path), given['client_field']
  if f'{client}_train' not in names and client in names:
    return {'train': read(data_path, **given, suffix='')}
  return {split: read(data_path, **given, suffix=f'_{split}')
          for split in ('train', 'test')
          if split == 'train' or f'{client}_test' in names}


def _reader(data_source: str, fields: records.Fields, data_path: str,
            **identity: str) -> rows.Reader:
  """A reader of one part; identity: the options that decide what its rows are."""
  client_field = identity.get('client_field')
  if data_source == 'folder':
    clients = folders.listed(data_path)
    files_ = [file for files_ in clients.values() for file in files_]
    read = functools.partial(folders.read, data_path, clients)
    identity = {'clients': list(clients)}
  else:
    files_ = [data_path] if data_source == 'npz' else paths(data_path)
    for path in files_:
      if not pathlib.Path(path).is_file():
        raise ValueError(f'{path} does not exist or is not a file')
    read = functools.partial(getattr(rows, data_source), files_)
  if data_source == 'npz':
    read = functools.partial(read, fields=fields, **identity)
  elif data_source == 'parquet' and fields is not None:
    read = functools.partial(read, wanted={
        client_field: False, **{field.column: field.optional for field in fields}})
  return rows.Reader(rows=read, paths=files_, name=data_path, client_field=client_field,
                     identity={'format': data_source, **identity})


def check_options(data_source: str, given: Mapping[str, Any]) -> None:
  """Raises ValueError unless these are options of a format, data_path among them."""
  checks.choice('data_source', data_source, FORMATS)
  checks.options(f'data_source {data_source}', given, options(data_source),
                 ['data_path'])


def open_raw(data_source: str, *, fields: records.Fields,
             skip_bad_clients: bool = False, **given: Any) -> records.RawData:
  """Opens files, of whose clients a copy in SQLite is written unless there is one.

  Args:
    data_source: One of FORMATS.
    fields: The fields to read; None reads all.
    skip_bad_clients: Skip and count clients and records that are bad.
    **given: Some of `options(data_source)`. data_path: the files, between commas or
      as patterns. test_path: those of a test part. client_field: the field or
      column that names the client. cache_dir, no_cache: see `store.opened`.
      train_split, test_split: of SQLite; 'train', or the only one, and 'test', if
      there is one.

  Returns:
    The raw sources.

  Raises:
    ValueError: On an unknown format, an option that it does not use, one that it
      needs and lacks, and bad data.
    OSError: If the copy can't be written.
  """
  check_options(data_source, given)
  # Imports TensorFlow, which takes seconds and settings do not need.
  from tasks.sources import store  # pylint: disable=g-import-not-at-top
  skips = task.Skips(skip_bad_clients)
  if data_source == 'sqlite':
    parts = _splits(fields, **given)
  else:
    cache = {name: given.pop(name) for name in ('cache_dir', 'no_cache')
             if name in given}
    parts = {split: store.opened(reader, fields=fields, skips=skips, **cache)
             for split, reader in readers(data_source, fields=fields, **given).items()}
  return records.RawData(train=parts['train'], test=parts.get('test'), skips=skips)


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
      raise ValueError(f'{data_path} has no split {split!r}; it has '
                       f'{records.names(names)}')
  return {part: sqlite.SqliteSource(data_path, split, fields=fields)
          for part, split in chosen.items() if split is not None}
