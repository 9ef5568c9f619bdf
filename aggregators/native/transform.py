"""Clipping, signs and the Hadamard transform: `aggregators.rotation`, compiled.

Sums are taken in the order of `rotation.transformed`, for the same bits.
"""

import numpy as np

from aggregators import hadamard
from aggregators.native import compiling, random_bits
from aggregators.native.compiling import DOUBLE, LANES

# Same as in `rotation`: passes of radix 16, and of radix 2 for the bits that are left.
_LOG_RADIX = 4
_RADIX = 2**_LOG_RADIX
_ORDERS = hadamard.ORDERS
# Shorter vectors are transformed by passes of radix 2 alone.
_LEAST_LOG_DIM = 8
# A block of this many coordinates stays in the cache nearest to the processor.
_LOG_BLOCK = 12
# Columns that are transformed together where rows are far apart in memory.
_COLUMNS = 32
# Number of partial sums of squares.
_SUMS = 64


def _by_matrix(builder, rows):
  """The transform of n vectors; each sum adds them from the first to the last."""
  # Bit m of `signs[j]` says whether the element (j, m) of the matrix is -1.
  signs = [sum(1 << m for m, sign in enumerate(row) if sign < 0)
           for row in hadamard.matrix(len(rows))]
  # Sums whose first terms are equal share these terms.
  sums = {0: rows[0]}
  for k in range(1, len(rows)):
    longer = {}
    for sign in dict.fromkeys(s % 2**(k + 1) for s in signs):
      add = builder.fsub if sign >> k else builder.fadd
      longer[sign] = add(sums[sign % 2**k], rows[k])
    sums = longer
  return [sums[sign] for sign in signs]


def _by_2(builder, rows):
  """The transform of 2^k vectors by butterflies, the first half against the second."""
  if len(rows) == 1:
    return rows
  half = len(rows) // 2
  pairs = list(zip(rows[:half], rows[half:]))
  return (_by_2(builder, [builder.fadd(a, b) for a, b in pairs]) +
          _by_2(builder, [builder.fsub(a, b) for a, b in pairs]))


def _pass(radix: int):
  """Builds the instructions of a pass over `radix` rows, for LANES columns."""
  def rows_of(builder, source, at, stride, target, target_at, target_stride):
    rows = []
    for _ in range(radix):
      rows.append(compiling.load(builder, source, at))
      at = builder.add(at, stride)
    for row in (_by_matrix if radix >= 12 else _by_2)(builder, rows):
      compiling.store(builder, row, target, target_at)
      target_at = builder.add(target_at, target_stride)

  rows_of.__name__ = f'_rows_{radix}'
  return compiling.instructions(rows_of)


_rows_2, _rows_4, _rows_8, _rows_16 = map(_pass, (2, 4, 8, 16))
_rows_12, _rows_20, _rows_28 = map(_pass, hadamard.ORDERS)


def _transposed(builder, rows):
  """The transpose of n vectors of n lanes."""
  rows = list(rows)
  lanes = len(rows)
  width = lanes // 2
  while width:
    low = [lane if not lane & width else lanes + lane - width for lane in range(lanes)]
    for i in range(lanes):
      if not i & width:
        pair = rows[i], rows[i + width]
        rows[i] = compiling.shuffle(builder, *pair, low)
        rows[i + width] = compiling.shuffle(builder, *pair, [x + width for x in low])
    width //= 2
  return rows


@compiling.instructions
def _last_16(builder, values, at):
  """The pass over the last 4 bits of the index, of 256 coordinates in place."""
  places = [compiling.offset(builder, at, _RADIX * i) for i in range(_RADIX)]
  rows = [compiling.load(builder, values, place, _RADIX) for place in places]
  rows = _transposed(builder, _by_matrix(builder, _transposed(builder, rows)))
  for row, place in zip(rows, places):
    compiling.store(builder, row, values, place)


@compiling.instructions
def _add_squares(builder, values, at, sums):
  """Adds the square of each of _SUMS numbers to the sum at its index."""
  for i in range(0, _SUMS, LANES):
    x = compiling.load(builder, values, compiling.offset(builder, at, i))
    x = builder.fpext(x, compiling.vector(DOUBLE))
    index = compiling.ir.Constant(compiling.INT64, i)
    total = compiling.load(builder, sums, index)
    compiling.store(builder, builder.fadd(total, builder.fmul(x, x)), sums, index)


@compiling.jit
def squared_norm(vector):
  """The squared norm of float32 [d], float64; infinite or NaN if a coordinate is."""
  sums = np.zeros(_SUMS, np.float64)
  whole = vector.size // _SUMS * _SUMS
  for i in range(0, whole, _SUMS):
    _add_squares(vector, i, sums)
  total = 0.0
  for i in range(whole, vector.size):
    total += np.float64(vector[i]) * np.float64(vector[i])
  for x in sums:
    total += x
  return total


