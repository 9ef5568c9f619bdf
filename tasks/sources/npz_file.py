"""Arrays of an .npz file, read so that damage is found and named."""

import io
import math
import os
import pathlib
import sys
from typing import Collection
import warnings
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
    return {name: _checked(np.load(io.BytesIO(archive.read(f'{name}.npy')),
                                   allow_pickle=False))
            for name in wanted if f'{name}.npy' in present}

  return _open(path, arrays)


def mapped(path: str | os.PathLike[str], name: str, folder: str) -> np.ndarray:
  """One array, mapped into memory from its own file in a folder. Raises ValueError."""

  def array(archive: zipfile.ZipFile) -> np.ndarray:
    # Extracted to the end before it is mapped: only then is the checksum verified.
    file = archive.extract(f'{name}.npy', folder)
    found = np.load(file, mmap_mode='r', allow_pickle=False)
    size = os.path.getsize(file)
    os.unlink(file)  # The map stays.
    # NumPy multiplies sizes modulo 2^64, and then maps less than it reads.
    if math.prod(found.shape) * found.itemsize > size:
      raise ValueError('an array is larger than its file')
    return _checked(found)

  return _open(path, array)


def _checked(array: np.ndarray) -> np.ndarray:
  """The array; ValueError if it has texts that are none, which NumPy does not see."""
  if array.dtype.kind == 'U' and array.size and array.itemsize:
    codes = np.ascontiguousarray(array).reshape(-1).view(
        np.dtype(np.uint32).newbyteorder(array.dtype.byteorder))
    if codes.max() > sys.maxunicode:
      raise ValueError(f'a text has the character {codes.max():#x}, which is none')
  return array


def _open(path: str | os.PathLike[str], read_archive):
  path = pathlib.Path(path)
  if not path.is_file():
    raise ValueError(f'{path} does not exist or is not a file')
  try:
    # NumPy warns of odd headers on the terminal.
    with warnings.catch_warnings(action='ignore'), zipfile.ZipFile(path) as archive:
      return read_archive(archive)
  # Damage shows as BadZipFile, LZMAError, zlib.error, EOFError, ValueError,
  # NotImplementedError and more, depending on the byte that it hits.
  except Exception as error:
    detail = ' '.join(str(error).split()) or type(error).__name__
    raise ValueError(
        f'{path} is not an npz file, or corrupted: {detail[:200]}') from error
