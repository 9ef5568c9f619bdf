"""`distributed_sum.encode` of many clients, compiled, and added to a running sum."""

from collections.abc import Mapping
import math
import threading
from typing import Any
import zlib

import numpy as np

from aggregators import share_tables
from aggregators.native import compiling, noising, transform
from aggregators.params import DistributedSumParams

# Diagnostics, in the order of `distributed_sum.encode`.
DIAGNOSTICS = ('clipped', 'not_finite', 'cohort_disbelieved', 'rounding_retries',
               'rounding_fallbacks')
# Clipping needs no care for overflow if the norm is between these, model units; and
# the slack of a float32 product. Both as in `rounding`.
_SMALLEST, _LARGEST = 1e-15, 1e18
_FLOAT_SLACK = 1.0 - 2.0**-22


@compiling.jit
def _clip_extreme(vector, clip, out):
  """As `rounding._clip_extreme`, to `out`; whether it was clipped, and finite."""
  out[:] = np.float32(0)
  if not np.isfinite(vector).all():
    return False, False
  largest = np.abs(vector).max()
  relative = vector / (largest if largest > 0 else np.float32(1))
  relative_norm = math.sqrt(np.square(relative.astype(np.float64)).sum())
  clipped = relative_norm * np.float64(largest) > clip
  if clipped:
    vector = relative * np.float32(clip / max(relative_norm, 1.0))
  fits = np.isfinite(vector).all()
  if fits:
    out[:] = vector
  return clipped, fits


@compiling.jit
def encode_clients(vectors, keys, signs, clip, scale, clip_grid, bound, believed, table,
                   bits, rotated, total, diagnostics):
  """Encodes clients' vectors and adds them to a running sum.

  Args:
    vectors: float32 [clients, d], model units.
    keys: uint64 [clients, 2].
    signs: uint32 [ceil(D / 32)], from `transform.sign_bits`; empty for no rotation.
    clip: float64, model units, > 0.
    scale: float64, grid units per model unit.
    clip_grid: float64, the clip in grid units.
    bound: int64, maximum squared norm of a rounded vector, grid units.
    believed: Whether the stated cohort size is believed; if not, vectors count as zero.
    table: See `noising.add_noisy_round`.
    bits: Bits of the modulus, in [2, 30].
    rotated: float32 [D], working memory.
    total: int32 [D], in [0, 2^bits); clients are added modulo 2^bits. Or [2 D], where
      the second half is of the vectors without noise.
    diagnostics: int64 [5], in the order of DIAGNOSTICS; counts are added.
  """
  dim = rotated.size
  orthonormal = np.float32(dim**-0.5) if signs.size else np.float32(1)
  for client in range(len(vectors)):
    vector = vectors[client]
    norm = math.sqrt(transform.squared_norm(vector))
    factor, clipped = np.float32(min(clip / norm, 1.0)), norm > clip
    if not _SMALLEST < norm < _LARGEST:
      factor, extreme = np.float32(1), np.empty(vector.size, np.float32)
      clipped, is_finite = _clip_extreme(vector, clip, extreme)
      diagnostics[1] += not is_finite
      vector = extreme
    diagnostics[0] += clipped
    transform.scaled_and_flipped(vector, factor, orthonormal, signs, rotated)
    if signs.size:
      transform.transform(rotated)
    square = transform.squared_norm(rotated)
    norm = math.sqrt(square)
    limit = clip_grid * _FLOAT_SLACK
    factor64 = limit / max(norm, 1e-300) if norm * scale > limit else scale
    if not believed:
      factor64 = 0.0
    retries, fell_back = noising.add_noisy_round(
        rotated, np.float32(factor64), square, (keys[client, 0], keys[client, 1]),
        bound, table, bits, total[:dim], total[dim:])
    diagnostics[2] += not believed
    diagnostics[3] += retries
    diagnostics[4] += fell_back


def checked(name: str, array: np.ndarray, dtype, *shape: int) -> np.ndarray:
  """`read_only`. ValueError for what compiled loops don't check: dtype and shape."""
  if (array.dtype, array.shape) != (dtype, shape):
    raise ValueError(f'{name} must be {np.dtype(dtype)} {list(shape)}, found '
                     f'{array.dtype} {list(array.shape)}')
  return read_only(array)


def read_only(array: np.ndarray) -> np.ndarray:
  """A read-only, contiguous view or copy: kernels are compiled for that type alone."""
  fits = array.flags.c_contiguous and array.flags.aligned  # `require` is slow.
  view = (array if fits else np.require(array, requirements=['C', 'A'])).view()
  view.flags.writeable = False
  return view


