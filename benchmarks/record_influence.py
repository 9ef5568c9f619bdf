"""The influence of one record on its silo's integers, for adversarial gradients.

  python -m benchmarks.record_influence [--vectors=1000000]

Integers of a silo add up, so a record moves them by its own encoding: its squared L2 norm
must never be above the sensitivity that is accounted for.
"""

import argparse
from collections.abc import Sequence
import sys
import time

import numpy as np

from aggregators import distributed_sum
from aggregators.native import encoding
from aggregators.params import DistributedSumParams
from aggregators.record_sum import RecordSumFactory

DIMENSION, SILOS = 15, 2
_BLOCK = 10_000


def adversarial(rng: np.random.Generator, count: int) -> np.ndarray:
  """Vectors of all sizes, on axes, corners and ties of the grid, with NaN; float32."""
  kinds = rng.integers(7, size=count)
  vectors = rng.normal(size=(count, DIMENSION))
  vectors[kinds == 1] *= 10.0**rng.uniform(-40, 30, size=((kinds == 1).sum(), 1))
  vectors[kinds == 2, 1:] = 0.0
  vectors[kinds == 3] = np.sign(vectors[kinds == 3]) * DIMENSION**-0.5
  vectors[kinds == 4] = np.round(vectors[kinds == 4] * 3) / 3 + 0.5 / 3
  vectors[kinds == 5, rng.integers(DIMENSION)] = rng.choice([np.nan, np.inf, -np.inf])
  # Just inside the clip and just outside.
  near = vectors[kinds == 6]
  vectors[kinds == 6] = near / np.linalg.norm(near, axis=1, keepdims=True) * (
      1 + rng.choice([-1e-7, 0, 1e-7], size=(len(near), 1)))
  with np.errstate(over='ignore'):
    return vectors.astype(np.float32)


def largest(bits: int, count: int) -> tuple[int, float]:
  """The largest squared norm of `count` encodings, and the bound, grid units squared."""
  factory = distributed_sum.DistributedSumFactory(DistributedSumParams(
      clip=1.0, noise_multiplier=0.0, bits=bits, dimension=DIMENSION, cohort_size=4,
      max_cohort_size=4).over_silos(SILOS))
  params, rng = RecordSumFactory(factory).native_params, np.random.default_rng(bits)
  assert params.l2_sensitivity_squared == factory.bare_params.l2_sensitivity_squared
  found = 0
  while count > 0:
    state = {'rotation_key': rng.integers(2**40, size=2), 'cohort_size': np.int32(SILOS)}
    vectors = adversarial(rng, min(count, _BLOCK))
    for vector, key in zip(vectors, rng.integers(2**40, size=(len(vectors), 2))):
      alone = encoding.EncodedSum.of(params, state)
      alone.add(vector[np.newaxis], key[np.newaxis])
      integers = alone.total.astype(np.int64)
      integers -= (integers >= 2**(bits - 1)) * 2**bits
      found = max(found, int(np.square(integers).sum()))
    count -= _BLOCK
  return found, params.l2_sensitivity_squared


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs the script with these flags, those of the command line by default."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--vectors', type=int, default=1_000_000, help='of all bits')
  flags, failed = parser.parse_args(arguments), False
  for bits in (8, 12, 18, 22):
    start, count = time.monotonic(), -(-flags.vectors // 4)
    found, bound = largest(bits, count)
    failed |= found > bound
    print(f'{bits} bits, {count:,} vectors: largest squared norm {found / bound:.6f} of '
          f'the bound {bound:.6g} ({time.monotonic() - start:.0f} s)', flush=True)
  return int(failed)


if __name__ == '__main__':
  sys.exit(main())
