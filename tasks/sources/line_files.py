"""Lines of text files, plain or compressed by gzip, with bounded memory."""

import contextlib
import dataclasses
import gzip
import os
import pathlib
from typing import BinaryIO, Iterator
import zlib

# A longer line is a mistake: no more than this is ever read of one.
MAX_LINE_BYTES = 64 * 2**20

_GZIP_MAGIC = b'\x1f\x8b'
_BYTE_ORDER_MARK = b'\xef\xbb\xbf'


@dataclasses.dataclass(frozen=True)
class Line:
  """Attributes: number, from 1; offset of its first byte in the decompressed file;
  content with its end of line."""

  number: int
  offset: int
  content: bytes


def is_compressed(path: str | os.PathLike[str]) -> bool:
  """Whether a file is gzip, by its first bytes."""
  with _opened(path, open) as file:
    return file.read(2) == _GZIP_MAGIC


@contextlib.contextmanager
def _opened(path, opener) -> Iterator[BinaryIO]:
  path = pathlib.Path(path)
  if not path.is_file():
    raise ValueError(f'{path} does not exist or is not a file')
  with opener(path, 'rb') as file:
    yield file


@contextlib.contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
  """A file for reading decompressed bytes.

  Damaged compression is a ValueError in the block; it names the file.
  """
  opener = gzip.open if is_compressed(path) else open
  try:
    with _opened(path, opener) as file:
      yield file
  except (EOFError, gzip.BadGzipFile, zlib.error) as error:
    raise ValueError(
        f'{path} is damaged or cut off: gzip says {error}') from error


def lines(path: str | os.PathLike[str]) -> Iterator[Line]:
  """The lines of a file.

  Raises:
    ValueError: If the file is missing, empty, damaged, or has a line of more than
      MAX_LINE_BYTES. The message names the file and the line.
  """
  number, offset = 0, 0
  try:
    with opened(path) as file:
      # The limit stops the reading: the line need not fit into memory.
      while content := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(content) > MAX_LINE_BYTES:
          raise ValueError(
              f'{path}, line {number}: longer than {MAX_LINE_BYTES // 2**20} MiB')
        length = len(content)
        if number == 1 and content.startswith(_BYTE_ORDER_MARK):
          offset, content = len(_BYTE_ORDER_MARK), content[len(_BYTE_ORDER_MARK):]
          length -= len(_BYTE_ORDER_MARK)
        yield Line(number, offset, content)
        offset += length
  except ValueError as error:
    if 'damaged' in str(error):
      raise ValueError(f'{error} after line {number}') from error
    raise
  if number == 0:
    raise ValueError(f'{path} is empty')


def decoded(content: bytes) -> str:
  """UTF-8 text. Raises ValueError."""
  try:
    return content.decode('utf-8')
  except UnicodeDecodeError as error:
    raise ValueError(f'not UTF-8: {error}') from error
