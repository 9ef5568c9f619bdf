"""Arrays of an .npz file; damage to the file is an error that names it."""

import contextlib
import io
import math
import os
import pathlib
import sys
from typing import Collection, Iterator
import warnings
import zipfile

import numpy as np


def names(path: str | os.PathLike[str]) -> list[str]:
  """The names of the arrays in a file, in its order. Raises ValueError."""
  with _opened(path) as archive:
    return [name.removesuffix('.npy') for name in archive.namelist()]


def read(path: str | os.PathLike[str],
         wanted: Collection[str]) -> dict[str, np.ndarray]:
  """Reads those arrays of the wanted names that are in a file.

  Raises:
    ValueError: If the file is missing or damaged; the message names it.
  """
  with _opened(path) as archive:
    present = set(archive.namelist())
    # Read to the end before parsing: only then is the checksum verified.
    return {name: _checked(np.load(io.BytesIO(archive.read(f'{name}.npy')),
                                   allow_pickle=False))
            for name in wanted if f'{name}.npy' in present}


def mapped(path: str | os.PathLike[str], name: str, folder: str) -> np.ndarray:
  """One array, mapped into memory from its own file in a folder. Raises ValueError."""
  with _opened(path) as archive:
    # Extracted to the end before it is mapped: only then is the checksum verified.
    file = archive.extract(f'{name}.npy', folder)
    array = np.load(file, mmap_mode='r', allow_pickle=False)
    size = os.path.getsize(file)
    os.unlink(file)  # The map stays.
    # NumPy multiplies sizes modulo 2^64, and then maps less than it reads.
    if math.prod(array.shape) * array.itemsize > size:
      raise ValueError('an array is larger than its file')
    return _checked(array)


def _checked(array: np.ndarray) -> np.ndarray:
  """The array; ValueError if it has invalid characters, which NumPy does not check."""
  if array.dtype.kind == 'U' and array.size and array.itemsize:
    codes = np.ascontiguousarray(array).reshape(-1).view(
        np.dtype(np.uint32).newbyteorder(array.dtype.byteorder))
    if codes.max() > sys.maxunicode:
      raise ValueError(f'a text has the character {codes.max():#x}, which is none')
  return array


@contextlib.contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[zipfile.ZipFile]:
  if not pathlib.Path(path).is_file():
    raise ValueError(f'{path} does not exist or is not a file')
  try:
    # NumPy prints warnings about odd headers.
    with warnings.catch_warnings(action='ignore'), zipfile.ZipFile(path) as archive:
      yield archive
  # Damage shows as BadZipFile, LZMAError, zlib.error, EOFError, ValueError,
  # NotImplementedError and more, depending on the byte that it hits.
  except Exception as error:
    detail = ' '.join(str(error).split()) or type(error).__name__
    raise ValueError(
        f'{path} is not an npz file, or corrupted: {detail[:200]}') from error
