"""Columns: the values of one field, of one type and shape in every record.

Values come as JSON has them (str, int, float, bool, None and lists of these), as NumPy
has them, or as cells of text files (`rows.Cell`). They are stored as serialized
tf.train.Examples: texts are UTF-8 in a bytes_list; integers are an int64_list, 16- and
32-bit floats a float_list, in row-major order. Types that neither can hold (64-bit
floats, unsigned 64-bit integers) are their little-endian bytes in a bytes_list.
"""

import dataclasses
import decimal
import math
import re
import reprlib
from typing import Any, Mapping, Sequence

import numpy as np
import tensorflow as tf

from tasks import checks
from tasks.sources import records, rows, values as values_lib

_PYTHON = {records.TEXT: records.TEXT_DTYPE, records.INTEGER: np.dtype(np.int64),
           records.FLOAT: np.dtype(np.float64), records.CATEGORY: records.TEXT_DTYPE,
           records.MEASURE: np.dtype(np.float64), records.DATE: np.dtype(np.float64)}
_GAPS = {records.CATEGORY: '', records.MEASURE: math.nan, records.DATE: math.nan}
_PHRASES = {records.TEXT: 'a text', records.INTEGER: 'an integer',
            records.FLOAT: 'a float', records.NUMBER: 'a number',
            records.CATEGORY: 'a text or an integer', records.MEASURE: 'a number',
            records.PIXELS: 'numbers', records.DATE: 'a date such as 2024-03-01'}
# The kinds of values that a field accepts.
_ACCEPTED = {
    None: (records.TEXT, records.INTEGER, records.FLOAT), records.TEXT: (records.TEXT,),
    records.INTEGER: (records.INTEGER,),
    records.CATEGORY: (records.TEXT, records.INTEGER),
    **dict.fromkeys((records.FLOAT, records.NUMBER, records.PIXELS, records.MEASURE),
                    (records.INTEGER, records.FLOAT)),
    records.DATE: (records.FLOAT,)}
_SEPARATOR = '|'
_NUMBERS = re.compile(r'[-+0-9., eE]+')
# No leading zeros: '007' is a name. Neither 'nan' nor 'inf'.
_INTEGER_CELL = re.compile(r'[+-]?(0|[1-9][0-9]*)')
_FLOAT_CELL = re.compile(r'[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?')

_AS_INT64 = frozenset(map(np.dtype, (
    'bool', 'int8', 'int16', 'int32', 'int64', 'uint8', 'uint16', 'uint32')))
