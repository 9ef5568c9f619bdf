"""The kernels on disk, and their compilation before they are needed.

Their files are pickles of code, which are read only if no other user can have written
them (`ownership`). Imports neither numba nor TensorFlow.
"""

from collections.abc import Callable
import contextlib
import functools
import hashlib
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
from typing import Any
import warnings

from aggregators.native import ownership

_FOLDER = pathlib.Path(__file__).parent
# Files of the kernel that compiles longest, as it calls nearly all others.
_LAST = 'encoding.encode_clients-*'
_COMPILE = '''
import sys
sys.path[:] = sys.argv[1:]
from aggregators.native import decoding, encoding
encoding.try_out()
decoding.try_out()
'''

_process: subprocess.Popen | None = None


@functools.cache
def sources() -> str:
  """SHA-256 of the sources of all kernels, hex."""
  digest = hashlib.sha256()
  for path in (_FOLDER.parent / 'hadamard.py', *sorted(_FOLDER.glob('*.py'))):
    digest.update(path.read_bytes())
  return digest.hexdigest()


@functools.cache
def folder() -> pathlib.Path | None:
  """Returns the folder of the kernels' files, which it creates; None if it is not safe.

  It is NUMBA_CACHE_DIR or else in the user's cache. If others could change it, a warning
  says so, and each process compiles its kernels.
  """
  caches = os.environ.get('XDG_CACHE_HOME') or '~/.cache'
  place = os.environ.get('NUMBA_CACHE_DIR') or os.path.join(
      caches, 'tff_pipelines', 'kernels')
  try:
    return ownership.private_folder(pathlib.Path(place).expanduser())
  except (OSError, RuntimeError) as error:  # The latter where a user has no home.
    warnings.warn(
        f'{place} can\'t keep compiled kernels, which are code: {error}; each process '
        'compiles them again unless NUMBA_CACHE_DIR is a folder that only you can write',
        RuntimeWarning, stacklevel=2)
    return None


class Files:
  """The files of a kernel, one for each set of dependencies; replaces numba's cache.

  An entry of numba's index can name the file of a kernel of other sources or of another
  processor: if the disk is full, or a process ends or another writes between the two.
  """

  def __init__(self, place: pathlib.Path, name: str, versions: str, dumps: Callable):
    """Names the files of a kernel in a folder without symbolic links.

    `versions` are the compiler's; `dumps` is object -> bytes that `pickle` loads.
    """
    self._folder = place
    self._name, self._versions, self._dumps = name, versions, dumps

  def path(self, key: Any) -> pathlib.Path:
    """The file of a key, which names types and a processor; `repr` identifies it."""
    of = hashlib.sha256(repr((sources(), self._versions, key)).encode()).hexdigest()
    return self._folder / f'{self._name}.{sources()[:16]}.{of[:32]}'

  def load(self, key: Any) -> Any:
    """The saved data; None if there are none that are whole and of this user or root.

    The digest finds damage. It proves no origin: the check of `ownership.read` does.
    """
    try:
      content = ownership.read(self.path(key))
    except OSError:
      return None
    digest, content = content[:32], content[32:]
    return (pickle.loads(content) if hashlib.sha256(content).digest() == digest else None)

  def save(self, key: Any, data: Any) -> None:
    """Saves the data, if there is room for it, for the user alone."""
    content = self._dumps(data)
    with contextlib.suppress(OSError):
      # Closed before it is renamed: no process reads a part of it. Its mode is 0600.
      with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
        try:
          file.write(hashlib.sha256(content).digest() + content)
          file.close()
          os.replace(file.name, self.path(key))
        except OSError:
          os.unlink(file.name)


def are_kept() -> bool:
  """Whether kernels of these sources seem to be on disk, for any processor."""
  place = folder()
  return place is not None and any(place.glob(f'{_LAST}.{sources()[:16]}.*'))


def compile_ahead() -> None:
  """Compiles the kernels in another process, unless they are kept already.

  Meanwhile this process imports TensorFlow. Code that needs the kernels calls
  `finished` first. An error is reported when compiling fails again in this process.
  """
  global _process
  if _process is None and folder() is not None and not are_kept():
    _process = subprocess.Popen(
        [sys.executable, '-c', _COMPILE, *sys.path], stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


def finished() -> None:
  """Waits until `compile_ahead` is done; returns at once if it was not called."""
  if _process is not None:
    _process.wait()
