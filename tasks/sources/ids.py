"""Ids of clients in one piece of memory, for populations of millions. No TensorFlow."""

import bisect
from collections.abc import Container, Iterable, Iterator, Sequence
import hashlib
from typing import Any

import numpy as np

_BLOCK = 4096


class Ids(Sequence[str]):
  """Ids that take the bytes of their UTF-8 and 4 more each, and no object.

  As a tuple of str they take some 70 bytes each. Beyond 4 GB of UTF-8 it is 8 more.

  Equal to a sequence of the same texts. The first batch of `Ids([batch, ...])` may be
  all of them; their order is kept.

  Attributes:
    is_increasing: Whether each id is greater than the one before, so that one is found
      by bisection.
  """

  def __init__(self, batches: Iterable[Sequence[str]]):
    """Copies the ids. Raises ValueError if one is not a text."""
    content, lengths, last = bytearray(), [np.zeros([1], np.int64)], None
    self.is_increasing = True
    for batch in filter(len, batches):
      if not all(isinstance(text, str) for text in batch):
        raise ValueError('every client_id must be a text')
      encoded = [text.encode() for text in batch]
      content += b''.join(encoded)
      lengths.append(np.fromiter(map(len, encoded), np.int64, len(encoded)))
      self.is_increasing &= (last is None or last < batch[0]) and all(
          map(str.__lt__, batch, batch[1:]))
      last = batch[-1]
    self._keep(bytes(content), np.concatenate(lengths))

  def _keep(self, content: bytes, lengths: np.ndarray) -> None:
    """Sets the content; the first of the lengths is 0."""
    self._content, ends = content, np.cumsum(lengths)
    self._ends = ends.astype(np.uint32) if len(content) < 2**32 else ends

  def where(self, chosen: np.ndarray) -> 'Ids':
    """Those whose flag is set in `chosen`, bool [number of ids]."""
    result, lengths = Ids([]), np.diff(self._ends.astype(np.int64))
    content = np.frombuffer(self._content, np.uint8)[np.repeat(chosen, lengths)]
    result._keep(content.tobytes(), np.append(0, lengths[chosen]))
    result.is_increasing = self.is_increasing
    return result

  def __len__(self) -> int:
    return len(self._ends) - 1

  def __getitem__(self, index):
    if isinstance(index, slice):
      return tuple(self[i] for i in range(*index.indices(len(self))))
    index = range(len(self))[index]
    start, end = self._ends[index:index + 2].tolist()
    return self._content[start:end].decode()

  def __iter__(self) -> Iterator[str]:
    for start in range(0, len(self), _BLOCK):
      ends = self._ends[start:start + _BLOCK + 1].tolist()
      for begin, end in zip(ends, ends[1:]):
        yield self._content[begin:end].decode()

  def __contains__(self, value: Any) -> bool:
    if not self.is_increasing or not isinstance(value, str):
      return value in iter(self)
    at = bisect.bisect_left(self, value)
    return at < len(self) and self[at] == value

  def __eq__(self, other: Any) -> bool:
    if not isinstance(other, (Ids, tuple, list)):
      return NotImplemented
    return len(self) == len(other) and all(map(str.__eq__, self, other))

  __hash__ = None

  def terminated(self) -> Iterator[bytes]:
    """UTF-8 of all ids, each with a NUL at its end, in blocks."""
    for start in range(0, len(self), _BLOCK):
      ends = self._ends[start:start + _BLOCK + 1].astype(np.int64)
      block = np.frombuffer(self._content[ends[0]:ends[-1]], np.uint8)
      yield np.insert(block, ends[1:] - ends[0], 0).tobytes()


def membership(ids: Sequence[str]) -> Container[str]:
  """The ids, as something that finds one without looking at all."""
  return ids if isinstance(ids, Ids) and ids.is_increasing else frozenset(ids)


def update(digest: 'hashlib._Hash', ids: Sequence[str]) -> None:
  """Adds ids to a digest, each with a NUL at its end."""
  for block in (ids.terminated() if isinstance(ids, Ids) else
                (client.encode() + b'\0' for client in ids)):
    digest.update(block)


def digest_of(source: Any) -> 'hashlib._Hash':
  """SHA-256 of what the examples of a source look like, and of its clients' ids."""
  digest = hashlib.sha256(repr(sorted(
      (name, str(dtype), tuple(shape))
      for name, (dtype, shape) in source.element_spec.items())).encode())
  update(digest, source.client_ids)
  return digest
