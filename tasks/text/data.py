"""Data of the text tasks: whose records train, and whose are held out."""

import dataclasses
import functools
import importlib.resources
from typing import Any, Callable, Mapping, Sequence

import numpy as np

from tasks import checks, official as official_files, task
from tasks.sources import further, ids as ids_lib, open_source, records

# Where a file has no test part: the last fifth of a client's records.
_TEST_PART = 5
_MAX_TEST_CLIENTS = 500
# Training examples are kept in memory up to this size.
_CACHE_BYTES = 256 * 2**20
_SUBSET_SEED = 20230817

SOURCES = tuple(sorted(('embedded', 'official', *open_source.FORMATS)))

Convert = Callable[[records.RawExamples], Mapping[str, np.ndarray]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextData:
  """Raw sources.

  Attributes:
    population: The training clients, with all their records.
    others: Clients that are not in the population; None if there are none.
    test: Records of a test part, of any clients; None if there is none.
    others_name: Name of the held-out set of `others`.
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

  def split(self, raw: records.RawExamples
            ) -> tuple[records.RawExamples, records.RawExamples]:
    """The records of a training client that it trains on, and those for tests."""
    count = _count(raw)
    end = count - (count // _TEST_PART if self.divided else 0)
    return ({name: array[:end] for name, array in raw.items()},
            {name: array[end:] for name, array in raw.items()})

  def has_test_records(self, client_id: str) -> bool:
    """Whether a training client has records for tests; not if its data are bad."""
    try:
      return _count(self.split(self.population.examples(client_id))[1]) > 0
    except task.BadClientError as error:
      self.skips.client(client_id, error)
      return False


def _count(examples):
  """Number of rows; a tensor in a graph."""
  first = next(iter(examples.values()))
  if isinstance(first, np.ndarray):
    return len(first)
  # TensorFlow takes seconds to import; here it has been.
  import tensorflow as tf  # pylint: disable=g-import-not-at-top
  return tf.shape(first)[0]


@functools.lru_cache(maxsize=1)
def speeches() -> tuple[tuple[str, str], ...]:
  """(text, tags separated by '|': play, genre, role) of each speech that ships.

  They are of eight plays of Shakespeare, in the public domain: enough to see that a
  run works, and far too little to learn English from. In the file, a line
  "# play genre" precedes a play's speeches, "ROLE: text".
  """
  rows, play = [], ''
  lines = importlib.resources.files('tasks.text').joinpath('embedded.txt')
  for line in lines.read_text(encoding='utf-8').splitlines():
    if line.startswith('# '):
      play = line[2:].replace(' ', '|')
    else:
      role, text = line.split(': ', 1)
      rows.append((text, f'{play}|{role.lower().replace(" ", "-")}'))
  return tuple(rows)


def open_embedded(
    num_clients: int = 125, *,
    fields: Sequence[str] = ('text', 'tags', 'title', 'label')
) -> records.RawData:
  """The text that ships, of simulated clients.

  A client has consecutive speeches, mostly of one role.

  Args:
    num_clients: From 2 to the number of speeches, 375.
    fields: Some of 'text', 'tags', 'title' (empty) and 'label' (the play).

  Raises:
    ValueError: If num_clients is out of range.
  """
  count = len(speeches())
  if not 2 <= num_clients <= count:
    raise ValueError(
        f'num_clients must be from 2 to the {count} speeches, found {num_clients!r}')
  texts, tags = zip(*speeches())
  columns = {'text': texts, 'tags': tags, 'title': ('',) * count,
             'label': [text.split('|')[0] for text in tags]}
  population, others = records.split_clients(records.ArraysByClient(
      {name: np.array(columns[name], object) for name in fields},
      np.arange(count) * num_clients // count))
  return records.RawData(train=population, test=others, skips=task.Skips())


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
  open_split = lambda name: name and source_sqlite.SqliteSource(
      path, name, fields=fields)
  return TextData(
      population=open_split('train'), others=open_split(official.others_split),
      test=open_split('test'), privacy_unit=privacy_unit, skips=task.Skips())


def _files(data_source: str, fields, privacy_unit: str, *,
           held_out_fraction: float | None = None, **options: Any) -> TextData:
  raw = open_source.open_raw(data_source, fields=fields, **options)
  if raw.test is not None:
    if held_out_fraction is not None:
      raise ValueError('held_out_fraction is not used where there is a test part')
    population, others = raw.train, None
  else:
    given = {} if held_out_fraction is None else {
        'held_out_fraction': held_out_fraction}
    population, others = records.split_clients(raw.train, **given)
  return TextData(
      population=population, others=others, test=raw.test, divided=raw.test is None,
      privacy_unit=privacy_unit, skips=raw.skips)


def load(official: official_files.File, *, fields: Sequence[records.Field],
         privacy_unit: str, data_source: str | None = None,
         **options: Any) -> TextData:
  """Opens the data of a text task.

  Args:
    official: TFF's file of the task.
    fields: Fields to read; their names are some of those of the embedded text
      ('text', 'tags', 'title', 'label').
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
    return _files(data_source, fields, privacy_unit, **options)
  allowed = {'embedded': 'num_clients', 'official': 'cache_dir'}[data_source]
  given = checks.options(f'data_source {data_source}', options, [allowed])
  if data_source == 'embedded':
    return _embedded(fields, **given)
  return _official(official, fields, privacy_unit, **given)


def reader(
    official: official_files.File, text_field: Callable[[str, str | None], str],
    convert: Callable[[records.RawExamples, str, bool], Mapping[str, np.ndarray]],
    element_spec: records.ElementSpec, recorded: Mapping[str, Any],
    more_fields: Sequence[records.Field] = (),
    label_field: Callable[[str | None], records.Field] | None = None) -> task.Reader:
  """The reader of further files; see task.Reader.

  Args:
    official: TFF's file of the task.
    text_field: (data source, name that is given or None) -> name of the text's field.
    convert: (raw records, name of the text's field, whether the examples are labelled)
      -> examples.
    element_spec: Element spec of labelled examples.
    recorded: Options of the training.
    more_fields: Further fields to read.
    label_field: Name that is given, or None -> field of the label, which is read if
      examples are labelled; None if there is none.
  """
  own = ['text_field', *(['label_field'] if label_field else [])]

  def known(source: str) -> Sequence[str]:
    if source not in open_source.FORMATS:
      return [*own, 'num_clients' if source == 'embedded' else 'cache_dir']
    return [*own, *further.of_files(source)]

  def read(*, labelled: bool, **given: Any) -> task.ClientSource:
    source, options = further.source_of(recorded, given, known)
    name = text_field(source, options.pop('text_field', None))
    fields = [records.Field(name='text', source_name=name, kind=records.TEXT),
              *more_fields]
    of_label = options.pop('label_field', None)
    if label_field and labelled:
      fields.append(label_field(of_label))
    if source in open_source.FORMATS:
      raw = further.open_files(source, fields, **options)
    else:
      data = load(
          official, fields=fields, privacy_unit='', data_source=source, **options)
      raw = further.concatenated([data.population, data.others, data.test], data.skips)
    spec = {feature: of for feature, of in element_spec.items()
            if labelled or feature != 'y'}
    return records.MappedSource(raw, lambda raw: convert(raw, name, labelled), spec)

  return read


def build_task(
    name: str, model: task.Model, data: TextData, convert: Convert,
    element_spec: records.ElementSpec, *,
    max_examples_per_client: int | None = None, max_test_examples: int | None = None,
    convert_in_graph: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
    **rest: Any) -> task.Task:
  """Builds the task of raw sources.

  Args:
    name: Name of the task.
    model: Model of its examples.
    data: Raw sources.
    convert: Raw records -> model examples.
    element_spec: Element spec of the examples.
    max_examples_per_client: A training client that has more keeps this many of them,
      evenly spaced; None keeps all.
    max_test_examples: A held-out set that has more keeps this many, sampled by a
      fixed seed; None keeps all.
    convert_in_graph: As in records.MappedSource.
    **rest: Further attributes of task.Task.

  Returns:
    The task. Its training source keeps examples in memory once they have been read,
    as long as they are few.

  Raises:
    ValueError: If a limit is not at least 1, or data are bad.
  """
  for option, limit in (('max_examples_per_client', max_examples_per_client),
                        ('max_test_examples', max_test_examples)):
    if limit is not None:
      checks.integer(option, limit, 1)

  def convert_for_training(raw):
    examples = convert(data.split(raw)[0])
    count = _count(examples)
    if max_examples_per_client is None or count <= max_examples_per_client:
      return examples
    rows = np.arange(max_examples_per_client) * count // max_examples_per_client
    return {name: array[rows] for name, array in examples.items()}

  def convert_for_training_in_graph(raw):
    import tensorflow as tf  # pylint: disable=g-import-not-at-top
    examples = convert_in_graph(data.split(raw)[0])
    if max_examples_per_client is None:
      return examples
    count = tf.cast(_count(examples), tf.int64)
    # All of them, in order, if there are no more.
    kept = tf.minimum(count, max_examples_per_client)
    rows = tf.range(kept) * count // tf.maximum(kept, 1)
    return {name: tf.gather(tensor, rows) for name, tensor in examples.items()}

  def convert_test(raw):
    rows = data.split(raw)[1]
    return convert(rows) if _count(rows) else {
        name: np.zeros((0, *shape), dtype) for name, (dtype, shape) in
        element_spec.items()}

  def held_out(source, convert):
    examples, _ = records.gather(
        records.MappedSource(source, convert, element_spec), skips=data.skips)
    rows = _subset(_count(examples), max_test_examples)
    return {name: array[rows] for name, array in examples.items()}

  sets = {}
  others, same, of_clients = data.others, None, None
  if data.test is not None:
    known = ids_lib.membership(data.population.client_ids)
    ids = data.test.client_ids
    same = [client for client in ids if client in known]
    if others is None and len(same) < len(ids):
      others = records.SubsetSource(
          data.test, [client for client in ids if client not in known])
  if others is not None:
    sets[data.others_name] = held_out(_some_clients(others), convert)
  if same:
    known_test = records.SubsetSource(data.test, same)
    sets['test_examples'] = held_out(_some_clients(known_test), convert)
    of_clients = records.MappedSource(known_test, convert, element_spec)
  elif data.divided:
    some = _some_clients(data.population)
    enough = [client for client in some.client_ids if data.has_test_records(client)]
    if enough:
      sets['test_examples'] = held_out(
          records.SubsetSource(some, enough), convert_test)
      of_clients = records.MappedSource(data.population, convert_test, element_spec)
  train = records.MappedSource(
      data.population, convert_for_training, element_spec,
      convert_in_graph=convert_in_graph and convert_for_training_in_graph)
  return task.Task(
      name=name, model=model, train=CachedSource(train), held_out=sets,
      held_out_of_clients=of_clients, privacy_unit=data.privacy_unit,
      skips=data.skips, **rest)


def _subset(count: int, limit: int | None) -> np.ndarray:
  """At most `limit` of `count` indices, sampled by a fixed seed, in order."""
  return np.sort(np.random.default_rng(_SUBSET_SEED).permutation(count)[:limit])


def _some_clients(source: task.ClientSource) -> records.SubsetSource:
  ids = source.client_ids
  return records.SubsetSource(
      source, [ids[i] for i in _subset(len(ids), _MAX_TEST_CLIENTS)])


class CachedSource(records.Wrapping):
  """Keeps the examples that were read, as long as they are few."""

  def __init__(self, source: task.ClientSource, max_bytes: int = _CACHE_BYTES):
    """Wraps a source; what is beyond max_bytes is read again every time."""
    super().__init__(source)
    self._kept: dict[str, dict[str, np.ndarray]] = {}
    self._bytes_left = max_bytes

  def examples(self, client_id: str) -> dict[str, np.ndarray]:
    """All examples of a client."""
    examples = self._kept.get(client_id)
    if examples is None:
      examples = self._source.examples(client_id)
      size = sum(array.nbytes for array in examples.values())
      if size <= self._bytes_left:
        self._bytes_left -= size
        self._kept[client_id] = examples
    return dict(examples)