def _table(params: DistributedSumParams, state: Mapping[str, Any]):
  """The argument `table` of `encode_clients`; None if no table has the noise."""
  nothing = read_only(np.zeros(0, np.int64))
  if params.noise_multiplier == 0 or not params.has_shares:
    return 0, nothing, nothing
  if not params.noise.in_kernels or 'noise_table/packed' not in state:
    return None
  share = share_tables.share_variance(params, float(state['cohort_size']))
  draws = int(state['noise_table/draws'])
  shapes = {state[f'noise_table/{name}'].shape for name in ('packed', 'tie')}
  if float(state['noise_table/variance']) != share / draws or shapes != {
      (1 << share_tables.table_log_size(params),)}:
    return None
  return draws, *(read_only(state[f'noise_table/{name}']) for name in ('packed', 'tie'))


_memory = threading.local()


def _vector_of(dim: int) -> np.ndarray:
  """float32 [dim] of this thread: a new one takes longer."""
  if getattr(_memory, 'vector', np.zeros(0)).size != dim:
    _memory.vector = np.empty(dim, np.float32)
  return _memory.vector


class EncodedSum:
  """The sum modulo 2^bits of clients' encoded vectors.

  A thread takes a vector of `padded_dimension` 32-bit numbers, in addition to the clients'
  own and to the sum.

  Attributes:
    total: int32 [sent_dimension], in [0, 2^bits).
    diagnostics: int64 [5], sums over clients in the order of DIAGNOSTICS.
  """

  def __init__(self, params: DistributedSumParams, state: Mapping[str, Any], table):
    self._params, self._table = params, table
    self._believed = not params.has_shares or bool(
        float(state['cohort_size']) <= params.believed_cohort)
    dim, sent = params.padded_dimension, params.sent_dimension
    self._signs = (transform.sign_bits(pair(state['rotation_key']), dim)
                   if params.rotation == 'hadamard' else np.zeros(0, np.uint32))
    # Not `np.zeros`: the system maps pages twice that are read before they are written.
    self.total = np.full(sent, 0, np.int32)
    self.diagnostics = np.zeros(len(DIAGNOSTICS), np.int64)

  @classmethod
  def of(cls, params: DistributedSumParams, state: Mapping[str, Any]
         ) -> 'EncodedSum | None':
    """Builds the sum of no client; None if kernels can't draw the noise.

    Args:
      params: Parameters for which `marks.is_supported` is true.
      state: Name -> array of the state of a `DistributedSumFactory`; names of the
        noise table begin with `noise_table/`.
    """
    table = _table(params, state)
    return None if table is None else cls(params, state, table)

  def add(self, vectors: np.ndarray, keys: np.ndarray) -> None:
    """Adds clients: float32 [clients, dimension], model units, and int64 [clients, 2].

    Raises ValueError for other shapes or dtypes.
    """
    params, count = self._params, len(vectors)
    encode_clients(
        checked('vectors', vectors, np.float32, count, params.dimension),
        checked('keys', keys, np.int64, count, 2).view(np.uint64), self._signs,
        float(params.clip), params.scale, params.clip_grid,
        params.l2_sensitivity_squared, self._believed, self._table, params.bits,
        _vector_of(params.padded_dimension), self.total, self.diagnostics)


def pair(key: np.ndarray) -> tuple[np.uint64, np.uint64]:
  """Converts a key, int64 [2], to the pair of uint64 that kernels take."""
  return tuple(read_only(key).view(np.uint64))


def known():
  """An arbitrary client: parameters, state, vectors, keys. Its table is no noise."""
  params = DistributedSumParams(clip=1.0, noise_multiplier=1.0, bits=16, dimension=3000,
                                cohort_size=20)
  cells = np.arange(1 << share_tables.table_log_size(params))
  state = {'rotation_key': np.array([3, -4]), 'cohort_size': np.int32(20),
           'noise_table/packed': (7919 * cells % 2**22) << 32 | cells[::-1],
           'noise_table/tie': cells << 40, 'noise_table/draws': np.int32(1),
           'noise_table/variance': np.float64(share_tables.share_variance(params, 20))}
  vector = (np.arange(3000) % 17 - 8).astype(np.float32)
  return params, state, vector[np.newaxis], np.array([[2**40 + 3, -5]])


# CRC-32 of the sum of `known`.
_KNOWN_SUM = 0xAA980C08


def try_out() -> None:
  """Compiles the kernels that are not on disk yet, and encodes a known client.

  Raises:
    RuntimeError: If the sum is another: the noise of such kernels is unknown.
    Exception: Any error of numba.
  """
  params, state, vectors, keys = known()
  result = EncodedSum.of(params, state)
  result.add(vectors, keys)
  if zlib.crc32(result.total.tobytes()) != _KNOWN_SUM:
    raise RuntimeError('the kernels encode other integers')
