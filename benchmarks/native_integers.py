"""Compares the numbers of the compiled kernels with those of the graph form.

  python -m benchmarks.native_integers [--quick] [--mechanism=NAME]

Clients are encoded, and sums decoded, for every mechanism of the distributed sum, bits
from 2 to 30, and dimensions from 1 to 2^22, powers of two and others:
more than 10^7 coordinates for each mechanism. Some clients are clipped, and some are
long enough to be rounded again. Exits with 1 if any number differs.

On processors without AVX-512, where TensorFlow adds in other orders, the graph form is
compared with the kernels' transform in place of its own; `tests/aggregators/native_test.py`
compares the transforms.
"""

import argparse
import collections
from collections.abc import Iterator, Sequence
import contextlib
import dataclasses
import pathlib
import sys
from unittest import mock

import numpy as np
import tensorflow as tf

from aggregators import banded_sum, distributed_sum, rotation, share_tables
from aggregators.native import decoding, encoding, marks, transform
from aggregators.params import DistributedSumParams

# Every order of the transform, and those of two factors.
DIMENSIONS = (1, 2, 3, 31, 100, 127, 128, 129, 1000, 1100, 1500, 1700, 2**11, 5000, 2**13,
              2**14 + 1, 2**15, 36_000, 61_000, 86_000, 102_000, 2**17, 2**17 + 3,
              143_000, 200_000, 2**19, 820_522, 10**6, 2**20, 2**22, 5_000_500)
_CLIP = 0.5
_MOST_BITS_OF_LARGE_NOISE = 16


@dataclasses.dataclass(frozen=True)
class Case:
  """Parameters of a sum.

  Attributes:
    mechanism: Mechanism of DistributedSumParams; 'none' for no noise.
    bits: Bits of the modulus, in [2, 30].
    dimension: Number of coordinates of a client's vector, >= 1.
    rotation: 'hadamard' or 'none'.
    tight: Whether the bound is so tight that many tries of the rounding fail.
    column: That of DistributedSumParams.
  """

  mechanism: str
  bits: int
  dimension: int
  rotation: str = 'hadamard'
  tight: bool = False
  column: tuple[int, ...] = (1,)

  def __str__(self) -> str:
    words = [self.mechanism, f'{self.bits} bits', str(self.dimension), self.rotation]
    words += ['tight'] * self.tight + ['banded'] * (len(self.column) > 1)
    return ' '.join(words)

  def params(self) -> DistributedSumParams | None:
    """The parameters; None if they are invalid, or kernels don't support them."""
    coarse = self.bits <= 4
    # With more bits, noise of this multiplier would be beyond tables.
    noise = 0.5 * 2.0**min(0, _MOST_BITS_OF_LARGE_NOISE - self.bits)
    if self.mechanism == 'none':
      noise = 0.0
    try:
      params = DistributedSumParams(
          clip=_CLIP, noise_multiplier=noise, bits=self.bits, dimension=self.dimension,
          cohort_size=2 if coarse else 8, k_stddevs=1.0 if coarse else 4.0,
          mechanism='skellam' if self.mechanism == 'none' else self.mechanism,
          rotation=self.rotation, column=self.column,
          beta=0.999 if self.tight else float(np.exp(-0.5)))
      (banded_sum.BandedSumFactory if len(self.column) > 1 else
       distributed_sum.DistributedSumFactory)(params)
    except ValueError:
      return None
    return params if marks.is_supported(params) else None


def clients(dimension: int, count: int = 3) -> tuple[np.ndarray, np.ndarray]:
  """Updates, float32 [count, dimension], some clipped, and keys, int64 [count, 2]."""
  rng = np.random.default_rng(dimension)
  sizes = np.array([1.0, 0.4, 1e-3])[:count, np.newaxis] / dimension**0.5
  vectors = (rng.normal(size=[count, dimension]) * sizes).astype(np.float32)
  return vectors, rng.integers(-2**63, 2**63 - 1, [count, 2])


# Whether TensorFlow's matrix products, of which the graph's transform consists, add from
# the first term to the last at every size, as the kernels do. Without AVX-512 they add
# in other orders at some sizes: forms then agree but for the last bits.
IN_ORDER = 'avx512f' in pathlib.Path('/proc/cpuinfo').read_text(encoding='utf-8')
_LAST_BITS = 2.0**-20


def _rotate_in_order(flipped: tf.Tensor) -> tf.Tensor:
  """`rotation.rotate_flipped`, added from the first term to the last."""
  def transformed(vector):
    result = vector * np.float32(vector.size**-0.5)
    transform.transform(result)
    return result

  return tf.ensure_shape(
      tf.numpy_function(transformed, [flipped], tf.float32), flipped.shape)


def _in_order():
  """Within it the graph's transform adds as the kernels do; all else stays the graph's.

  `unequal` is what compares the transforms where they differ in last bits, any of which
  moves an integer now and then.
  """
  return contextlib.nullcontext() if IN_ORDER else mock.patch.object(
      rotation, 'rotate_flipped', _rotate_in_order)