_AS_FLOAT = frozenset(map(np.dtype, ('float16', 'float32')))
_ONLY_BYTES = frozenset(map(np.dtype, ('float64', 'uint64')))
# TensorFlow decodes bytes of signed integers instead of these.
_SIGNED = {np.dtype(np.uint32): np.dtype(np.int32),
           np.dtype(np.uint64): np.dtype(np.int64)}


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
    self.shape: tuple[int, ...] | None = () if field.kind in _GAPS else None
    self._had_nothing = False
    self._marks: set[str] = set()

  @property
  def kind(self) -> str | None:
    """One of records.KINDS; None if it may still be any."""
    return self.field.kind if self.dtype is None else _kind_of(self.dtype)

  def value_in(self, record: Mapping[str, Any]) -> Any:
    """Converts the column's value in a record; errors as `value`, or no such field."""
    if (name := self.field.column) not in record and not self.field.optional:
      raise records.no_field(name, record)
    return self.value(record.get(name))

  def value(self, given: Any) -> Any:
    """Converts the value of one record to the column's type.

    Raises ValueError if it can't be of the field, or not together with those before;
    Again if those before were taken for another type or shape, which is known from now
    on.
    """
    value, field = self._converted(given), self.field
    if field.complete or field.choices or field.bounds is not None:
      field.check(value)
    return value

  def _converted(self, given: Any) -> Any:
    """The value of a record in the column's type; raises as `value`."""
    name = self.field.column
    if isinstance(given, rows.Cell):
      given = self._of_cell(given)
    if self.field.kind in _GAPS:
      if (given := _of_table(given, self.field.kind)) is None:
        return _GAPS[self.field.kind]
    if given is None:
      if not self.field.optional:
        raise ValueError(f'field {name!r} is missing, null or empty')
      self._had_nothing |= self.shape is None
      return '' if self.kind == records.TEXT else np.zeros(self.shape or (), self.dtype)
    dtype, shape, value = _classify(name, given)
    if (kind := _kind_of(dtype)) not in _ACCEPTED[self.field.kind]:
      rule, shown = _PHRASES[self.field.kind], f'{_PHRASES[kind]}: {_short(value)}'
      raise checks.wrong(f'field {name!r}', rule, shown)
    if self.shape not in (None, shape):
      raise checks.wrong(f'field {name!r}', f'of the shape {list(self.shape)}', list(shape))
    again = self._had_nothing and self.shape is None and shape
    self.shape = shape
    if self.dtype is None:
      self.dtype = dtype
      if self.field.kind == records.PIXELS:  # Else one client would scale all others.
        self.field = dataclasses.replace(self.field, kind=kind)
    elif dtype != self.dtype:
      self._check_type(dtype, value)
      if kind == records.FLOAT:
        self.dtype, again = dtype, True
    if again:
      raise Again
    return value

  def _of_cell(self, cell: rows.Cell) -> Any:
    """The value of a cell of a text file. Raises ValueError."""
    if (kind := self.field.kind) in (records.CATEGORY, records.DATE):
      return str(cell)
    if isinstance(cell, rows.CommaCell) and self.kind != records.TEXT:
      # '1.234' is a thousand or so where '1,5' is one and a half.
      marks = {mark for mark in '.,' if mark in cell and _NUMBERS.fullmatch(cell)}
      self._marks = self._marks | marks
      if len(self._marks) > 1:
        rule = 'numbers with one decimal mark, a comma or a point'
        raise checks.wrong(f'field {self.field.column!r}', rule, repr(str(cell)))
      if marks:
        cell = cell.replace(',', '.')
    return _parsed(cell.strip() if kind == records.MEASURE else cell, self.kind)

  def feature(self, as_bytes: bool) -> 'Feature':
    """The way the column is stored; shape and type are known. Raises ValueError.

    Args:
      as_bytes: Store lists of numbers as bytes, which TFF's own reader takes for texts.
    """
    return Feature(name=self.field.column, dtype=self.dtype.newbyteorder('='),
                   shape=self.shape or (), as_bytes=as_bytes and bool(self.shape))

  def _check_type(self, dtype: np.dtype, value: Any) -> None:
    """Raises ValueError unless a value of another type can be in the column."""
    name, kind = self.field.column, _kind_of(dtype)
    is_text = records.TEXT in (self.kind, kind)
    if is_text or not {self.dtype, dtype} <= set(_PYTHON.values()):
      before, now = (_PHRASES[self.kind], _PHRASES[kind]) if is_text else (
          self.dtype, dtype)
      raise checks.wrong(f'field {name!r}', f'{before}, as before', f'{now}: {_short(value)}')
    if kind == records.INTEGER and np.any(np.abs(np.asarray(value, float)) > 2.0**53):
      raise ValueError(f'field {name!r} must be exact floats, found {_short(value)}')


def _kind_of(dtype: np.dtype) -> str:
  """One of records.KINDS."""
  return {'O': records.TEXT, 'f': records.FLOAT}.get(dtype.kind, records.INTEGER)


