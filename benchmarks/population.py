"""Rounds of a cohort of 50 out of populations of very different sizes.

  python -m benchmarks.population [--quick] [--json=FILE] [--rounds=N] [--folder=PATH]

Populations of 10^3, 10^5, 10^6 and 10^7 clients with one example of four features each,
in SQLite files in TFF's format, written below --folder (by default that of temporary
files; 1.4 GB for the largest). For each a run of `tff_pipelines.api.train` in a process
of its own: a Poisson cohort of 50 expected, read by id, distributed Skellam noise,
limited participations, everything committed. Accounted by RDP: to compose privacy loss
distributions, in a thread beside the round, takes 0.1 to 1 s, which depends on epsilon and
the rate. The processes take turns, a round each, so that other load of the machine slows
all of them alike; files are in the operating system's cache.

The table has, for each population, seconds to open the file, milliseconds a round (the
median, wall and processor time) with those of the smallest population as the peer, and the
peak memory of the process. With --quick one process measures tiny populations.
"""

import argparse
from collections.abc import Callable
import json
import os
import pathlib
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

from benchmarks import measure

SIZES = (10**3, 10**5, 10**6, 10**7)
QUICK_SIZES = (200, 1000)
COHORT, FEATURES, CLASSES = 50, 4, 3
WARM_UPS = 3
# A round of the smallest population takes at least this fraction of another one's.
SAME_TIME = 1 / 1.1

