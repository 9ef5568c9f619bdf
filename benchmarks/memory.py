"""Memory of long runs: resident size of the driver and of each worker, round by round.

  python -m benchmarks.memory [--rounds=500] [--workers=0,2] [--json=FILE]

Trains on the embedded digits through the trainer's own path, commits included. The rows
compare the largest size in the last tenth of the rounds with that around round 100, or
a fifth of the rounds if they are fewer.
"""

import argparse
from collections.abc import Sequence
import os
import tempfile

from benchmarks import measure
from tff_pipelines.fedavg import run as run_lib
from tff_pipelines.fedavg.settings import TrainSettings

# Growth from round 100 to the last, at most.
TARGET = 1.05
_SHOWN = (1, 10, 50, 100, 200, 300, 400, 500)


def resident(pid: int) -> float:
  """Resident size of a process in MB; 0 if it is gone."""
  try:
    with open(f'/proc/{pid}/statm', encoding='ascii') as file:
      return int(file.read().split()[1]) * os.sysconf('SC_PAGE_SIZE') / 1e6
  except OSError:
    return 0.0


def sizes(rounds: int, workers: int) -> list[tuple[float, float]]:
  """MB of the driver and of its largest worker after each round."""
  measured = []

  def after(index: int, metrics) -> None:
    del index, metrics
    children = [pid for pid in measure.descendants() if pid != os.getpid()]
    measured.append((resident(os.getpid()), max(map(resident, children), default=0.0)))

  with tempfile.TemporaryDirectory() as folder:
    experiment = run_lib.TrainExperiment(TrainSettings(
        seed=1, rounds=rounds, cohort_size=50, sampling='poisson',
        local_workers=workers, rounds_per_evaluation=10, output_dir=os.path.join(folder, 'run')))
    experiment.callbacks, experiment.quiet = [after], True
    experiment.run()
  return measured


def rows_of(measured: Sequence[tuple[float, float]], workers: int) -> list[measure.Row]:
  """Growth of each kind of process, and the table of sizes."""
  rounds = len(measured)
  start, tail = min(100, rounds // 5), max(1, rounds // 10)
  rows = []
  for i, name in enumerate(('driver', 'largest worker')[:1 + bool(workers)]):
    of = [both[i] for both in measured]
    print(f'{name}, {workers} local workers, MB after round:',
          ', '.join(f'{n}: {of[n - 1]:.0f}' for n in _SHOWN if n <= rounds))
    rows.append(measure.Row(
        name=f'{name}, {workers} local workers',
        sizes=f'round {start} to {rounds}', ours=max(of[max(0, start - tail):start + 1]),
        peer=max(of[-tail:]), unit='MB', target=TARGET, smaller_is_met=True))
  return rows


def main(arguments: Sequence[str] | None = None) -> None:
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--rounds', type=int, default=500, help='rounds of a run, >= 5')
  parser.add_argument('--workers', default='0,2', help='numbers of local workers')
  parser.add_argument('--json', help='file of the rows')
  flags = parser.parse_args(arguments)
  measure.heading()
  rows = []
  for workers in map(int, flags.workers.split(',')):
    rows += rows_of(sizes(flags.rounds, workers), workers)
  for row in rows:
    measure.show(row)
  measure.write(rows, flags.json)


if __name__ == '__main__':
  main()