def _of_table(given: Any, kind: str) -> Any:
  """The value of a category or measure as a text or a number; None for a gap."""
  if isinstance(given, np.generic) and not isinstance(given, np.datetime64):
    given = given.item()
  if given is None or isinstance(given, str) and (
      given in values_lib.GAPS if kind != records.CATEGORY else not given) or (
          isinstance(given, (float, decimal.Decimal)) and math.isnan(given)):
    return None
  if kind == records.DATE:
    # A value that is no date is not of the column's kind.
    found = records.days(given)
    return str(given) if found is None else found
  if kind == records.CATEGORY and isinstance(
      given, (bool, int, float, decimal.Decimal, str)):
    return values_lib.category(given)
  return float(given) if isinstance(given, decimal.Decimal) else given


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
        rule = f'texts without {_SEPARATOR!r}'
        raise checks.wrong(f'field {name!r}', rule, _short(item))
    given = _SEPARATOR.join(given)
  if isinstance(given, str):
    try:
      given.encode('utf-8')
    except UnicodeEncodeError as error:
      raise ValueError(f'field {name!r} is not valid Unicode: {error}') from error
    return _PYTHON[records.TEXT], (), given
  if isinstance(given, (bool, int)):
    if not -2**63 <= given < 2**63:
      raise checks.wrong(f'field {name!r}', 'a 64-bit integer', _short(given))
    return _PYTHON[records.INTEGER], (), int(given)
  if type(given) is float and math.isfinite(given):  # pylint: disable=unidiomatic-typecheck
    return _PYTHON[records.FLOAT], (), given
  if isinstance(given, list):
    array = _numbers(name, given)
  elif isinstance(given, (float, np.ndarray, np.generic)):
    array = np.asarray(given)
    if array.dtype.kind not in 'biuf':
      rule = 'one text per example' if array.dtype.kind == 'U' else 'texts or numbers'
      raise checks.wrong(f'field {name!r}', rule, array)
  else:
    shown = f'{type(given).__name__}: {_short(given)}'
    raise checks.wrong(f'field {name!r}', 'a text, a number or a list', shown)
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
  raise checks.wrong(f'field {name!r}', 'a list of texts or numbers', _short(given))


