"""Examples as serialized tf.train.Examples, in Python and in graphs.

Texts are UTF-8 in a bytes_list. Integers are an int64_list, 16- and 32-bit floats a
float_list, in row-major order. Types that neither can hold (64-bit floats, unsigned
64-bit integers) are their little-endian bytes in a bytes_list.
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
# TensorFlow decodes bytes of signed integers instead of these.
_SIGNED = {np.dtype(np.uint32): np.dtype(np.int32),
           np.dtype(np.uint64): np.dtype(np.int64)}


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
    if self.dtype == records.TEXT_DTYPE:
      if self.shape:
        raise ValueError(f'field {self.name!r} must be one text per example')
    elif self.dtype not in _AS_INT64 | _AS_FLOAT | _ONLY_BYTES:
      raise ValueError(f'field {self.name!r} is {self.dtype}, which no file can hold')
    if not all(self.shape):
      raise ValueError(f'field {self.name!r} has nothing in it: its shape is '
                       f'{list(self.shape)}')

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
    else:
      stored.int64_list.value.extend(np.ravel(value).astype(np.int64).tolist())


def features(element_spec: records.ElementSpec, *,
             as_bytes: bool = False) -> list[Feature]:
  """The features that hold examples of an element_spec. Raises ValueError.

  Args:
    element_spec: Describes the examples.
    as_bytes: Store lists of numbers as bytes, which TFF's own reader takes for texts.
  """
  return [Feature(name=name, dtype=np.dtype(dtype).newbyteorder('='),
                  shape=tuple(shape), as_bytes=as_bytes and shape != ())
          for name, (dtype, shape) in sorted(element_spec.items())]


def serialize(specs: Sequence[Feature], record: Mapping[str, Any]) -> bytes:
  """Serializes one example, of a value for each feature."""
  example = tf.train.Example()
  for spec in specs:
    spec.put(example, record[spec.name])
  return example.SerializeToString(deterministic=True)


def inferred(serialized: bytes) -> list[Feature]:
  """Infers the features of an example of unknown origin; lists of one are scalars.

  Raises:
    ValueError: If it is no tf.train.Example with features, or one of them is
      empty or a list of several texts.
  """
  try:
    example = tf.train.Example.FromString(serialized)
  except Exception as error:  # Its type is private to protobuf.
    raise ValueError(f'not a tf.train.Example: {error}') from error
  result = []
  for name, feature in sorted(example.features.feature.items()):
    which = feature.WhichOneof('kind')
    count = len(getattr(feature, which).value) if which else 0
    if not count:
      raise ValueError(f'field {name!r} has nothing in it')
    shape = () if count == 1 else (count,)
    dtype = {'bytes_list': records.TEXT_DTYPE, 'int64_list': np.dtype(np.int64),
             'float_list': np.dtype(np.float32)}[which]
    result.append(Feature(name=name, dtype=dtype, shape=shape))
  if not result:
    raise ValueError('not a tf.train.Example: it has no features')
  return result


class Parser:
  """Parses serialized examples, wherever TensorFlow runs.

  Attributes:
    element_spec: Describes the parsed examples.
  """

  def __init__(self, chosen: Sequence[tuple[records.Field, Feature]]):
    """Takes the fields to parse, and the way each is stored."""
    self._chosen = tuple(chosen)
    self._configuration = {feature.name: feature.configuration(field.optional)
                           for field, feature in self._chosen}
    self.element_spec: records.ElementSpec = {
        field.name: (feature.dtype, feature.shape) for field, feature in self._chosen}

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
      # TF's message continues over several lines, with the operation's name.
      raise ValueError(f'not an example with {expected}: '
                       f'{" ".join(error.message.split())[:200]}') from error
    arrays = {name: tensor.numpy() for name, tensor in parsed.items()}
    for field, feature in self._chosen:
      if feature.dtype == records.TEXT_DTYPE:
        try:
          arrays[field.name] = np.array(
              [text.decode('utf-8') for text in arrays[field.name]], feature.dtype)
        except UnicodeDecodeError as error:
          raise ValueError(
              f'field {feature.name!r} is not UTF-8 text: {error}') from error
    return arrays
