"""Conditional rounding, noise and wrapping: `aggregators.noisy_rounding`, compiled.

`aggregators.noisy_rounding` explains blocks, keys and the order of random bits; within
a block, strips of STRIP coordinates stay in the cache.
"""

import numpy as np

from aggregators.native import compiling, random_bits

# The value of `noisy_rounding`.
BLOCK = 2**17
_MAX_TRIES = 64
_RETRIES, _TIES, _MORE_DRAWS = np.int64(0), np.int64(1), np.int64(2)
_FIRST_CHILD = np.int64(0)
_TOWARDS_ZERO, _ALL_ZERO = np.int64(-1), np.int64(-2)
# Same as in `alias_table`: bits of the first comparison of a draw.
_FIRST_BITS = np.int32(22)
_FIRST = np.int32(2**22 - 1)
_LOW_BITS = 32 - _FIRST_BITS

STRIP = random_bits.PIECE_NUMBERS
_SCALE = np.float32(2.0**24)
_THRESHOLD = np.int32(2**24 - 1)
_HALF = np.uint64(32)


@compiling.jit
def _round(block, factor, thresholds, out):
  """Rounds up where the fraction exceeds a threshold, and down elsewhere.

  Args:
    block: float32 [n].
    factor: float32, grid units in a unit of `block`.
    thresholds: int32 [n], in [0, 2^24), in units of 2^-24.
    out: int32 [n], written. Its squared norm, int64, is returned.
  """
  norm = np.int64(0)
  for i in range(block.size):
    x = block[i] * factor
    whole = np.int32(x)
    # Truncation rounds up below zero.
    floor = np.int32(whole - np.int32(x < np.float32(whole)))
    fraction = np.int32((x - np.float32(floor)) * _SCALE)
    rounded = np.int32(floor + np.int32(thresholds[i] < fraction))
    out[i] = rounded
    norm += np.int64(rounded) * np.int64(rounded)
  return norm