def compare(case: Case, count: int = 3) -> tuple[int, int]:
  """Encodes `count` clients twice; numbers of coordinates and of differences."""
  params = case.params()
  if params is None:
    return 0, 0
  vectors, keys = clients(case.dimension, count)
  cohort = round(params.cohort_size)
  state = {'rotation_key': np.array([5, -6]), 'cohort_size': np.int32(cohort)}
  table = None
  if share_tables.table_log_size(params) is not None:
    table = share_tables.noise_table(params, cohort)
    state.update({f'noise_table/{name}': value for name, value in table.items()})
  encode = tf.function(
      lambda vector, key: distributed_sum.encode(
          vector, key, tf.constant(state['rotation_key']), cohort, params, table),
      autograph=False)
  different = 0
  for vector, key in zip(vectors, keys):
    with _in_order():
      graph = encode(tf.constant(vector), tf.constant(key))
    total = encoding.EncodedSum.of(params, state)
    total.add(vector[np.newaxis], key[np.newaxis])
    different += int(np.count_nonzero(total.total != graph.values.numpy()))
    if [int(x) for x in graph.diagnostics.values()] != total.diagnostics.tolist():
      different += 1
  return count * params.sent_dimension, different


def unequal(graph: np.ndarray, kernels: np.ndarray) -> int:
  """Number of float32 that differ, without last bits where orders differ."""
  if IN_ORDER:
    return int(np.count_nonzero(graph.view(np.int32) != kernels.view(np.int32)))
  largest = np.max(np.abs(graph), initial=0)
  return int(np.count_nonzero(~(np.abs(graph - kernels) <= _LAST_BITS * largest)))


def compare_decoded(case: Case, count: int = 3) -> tuple[int, int]:
  """Decodes `count` sums twice; numbers of coordinates and of those that differ."""
  params = case.params()
  if params is None:
    return 0, 0
  key = np.array([7, -8])
  decode = tf.function(
      lambda total, factor: distributed_sum.in_model_units(
          total, factor, tf.constant(key), params), autograph=False)
  rng = np.random.default_rng(case.dimension)
  different = 0
  for _ in range(count):
    total = rng.integers(0, params.modulus, params.padded_dimension, np.int32)
    if len(params.column) > 1:  # What follows from a row is no integer.
      total = (total / np.float32(params.column[0])).astype(np.float32)
    factor = np.float32(rng.uniform(0.5, 2.0) / params.scale)
    graph, square = (x.numpy() for x in decode(total, factor))
    vector, own_square = decoding.decoded(params, total, factor, key)
    different += unequal(graph, vector)
    different += unequal(np.float32([square]), np.float32([own_square]))
  return count * params.dimension, different


def cases() -> Iterator[Case]:
  """Yields all cases of the comparison."""
  for mechanism in ('skellam', 'discrete_gaussian', 'skellam_central', 'none'):
    for bits in range(2, 31):
      yield Case(mechanism, bits, 20_000)
      yield Case(mechanism, bits, 1000, 'none')
    for dimension in DIMENSIONS:
      for rotation in ('hadamard', 'none'):
        yield Case(mechanism, 14, dimension, rotation)
      if dimension < 10**5:
        yield Case(mechanism, 6, dimension, tight=True)
        yield Case(mechanism, 22, dimension, column=(4, 3))


def quick_cases() -> list[Case]:
  """A few cases, which take seconds."""
  return [
      Case('skellam', 2, 100), Case('skellam', 16, 1), Case('skellam', 16, 5),
      Case('skellam', 12, 300), Case('skellam', 20, 2500),
      Case('skellam', 9, 3001, 'none'),
      Case('skellam', 6, 1000, tight=True),
      Case('skellam', 16, 2**17 + 3, 'none'),
      Case('discrete_gaussian', 14, 2048),
      Case('discrete_gaussian', 10, 100), Case('skellam_central', 30, 700),
      Case('none', 8, 2**13), Case('skellam', 20, 2**17 + 3, column=(4, 3)),
      Case('skellam', 16, 5000, column=(2, 1, 1)),
      Case('skellam', 8, 1000, tight=True, column=(2, 1)),
      Case('skellam_central', 16, 300, 'none', column=(3, 2))]


def main(arguments: Sequence[str] | None = None) -> None:
  parser = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0])
  parser.add_argument('--quick', action='store_true', help='small, to see it run')
  parser.add_argument('--mechanism', help='compare this mechanism alone')
  args = parser.parse_args(arguments)
  chosen = [case for case in (quick_cases() if args.quick else cases())
            if args.mechanism in (None, case.mechanism)]
  compared, different = collections.Counter(), collections.Counter()
  for case in chosen:
    for name, function in ((case.mechanism, compare), ('decoded', compare_decoded)):
      count, wrong = function(case)
      compared[name] += count
      different[name] += wrong
      if wrong:
        print(f'{case}, {name}: {wrong} of {count} differ', flush=True)
  for name, count in compared.items():
    print(f'{name}: {count} coordinates, {different[name]} differ')
  if sum(different.values()):
    sys.exit(1)


if __name__ == '__main__':
  main()
