"""Opening clients' files, and reading one client out of many.

  python -m benchmarks.sources [--quick] [--json=FILE] [--repeats=N] [--megabytes=N]

First: a file of so many megabytes of each format, of synthetic texts or images of some
thousand clients. Seconds to open it the first time, when it is converted, beside one
plain pass of the format's own library over it; seconds to open it again; milliseconds
to read a client drawn at random, in Python and by a graph; by how much all of that
raises the peak of the memory.

Then: populations of 1,000, 10,000 and 100,000 synthetic clients with ten examples of 50
integers each, written as prepare_data writes them. Of each, in a process of its own:
seconds to open it, milliseconds to read a client drawn at random (in Python, and by
a graph), and by how much opening it and reading 300 clients raises the peak of the
memory. The peer is TFF's own SqlClientData on the same file, which has no numbers of
its own for Python. `growth` rows compare the largest with the smallest population.
"""

import argparse
import csv
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
from tasks import task
from tasks.sources import records
from tasks.sources import rows as rows_lib

SIZES = (1_000, 10_000, 100_000)
QUICK_SIZES = (100, 400)
EXAMPLES, NUMBERS = 10, 50
READS = 300

# Asked for: opening in less than a second; reading independent of the population,
# that is within what the depth of the index and the disk cache change.
OPEN_SECONDS = 1.0
SAME_TIME = 0.5


class _Population:
  """Clients with random integers."""

  def __init__(self, clients: int):
    self.client_ids = [f'client {client:06d}' for client in range(clients)]
    self._rng = np.random.default_rng(0)

  def examples(self, client_id):
    del client_id
    return {'x': self._rng.integers(1000, size=[EXAMPLES, NUMBERS]),
            'y': self._rng.integers(10, size=EXAMPLES)}


def write(path: pathlib.Path, clients: int) -> float:
  """Writes a population; seconds that it took."""
  from tasks.sources import convert  # pylint: disable=g-import-not-at-top
  started = time.perf_counter()
  convert.write(path, {'train': rows_lib.of_source(_Population(clients))},
                fields=None, skips=task.Skips())
  return time.perf_counter() - started


# Files of each format.


def _texts(count: int):
  """(client, text, score) of this many records."""
  rng = np.random.default_rng(0)
  words = [''.join(map(chr, 97 + rng.integers(26, size=6))) for _ in range(3000)]
  texts = [' '.join(rng.choice(words, 20)) for _ in range(2000)]
  return ((f'user{i * 7919 % 20011}', texts[i % 2000], i % 100) for i in range(count))


def _images(count: int):
  """(client, pixels, label) of this many records, and the clients' order."""
  pixels = np.random.default_rng(0).integers(256, size=[100, 784]).tolist()
  return ((f'w{i * 31 % 3001}', pixels[i % 100], i % 10) for i in range(count))


