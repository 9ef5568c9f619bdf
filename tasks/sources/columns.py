"""Columns: the values of one field, of one type and shape in every record.

Values come as JSON has them (str, int, float, bool, None and lists of these), as NumPy
has them, or as cells of text files (`Cell`).
"""

import math
import re
from typing import Any, Iterable

import numpy as np

from tasks.sources import records

_PYTHON = {records.TEXT: records.TEXT_DTYPE, records.INTEGER: np.dtype(np.int64),
           records.FLOAT: np.dtype(np.float64)}
_WORDS = {records.TEXT: 'a text', records.INTEGER: 'an integer',
          records.FLOAT: 'a float', records.NUMBER: 'a number'}
_SEPARATOR = '|'
# No leading zeros: '007' is a name. Neither 'nan' nor 'inf'.
_INTEGER_CELL = re.compile(r'[+-]?(0|[1-9][0-9]*)')
_FLOAT_CELL = re.compile(
    r'[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?')


class Cell(str):
  """A cell of a text file: what it is follows from its text and its column."""


class Again(Exception):
  """What earlier values were taken for was wrong: they must be read again."""


class Column:
  """A field; its first value tells its type and shape, where the field does not.

  Attributes:
    field: See records.Field.
    dtype: NumPy's type of the values; None as long as nothing tells it.
    shape: Of one value; None as long as nothing tells it.
  """

  def __init__(self, field: records.Field):
    self.field = field
    self.dtype: np.dtype | None = _PYTHON.get(field.kind)
    self.shape: tuple[int, ...] | None = None
    self._had_nothing = False

  @property
  def kind(self) -> str | None:
    """Of records.KINDS; None if it may still be any."""
    return self.field.kind if self.dtype is None else kind_of(self.dtype)

  def value(self, found: Any) -> Any:
    """The value of one record, as this column has it.

    Raises:
      ValueError: If it can't be of the field, or not together with those before.
      Again: If those before were taken for another type or shape, which is known
        from now on.
    """
    name = self.field.column
    if isinstance(found, Cell):
      found = _parsed(found, self.kind)
    if found is None:
      if not self.field.optional:
        raise ValueError(f'field {name!r} is missing, null or empty')
      self._had_nothing |= self.shape is None
      return '' if self.kind == records.TEXT else np.zeros(self.shape or (), self.dtype)
    dtype, shape, found = _classify(name, found)
    kind = kind_of(dtype)
    if not is_of(kind, self.field.kind):
      raise ValueError(f'field {name!r} must be {_WORDS[self.field.kind]}, found '
                       f'{_WORDS[kind]}: {_short(found)}')
    if self.shape not in (None, shape):
      raise ValueError(f'field {name!r} must have the shape {list(self.shape)}, as '
                       f'before, found {list(shape)}')
    widened = False
    if self.dtype is None:
      self.dtype = dtype
    elif dtype != self.dtype:
      found, widened = self._as_before(dtype, found)
    again = widened or (self._had_nothing and self.shape is None and shape)
    self.shape = shape
    if again:
      raise Again
    return found

  def _as_before(self, dtype: np.dtype, found: Any) -> tuple[Any, bool]:
    """A value of another type, and whether the column becomes one of floats."""
    name, kinds = self.field.column, {self.kind, kind_of(dtype)}
    if records.TEXT in kinds or not {self.dtype, dtype} <= set(_PYTHON.values()):
      texts = records.TEXT in kinds
      raise ValueError(
          f'field {name!r} must be {_WORDS[self.kind] if texts else self.dtype}, as '
          f'before, found {_WORDS[kind_of(dtype)] if texts else dtype}: '
          f'{_short(found)}')
    if dtype == _PYTHON[records.FLOAT]:
      self.dtype = dtype
      return found, True
    if np.any(np.abs(np.asarray(found, float)) > 2.0**53):
      raise ValueError(f'field {name!r} must be a float, found an integer too large to '
                       f'be one: {_short(found)}')
    return found, False


