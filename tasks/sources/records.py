"""Records: the contents of clients' files, before a task turns them into examples.

A *raw source* is a task.ClientSource whose examples are the file's own fields.
They share their first dimension; numbers are numeric arrays, texts object arrays
of str of the shape [examples]. Its element_spec gives dtype(object) and () for
texts. A task converts it to model examples:

  raw = open_source.open_raw(data_source, fields=[...], data_path=..., ...)
  train = records.MappedSource(raw.train, convert, element_spec)

Clients are read lazily. No TensorFlow here.
"""

import dataclasses
import datetime
import hashlib
import re
import types
from typing import Any, Callable, Iterable, Mapping, Sequence

import numpy as np

from tasks import checks, task
from tasks.sources import ids as ids_lib, values as values_lib
from tff_pipelines.common import validate

# Kinds of fields: str; a signed 64-bit integer; a 64-bit float; a number, which is one of
# the latter two, the same in all records; pixels, a number of the first record's kind.
TEXT, INTEGER, FLOAT, NUMBER, PIXELS = 'text', 'integer', 'float', 'number', 'pixels'
# Kinds of a table's columns, which may have gaps: a text, or a number or truth value
# as a text, '' for a gap; and a 64-bit float, NaN for a gap. An empty cell, null and
# NaN are gaps, in a measure also values.GAPS; a column that is not there at all
# is an error. A date is a measure, in days since 1970-01-01.
CATEGORY, MEASURE, DATE = 'category', 'measure', 'date'
KINDS = (TEXT, INTEGER, FLOAT, NUMBER, PIXELS, CATEGORY, MEASURE, DATE)

# The dtype of texts in an element_spec.
TEXT_DTYPE = np.dtype(object)

ElementSpec = Mapping[str, tuple[np.dtype, tuple[int, ...]]]
RawExamples = Mapping[str, np.ndarray]

# Held-out clients are read into memory: at most this many training clients that are
# held out, and clients of a test part.
MAX_HELD_OUT_CLIENTS = 1000
MAX_TEST_CLIENTS = 10_000
# Selects the held-out clients in every run, so that accuracies of different runs are
# of the same clients.
_HELD_OUT_SEED = 20230817
PERSON = task.PERSON


