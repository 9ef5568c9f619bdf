"""The store of clients' data: an SQLite copy of files, written once, read by client.

A copy is as private as the files. Its folder has mode 0700; it is found again by the
path, size, times of change and inode of each file, and by the options of reading them.
"""

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import json
import os
import pathlib
import re
import sys
import tempfile
import weakref

from tasks import task
from tasks.sources import convert
from tasks.sources import janitor
from tasks.sources import records
from tasks.sources import rows
from tasks.sources import sqlite

# Of a copy's content: a copy of another version is not found.
_VERSION = 1
_SPLIT = 'train'
_COPY = 'copy-'
_NAMES = re.compile(
    _COPY + r'[0-9a-f]{32}\.(sqlite|lock)|\.' + _COPY + r'[0-9a-f]{32}\..*\.partial')


def folder(cache_dir: str | os.PathLike[str] | None = None) -> pathlib.Path:
  """The folder of copies; by default tff_pipelines in the user's cache."""
  if cache_dir is not None:
    return pathlib.Path(cache_dir)
  return pathlib.Path(os.environ.get('XDG_CACHE_HOME') or '~/.cache').expanduser() / (
      'tff_pipelines')


def opened(reader: rows.Reader, *, fields: records.Fields,
           skips: task.Skips, cache_dir: str | os.PathLike[str] | None = None,
           no_cache: bool = False) -> sqlite.SqliteSource:
  """Opens the clients of files from their copy, which is written if there is none.

  Args:
    reader: Reads the files.
    fields: The fields to read; None reads all fields of the first row.
    skips: The treatment of bad clients; gets those that were left out.
    cache_dir: See `folder`.
    no_cache: Write a copy for this process alone, in the folder of temporary files,
      that is deleted when the process ends, however it does.

  Raises:
    ValueError: On bad data that are not to be skipped.
    OSError: If the copy can't be written.
  """
  def write(path, **recorded):
    convert.write(path, {_SPLIT: reader}, fields=fields,
                  skips=task.Skips(skips.enabled), for_store=True, **recorded)

  if no_cache:
    descriptor, name = tempfile.mkstemp(prefix=_COPY, suffix='.sqlite')
    os.close(descriptor)
    path, deletion = pathlib.Path(name), janitor.deleted_with_process(name)
    try:
      write(path)
      source = _source(reader, path, fields, skips)
    except BaseException:
      deletion.communicate()
      raise
    weakref.finalize(source, deletion.communicate)
    return source
  states = reader.states()
  identity = json.dumps([
      _VERSION, reader.identity, reader.client_field, states, skips.enabled,
      None if fields is None else [dataclasses.astuple(field) for field in fields]])
  directory = folder(cache_dir)
  key = hashlib.sha256(identity.encode('utf-8', 'surrogateescape')).hexdigest()[:32]
  path = directory / f'{_COPY}{key}.sqlite'
  try:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if directory.stat().st_uid != os.geteuid():
      raise PermissionError(errno.EPERM, 'it is another user\'s folder')
    lock = open(os.open(path.with_suffix('.lock'),
                        os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600), 'rb')
  except OSError as error:
    raise OSError(f'cache_dir={directory} can\'t be written: {error.strerror}; give '
                  '--cache_dir, or --no_cache') from error
  with lock:
    # Waits for another process that writes the same copy.
    fcntl.flock(lock, fcntl.LOCK_EX)
    if not path.exists():
      write(path, identity=identity, states=[states])
      size = path.stat().st_size
      size = f'{size / 1e9:.1f} GB' if size >= 1e9 else f'{size / 1e6:.1f} MB'
      print(f'{reader.name}: copied to {path}, {size} of private data. --no_cache '
            'keeps no copy, prepare_data --purge deletes all', file=sys.stderr)
  return _source(reader, path, fields, skips)


def _source(reader: rows.Reader, path: pathlib.Path, fields: records.Fields,
            skips: task.Skips) -> sqlite.SqliteSource:
  with sqlite.connected(path) as connection:
    for client, message in connection.execute('SELECT * FROM skipped'):
      skips.client(client, task.BadClientError(message))
  return sqlite.SqliteSource(path, _SPLIT, fields=fields, copy_of=reader.name)


def purge(cache_dir: str | os.PathLike[str] | None = None) -> tuple[int, int]:
  """Deletes all copies in a folder, unfinished ones too; their number and bytes."""
  number = size = 0
  for path in sorted(folder(cache_dir).glob(f'*{_COPY}*')):
    if not _NAMES.fullmatch(path.name) or not path.is_file():
      continue
    with contextlib.suppress(FileNotFoundError):
      number, size = number + (path.suffix == '.sqlite'), size + path.stat().st_size
      path.unlink()
  return number, size
