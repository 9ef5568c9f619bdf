"""TFF's official data sets: existing files, or downloaded by TFF."""

import dataclasses
import lzma
import operator
import os
import pathlib
import socket
import sqlite3
import tempfile

_URL = 'https://storage.googleapis.com/tff-datasets-public/{}.lzma'
_TIMEOUT_SECONDS = 60


@dataclasses.dataclass(frozen=True, kw_only=True)
class File:
  """One of TFF's files, decompressed of this name.

  Attributes:
    load: Name of the function of tff.simulation.datasets that downloads the file.
    others_split: The split of clients outside the population; None without any.
  """

  name: str
  load: str
  others_split: str | None = None

  def find_or_download(self, cache_dir: str | os.PathLike[str] | None) -> pathlib.Path:
    """The path of the file, downloaded by TFF if it is not in cache_dir.

    None means TFF's own folder, .tff in the home directory. Raises ValueError if the
    download fails; it says which file to put where.
    """
    folder = pathlib.Path.home() / '.tff' if cache_dir is None else pathlib.Path(
        cache_dir)
    path = folder / self.name
    if path.is_file():
      return path
    timeout = socket.getdefaulttimeout()
    try:
      folder.mkdir(parents=True, exist_ok=True)
      # TFF writes to the final name from the first byte on, and would accept the
      # remains of a broken download. Hence a scratch folder.
      with tempfile.TemporaryDirectory(dir=folder) as scratch:
        # TFF takes seconds to import, and is needed for downloads only.
        import tensorflow_federated as tff  # pylint: disable=g-import-not-at-top
        socket.setdefaulttimeout(_TIMEOUT_SECONDS)
        operator.attrgetter(self.load)(tff.simulation.datasets)(cache_dir=scratch)
        # Keras puts some into a folder of its own.
        scratch = pathlib.Path(scratch)
        os.replace(next(scratch.rglob(self.name), scratch / self.name), path)
    except (OSError, EOFError, lzma.LZMAError, sqlite3.Error) as error:
      raise ValueError(
          f'{path} is not there and cannot be downloaded ({error}): put there '
          f'{_URL.format(self.name)}, decompressed by unlzma') from error
    finally:
      socket.setdefaulttimeout(timeout)
    return path