_TABLES = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB);
CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num_examples INTEGER);
CREATE TEMP TABLE protos (number INTEGER PRIMARY KEY, proto BLOB);
BEGIN;
"""
_NUMBERS = 'WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT ?) '
_ROWS = (_NUMBERS + "INSERT INTO examples SELECT 'train', printf('%08d', i), proto "
         'FROM n JOIN protos ON number = i % 64',
         _NUMBERS + "INSERT INTO client_metadata SELECT printf('%08d', i), 'train', 1 "
         'FROM n')
_INDICES = """
CREATE INDEX examples_by_client ON examples (split_name, client_id);
CREATE UNIQUE INDEX metadata_by_client ON client_metadata (split_name, client_id);
"""


def _examples(count: int) -> dict[str, np.ndarray]:
  rng = np.random.default_rng(0)
  y = rng.integers(CLASSES, size=count)
  x = rng.normal(size=(count, FEATURES)) + 2 * np.eye(CLASSES, FEATURES)[y]
  return {'x': x.astype(np.float32), 'y': y.astype(np.int64)}


def write(path: pathlib.Path, clients: int) -> None:
  """Writes a population; clients share 64 different examples."""
  from tasks.sources import columns  # pylint: disable=g-import-not-at-top
  features = [columns.Feature(name='x', dtype=np.dtype(np.float32), shape=(FEATURES,)),
              columns.Feature(name='y', dtype=np.dtype(np.int64), shape=())]
  protos = [columns.serialize(features, {'x': x, 'y': y})
            for x, y in zip(*_examples(64).values())]
  connection = sqlite3.connect(path, isolation_level=None)
  connection.executescript(_TABLES)
  connection.executemany('INSERT INTO protos VALUES (?, ?)', enumerate(protos))
  for rows in _ROWS:
    connection.execute(rows, [clients])
  connection.executescript(_INDICES)
  connection.close()


def _task(source):
  """Softmax regression on the features, with a small held-out set."""
  import tensorflow as tf  # pylint: disable=g-import-not-at-top
  from tasks import task  # pylint: disable=g-import-not-at-top
  from tasks.models import layers  # pylint: disable=g-import-not-at-top

  def logits(weights, batch):
    return tf.matmul(batch['x'], weights[0]) + weights[1]

  model = task.Model(
      name='softmax', weight_names=('kernel', 'bias'),
      initial_weights=lambda seed: [np.zeros([FEATURES, CLASSES], np.float32),
                                    np.zeros([CLASSES], np.float32)],
      loss=lambda weights, batch, seed: layers.softmax_cross_entropy(
          logits(weights, batch), batch['y']),
      metrics=lambda weights, batch, mask: layers.classification_metrics(
          logits(weights, batch), batch['y'], mask))
  return task.Task(name='population', model=model, train=source,
                   held_out={'test': _examples(100)}, privacy_unit='one client')


def _total(rounds: int) -> int:
  """Number of rounds of a run of which so many are measured."""
  return 1 + WARM_UPS + rounds


def probe(path: str, rounds: int, turn: Callable[[], object] = lambda: None
         ) -> dict[str, float]:
  """Trains on one population in this process; `turn` is called after each round.

  Returns:
    open_s, round_ms, round_cpu_ms and peak_mb.
  """
  from tasks.sources import sqlite  # pylint: disable=g-import-not-at-top
  from tff_pipelines import api  # pylint: disable=g-import-not-at-top
  started = time.perf_counter()
  source = sqlite.SqliteSource(path, 'train')
  opened = time.perf_counter() - started
  with open(path, 'rb') as file:
    while file.read(2**24):
      pass
  clocks, last = (time.perf_counter, time.process_time), []
  times = []

  def after(index, metrics):
    del index, metrics
    if last:
      times.append([clock() - before for clock, before in zip(clocks, last)])
    turn()
    last[:] = [clock() for clock in clocks]

  with tempfile.TemporaryDirectory() as folder:
    api.train(api.TrainSettings(
        task=_task(source), rounds=_total(rounds), cohort_size=float(COHORT),
        sampling='poisson', clip=0.5, noise_multiplier=1.0, accountant='rdp',
        output_dir=os.path.join(folder, 'run'), rounds_per_evaluation=_total(rounds)), callbacks=[after])
  round_ms, round_cpu_ms = (
      1000 * statistics.median(of_clock) for of_clock in zip(*times[WARM_UPS:]))
  return {'open_s': opened, 'round_ms': round_ms, 'round_cpu_ms': round_cpu_ms,
          'peak_mb': measure.peak_bytes(worker=False) / 2**20}


def _wait() -> None:
  print(flush=True)
  sys.stdin.readline()


def _measured(paths: list[pathlib.Path], rounds: int) -> list[dict[str, float]]:
  """The results of processes that take turns, one for each population."""
  started = [subprocess.Popen(
      [sys.executable, '-m', 'benchmarks.population', f'--probe={path}',
       f'--rounds={rounds}'], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
      stderr=subprocess.DEVNULL, text=True) for path in paths]

  for process in started:
    process.stdout.readline()  # After the first round, all wait for their turns.
  for _ in range(_total(rounds)):
    lines = []
    for process in started:
      process.stdin.write('\n')
      process.stdin.flush()
      lines.append(process.stdout.readline())
  for process in started:
    process.communicate()
  return list(map(json.loads, lines))


def _rows(clients: int, result: dict[str, float],
          first: dict[str, float]) -> list[measure.Row]:
  row = lambda name, key, unit, **more: measure.Row(
      name=name, sizes=f'{clients:,} clients', ours=result[key], unit=unit,
      **{'peer': None, **more})
  return [row('open', 'open_s', 's'), row('peak memory', 'peak_mb', 'MB'),
          row('round', 'round_ms', 'ms', peer=first['round_ms'], target=SAME_TIME),
          row('round', 'round_cpu_ms', 'cpu-ms', peer=first['round_cpu_ms'],
              target=SAME_TIME)]


def main(arguments=None):
  parser = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0])
  parser.add_argument('--quick', action='store_true')
  parser.add_argument('--json')
  parser.add_argument('--rounds', type=int)
  parser.add_argument('--folder')
  parser.add_argument('--probe', help=argparse.SUPPRESS)
  flags = parser.parse_args(arguments)
  rounds = flags.rounds or (1 if flags.quick else 30)
  if flags.probe:
    print(json.dumps(probe(flags.probe, rounds, _wait)))
    return
  sizes = QUICK_SIZES if flags.quick else SIZES
  measure.heading()
  with tempfile.TemporaryDirectory(dir=flags.folder) as folder:
    paths = [pathlib.Path(folder) / f'{clients}.sqlite' for clients in sizes]
    for path, clients in zip(paths, sizes):
      write(path, clients)
    results = ([probe(os.fspath(path), rounds) for path in paths] if flags.quick else
               _measured(paths, rounds))
  rows = [row for clients, result in zip(sizes, results)
          for row in _rows(clients, result, results[0])]
  for row in rows:
    measure.show(row)
  measure.write(rows, flags.json)


if __name__ == '__main__':
  main()
