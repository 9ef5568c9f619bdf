"""How reading clients from SQLite depends on how many there are.

  python -m benchmarks.sources [--quick] [--json=FILE] [--repeats=N]

Populations of 1,000, 10,000 and 100,000 synthetic clients with ten examples of 50
integers each, written as prepare_data writes them. Of each, in a process of its own:
seconds to open it, milliseconds to read a client drawn at random (in Python, and by
a graph), and by how much opening it and reading 300 clients raises the peak of the
memory. The peer is TFF's own SqlClientData on the same file, which has no numbers of
its own for Python. `growth` rows compare the largest with the smallest population.
"""

import argparse
import json
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

from benchmarks import measure
from tasks.sources import sqlite_writer

SIZES = (1_000, 10_000, 100_000)
QUICK_SIZES = (100, 400)
EXAMPLES, NUMBERS = 10, 50
READS = 300

# Asked for: opening in less than a second; reading independent of the population,
# that is within what the depth of the index and the disk cache change.
OPEN_SECONDS = 1.0
SAME_TIME = 0.5


def write(path: pathlib.Path, clients: int) -> float:
  """Writes a population; seconds that it took."""
  rng = np.random.default_rng(0)
  started = time.perf_counter()
  spec = {'x': (np.dtype(np.int64), (NUMBERS,)), 'y': (np.dtype(np.int64), ())}
  with sqlite_writer.SqliteWriter(path, element_spec=spec, identity='') as writer:
    for client in range(clients):
      writer.write('train', f'client {client:06d}', {
          'x': rng.integers(1000, size=[EXAMPLES, NUMBERS]),
          'y': rng.integers(10, size=EXAMPLES)})
    writer.finish()
  return time.perf_counter() - started


def _peak_bytes() -> int:
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _median_ms(read, client_ids, repeats: int) -> float:
  """Of the middle of the turns, each reading clients that were not read before."""
  rng = np.random.default_rng(1)
  chosen = rng.choice(len(client_ids), size=min(READS, len(client_ids)), replace=False)
  times = []
  for turn in np.array_split(chosen, repeats):
    started = time.perf_counter()
    for client in turn:
      read(client_ids[client])
    times.append((time.perf_counter() - started) / len(turn))
  return 1000 * statistics.median(times)


def probe(path: str, repeats: int) -> dict[str, float]:
  """What is measured of one file, in this process."""
  import tensorflow as tf  # pylint: disable=g-import-not-at-top
  import tensorflow_federated as tff  # pylint: disable=g-import-not-at-top
  from tasks.sources import sqlite as source_sqlite  # pylint: disable=g-import-not-at-top
  with tempfile.TemporaryDirectory() as folder:
    # Once with two clients: what TensorFlow needs the first time is not theirs.
    small = pathlib.Path(folder) / 'small.sqlite'
    write(small, 2)
    source = source_sqlite.SqliteSource(small, 'train')
    source.examples(source.client_ids[0])
    tf.function(source.read_in_graph)(tf.constant(source.client_ids[0]))
  before = _peak_bytes()
  started = time.perf_counter()
  source = source_sqlite.SqliteSource(path, 'train')
  found = dict(open_s=time.perf_counter() - started)
  found['read_ms'] = _median_ms(source.examples, source.client_ids, repeats)
  in_graph = tf.function(source.read_in_graph)
  in_graph(tf.constant(source.client_ids[0]))
  found['graph_ms'] = _median_ms(
      lambda client: in_graph(tf.constant(client)), source.client_ids, repeats)
  found['memory_mb'] = (_peak_bytes() - before) / 2**20

  started = time.perf_counter()
  theirs = tff.simulation.datasets.load_and_parse_sql_client_data(
      path, {'x': tf.TensorSpec([NUMBERS], tf.int64), 'y': tf.TensorSpec([], tf.int64)},
      'train')
  found['tff_open_s'] = time.perf_counter() - started
  found['tff_read_ms'] = _median_ms(
      lambda client: list(
          theirs.create_tf_dataset_for_client(client).as_numpy_iterator()),
      theirs.client_ids, repeats)
  return found


def _probed(path: pathlib.Path, repeats: int) -> dict[str, float]:
  """The same in a fresh process."""
  output = subprocess.run(
      [sys.executable, '-m', 'benchmarks.sources', f'--probe={path}',
       f'--repeats={repeats}'], check=True, stdout=subprocess.PIPE,
      stderr=subprocess.DEVNULL, text=True).stdout
  return json.loads(output.splitlines()[-1])


def _rows(clients: int, seconds: float, found: dict[str, float]) -> list[measure.Row]:
  sizes = f'{clients:,} clients'
  return [
      measure.Row(name='write', sizes=sizes, ours=1000 * seconds / clients, peer=None,
                  unit='ms a client'),
      measure.Row(name='open', sizes=sizes, ours=found['open_s'],
                  peer=found['tff_open_s'], unit='s'),
      measure.Row(name='open, against the limit', sizes=sizes, ours=found['open_s'],
                  peer=OPEN_SECONDS, unit='s', target=1.0),
      measure.Row(name='read one', sizes=sizes, ours=found['read_ms'],
                  peer=found['tff_read_ms'], unit='ms'),
      measure.Row(name='read one in graph', sizes=sizes, ours=found['graph_ms'],
                  peer=found['tff_read_ms'], unit='ms'),
      measure.Row(name='peak memory', sizes=sizes, ours=found['memory_mb'], peer=None,
                  unit='MB more')]


def _growth(sizes: tuple[int, ...], found: list[dict[str, float]]) -> list[measure.Row]:
  """The largest population, and the smallest as its peer."""
  text = f'{sizes[-1]:,} against {sizes[0]:,}'
  rows = [measure.Row(name=f'growth of {what}', sizes=text, ours=found[-1][key],
                      peer=found[0][key], unit='ms', target=SAME_TIME)
          for what, key in (('read one', 'read_ms'),
                            ('read one in graph', 'graph_ms'))]
  more = 2**20 * (found[-1]['memory_mb'] - found[0]['memory_mb'])
  return rows + [measure.Row(
      name='growth of peak memory', sizes=text, ours=more / (sizes[-1] - sizes[0]),
      peer=None, unit='bytes a client')]


def main():
  parser = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0])
  parser.add_argument('--quick', action='store_true')
  parser.add_argument('--json')
  parser.add_argument('--repeats', type=int, default=10)
  parser.add_argument('--probe', help=argparse.SUPPRESS)
  flags = parser.parse_args()
  if flags.probe:
    print(json.dumps(probe(flags.probe, flags.repeats)))
    return
  sizes = QUICK_SIZES if flags.quick else SIZES
  rows, results = [], []
  measure.heading()
  with tempfile.TemporaryDirectory() as folder:
    for clients in sizes:
      path = pathlib.Path(folder) / f'{clients}.sqlite'
      seconds = write(path, clients)
      results.append(_probed(path, flags.repeats))
      rows += _rows(clients, seconds, results[-1])
      for row in rows[-6:]:
        measure.show(row)
  for row in _growth(sizes, results):
    measure.show(row)
    rows.append(row)
  measure.write(rows, flags.json)


if __name__ == '__main__':
  main()
