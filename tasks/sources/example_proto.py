"""Examples as serialized tf.train.Examples, in Python and in graphs.

Texts are UTF-8 in a bytes_list. Integers are an int64_list, 16- and 32-bit floats a
float_list, in row-major order. What neither can hold (64-bit floats, unsigned
64-bit integers) is its little-endian bytes in a bytes_list.
"""

import dataclasses
import math
from typing import Any, Mapping, Sequence

import numpy as np
import tensorflow as tf

from tasks.sources import records

_AS_INT64 = frozenset(map(np.dtype, (
    'bool', 'int8', 'int16', 'int32', 'int64', 'uint8', 'uint16', 'uint32')))
_AS_FLOAT = frozenset(map(np.dtype, ('float16', 'float32')))
_ONLY_BYTES = frozenset(map(np.dtype, ('float64', 'uint64')))
# TensorFlow decodes no bytes of these, but of integers of the same size.
_SIGNED = {np.dtype(np.uint32): np.dtype(np.int32),
           np.dtype(np.uint64): np.dtype(np.int64)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Feature:
  """How one field is stored.

  Attributes:
    name: Its key in the tf.train.Example.
    dtype: NumPy's type of the values; records.TEXT_DTYPE for texts.
    shape: Of one example; () for texts, and no dimension of 0.
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
    if self.dtype == records.TEXT_DTYPE:
      if self.shape:
        raise ValueError(f'field {self.name!r} must be one text per example')
    elif self.dtype not in _AS_INT64 | _AS_FLOAT | _ONLY_BYTES:
      raise ValueError(f'field {self.name!r} is {self.dtype}, which no file can hold')
    if not all(self.shape):
      raise ValueError(f'field {self.name!r} has nothing in it: its shape is '
                       f'{list(self.shape)}')

  @property
  def kind(self) -> str:
    """Of records.KINDS."""
    if self.dtype == records.TEXT_DTYPE:
      return records.TEXT
    return records.FLOAT if self.dtype.kind == 'f' else records.INTEGER

  def configuration(self, optional: bool) -> tf.io.FixedLenFeature:
    """How TensorFlow parses it."""
    if self.as_bytes or self.dtype == records.TEXT_DTYPE:
      nothing = np.zeros(self.shape, self.dtype).tobytes() if self.as_bytes else ''
      return tf.io.FixedLenFeature([], tf.string, nothing if optional else None)
    dtype = tf.int64 if self.dtype in _AS_INT64 else tf.float32
    return tf.io.FixedLenFeature(
        self.shape, dtype,
        np.zeros(self.shape, dtype.as_numpy_dtype) if optional else None)

  def tensor(self, parsed: tf.Tensor) -> tf.Tensor:
    """[examples, *shape] of the field's own type, from what TensorFlow parsed."""
    if self.dtype == records.TEXT_DTYPE:
      return parsed
    if self.as_bytes:
      # Without `fixed_length`: it would fill up what is too short.
      flat = tf.io.decode_raw(parsed, _SIGNED.get(self.dtype, self.dtype))
      flat = tf.ensure_shape(flat, [None, math.prod(self.shape)])
      found = tf.reshape(flat, [-1, *self.shape])
      return tf.bitcast(found, self.dtype) if self.dtype in _SIGNED else found
    return tf.cast(parsed, self.dtype)

  def put(self, example: tf.train.Example, value: Any) -> None:
    """Stores a value in an example."""
    # Values are added in place: constructing lists first takes twice as long.
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
    else:
      stored.int64_list.value.extend(np.ravel(value).astype(np.int64).tolist())


def features(element_spec: records.ElementSpec, *,
             as_bytes: bool = False) -> list[Feature]:
  """The features that hold examples of an element_spec. Raises ValueError.

  Args:
    element_spec: Of the examples.
    as_bytes: Store lists of numbers as bytes, which TFF's own reader takes for texts.
  """
  return [Feature(name=name, dtype=np.dtype(dtype).newbyteorder('='),
                  shape=tuple(shape), as_bytes=as_bytes and shape != ())
          for name, (dtype, shape) in sorted(element_spec.items())]


def serialize(specs: Sequence[Feature], record: Mapping[str, Any]) -> bytes:
  """One example, of a value for each feature."""
  example = tf.train.Example()
  for spec in specs:
    spec.put(example, record[spec.name])
  return example.SerializeToString(deterministic=True)


def inferred(serialized: bytes) -> list[Feature]:
  """The features of an example of unknown origin; lists of one are scalars.

  Raises:
    ValueError: If it is no tf.train.Example with features, or one of them is
      empty or a list of several texts.
  """
  try:
    example = tf.train.Example.FromString(serialized)
  except Exception as error:  # Of a type that protobuf keeps to itself.
    raise ValueError(f'not a tf.train.Example: {error}') from error
  found = []
  for name, feature in sorted(example.features.feature.items()):
    which = feature.WhichOneof('kind')
    count = len(getattr(feature, which).value) if which else 0
    if not count:
      raise ValueError(f'field {name!r} has nothing in it')
    shape = () if count == 1 else (count,)
    dtype = {'bytes_list': records.TEXT_DTYPE, 'int64_list': np.dtype(np.int64),
             'float_list': np.dtype(np.float32)}[which]
    found.append(Feature(name=name, dtype=dtype, shape=shape))
  if not found:
    raise ValueError('not a tf.train.Example: it has no features')
  return found


class Parser:
  """Parses serialized examples, wherever TensorFlow runs."""

  def __init__(self, chosen: Sequence[tuple[records.Field, Feature]]):
    """Initializes the parser.

    Args:
      chosen: What to read: the raw field and how it is stored.
    """
    self._chosen = tuple(chosen)
    self._configuration = {
        feature.name: feature.configuration(field.optional)
        for field, feature in self._chosen}

  @property
  def element_spec(self) -> records.ElementSpec:
    return {field.name: (feature.dtype, feature.shape)
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
      expected = ', '.join(
          f'{f.name} {list(f.shape)}' if f.shape else f.name for _, f in self._chosen)
      # TF's message goes on over several lines, with the operation's name.
      raise ValueError(f'not an example with {expected}: '
                       f'{" ".join(error.message.split())[:200]}') from error
    found = {}
    for field, feature in self._chosen:
      array = parsed[field.name].numpy()
      if feature.dtype == records.TEXT_DTYPE:
        array = _texts(feature.name, array)
      found[field.name] = array
    return found


def _texts(name: str, array: np.ndarray) -> np.ndarray:
  texts = np.empty(array.shape, records.TEXT_DTYPE)
  for row, content in enumerate(array):
    try:
      texts[row] = content.decode('utf-8')
    except UnicodeDecodeError as error:
      raise ValueError(f'field {name!r} is not UTF-8 text: {error}') from error
  return texts
