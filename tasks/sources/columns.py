"""Columns: the values of one field, of one kind and shape in every record.

Values come as JSON has them: str, int, float, bool, None and lists of these. Text
files whose cells are all text have `parse_cell`.
"""

import dataclasses
import re
from typing import Any, Iterable, Sequence

import numpy as np

from tasks.sources import records

_DTYPES = {
    records.TEXT: records.TEXT_DTYPE,
    records.INTEGER: np.dtype(np.int64),
    records.FLOAT: np.dtype(np.float64),
}
_SEPARATOR = '|'
# No leading zeros: '007' is a name. Neither 'nan' nor 'inf'.
_INTEGER_CELL = re.compile(r'[+-]?(0|[1-9][0-9]*)')
_FLOAT_CELL = re.compile(
    r'[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column:
  """A field whose kind and shape are known. Attributes: see records.Field."""

  name: str
  source_name: str
  kind: str
  shape: tuple[int, ...]
  optional: bool = False

  @property
  def dtype(self) -> np.dtype:
    return _DTYPES[self.kind]

  def value(self, found: Any) -> Any:
    """The value of one record, as this column has it. Raises ValueError."""
    if found is None:
      _check_may_be_null(self.source_name, self.optional)
      return '' if self.kind == records.TEXT else np.zeros(self.shape, self.dtype)
    kind, shape, found = _classify(self.source_name, found)
    if not is_of(kind, self.kind):
      raise ValueError(f'field {self.source_name!r} must be {_article(self.kind)}, '
                       f'found {_article(kind)}: {_short(found)}')
    if shape != self.shape:
      raise ValueError(
          f'field {self.source_name!r} must have the shape {list(self.shape)}, '
          f'found {list(shape)}')
    if kind != self.kind and np.any(np.abs(np.asarray(found, float)) > 2.0**53):
      raise ValueError(f'field {self.source_name!r} must be a float, found an integer '
                       f'too large to be one: {_short(found)}')
    return found

  def array(self, values: Sequence[Any]) -> np.ndarray:
    """Results of `value` as one array [values, *shape]."""
    array = np.empty([len(values), *self.shape], self.dtype)
    for row, value in enumerate(values):
      array[row] = value
    return array


def element_spec(columns: Iterable[Column]) -> records.ElementSpec:
  return {column.name: (column.dtype, column.shape) for column in columns}


class Observed:
  """What is known of a field so far: finds its kind and shape from its values."""

  def __init__(self, field: records.Field):
    self._field = field
    self._found: str | None = None
    self._shape: tuple[int, ...] | None = None

  @property
  def kind(self) -> str | None:
    """Of records.KINDS; None if it may still be any."""
    return self._found or self._field.kind

  @property
  def source_name(self) -> str:
    return self._field.column

  @property
  def optional(self) -> bool:
    return self._field.optional

  def observe(self, found: Any) -> None:
    """Takes the value of one record into account.

    Raises:
      ValueError: If it can't be of the field, or not together with the values
        before; then it is not taken into account.
    """
    name = self._field.column
    if found is None:
      _check_may_be_null(name, self._field.optional)
      return
    kind, shape, found = _classify(name, found)
    if not is_of(kind, self._field.kind):
      raise ValueError(f'field {name!r} must be {_article(self._field.kind)}, found '
                       f'{_article(kind)}: {_short(found)}')
    if records.TEXT in (kind, self._found) and self._found not in (None, kind):
      raise ValueError(f'field {name!r} must be {_article(self._found)}, as before, '
                       f'found {_article(kind)}: {_short(found)}')
    if records.FLOAT in (self._found, self._field.kind):
      kind = records.FLOAT
    if self._shape is not None and shape != self._shape:
      raise ValueError(f'field {name!r} must have the shape {list(self._shape)}, as '
                       f'before, found {list(shape)}')
    self._found, self._shape = kind, shape

  def column(self) -> Column:
    """The column. Raises ValueError if there was no value to tell its kind by."""
    if self.kind in (None, records.NUMBER):
      raise ValueError(f'field {self._field.column!r} has no value in any record')
    return Column(
        name=self._field.name, source_name=self._field.column, kind=self.kind,
        shape=self._shape or (), optional=self._field.optional)


def parse_cell(cell: str, kind: str | None) -> Any:
  """A cell of a text file as a value; kind is what is known of its column.

  Empty cells are None but for texts. Cells of unknown kind are numbers if they look
  like one. Where numbers must be, several with spaces between are a list.
  """
  if kind == records.TEXT:
    return cell
  if not cell:
    return None
  if kind is not None and ' ' in cell:
    return [parse_cell(part, records.NUMBER) for part in cell.split()]
  if _INTEGER_CELL.fullmatch(cell):
    return int(cell)
  if _FLOAT_CELL.fullmatch(cell):
    return float(cell)
  return cell


def is_of(kind: str, wanted: str | None) -> bool:
  """Whether a value of a kind may stand where another is asked for."""
  if wanted == records.NUMBER:
    return kind != records.TEXT
  return wanted in (None, kind) or (
      (kind, wanted) == (records.INTEGER, records.FLOAT))


def _check_may_be_null(name: str, optional: bool) -> None:
  if not optional:
    raise ValueError(f'field {name!r} is missing, null or empty')


def _classify(name: str, found: Any) -> tuple[str, tuple[int, ...], Any]:
  """Kind, shape and value of what a record has."""
  if isinstance(found, str):
    return records.TEXT, (), _text(name, found)
  if isinstance(found, (bool, int)):
    if not -2**63 <= found < 2**63:
      raise ValueError(f'field {name!r} must be a 64-bit integer, found {_short(found)}')
    return records.INTEGER, (), int(found)
  if isinstance(found, float):
    return records.FLOAT, (), found
  if isinstance(found, list):
    if all(isinstance(item, str) for item in found):
      for item in found:
        if _SEPARATOR in item:
          raise ValueError(
              f'field {name!r} has a list of texts that can\'t be joined by '
              f'{_SEPARATOR!r}: {_short(item)} contains it')
      return records.TEXT, (), _text(name, _SEPARATOR.join(found))
    return _classify_numbers(name, found)
  raise ValueError(f'field {name!r} must be a text, a number or a list of one kind, '
                   f'found {type(found).__name__}: {_short(found)}')


def _classify_numbers(name: str, found: list) -> tuple[str, tuple[int, ...], Any]:
  """Of nested lists of numbers."""
  try:
    array = np.array(found)
  except ValueError:  # Ragged.
    array = np.array(None)
  if array.dtype.kind in 'bi' and array.size:
    return records.INTEGER, array.shape, array.astype(np.int64)
  # NumPy makes floats of integers that are too large.
  if array.dtype.kind == 'f' and array.size and any(
      isinstance(item, float) for item in _leaves(found)):
    return records.FLOAT, array.shape, array
  raise ValueError(
      f'field {name!r} must be a list of texts, or of numbers, of lists of one '
      f'length, found {_short(found)}')


def _leaves(value: Any) -> Iterable[Any]:
  if isinstance(value, list):
    for item in value:
      yield from _leaves(item)
  else:
    yield value


def _text(name: str, text: str) -> str:
  if not text.isascii():
    try:
      text.encode('utf-8')
    except UnicodeEncodeError as error:
      raise ValueError(f'field {name!r} is not valid Unicode: {error}') from error
  return text


def _article(kind: str) -> str:
  return {records.TEXT: 'a text', records.INTEGER: 'an integer',
          records.FLOAT: 'a float', records.NUMBER: 'a number'}[kind]


def _short(value: Any) -> str:
  """A value in a message."""
  text = repr(value[:4] if isinstance(value, (list, str)) and len(value) > 40
              else value)
  return text if len(text) <= 60 else text[:57] + '...'


def from_array(field: records.Field, array: np.ndarray) -> np.ndarray:
  """An array of a file as the raw examples have it.

  Args:
    field: Its kind is checked.
    array: [examples, ...] of any type. Numbers keep their type; texts become
      objects.

  Raises:
    ValueError: If the array is of no kind, or of another than the field's.
  """
  name = field.column
  if array.ndim == 0:
    raise ValueError(f'field {name!r} must have one value per example, found a scalar')
  kind = {'b': records.INTEGER, 'i': records.INTEGER, 'u': records.INTEGER,
          'f': records.FLOAT, 'U': records.TEXT}.get(array.dtype.kind)
  if kind is None:
    raise ValueError(f'field {name!r} must be texts or numbers, found {array.dtype}')
  if not is_of(kind, field.kind):
    raise ValueError(f'field {name!r} must be {_article(field.kind)}, found '
                     f'{_article(kind)} ({array.dtype})')
  if kind != records.TEXT:
    return array
  if array.ndim != 1:
    raise ValueError(f'field {name!r} must be one text per example, found the shape '
                     f'{list(array.shape)}')
  return array.astype(records.TEXT_DTYPE)
