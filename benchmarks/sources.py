"""Opening clients' files, and reading one client out of many.

  python -m benchmarks.sources [--quick] [--json=FILE] [--repeats=N] [--megabytes=N]

First: a file of --megabytes of each format, of synthetic texts or images of some
thousand clients. Seconds to open it the first time, when it is converted, against one
plain pass of the format's own library over it; seconds to open it again; milliseconds
to read a client drawn at random, in Python and by a graph; the increase of the peak
memory by all of that.

Then: populations of 1,000, 10,000 and 100,000 synthetic clients with ten examples of 50
integers each, written as prepare_data writes them. For each: seconds to open it,
milliseconds to read a client drawn at random (in Python, and by a graph), and the
increase of the peak memory by opening it and reading clients. The peer is TFF's own
SqlClientData on the same file, which has no numbers of its own for Python. `growth`
rows compare the largest with the smallest population.

Last: what checksums cost, in a copy of --megabytes of images of 10,000 clients: opening
it and reading clients, with checksums verified and, as the peer, without.

Each file is measured in a process of its own; with --quick, which takes seconds for
small files, in this one.
"""

import argparse
import contextlib
import copy
import csv
import json
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from unittest import mock

import numpy as np

from benchmarks import measure
from tasks import task
from tasks.sources import records, rows as rows_lib

SIZES = (1_000, 10_000, 100_000)
QUICK_SIZES = (100, 400)
EXAMPLES, NUMBERS = 10, 50
CHECKED_CLIENTS = 10_000
READS = 30  # In each repeat.

# Targets: opening in less than a second; reading independent of the population, up to
# the depth of the index and the disk cache.
OPEN_SECONDS = 1.0
CHECK_SECONDS = 0.05
SAME_TIME = 0.5


class _Population:
  """Clients with random integers, or with images of this many bytes in all."""

  def __init__(self, clients: int, bytes_: int = 0):
    self.client_ids = [f'client {client:06d}' for client in range(clients)]
    self._rng, self._images = np.random.default_rng(0), bytes_ // clients // 784

  def examples(self, client_id):
    del client_id
    if self._images:
      return {'x': self._rng.integers(
          256, size=[self._images, 28, 28], dtype=np.uint8),
              'y': self._rng.integers(10, size=self._images, dtype=np.int32)}
    return {'x': self._rng.integers(1000, size=[EXAMPLES, NUMBERS]),
            'y': self._rng.integers(10, size=EXAMPLES)}


def write(path: pathlib.Path, clients: int, bytes_: int = 0) -> float:
  """Writes a population, maybe of images; returns the seconds it takes."""
  from tasks.sources import store  # pylint: disable=g-import-not-at-top
  started = time.perf_counter()
  store.write(path, {'train': rows_lib.of_source(_Population(clients, bytes_))},
              fields=None, skips=task.Skips(), for_store=bool(bytes_))
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


# Format -> the function that writes a file, the plain pass, and the fields to read.
FORMATS = {
    'jsonl': (_write_jsonl, _pass_jsonl, ('text', 'score')),
    'csv': (_write_csv, _pass_csv, ('pixels', 'label')),
    'parquet': (_write_parquet, _pass_parquet, ('text', 'score')),
    'leaf': (_write_leaf, _pass_leaf, ('x', 'y')),
    'npz': (_write_npz, _pass_npz, ('x', 'y'))}


def probe_format(path: str, format_: str, repeats: int) -> dict[str, float]:
  """Measures one file of a format, in this process."""
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
    result = {'first_s': opened()[0]}
    result['again_s'], source = opened()
    result.update(_read_ms(source, repeats))
    result['memory_mb'] = (_peak_bytes() - before) / 2**20
  started = time.perf_counter()
  FORMATS[format_][1](pathlib.Path(path))
  result['pass_s'] = time.perf_counter() - started
  return result


def _rows_of_format(format_: str, size: str,
                    result: dict[str, float]) -> list[measure.Row]:
  def row(name, key, unit, peer=None):
    return measure.Row(name=f'{format_}: {name}', sizes=size, ours=result[key],
                       peer=result.get(peer), unit=unit)

  return [row('open first / plain pass', 'first_s', 's', 'pass_s'),
          row('open again / open first', 'again_s', 's', 'first_s'),
          row('read one', 'read_ms', 'ms'), row('read one in graph', 'graph_ms', 'ms'),
          row('peak memory', 'memory_mb', 'MB more')]


def _peak_bytes() -> int:
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _median_ms(read, client_ids, repeats: int) -> float:
  """The median of repeats, each of which reads clients that were not read before."""
  rng = np.random.default_rng(1)
  chosen = rng.choice(
      len(client_ids), size=min(READS * repeats, len(client_ids)), replace=False)
  times = []
  for turn in np.array_split(chosen, repeats):
    started = time.perf_counter()
    for client in turn:
      read(client_ids[client])
    times.append((time.perf_counter() - started) / len(turn))
  return 1000 * statistics.median(times)


