"""Makes the EMNIST task's examples of raw images and labels, in Python or in graph.

Both give the same bytes: 'x', uint8 [28, 28] with ink near 255, and 'y', int32.
"""

import math

import numpy as np
import tensorflow as tf

from tasks.sources import records
from tasks import task

SIDE = 28
ELEMENT_SPEC = {
    'x': (np.dtype(np.uint8), (SIDE, SIDE)),
    'y': (np.dtype(np.int32), ()),
}
# Names of the raw fields.
IMAGE, LABEL = 'image', 'label'

_SHAPES = ((SIDE, SIDE), (SIDE * SIDE,), (SIDE, SIDE, 1))


def fields(image_field: str, label_field: str) -> list[records.Field]:
  """The raw fields that the images are made of, by their names in the file."""
  return [
      records.Field(name=IMAGE, source_name=image_field, kind=records.NUMBER),
      records.Field(name=LABEL, source_name=label_field, kind=records.INTEGER)]


def images(source: task.ClientSource, *, num_classes: int,
           dark_ink: bool) -> records.MappedSource:
  """The task's examples of a raw source.

  Args:
    source: Of the fields above. Images are integers in [0, 255] or floats in
      [0, 1], of 28 x 28 or 784 pixels; labels are scalars.
    num_classes: Labels must be below.
    dark_ink: Ink is near 0 and paper near the maximum, as in TFF's EMNIST; else
      the reverse, as in MNIST.

  Raises:
    ValueError: If the source's images have another shape, or its labels are no
      scalars.
  """
  dtype, shape = source.element_spec[IMAGE]
  where = records.where(source, source.client_ids[0])
  if shape not in _SHAPES:
    raise ValueError(f'{where}: images must have the shape [28, 28] or [784], found '
                     f'{list(shape)}')
  if source.element_spec[LABEL][1] != ():
    raise ValueError(f'{where}: labels must be one integer per example, found the '
                     f'shape {list(source.element_spec[LABEL][1])}')
  is_float = dtype.kind == 'f'
  convert = _Conversion(is_float, math.prod(shape), num_classes, dark_ink)
  return records.MappedSource(
      source, convert.arrays, ELEMENT_SPEC, convert_in_graph=convert.tensors)


class _Conversion:
  """The two forms of one conversion."""

  def __init__(self, is_float: bool, size: int, num_classes: int, dark_ink: bool):
    self._is_float, self._size = is_float, size
    self._num_classes, self._dark_ink = num_classes, dark_ink
    self._most = 1 if is_float else 255
    self._pixel_rule = f'{IMAGE}: pixels must be in [0, {self._most}]'
    self._label_rule = f'{LABEL} must be in [0, {num_classes})'

  def _type(self, dtype: np.dtype) -> np.dtype:
    if not self._is_float:
      return np.dtype(np.int64)
    return np.promote_types(dtype, np.float32)

  def arrays(self, raw: records.RawExamples) -> dict[str, np.ndarray]:
    """Of one client. Raises ValueError."""
    # Of types in which 255 and the differences below are exact.
    pixels = raw[IMAGE].astype(self._type(raw[IMAGE].dtype))
    label = raw[LABEL].astype(np.int64)
    # Written so that NaN fails too.
    if not np.all((pixels >= 0) & (pixels <= self._most)):
      bad = ~((pixels >= 0) & (pixels <= self._most))
      raise ValueError(f'{self._pixel_rule}, found {pixels[bad][0]!r} in example '
                       f'{np.argwhere(bad)[0][0]}')
    bad = (label < 0) | (label >= self._num_classes)
    if np.any(bad):
      raise ValueError(f'{self._label_rule}, found {label[bad][0]} in example '
                       f'{np.argmax(bad)}')
    if self._dark_ink:
      pixels = self._most - pixels
    if self._is_float:
      pixels = np.rint(pixels * 255)
    return {'x': pixels.astype(np.uint8).reshape([-1, SIDE, SIDE]),
            'y': label.astype(np.int32)}

  def tensors(self, raw) -> dict[str, tf.Tensor]:
    """The same in a graph. Raises InvalidArgumentError when it is run."""
    pixels = tf.cast(raw[IMAGE], self._type(raw[IMAGE].dtype.as_numpy_dtype))
    label = tf.cast(raw[LABEL], tf.int64)
    good_pixels = tf.reduce_all((pixels >= 0) & (pixels <= self._most))
    good_labels = tf.reduce_all((label >= 0) & (label < self._num_classes))
    with tf.control_dependencies([
        tf.debugging.Assert(good_pixels, [self._pixel_rule]),
        tf.debugging.Assert(good_labels, [self._label_rule])]):
      pixels = tf.identity(pixels)
    if self._dark_ink:
      pixels = self._most - pixels
    if self._is_float:
      pixels = tf.round(pixels * 255)
    return {'x': tf.reshape(tf.cast(pixels, tf.uint8), [-1, SIDE, SIDE]),
            'y': tf.cast(label, tf.int32)}