def kind_of(dtype: np.dtype) -> str:
  """Of records.KINDS."""
  return {'O': records.TEXT, 'f': records.FLOAT}.get(dtype.kind, records.INTEGER)


def is_of(kind: str, wanted: str | None) -> bool:
  """Whether a value of a kind may stand where another is asked for."""
  if wanted == records.NUMBER:
    return kind != records.TEXT
  return wanted in (None, kind) or (
      (kind, wanted) == (records.INTEGER, records.FLOAT))


def _parsed(cell: str, kind: str | None) -> Any:
  """A cell as a value; kind is what is known of its column.

  Empty cells are None but for texts. Cells of unknown kind are numbers if they look
  like one. Where numbers must be, several with spaces between are a list.
  """
  if kind == records.TEXT:
    return str(cell)
  if not cell:
    return None
  if kind is not None and ' ' in cell:
    return [_parsed(part, records.NUMBER) for part in cell.split()]
  if _INTEGER_CELL.fullmatch(cell):
    return int(cell)
  return float(cell) if _FLOAT_CELL.fullmatch(cell) else str(cell)


def _classify(name: str, found: Any) -> tuple[np.dtype, tuple[int, ...], Any]:
  """Type, shape and value of what a record has."""
  if isinstance(found, str):
    return _PYTHON[records.TEXT], (), _text(name, found)
  if isinstance(found, (bool, int)):
    if not -2**63 <= found < 2**63:
      raise ValueError(f'field {name!r} must be a 64-bit integer, found {_short(found)}')
    return _PYTHON[records.INTEGER], (), int(found)
  if isinstance(found, list) and all(isinstance(item, str) for item in found):
    for item in found:
      if _SEPARATOR in item:
        raise ValueError(
            f'field {name!r} has a list of texts that can\'t be joined by '
            f'{_SEPARATOR!r}: {_short(item)} contains it')
    return _PYTHON[records.TEXT], (), _text(name, _SEPARATOR.join(found))
  if type(found) is float and math.isfinite(found):  # pylint: disable=unidiomatic-typecheck
    return _PYTHON[records.FLOAT], (), found
  if isinstance(found, list):
    array = _numbers(name, found)
  elif isinstance(found, (float, np.ndarray, np.generic)):
    array = np.asarray(found)
    if array.dtype.kind not in 'biuf':
      rule = 'one text per example' if array.dtype.kind == 'U' else 'texts or numbers'
      raise ValueError(f'field {name!r} must be {rule}, found {array.dtype} '
                       f'{list(array.shape)}')
  else:
    raise ValueError(f'field {name!r} must be a text, a number or a list of one kind, '
                     f'found {type(found).__name__}: {_short(found)}')
  if array.dtype.kind == 'f' and not np.all(np.isfinite(array)):
    raise ValueError(f'field {name!r} must be finite, found {_short(found)}')
  return array.dtype, array.shape, array


def _numbers(name: str, found: list) -> np.ndarray:
  """Nested lists of numbers as int64 or float64."""
  try:
    array = np.array(found)
  except (ValueError, RecursionError, OverflowError):  # Ragged, or too deep.
    array = np.array(None)
  if array.dtype.kind in 'bi' and array.size:
    return array.astype(np.int64)
  # NumPy makes floats of integers that are too large.
  if array.dtype.kind == 'f' and array.size and any(
      isinstance(item, float) for item in _leaves(found)):
    return array
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


def _short(value: Any) -> str:
  """A value in a message."""
  if isinstance(value, np.ndarray):
    value = value.ravel()[:4].tolist() if value.ndim else value.item()
  if isinstance(value, (list, str)) and len(value) > 40:
    value = value[:4]
  try:
    text = repr(value)
  except RecursionError:
    return 'something nested too deeply'
  return text if len(text) <= 60 else text[:57] + '...'
