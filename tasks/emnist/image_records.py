"""Converts raw images and labels to the EMNIST task's examples, in Python or in graph.

Both give the same bytes: 'x', uint8 [28, 28] with ink near 255, and 'y', int32.
"""

import os

import numpy as np
import tensorflow as tf

from tasks import official
from tasks import task
from tasks.sources import records
from tasks.sources import sqlite as source_sqlite

SIDE = 28
ELEMENT_SPEC = {
    'x': (np.dtype(np.uint8), (SIDE, SIDE)),
    'y': (np.dtype(np.int32), ()),
}
# Names of the raw fields.
IMAGE, LABEL = 'image', 'label'

OFFICIAL = official.File(
    what='federated EMNIST', name='emnist_all.sqlite', load='emnist.load_data')
# Names of the image and the label in that file.
OFFICIAL_FIELDS = ('pixels', 'label')

_SHAPES = ((SIDE, SIDE), (SIDE * SIDE,), (SIDE, SIDE, 1))


def fields(image_field: str, label_field: str) -> list[records.Field]:
  """Raw fields of images and labels that have these names in the file."""
  return [
      records.Field(name=IMAGE, source_name=image_field, kind=records.NUMBER),
      records.Field(name=LABEL, source_name=label_field, kind=records.INTEGER)]


def open_official(path: str | os.PathLike[str], part: str, *,
                  only_digits: bool) -> records.MappedSource:
  """Opens one part of TFF's official federated EMNIST, an SQLite file.

  3,400 writers and 62 classes, or 3,383 writers and 10 digits; every writer has
  training and test examples. Images are dark on light: 1 is paper.

  Args:
    path: The decompressed file.
    part: 'train' or 'test'.
    only_digits: Whether to read the 10 digits, or all 62 classes.

  Returns:
    The task's examples.

  Raises:
    ValueError: If the file is missing, corrupted or in another format.
  """
  kind = 'digits_only' if only_digits else 'all'
  source = source_sqlite.SqliteSource(
      path, f'{kind}_{part}', fields=fields(*OFFICIAL_FIELDS))
  return images(source, num_classes=10 if only_digits else 62, dark_ink=True)


def images(source: task.ClientSource, *, num_classes: int,
           dark_ink: bool) -> records.MappedSource:
  """Converts a raw source to the task's examples.

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
  convert = _Conversion(dtype.kind == 'f', num_classes, dark_ink)
  return records.MappedSource(
      source, convert.arrays, ELEMENT_SPEC, convert_in_graph=convert.tensors)


class _Conversion:
  """The two forms of one conversion."""

  def __init__(self, is_float: bool, num_classes: int, dark_ink: bool):
    self._is_float, self._dark_ink = is_float, dark_ink
    self._num_classes = num_classes
    self._max = 1 if is_float else 255
    self._pixel_rule = f'{IMAGE}: pixels must be in [0, {self._max}]'
    self._label_rule = f'{LABEL} must be in [0, {num_classes})'

  def _type(self, dtype: np.dtype) -> np.dtype:
    """A type in which 255 and differences of pixels are exact."""
    return np.promote_types(dtype, np.float32) if self._is_float else np.dtype(np.int64)

  def _good(self, pixels, labels):
    """Masks of the pixels and labels in range; NaN is not."""
    return ((pixels >= 0) & (pixels <= self._max),
            (labels >= 0) & (labels < self._num_classes))

  def _ink(self, pixels, rounded):
    if self._dark_ink:
      pixels = self._max - pixels
    return rounded(pixels * 255) if self._is_float else pixels

  def arrays(self, raw: records.RawExamples) -> dict[str, np.ndarray]:
    """Converts the examples of one client. Raises ValueError."""
    pixels = raw[IMAGE].astype(self._type(raw[IMAGE].dtype))
    labels = raw[LABEL].astype(np.int64)
    good_pixels, good_labels = self._good(pixels, labels)
    if not good_pixels.all():
      bad = ~good_pixels
      raise ValueError(f'{self._pixel_rule}, found {pixels[bad][0]!r} in example '
                       f'{np.argwhere(bad)[0][0]}')
    if not good_labels.all():
      raise ValueError(f'{self._label_rule}, found {labels[~good_labels][0]} in '
                       f'example {np.argmin(good_labels)}')
    x = self._ink(pixels, np.rint).astype(np.uint8)
    return {'x': x.reshape([-1, SIDE, SIDE]), 'y': labels.astype(np.int32)}

  def tensors(self, raw) -> dict[str, tf.Tensor]:
    """Converts in a graph. Raises InvalidArgumentError when it is run."""
    pixels = tf.cast(raw[IMAGE], self._type(raw[IMAGE].dtype.as_numpy_dtype))
    labels = tf.cast(raw[LABEL], tf.int64)
    with tf.control_dependencies([
        tf.debugging.Assert(tf.reduce_all(good), [rule]) for good, rule in zip(
            self._good(pixels, labels), (self._pixel_rule, self._label_rule))]):
      x = tf.cast(self._ink(tf.identity(pixels), tf.round), tf.uint8)
    return {'x': tf.reshape(x, [-1, SIDE, SIDE]), 'y': tf.cast(labels, tf.int32)}