def _write_jsonl(path: pathlib.Path, size: int) -> None:
  with open(path, 'w', encoding='utf-8') as file:
    for client, text, score in _texts(size // 180):
      file.write(json.dumps({'client': client, 'text': text, 'score': score}) + '\n')


def _write_csv(path: pathlib.Path, size: int) -> None:
  with open(path, 'w', encoding='utf-8', newline='') as file:
    writer = csv.writer(file)
    writer.writerow(['client', 'pixels', 'label'])
    for client, pixels, label in _images(size // 2800):
      writer.writerow([client, ' '.join(map(str, pixels)), label])


def _write_parquet(path: pathlib.Path, size: int) -> None:
  import pyarrow  # pylint: disable=g-import-not-at-top
  from pyarrow import parquet  # pylint: disable=g-import-not-at-top
  columns = zip(*_texts(size // 150))
  parquet.write_table(pyarrow.table(dict(zip(
      ('client', 'text', 'score'), map(list, columns)))), path, use_dictionary=False,
                      compression='none', row_group_size=10_000)


def _write_leaf(path: pathlib.Path, size: int) -> None:
  users: dict[str, dict[str, list]] = {}
  for client, pixels, label in _images(size // 4900):
    user = users.setdefault(client, {'x': [], 'y': []})
    user['x'].append([value / 255 for value in pixels])
    user['y'].append(label)
  path.write_text(json.dumps({
      'users': list(users), 'num_samples': [len(user['y']) for user in users.values()],
      'user_data': users}), encoding='utf-8')


def _write_npz(path: pathlib.Path, size: int) -> None:
  clients, pixels, labels = map(np.array, zip(*_images(size // 790)))
  np.savez(path, client_train=clients, x_train=pixels.astype(np.uint8).reshape(
      [-1, 28, 28]), y_train=labels)


def _pass_jsonl(path: pathlib.Path) -> None:
  with open(path, encoding='utf-8') as file:
    for line in file:
      json.loads(line)


def _pass_csv(path: pathlib.Path) -> None:
  with open(path, encoding='utf-8', newline='') as file:
    for row in csv.reader(file):
      list(map(int, row[1].split()[1:]))


def _pass_parquet(path: pathlib.Path) -> None:
  from pyarrow import parquet  # pylint: disable=g-import-not-at-top
  for batch in parquet.ParquetFile(path).iter_batches():
    batch.to_pylist()


def _pass_leaf(path: pathlib.Path) -> None:
  import ijson  # pylint: disable=g-import-not-at-top
  with open(path, 'rb') as file:
    for _ in ijson.kvitems(file, 'user_data', use_float=True):
      pass


def _pass_npz(path: pathlib.Path) -> None:
  with np.load(path) as arrays:
    for name in arrays.files:
      arrays[name].sum() if arrays[name].dtype.kind != 'U' else None


# Format -> what writes a file, what passes over it once, and the fields to read.
FORMATS = {
    'jsonl': (_write_jsonl, _pass_jsonl, ('text', 'score')),
    'csv': (_write_csv, _pass_csv, ('pixels', 'label')),
    'parquet': (_write_parquet, _pass_parquet, ('text', 'score')),
    'leaf': (_write_leaf, _pass_leaf, ('x', 'y')),
    'npz': (_write_npz, _pass_npz, ('x', 'y'))}


def probe_format(path: str, format_: str, repeats: int) -> dict[str, float]:
  """What is measured of one file, in this process."""
  import tensorflow as tf  # pylint: disable=g-import-not-at-top
  from tasks.sources import open_source  # pylint: disable=g-import-not-at-top
  kinds = {'text': 'text', 'score': 'integer', 'label': 'integer', 'y': 'integer'}
  fields = [records.Field(name=name, kind=kinds.get(name, 'number'))
            for name in FORMATS[format_][2]]
  with tempfile.TemporaryDirectory() as cache:
    def opened():
      started = time.perf_counter()
      raw = open_source.open_raw(
          format_, fields=fields, data_path=path, cache_dir=cache)
      return time.perf_counter() - started, raw.train

    before = _peak_bytes()
    found = {'first_s': opened()[0]}
    found['again_s'], source = opened()
    found['read_ms'] = _median_ms(source.examples, source.client_ids, repeats)
    in_graph = tf.function(source.read_in_graph)
    in_graph(tf.constant(source.client_ids[0]))
    found['graph_ms'] = _median_ms(
        lambda client: in_graph(tf.constant(client)), source.client_ids, repeats)
    found['memory_mb'] = (_peak_bytes() - before) / 2**20
  started = time.perf_counter()
  FORMATS[format_][1](pathlib.Path(path))
  found['pass_s'] = time.perf_counter() - started
  return found


def _rows_of_format(format_: str, size: str,
                    found: dict[str, float]) -> list[measure.Row]:
  def row(name, key, unit, peer=None):
    return measure.Row(name=f'{format_}: {name}', sizes=size, ours=found[key],
                       peer=found.get(peer), unit=unit)

  return [row('open first, a plain pass beside', 'first_s', 's', 'pass_s'),
          row('open again, the first time beside', 'again_s', 's', 'first_s'),
          row('read one', 'read_ms', 'ms'), row('read one in graph', 'graph_ms', 'ms'),
          row('peak memory', 'memory_mb', 'MB more')]


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


def _probed(path: pathlib.Path, repeats: int, *more: str) -> dict[str, float]:
  """The same in a fresh process."""
  output = subprocess.run(
      [sys.executable, '-m', 'benchmarks.sources', f'--probe={path}',
       f'--repeats={repeats}', *more], check=True, stdout=subprocess.PIPE,
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


def main(arguments=None):
  parser = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0])
  parser.add_argument('--quick', action='store_true')
  parser.add_argument('--json')
  parser.add_argument('--repeats', type=int, default=10)
  parser.add_argument('--megabytes', type=int, default=1000)
  parser.add_argument('--probe', help=argparse.SUPPRESS)
  parser.add_argument('--format', help=argparse.SUPPRESS)
  flags = parser.parse_args(arguments)
  if flags.probe:
    print(json.dumps(
        probe_format(flags.probe, flags.format, flags.repeats) if flags.format
        else probe(flags.probe, flags.repeats)))
    return
  sizes = QUICK_SIZES if flags.quick else SIZES
  rows, results = [], []
  measure.heading()
  megabytes = 1 if flags.quick else flags.megabytes
  with tempfile.TemporaryDirectory() as folder:
    for format_, (write_file, _, _) in FORMATS.items():
      path = pathlib.Path(folder) / f'data.{format_}'
      write_file(path, megabytes * 10**6)
      size = f'{path.stat().st_size / 1e6:,.0f} MB'
      found = _probed(path, flags.repeats, f'--format={format_}')
      path.unlink()
      for row in _rows_of_format(format_, size, found):
        measure.show(row)
        rows.append(row)
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
