"""Columns of a table, as they are publicly known, and their encoding.

A column is standardised by numbers that everybody may know: bounds that the user
states, rows of a public sample, or statistics that were released with noise. Nothing
here is computed from a client's rows.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import json
import math
import os
import pathlib
from typing import Any

import numpy as np

from tasks import checks
from tasks.sources import records

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Number:
  """A column of numbers, encoded as (value - center) / scale.

  Values beyond low < high are cut off there. `center`, between them, is encoded as 0,
  as is a missing value, if imputed. scale > 0.
  """

  name: str
  low: float
  high: float
  center: float
  scale: float

  kind, width = records.MEASURE, 1

  def __post_init__(self):
    if not all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in (
        self.low, self.high, self.center, self.scale)) or not (
            -math.inf < self.low <= self.center <= self.high < math.inf
            and self.low < self.high and 0 < self.scale < math.inf):
      raise ValueError(f'column {self.name!r}: bounds must be finite, the lower first, '
                       f'found [{self.low!r}, {self.high!r}]')

  @classmethod
  def of_bounds(cls, name: str, low: float, high: float) -> 'Number':
    """The column that bounds describe: they are encoded as -1 and 1."""
    try:
      center, scale = low / 2 + high / 2, high / 2 - low / 2
    except TypeError:
      center = scale = math.nan
    return cls(name=name, low=low, high=high, center=center, scale=scale)

  def encode(self, values: np.ndarray, missing: str) -> np.ndarray:
    """Encodes values, NaN where missing: float32 [n, 1]. Raises ValueError."""
    values = values.astype(np.float64)
    gaps = np.isnan(values)
    if missing == ERROR:
      check_complete(self.name, gaps)
    encoded = (np.clip(values, self.low, self.high) - self.center) / self.scale
    return np.where(gaps, 0.0, encoded).astype(np.float32)[:, np.newaxis]

  def target(self, values: np.ndarray) -> np.ndarray:
    """Encodes labels: float32 [n]. Raises ValueError; none is cut off or imputed."""
    values = values.astype(np.float64)
    check_complete(self.name, np.isnan(values))
    outside = (values < self.low) | (values > self.high)
    if np.any(outside):
      row = int(np.argmax(outside))
      raise ValueError(f'label {self.name!r} must be in [{self.low:g}, {self.high:g}], '
                       f'found {values[row]:g} in example {row}')
    return ((values - self.center) / self.scale).astype(np.float32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Category:
  """A column of categories, encoded as ones and zeros.

  Attributes:
    name: Name of the column.
    categories: Texts that differ; an integer in the data counts as its digits.
  """

  name: str
  categories: tuple[str, ...]

  kind = records.CATEGORY

  def __post_init__(self):
    checks.names(f'column {self.name!r}: categories', self.categories, 1)
    if len(self.categories) > _MAX_CATEGORIES:
      raise checks.wrong(f'column {self.name!r}: categories',
                         f'at most {_MAX_CATEGORIES}', len(self.categories))

  @property
  def width(self) -> int:
    return len(self.categories)

  def encode(self, values: np.ndarray, missing: str) -> np.ndarray:
    """Encodes texts, '' where missing: float32 [n, width]. Raises ValueError."""
    if missing == ERROR:
      check_complete(self.name, values == '')
      checks.indices(f'column {self.name!r}', values, self.categories)
    categories = np.array(self.categories, object)
    return (values[:, np.newaxis] == categories).astype(np.float32)

  def target(self, values: np.ndarray) -> np.ndarray:
    """The classes of labels: int32 [n]. Raises ValueError; none is imputed."""
    check_complete(self.name, values == '')
    return checks.indices(
        f'label {self.name!r}', values, self.categories).astype(np.int32)


Column = Number | Category


def check_complete(name: str, gaps: np.ndarray) -> None:
  """Raises ValueError that names the first example with a gap."""
  if np.any(gaps):
    raise ValueError(f'column {name!r} must have a value in every row, found none in '
                     f'example {int(np.argmax(gaps))}')


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


def read(path: str | os.PathLike[str]) -> Columns | dict[str, Column]:
  """Reads public bounds from a JSON file.

  It has, by the name of a column, [low, high] or a list of categories, texts; or what
  `Columns.dumps` wrote, which is complete. Raises ValueError if it is missing or
  malformed; the message names it.
  """
  with checks.located(f'public_bounds={path}', KeyError, TypeError, RecursionError):
    checks.file(path)
    content = json.loads(pathlib.Path(path).read_text(encoding='utf-8'))
    if not isinstance(content, dict) or not content:
      raise ValueError('must be an object of columns')
    if content.get('format') == _FORMAT:
      return Columns(
          features=tuple(map(_column, content['features'])),
          label=_column(content['label']), made_from=content['made_from'])
    return {name: _described(name, value) for name, value in content.items()}


def _column(content: Mapping[str, Any]) -> Column:
  if 'categories' in content:
    return Category(name=content['name'], categories=tuple(content['categories']))
  return Number(**content)


def _described(name: str, value: Any) -> Column:
  if isinstance(value, list) and value and all(isinstance(v, str) for v in value):
    return Category(name=name, categories=tuple(value))
  if isinstance(value, list) and len(value) == 2:
    return Number.of_bounds(name, *value)
  raise checks.wrong(f'column {name!r}', '[low, high], or texts, its categories', value)


def read_sample(path: str | os.PathLike[str]) -> dict[str, Column]:
  """Reads the columns of a public sample, a CSV file with a header or a Parquet file.

  Raises ValueError if it is missing or malformed; the message names it.
  """
  import pandas  # pylint: disable=g-import-not-at-top
  # pandas' errors are of many types.
  with checks.located(f'public_sample={path}', Exception):
    checks.file(path)
    is_parquet = pathlib.Path(path).suffix == '.parquet'
    table = (pandas.read_parquet if is_parquet else pandas.read_csv)(path)
    return sampled({name: table[name].to_numpy() for name in table.columns})


def sampled(table: Mapping[str, np.ndarray]) -> dict[str, Column]:
  """The columns of public rows: numbers by mean and deviation, others by their values.

  From numbers [n], NaN where missing, or texts and truth values [n], None where
  missing. Raises ValueError if a column has fewer than two values, or an infinite one.
  """
  columns = {}
  for name, values in table.items():
    if values.dtype.kind in 'iuf':
      present = values.astype(np.float64)
      present = present[~np.isnan(present)]
      if len(present) < 2 or not np.all(np.isfinite(present)):
        raise ValueError(f'column {name!r} must have at least two finite values')
      center = float(present.mean())
      scale = float(present.std()) or 1.0
      columns[name] = Number(name=name, center=center, scale=scale,
                             low=center - _REACH * scale, high=center + _REACH * scale)
    else:
      texts = {str(value).lower() if isinstance(value, (bool, np.bool_)) else str(value)
               for value in values if value is not None and value == value}
      columns[name] = Category(name=name, categories=tuple(sorted(texts)))
  return columns


def choose(known: Mapping[str, Column], *, label_field: str,
           feature_fields: Sequence[str] | None, classes: Sequence[str],
           client_field: str | None, made_from: str) -> Columns:
  """Chooses the columns of a task from public knowledge of columns.

  `feature_fields` None are all other known columns except `client_field`; `classes`
  those of the label, empty for what is known of it; `made_from` as in Columns. Raises
  ValueError if nothing is known of a column.
  """
  if feature_fields is None:
    feature_fields = [
        name for name in known if name not in (label_field, client_field)]
  if classes:
    known = {**known, label_field: Category(
        name=label_field, categories=tuple(classes))}
  for name in (*feature_fields, label_field):
    if name not in known:
      raise ValueError(f'column {name!r} has no public bounds, nor a public sample')
  return Columns(features=tuple(known[name] for name in feature_fields),
                 label=known[label_field], made_from=made_from)
