"""Whether the kernels are kept on the disk, and compiling them before they are needed.

Imports neither numba nor TensorFlow, so that it is there before both.
"""

import functools
import hashlib
import os
import pathlib
import subprocess
import sys

_FOLDER = pathlib.Path(__file__).parent
# The kernel that takes longest, as it calls nearly all others.
_LAST = 'encoding.encode_clients-*.nbi'
# Where nothing can be kept there is nothing to be done.
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
  """A digest of the sources of all kernels, by which numba knows what it kept."""
  digest = hashlib.sha256()
  for path in sorted(_FOLDER.glob('*.py')):
    digest.update(path.read_bytes())
  return digest.hexdigest()


def are_kept() -> bool:
  """Whether kernels of these sources seem to be on the disk, of whatever processor."""
  caches = pathlib.Path(os.environ.get('XDG_CACHE_HOME') or '~/.cache').expanduser()
  given = os.environ.get('NUMBA_CACHE_DIR')
  folders = [pathlib.Path(given)] if given else [
      _FOLDER / '__pycache__', caches / 'numba']
  return any(sources().encode() in path.read_bytes()
             for folder in folders for path in folder.rglob(_LAST))


def compile_ahead() -> None:
  """Compiles the kernels in another process, unless they are kept already.

  This process imports TensorFlow in the meantime, which takes as long and, as numba,
  one core. Whoever needs the kernels waits for `finished`. What fails there fails
  again here, where it is reported.
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
