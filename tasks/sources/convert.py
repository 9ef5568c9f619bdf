"""Copies clients' data of any source to an SQLite file in TFF's format.

A copy may be stopped at any moment, in whatever way, and started again: clients that
are complete stay, and no client is ever there in part. A finished file is left alone.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import hashlib
import json
import os
import pathlib
import sqlite3
from typing import Any

from tasks import task
from tasks.sources import open_source
from tasks.sources import records
from tasks.sources import sqlite
from tasks.sources import sqlite_writer

# Options that do not define the copy: files are compared by size and time.
_NOT_COMPARED = ('data_path', 'test_path', 'skip_bad_clients')

# (ids of clients, name of their split) -> the same ids, with progress shown.
Progress = Callable[[Sequence[str], str], Iterable[str]]


def _no_progress(ids: Sequence[str], split: str) -> Iterable[str]:
  del split
  return ids


def _files(options: Mapping[str, Any]) -> list[tuple[str, int, int]]:
  """The files of the data, their sizes and times; folders by name only."""
  files = []
  for name in ('data_path', 'test_path'):
    for path in open_source.paths(options[name]) if options.get(name) else ():
      status = os.stat(path)
      is_file = pathlib.Path(path).is_file()
      files.append((os.path.abspath(path), status.st_size if is_file else 0,
                    status.st_mtime_ns if is_file else 0))
  return files


def _spec(source: task.ClientSource) -> list:
  return sorted((name, str(dtype), list(shape))
                for name, (dtype, shape) in source.element_spec.items())


def identity(raw: records.RawData, *, options: Mapping[str, Any],
             **how: Any) -> str:
  """What identifies the data and their copy, as JSON.

  Args:
    raw: The data.
    options: That they were opened with.
    **how: What else decides what the copy holds, as JSON.
  """
  clients = hashlib.sha256()
  for source in (raw.train, raw.test):
    for client in () if source is None else source.client_ids:
      clients.update(client.encode('utf-8', 'surrogateescape') + b'\0')
    clients.update(b'\0')
  compared = {key: value for key, value in options.items()
              if key not in _NOT_COMPARED}
  return json.dumps(dict(
      how, options=compared, files=_files(options), element_spec=_spec(raw.train),
      clients=clients.hexdigest()), sort_keys=True)


def _is_complete(path: pathlib.Path, wanted: str) -> bool:
  """Whether the output is there; raises ValueError if it is of other data."""
  if not path.exists():
    return False
  try:
    with sqlite.connected(path) as connection:
      present = sqlite_writer.read_identity(connection)
  except (ValueError, sqlite3.Error):
    present = None
  if present != wanted:
    raise ValueError(f'output={os.fspath(path)} exists already and is of other data')
  return True


def copy(raw: records.RawData, path: str | os.PathLike[str], *, identifier: str,
         progress: Progress = _no_progress) -> tuple[int, int] | None:
  """Writes the file, or what is missing of it.

  Args:
    raw: The data; bad clients that are skipped are counted in it.
    path: Of the file.
    identifier: Of the data and what is copied of them, see `identity`.
    progress: Shows how far the copy is.

  Returns:
    The numbers of clients and of examples in the file; None if it was complete
    already.

  Raises:
    ValueError: On bad data that are not to be skipped, or an output of other data.
    OSError: If the output can't be written.
  """
  if raw.test is not None and _spec(raw.test) != _spec(raw.train):
    raise ValueError(f'fields of the test part must be those of the training part, '
                     f'{_spec(raw.train)}, found {_spec(raw.test)}')
  path = pathlib.Path(path)
  if _is_complete(path, identifier):
    return None
  with sqlite_writer.SqliteWriter(
      path, element_spec=raw.train.element_spec, identity=identifier) as writer:
    for split, source in (('train', raw.train), ('test', raw.test)):
      if source is not None:
        _copy_split(writer, split, source, raw.skips, progress)
    return writer.finish()


def _copy_split(writer: sqlite_writer.SqliteWriter, split: str,
                source: task.ClientSource, skips: task.Skips,
                progress: Progress) -> None:
  """Copies the clients of a split that the file has not."""
  written = 0
  for client_id in progress(source.client_ids, split):
    if writer.has(split, client_id):
      written += 1
      continue
    try:
      examples = source.examples(client_id)
    except task.BadClientError as error:
      skips.client(client_id, error)
      continue
    try:
      writer.write(split, client_id, examples)
    except ValueError as error:
      raise ValueError(f'{records.where(source, client_id)}: {error}') from error
    written += 1
  if not written:
    raise ValueError(f'the {split} part has no client whose data are good')


def parse_field(text: str) -> records.Field:
  """The field that NAME, NAME:KIND or NAME:KIND? stands for. Raises ValueError."""
  name, _, kind = text.partition(':')
  if not name:
    raise ValueError(f'fields must be NAME, NAME:KIND or NAME:KIND?, found {text!r}')
  return records.Field(name=name, kind=kind.removesuffix('?') or None,
                       optional=kind.endswith('?'))