@compiling.jit
def sign_bits(key, dim):
  """The bits of `rotation.sign_bits`, uint32 [ceil(dim / 32)]; key: pair of uint64."""
  out = np.empty(-(-dim // 32), np.uint32)
  random_bits.philox(key, out)
  return out


@compiling.jit
def scaled_and_flipped(vector, factor, scale, signs, out):
  """Writes a vector times two factors, flipped by `rotation.flip`, then zeros.

  Args:
    vector: float32 [d].
    factor, scale: float32, the first and the second factor.
    signs: uint32 [ceil(D / 32)], from `sign_bits`; empty for no flips.
    out: float32 [D], D >= d, written; may be `vector`.
  """
  dim = vector.size
  out[dim:] = np.float32(0)
  if signs.size == 0:
    for i in range(dim):
      out[i] = vector[i] * factor * scale
    return
  whole = dim // 32
  for i in range(whole):
    bits = signs[i]
    source, target = vector[32 * i:32 * i + 32], out[32 * i:32 * i + 32]
    for j in range(32):
      # Negating a factor negates the product exactly.
      target[j] = source[j] * factor * (
          -scale if (bits >> np.uint32(j)) & np.uint32(1) else scale)
  for i in range(32 * whole, dim):
    is_set = (signs[i // 32] >> np.uint32(i % 32)) & np.uint32(1)
    out[i] = vector[i] * factor * (-scale if is_set else scale)


@compiling.jit
def _top_rows(values, start, log_size, count):
  """Passes of radix 2 over the first `count` bits of 2^log_size coordinates."""
  stride = 1 << (log_size - count)
  for i in range(start, start + stride, LANES):
    if count == 1:
      _rows_2(values, i, stride, values, i, stride)
    elif count == 2:
      _rows_4(values, i, stride, values, i, stride)
    else:
      _rows_8(values, i, stride, values, i, stride)


@compiling.jit
def _one_pass(values, start, stride):
  """A pass of radix 16 over 16 * stride coordinates."""
  for i in range(start, start + stride, LANES):
    _rows_16(values, i, stride, values, i, stride)


@compiling.jit
def _two_passes(values, start, stride, memory):
  """Passes over rows 16 * stride and `stride` apart, of 256 * stride coordinates."""
  for column in range(start, start + stride, _COLUMNS):
    for row in range(_RADIX):
      for i in range(0, _COLUMNS, LANES):
        _rows_16(values, column + row * stride + i, _RADIX * stride,
                 memory, row * _COLUMNS + i, _RADIX * _COLUMNS)
    for row in range(_RADIX):
      for i in range(0, _COLUMNS, LANES):
        _rows_16(memory, row * _RADIX * _COLUMNS + i, _COLUMNS,
                 values, column + row * _RADIX * stride + i, stride)


@compiling.jit
def _by_butterflies(values):
  """The transform of a short vector."""
  half = values.size // 2
  while half:
    for start in range(0, values.size, 2 * half):
      for i in range(start, start + half):
        a, b = values[i], values[i + half]
        values[i], values[i + half] = a + b, a - b
    half //= 2


@compiling.jit
def _walsh_hadamard(values):
  """The transform of 2^k coordinates."""
  log_dim = 0
  while 1 << log_dim < values.size:
    log_dim += 1
  if log_dim < _LEAST_LOG_DIM:
    _by_butterflies(values)
    return
  rest = log_dim % _LOG_RADIX
  if rest:
    _top_rows(values, 0, log_dim, rest)
  memory = np.empty(_RADIX * _RADIX * _COLUMNS, np.float32)
  # Number of the lowest bits of an index that are still to be transformed.
  left = log_dim - rest
  while left > _LOG_BLOCK:
    passes = 2 if left - _LOG_RADIX > _LOG_BLOCK else 1
    stride = 1 << (left - passes * _LOG_RADIX)
    for start in range(0, values.size, 1 << left):
      if passes == 2:
        _two_passes(values, start, stride, memory)
      else:
        _one_pass(values, start, stride)
    left -= passes * _LOG_RADIX
  for start in range(0, values.size, 1 << left):
    stride = 1 << (left - _LOG_RADIX)
    while stride >= _RADIX:
      for inner in range(start, start + (1 << left), _RADIX * stride):
        _one_pass(values, inner, stride)
      stride //= _RADIX
    for inner in range(start, start + (1 << left), _RADIX * _RADIX):
      _last_16(values, inner)


@compiling.jit
def transform(values):
  """The Hadamard transform of float32 [D] in place, not scaled; D by `hadamard.padded`."""
  odd = size = values.size
  while odd % 2 == 0:
    odd //= 2
  for order in _ORDERS:
    while odd % (order // 4) == 0:
      odd //= order // 4
      stride = size // order
      for start in range(0, values.size, size):
        for i in range(start, start + stride, LANES):
          if order == 12:
            _rows_12(values, i, stride, values, i, stride)
          elif order == 20:
            _rows_20(values, i, stride, values, i, stride)
          else:
            _rows_28(values, i, stride, values, i, stride)
      size = stride
  for start in range(0, values.size, size):
    _walsh_hadamard(values[start:start + size])
