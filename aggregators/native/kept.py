"""The kernels on disk, and their compilation before they are needed.

Imports neither numba nor TensorFlow, so that it can be used before both are imported.
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

_FOLDER = pathlib.Path(__file__).parent
# Files of the kernel that compiles longest, as it calls nearly all others.
_LAST = 'encoding.encode_clients-*'
# Compiles only where the result can be kept.
_COMPILE = '''
import sys
sys.path[:] = sys.argv[1:]
from aggregators.native import decoding, encoding
if encoding.encode_clients._cache.cache_path:
  encoding.try_out()
  decoding.try_out()
'''

_process: subprocess.Popen | None = None


@functools.cache
def sources() -> str:
  """SHA-256 of the sources of all kernels, hex."""
  digest = hashlib.sha256()
  for path in sorted(_FOLDER.glob('*.py')):
    digest.update(path.read_bytes())
  return digest.hexdigest()


class Files:
  """The files of a kernel, one for each set of dependencies; replaces numba's cache.

  numba numbers its files and writes an index of their contents first. If the disk is
  full, the process ends or another process writes both, an index entry can then name
  the file of a kernel of other sources or of another processor.
  """

  def __init__(self, folder: str, name: str, versions: str, dumps: Callable):
    """Names the files.

    Args:
      folder: Folder of the files.
      name: Name of the kernel.
      versions: Versions of the compiler, as text.
      dumps: Object -> bytes that `pickle` loads.
    """
    self._folder = pathlib.Path(folder)
    self._name, self._versions, self._dumps = name, versions, dumps

  def path(self, key: Any) -> pathlib.Path:
    """The file of a key, which names types and a processor; `repr` identifies it."""
    of = hashlib.sha256(repr((sources(), self._versions, key)).encode()).hexdigest()
    return self._folder / f'{self._name}.{sources()[:16]}.{of[:32]}'

  def load(self, key: Any) -> Any:
    """The saved data; None if there are none, or they are damaged."""
    try:
      content = self.path(key).read_bytes()
    except OSError:
      return None
    digest, content = content[:32], content[32:]
    return (pickle.loads(content) if hashlib.sha256(content).digest() == digest
            else None)

  def save(self, key: Any, data: Any) -> None:
    """Saves the data, if there is room for it."""
    content = self._dumps(data)
    with contextlib.suppress(OSError):
      # Closed before it is renamed: no process reads a part of it.
      with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
        try:
          file.write(hashlib.sha256(content).digest() + content)
          file.close()
          os.replace(file.name, self.path(key))
        except OSError:
          os.unlink(file.name)


def are_kept() -> bool:
  """Whether kernels of these sources seem to be on disk, for any processor."""
  caches = os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')
  given = os.environ.get('NUMBA_CACHE_DIR')
  folders = [pathlib.Path(given)] if given else [
      _FOLDER / '__pycache__', pathlib.Path(caches) / 'numba']
  return any(any(folder.rglob(f'{_LAST}.{sources()[:16]}.*')) for folder in folders)


def compile_ahead() -> None:
  """Compiles the kernels in another process, unless they are kept already.

  Meanwhile this process imports TensorFlow, which takes as long and, like numba, one
  core. Code that needs the kernels calls `finished` first. An error of the other
  process is not reported: compiling fails again in this one, which reports it.
  """
  global _process
  if _process is None and not are_kept():
    _process = subprocess.Popen(
        [sys.executable, '-c', _COMPILE, *sys.path], stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


def finished() -> None:
  """Waits until `compile_ahead` is done; returns at once if it was not called."""
  if _process is not None:
    _process.wait()
