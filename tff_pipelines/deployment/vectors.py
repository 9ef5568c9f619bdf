"""Vectors of integers modulo 2^bits: their bytes, and shares of two servers."""

from collections.abc import Iterable

from cryptography.hazmat.primitives.ciphers import algorithms, Cipher, modes
import numpy as np

from aggregators.params import DistributedSumParams
from tff_pipelines.deployment import messages

SEED_BYTES = 32
# Bits that are stored in the first part.
_LOW = 16


def _high_bits(bits: int) -> int:
  """Bits in which those beyond the low 16 are stored: 0, 1, 2, 4, 8 or 16."""
  return 0 if bits <= _LOW else 1 << (bits - _LOW - 1).bit_length()


def packed_size(length: int, bits: int) -> int:
  """Bytes of a vector: exact for 16, 17, 18, 20 and 24 bits."""
  high = _high_bits(bits)
  return 2 * length + (-(-length * high // 8))


def packed(vector: np.ndarray, bits: int) -> bytes:
  """The bytes of uint32 [length] in [0, 2^bits): low halves, then the higher bits."""
  low = vector.astype('<u2')
  if not (high := _high_bits(bits)):
    return low.tobytes()
  above = vector >> np.uint32(_LOW)
  if high >= 8:
    return low.tobytes() + above.astype(f'<u{high // 8}').tobytes()
  per = 8 // high
  parts = np.pad(above.astype(np.uint8), (0, -len(vector) % per)).reshape(-1, per)
  result = parts[:, 0].copy()
  for index in range(1, per):
    result |= parts[:, index] << np.uint8(index * high)
  return low.tobytes() + result.tobytes()


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


def expanded(seed: bytes, length: int) -> np.ndarray:
  """A mask, uint32 [length], uniform given a seed that is: AES-256 in counter mode."""
  cipher = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor()
  result = np.zeros(length, np.uint32)
  cipher.update_into(memoryview(result).cast('B'), memoryview(
      buffer := bytearray(4 * length + 15)))
  return np.frombuffer(buffer, '<u4', length)


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
  share = expanded(seed, len(vector)) + vector.view(np.uint32)
  share &= np.uint32(2**bits - 1)
  return packed(share, bits)


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
