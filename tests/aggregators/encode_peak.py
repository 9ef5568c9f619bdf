"""Encodes one client's vector and prints the peak of this process's memory.

  python -m tests.aggregators.encode_peak DIMENSION

A process of its own, as the peak of a process never falls.
"""

import sys

import numpy as np
import tensorflow as tf

from aggregators import distributed_sum, share_tables
from aggregators.params import DistributedSumParams


def main(dimension: int) -> None:
  params = DistributedSumParams(
      clip=1.0, noise_multiplier=1.0, bits=16, dimension=dimension,
      cohort_size=10)
  table = tf.nest.map_structure(tf.constant, share_tables.noise_table(params, 10))
  encode = tf.function(lambda vector, key: distributed_sum.encode(
      vector, key, tf.constant([3, 4], tf.int64), 10, params, table).values)
  vector = tf.fill([dimension], np.float32(1e-4))
  for i in range(2):
    values = encode(vector, tf.constant([1, i], tf.int64))
    assert values.shape == [params.padded_dimension]
    assert 0 <= int(tf.reduce_min(values))
    assert int(tf.reduce_max(values)) < params.modulus
    del values  # Or it would be there with the next one.
  with open('/proc/self/status', encoding='utf-8') as file:
    fields = dict(line.split(':', 1) for line in file)
  print(int(fields['VmHWM'].split()[0]) * 1024)


if __name__ == '__main__':
  main(int(sys.argv[1]))