def _short(value: Any) -> str:
  """A value as it is shown in a message."""
  if isinstance(value, np.ndarray):
    value = value.ravel()[:7].tolist() if value.ndim else value.item()
  return reprlib.repr(value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Feature:
  """The way one field is stored.

  Attributes:
    name: Its key in the tf.train.Example.
    dtype: NumPy's type of the values; records.TEXT_DTYPE for texts.
    shape: The shape of one example; () for texts, and no dimension of 0.
    as_bytes: Whether numbers are stored as their bytes, which takes a fraction of the
      time of lists; those that a list can't hold always are.
  """

  name: str
  dtype: np.dtype
  shape: tuple[int, ...]
  as_bytes: bool = False

  def __post_init__(self):
    if self.dtype in _ONLY_BYTES:
      object.__setattr__(self, 'as_bytes', True)
    if self.dtype == records.TEXT_DTYPE and self.shape:
      raise ValueError(f'field {self.name!r} must be one text per example')
    if self.dtype not in _AS_INT64 | _AS_FLOAT | _ONLY_BYTES | {records.TEXT_DTYPE}:
      raise ValueError(f'field {self.name!r} is {self.dtype}, which no file can hold')
    if not all(self.shape):
      raise ValueError(f'field {self.name!r} is empty, of the shape {self.shape}')

  def __str__(self) -> str:
    return f'{self.name!r} {self.dtype} {list(self.shape)}'

  def configuration(self, optional: bool) -> tf.io.FixedLenFeature:
    """TensorFlow's configuration for parsing it."""
    if self.as_bytes or self.dtype == records.TEXT_DTYPE:
      shape, dtype = [], tf.string
      default = np.zeros(self.shape, self.dtype).tobytes() if self.as_bytes else ''
    else:
      shape, dtype = self.shape, tf.int64 if self.dtype in _AS_INT64 else tf.float32
      default = np.zeros(shape, dtype.as_numpy_dtype)
    return tf.io.FixedLenFeature(shape, dtype, default if optional else None)

  def tensor(self, parsed: tf.Tensor) -> tf.Tensor:
    """[examples, *shape] of the field's own type, from the parsed tensor."""
    if self.dtype == records.TEXT_DTYPE:
      return parsed
    if self.as_bytes:
      # Without `fixed_length`, which would pad short values.
      flat = tf.io.decode_raw(parsed, _SIGNED.get(self.dtype, self.dtype))
      flat = tf.ensure_shape(flat, [None, math.prod(self.shape)])
      values = tf.reshape(flat, [-1, *self.shape])
      return tf.bitcast(values, self.dtype) if self.dtype in _SIGNED else values
    return tf.cast(parsed, self.dtype)

  def put(self, example: tf.train.Example, value: Any) -> None:
    """Stores a value in an example."""
    # Values are added in place: new lists would take twice as long.
    stored = example.features.feature[self.name]
    if self.dtype == records.TEXT_DTYPE:
      stored.bytes_list.value.append(value.encode('utf-8'))
    elif self.as_bytes:
      array = np.asarray(value, self.dtype.newbyteorder('<'))
      stored.bytes_list.value.append(array.tobytes())
    elif self.dtype in _AS_FLOAT:
      stored.float_list.value.extend(np.ravel(value).tolist())
    elif isinstance(value, int):
      stored.int64_list.value.append(value)
    else:  # Truth values become integers.
      stored.int64_list.value.extend(np.ravel(value).astype(np.int64).tolist())


def serialize(specs: Sequence[Feature], record: Mapping[str, Any]) -> bytes:
  """Serializes one example, of a value for each feature."""
  example = tf.train.Example()
  for spec in specs:
    spec.put(example, record[spec.name])
  return example.SerializeToString(deterministic=True)


def inferred(serialized: bytes) -> list[Feature]:
  """Infers the features of an example of unknown origin; lists of one are scalars.

  Raises ValueError if it is no tf.train.Example with features, or one of them is empty
  or a list of several texts.
  """
  try:
    example = tf.train.Example.FromString(serialized)
  except Exception as error:  # Its type is private to protobuf.
    raise ValueError(f'not a tf.train.Example: {error}') from error
  if not example.features.feature:
    raise ValueError('not a tf.train.Example: it has no features')
  result = []
  for name, feature in sorted(example.features.feature.items()):
    which = feature.WhichOneof('kind') or 'bytes_list'
    count = len(getattr(feature, which).value)
    dtype = {'bytes_list': records.TEXT_DTYPE, 'int64_list': np.dtype(np.int64),
             'float_list': np.dtype(np.float32)}[which]
    result.append(Feature(name=name, dtype=dtype, shape=() if count == 1 else (count,)))
  return result


class Parser:
  """Parses serialized examples, wherever TensorFlow runs."""

  def __init__(self, stored: Sequence[Feature], fields: records.Fields):
    """Takes what is stored, and the fields to parse; None parses all.

    Raises ValueError if a field is not stored, or is of another kind.
    """
    by_name = {feature.name: feature for feature in stored}
    self._chosen: list[tuple[records.Field, Feature]] = []
    if fields is None:
      fields = [records.Field(name=name) for name in by_name]
    for field in fields:
      if (feature := by_name.get(field.column)) is None:
        if not field.optional:
          raise records.no_field(field.column, by_name)
        dtype = np.dtype(np.float32) if field.kind == records.FLOAT else (
            _PYTHON[field.kind])
        feature = Feature(name=field.column, shape=(), dtype=dtype)
      elif (kind := _kind_of(feature.dtype)) not in _ACCEPTED[field.kind]:
        raise ValueError(f'field {field.column!r} must be {field.kind}, found {kind}')
      self._chosen.append((field, feature))
    self._configuration = {feature.name: feature.configuration(field.optional)
                           for field, feature in self._chosen}
    self.element_spec: records.ElementSpec = {
        field.name: (records.TEXT_DTYPE if field.kind == records.CATEGORY else
                     feature.dtype, feature.shape)
        for field, feature in self._chosen}

  def tensors(self, serialized: tf.Tensor) -> dict[str, tf.Tensor]:
    """String [examples] -> name of a field -> its tensor; pure TensorFlow."""
    parsed = tf.io.parse_example(serialized, self._configuration)
    return {field.name: feature.tensor(parsed[feature.name])
            for field, feature in self._chosen}

  def arrays(self, serialized: Sequence[bytes]) -> dict[str, np.ndarray]:
    """The same as arrays, texts as str. Raises ValueError."""
    try:
      parsed = self.tensors(tf.constant(serialized, tf.string))
    except tf.errors.InvalidArgumentError as error:
      expected = ', '.join(str(feature) for _, feature in self._chosen)
      # TF's message continues over several lines, with the operation's name.
      message = f'not an example with {expected}: {checks.one_line(error)}'
      raise ValueError(message) from error
    arrays = {name: tensor.numpy() for name, tensor in parsed.items()}
    for field, feature in self._chosen:
      if feature.dtype == records.TEXT_DTYPE:
        with checks.located(f'field {feature.name!r}'):
          arrays[field.name] = np.array(
              list(map(rows.decoded, arrays[field.name])), feature.dtype)
      if field.kind == records.CATEGORY:  # A file of others may have any form.
        arrays[field.name] = np.array(
            list(map(values_lib.category, arrays[field.name].tolist())), object)
    return arrays
