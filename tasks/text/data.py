"""Text tasks and their data: whose records train, and whose are held out."""

from collections.abc import Callable, Collection, Mapping, Sequence
import dataclasses
import functools
import importlib.resources
from typing import Any

import numpy as np

from tasks import checks, official as official_files, task
from tasks.sources import further, open_source, records

# Where a file has no test part: the last fifth of a client's records.
_TEST_PART = 5
_MAX_TEST_CLIENTS = 500
# Training examples are kept in memory up to this size.
_CACHE_BYTES = 256 * 2**20
_SUBSET_SEED = 20230817

SOURCES = tuple(sorted(('embedded', 'official', *open_source.FORMATS)))
_LIMITS = 'max_examples_per_client', 'max_test_examples'
# The option of a source that is no format of files.
_OPTION = {'embedded': 'num_clients', 'official': 'cache_dir'}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextData:
  """Raw sources: the training clients, with all their records, and others.

  Attributes:
    others: Clients outside the population, for the held-out set `others_name`, if any.
    test: Records of a test part, of any clients; None if there is none.
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
  """The text that ships, of simulated clients: consecutive speeches, mostly of a role.

  There may be 2 to 375 clients, the number of speeches, else it raises ValueError.
  Fields are some of 'text', 'tags', 'title' (empty) and 'label' (the play).
  """
  count = len(speeches())
  checks.integer('num_clients', num_clients, 2, count, 'speeches')
  texts, tags = zip(*speeches())
  columns = {'text': texts, 'tags': tags, 'title': ('',) * count,
             'label': [text.split('|')[0] for text in tags]}
  population, others = records.split_clients(records.ArraysByClient(
      {name: np.array(columns[name], object) for name in fields},
      np.arange(count) * num_clients // count))
  return records.RawData(train=population, test=others, skips=task.Skips())


def load(official: official_files.File, *, fields: Sequence[records.Field],
         privacy_unit: str, data_source: str | None = None,
         **options: Any) -> TextData:
  """Opens the data of a text task.

  Fields are some of those of the embedded text, under these names. The source is
  'embedded' (None too), 'official' or one of open_source.FORMATS. Options: num_clients
  for 'embedded', cache_dir for 'official', else those of open_source.open_raw, and
  held_out_fraction where there is no test part.

  Raises ValueError on an unknown source, an option that it does not use, one that it
  needs and lacks, and bad data.
  """
  data_source = checks.choice('data_source', data_source, SOURCES, 'embedded')
  if data_source in open_source.FORMATS:
    fraction = options.pop('held_out_fraction', None)
    raw = open_source.open_raw(data_source, fields=fields, **options)
    population, others = raw.train, None
    if raw.test is None:
      population, others = records.split_clients(raw.train, held_out_fraction=fraction)
    elif fraction is not None:
      raise ValueError('held_out_fraction is not used where there is a test part')
    return TextData(
        population=population, others=others, test=raw.test, divided=raw.test is None,
        privacy_unit=privacy_unit, skips=raw.skips)
  given = checks.options(f'data_source {data_source}', options, [_OPTION[data_source]])
  if data_source == 'embedded':
    raw = open_embedded(fields=[field.name for field in fields], **given)
    count = len(raw.train.client_ids) + len(raw.test.client_ids)
    return TextData(
        population=raw.train, others=raw.test, others_name='test', skips=raw.skips,
        privacy_unit=f'one of {count} simulated clients, not people')
  # TensorFlow takes seconds to import, which the other sources need not pay.
  from tasks.sources import sqlite as source_sqlite  # pylint: disable=g-import-not-at-top
  path = official.find_or_download(given.get('cache_dir'))
  population, others, test = (
      name and source_sqlite.SqliteSource(path, name, fields=fields)
      for name in ('train', official.others_split, 'test'))
  return TextData(population=population, others=others, test=test,
                  privacy_unit=privacy_unit, skips=task.Skips())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Learned:
  """A model, and the examples that it takes.

  Attributes:
    model: The model.
    element_spec: Element spec of labelled examples.
    convert: (raw records, name of the text's field, whether the examples are labelled)
      -> examples.
    convert_in_graph: Raw records -> labelled examples; see records.MappedSource.
  """

  model: task.Model
  element_spec: records.ElementSpec
  convert: Callable[[records.RawExamples, str, bool], Mapping[str, np.ndarray]]
  convert_in_graph: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextTask:
  """A task that learns from texts.

  Attributes:
    name: Name of the task.
    models: Names of its models.
    default_model: Model where none is given.
    learn: (model, **options of the task's own, which are keywords) -> what it learns.
    official: TFF's file of the task.
    official_field: Field of the text there; 'text' is that of other files.
    more_fields: Fields to read in addition to the text.
    has_label: Whether records have a field of their label, which is read where
      examples are labelled.
    privacy_unit: What one client of a file is.
  """

  name: str
  models: Collection[str]
  default_model: str
  learn: Callable[..., Any]
  official: official_files.File
  official_field: str
  more_fields: Sequence[records.Field] = ()
  has_label: bool = False
  privacy_unit: str

  def build(self, **options: Any) -> task.Task:
    """Builds the task.

    Args:
      **options: `model`, one of the models. `text_field` and, if there are labels,
        `label_field`, the names of these fields. `max_examples_per_client`: a training
        client that has more keeps this many of them, evenly spaced.
        `max_test_examples`: a held-out set that has more keeps this many, 2000 where it
        is not given, sampled by a fixed seed. Those of `learn`, and of `load`.

    Raises ValueError on an unknown model, an option out of range, and bad data.
    """
    return self.build_learned(self.learn_by(options), self.open(options), options)

  def serving(self, inputs: task.Spec, weights: task.Weights,
              **options: Any) -> task.Serving:
    """The trained model, by the options of its task; see registry.serving.

    Texts that are read without labels go on: they have no token of their end.
    """
    del inputs, weights
    return self.served(self.learn_by(options), options)

  def learn_by(self, options: Mapping[str, Any]) -> Any:
    """The result of `learn` for some of these options."""
    model = checks.choice('model', options.get('model'), self.models, self.default_model)
    return self.learn(model, **{
        name: options[name] for name in checks.keywords(self.learn)[0]
        if name in options})

  def fields(self, options: Mapping[str, Any], labelled: bool = True
             ) -> list[records.Field]:
    """Fields to read, that of the text first."""
    name = options.get('text_field') or (
        self.official_field if options.get('data_source') == 'official' else 'text')
    result = [records.Field(name='text', source_name=name, kind=records.TEXT),
              *self.more_fields]
    if self.has_label and labelled:
      result.append(records.Field(
          name='label', source_name=options.get('label_field'), kind=records.CATEGORY))
    return result

  def open(self, options: Mapping[str, Any]) -> TextData:
    """Opens the data; options are those of `build`."""
    own = {'model', 'text_field', 'label_field', *_LIMITS,
           *checks.keywords(self.learn)[0]} - {'data_source'}
    return load(
        self.official, fields=self.fields(options), privacy_unit=self.privacy_unit,
        **{name: value for name, value in options.items() if name not in own})

  def served(self, learned: Learned, recorded: Mapping[str, Any],
             **rest: Any) -> task.Serving:
    """The trained model; `recorded` are the options of the training."""
    own = ['text_field', *(['label_field'] if self.has_label else [])]
    inputs = {name: spec for name, spec in learned.element_spec.items() if name != 'y'}

    def known(source: str) -> Sequence[str]:
      return own + ([_OPTION[source]] if source in _OPTION else further.of_files(source))

    def read(*, labelled: bool, in_order: bool | None = None,
             **given: Any) -> task.ClientSource:
      source, options = further.source_of(recorded, given, known)
      fields = self.fields({**options, 'data_source': source}, labelled)
      options = {name: value for name, value in options.items() if name not in own}
      if source in _OPTION:
        data = load(self.official, fields=fields, privacy_unit='', data_source=source,
                    **options)
        raw = further.concatenated([data.population, data.others, data.test], data.skips)
      else:
        raw = further.open_files(
            source, fields, in_order=in_order and self.has_label, **options)
      return records.MappedSource(
          raw, lambda raw: learned.convert(raw, fields[0].column, labelled),
          learned.element_spec if labelled else inputs)

    return task.Serving(model=learned.model, inputs=inputs, reader=read, **rest)

  def build_learned(self, learned: Learned, data: TextData,
                    options: Mapping[str, Any], *, noised_files: Sequence[str] = (),
                    **of_serving: Any) -> task.Task:
    """Builds the task of raw sources; options are those of `build`.

    Its training source keeps examples in memory once they have been read, as long as
    they are few. Raises ValueError.
    """
    limits = {'max_test_examples': 2000, **options}
    of_client, of_test = map(limits.get, _LIMITS)
    for option, limit in zip(_LIMITS, (of_client, of_test)):
      if limit is not None:
        checks.integer(option, limit, 1)
    field, spec = self.fields(options)[0].column, learned.element_spec

    def convert(raw):
      return learned.convert(raw, field, True)

    def convert_test(raw):
      rows = data.split(raw)[1]
      return convert(rows) if _count(rows) else {
          name: np.zeros((0, *shape), dtype) for name, (dtype, shape) in spec.items()}

    def held_out(source, convert):
      examples, _ = records.gather(
          records.MappedSource(source, convert, spec, one_to_one=False), skips=data.skips,
          max_clients=_MAX_TEST_CLIENTS)
      rows = _subset(_count(examples), of_test)
      return {name: array[rows] for name, array in examples.items()}

    sets, others, of_clients = {}, data.others, None
    same = records.of_population(data.test, data.population)
    if others is None:
      others = records.of_population(data.test, data.population, others=True)
    if others is not None:
      sets[data.others_name] = held_out(others, convert)
    if same is not None:
      sets['test_examples'] = held_out(same, convert)
      of_clients = records.MappedSource(same, convert, spec, one_to_one=False)
    elif data.divided:
      ids = data.population.client_ids
      some = records.SubsetSource(data.population, [
          ids[i] for i in _subset(len(ids), _MAX_TEST_CLIENTS)])
      enough = [client for client, raw in data.skips.examples(some)
                if _count(data.split(raw)[1])]
      if enough:
        sets['test_examples'] = held_out(
            records.SubsetSource(data.population, enough), convert_test)
        of_clients = records.MappedSource(data.population, convert_test, spec)
    in_graph = learned.convert_in_graph
    train = records.MappedSource(
        data.population, lambda raw: _some(convert(data.split(raw)[0]), of_client),
        spec, one_to_one=False, convert_in_graph=in_graph and (
            lambda raw: _some(in_graph(data.split(raw)[0]), of_client)))
    served = self.served(learned, options, **of_serving)
    return task.Task(
        name=self.name, model=served.model, train=CachedSource(train), held_out=sets,
        held_out_of_clients=of_clients, privacy_unit=data.privacy_unit,
        skips=data.skips, files=served.files, warnings=served.not_private,
        not_private=served.not_private, reader=served.reader, noised_files=noised_files)


def _some(examples, limit):
  """At most `limit` of the examples, evenly spaced: arrays or, in a graph, tensors."""
  count = _count(examples)
  if limit is None:
    return examples
  if isinstance(count, int):
    rows = np.arange(min(count, limit)) * count // max(min(count, limit), 1)
    return {name: array[rows] for name, array in examples.items()}
  import tensorflow as tf  # pylint: disable=g-import-not-at-top
  count = tf.cast(count, tf.int64)
  size = tf.minimum(count, limit)
  rows = tf.range(size) * count // tf.maximum(size, 1)
  return {name: tf.gather(tensor, rows) for name, tensor in examples.items()}


def _subset(count: int, limit: int | None) -> np.ndarray:
  """At most `limit` of `count` indices, sampled by a fixed seed, in order."""
  return np.sort(np.random.default_rng(_SUBSET_SEED).permutation(count)[:limit])


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
