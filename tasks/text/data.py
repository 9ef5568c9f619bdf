"""The data of the text tasks: whose records train, and whose are held out."""

import dataclasses
from typing import Any, Callable, Mapping, Sequence

import numpy as np

from tasks import checks
from tasks import official as official_files
from tasks import task
from tasks.sources import arrays as sources
from tasks.sources import open_source
from tasks.sources import records
from tasks.text import embedded as text_embedded

# Of a client's records, where a file has no test part: the last fifth.
_TEST_PART = 5
# A held-out set is read from at most so many clients.
_MOST_TEST_CLIENTS = 500
# Training examples up to so many bytes are kept once they are made.
_CACHE_BYTES = 256 * 2**20
_SUBSET_SEED = 20230817
# Of the text that ships.
_FIELDS = ('text', 'tags', 'title')

SOURCES = tuple(sorted(('embedded', 'official', *open_source.FORMATS)))

Convert = Callable[[records.RawExamples], Mapping[str, np.ndarray]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextData:
  """Raw sources.

  Attributes:
    population: The training clients, with all their records.
    others: Clients that are not in the population; None if there are none.
    test: Records of a test part, whoever's they are; None if there is none.
    others_name: What the held-out set of `others` is called.
    divided: Whether the last of a training client's records are for tests.
    privacy_unit: What one client is.
    skips: What to do about bad clients.
  """

  population: task.ClientSource
  others: task.ClientSource | None
  test: task.ClientSource | None = None
  others_name: str = 'test_clients'
  divided: bool = False
  privacy_unit: str
  skips: task.Skips

  def train_records(self, raw: records.RawExamples) -> records.RawExamples:
    """Those records of a training client that it trains on."""
    return _slice(raw, slice(0, _count(raw) - self._test_count(raw)))

  def test_records(self, raw: records.RawExamples) -> records.RawExamples:
    """Those records of a training client that are for tests."""
    return _slice(raw, slice(_count(raw) - self._test_count(raw), None))

  def has_test_records(self, client_id: str) -> bool:
    """Whether `test_records` of a client has any; not if its data are bad."""
    try:
      return self._test_count(self.population.examples(client_id)) > 0
    except task.BadClientError as error:
      self.skips.client(client_id, error)
      return False

  def _test_count(self, raw: records.RawExamples) -> int:
    return _count(raw) // _TEST_PART if self.divided else 0


def _count(raw):
  """How many rows there are; a tensor in a graph."""
  first = next(iter(raw.values()))
  if isinstance(first, np.ndarray):
    return len(first)
  # TensorFlow takes seconds to import; here it has been.
  import tensorflow as tf  # pylint: disable=g-import-not-at-top
  return tf.shape(first)[0]


def _slice(raw: records.RawExamples, rows: slice) -> records.RawExamples:
  return {name: array[rows] for name, array in raw.items()}


def open_embedded(num_clients: int = 125, *, fields: Sequence[str] = _FIELDS
                  ) -> records.RawData:
  """The text that ships, of simulated clients.

  Args:
    num_clients: See text_embedded.records_by_client.
    fields: Some of 'text', 'tags' and 'title'.

  Raises:
    ValueError: If num_clients is out of range.
  """
  arrays, clients = text_embedded.records_by_client(num_clients)
  population, others = records.split_clients(sources.ArraysByClient(
      {name: arrays[name] for name in fields}, clients))
  return records.RawData(train=population, test=others, skips=task.Skips())


def open_raw(*, data_source: str = 'embedded', **options: Any
             ) -> tuple[records.RawData, None]:
  """What prepare_data writes, the text that ships; it has no label counts.

  Raises:
    ValueError: On another source, or an option but num_clients.
  """
  if data_source != 'embedded':
    raise ValueError('with a task for texts, data_source must be embedded: files are '
                     f'copied as they are, without a task; found {data_source!r}')
  return open_embedded(**checks.options(
      'the copy of embedded texts', options, ['num_clients'])), None


def _embedded(fields, *, num_clients: int = 125) -> TextData:
  raw = open_embedded(num_clients, fields=[field.name for field in fields])
  return TextData(
      population=raw.train, others=raw.test, others_name='test',
      privacy_unit=f'one of {num_clients} simulated clients, not people',
      skips=raw.skips)


def _official(official: official_files.File, fields, privacy_unit: str, *,
              cache_dir: str | None = None) -> TextData:
  # TensorFlow takes seconds to import, which the other sources need not pay.
  from tasks.sources import sqlite as source_sqlite  # pylint: disable=g-import-not-at-top
  path = official.find_or_download(cache_dir)
  open_split = lambda name: None if name is None else (
      source_sqlite.SqliteSource(path, name, fields=fields))
  return TextData(
      population=open_split('train'), others=open_split(official.others_split),
      test=open_split('test'), privacy_unit=privacy_unit, skips=task.Skips())


def _of_files(data_source: str, fields, privacy_unit: str,
              options: Mapping[str, Any]) -> TextData:
  options = dict(options)
  fraction = options.pop('held_out_fraction', None)
  raw = open_source.open_raw(data_source, fields=fields, **options)
  if raw.test is not None:
    if fraction is not None:
      raise ValueError('held_out_fraction is not used where there is a test part')
    return TextData(population=raw.train, others=None, test=raw.test,
                    privacy_unit=privacy_unit, skips=raw.skips)
  split = {} if fraction is None else {'held_out_fraction': fraction}
  population, others = records.split_clients(raw.train, **split)
  return TextData(population=population, others=others, divided=True,
                  privacy_unit=privacy_unit, skips=raw.skips)


def load(official: official_files.File, *, fields: Sequence[records.Field],
         privacy_unit: str, data_source: str | None = None,
         **options: Any) -> TextData:
  """Opens the data of a text task.

  Args:
    official: TFF's file of the task.
    fields: What to read; their names are some of those of the embedded text
      ('text', 'tags', 'title').
    privacy_unit: What one client of a file is.
    data_source: 'embedded' (None too), 'official' or one of open_source.FORMATS.
    **options: num_clients for 'embedded', cache_dir for 'official', else those of
      open_source.open_raw, and held_out_fraction where there is no test part.

  Raises:
    ValueError: On an unknown source, an option that it does not use, one that it
      needs and lacks, and bad data.
  """
  data_source = checks.choice('data_source', data_source, SOURCES, 'embedded')
  if data_source in open_source.FORMATS:
    return _of_files(data_source, fields, privacy_unit, options)
  allowed = {'embedded': 'num_clients', 'official': 'cache_dir'}[data_source]
  given = checks.options(f'data_source {data_source}', options, [allowed])
  if data_source == 'embedded':
    return _embedded(fields, **given)
  return _official(official, fields, privacy_unit, **given)


def make_task(
    name: str, model: task.Model, data: TextData, convert: Convert,
    element_spec: records.ElementSpec, *,
    max_examples_per_client: int | None = None, max_test_examples: int | None = None,
    convert_in_graph: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
    **rest: Any) -> task.Task:
  """The task of raw sources.

  Args:
    name: Of the task.
    model: Of its examples.
    data: Raw sources.
    convert: Raw records -> model examples.
    element_spec: Of the examples.
    max_examples_per_client: A training client that has more keeps so many of them,
      evenly spaced; None keeps all.
    max_test_examples: A held-out set that has more keeps so many, drawn by a fixed
      seed; None keeps all.
    convert_in_graph: As in records.MappedSource.
    **rest: Further attributes of task.Task.

  Returns:
    The task. Its training source keeps small data in memory once they are made.

  Raises:
    ValueError: If a limit is not at least 1, or data are bad.
  """
  for option, limit in (('max_examples_per_client', max_examples_per_client),
                        ('max_test_examples', max_test_examples)):
    if limit is not None:
      checks.integer(option, limit, 1)

  def convert_for_training(raw):
    found = convert(data.train_records(raw))
    count = _count(found)
    if max_examples_per_client is None or count <= max_examples_per_client:
      return found
    rows = np.arange(max_examples_per_client) * count // max_examples_per_client
    return {name: array[rows] for name, array in found.items()}

  def convert_for_training_in_graph(raw):
    import tensorflow as tf  # pylint: disable=g-import-not-at-top
    found = convert_in_graph(data.train_records(raw))
    if max_examples_per_client is None:
      return found
    count = tf.cast(_count(found), tf.int64)
    # All of them, in order, if there are no more.
    kept = tf.minimum(count, max_examples_per_client)
    rows = tf.range(kept) * count // tf.maximum(kept, 1)
    return {name: tf.gather(tensor, rows) for name, tensor in found.items()}

  def held_out(source, convert):
    mapped = records.MappedSource(source, convert, element_spec)
    found, _ = records.gather(mapped, skips=data.skips)
    rows = np.random.default_rng(_SUBSET_SEED).permutation(_count(found))
    rows = np.sort(rows[:max_test_examples])
    return {name: array[rows] for name, array in found.items()}

  sets = {}
  others, same = data.others, None
  if data.test is not None:
    known = frozenset(data.population.client_ids)
    ids = data.test.client_ids
    same = [client for client in ids if client in known]
    unknown = [client for client in ids if client not in known]
    if unknown and others is None:
      others = records.SubsetSource(data.test, unknown)
  if others is not None:
    sets[data.others_name] = held_out(_some_clients(others), convert)
  if same:
    sets['test_examples'] = held_out(
        _some_clients(records.SubsetSource(data.test, same)), convert)
  elif data.divided:
    some = _some_clients(data.population)
    enough = [client for client in some.client_ids if data.has_test_records(client)]
    if enough:
      sets['test_examples'] = held_out(
          records.SubsetSource(some, enough),
          lambda raw: convert(data.test_records(raw)))
  train = records.MappedSource(
      data.population, convert_for_training, element_spec,
      convert_in_graph=convert_in_graph and convert_for_training_in_graph)
  return task.Task(
      name=name, model=model, train=CachedSource(train), held_out=sets,
      privacy_unit=data.privacy_unit, skips=data.skips, **rest)


def _some_clients(source: task.ClientSource) -> records.SubsetSource:
  """At most _MOST_TEST_CLIENTS, drawn by a fixed seed."""
  ids = np.array(source.client_ids, object)
  chosen = np.random.default_rng(_SUBSET_SEED).permutation(len(ids))
  return records.SubsetSource(source, ids[np.sort(chosen[:_MOST_TEST_CLIENTS])])


class CachedSource(records.Wrapping):
  """Keeps the examples that were read, as long as they are few."""

  def __init__(self, source: task.ClientSource, max_bytes: int = _CACHE_BYTES):
    """Wraps a source; what is beyond max_bytes is read anew every time."""
    super().__init__(source)
    self._kept: dict[str, dict[str, np.ndarray]] = {}
    self._bytes_left = max_bytes

  def examples(self, client_id: str) -> dict[str, np.ndarray]:
    """All examples of a client."""
    found = self._kept.get(client_id)
    if found is None:
      found = self._source.examples(client_id)
      size = sum(array.nbytes for array in found.values())
      if size <= self._bytes_left:
        self._bytes_left -= size
        self._kept[client_id] = found
    return dict(found)
