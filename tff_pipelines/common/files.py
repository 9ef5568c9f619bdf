"""Files of a run's folder: their names, and how they are written and checked.

Folders have mode 0700 and files 0600, whatever the umask: times of files tell how long
rounds took, and that tells of cohorts. `publish` opens what is meant for others. No
TensorFlow here.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import contextlib
import csv
import datetime
import fcntl
import hashlib
import hmac
import io
import json
import os
import pathlib
import re
import secrets
import socket
import stat
import tempfile
import types
from typing import Any, BinaryIO, IO

import numpy as np

CONFIGURATION = 'configuration.json'
LEDGER = 'ledger.jsonl'
SUMMARY = 'summary.json'
METRICS = 'metrics.csv'
REPORT = 'report.txt'
PAGE = 'report.html'
FIGURE = 'progress.png'
# Paths of the data of the latest start, which no configuration has: they may change.
PATHS = 'paths.json'
# Folder of whatever depends on one client beyond what was released.
PRIVATE = 'private'
# Files in it: the key of the fingerprint of the data; locked while a process writes the
# folder; SHA-256 of files of the run that resumed runs read.
KEY, LOCK, DIGESTS = 'fingerprint.key', 'lock', 'digests.json'
# Line of each start, in the folder and again in `PRIVATE`: either may be lost.
STARTS = 'starts.log'

# Modes of folders and files.
_FOLDER, _FILE = 0o700, 0o600

# First characters of texts that a spreadsheet takes for a formula.
_FORMULA = ('=', '+', '-', '@', '\t', '\r', '\n')
# Characters that begin another cell or row in some spreadsheet, unless they are quoted.
_SEPARATORS = ';\t\r\n'


@contextlib.contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
  """Adds the path to errors that name none, such as that of a full disk."""
  try:
    yield
  except OSError as error:
    if error.filename is not None or error.errno is None:
      raise
    raise OSError(error.errno, error.strerror, os.fspath(path)) from None


def make_folder(folder: pathlib.Path) -> None:
  """Creates a folder, and those above it that are missing, for its owner alone.

  Raises OSError if it can't be created, or belongs to another user, who could read it.
  """
  if not folder.parent.exists():
    make_folder(folder.parent)
  is_new = not folder.exists()
  folder.mkdir(mode=_FOLDER, exist_ok=True)
  if stat.S_IMODE(folder.stat().st_mode) == _FOLDER:
    return
  try:
    folder.chmod(_FOLDER)  # The umask may have taken the owner's rights.
  except PermissionError as error:
    raise PermissionError(
        error.errno, f'{folder} belongs to another user: choose another') from None
  if not is_new:
    for path in folder.rglob('*'):
      if not path.is_symlink():
        path.chmod(_FOLDER if path.is_dir() else _FILE)


def opener(path: str | os.PathLike[str], flags: int) -> int:
  """Opens a file as `open` does, for its owner alone if it is created."""
  handle = os.open(path, flags, _FILE)
  if stat.S_IMODE(os.fstat(handle).st_mode) != _FILE:
    os.fchmod(handle, _FILE)
  return handle


def publish(path: pathlib.Path) -> None:
  """Gives a file, or a folder with all that is in it, the modes of the umask."""
  # To ask by `os.umask` would change it for other threads.
  status = pathlib.Path('/proc/self/status').read_text(encoding='ascii')
  umask = int(re.search(r'^Umask:\s*([0-7]+)', status, re.MULTILINE)[1], 8)
  for one in (path, *(path.rglob('*') if path.is_dir() else ())):
    if not one.is_symlink():
      one.chmod((0o777 if one.is_dir() else 0o666) & ~umask)


def sync_folder(folder: pathlib.Path) -> None:
  """Makes the names in a folder survive a power cut."""
  handle = os.open(folder, os.O_RDONLY)
  try:
    os.fsync(handle)
  finally:
    os.close(handle)


def write_durably(path: pathlib.Path, write: Callable[[BinaryIO], Any]) -> None:
  """Writes a file so that it is seen complete or not at all, after a power cut too."""
  with naming(path):
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f'.{path.name}.')
    try:
      with os.fdopen(handle, 'wb') as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
        os.fchmod(file.fileno(), _FILE)
      os.replace(partial, path)
    except BaseException:
      with contextlib.suppress(FileNotFoundError):  # The folder may be gone.
        os.unlink(partial)
      raise
    sync_folder(path.parent)


@contextlib.contextmanager
def replacing(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields a path to write to, with the same suffix; seen complete or not at all."""
  partial = path.with_name(f'.{os.getpid()}.{path.name}')
  with naming(path):
    try:
      os.close(opener(partial, os.O_CREAT | os.O_TRUNC | os.O_WRONLY))
      yield partial
      os.replace(partial, path)
    finally:
      partial.unlink(missing_ok=True)


