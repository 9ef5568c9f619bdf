"""Columns of a table, as they are publicly known, and their encoding.

A column is standardised by numbers that everybody may know: bounds that the user
states, rows of a public sample, or statistics that were released with noise. Nothing
here is computed from a client's rows.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
import contextlib
import dataclasses
import functools
import json
import math
import os
import pathlib
import re
from typing import Any

import numpy as np

from tasks import checks
from tasks.sources import open_source, records, tables, values as values_lib

# The file in which a run keeps its columns.
FILE = 'columns.json'
_FORMAT = 'columns 1'
ERROR, IMPUTE = MISSING = 'error', 'impute'
# Where columns come from.
BOUNDS, SAMPLE, STATISTICS = 'public bounds', 'public sample', 'noised statistics'
_SOURCES = (BOUNDS, SAMPLE, STATISTICS)

# Beyond this many standard deviations values of a sampled column are cut off.
_REACH = 10.0
_MAX_CATEGORIES = 1000
# A column of a public sample says little where this fraction lacks a known value.
_MAX_UNKNOWN = 0.1
_NUMBER = re.compile(r'[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)')
# A date that is not written as in ISO 8601.
_OTHER_DATE = re.compile(r'[0-9]{1,4}([./-])[0-9]{1,2}\1[0-9]{2,4}|'
                         r'[0-9]{1,2}[ -][A-Za-z]{3,9}[ -][0-9]{2,4}')
_INFINITE = re.compile('[+-]?inf(inity)?', re.IGNORECASE)
_IMPUTABLE = '; --missing=impute encodes it as the middle of numbers, none of categories'
# Largest ratio of the weights of two classes.
MAX_RATIO = 100


@dataclasses.dataclass(frozen=True, kw_only=True)
class Number:
  """A column of numbers or dates, encoded as (value - center) / scale.

  Attributes:
    name: Name of the column.
    low, high: Bounds in the units of the column, low < high: values beyond are cut off.
      Dates are in days since 1970-01-01.
    center, scale: Encoded as 0 and, away from it, 1; logarithms where the column
      `is_log`. A missing value is encoded as 0, if imputed.
    is_log: Whether the logarithm of the value is encoded. Then low > 0.
    kind: MEASURE or DATE, see records.
    is_target: Whether it is learned from only where it is asked for by name.
  """

  name: str
  low: float
  high: float
  center: float
  scale: float
  is_log: bool = False
  kind: str = records.MEASURE
  is_target: bool = False

  width = 1

  def __post_init__(self):
    checks.choice(f'column {self.name!r}: kind', self.kind,
                  (records.MEASURE, records.DATE))
    if not all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in (
        self.low, self.high, self.center, self.scale)) or not (
            -math.inf < self.low < self.high < math.inf):
      raise ValueError(f'column {self.name!r}: bounds must be finite, the lower first, '
                       f'found [{self.low!r}, {self.high!r}]')
    if self.is_log and self.low <= 0:
      raise ValueError(f'column {self.name!r}: bounds of a column on a log scale must '
                       f'be greater than 0, found {self.low!r}')
    low, high = self.encoded_bounds
    if not (low <= self.center <= high and 0 < self.scale < math.inf):
      raise ValueError(f'column {self.name!r}: center must be within the bounds and '
                       f'scale greater than 0, found {self.center!r}, {self.scale!r}')

  @classmethod
  def of_bounds(cls, name: str, low: float, high: float, *, is_log: bool = False,
                **rest: Any) -> 'Number':
    """The column that bounds describe: they are encoded as -1 and 1."""
    try:
      ends = (math.log(low), math.log(high)) if is_log else (low, high)
      center, scale = ends[0] / 2 + ends[1] / 2, ends[1] / 2 - ends[0] / 2
    except (TypeError, ValueError):
      center = scale = math.nan
    return cls(name=name, low=low, high=high, center=center, scale=scale,
               is_log=is_log, **rest)

  def __str__(self) -> str:
    low, high = (
        f'{end:.4g}' if self.kind == records.MEASURE else
        str(np.datetime64(math.floor(end), 'D')) for end in (self.low, self.high))
    return f'{self.name} [{low}, {high}]' + ', log scale' * self.is_log

  @property
  def encoded_bounds(self) -> tuple[float, float]:
    """The bounds in the units of `center` and `scale`."""
    return (math.log(self.low), math.log(self.high)) if self.is_log else (
        self.low, self.high)

  @property
  def has_scale_of_bounds(self) -> bool:
    """Whether the bounds are encoded as -1 and 1."""
    low, high = self.encoded_bounds
    return (self.center, self.scale) == (low / 2 + high / 2, high / 2 - low / 2)

  def _encoded(self, values: np.ndarray) -> np.ndarray:
    """Encodes float64 [n] within the bounds, or NaN: float32 [n]."""
    scaled = np.log(values) if self.is_log else values
    return ((scaled - self.center) / self.scale).astype(np.float32)

  def encode(self, values: np.ndarray, missing: str) -> np.ndarray:
    """Encodes values, NaN where missing: float32 [n, 1]. Raises ValueError."""
    values = values.astype(np.float64)
    gaps = np.isnan(values)
    if missing == ERROR:
      check_complete(self.name, gaps, _IMPUTABLE)
    encoded = self._encoded(np.clip(values, self.low, self.high))
    return np.where(gaps, np.float32(0), encoded)[:, np.newaxis]

  def target(self, values: np.ndarray) -> np.ndarray:
    """Encodes labels: float32 [n]. Raises ValueError; none is cut off or imputed."""
    values = values.astype(np.float64)
    check_complete(self.name, np.isnan(values))
    outside = (values < self.low) | (values > self.high)
    if np.any(outside):
      row = int(np.argmax(outside))
      raise ValueError(f'label {self.name!r} must be in [{self.low:g}, {self.high:g}], '
                       f'found {values[row]:g} in example {row}')
    return self._encoded(values)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Category:
  """A column of categories, encoded as ones and zeros.

  Attributes:
    name: Name of the column.
    categories: Texts that differ, also as values.category writes them.
    weights: Weight of each category in the loss, > 0; empty for 1.
    is_target: As in `Number`.
  """

  name: str
  categories: tuple[str, ...]
  weights: tuple[float, ...] = ()
  is_target: bool = False

  kind = records.CATEGORY

  def __post_init__(self):
    checks.names(f'column {self.name!r}: categories', self.categories, 1)
    checks.names(f'column {self.name!r}: categories, as numbers,', self.known, 1)
    if len(self.categories) > _MAX_CATEGORIES:
      raise checks.wrong(f'column {self.name!r}: categories',
                         f'at most {_MAX_CATEGORIES}', len(self.categories))
    if self.weights and not (
        len(self.weights) == len(self.categories)
        and 0 < min(self.weights) <= max(self.weights) <= (
            1.000001 * MAX_RATIO * min(self.weights)) < math.inf):
      raise checks.wrong('class_weights', f'{len(self.categories)} positive numbers, the '
                         f'largest at most {MAX_RATIO} times the smallest',
                         list(self.weights))

  @property
  def width(self) -> int:
    return len(self.categories)

  def __str__(self) -> str:
    return f'{self.name} ({self.width} categories)' + (
        f', weights {", ".join(f"{w:.3g}" for w in self.weights)}' if self.weights
        else '')

  @functools.cached_property
  def known(self) -> list[str]:
    """The categories as they are read from data."""
    return list(map(values_lib.category, self.categories))

  def encode(self, values: np.ndarray, missing: str) -> np.ndarray:
    """Encodes texts, '' where missing: float32 [n, width]. Raises ValueError."""
    if missing == ERROR:
      check_complete(self.name, values == '', _IMPUTABLE)
      try:
        checks.indices(f'column {self.name!r}', values, self.known)
      except ValueError as error:
        raise ValueError(f'{error}{_IMPUTABLE}') from error
    return (values[:, np.newaxis] == np.array(self.known, object)).astype(np.float32)

  def target(self, values: np.ndarray) -> np.ndarray:
    """The classes of labels: int32 [n]. Raises ValueError; none is imputed."""
    check_complete(self.name, values == '')
    return checks.indices(f'label {self.name!r}', values, self.known).astype(np.int32)


Column = Number | Category


def check_complete(name: str, gaps: np.ndarray, remedy: str = '') -> None:
  """Raises ValueError that names the first example with a gap, and a remedy."""
  if np.any(gaps):
    raise ValueError(f'column {name!r} must have a value in every row, found none in '
                     f'example {int(np.argmax(gaps))}{remedy}')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Columns:
  """The columns to learn from, in the order of the encoded ones, and that to predict.

  `made_from` is BOUNDS, SAMPLE or STATISTICS.
  """

  features: tuple[Column, ...]
  label: Column
  made_from: str

  def __post_init__(self):
    checks.choice('made_from', self.made_from, _SOURCES)
    checks.names('features', [column.name for column in self.features])
    if self.label.name in {column.name for column in self.features}:
      raise ValueError(f'label_field {self.label.name!r} must not be a feature')
    if self.is_classification and self.label.width < 2:
      raise ValueError(f'label {self.label.name!r} must have 2 classes or more')

  @property
  def is_classification(self) -> bool:
    return isinstance(self.label, Category)

  @property
  def width(self) -> int:
    """Number of encoded features."""
    return sum(column.width for column in self.features)

  @property
  def fields(self) -> list[records.Field]:
    """The fields to read."""
    return [records.Field(name=column.name, kind=column.kind)
            for column in (*self.features, self.label)]

  def checked_fields(self, missing: str) -> list[records.Field]:
    """The same with rules, so that bad rows are found when files are opened."""
    *features, label = self.fields
    if missing == ERROR:
      features = [_ruled(field, column, _IMPUTABLE, noun='column')
                  for field, column in zip(features, self.features)]
    label = _ruled(label, self.label, '', noun='label')
    if isinstance(self.label, Number):
      label = dataclasses.replace(label, bounds=(self.label.low, self.label.high))
    return [*features, label]

  def encode(self, raw: records.RawExamples, missing: str) -> np.ndarray:
    """The encoded features of raw examples: float32 [n, width]. Raises ValueError."""
    return np.concatenate(
        [column.encode(raw[column.name], missing) for column in self.features], axis=1)

  def dumps(self) -> str:
    """Serializes for a file that `read` reads."""
    return json.dumps(
        {'format': _FORMAT, 'made_from': self.made_from,
         'features': list(map(dataclasses.asdict, self.features)),
         'label': dataclasses.asdict(self.label)}, indent=1, ensure_ascii=False) + '\n'


def _ruled(field: records.Field, column: Column, remedy: str, noun: str) -> records.Field:
  """A field that must have a value, of a category one that is known."""
  return dataclasses.replace(
      field, complete=True, remedy=remedy, noun=noun,
      choices=tuple(column.known) if isinstance(column, Category) else ())


def read(path: str | os.PathLike[str]) -> Columns | dict[str, Column]:
  """Reads public bounds from a JSON file.

  It has, by the name of a column, [low, high] or a list of categories, texts, or an
  object with more ({"bounds": [1, 99], "log": true, "target": true}); or what
  `Columns.dumps` wrote, which is complete. Raises ValueError if it is missing or
  malformed; the message names it.
  """
  with checks.located(f'public_bounds={path}', KeyError, TypeError, RecursionError):
    checks.file(path)
    try:
      content = json.loads(pathlib.Path(path).read_text(encoding='utf-8'))
    except json.JSONDecodeError as error:
      raise ValueError(f'must be JSON: {error}') from error
    if not isinstance(content, dict) or not content:
      raise ValueError('must be an object of columns')
    if content.get('format') == _FORMAT:
      return Columns(features=tuple(map(_column, content['features'])),
                     label=_column(content['label']), made_from=content['made_from'])
    return {name: _described(name, value) for name, value in content.items()}


def _column(content: Mapping[str, Any]) -> Column:
  if 'categories' in content:
    return Category(**{**content, **{
        name: tuple(content[name]) for name in ('categories', 'weights')}})
  return Number(**content)


# Options of a column that is described by an object.
_BOUNDS, _CATEGORIES, _LOG, _TARGET = 'bounds', 'categories', 'log', 'target'


def _in_full(name: str, value: Any) -> dict[str, Any]:
  """The object that a list stands for in the description of a column."""
  rule = '[low, high], or texts, its categories'
  if isinstance(value, list) and any(isinstance(v, bool) for v in value):
    value = [str(v).lower() if isinstance(v, bool) else v for v in value]
  if isinstance(value, list) and value and all(isinstance(v, str) for v in value):
    # Numbers rather than codes: with fractions, or two far apart.
    if all(map(_NUMBER.fullmatch, value)) and (
        any('.' in values_lib.category(text) for text in value) or
        len(value) == 2 and float(value[1]) > float(value[0]) + 1):
      raise checks.wrong(f'column {name!r}', 'numbers without quotes if it has numbers, '
                         '{"categories": [...]} if these are codes', value)
    if None in map(records.days, value):
      if all(map(_OTHER_DATE.fullmatch, value)):
        raise checks.wrong(f'column {name!r}', 'dates such as 2024-03-01', value)
      return {_CATEGORIES: value}
    rule = '[first, last] of its dates'
  if isinstance(value, list) and len(value) == 2:
    return {_BOUNDS: value}
  raise checks.wrong(f'column {name!r}', rule, value)


def _described(name: str, value: Any) -> Column:
  """The column of a description, an object or a list."""
  value = value if isinstance(value, dict) else _in_full(name, value)
  kind = _CATEGORIES if _CATEGORIES in value else _BOUNDS
  options = {_TARGET, _LOG} if kind == _BOUNDS else {_TARGET}
  if kind not in value or not set(value) <= {kind, *options} or not all(
      isinstance(value.get(option, False), bool) for option in options):
    raise checks.wrong(f'column {name!r}', 'an object of "bounds" or "categories", and '
                       'of "target": true and, with "bounds", "log": true', dict(value))
  content, is_target = value[kind], value.get(_TARGET, False)
  if not isinstance(content, list) or kind == _BOUNDS and len(content) != 2:
    raise checks.wrong(f'column {name!r}: {kind}', 'a list' if kind == _CATEGORIES else
                       '[low, high]', content)
  if kind == _CATEGORIES:
    return Category(name=name, categories=tuple(content), is_target=is_target)
  dates = list(map(records.days, content))
  return Number.of_bounds(
      name, *(content if None in dates else dates), is_log=value.get(_LOG, False),
      kind=records.MEASURE if None in dates else records.DATE, is_target=is_target)


# Name of a column -> its values in public rows, as readers of rows give them.
Sample = Mapping[str, Sequence[Any]]


def read_sample(path: str) -> Sample:
  """Reads public rows: a table in a text file, Parquet or JSON lines.

  Raises ValueError if they are missing or malformed; the message names the file.
  """
  with checks.located(f'public_sample={path}'):
    checks.file(path)
    format_ = open_source.format_of(path, 'public_sample')
    rows = []
    for location, _, record in open_source.whole_rows(format_, path):
      if isinstance(record, ValueError):
        raise ValueError(f'{location}: {record}')
      rows.append(record)
    if not rows:
      raise ValueError('must have rows, found none')
  return {name: [row.get(name) for row in rows] for name in dict.fromkeys(
      name for row in rows for name in row)}


def sampled(sample: Sample, names: Collection[str] | None = None,
            without: Collection[str] = ()) -> dict[str, Column]:
  """The columns of public rows: numbers by mean and deviation, others by their values.

  `names` None are all but indices. A column without a value is left out. Raises
  ValueError if one has infinite values, or too many categories.
  """
  chosen = {name: values for name, values in sample.items() if name not in without and (
      name in names if names is not None else not tables.is_index(name))}
  with checks.located('public_sample'):
    columns = {name: _sampled(name, values) for name, values in chosen.items()}
  return {name: column for name, column in columns.items() if column is not None}


def _sampled(name: str, values: Sequence[Any]) -> Column | None:
  """The column of public values; None if all are missing. Raises ValueError."""
  if infinite := [value for value in values if _INFINITE.fullmatch(str(value))]:
    raise checks.wrong(f'column {name!r}', 'finite', infinite[0])
  # Truth values are categories, whatever a file makes of them.
  if not any(isinstance(value, bool | np.bool_) for value in values):
    for kind in (records.MEASURE, records.DATE):
      with contextlib.suppress(ValueError):
        if not (present := [v for v in _read(name, kind, values) if not math.isnan(v)]):
          return None
        center, scale = float(np.mean(present)), float(np.std(present)) or 1.0
        return Number(name=name, center=center, scale=scale, kind=kind,
                      low=center - _REACH * scale, high=center + _REACH * scale)
  texts = set(_read(name, records.CATEGORY, values)) - {''}
  return Category(name=name, categories=tuple(sorted(texts))) if texts else None


def _read(name: str, kind: str, values: Sequence[Any]) -> list[Any]:
  """Values as they are read from data of a kind. Raises ValueError."""
  # Imports TensorFlow, which takes seconds and settings do not need.
  from tasks.sources import columns as raw_columns  # pylint: disable=g-import-not-at-top
  return list(map(raw_columns.Column(records.Field(name=name, kind=kind)).value, values))


def doubtful(sample: Sample, columns: Iterable[Column]) -> list[str]:
  """The columns that have one value in public rows, or often none that is known.

  Raises ValueError if a value is not of the column's kind.
  """
  names = []
  for column in columns:
    with checks.located('public_sample'):
      values = _read(column.name, column.kind, sample.get(column.name, ()))
    known = [value for value in values if (
        value in column.known if isinstance(column, Category) else value == value)]
    if len(known) < (1 - _MAX_UNKNOWN) * len(values):
      names.append(f'{column.name} ({len(values) - len(known)} of {len(values)} '
                   'missing or unknown)')
    elif len(set(known)) == 1:
      names.append(f'{column.name} (one value)')
  return names


def count(label: Category, sample: Sample) -> list[int]:
  """How often public rows have each class."""
  values = _read(label.name, label.kind, sample[label.name])
  return [values.count(category) for category in label.known]


def balanced(label: Category, frequencies: Sequence[float]) -> Category:
  """The label with weights by frequencies of its classes, which others may know.

  A weight is the inverse of the frequency, at most MAX_RATIO times the smallest one;
  the mean over the frequencies is 1. Negative frequencies, of noise, count as 0; if
  none is positive, all classes have the same weight.
  """
  shares = np.maximum(np.asarray(frequencies, np.float64), 0.0)
  if not shares.any():
    shares = np.ones_like(shares)
  weights = 1 / np.maximum(shares, shares.max() / MAX_RATIO)
  weights *= shares.sum() / np.sum(shares * weights)
  return dataclasses.replace(label, weights=tuple(weights.tolist()))


def choose(known: Mapping[str, Column], *, label_field: str,
           feature_fields: Sequence[str] | None, classes: Sequence[str],
           client_field: str | None, made_from: str) -> Columns:
  """Chooses the columns of a task from public knowledge of columns.

  `feature_fields` None are all known columns except the label, `client_field` and
  further targets; `classes` those of the label, empty for what is known of it;
  `made_from` as in Columns. Raises ValueError if nothing is known of a column.
  """
  if feature_fields is None:
    feature_fields = [name for name, column in known.items()
                      if name not in (label_field, client_field) and not column.is_target]
  if classes:
    known = {**known, label_field: Category(name=label_field, categories=tuple(classes))}
  for name in (*feature_fields, label_field):
    if name not in known:
      raise ValueError(f'column {name!r} has no public bounds, nor a public sample; '
                       f'there are {records.names(known)}')
  return Columns(features=tuple(known[name] for name in feature_fields),
                 label=known[label_field], made_from=made_from)