def _read_ms(source, repeats: int) -> dict[str, float]:
  """The times of reading one client, in Python and by a graph."""
  import tensorflow as tf  # pylint: disable=g-import-not-at-top
  result = {'read_ms': _median_ms(source.examples, source.client_ids, repeats)}
  in_graph = tf.function(source.read_in_graph)
  in_graph(tf.constant(source.client_ids[0]))
  result['graph_ms'] = _median_ms(
      lambda client: in_graph(tf.constant(client)), source.client_ids, repeats)
  return result


def probe(path: str, repeats: int) -> dict[str, float]:
  """Measures one file of a population, in this process."""
  import tensorflow as tf  # pylint: disable=g-import-not-at-top
  import tensorflow_federated as tff  # pylint: disable=g-import-not-at-top
  from tasks.sources import sqlite as source_sqlite  # pylint: disable=g-import-not-at-top
  with tempfile.TemporaryDirectory() as folder:
    # Two clients first, so that TensorFlow's own memory is not counted.
    small = pathlib.Path(folder) / 'small.sqlite'
    write(small, 2)
    source = source_sqlite.SqliteSource(small, 'train')
    source.examples(source.client_ids[0])
    tf.function(source.read_in_graph)(tf.constant(source.client_ids[0]))
  before = _peak_bytes()
  started = time.perf_counter()
  source = source_sqlite.SqliteSource(path, 'train')
  result = dict(open_s=time.perf_counter() - started, **_read_ms(source, repeats))
  result['memory_mb'] = (_peak_bytes() - before) / 2**20

  started = time.perf_counter()
  theirs = tff.simulation.datasets.load_and_parse_sql_client_data(
      path, {'x': tf.TensorSpec([NUMBERS], tf.int64), 'y': tf.TensorSpec([], tf.int64)},
      'train')
  result['tff_open_s'] = time.perf_counter() - started
  result['tff_read_ms'] = _median_ms(
      lambda client: list(
          theirs.create_tf_dataset_for_client(client).as_numpy_iterator()),
      theirs.client_ids, repeats)
  return result


def probe_checks(path: str, repeats: int) -> dict[str, float]:
  """Measures opening and reading a copy with and without its checksums, here."""
  from tasks.sources import checksums  # pylint: disable=g-import-not-at-top
  from tasks.sources import sqlite  # pylint: disable=g-import-not-at-top
  import tensorflow as tf  # pylint: disable=g-import-not-at-top
  times = {'open_s': [], 'plain_open_s': []}
  for _ in range(3 * repeats):
    for name in times:
      with contextlib.ExitStack() as stack:
        if name == 'plain_open_s':
          stack.enter_context(mock.patch.object(checksums, 'verify'))
        started = time.perf_counter()
        source = sqlite.SqliteSource(path, 'train', copy_of=path)
        times[name].append(time.perf_counter() - started)
  result = {name: statistics.median(values) for name, values in times.items()}
  plain = copy.copy(source)
  plain.is_prepared = False
  # In turns, so that the machine's other work meets all alike.
  reads = {'read_ms': source.examples, 'plain_read_ms': plain.examples}
  for name, one in (('graph_ms', source), ('plain_graph_ms', plain)):
    in_graph = tf.function(one.read_in_graph)
    reads[name] = lambda client, read=in_graph: read(tf.constant(client))
  spent = {name: [] for name in reads}
  for turn, client in enumerate(np.random.default_rng(1).choice(
      len(source.client_ids), size=min(len(source.client_ids), 1 + 3 * READS * repeats),
      replace=False)):
    for name, read in reads.items():
      read(source.client_ids[client])  # The file's pages are in memory after it.
      started = time.perf_counter()
      read(source.client_ids[client])
      if turn:  # The first traces.
        spent[name].append(1000 * (time.perf_counter() - started))
  return {**result, **{
      name: statistics.median(values) for name, values in spent.items()}}


def _rows_of_checks(size: str, result: dict[str, float]) -> list[measure.Row]:
  def row(name, key, unit, target=None):
    return measure.Row(name=f'checksums: {name}', sizes=size, ours=result[key],
                       peer=result[f'plain_{key}'], unit=unit, target=target)

  more = result['open_s'] - result['plain_open_s']
  return [
      row('open', 'open_s', 's'),
      measure.Row(name='checksums: more to open, against the limit', sizes=size,
                  ours=max(more, 1e-9), peer=CHECK_SECONDS, unit='s', target=1.0),
      row('read one', 'read_ms', 'ms'),
      row('read one in graph', 'graph_ms', 'ms')]


