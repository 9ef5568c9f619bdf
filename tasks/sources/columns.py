"""Columns: the values of one field, of one type and shape in every record.

Values come as JSON has them (str, int, float, bool, None and lists of these), as NumPy
has them, or as cells of text files (`Cell`).
"""

import math
import re
from typing import Any

import numpy as np

from tasks.sources import records

_PYTHON = {records.TEXT: records.TEXT_DTYPE, records.INTEGER: np.dtype(np.int64),
           records.FLOAT: np.dtype(np.float64)}
_PHRASES = {records.TEXT: 'a text', records.INTEGER: 'an integer',
            records.FLOAT: 'a float', records.NUMBER: 'a number'}
_SEPARATOR = '|'
# No leading zeros: '007' is a name. Neither 'nan' nor 'inf'.
_INTEGER_CELL = re.compile(r'[+-]?(0|[1-9][0-9]*)')
_FLOAT_CELL = re.compile(
    r'[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?')


class Cell(str):
  """A cell of a text file: its text and its column decide its type."""


class Again(Exception):
  """Earlier values were taken for another type or shape: they must be read again."""


class Column:
  """A field; its first value decides type and shape where the field does not.

  Attributes:
    field: See records.Field.
    dtype: NumPy's type of the values; None while it is not known.
    shape: The shape of one value; None while it is not known.
  """

  def __init__(self, field: records.Field):
    self.field = field
    self.dtype: np.dtype | None = _PYTHON.get(field.kind)
    self.shape: tuple[int, ...] | None = None
    self._had_nothing = False

  @property
  def kind(self) -> str | None:
    """One of records.KINDS; None if it may still be any."""
    return self.field.kind if self.dtype is None else kind_of(self.dtype)

  def value(self, given: Any) -> Any:
    """Converts the value of one record to the column's type.

    Raises:
      ValueError: If it can't be of the field, or not together with those before.
      Again: If those before were taken for another type or shape, which is known
        from now on.
    """
    name = self.field.column
    if isinstance(given, Cell):
      given = _parsed(given, self.kind)
    if given is None:
      if not self.field.optional:
        raise ValueError(f'field {name!r} is missing, null or empty')
      self._had_nothing |= self.shape is None
      return '' if self.kind == records.TEXT else np.zeros(self.shape or (), self.dtype)
    dtype, shape, value = _classify(name, given)
    kind = kind_of(dtype)
    if not is_of(kind, self.field.kind):
      raise ValueError(f'field {name!r} must be {_PHRASES[self.field.kind]}, found '
                       f'{_PHRASES[kind]}: {_short(value)}')
    if self.shape not in (None, shape):
      raise ValueError(f'field {name!r} must have the shape {list(self.shape)}, as '
                       f'before, found {list(shape)}')
    again = self._had_nothing and self.shape is None and shape
    if self.dtype is None:
      self.dtype = dtype
    elif dtype != self.dtype:
      self._check_type(dtype, value)
      if kind == records.FLOAT:
        self.dtype, again = dtype, True
    self.shape = shape
    if again:
      raise Again
    return value

  def _check_type(self, dtype: np.dtype, value: Any) -> None:
    """Raises ValueError unless a value of another type can be in the column."""
    name, kind = self.field.column, kind_of(dtype)
    is_text = records.TEXT in (self.kind, kind)
    if is_text or not {self.dtype, dtype} <= set(_PYTHON.values()):
      before, now = (_PHRASES[self.kind], _PHRASES[kind]) if is_text else (
          self.dtype, dtype)
      raise ValueError(f'field {name!r} must be {before}, as before, found {now}: '
                       f'{_short(value)}')
    if kind == records.INTEGER and np.any(np.abs(np.asarray(value, float)) > 2.0**53):
      raise ValueError(f'field {name!r} must be a float, found an integer too large to '
                       f'be one: {_short(value)}')


def kind_of(dtype: np.dtype) -> str:
  """One of records.KINDS."""
  return {'O': records.TEXT, 'f': records.FLOAT}.get(dtype.kind, records.INTEGER)


def is_of(kind: str, wanted: str | None) -> bool:
  """Whether a value of a kind is accepted where another is wanted."""
  if wanted == records.NUMBER:
    return kind != records.TEXT
  return wanted in (None, kind) or (
      (kind, wanted) == (records.INTEGER, records.FLOAT))


def _parsed(cell: str, kind: str | None) -> Any:
  """Parses a cell of a column of a kind, which may be unknown.

  Empty cells are None except for texts. Cells of unknown kind are numbers if they look
  like one. Where numbers are expected, several with spaces between are a list.
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


def _classify(name: str, given: Any) -> tuple[np.dtype, tuple[int, ...], Any]:
  """Type, shape and value of the entry of a record."""
  if isinstance(given, list) and all(isinstance(item, str) for item in given):
    for item in given:
      if _SEPARATOR in item:
        raise ValueError(
            f'field {name!r} has a list of texts that can\'t be joined by '
            f'{_SEPARATOR!r}: {_short(item)} contains it')
    given = _SEPARATOR.join(given)
  if isinstance(given, str):
    try:
      given.encode('utf-8')
    except UnicodeEncodeError as error:
      raise ValueError(f'field {name!r} is not valid Unicode: {error}') from error
    return _PYTHON[records.TEXT], (), given
  if isinstance(given, (bool, int)):
    if not -2**63 <= given < 2**63:
      raise ValueError(
          f'field {name!r} must be a 64-bit integer, found {_short(given)}')
    return _PYTHON[records.INTEGER], (), int(given)
  if type(given) is float and math.isfinite(given):  # pylint: disable=unidiomatic-typecheck
    return _PYTHON[records.FLOAT], (), given
  if isinstance(given, list):
    array = _numbers(name, given)
  elif isinstance(given, (float, np.ndarray, np.generic)):
    array = np.asarray(given)
    if array.dtype.kind not in 'biuf':
      rule = 'one text per example' if array.dtype.kind == 'U' else 'texts or numbers'
      raise ValueError(f'field {name!r} must be {rule}, found {array.dtype} '
                       f'{list(array.shape)}')
  else:
    raise ValueError(f'field {name!r} must be a text, a number or a list of one kind, '
                     f'found {type(given).__name__}: {_short(given)}')
  if array.dtype.kind == 'f' and not np.all(np.isfinite(array)):
    raise ValueError(f'field {name!r} must be finite, found {_short(given)}')
  return array.dtype, array.shape, array


def _numbers(name: str, given: list) -> np.ndarray:
  """Nested lists of numbers as int64 or float64."""
  try:
    array = np.array(given)
  except (ValueError, RecursionError, OverflowError):  # Ragged, or too deep.
    array = np.array(None)
  if array.dtype.kind in 'bi' and array.size:
    return array.astype(np.int64)
  # NumPy turns integers that are too large into floats.
  if array.dtype.kind == 'f' and array.size and (
      np.abs(array).max() < 2.0**63 or
      any(isinstance(item, float) for item in np.array(given, object).flat)):
    return array
  raise ValueError(
      f'field {name!r} must be a list of texts, or of numbers, of lists of one '
      f'length, found {_short(given)}')


def _short(value: Any) -> str:
  """A value as it is shown in a message."""
  if isinstance(value, np.ndarray):
    value = value.ravel()[:4].tolist() if value.ndim else value.item()
  if isinstance(value, (list, str)) and len(value) > 40:
    value = value[:4]
  try:
    text = repr(value)
  except RecursionError:
    return 'something nested too deeply'
  return text if len(text) <= 60 else text[:57] + '...'
