"""Values inside a large JSON file, one at a time, without reading all of it."""

import re
from typing import BinaryIO, Iterator

_PIECE = 2**20
_SPACE = b' \t\r\n'
_STRUCTURE = re.compile(rb'["{}\[\]]')
_IN_TEXT = re.compile(rb'["\\]')
_END_OF_SCALAR = re.compile(rb'[,\]}\s]')


class JsonStream:
  """Walks through JSON; only the value that it stands on is in memory."""

  def __init__(self, file: BinaryIO, max_value_bytes: int):
    """Begins at the start of a file.

    Args:
      file: UTF-8, decompressed.
      max_value_bytes: A larger value is an error.
    """
    self._file = file
    self._max = max_value_bytes
    self._buffer = bytearray()
    self._at = 0
    self._dropped = 0

  @property
  def offset(self) -> int:
    """Of the next byte, in the file."""
    return self._dropped + self._at

  def _fill(self) -> None:
    """Reads more. Raises ValueError at the end of the file."""
    if len(self._buffer) - self._at > self._max:
      raise ValueError(f'at byte {self.offset}: a value of more than '
                       f'{self._max // 2**20} MiB')
    piece = self._file.read(_PIECE)
    if not piece:
      raise ValueError(f'cut off: not JSON at its end, byte {self.offset}')
    self._buffer += piece

  def _drop(self) -> None:
    if self._at > _PIECE:
      del self._buffer[:self._at]
      self._dropped += self._at
      self._at = 0

  def peek(self) -> bytes:
    """The next byte that is no space."""
    while True:
      while self._at < len(self._buffer):
        if self._buffer[self._at] not in _SPACE:
          return bytes(self._buffer[self._at:self._at + 1])
        self._at += 1
      self._drop()
      self._fill()

  def expect(self, byte: bytes) -> None:
    """Goes beyond a byte. Raises ValueError if it is another."""
    found = self.peek()
    if found != byte:
      raise ValueError(f'not the JSON expected: {found.decode("latin-1")!r} where '
                       f'{byte.decode()!r} should be, byte {self.offset}')
    self._at += 1

  def value(self) -> tuple[int, bytes]:
    """Goes beyond a value of any kind; its offset and its bytes, not yet checked."""
    self._drop()
    first = self.peek()
    start, end = self._at, self._at
    if first == b'"':
      end = self._end_of_text(start + 1)
    elif first in (b'{', b'['):
      depth, end = 0, start
      while True:
        at, found = self._find(_STRUCTURE, end)
        end = at + 1
        if found == b'"':
          end = self._end_of_text(end)
        elif found in (b'{', b'['):
          depth += 1
        else:
          depth -= 1
          if depth == 0:
            break
    else:
      end, _ = self._find(_END_OF_SCALAR, start)
    offset = self.offset
    content = bytes(self._buffer[start:end])
    self._at = end
    return offset, content

  def _find(self, pattern: re.Pattern[bytes], start: int) -> tuple[int, bytes]:
    while True:
      found = pattern.search(self._buffer, start)
      if found is not None:
        return found.start(), found.group()
      start = len(self._buffer)
      self._fill()

  def _end_of_text(self, start: int) -> int:
    while True:
      at, found = self._find(_IN_TEXT, start)
      if found == b'"':
        return at + 1
      while at + 1 >= len(self._buffer):
        self._fill()
      start = at + 2

  def keys(self) -> Iterator[bytes]:
    """The keys of the object that begins here, still in quotes.

    The caller must go beyond each key's value before it takes the next key.
    """
    self.expect(b'{')
    if self.peek() == b'}':
      self.expect(b'}')
      return
    while True:
      if self.peek() != b'"':
        self.expect(b'"')
      yield self.value()[1]
      if self.peek() == b'}':
        self.expect(b'}')
        return
      self.expect(b',')

  def expect_end(self) -> None:
    """Raises ValueError unless nothing but space is left."""
    rest = bytes(self._buffer[self._at:]) + self._file.read(_PIECE)
    if rest.strip():
      raise ValueError(f'there is more after the end of the JSON, byte {self.offset}')
