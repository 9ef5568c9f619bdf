"""The random bits of `aggregators.chacha`, and of `aggregators.keys`, compiled.

A key is a pair of uint64, the two halves of its int64[2].
"""

import numpy as np

from aggregators.native import compiling
from aggregators.native.compiling import INT32, INT64, LANES

# Philox 4x32-10 (Salmon et al., SC 2011).
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
# Counters of random bits begin here, as those of `aggregators.keys`.
_BITS_COUNTER = np.uint64(2**63)

# 'expand 16-byte k', and the nonces of `aggregators.chacha`.
_CHACHA_CONSTANTS = tuple(int(x) for x in np.frombuffer(b'expand 16-byte k', '<u4'))
_CHACHA_BITS, _CHACHA_KEYS = np.uint64(0), np.uint64(1)
# Number of ChaCha20's blocks in a piece, and of its 32-bit numbers.
_PIECE = 128
PIECE_NUMBERS = 16 * _PIECE
# 32-bit numbers that `_philox` writes at a time.
_GROUP = 4 * LANES

# numba compiles a function for each constant that it is called with.
_START = np.int64(0)
_HALF = np.uint64(32)


def _interleaved(builder, first, second):
  """The lanes of two vectors, alternately, as two vectors."""
  lanes = first.type.count
  return [
      compiling.shuffle(builder, first, second, [
          start + i // 2 + (lanes if i % 2 else 0) for i in range(lanes)])
      for start in (0, lanes // 2)]


@compiling.instructions
def _philox(builder, out, at, count, key, high, counter):
  """Writes `count` 32-bit numbers, a multiple of _GROUP: blocks of 4, by counter."""
  mask = compiling.constant(INT64, 0xFFFFFFFF)
  shift = compiling.constant(INT64, 32)
  half = compiling.ir.Constant(INT64, 32)
  with compiling.each(builder, count, _GROUP) as (index, _):
    block = builder.lshr(index, compiling.ir.Constant(INT64, 2))
    low = builder.add(compiling.splat(builder, builder.add(counter, block)),
                      compiling.constant(INT64, *range(LANES)))
    top = compiling.splat(builder, high)
    # Numbers below 2^32 in lanes of 64 bits, as LLVM must be able to see.
    state = [builder.and_(low, mask), builder.lshr(low, shift),
             builder.and_(top, mask), builder.lshr(top, shift)]
    keys = [builder.trunc(key, INT32), builder.trunc(builder.lshr(key, half), INT32)]
    for _ in range(10):
      products = [builder.mul(x, compiling.constant(INT64, multiplier))
                  for x, multiplier in zip(state[::2], _MULTIPLIERS)]
      heads = [builder.lshr(product, shift) for product in products]
      spread = [compiling.splat(builder, builder.zext(key, INT64)) for key in keys]
      state = [
          builder.xor(builder.xor(heads[1], state[1]), spread[0]),
          builder.and_(products[1], mask),
          builder.xor(builder.xor(heads[0], state[3]), spread[1]),
          builder.and_(products[0], mask)]
      keys = [builder.add(key, compiling.ir.Constant(INT32, weyl))
              for key, weyl in zip(keys, _WEYL)]
    a, b, c, d = (builder.trunc(x, compiling.vector(INT32)) for x in state)
    pairs = compiling.vector(INT64, LANES // 2)
    place = builder.add(at, index)
    for left, right in zip(_interleaved(builder, a, b), _interleaved(builder, c, d)):
      for four in _interleaved(builder, builder.bitcast(left, pairs),
                               builder.bitcast(right, pairs)):
        compiling.store(
            builder, builder.bitcast(four, compiling.vector(INT32)), out, place)
        place = compiling.offset(builder, place, LANES)


def _rotated(builder, x, count: int):
  return builder.or_(builder.shl(x, compiling.constant(INT32, count)),
                     builder.lshr(x, compiling.constant(INT32, 32 - count)))


@compiling.instructions
def _chacha(builder, out, at, count, stride, first, second, purpose, high, counter):
  """Writes `count` blocks, a multiple of LANES: in 16 rows `stride` numbers apart."""
  half = compiling.ir.Constant(INT64, 32)

  def halves(number):
    return [compiling.splat(builder, builder.trunc(x, INT32))
            for x in (number, builder.lshr(number, half))]

  def quarter_round(state, a, b, c, d):
    for of_d, of_b in ((16, 12), (8, 7)):
      state[a] = builder.add(state[a], state[b])
      state[d] = _rotated(builder, builder.xor(state[d], state[a]), of_d)
      state[c] = builder.add(state[c], state[d])
      state[b] = _rotated(builder, builder.xor(state[b], state[c]), of_b)

  with compiling.each(builder, count, LANES) as (index, _):
    key = [*halves(first), *halves(second)]
    low = halves(builder.add(counter, index))[0]
    start = [*(compiling.constant(INT32, x) for x in _CHACHA_CONSTANTS), *key, *key,
             builder.add(low, compiling.constant(INT32, *range(LANES))),
             halves(purpose)[0], halves(high)[0], compiling.constant(INT32, 0)]
    state = list(start)
    for turn in (0, 1) * 10:  # Columns, and diagonals.
      for i in range(4):
        quarter_round(state, i, 4 + (i + turn) % 4, 8 + (i + 2 * turn) % 4,
                      12 + (i + 3 * turn) % 4)
    place = builder.add(at, index)
    for x, y in zip(state, start):
      compiling.store(builder, builder.add(x, y), out, place)
      place = builder.add(place, stride)


@compiling.jit
def scratch():
  """Memory for `fill` and `derive`: uint32 [2 * PIECE_NUMBERS]."""
  return np.empty(2 * PIECE_NUMBERS, np.uint32)


@compiling.jit
def _chacha_piece(out, at, key, piece):
  """Writes the numbers of a piece of random bits."""
  _chacha(out, at, _PIECE, _PIECE, key[0], key[1], _CHACHA_BITS, np.uint64(0),
          np.uint64(piece * _PIECE))


@compiling.jit
def derive(key, index, memory):
  """The child of a key at an index >= 0, as `chacha.derive`."""
  number = np.uint64(index)
  _chacha(memory, 0, LANES, LANES, key[0], key[1], _CHACHA_KEYS, number >> _HALF, number)
  a, b, c, d = memory[0], memory[LANES], memory[2 * LANES], memory[3 * LANES]
  return (np.uint64(a) | np.uint64(b) << _HALF, np.uint64(c) | np.uint64(d) << _HALF)


@compiling.jit
def philox(key, out):
  """Fills uint32 [n] with `keys.random_bits` of a key, a pair of uint64."""
  whole = out.size // _GROUP * _GROUP
  _philox(out, 0, whole, key[0], key[1], _BITS_COUNTER)
  rest = np.empty(_GROUP, np.uint32)
  _philox(rest, 0, _GROUP, key[0], key[1], _BITS_COUNTER + np.uint64(whole // 4))
  out[whole:] = rest[:out.size - whole]


@compiling.jit
def fill(key, total, first, out, memory):
  """Fills an array with random bits of a key, as `chacha.random_bits`.

  Args:
    key: Pair of uint64.
    total: Count of the 32-bit numbers of the whole result, on which their order depends.
    first: Index, in that result, of the first number to be written.
    out: uint32 [n], written, n <= PIECE_NUMBERS.
    memory: From `scratch`.
  """
  count = out.size
  blocks = -(-total // 16)
  if blocks <= _PIECE:
    # The only piece, whose rows have `blocks` numbers instead of _PIECE.
    _chacha_piece(memory, _START, key, _START)
    for i in range(count):
      row = (first + i) // blocks
      out[i] = memory[row * _PIECE + first + i - row * blocks]
    return
  piece = first // PIECE_NUMBERS
  start = first - piece * PIECE_NUMBERS
  if start == 0 and count == PIECE_NUMBERS:
    _chacha_piece(out, _START, key, piece)
    return
  _chacha_piece(memory, _START, key, piece)
  if start + count > PIECE_NUMBERS:
    _chacha_piece(memory, _START + PIECE_NUMBERS, key, piece + 1)
  out[:] = memory[start:start + count]
