"""Vectors of integers modulo 2^bits: their bytes, and shares of two servers."""

from collections.abc import Iterable, Iterator

from cryptography.hazmat.primitives.ciphers import algorithms, Cipher, modes
import numpy as np

from aggregators.params import DistributedSumParams
from tff_pipelines.deployment import messages

SEED_BYTES = 32
# Bits that are stored in the first part.
_LOW = 16
# Numbers of a block, a multiple of 8.
_BLOCK = 2**14
_ZEROS = memoryview(bytes(4 * _BLOCK))


def _high_bits(bits: int) -> int:
  """Bits in which those beyond the low 16 are stored: 0, 1, 2, 4, 8 or 16."""
  return 0 if bits <= _LOW else 1 << (bits - _LOW - 1).bit_length()


def packed_size(length: int, bits: int) -> int:
  """Bytes of a vector: exact for 16, 17, 18, 20 and 24 bits."""
  high = _high_bits(bits)
  return 2 * length + (-(-length * high // 8))


def _parts(vector: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
  """The low halves of uint32 [length], and the higher bits as bytes."""
  low, high = vector.astype('<u2'), _high_bits(bits)
  above = vector >> np.uint32(_LOW)
  if high in (0, 8, 16):
    return low, above.astype(f'<u{high // 8}').view(np.uint8) if high else (
        np.zeros(0, np.uint8))
  per = 8 // high
  parts = above.astype(np.uint8)
  if len(vector) % per:
    parts = np.pad(parts, (0, -len(vector) % per))
  parts = parts.reshape(-1, per)
  result = parts[:, 0].copy()
  for index in range(1, per):
    result |= parts[:, index] << np.uint8(index * high)
  return low, result


def packed(vector: np.ndarray, bits: int) -> bytes:
  """The bytes of uint32 [length] in [0, 2^bits): low halves, then the higher bits."""
  return b''.join(part.tobytes() for part in _parts(vector, bits))


def unpacked(content: bytes, length: int, bits: int) -> np.ndarray:
  """The vector of `packed`, uint32 [length]; MessageError for other bytes."""
  if len(content) != packed_size(length, bits):
    raise messages.MessageError(f'vector must have {packed_size(length, bits)} bytes, '
                                f'found {len(content)}')
  vector = np.frombuffer(content, '<u2', length).astype(np.uint32)
  if high := _high_bits(bits):
    rest = content[2 * length:]
    if high >= 8:
      above = np.frombuffer(rest, f'<u{high // 8}')
    else:
      stored = np.frombuffer(rest, np.uint8)
      above = np.stack([(stored >> np.uint8(index * high)) & np.uint8(2**high - 1)
                        for index in range(8 // high)], axis=1).reshape(-1)[:length]
    vector |= above.astype(np.uint32) << np.uint32(_LOW)
  if vector.size and int(vector.max()) >> bits:
    raise messages.MessageError(f'vector must be below 2^{bits}')
  return vector


def _blocks(seed: bytes, length: int) -> Iterator[tuple[slice, np.ndarray]]:
  """Yields places and numbers of a mask, in blocks that a processor's cache holds."""
  cipher = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor()
  buffer = bytearray(4 * _BLOCK + 15)
  for start in range(0, length, _BLOCK):
    size = min(_BLOCK, length - start)
    cipher.update_into(_ZEROS[:4 * size], buffer)
    yield slice(start, start + size), np.frombuffer(buffer, '<u4', size)


def expanded(seed: bytes, length: int) -> np.ndarray:
  """A mask, uint32 [length], uniform given a seed that is: AES-256 in counter mode."""
  result = np.empty(length, np.uint32)
  for places, numbers in _blocks(seed, length):
    result[places] = numbers
  return result


def added(vectors: Iterable[np.ndarray], length: int, bits: int) -> np.ndarray:
  """The sum of vectors, uint32 [length] in [0, 2^bits)."""
  total = np.zeros(length, np.uint32)
  for vector in vectors:
    total += vector  # Overflows are harmless: 2^bits divides 2^32.
  total &= np.uint32(2**bits - 1)
  return total


def shared(vector: np.ndarray, seed: bytes, bits: int) -> bytes:
  """The leader's share of int32 [length] in [0, 2^bits); the helper's is the seed.

  The share is uniform, and independent of the vector, to who does not have the seed.
  """
  length = len(vector)
  result = np.empty(packed_size(length, bits), np.uint8)
  low, above = result[:2 * length].view('<u2'), result[2 * length:]
  for places, numbers in _blocks(seed, length):
    share = numbers + vector[places].view(np.uint32)
    share &= np.uint32(2**bits - 1)
    low[places], high = _parts(share, bits)
    first = places.start * _high_bits(bits) // 8
    above[first:first + len(high)] = high
  return result.tobytes()


def row_of(own: np.ndarray, history: np.ndarray, params: DistributedSumParams
           ) -> tuple[np.ndarray, np.ndarray]:
  """A server's share of the row of a round, and of the sums that later rows need.

  Args:
    own: Its share of the sums of a round, uint32 [sent_dimension].
    history: Its shares of the sums before, the latest first.
    params: Those of the sum.
  """
  if len(params.column) == 1:
    return own, history
  noisy, latest = np.split(own, 2)
  row = added([noisy, np.uint32(params.column[0] - 1) * latest, *(
      np.uint32(weight) * past for weight, past in zip(params.column[1:], history))],
                      len(noisy), params.bits)
  return row, np.concatenate([latest[np.newaxis], history])[:len(params.column) - 1]
