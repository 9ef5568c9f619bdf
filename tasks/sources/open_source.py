"""Opens clients' data in files of any format, as raw sources.

  raw = open_source.open_raw(
      'jsonl', data_path='posts.jsonl.gz', client_field='client',
      fields=[records.Field(name='text', kind=records.TEXT)])
"""

import dataclasses
import glob
import inspect
import pathlib
from typing import Any, Callable, Mapping, Sequence

from tasks.sources import records
from tasks.sources import npz as source_npz
from tasks import task

# What `client_field` is where it is not given.
_CLIENT = 'client'

_Fields = Sequence[records.Field] | None


def paths(pattern: str) -> list[str]:
  """The files that a --data_path names: paths and patterns between commas.

  Raises:
    ValueError: If a pattern fits no file, or a file is named twice.
  """
  found = []
  for part in pattern.split(','):
    # A file whose name looks like a pattern is taken for itself.
    names = [part] if pathlib.Path(part).exists() or not glob.has_magic(part) else (
        sorted(glob.glob(part, recursive=True)))
    if not part or not names:
      raise ValueError(f'data_path must name files, found {part!r}, which fits none')
    found += names
  if len(set(found)) != len(found):
    raise ValueError(f'data_path must name every file once, found {pattern!r}')
  return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Request:
  """What every opener below is given besides its options."""

  fields: _Fields
  skips: task.Skips


def _both(open_files: Callable[[list[str]], task.ClientSource], data_path: str,
          test_path: str | None) -> tuple[task.ClientSource, task.ClientSource | None]:
  train = open_files(paths(data_path))
  return train, None if test_path is None else open_files(paths(test_path))


def _jsonl(request: _Request, *, data_path: str, test_path: str | None = None,
           client_field: str = _CLIENT):
  from tasks.sources import jsonl as source_jsonl  # pylint: disable=g-import-not-at-top
  return _both(
      lambda files: source_jsonl.open_files(
          files, client_field=client_field, fields=request.fields,
          skips=request.skips), data_path, test_path)


def _csv(request: _Request, *, data_path: str, test_path: str | None = None,
         client_field: str = _CLIENT):
  from tasks.sources import csv_files as source_csv  # pylint: disable=g-import-not-at-top
  return _both(
      lambda files: source_csv.open_files(
          files, client_field=client_field, fields=request.fields,
          skips=request.skips), data_path, test_path)


def _parquet(request: _Request, *, data_path: str, test_path: str | None = None,
             client_field: str = _CLIENT):
  from tasks.sources import parquet as source_parquet  # pylint: disable=g-import-not-at-top
  return _both(
      lambda files: source_parquet.open_files(
          files, client_field=client_field, fields=request.fields,
          skips=request.skips), data_path, test_path)


def _leaf(request: _Request, *, data_path: str, test_path: str | None = None):
  from tasks.sources import leaf as source_leaf  # pylint: disable=g-import-not-at-top
  return _both(
      lambda files: source_leaf.open_files(
          files, fields=request.fields, skips=request.skips), data_path, test_path)


def _folder(request: _Request, *, data_path: str, test_path: str | None = None):
  from tasks.sources import folders as source_folder  # pylint: disable=g-import-not-at-top
  return tuple(
      None if path is None else source_folder.FolderSource(
          path, fields=request.fields, skips=request.skips)
      for path in (data_path, test_path))


def _npz(request: _Request, *, data_path: str, client_field: str = _CLIENT):
  return source_npz.open_file(
      data_path, client_field=client_field, fields=request.fields)


def _sqlite(request: _Request, *, data_path: str, train_split: str | None = None,
            test_split: str | None = None):
  # TensorFlow takes seconds to import, which the other sources need not pay.
  from tasks.sources import sqlite as source_sqlite  # pylint: disable=g-import-not-at-top
  there = source_sqlite.split_names(data_path)
  if train_split is None:
    train_split = there[0] if len(there) == 1 else 'train'
  for split in (train_split, test_split):
    if split is not None and split not in there:
      raise ValueError(f'{data_path} has no split {split!r}; it has '
                       f'{", ".join(map(repr, there)) or "none"}')
  if test_split is None and 'test' in there and train_split != 'test':
    test_split = 'test'
  return tuple(
      None if split is None else source_sqlite.SqliteSource(
          data_path, split, fields=request.fields)
      for split in (train_split, test_split))


_OPENERS: Mapping[str, Callable[..., Any]] = {
    'csv': _csv, 'folder': _folder, 'jsonl': _jsonl, 'leaf': _leaf, 'npz': _npz,
    'parquet': _parquet, 'sqlite': _sqlite}

# The formats. Tasks add sources of their own: embedded and official.
FORMATS = tuple(sorted(_OPENERS))


def options(data_source: str) -> tuple[str, ...]:
  """The options of `open_raw` that a format uses; data_path is always needed."""
  names = inspect.signature(_OPENERS[data_source]).parameters
  return (*(name for name in names if name != 'request'), 'skip_bad_clients')


# All of them, for flags.
OPTIONS = tuple(sorted({name for format_ in _OPENERS for name in options(format_)}))


def open_raw(data_source: str, *, fields: _Fields,
             skip_bad_clients: bool = False, **given: Any) -> records.RawData:
  """Opens files.

  Args:
    data_source: One of FORMATS.
    fields: What to read; None reads everything.
    skip_bad_clients: Skip and count clients and records that are bad.
    **given: Some of `options(data_source)`. data_path: the files, between commas or
      as patterns. test_path: those of a test part. client_field: the field or
      column that names the client. train_split, test_split: of SQLite; 'train',
      or the only one, and 'test', if there is one.

  Returns:
    The raw sources.

  Raises:
    ValueError: On an unknown format, an option that it does not use, one that it
      needs and lacks, and bad data.
  """
  if data_source not in _OPENERS:
    raise ValueError(
        f'data_source must be one of {", ".join(FORMATS)}, found {data_source!r}')
  unused = sorted(set(given) - set(options(data_source)))
  if unused:
    raise ValueError(
        f'data_source {data_source} does not use {", ".join(unused)}; its options '
        f'are {", ".join(options(data_source))}')
  if 'data_path' not in given:
    raise ValueError(f'data_source {data_source} needs data_path')
  skips = task.Skips(skip_bad_clients)
  train, test = _OPENERS[data_source](
      _Request(fields=fields, skips=skips), **given)
  return records.RawData(train=train, test=test, skips=skips)
