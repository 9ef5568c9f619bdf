"""Arrays of an .npz file, read so that damage is found and named."""

import io
import os
import pathlib
from typing import Collection
import zipfile

import numpy as np


def names(path: str | os.PathLike[str]) -> list[str]:
  """The names of the arrays in a file, in its order. Raises ValueError."""
  return [name.removesuffix('.npy') for name in _open(path, lambda a: a.namelist())]


def read(path: str | os.PathLike[str],
         wanted: Collection[str]) -> dict[str, np.ndarray]:
  """Reads the arrays of the wanted names that there are.

  Raises:
    ValueError: If the file is missing or damaged; the message names it.
  """

  def arrays(archive: zipfile.ZipFile) -> dict[str, np.ndarray]:
    present = set(archive.namelist())
    # Read to the end before parsing: only then is the checksum verified.
    return {name: np.load(io.BytesIO(archive.read(f'{name}.npy')),
                          allow_pickle=False)
            for name in wanted if f'{name}.npy' in present}

  return _open(path, arrays)


def _open(path: str | os.PathLike[str], read_archive):
  path = pathlib.Path(path)
  if not path.is_file():
    raise ValueError(f'{path} does not exist or is not a file')
  try:
    with zipfile.ZipFile(path) as archive:
      return read_archive(archive)
  # Damage shows as BadZipFile, LZMAError, zlib.error, EOFError, ValueError,
  # NotImplementedError and more, depending on the byte that it hits.
  except Exception as error:
    detail = ' '.join(str(error).split()) or type(error).__name__
    raise ValueError(
        f'{path} is not an npz file, or corrupted: {detail}') from error
