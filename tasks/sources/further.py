"""Opens further files for a model that is trained already: see tasks.task.Reader.

All clients of a file count, those of a training part and those of a test part. Options
that are not given are those of the training, where the source is the same.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
import dataclasses
import itertools
import math
from typing import Any, NamedTuple

import numpy as np

from tasks import checks, task
from tasks.sources import (
    labelled as labelled_lib, open_source, records, rows, values as values_lib)

# Names of the raw fields of labelled records.
RECORD, LABEL = 'record', 'label'
# The client of records that have none.
NOBODY = 'nobody'

# Options of an .npz file of records.
OF_ARRAYS = ('data_path', 'image_field', 'label_field', 'client_field')
# Options of the training that say which files it read, and which clients it held out.
_OF_TRAINING = ('data_path', 'test_path', 'train_split', 'test_split',
                'held_out_fraction')


def source_of(recorded: Mapping[str, Any], given: Mapping[str, Any],
              known: Callable[[str], Collection[str]]) -> tuple[str, dict[str, Any]]:
  """The source of further files, and its options: those given, else the training's.

  Args:
    recorded: Options of the training; a `data_source` of None is embedded.
    given: Options of further files; None counts as not given.
    known: Source -> names of its options.

  Raises ValueError if files are given but not their format, or an option that the
  source does not use.
  """
  given = {name: value for name, value in given.items() if value is not None}
  source = recorded.get('data_source') or 'embedded'
  if 'data_path' in given and 'data_source' not in given:
    try:
      given['data_source'] = open_source.format_of(given['data_path'])
    except ValueError:  # Names that say nothing are of the training's format.
      if source not in open_source.FORMATS:
        raise
  kept = recorded if given.get('data_source', source) == source else {}
  source = given.pop('data_source', source)
  names = known(source)
  checks.options(f'data_source {source}', given, names, {'data_path'}.intersection(names))
  return source, {**{name: value for name, value in kept.items()
                     if name in names and name not in _OF_TRAINING}, **given}


# Rows that are converted at once.
_CHUNK = 512


class InputRow(NamedTuple):
  """A good row of files.

  Attributes:
    index: Its number among all rows, from 0.
    client: Its client; None if it names none.
    location: The file and, where lines count, the line.
    values: Name of a field -> its value.
  """

  index: int
  client: str | None
  location: str
  values: Mapping[str, Any]


class RowsInOrder:
  """Rows of files in their order, read once, without a copy.

  Its `client_ids` are tuples of consecutive `InputRow`s and can be iterated once.
  Otherwise it implements tasks.task.ClientSource, of fields as a raw source has them.
  Bad rows are raised, or skipped as records of no known client. `has_clients` is
  whether a row that was read has the field of the client.
  """

  in_order = True

  def __init__(self, data_source: str, fields: Sequence[records.Field], *,
               skip_bad_clients: bool = False, client_field: str | None = None,
               **options: Any):
    """Opens files; arguments as for open_source.open_raw. Raises ValueError."""
    # Imports TensorFlow.
    from tasks.sources import columns  # pylint: disable=g-import-not-at-top
    self._again = columns.Again
    self.skips, self.has_clients = task.Skips(skip_bad_clients), False
    self._columns = {field.name: columns.Column(field) for field in fields}
    self._client = client_field or open_source.FORMATS[data_source].client_field
    # Files need no clients: any field that they have stands for it.
    of_client = records.Field(name=self._client, kind=records.TEXT, optional=True)
    reader = open_source.readers(data_source, fields=[*fields, of_client],
                                 client_field=fields[0].column, **options)['train']
    self._good_rows = self._read(reader)
    self._first = self._chunk()
    if not self._first:
      raise ValueError(f'{reader.name} has no row that is good')
    # The first rows decide between integers and floats.
    for column in self._columns.values():
      if column.field.kind == records.NUMBER:
        column.field = dataclasses.replace(column.field, kind=column.kind)
    self.client_ids: Any = self
    self.element_spec: records.ElementSpec = {
        name: (values.dtype, values.shape[1:])
        for name, values in self.examples(self._first).items()}

  def _chunk(self) -> tuple[InputRow, ...]:
    return tuple(itertools.islice(self._good_rows, _CHUNK))

  def __iter__(self) -> Iterator[tuple[InputRow, ...]]:
    return itertools.chain([self._first], iter(self._chunk, ()))

  def __getitem__(self, index: int) -> tuple[InputRow, ...]:
    return (self._first,)[index]

  def where(self, chunk: Sequence[InputRow]) -> str:
    return chunk[0].location

  def examples(self, chunk: Sequence[InputRow]) -> dict[str, np.ndarray]:
    return {name: np.array([row.values[name] for row in chunk], column.dtype)
            for name, column in self._columns.items()}

  def _read(self, reader: rows.Reader) -> Iterator[InputRow]:
    for index, (location, _, record) in enumerate(reader.rows(lambda _: None)):
      try:
        if isinstance(record, ValueError):
          raise record
        values = {name: self._value(column, record)
                  for name, column in self._columns.items()}
      except ValueError as error:
        message = error if location in str(error) else f'{location}: {error}'
        self.skips.client(None, task.BadClientError(str(message)))
        continue
      self.has_clients = self.has_clients or self._client in record
      yield InputRow(
          index, values_lib.client_id(record.get(self._client)), location, values)

  def _value(self, column: Any, record: Mapping[str, Any]) -> Any:
    try:
      return column.value_in(record)
    except self._again:  # Among the first rows only.
      return column.value_in(record)


def open_raw(data_source: str, *, fields: records.Fields, in_order: bool | None = None,
             **options: Any) -> records.RawData:
  """As open_source.open_raw, and for True or False without a copy that stays.

  `in_order` is that of task.Reader: its source where the format has rows.
  """
  open_source.check_options(data_source, options)
  if in_order and data_source in open_source.OF_ROWS:
    source = RowsInOrder(data_source, fields, **{
        name: value for name, value in options.items()
        if name not in ('cache_dir', 'no_cache')})
    return records.RawData(train=source, test=None, skips=source.skips)
  if in_order is not None and 'no_cache' in open_source.options(data_source):
    options = {**options, 'cache_dir': None, 'no_cache': True}
  return open_source.open_raw(data_source, fields=fields, **options)


def open_files(data_source: str, fields: records.Fields, **options: Any
               ) -> task.ClientSource:
  """All clients of files; arguments as for `open_raw`."""
  raw = open_raw(data_source, fields=fields, **options)
  return concatenated([raw.train, raw.test], raw.skips)


def concatenated(parts: Sequence[task.ClientSource | None], skips: task.Skips
                 ) -> task.ClientSource:
  """All clients of those parts that there are; rows in their order stay as they are."""
  return (parts[0] if getattr(parts[0], 'in_order', False) else
          records.JoinedSource([part for part in parts if part is not None], skips))


def arrays(path: str, record: str, label: str | None, client: str
           ) -> records.ArraysByClient:
  """The records of all parts of an .npz file, as RECORD and LABEL.

  Args:
    path: Path of the file.
    record, label, client: Names of its arrays, maybe before _train and _test. Records
      without an array of their clients are those of NOBODY. With None for the label,
      none is read.

  Raises ValueError if the file is missing or damaged, or an array is missing.
  """
  keys = {RECORD: record, **({LABEL: label} if label else {})}
  parts, clients = [], []
  present = labelled_lib.array_names(path)
  for suffix in ('_train', '_test', ''):
    if f'{record}{suffix}' in present:
      by_name = labelled_lib.arrays(
          path, [f'{name}{suffix}' for name in keys.values()], [f'{client}{suffix}'])
      parts.append({key: by_name[f'{name}{suffix}'] for key, name in keys.items()})
      clients.append(by_name.get(f'{client}{suffix}', np.full(
          len(parts[-1][RECORD]), NOBODY)).astype(str))
  if not parts:
    raise ValueError(f'{path} has no array {record}, {record}_train or {record}_test')
  with checks.located(path):
    return records.ArraysByClient(
        {key: np.concatenate([part[key] for part in parts]) for key in keys},
        np.concatenate(clients))


def of_files(data_source: str) -> list[str]:
  """The options of a format for further files, which have no test part."""
  return [name for name in open_source.options(data_source) if name != 'test_path']


def reader(shape: tuple[int, ...], dtype: np.dtype, num_classes: int,
           convert: Any = None) -> task.Reader:
  """The reader of labelled records of one shape, in files of any format.

  Args:
    shape: [height, width], [height, width, channels] or [d].
    dtype: uint8 for images, which are integers in [0, 255] or floats in [0, 1] in the
      files; float32 for vectors.
    num_classes: Labels are below.
    convert: Vectors of the files -> those of the model; None leaves them.
  """

  def read(*, labelled: bool, in_order: bool | None = None,
           data_source: str | None = None, **given: Any) -> task.ClientSource:
    data_source = checks.choice('data_source', data_source, open_source.FORMATS, 'npz')
    names = OF_ARRAYS if data_source == 'npz' else (
        'image_field', 'label_field', *of_files(data_source))
    given = checks.options(f'data_source {data_source}', given, names, ['data_path'])
    format_ = open_source.FORMATS[data_source]
    record = given.pop('image_field', format_.image)
    label = given.pop('label_field', format_.label)
    if data_source == 'npz':
      source = arrays(given['data_path'], record, label if labelled else None,
                      given.get('client_field', 'writer'))
    else:
      kind = records.PIXELS if dtype == np.uint8 else records.NUMBER
      fields = [records.Field(name=RECORD, source_name=record, kind=kind)]
      if labelled:
        fields.append(records.Field(name=LABEL, source_name=label, kind=records.INTEGER))
      source = open_files(data_source, fields, in_order=in_order, **given)
    spec = {'x': (dtype, shape)}
    if labelled:
      spec['y'] = (np.dtype(np.int32), ())
    return records.MappedSource(
        source, lambda raw: _examples(raw, shape, dtype, num_classes, convert), spec)

  return read


def _examples(raw: records.RawExamples, shape: tuple[int, ...], dtype: np.dtype,
              num_classes: int, convert: Any) -> dict[str, np.ndarray]:
  """The examples of raw ones. Raises ValueError."""
  x = raw[RECORD]
  if x.dtype.kind not in 'biuf' or math.prod(x.shape[1:]) != math.prod(shape) or (
      x.ndim > 2 and x.shape[1:3] != shape[:2]):
    raise checks.wrong('records', f'of the shape {list(shape)}', x)
  x = x.reshape(-1, *shape)
  if dtype == np.uint8:
    examples = {'x': labelled_lib.images('records', x, shape)}
  else:
    labelled_lib.check_each('records', x, np.isfinite(x), 'finite')
    examples = {'x': (x if convert is None else convert('records', x)).astype(dtype)}
  if LABEL in raw:
    examples['y'] = labelled_lib.checked_labels('labels', raw[LABEL], len(x), num_classes)
  return examples
