"""Files of a run's folder: their names, and how they are written and checked.

Without TensorFlow, for programs that only read what runs have left.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
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
import secrets
import socket
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
# Folder of what stays with the operator: whatever depends on one client beyond what
# was released.
PRIVATE = 'private'
# File in it with the key of the fingerprint of the data.
KEY = 'fingerprint.key'
# File in it that is locked while a process writes the folder.
LOCK = 'lock'
# File in it that says that rounds were computed on a cluster, at any start.
CLUSTER = 'cluster'

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


def sync_folder(folder: pathlib.Path) -> None:
  """Makes the names in a folder survive a power cut."""
  handle = os.open(folder, os.O_RDONLY)
  try:
    os.fsync(handle)
  finally:
    os.close(handle)


def write_durably(path: pathlib.Path, write: Callable[[BinaryIO], Any],
                  mode: int = 0o644) -> None:
  """Writes a file so that it is seen complete or not at all, after a power cut too.

  Args:
    path: Its folder exists.
    write: Writes the content to a binary file.
    mode: Mode of the file.
  """
  with naming(path):
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f'.{path.name}.')
    try:
      with os.fdopen(handle, 'wb') as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
        os.fchmod(file.fileno(), mode)
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
      yield partial
      os.replace(partial, path)
    finally:
      partial.unlink(missing_ok=True)


def append(path: pathlib.Path, content: bytes, *, durable: bool = False) -> None:
  """Appends to a file, which is created; if that fails it stays as it was."""
  with naming(path):
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
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


def write_atomically(path: pathlib.Path, text: str) -> None:
  """Writes a text file so that it is seen complete or not at all."""
  write_bytes(path, text.encode('utf-8'))


def write_bytes(path: pathlib.Path, content: bytes) -> None:
  """Writes a file so that it is seen complete or not at all."""
  write_durably(path, lambda file: file.write(content))


def write_json(path: pathlib.Path, value: Any) -> None:
  """Writes a JSON file so that it is seen complete or not at all."""
  write_atomically(path, json.dumps(value, indent=2, allow_nan=False) + '\n')


def private_path(folder: pathlib.Path, name: str) -> pathlib.Path:
  """Where a run keeps something private; an earlier version kept it in the folder."""
  earlier = folder / name
  return earlier if earlier.exists() else folder / PRIVATE / name


def read_key(folder: pathlib.Path) -> bytes | None:
  """The key of a run's fingerprints; None if there is none, as in earlier versions."""
  path = folder / PRIVATE / KEY
  return path.read_bytes() if path.exists() else None


def new_key(folder: pathlib.Path) -> bytes:
  """Draws the key of a new run, for its operator alone; the folder must exist."""
  key = secrets.token_bytes(32)
  write_durably(folder / PRIVATE / KEY, lambda file: file.write(key), mode=0o600)
  return key


def keyed(digest: str, key: bytes | None) -> str:
  """A digest by a secret key, HMAC-SHA256 in hexadecimal; itself without a key.

  Whoever knows all clients but one could find out from a plain digest whether that one
  is among them.
  """
  if key is None:
    return digest
  return hmac.new(key, digest.encode(), hashlib.sha256).hexdigest()


def _inert(cell: Any) -> Any:
  """A text that a spreadsheet would execute gets ' in front; numbers never do."""
  return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell


def table(rows: Sequence[Mapping[str, Any]]) -> str:
  """Rows of the same names, at least one, as CSV in which no text is a formula.

  Texts may come from clients' data, and whoever opens the file in a spreadsheet must
  not run them: names of columns and texts that begin with = + - @, a tab or the end of
  a line get a single quote in front.
  """
  lines: list[str] = []
  # The writer quotes the characters of its terminator.
  writer = csv.writer(types.SimpleNamespace(write=lines.append),
                      lineterminator=_SEPARATORS)
  writer.writerow(map(_inert, rows[0]))
  writer.writerows([_inert(row[name]) for name in rows[0]] for row in rows)
  return ''.join(line.removesuffix(_SEPARATORS) + '\n' for line in lines)


def write_table(path: pathlib.Path, rows: Sequence[Mapping[str, Any]]) -> None:
  """Writes a `table`, seen complete or not at all."""
  write_atomically(path, table(rows))


def write_arrays(path: pathlib.Path, arrays: dict[str, np.ndarray]) -> None:
  """Writes an .npz file so that it is seen complete or not at all."""
  content = io.BytesIO()  # On a full disk an archive would complain when it is closed.
  np.savez(content, **arrays)
  write_bytes(path, content.getvalue())


def read_arrays(path: pathlib.Path) -> dict[str, np.ndarray] | None:
  """The arrays of an .npz file, None if there is none; ValueError if damaged."""
  if not path.exists():
    return None
  try:
    with open(path, 'rb') as file:
      arrays = np.load(file, allow_pickle=False)
      return {name: arrays[name] for name in arrays.files}
  except Exception as error:
    raise ValueError(f'{path} is damaged: {error}') from error


