"""The server's decoding of a sum: `distributed_sum.in_model_units`, compiled."""

import numpy as np

from aggregators.native import compiling, encoding, transform
from aggregators.params import DistributedSumParams

# Coordinates that stay in the cache nearest to the processor.
_BLOCK = 4096


@compiling.jit
def decode(total, grid, bits, factor, signs, out):
  """Computes `distributed_sum.in_model_units` for all D padded coordinates.

  Args:
    total: int32 [D], in [0, 2^bits); empty where `grid` is given.
    grid: float32 [D], grid units; empty where `total` is given.
    bits: Bits of the modulus, in [2, 30].
    factor: float32, as `distributed_sum.in_model_units` takes it.
    signs: uint32 [ceil(D / 32)], from `transform.sign_bits`; empty for no rotation.
    out: float32 [D], written, model units. The squared norm of the sum is returned.
  """
  shift = np.int32(32 - bits)
  square = 0.0
  for start in range(0, out.size, _BLOCK):
    source, target = total[start:start + _BLOCK], out[start:start + _BLOCK]
    if grid.size:
      target[:] = grid[start:start + _BLOCK]
    for i in range(source.size):
      # The highest bit of the field becomes the sign.
      target[i] = np.float32(np.int32(np.int32(source[i] << shift) >> shift))
    square += transform.squared_norm(target)
    for i in range(target.size):
      target[i] *= factor
  if signs.size:
    transform.transform(out)
    transform.scaled_and_flipped(out, np.float32(1), np.float32(1), signs, out)
  return square


def decoded(params: DistributedSumParams, total: np.ndarray, factor: np.float32,
            rotation_key: np.ndarray) -> tuple[np.ndarray, np.float64]:
  """Computes `distributed_sum.in_model_units` on NumPy's arrays, without `dft`.

  Raises ValueError if `total` has another shape or dtype.
  """
  dim, grid = params.padded_dimension, total[:0].astype(np.float32)
  if total.dtype == np.float32:
    grid, total = encoding.checked('total', total, np.float32, dim), grid.view(np.int32)
  else:
    total = encoding.checked('total', total, np.int32, dim)
  signs = (transform.sign_bits(encoding.pair(rotation_key), dim)
           if params.rotation == 'hadamard' else np.zeros(0, np.uint32))
  out = np.empty(dim, np.float32)
  square = decode(encoding.read_only(total), encoding.read_only(grid), params.bits,
                  np.float32(factor), signs, out)
  return out[:params.dimension], np.float64(square)


def try_out() -> None:
  """Compiles the kernels that are not on disk yet. Raises any error of numba."""
  params = DistributedSumParams(
      clip=1.0, noise_multiplier=0.0, bits=16, dimension=1, cohort_size=1)
  decoded(params, np.zeros(1, np.int32), np.float32(1), np.zeros(2, np.int64))
