"""Small populations, written in every format that tasks.sources.open_source reads."""

import csv
import gzip
import json
import pathlib

import numpy as np
import pyarrow
from pyarrow import parquet

from tasks import task
from tasks.sources import records, rows as rows_lib, store

FIELDS = (
    records.Field(name='text', kind=records.TEXT),
    records.Field(name='number', kind=records.INTEGER),
    records.Field(name='real', kind=records.FLOAT),
    records.Field(name='vector', kind=records.NUMBER))

# Two clients whose records stand among each other, and one apart.
POPULATION = {
    'ann': [dict(text='a "b",\nc', number=-3, real=0.1, vector=[1, 2]),
            dict(text='', number=2**62, real=-0.0, vector=[3, 4])],
    "o'ben\u00e9": [dict(text='\u20ac', number=0, real=1e300, vector=[5, 6])],
    '7': [dict(text='x', number=1, real=5.0, vector=[-7, 8]),
          dict(text='y|z', number=2, real=6.5, vector=[9, 0])]}


def interleaved(population):
  """(client, record) of a population, clients taking turns."""
  longest = max(map(len, population.values()))
  return [(client, rows[i]) for i in range(longest)
          for client, rows in population.items() if i < len(rows)]


def write_text(path: pathlib.Path, text: str) -> None:
  """UTF-8, compressed if the name says so."""
  content = text.encode('utf-8')
  path.write_bytes(gzip.compress(content) if path.suffix == '.gz' else content)


def jsonl(folder, population, name='data.jsonl.gz'):
  write_text(folder / name, ''.join(
      json.dumps({'client': client, **record}) + '\n'
      for client, record in interleaved(population)))
  return dict(data_source='jsonl', data_path=str(folder / name))


def plain_jsonl(folder, population):
  return jsonl(folder, population, 'data.jsonl')


def two_jsonl(folder, population):
  """Two files, every client in both."""
  first = {client: rows[:1] for client, rows in population.items()}
  rest = {client: rows[1:] for client, rows in population.items() if rows[1:]}
  jsonl(folder, first, 'data-1.jsonl')
  if rest:
    jsonl(folder, rest, 'data-2.jsonl.gz')
  return dict(data_source='jsonl', data_path=str(folder / 'data-*.jsonl*'))


def csv_file(folder, population):
  path = folder / 'data.csv'
  with open(path, 'w', encoding='utf-8', newline='') as file:
    writer = csv.writer(file)
    writer.writerow(['client', 'text', 'number', 'real', 'vector'])
    for client, r in interleaved(population):
      writer.writerow([client, r['text'], r['number'], repr(r['real']),
                       ' '.join(map(repr, r['vector']))])
  return dict(data_source='csv', data_path=str(path))


def leaf(folder, population, name='data.json.gz'):
  data = {client: {key: [r[key] for r in rows] for key in rows[0]}
          for client, rows in population.items()}
  write_text(folder / name, json.dumps(dict(
      users=list(data), hierarchies=['{"]'], num_samples=list(
          map(len, population.values())), user_data=data), indent=1))
  return dict(data_source='leaf', data_path=str(folder / name))


def parquet_file(folder, population):
  rows = [{'client': client, **r} for client, r in interleaved(population)]
  parquet.write_table(pyarrow.Table.from_pylist(rows), folder / 'data.parquet')
  return dict(data_source='parquet', data_path=str(folder / 'data.parquet'))


def clients_folder(folder, population):
  """Every client's first record in one file, the others in another."""
  root = folder / 'clients'
  for client, rows in population.items():
    (root / client).mkdir(parents=True)
    for name, part in (('1.jsonl', rows[:1]), ('2.jsonl.gz', rows[1:])):
      if part:
        write_text(root / client / name, ''.join(
            json.dumps(record) + '\n' for record in part))
  return dict(data_source='folder', data_path=str(root))


def npz(folder, population):
  rows = interleaved(population)
  np.savez(folder / 'data.npz', client_train=np.array([c for c, _ in rows]),
           **{f'{key}_train': np.array([r[key] for _, r in rows]) for key in rows[0][1]})
  return dict(data_source='npz', data_path=str(folder / 'data.npz'))


def _array(values):
  """Numbers as NumPy has them; texts as objects, also if they all are empty."""
  return np.array([*values, None], object)[:-1] if isinstance(
      values[0], str) else np.array(values)


class Clients:
  """A source of arrays: client -> field -> its values."""

  def __init__(self, examples):
    self.client_ids, self.examples = tuple(examples), examples.__getitem__


def prepared(path, train, test=None):
  """Writes sources to an SQLite file as prepare_data does; its path."""
  store.write(
      path, {split: rows_lib.of_source(source)
             for split, source in (('train', train), ('test', test)) if source},
      fields=None, skips=task.Skips())
  return path


def sqlite(folder, population):
  """As prepare_data writes it."""
  examples = {client: {key: _array([r[key] for r in rows]) for key in rows[0]}
              for client, rows in population.items()}
  return dict(data_source='sqlite', data_path=str(
      prepared(folder / 'data.sqlite', Clients(examples))))


# Formats whose values are texts, of no type of their own.
CELLS = ('csv',)
WRITERS = {
    'csv': csv_file, 'folder': clients_folder, 'jsonl.gz': jsonl,
    'jsonl': plain_jsonl, 'jsonl, two files': two_jsonl, 'leaf': leaf, 'npz': npz,
    'parquet': parquet_file, 'sqlite': sqlite}


def expected(rows):
  """The raw examples of a client, vectors being integers or floats."""
  texts = np.array([r['text'] for r in rows] + [None], object)[:-1]
  return {
      'text': texts, 'number': np.array([r['number'] for r in rows], np.int64),
      'real': np.array([r['real'] for r in rows], np.float64),
      'vector': np.array([r['vector'] for r in rows])}


def assert_same(arrays, expected_arrays) -> None:
  """Both have the same arrays, to the last bit."""
  assert set(arrays) == set(expected_arrays)
  for name, array in expected_arrays.items():
    assert arrays[name].shape == array.shape, name
    if array.dtype == object:
      assert arrays[name].dtype == object
      assert arrays[name].tolist() == array.tolist(), name
    else:
      assert arrays[name].dtype == array.dtype, name
      assert arrays[name].tobytes() == array.tobytes(), name
