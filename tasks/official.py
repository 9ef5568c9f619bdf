"""TFF's official data sets: files that are found, or downloaded by TFF."""

import lzma
import os
import pathlib
import socket
import sqlite3
import tempfile
from typing import Callable

_URL = 'https://storage.googleapis.com/tff-datasets-public/{}.lzma'
_TIMEOUT_SECONDS = 60


def find_or_download(
    cache_dir: str | os.PathLike[str] | None, *, what: str, file_name: str,
    load: Callable[[str], None]) -> pathlib.Path:
  """The path of an SQLite file, downloaded by TFF if it is not in cache_dir.

  Args:
    cache_dir: The folder; None means TFF's own, .tff in the home directory.
    what: The data set, in messages.
    file_name: Of the decompressed file.
    load: TFF's function, which downloads the file to a folder and opens it.

  Raises:
    ValueError: If the download fails; says which file to put where.
  """
  folder = pathlib.Path.home() / '.tff' if cache_dir is None else pathlib.Path(
      cache_dir)
  path = folder / file_name
  if path.is_file():
    return path
  timeout = socket.getdefaulttimeout()
  try:
    folder.mkdir(parents=True, exist_ok=True)
    # TFF writes to the final name from the first byte on, and would take the
    # remains of a broken download for the data. Hence a folder of our own.
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
      socket.setdefaulttimeout(_TIMEOUT_SECONDS)
      load(scratch)
      os.replace(pathlib.Path(scratch) / file_name, path)
  except (OSError, EOFError, lzma.LZMAError, sqlite3.Error) as error:
    raise ValueError(
        f'{what} is not in {folder} and cannot be downloaded ({error}): download '
        f'{_URL.format(file_name)}, decompress it with unlzma, and put it there as '
        f'{file_name}') from error
  finally:
    socket.setdefaulttimeout(timeout)
  return path