def digest(content: bytes) -> int:
  """A signed integer of 64 bits that no other contents have."""
  found = hashlib.blake2b(content, digest_size=8).digest()
  return int.from_bytes(found, 'little', signed=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Field:
  """One field of a file's records.

  Attributes:
    name: Its key in the raw examples.
    source_name: Its name in the file; None means the same.
    kind: One of KINDS, and values of other kinds are errors; None means any kind.
      Integers are accepted as floats, but never the reverse. A list of texts is one
      text joined by '|', as in TFF's Stack Overflow.
    optional: A record may lack it or have null: '' for a text, 0 for a number.
    complete: Whether a gap of a category, a measure or a date is an error.
    choices: The values that it may have, or a gap; empty for any.
    bounds: The minimum and the maximum of a number; None for any.
    noun, remedy: Its name in messages about these, and their end.
  """

  name: str
  source_name: str | None = None
  kind: str | None = None
  optional: bool = False
  complete: bool = False
  choices: tuple[str, ...] = ()
  bounds: tuple[float, float] | None = None
  noun: str = 'field'
  remedy: str = ''

  def __post_init__(self):
    if self.kind is not None:
      checks.choice('kind', self.kind, KINDS)
    if self.optional:
      checks.choice(f'kind of optional {self.name}', self.kind, (TEXT, INTEGER, FLOAT))

  def check(self, value: Any) -> None:
    """Raises ValueError unless a converted value keeps the rules."""
    if value == '' or value != value:
      if self.complete:
        raise ValueError(f'{self.noun} {self.column!r} must have a value in every row, '
                         f'found none{self.remedy}')
    elif self.choices and value not in self.choices:
      rule = f'one of {", ".join(map(repr, self.choices))[:200]}'
      raise checks.wrong(
          f'{self.noun} {self.column!r}', rule, f'{str(value)[:100]!r}{self.remedy}')
    elif self.bounds is not None and not self.bounds[0] <= value <= self.bounds[1]:
      rule = 'in [{:g}, {:g}]'.format(*self.bounds)
      raise checks.wrong(f'{self.noun} {self.column!r}', rule, f'{value:g}')

  @property
  def column(self) -> str:
    """The name in the file."""
    return self.name if self.source_name is None else self.source_name


Fields = Sequence[Field] | None  # None means all.

_DATE = re.compile(r'\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?'
                   r'(Z|[+-]\d{2}(:?\d{2})?)?)?', re.ASCII)
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


def days(value: Any) -> float | None:
  """Days since 1970-01-01 of a date or time; None for anything else.

  It is a text of ISO 8601 (2024-03-01, 2024-03-01 12:30:00), or as Python and NumPy
  have dates. Times with a zone are converted to UTC.
  """
  if isinstance(value, np.datetime64):
    value = value.astype('datetime64[us]').item()
  if isinstance(value, str):
    try:
      value = _DATE.fullmatch(value) and datetime.datetime.fromisoformat(value)
    except ValueError:  # The 30th of February.
      return None
  elif isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
    value = datetime.datetime(value.year, value.month, value.day)
  if not isinstance(value, datetime.datetime):
    return None
  if value.tzinfo is None:
    value = value.replace(tzinfo=datetime.timezone.utc)
  return (value - _EPOCH) / datetime.timedelta(days=1)


def parse_field(text: str) -> Field:
  """Parses NAME, NAME:KIND or NAME:KIND?. Raises ValueError."""
  name, _, kind = text.partition(':')
  if not name:
    raise ValueError(f'fields must be NAME, NAME:KIND or NAME:KIND?, found {text!r}')
  return Field(name=name, kind=kind.removesuffix('?') or None,
               optional=kind.endswith('?'))


def names(known: Iterable[str]) -> str:
  """The names that there are, for messages."""
  return ', '.join(map(repr, known))[:200] or 'none'


def no_field(name: str, known: Iterable[str]) -> ValueError:
  """The error of a record or a file without a field."""
  return ValueError(f'there is no field {name!r}; there are {names(known)}')


@dataclasses.dataclass(frozen=True, kw_only=True)
class RawData:
  """The parts of a data source.

  Attributes:
    train: Raw source of the training population.
    test: Raw source of the test part; None if there is none.
    skips: Counts bad clients and records; give it to the task.Task.
  """

  train: task.ClientSource
  test: task.ClientSource | None
  skips: task.Skips


def client_order(examples: Mapping[str, np.ndarray], clients: np.ndarray) -> np.ndarray:
  """The indices that sort examples by client; see `ArraysByClient`."""
  if clients.ndim != 1 or not clients.size:
    raise checks.wrong('clients', 'one id per example', clients)
  for name, array in examples.items():
    if array.shape[:1] != clients.shape:
      raise checks.wrong(name, f'as long as the {clients.size} clients', array)
  return np.argsort(clients, kind='stable')


class ArraysByClient:
  """Examples in memory, sorted once by client so that reading one is a slice.

  Implements tasks.task.ClientSource. The arrays that `examples` returns are
  read-only views.
  """

  def __init__(self, examples: Mapping[str, np.ndarray], clients: np.ndarray):
    """Sorts arrays that share their first dimension by client, stably.

    Args:
      examples: Feature name -> array.
      clients: [examples] anything of which `str` is the id of a client, such as
        integers, texts and UUIDs; whole numbers may be floats.

    Raises ValueError if there is no example, lengths differ, or an id is missing.
    """
    clients = values_lib.client_ids(clients)
    order = client_order(examples, clients)
    # Sorted data, as many files have, need no second copy.
    is_sorted = bool(np.all(order[1:] > order[:-1]))
    self._arrays = {name: array.view() if is_sorted else array[order]
                    for name, array in examples.items()}
    for array in self._arrays.values():
      array.flags.writeable = False
    ids, starts = np.unique(clients[order], return_index=True)
    self._slices = {
        str(client): slice(start, end) for client, start, end in zip(
            ids.tolist(), starts, [*starts[1:], clients.size])}
    self.client_ids: Sequence[str] = tuple(self._slices)
    self.element_spec = types.MappingProxyType(
        {name: (a.dtype, a.shape[1:]) for name, a in self._arrays.items()})

  def examples(self, client_id: str) -> dict[str, np.ndarray]:
    """All examples of a client. Raises ValueError for an unknown client."""
    if client_id not in self._slices:
      raise ValueError(f'there is no client {client_id!r}')
    rows = self._slices[client_id]
    return {name: array[rows] for name, array in self._arrays.items()}


def check_examples(what: str, examples: Any, spec: ElementSpec) -> None:
  """Raises ValueError unless examples are as a spec says."""
  if not isinstance(examples, Mapping) or set(examples) != set(spec):
    found = (sorted(examples) if isinstance(examples, Mapping)
             else type(examples).__name__)
    raise ValueError(f'{what} must have the features {sorted(spec)}, found {found}')
  counts = set()
  for name, (dtype, shape) in spec.items():
    array = examples[name]
    if not isinstance(array, np.ndarray) or array.dtype != dtype or (
        array.ndim == 0 or array.shape[1:] != shape):
      sizes = ', '.join(map(str, ('examples', *shape)))
      shown = array if isinstance(array, np.ndarray) else type(array).__name__
      raise checks.wrong(f'{what}: {name}', f'{dtype} [{sizes}]', shown)
    counts.add(len(array))
  if len(counts) > 1:
    raise ValueError(f'{what} must have one length, found {sorted(counts)}')


class Wrapping:
  """A source of the same clients as another, from which it reads.

  Implements tasks.task.ClientSource except for `examples`; it has all else that the
  other source has: `where`, `read_in_graph`, `skips`, `data_proof`, `is_roster`.
  """

  def __init__(self, source: task.ClientSource):
    self._source = source
    self.client_ids: Sequence[str] = source.client_ids
    self.element_spec: ElementSpec = source.element_spec

  def __getattr__(self, name: str) -> Any:
    return getattr(vars(self)['_source'], name)


class MappedSource(Wrapping):
  """A task's examples, converted from a raw source's, a client at a time."""

  def __init__(
      self, source: task.ClientSource,
      convert: Callable[[RawExamples], Mapping[str, np.ndarray]],
      element_spec: ElementSpec, *, one_to_one: bool = True,
      convert_in_graph: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None):
    """Wraps a source.

    Args:
      source: The raw source.
      convert: All raw examples of one client -> its model examples, of which there
        may be another number, or none. Raises ValueError on bad data.
      element_spec: Feature name -> (NumPy dtype, shape of one example).
      one_to_one: Whether every raw example becomes one, in order.
      convert_in_graph: `convert` as a pure TensorFlow function, of texts as UTF-8.
        With it, and with a source that can be read in graph, clients are read where
        they train.
    """
    super().__init__(source)
    self._convert = convert
    self._convert_in_graph, self._one_to_one = convert_in_graph, one_to_one
    self._has_persons = PERSON in source.element_spec
    persons = {PERSON: (np.int64, ())} if self._has_persons else {}
    self.element_spec = types.MappingProxyType({
        name: (np.dtype(dtype), tuple(shape))
        for name, (dtype, shape) in {**element_spec, **persons}.items()})

  def examples(self, client_id: str) -> dict[str, np.ndarray]:
    """The model examples of a client. Raises task.BadClientError."""
    raw = self._source.examples(client_id)
    try:
      examples = self._with_persons(raw) if self._has_persons else dict(
          self._convert(raw))
      check_examples('examples', examples, self.element_spec)
    except ValueError as error:
      raise task.BadClientError(f'{where(self, client_id)}: {error}') from error
    return examples

  def _with_persons(self, raw: RawExamples) -> dict[str, np.ndarray]:
    persons = np.array([digest(name.encode('utf-8', 'replace'))
                        for name in raw[PERSON].astype(str).tolist()], np.int64)
    if self._one_to_one or not len(persons):
      return {**self._convert(raw), PERSON: persons}
    parts = [{**(part := self._convert({
        name: array[row:row + 1] for name, array in raw.items()})), PERSON: np.full(
            len(next(iter(part.values()))), persons[row])} for row in range(len(persons))]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

  @property
  def read_in_graph(self) -> task.ReaderInGraph | None:
    """See task.reader_in_graph."""
    reader, convert = task.reader_in_graph(self._source), self._convert_in_graph
    if reader is None or convert is None:
      return None
    return dataclasses.replace(reader, convert=lambda rows: convert(reader.convert(rows)))


class SubsetSource(Wrapping):
  """Some clients of a source, in the given order."""

  def __init__(self, source: task.ClientSource, client_ids: Iterable[str]):
    super().__init__(source)
    self.client_ids: Sequence[str] = (
        client_ids if isinstance(client_ids, ids_lib.Ids) else tuple(client_ids))
    self._known = ids_lib.membership(self.client_ids)

  def examples(self, client_id: str) -> dict[str, np.ndarray]:
    """All examples of a client. Raises ValueError for an unknown client."""
    if client_id not in self._known:
      raise ValueError(f'there is no client {client_id!r}')
    return self._source.examples(client_id)


class JoinedSource:
  """The clients of several raw sources; one that is in several has all its examples.

  Implements tasks.task.ClientSource.
  """

  def __init__(self, sources: Sequence[task.ClientSource], skips: task.Skips):
    """Joins one source or more, whose fields are the same."""
    self.skips = skips
    self._of_client: dict[str, list[task.ClientSource]] = {}
    for source in sources:
      for client in source.client_ids:
        self._of_client.setdefault(client, []).append(source)
    self.client_ids: Sequence[str] = tuple(self._of_client)
    self.element_spec: ElementSpec = sources[0].element_spec

  def where(self, client_id: str) -> str:
    """The file and the client, for messages."""
    return where(self._of_client[client_id][0], client_id)

  def examples(self, client_id: str) -> dict[str, np.ndarray]:
    """All examples of a client. Raises ValueError for an unknown client."""
    if client_id not in self._of_client:
      raise ValueError(f'there is no client {client_id!r}')
    parts = [source.examples(client_id) for source in self._of_client[client_id]]
    return {name: np.concatenate([part[name] for part in parts])
            for name in self.element_spec}


def where(source: task.ClientSource, client_id: str) -> str:
  """The file and the client, as far as the source knows them, for messages."""
  describe = getattr(source, 'where', None)
  return f'client {client_id!r}' if describe is None else describe(client_id)


def _selected(clients: int, count: int) -> np.ndarray:
  """The indices of `count` clients, the same in every run."""
  return np.random.default_rng(_HELD_OUT_SEED).permutation(clients)[:count]


def split_clients(
    source: task.ClientSource, *, held_out_fraction: float | None = None
) -> tuple[SubsetSource, SubsetSource | None]:
  """Holds some clients out of the population, to test on.

  Args:
    source: All clients; two or more unless held_out_fraction is 0.
    held_out_fraction: In [0, 1), None means 0.1; at least one client and at most
      MAX_HELD_OUT_CLIENTS are held out, unless it is 0.

  Returns the population, and the clients held out, if any. They depend on the ids
  alone. Raises ValueError if the fraction is out of range or there are too few clients.
  """
  if held_out_fraction is None:
    held_out_fraction = 0.1
  validate.below_one(held_out_fraction=held_out_fraction)
  ids = source.client_ids
  if held_out_fraction == 0:
    return SubsetSource(source, ids), None
  count = min(max(1, round(held_out_fraction * len(ids))), MAX_HELD_OUT_CLIENTS)
  if count >= len(ids):
    raise ValueError(f'held_out_fraction={held_out_fraction!r} leaves none of the '
                     f'{len(ids)} clients to train on')
  chosen = np.zeros(len(ids), bool)
  chosen[_selected(len(ids), count)] = True
  # Sorted, so that the choice is of ids and not of their order in a file.
  if not isinstance(ids, ids_lib.Ids) or not ids.is_increasing:
    ids = ids_lib.Ids([sorted(ids)])
  return tuple(SubsetSource(source, ids.where(of)) for of in (~chosen, chosen))


def gather(
    source: task.ClientSource, *, skips: task.Skips | None = None,
    max_clients: int | None = None
) -> tuple[dict[str, np.ndarray], np.ndarray]:
  """Reads clients into memory, to be a held-out set.

  Args:
    source: The clients; usually a MappedSource.
    skips: The treatment of bad clients; None raises at the first.
    max_clients: Read at most this many, selected by a fixed seed; None reads all.

  Returns:
    Feature name -> array, of all clients end to end; and the client of each example.

  Raises ValueError on a bad client that is not to be skipped, or if no example is left.
  """
  skips, ids = skips or task.Skips(), source.client_ids
  if max_clients is not None and max_clients < len(ids):
    source = SubsetSource(
        source, [ids[i] for i in np.sort(_selected(len(ids), max_clients))])
  parts, clients = [], []
  for client_id, examples in skips.examples(source):
    parts.append(examples)
    clients += [client_id] * len(next(iter(examples.values())))
  if not clients:
    raise ValueError(f'there is no example in the {len(source.client_ids)} clients')
  examples = {name: np.concatenate([part[name] for part in parts])
              for name in source.element_spec}
  return examples, np.array(clients, str)


def held_out_sets(
    examples: RawExamples, clients: np.ndarray, population: task.ClientSource
) -> dict[str, dict[str, np.ndarray]]:
  """Names held-out examples after their clients, `clients` [examples].

  Returns:
    'test_clients', examples of clients outside the population, and 'test_examples',
    further examples of the population's clients; without empty sets.
  """
  ids, member = np.unique(clients.astype(str), return_inverse=True)
  trains = ids_lib.membership(population.client_ids)
  known = np.array([client in trains for client in ids.tolist()], bool)[member]
  sets = {}
  for name, rows in (('test_clients', ~known), ('test_examples', known)):
    if np.any(rows):
      index = ... if np.all(rows) else rows  # All need no copy.
      sets[name] = {key: array[index] for key, array in examples.items()}
  return sets


def of_population(test: task.ClientSource | None, population: task.ClientSource, *,
                  others: bool = False) -> SubsetSource | None:
  """The clients of a test part that train, or all others; None if there are none."""
  known = ids_lib.membership(population.client_ids)
  ids = [client for client in (test.client_ids if test else ())
         if (client in known) != others]
  return SubsetSource(test, ids) if ids else None


def with_held_out(
    train: task.ClientSource, test: task.ClientSource | None, *, skips: task.Skips,
    held_out_fraction: float | None = None
) -> tuple[task.ClientSource, dict[str, dict[str, np.ndarray]]]:
  """Divides data with a test part or without into population and held-out sets.

  Args:
    train: All training clients; usually a MappedSource.
    test: The test part; None holds some training clients out, by `held_out_fraction`.
    skips: The treatment of bad clients of the held-out sets.
    held_out_fraction: See split_clients; only without a test part.

  Raises ValueError on a fraction that is not used or leaves nothing on either side, and
  on bad clients that are not to be skipped.
  """
  if test is not None:
    if held_out_fraction is not None:
      raise ValueError('held_out_fraction is not used: the data have a test part')
    examples, clients = gather(test, skips=skips, max_clients=MAX_TEST_CLIENTS)
    return train, held_out_sets(examples, clients, train)
  population, held_out = split_clients(train, held_out_fraction=held_out_fraction)
  if held_out is None:
    raise ValueError('held_out_fraction must be above 0 without a test part, found 0')
  return population, {'test_clients': gather(held_out, skips=skips)[0]}