def new_folder(*words: str) -> pathlib.Path:
  """The path of a new folder below out/, named by words and the present time."""
  now = datetime.datetime.now().strftime('%Y%m%d-%H%M%S')
  return pathlib.Path('out') / '-'.join((*words, now))


def check_writable(path: str | os.PathLike[str], name: str) -> None:
  """Raises ValueError unless a file or folder can be created at `path`.

  Args:
    path: Path to be written; missing folders above it count as creatable.
    name: Name of the setting, for the message.
  """
  target = pathlib.Path(path).absolute()
  if target.is_file():
    return
  while not target.exists():
    target = target.parent
  try:
    tempfile.TemporaryFile(dir=target).close()
  except OSError as error:
    reason = f': {error.strerror}' if target.is_dir() else ' is not a folder'
    raise ValueError(
        f'{name}={os.fspath(path)} can\'t be written: {target}{reason}') from None


def check_folder(folder: str | os.PathLike[str], *, resume: bool) -> None:
  """Raises ValueError unless a run can be started, or resumed, in `folder`."""
  path = pathlib.Path(folder)
  if (writer := _writer(path)) not in (None, _me()):
    raise _in_use(path, writer)
  if path.exists() and not path.is_dir():
    raise ValueError(f'output_dir={folder} must be a folder, found a file')
  check_writable(folder, 'output_dir')
  if (path / CONFIGURATION).exists():
    if not resume:
      raise ValueError(
          f'output_dir={folder} holds a run already: pass --resume to continue it, or '
          'choose another folder')
  elif path.exists() and not all(_is_partial(entry) for entry in path.iterdir()):
    raise ValueError(
        f'output_dir={folder} is not empty and holds no run: choose another folder')


def _is_partial(path: pathlib.Path) -> bool:
  """Whether a run that was killed in its first moments left this behind."""
  if path.name == PRIVATE and path.is_dir():
    return all(KEY in entry.name or entry.name == LOCK for entry in path.iterdir())
  return path.name.startswith(f'.{CONFIGURATION}.')


def create_folder(folder: pathlib.Path) -> None:
  """Creates the folder of a run; removes what a killed start left in it."""
  folder.mkdir(parents=True, exist_ok=True)
  for entry in filter(_is_partial, folder.iterdir()):
    if entry.name != PRIVATE:
      entry.unlink(missing_ok=True)
  (folder / PRIVATE).mkdir(mode=0o700, exist_ok=True)


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
    raise OSError(
        f'output_dir={folder} can\'t be locked ({error.strerror}), so two processes '
        'could write it: choose a folder on a file system that has locks') from None
  return True


def _in_use(folder: pathlib.Path, writer: str | None) -> ValueError:
  return ValueError(f'output_dir={folder} is being written by {writer}: wait until it '
                    'ends, or choose another folder')


@contextlib.contextmanager
def locked(folder: pathlib.Path) -> Iterator[None]:
  """Makes this process the one that writes a run's folder, which it creates.

  The lock ends with the process, however that ends. What is left of a start that
  recorded no run is removed.

  Raises:
    OSError: If the folder can't be written, or its file system has no locks.
    ValueError: If another process, or another run of this one, writes the folder.
  """
  is_new = not folder.exists()
  (folder / PRIVATE).mkdir(mode=0o700, parents=True, exist_ok=True)
  path = folder / PRIVATE / LOCK
  handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
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


def read_configuration(folder: pathlib.Path) -> dict[str, Any] | None:
  """The configuration that a run's first start recorded; None without a run."""
  path = folder / CONFIGURATION
  if not path.exists():
    return None
  try:
    return json.loads(path.read_text(encoding='utf-8'))
  except ValueError as error:
    raise ValueError(f'{path} is damaged: {error}') from error


def read_paths(folder: pathlib.Path) -> dict[str, str]:
  """The paths of its data that a run recorded, by setting."""
  path = folder / PATHS
  try:
    return json.loads(path.read_text(encoding='utf-8')) if path.exists() else {}
  except ValueError as error:
    raise ValueError(f'{path} is damaged: {error}') from error


def configuration_hash(configuration: dict[str, Any]) -> str:
  """SHA-256 of a configuration's canonical JSON, in hexadecimal."""
  text = json.dumps(configuration, sort_keys=True, separators=(',', ':'),
                    allow_nan=False)
  return hashlib.sha256(text.encode()).hexdigest()


def finite(value: float | None) -> float | None:
  """The number for JSON, which knows neither infinity nor NaN: None for them."""
  return None if value is None or not np.isfinite(value) else float(value)
