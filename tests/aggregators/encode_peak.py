"""Encodes a client's vectors and prints the peak of this process's memory after each.

  python -m tests.aggregators.encode_peak GENERATOR DIMENSION...

A process of its own, as the peak of a process never falls; so dimensions grow.
"""

import sys

import numpy as np
import tensorflow as tf

from aggregators import distributed_sum
from aggregators import share_tables
from aggregators.params import DistributedSumParams


def encode(dimension: int, generator: str) -> int:
  """The peak in bytes after encoding a vector of a dimension twice."""
  params = DistributedSumParams(
      clip=1.0, noise_multiplier=1.0, bits=16, dimension=dimension,
      cohort_size=10, noise_generator=generator)
  table = tf.nest.map_structure(
      tf.constant, share_tables.noise_table(params, 10))
  encoded = tf.function(lambda vector, key: distributed_sum.encode(
      vector, key, tf.constant([3, 4], tf.int64), 10, params, table).values)
  vector = tf.fill([dimension], np.float32(1e-4))
  for i in range(2):
    values = encoded(vector, tf.constant([1, i], tf.int64))
    assert values.shape == [params.padded_dimension]
    assert 0 <= int(tf.reduce_min(values))
    assert int(tf.reduce_max(values)) < params.modulus
    del values  # Or it would be there with the next one.
  with open('/proc/self/status', encoding='utf-8') as file:
    fields = dict(line.split(':', 1) for line in file)
  return int(fields['VmHWM'].split()[0]) * 1024


if __name__ == '__main__':
  for size in map(int, sys.argv[2:]):
    print(encode(size, sys.argv[1]))
