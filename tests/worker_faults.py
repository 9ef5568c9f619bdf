"""Workers of local slices are killed and stopped at random moments of a seeded run.

  python -m tests.worker_faults [--faults=20]

In each round one of two workers gets SIGKILL or SIGSTOP at a random moment. All states
and metrics of the rounds must have the digest of an undisturbed run, and each round
must count each client once: no slice is merged twice, none is missing.
"""

import argparse
import collections
from collections.abc import Sequence
import hashlib
import os
import random
import signal
import sys
import threading
import time
from unittest import mock

import numpy as np
import tensorflow as tf

from aggregators.distributed_sum import DistributedSumFactory
from aggregators.params import DistributedSumParams
from tests import tiny_task
from tff_pipelines.fedavg import local_training, process as process_lib
from tff_pipelines.fedavg.server_optimizer import ServerConfig
from tff_pipelines.simulation import contexts, local_processes, slices

CLIENTS, DEADLINE = 120, 4.0


class Rounds:
  """Rounds of a tiny task of which a slice takes tens of milliseconds."""

  def __init__(self):
    self._task = tiny_task.task(num_clients=CLIENTS)
    self._process = process_lib.build_chunked(
        local_training.client_update(tiny_task.loss, local_training.LocalConfig(
            learning_rate=0.3, batch_size=3, epochs=20)),
        self._task.train.element_spec, initial_weights=tiny_task.initial_weights(0),
        sum_factory=DistributedSumFactory(
            DistributedSumParams(
                clip=0.4, noise_multiplier=0.5, bits=18, cohort_size=CLIENTS,
                dimension=tiny_task.DIMENSION),
            simulation_seed=7, diagnostics=True),
        expected_cohort_size=CLIENTS, server=ServerConfig(learning_rate=1.0))

  def _chunks(self, number: int) -> list:
    clients = [collections.OrderedDict(
        examples=collections.OrderedDict(
            sorted(self._task.train.examples(client).items())),
        key=contexts.client_key(7, number, i))
               for i, client in enumerate(self._task.train.client_ids)]
    return [process_lib.make_chunk(clients[i:i + 8]) for i in range(0, CLIENTS, 8)]

  def run(self, context, rounds: int, disturb=lambda number: None):
    """Digest, seconds of each round, and number of clients that each counted."""
    digest, seconds, counts = hashlib.sha256(), [], []
    with contexts.installed(context):
      state = self._process.initialize()
      for number in range(rounds):
        chunks, start = self._chunks(number), time.monotonic()
        disturb(number)
        output = self._process.next(state, chunks)
        state = output['state']
        for array in tf.nest.flatten((state, output['metrics'])):
          digest.update(np.ascontiguousarray(array).tobytes())
        counts.append(
            int(output['metrics']['aggregator']['diagnostics']['num_reporting']))
        seconds.append(time.monotonic() - start)
    return digest.hexdigest(), seconds, counts


def check(faults: int) -> str:
  """Runs without and with faults; a line of what was seen.

  Raises:
    AssertionError: If the run with faults differs.
  """
  pool = local_processes.LocalProcesses(2, num_threads=1)
  context = slices.SubroundContext(pool, deadline=DEADLINE)
  try:
    rounds = Rounds()
    rounds.run(context, 1)  # Compiles.
    wanted, seconds, counts = rounds.run(context, faults)
    assert counts == [CLIENTS] * faults
    usual, hit, started = sorted(seconds)[len(seconds) // 2], [], set(pool.pids)
    generator = random.Random()

    def disturb(number: int) -> None:
      def fault():
        while True:
          pid = generator.choice(pool.pids)
          try:
            os.kill(pid, signal.SIGSTOP if number % 2 else signal.SIGKILL)
          except ProcessLookupError:
            time.sleep(0.05)  # It is being replaced.
          else:
            hit.append(pid)
            return

      timer = threading.Timer(generator.uniform(0, usual), fault)
      timer.start()
      started.update(pool.pids)

    # A fresh worker may be stopped too, which its time to start would hide for minutes.
    with mock.patch.object(slices, '_START', 30.0):
      digest, disturbed, counts = rounds.run(context, faults, disturb)
    assert counts == [CLIENTS] * faults, counts
    assert digest == wanted
    assert len(hit) == faults
    replaced = len(started.union(pool.pids)) - 2
    return (f'{faults} faults in {faults} rounds of {usual:.2f} s, {replaced} workers '
            f'replaced, the longest round {max(disturbed):.1f} s: digest '
            f'{digest[:16]} as without faults, {CLIENTS} clients counted in each round')
  finally:
    context.close()


def main(arguments: Sequence[str] | None = None) -> int:
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--faults', type=int, default=20, help='faults, one a round')
  print(check(parser.parse_args(arguments).faults))
  return 0


if __name__ == '__main__':
  sys.exit(main())
