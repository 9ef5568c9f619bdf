"""Workers of local slices are killed and stopped at random moments of a seeded run.

  python -m tests.worker_faults [--faults=20]

In each round one of two workers gets SIGKILL or SIGSTOP at a random moment. All states
and metrics of the rounds must have the digest of an undisturbed run, and each round
must count each client once: no slice is merged twice, none is missing.
"""

import argparse
from collections.abc import Sequence
import functools
import os
import random
import signal
import sys
import threading
import time
from unittest import mock

from tests.simulation import pools
from tff_pipelines.simulation import local_processes, slices

CLIENTS, DEADLINE = 120, 4.0


def _run(rounds: pools.Rounds, context, count: int, disturb=lambda number: None):
  """Digest, seconds of each round, and number of clients that each counted."""
  outputs, seconds, start = [], [], time.monotonic()
  for output in rounds.outputs(context, count, disturb):
    outputs.append(output)
    seconds.append(time.monotonic() - start)
    start = time.monotonic()
  return pools.digest(outputs), seconds, [
      int(output['metrics']['aggregator']['diagnostics']['num_reporting'])
      for output in outputs]


def check(faults: int) -> str:
  """Runs without and with faults, which must not differ; a line of what was seen."""
  pool = local_processes.LocalProcesses(2, num_threads=1)
  context = slices.SubroundContext(pool, deadline=DEADLINE)
  try:
    # A slice takes tens of milliseconds.
    run = functools.partial(_run, pools.Rounds(CLIENTS, 8, epochs=20), context)
    run(1)  # Compiles.
    wanted, seconds, counts = run(faults)
    assert counts == [CLIENTS] * faults
    usual, hit, started = sorted(seconds)[len(seconds) // 2], [], set(pool.pids)
    timers = []
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

      # Well within the round, which may be shorter than those before.
      timers.append(threading.Timer(generator.uniform(0, min(seconds) / 2), fault))
      timers[-1].start()
      started.update(pool.pids)

    # A fresh worker may be stopped too, which its time to start would hide for minutes.
    with mock.patch.object(slices, '_START', 30.0):
      digest, disturbed, counts = run(faults, disturb)
    for timer in timers:
      timer.join()
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