@compiling.jit
def _add_draw(low, high, packed, tie, indices, out, tie_key, dim, start, memory):
  """Adds a draw from a table; see `alias_draw.draw`.

  Args:
    low: int32 [n], random bits.
    high: int32 [n], random in its high 9 bits.
    packed, tie: int64 [N], of an alias table.
    indices: int32 [n], working memory.
    out: int32 [n]; draws are added.
    tie_key: Key of the bits that break ties.
    dim, start: Coordinates of the block, and index of the first of these n in it.
    memory: From `random_bits.scratch`.
  """
  mask = np.int32(packed.size - 1)
  half = np.int32(packed.size // 2)
  for i in range(low.size):
    indices[i] = ((low[i] >> _FIRST_BITS) ^
                  (np.int32(high[i] >> np.int32(23)) << _LOW_BITS)) & mask
  ties = 0
  for i in range(low.size):
    index = indices[i]
    cell = packed[np.uint32(index)]
    threshold = np.int32(cell >> 32)
    first = low[i] & _FIRST
    value = index if first < threshold else np.int32(cell)
    ties += first == threshold
    out[i] += value - half
  if ties == 0:
    return
  # The 64 bits that break a tie are those at its index.
  numbers = np.empty(2, np.uint32)
  for i in range(low.size):
    index = indices[i]
    cell = packed[index]
    if low[i] & _FIRST == np.int32(cell >> 32):
      random_bits.fill(tie_key, 2 * dim, 2 * (start + i), numbers, memory)
      # Above the alias was added.
      if np.int64(np.uint64(numbers[0]) | np.uint64(numbers[1]) << _HALF) < tie[index]:
        out[i] += index - np.int32(cell)


@compiling.jit
def _block(values, factor, key, index, sign, table, bits, total, closed, memory):
  """Rounds one block by the try of an index, and adds it with its noise.

  Args:
    values: float32 [n].
    factor: float32, grid units in a unit of `values`.
    key: Pair of uint64, the key of the block.
    index: Index of a try, _TOWARDS_ZERO or _ALL_ZERO, as in `noisy_rounding`.
    sign: 1 to add the result to `total`, -1 to take it away again, 0 for neither.
    table, bits: See `noisy_round`.
    total: int32 [n], in [0, 2^bits).
    closed: int32 [n], the same without noise; empty where that is not wanted.
    memory: For random bits (`random_bits.scratch`), and int32 [4, STRIP].

  Returns:
    int64, the squared norm of the rounded values without noise, grid units.
  """
  draws, packed, tie = table
  numbers, strips = memory
  dim = values.size
  # Number and key of the bits that round; the first try shares them with a draw.
  own_total, own_key = 2 * dim if draws else dim, key
  if index > 0:
    own_total = dim
    own_key = random_bits.derive(
        random_bits.derive(key, _RETRIES, numbers), index, numbers)
  more_key = random_bits.derive(key, _MORE_DRAWS, numbers)
  mask = np.int32((1 << bits) - 1)
  norm = np.int64(0)
  for start in range(0, dim, STRIP):
    size = min(STRIP, dim - start)
    source = values[start:start + size]
    high, low = strips[0, :size], strips[1, :size]
    indices, rounded = strips[2, :size], strips[3, :size]
    if index == _ALL_ZERO:
      rounded[:] = np.int32(0)
    elif index == _TOWARDS_ZERO:
      for i in range(size):
        rounded[i] = np.int32(source[i] * factor)
        norm += np.int64(rounded[i]) * np.int64(rounded[i])
    else:
      random_bits.fill(
          own_key, own_total, start, high.view(np.uint32), numbers)
      if index == 0 and draws:
        for i in range(size):
          low[i] = (high[i] << np.int32(1)) & _THRESHOLD | np.int32(1)
      else:
        for i in range(size):
          low[i] = high[i] & _THRESHOLD
      norm += _round(source, factor, low, rounded)
    if sign == 0:
      continue
    if closed.size:
      target = closed[start:start + size]
      for i in range(size):
        target[i] = (target[i] + sign * rounded[i]) & mask
    for draw in range(draws):
      if draw == 0:
        draw_key, tie_key = key, random_bits.derive(key, _TIES, numbers)
      else:
        draw_key = random_bits.derive(more_key, draw - 1, numbers)
        tie_key = random_bits.derive(draw_key, _FIRST_CHILD, numbers)
      if draw > 0 or index != 0:
        random_bits.fill(draw_key, 2 * dim, start, high.view(np.uint32),
                         numbers)
      random_bits.fill(draw_key, 2 * dim, dim + start, low.view(np.uint32), numbers)
      _add_draw(low, high, packed, tie, indices, rounded, tie_key, dim, start, numbers)
    target = total[start:start + size]
    for i in range(size):
      target[i] = (target[i] + sign * rounded[i]) & mask
  return norm


@compiling.jit
def add_noisy_round(values, factor, squared_norm, key, bound, table, bits, total, closed):
  """Adds `noisy_rounding.noisy_round` to a running sum.

  Args:
    values: float32 [D].
    factor: float32, grid units in a unit of `values`.
    squared_norm: float64, the squared norm of `values`.
    key: Pair of uint64.
    bound: int64, maximum squared norm of the rounded values, grid units.
    table: Draws (0 for no noise; the first shares its random bits with the rounding),
      and int64 [N] `packed` and `tie` of an alias table.
    bits: The sum is modulo 2^bits.
    total: int32 [D], in [0, 2^bits), to which the result is added.
    closed: int32 [D], the same without noise; empty where it is not wanted.

  Returns:
    int64, tries of the rounding beyond the first, in [0, 63]; and bool, whether no try
    was within the bound, or `values` is out of range.
  """
  memory = random_bits.scratch(), np.empty((4, STRIP), np.int32)
  # False for NaN.
  in_range = squared_norm * (np.float64(factor) * np.float64(factor)) <= 2.0**61
  tries, sign = np.int64(0), np.int32(1)
  while True:
    index = tries if tries < _MAX_TRIES else _MAX_TRIES + _TOWARDS_ZERO - tries
    if not in_range:
      index = _ALL_ZERO
    norm = np.int64(0)
    for start in range(0, values.size, BLOCK):
      own_key = random_bits.derive(key, start // BLOCK, memory[0])
      norm += _block(values[start:start + BLOCK], factor, own_key, index, sign, table,
                     bits, total[start:start + BLOCK], closed[start:start + BLOCK],
                     memory)
    if norm > bound and sign > 0:
      sign = np.int32(-1)  # What was added is taken away: no vector is kept for it.
    elif norm > bound:
      tries, sign = tries + 1, np.int32(0)
    elif sign > 0:
      return min(tries, _MAX_TRIES - 1), not in_range or tries >= _MAX_TRIES
    else:
      sign = np.int32(1)
