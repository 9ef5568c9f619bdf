"""Runs rounds of one chunk of clients and prints the peak of this process after each.

  python -m tests.fedavg.chunk_peak CLIENTS ...

A model of a million parameters. A process of its own, as the peak of a process
never falls; so chunks grow.
"""

import collections
from collections.abc import Sequence
import sys

import numpy as np
import tensorflow as tf

from aggregators.distributed_sum import DistributedSumFactory
from aggregators.params import DistributedSumParams
from tasks.models import layers
from tff_pipelines.fedavg import local_training, process as process_lib
from tff_pipelines.fedavg.server_optimizer import ServerConfig
from tff_pipelines.simulation import contexts

FEATURES = CLASSES = 1000


def _initial_weights(seed):
  del seed  # Unused.
  return [np.zeros((FEATURES, CLASSES), np.float32)]


def _loss(weights, batch, seed):
  del seed  # Unused.
  return layers.softmax_cross_entropy(tf.matmul(batch['x'], weights[0]), batch['y'])


def main(sizes: Sequence[int]) -> None:
  factory = DistributedSumFactory(DistributedSumParams(
      clip=1.0, noise_multiplier=1.0, bits=16, dimension=FEATURES * CLASSES,
      cohort_size=10))
  process = process_lib.build_chunked(
      local_training.client_update(_loss, local_training.LocalConfig(
          learning_rate=0.1, batch_size=1, epochs=1)),
      {'x': (np.float32, (FEATURES,)), 'y': (np.int32, ())},
      sum_factory=factory, expected_cohort_size=10, initial_weights=_initial_weights(0),
      server=ServerConfig(learning_rate=1.0))
  examples = collections.OrderedDict(
      x=np.ones((1, FEATURES), np.float32), y=np.zeros(1, np.int32))
  with contexts.simulation():
    state = process.initialize()
    state = process_lib.set_cohort_size(state, 10, factory)
    for clients in sizes:
      state = process.next(state, [process_lib.make_chunk(
          [collections.OrderedDict(examples=examples)] * clients)])['state']
      assert np.any(state['weights'][0] != 0)
      with open('/proc/self/status', encoding='utf-8') as file:
        fields = dict(line.split(':', 1) for line in file)
      print(int(fields['VmHWM'].split()[0]) * 1024)


if __name__ == '__main__':
  main([int(size) for size in sys.argv[1:]])