def append(path: pathlib.Path, content: bytes, *, durable: bool = False) -> None:
  """Appends to a file, which is created; if that fails it stays as it was."""
  with naming(path):
    handle = opener(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
      size = os.fstat(handle).st_size
      try:
        while content:
          content = content[os.write(handle, content):]
        if durable:
          os.fsync(handle)
      except BaseException:
        os.ftruncate(handle, size)
        raise
    finally:
      os.close(handle)


def write_bytes(path: pathlib.Path, content: bytes) -> None:
  """`write_durably` of these bytes."""
  write_durably(path, lambda file: file.write(content))


def write_atomically(path: pathlib.Path, text: str) -> None:
  """`write_durably` of this text."""
  write_bytes(path, text.encode('utf-8'))


def write_json(path: pathlib.Path, value: Any) -> None:
  """`write_durably` of a JSON file."""
  write_atomically(path, json.dumps(value, indent=2, allow_nan=False) + '\n')


def read_key(folder: pathlib.Path) -> bytes:
  """The key of a run's fingerprints; ValueError if it is missing."""
  path = folder / PRIVATE / KEY
  if not path.exists():
    raise ValueError(f'{path} is missing: whether the data changed is not known')
  return path.read_bytes()


def new_key(folder: pathlib.Path) -> None:
  """Draws the key of a new run, for its operator alone; the folder must exist."""
  write_bytes(folder / PRIVATE / KEY, secrets.token_bytes(32))


def keyed(digest: str, key: bytes) -> str:
  """A digest by a secret key, HMAC-SHA256 in hexadecimal."""
  # From a plain one, whoever knows all other clients could find out whether one is there.
  return hmac.new(key, digest.encode(), hashlib.sha256).hexdigest()


def table(rows: Sequence[Mapping[str, Any]], *, has_header: bool = True) -> str:
  """Rows of the same names, at least one, as CSV in which no text is a formula."""
  # Texts may come from clients' data, and a spreadsheet must not run them: those that
  # begin with = + - @, a tab or the end of a line get a single quote in front.
  def inert(cell: Any) -> Any:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell

  lines: list[str] = []
  # The writer quotes the characters of its terminator.
  writer = csv.writer(types.SimpleNamespace(write=lines.append),
                      lineterminator=_SEPARATORS)
  if has_header:
    writer.writerow(map(inert, rows[0]))
  writer.writerows([inert(row[name]) for name in rows[0]] for row in rows)
  return ''.join(line.removesuffix(_SEPARATORS) + '\n' for line in lines)


def write_table(path: pathlib.Path, rows: Sequence[Mapping[str, Any]]) -> None:
  """`write_durably` of a `table`."""
  write_atomically(path, table(rows))


def write_batches(path: pathlib.Path,
                  batches: Iterable[Sequence[Mapping[str, Any]]]) -> int:
  """Writes rows as a .csv `table`, or a .parquet file, a batch at a time.

  The file is seen complete or not at all. Returns the number of rows. Raises ValueError
  if there is none.
  """
  count = 0
  with replacing(path) as partial, contextlib.ExitStack() as stack:
    for rows in filter(None, batches):
      if path.suffix == '.csv':
        if not count:
          file = stack.enter_context(open(partial, 'w', encoding='utf-8', newline=''))
        file.write(table(rows, has_header=not count))
      else:
        # Takes a quarter of a second to import.
        import pyarrow  # pylint: disable=g-import-not-at-top
        from pyarrow import parquet  # pylint: disable=g-import-not-at-top
        if not count:
          schema = pyarrow.Table.from_pylist(rows).schema
          writer = stack.enter_context(parquet.ParquetWriter(partial, schema))
        writer.write_table(pyarrow.Table.from_pylist(rows, schema))
      count += len(rows)
    if not count:
      raise ValueError('there is no example to predict')
    stack.close()  # Before the file gets its name.
  return count


def write_arrays(path: pathlib.Path, arrays: Mapping[str, np.ndarray]) -> None:
  """`write_durably` of an .npz file."""
  write_bytes(path, _archive(arrays))


def _archive(arrays: Mapping[str, np.ndarray]) -> bytes:
  content = io.BytesIO()  # On a full disk an archive would complain when it is closed.
  np.savez(content, **arrays)
  return content.getvalue()


def read_arrays(path: pathlib.Path) -> dict[str, np.ndarray] | None:
  """The arrays of an .npz file, None if there is none; ValueError if damaged."""
  return _arrays_of(path.read_bytes(), path) if path.exists() else None


def _arrays_of(content: bytes, path: pathlib.Path) -> dict[str, np.ndarray]:
  try:
    arrays = np.load(io.BytesIO(content), allow_pickle=False)
    return {name: arrays[name] for name in arrays.files}
  except Exception as error:
    raise ValueError(f'{path} is damaged: {error}') from error


def write_checked(folder: pathlib.Path, name: str, content: bytes) -> None:
  """Writes a file of a run that a resumed run reads, and its SHA-256 before."""
  digests, before = _digests(folder), read_checked(folder, name)
  # With that of the file that is there until the new one replaces it.
  digests[name] = [hashlib.sha256(one).hexdigest() for one in (content, before)
                   if one is not None]
  make_folder(folder / PRIVATE)
  write_json(folder / PRIVATE / DIGESTS, digests)
  write_bytes(folder / name, content)


def read_checked(folder: pathlib.Path, name: str) -> bytes | None:
  """The content that `write_checked` wrote, None without; ValueError if it is another."""
  path = folder / name
  if not path.exists():
    return None
  content = path.read_bytes()
  if hashlib.sha256(content).hexdigest() not in _digests(folder).get(name, []):
    raise ValueError(f'{path} is damaged: its SHA-256 is not in '
                     f'{folder / PRIVATE / DIGESTS}')
  return content


def write_checked_arrays(folder: pathlib.Path, name: str,
                arrays: Mapping[str, np.ndarray]) -> None:
  """`write_checked` of an .npz file with these arrays."""
  write_checked(folder, name, _archive(arrays))


def read_checked_arrays(folder: pathlib.Path, name: str) -> dict[str, np.ndarray] | None:
  """The arrays that `write_checked_arrays` wrote; see `read_checked`."""
  content = read_checked(folder, name)
  return None if content is None else _arrays_of(content, folder / name)


def _digests(folder: pathlib.Path) -> dict[str, list[str]]:
  """Name of a file -> SHA-256 of its content, and of the content before."""
  path = folder / PRIVATE / DIGESTS
  digests = read_json(path) if path.exists() else {}
  if not all(isinstance(value, list) for value in digests.values()):
    raise ValueError(f'{path} is damaged: it must have a list for each file')
  return digests


def read_json(path: pathlib.Path) -> dict[str, Any]:
  """The object in a JSON file; ValueError with its name if there is no such object."""
  try:
    value = json.loads(path.read_text(encoding='utf-8'))
  except (ValueError, RecursionError) as error:
    raise ValueError(f'{path} is damaged: {error}') from error
  if not isinstance(value, dict):
    raise ValueError(f'{path} is damaged: it must hold an object')
  return value


def new_folder(*words: str) -> pathlib.Path:
  """The path of a new folder below out/, named by words and the present microsecond."""
  now = datetime.datetime.now().strftime('%Y%m%d-%H%M%S-%f')
  return pathlib.Path('out') / '-'.join((*words, now))


def check_writable(path: str | os.PathLike[str], name: str) -> None:
  """Raises ValueError unless a file or folder can be created at the path.

  Missing folders above it count as creatable. `name` is that of the setting.
  """
  target = pathlib.Path(path).absolute()
  if target.is_file():
    return
  while not target.exists():
    target = target.parent
  try:
    tempfile.TemporaryFile(dir=target).close()
  except OSError as error:
    raise ValueError(f'{name}={os.fspath(path)} can\'t be written: {target}: '
                     f'{error.strerror}') from None


def check_folder(folder: str | os.PathLike[str], *, resume: bool) -> None:
  """Raises ValueError unless a run can be started, or resumed, in the folder."""
  path = pathlib.Path(folder)
  if (writer := _writer(path)) not in (None, _me()):
    raise _in_use(path, writer)
  if path.exists() and not path.is_dir():
    raise ValueError(f'output_dir={folder} must be a folder, found a file')
  check_writable(folder, 'output_dir')
  if (path / CONFIGURATION).exists():
    if not resume:
      raise ValueError(
          f'output_dir={folder} holds a run already: pass --resume to continue it')
  elif path.exists() and not all(_is_partial(entry) for entry in path.iterdir()):
    raise ValueError(f'output_dir={folder} is not empty and holds no run')


def _is_partial(path: pathlib.Path) -> bool:
  """Whether a start that recorded no run, so released nothing, left this behind."""
  # More than one start, a line of the ledger after its header, or another file are of a
  # run whose configuration is lost.
  if path.name == PRIVATE and path.is_dir():
    return all(KEY in entry.name or entry.name == LOCK or _is_partial(entry)
               for entry in path.iterdir())
  if path.name in (STARTS, LEDGER):
    return path.read_bytes().count(b'\n') <= 1
  return path.name.startswith(
      tuple(f'.{name}.' for name in (CONFIGURATION, STARTS)) + (f'{LEDGER}.',))


def create_folder(folder: pathlib.Path) -> None:
  """Creates the folder of a run; removes what a start left that recorded no run."""
  private = folder / PRIVATE
  make_folder(folder)
  make_folder(private)
  if not (folder / CONFIGURATION).exists():
    for entry in filter(_is_partial, (*folder.iterdir(), *private.iterdir())):
      if entry != private:
        entry.unlink(missing_ok=True)


def _me() -> str:
  return f'process {os.getpid()} on {socket.gethostname()}'


def _writer(folder: pathlib.Path) -> str | None:
  """The process that writes a folder; None if there is none."""
  try:
    file = open(folder / PRIVATE / LOCK, encoding='utf-8')
  except (FileNotFoundError, NotADirectoryError):
    return None
  with file:
    return None if _lock(file, folder) else file.read() or 'another process'


def _lock(file: IO[str], folder: pathlib.Path) -> bool:
  """Locks a file of a run's folder, unless another process has; OSError if none can."""
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    return False
  except OSError as error:
    raise OSError(f'output_dir={folder} can\'t be locked ({error.strerror}): choose a '
                  'file system that has locks') from None
  return True


def _in_use(folder: pathlib.Path, writer: str | None) -> ValueError:
  return ValueError(f'output_dir={folder} is being written by {writer}')


@contextlib.contextmanager
def locked(folder: pathlib.Path) -> Iterator[None]:
  """Makes this process the one that writes a run's folder, which it creates.

  The lock ends with the process. What is left of a start that recorded no run is removed.

  Raises OSError if the folder can't be written, or its file system has no locks;
  ValueError if another process, or another run of this one, writes the folder.
  """
  is_new = not folder.exists()
  make_folder(folder)
  make_folder(folder / PRIVATE)
  path = folder / PRIVATE / LOCK
  handle = opener(path, os.O_RDWR | os.O_CREAT)
  with open(handle, 'r+', encoding='utf-8') as file:
    if not _lock(file, folder):
      raise _in_use(folder, _writer(folder))
    if not path.exists() or not os.path.samestat(os.fstat(file.fileno()), path.stat()):
      raise _in_use(folder, 'another process')  # It ends, and takes its lock along.
    try:
      with naming(path):
        file.truncate(0)  # A process that was killed left its name.
        os.write(handle, _me().encode('utf-8'))
      yield
    finally:
      file.truncate(0)
      if not (folder / CONFIGURATION).exists():
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # There is more in it.
          (folder / PRIVATE).rmdir()
          if is_new:
            folder.rmdir()


def finite(value: float | None) -> float | None:
  """The number for JSON, which knows neither infinity nor NaN: None for them."""
  return None if value is None or not np.isfinite(value) else float(value)
