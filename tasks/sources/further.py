"""Opens further files for a model that is trained already: see tasks.task.Reader.

All clients of a file count, those of a training part and those of a test part. Options
that are not given are those of the training, where the source is the same.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
import math
from typing import Any

import numpy as np

from tasks import checks, task
from tasks.sources import labelled as labelled_lib, open_source, records

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
  if 'data_path' in given and source not in open_source.FORMATS and (
      'data_source' not in given):
    raise ValueError(f'data_path needs data_source: that of the training is {source}')
  kept = recorded if given.get('data_source', source) == source else {}
  source = given.pop('data_source', source)
  names = known(source)
  checks.options(f'data_source {source}', given, names,
                 {'data_path'}.intersection(names))
  return source, {**{name: value for name, value in kept.items()
                     if name in names and name not in _OF_TRAINING}, **given}


def open_files(data_source: str, fields: records.Fields, **options: Any
           ) -> records.JoinedSource:
  """All clients of files; arguments as for open_source.open_raw."""
  raw = open_source.open_raw(data_source, fields=fields, **options)
  return concatenated([raw.train, raw.test], raw.skips)


def concatenated(parts: Sequence[task.ClientSource | None], skips: task.Skips
           ) -> records.JoinedSource:
  """All clients of those parts that there are."""
  return records.JoinedSource([part for part in parts if part is not None], skips)


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


def options(data_source: str) -> tuple[str, ...]:
  """The options of `reader` for a format."""
  if data_source == 'npz':
    return OF_ARRAYS
  return 'image_field', 'label_field', *of_files(data_source)


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

  def read(*, labelled: bool, data_source: str | None = None,
           **given: Any) -> task.ClientSource:
    data_source = checks.choice('data_source', data_source, open_source.FORMATS, 'npz')
    names = options(data_source)
    given = checks.options(f'data_source {data_source}', given, names, ['data_path'])
    format_ = open_source.FORMATS[data_source]
    record = given.pop('image_field', format_.image)
    label = given.pop('label_field', format_.label)
    if data_source == 'npz':
      source = arrays(given['data_path'], record, label if labelled else None,
                      given.get('client_field', 'writer'))
    else:
      fields = [records.Field(name=RECORD, source_name=record, kind=records.NUMBER)]
      if labelled:
        fields.append(records.Field(
            name=LABEL, source_name=label, kind=records.INTEGER))
      source = open_files(data_source, fields, **given)
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
    examples['y'] = labelled_lib.checked_labels(
        'labels', raw[LABEL], len(x), num_classes)
  return examples