def _measured(path: pathlib.Path, repeats: int, *more: str) -> dict[str, float]:
  """The results of this program for one file, in a process of its own."""
  output = subprocess.run(
      [sys.executable, '-m', 'benchmarks.sources', f'--probe={path}',
       f'--repeats={repeats}', *more], check=True, stdout=subprocess.PIPE,
      stderr=subprocess.DEVNULL, text=True).stdout
  return json.loads(output.splitlines()[-1])


def _rows(clients: int, seconds: float, result: dict[str, float]) -> list[measure.Row]:
  sizes = f'{clients:,} clients'
  return [
      measure.Row(name='write', sizes=sizes, ours=1000 * seconds / clients, peer=None,
                  unit='ms a client'),
      measure.Row(name='open', sizes=sizes, ours=result['open_s'],
                  peer=result['tff_open_s'], unit='s'),
      measure.Row(name='open, against the limit', sizes=sizes, ours=result['open_s'],
                  peer=OPEN_SECONDS, unit='s', target=1.0),
      measure.Row(name='read one', sizes=sizes, ours=result['read_ms'],
                  peer=result['tff_read_ms'], unit='ms'),
      measure.Row(name='read one in graph', sizes=sizes, ours=result['graph_ms'],
                  peer=result['tff_read_ms'], unit='ms'),
      measure.Row(name='peak memory', sizes=sizes, ours=result['memory_mb'], peer=None,
                  unit='MB more')]


def _growth(sizes: tuple[int, ...],
            results: list[dict[str, float]]) -> list[measure.Row]:
  """Rows of the largest population with the smallest as its peer."""
  text = f'{sizes[-1]:,} against {sizes[0]:,}'
  rows = [measure.Row(name=f'growth of {what}', sizes=text, ours=results[-1][key],
                      peer=results[0][key], unit='ms', target=SAME_TIME)
          for what, key in (('read one', 'read_ms'),
                            ('read one in graph', 'graph_ms'))]
  more = 2**20 * (results[-1]['memory_mb'] - results[0]['memory_mb'])
  return rows + [measure.Row(
      name='growth of peak memory', sizes=text, ours=more / (sizes[-1] - sizes[0]),
      peer=None, unit='bytes a client')]


def main(arguments=None):
  parser = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0])
  parser.add_argument('--quick', action='store_true')
  parser.add_argument('--json')
  parser.add_argument('--repeats', type=int)
  parser.add_argument('--megabytes', type=int)
  parser.add_argument('--probe', help=argparse.SUPPRESS)
  parser.add_argument('--format', help=argparse.SUPPRESS)
  parser.add_argument('--only_checks', action='store_true',
                      help='measure what checksums cost, and nothing else')
  flags = parser.parse_args(arguments)
  repeats = flags.repeats or (1 if flags.quick else 10)
  megabytes = flags.megabytes or (1 if flags.quick else 1000)
  sizes = QUICK_SIZES if flags.quick else SIZES
  if flags.probe:
    print(json.dumps(
        probe_checks(flags.probe, repeats) if flags.only_checks else
        probe_format(flags.probe, flags.format, repeats) if flags.format else
        probe(flags.probe, repeats)))
    return
  rows, results = [], []

  def show(more):
    for row in more:
      measure.show(row)
    rows.extend(more)

  measure.heading()
  with tempfile.TemporaryDirectory() as folder:
    for format_, (write_file, _, _) in ({} if flags.only_checks else FORMATS).items():
      path = pathlib.Path(folder) / f'data.{format_}'
      write_file(path, megabytes * 10**6)
      size = f'{path.stat().st_size / 1e6:,.0f} MB'
      show(_rows_of_format(
          format_, size, probe_format(str(path), format_, repeats) if flags.quick
          else _measured(path, repeats, f'--format={format_}')))
      path.unlink()
    for clients in () if flags.only_checks else sizes:
      path = pathlib.Path(folder) / f'{clients}.sqlite'
      seconds = write(path, clients)
      results.append(probe(str(path), repeats) if flags.quick
                     else _measured(path, repeats))
      show(_rows(clients, seconds, results[-1]))
      path.unlink()
    path = pathlib.Path(folder) / 'images.sqlite'
    clients = QUICK_SIZES[-1] if flags.quick else CHECKED_CLIENTS
    write(path, clients, megabytes * 10**6)
    show(_rows_of_checks(
        f'{clients:,} clients, {path.stat().st_size / 1e6:,.0f} MB',
        probe_checks(str(path), repeats) if flags.quick
        else _measured(path, repeats, '--only_checks')))
  if results:
    show(_growth(sizes, results))
  measure.write(rows, flags.json)


if __name__ == '__main__':
  main()
