"""Data of the tasks that learn from images: whose images train, and which test.

Images of a task have one shape, [height, width] or [height, width, channels]. The
models take batches of the features 'x', uint8 with 255 for the maximum, and 'y', int32
[batch] class numbers.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import math
import os
from typing import Any

import numpy as np
import tensorflow as tf

from tasks import checks, task
from tasks.models import classifiers
from tasks.sources import (
    further, labelled, open_source, partition as partition_lib, records,
    values as values_lib)

# Names of the raw fields.
IMAGE, LABEL = 'image', 'label'

# Names of the image and the label in TFF's EMNIST.
OFFICIAL_FIELDS = ('pixels', 'label')

MAX_CHANNELS = 4

_EMBEDDED_TEST_EXAMPLES = 360

# [height, width] or [height, width, channels]; None for that of the data.
Shape = tuple[int, ...] | None


def element_spec(shape: tuple[int, ...]) -> records.ElementSpec:
  """The features of images of a shape."""
  return {'x': (np.dtype(np.uint8), shape), 'y': (np.dtype(np.int32), ())}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data(task.Task):
  """The task of a source before it has a model; `held_out` is empty until it is loaded.

  Attributes:
    train: All training clients; once loaded, those of the population.
    test: The test part; None if there is none.
    num_classes, class_names: Labels are below, or these texts.
    is_test_unowned: Whether the clients of `test` are not known.
    held_out_fraction: See records.with_held_out.
  """

  name: str = ''
  model: task.Model | None = None
  held_out: Mapping[str, task.Examples] = dataclasses.field(default_factory=dict)
  privacy_unit: str = 'one client of the files'
  test: task.ClientSource | None
  num_classes: int
  class_names: Sequence[str] = ()
  is_test_unowned: bool = False
  held_out_fraction: float | None = None


def with_held_out(data: Data) -> Data:
  """The data with their held-out sets. Raises ValueError on bad data."""
  if not data.is_test_unowned:
    train, held_out = records.with_held_out(
        data.train, data.test, skips=data.skips,
        held_out_fraction=data.held_out_fraction)
    return dataclasses.replace(
        data, train=train, held_out=held_out,
        held_out_of_clients=records.of_population(data.test, train))
  if data.held_out_fraction is not None:
    raise ValueError('held_out_fraction is not used: the data have a test part')
  return dataclasses.replace(data, held_out={'test': records.gather(data.test)[0]})


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageTask:
  """A task of images: its own sources, and those of all such tasks.

  Attributes:
    models: Name -> function from the shape of images and the number of classes to a
      network; 'cnn_small' is the default.
    breakdown: Names of the classes -> attributes of their task.Breakdown.
    own: Name of a source of its own -> function from its options to its data; one that
      takes `partition` also takes the options of `in_memory`.
    shape: Shape of the images; None for that of the data.
    num_classes: Number of classes of files that do not say; None if it must be given.
  """

  name: str
  models: Mapping[str, Callable[..., classifiers.Network]]
  breakdown: Callable[[Sequence[str]], Mapping[str, Any]]
  own: Mapping[str, Callable[..., Data]]
  shape: Shape = None
  num_classes: int | None = None

  @property
  def sources(self) -> tuple[str, ...]:
    """Names of all sources."""
    return tuple(sorted({*self.own, *open_source.FORMATS}))

  def _opener(self, data_source: str) -> Callable[..., Data]:
    """The function from the options of a source to its data."""
    return self.own.get(data_source) or (
        self._npz if data_source == 'npz' else
        functools.partial(self._files, data_source))

  def options(self, data_source: str) -> tuple[str, ...]:
    """Names of the options of a source."""
    names = checks.keywords(self._opener(data_source))[0]
    if data_source not in self.own and data_source != 'npz':
      return (*open_source.options(data_source), *names)
    of_partition = ('num_clients', 'data_seed', *partition_lib.OPTIONS)
    return tuple(dict.fromkeys((*names, *of_partition))) if 'partition' in names else (
        names)

  def open(self, data_source: str | None, options: Mapping[str, Any]) -> Data:
    """Opens a source; None means 'embedded'. Errors are those of `load`."""
    data_source = checks.choice('data_source', data_source, self.sources, 'embedded')
    known = self.options(data_source)
    given = checks.options(f'data_source {data_source}', options, known,
                           {'data_path'}.intersection(known))
    return dataclasses.replace(self._opener(data_source)(**given), name=self.name)

  def build(self, *, model: str | None = None, **data_options: Any) -> task.Task:
    """Builds the task, whose model is for the images' shape and the data's classes.

    `model` is one of the models, None for 'cnn_small'; other options are those of
    `load`. Raises ValueError as `load` does, and on an unknown model or images too
    small for it.
    """
    checks.choice('model', model, self.models, 'cnn_small')
    data = self.load(**data_options)
    served = self._serving(data.train.element_spec['x'][1], data.num_classes, model, {
        **data_options, 'class_names': data.class_names})
    return dataclasses.replace(data, model=served.model, reader=served.reader)

  def serving(self, inputs: task.Spec, weights: task.Weights, *,
              model: str | None = None, **options: Any) -> task.Serving:
    """The trained model of these weights; see registry.serving."""
    return self._serving(inputs['x'][1], len(weights[-1]), model, options)

  def build_model(self, name: str | None, shape: tuple[int, ...], num_classes: int,
                  class_names: Sequence[str] = ()) -> task.Model:
    """Builds a model; classes without names have numbers."""
    name = checks.choice('model', name, self.models, 'cnn_small')
    names = class_names or [str(i) for i in range(num_classes)]
    return self.models[name](shape, num_classes).as_model(self.breakdown(names))

  def _serving(self, shape: tuple[int, ...], num_classes: int, model: str | None,
               recorded: Mapping[str, Any]) -> task.Serving:
    """The trained model for images of a shape; its reader opens further files."""

    def read(*, labelled: bool, in_order: bool | None = None,
             **given: Any) -> task.ClientSource:
      source, options = further.source_of(
          recorded, given, lambda source: further.OF_ARRAYS if source == 'npz' else
          self.options(source))
      if source == 'npz':
        of_arrays = further.reader(shape, np.dtype(np.uint8), num_classes)
        return of_arrays(labelled=labelled, data_source=source, **options)
      if source in self.own:
        data = self.own[source](**options)
      else:
        options['num_classes'] = num_classes
        data = self._files(source, shape, labelled, in_order, **options)
      return further.concatenated([data.train, data.test], data.skips)

    return task.Serving(
        inputs={'x': (np.dtype(np.uint8), shape)}, reader=read, model=self.build_model(
            model, shape, num_classes, recorded.get('class_names') or ()))

  def load(self, *, data_source: str | None = None, **options: Any) -> Data:
    """Loads the data of a source, one of `sources`, by its options; None is 'embedded'.

    Raises ValueError on an unknown source, an option that it does not use, one that it
    needs and lacks, and bad data.
    """
    return with_held_out(self.open(data_source, options))

  def open_raw(self, *, data_source: str | None = None, **options: Any
               ) -> tuple[records.RawData, np.ndarray | None]:
    """Opens what prepare_data writes: the data and their label_counts (see task.Task).

    The fields are 'pixels', uint8 with 255 for the maximum, and 'label', int32; `load`
    reads them back from an SQLite file as they are.
    """
    data = self.open(data_source, options)
    renamed = lambda of_xy: dict(zip(OFFICIAL_FIELDS, map(of_xy.get, 'xy')))
    train, test = (
        source and records.MappedSource(source, renamed, renamed(source.element_spec))
        for source in (data.train, data.test))
    return (records.RawData(train=train, test=test, skips=data.skips), data.label_counts)

  def _npz(self, *, data_path: str | os.PathLike[str], image_field: str = 'x',
           label_field: str = 'y', client_field: str = 'writer',
           num_classes: int | None = None, class_names: Sequence[str] = (),
           partition: str | None = None, held_out_fraction: float | None = None,
           held_out_records: float | None = None, **of_partition: Any) -> Data:
    """Opens an .npz file of images, by client or over simulated clients.

    Fields are names of arrays before _train and _test; see labelled.read. A partition
    divides the examples regardless of whose they are; see `in_memory`.
    """
    names = (image_field, label_field)
    if partition is None:
      names = (*names, client_field)
      for name in of_partition:
        raise ValueError(f'data_source npz does not use {name} without partition')
    elif 'num_clients' not in of_partition:
      raise ValueError('partition needs num_clients')
    parts = labelled.read(
        data_path, names, num_classes=_number_of(class_names, num_classes),
        convert=functools.partial(labelled.images, shape=self.shape))
    data = in_memory(parts, partition=partition, **of_partition)
    train, test = partition_lib.with_part(data.train, data.test, held_out_records)
    return dataclasses.replace(
        data, train=train, test=test, test_of_files=True,
        held_out_fraction=held_out_fraction, class_names=class_names)

  def _files(self, data_source: str, shape: Shape = None, has_labels: bool = True,
             in_order: bool | None = None, *,
             image_field: str | None = None, label_field: str | None = None,
             dark_ink: bool | None = None, num_classes: int | None = None,
             class_names: Sequence[str] = (),
             held_out_fraction: float | None = None, **given: Any) -> Data:
    """Opens files of a format of open_source.

    A shape that is None is that of the task, or of the data. Of characters, ink is near
    0 by default as in LEAF's and TFF's data: for leaf, and for files read in place, of
    floats, that prepare_data did not write.
    """
    num_classes = _number_of(class_names, num_classes) or self.num_classes
    if num_classes is None:
      raise ValueError(f'task {self.name} needs num_classes, or class_names, with '
                       f'{data_source}: labels are private, and not counted')
    checks.integer('num_classes', num_classes, 2, labelled.MAX_CLASSES)
    format_ = open_source.FORMATS[data_source]
    image, label = image_field or format_.image, label_field or format_.label
    raw = further.open_raw(
        data_source, fields=fields(image, label, class_names)[:1 + has_labels],
        in_order=in_order, **given)
    if dark_ink is None:
      dark_ink = self.shape is not None and format_.dark_ink
      if self.shape is not None and format_.reader is None and (
          raw.train.element_spec[IMAGE][0].kind == 'f'):
        if raw.train.is_prepared:
          raise ValueError(f'{given["data_path"]} needs --dark_ink or --nodark_ink')
        dark_ink = True
    train, test = (
        source and images(source, num_classes=num_classes, dark_ink=dark_ink,
                          class_names=class_names, shape=shape or self.shape)
        for source in (raw.train, raw.test))
    if test is not None and test.element_spec != train.element_spec:
      shapes = [list(part.element_spec['x'][1]) for part in (train, test)]
      raise ValueError('test images must have the shape {}, found {}'.format(*shapes))
    return Data(train=train, test=test, skips=raw.skips, num_classes=num_classes,
                class_names=class_names, held_out_fraction=held_out_fraction)


def _number_of(class_names: Sequence[str], num_classes: int | None) -> int | None:
  """The number of classes, of names that must be different and 2 or more, if any."""
  if not class_names:
    return num_classes
  checks.names('class_names', class_names, 2)
  return len(labelled.named_classes(num_classes, class_names))


def in_memory(parts: labelled.Parts, *, partition: str | None,
              num_clients: int | None = None, data_seed: int = 0,
              **of_partition: Any) -> Data:
  """Builds the data of arrays, by client or, with a partition, over simulated ones."""
  train, test, unit, counts = parts.train, parts.test, 'one writer', None
  if partition is not None:
    clients = partition_lib.split(
        train.y, partition=partition, num_clients=num_clients, seed=data_seed,
        **of_partition)
    train = dataclasses.replace(train, clients=clients)
    unit = f'one of {num_clients} simulated clients, not people'
    counts = partition_lib.label_counts(train.y, clients)
  is_test_unowned = test is not None and test.clients is None
  if is_test_unowned:
    test = dataclasses.replace(test, clients=np.full(len(test), 'nobody'))
  train, test = (
      part and records.ArraysByClient({'x': part.x, 'y': part.y}, part.clients)
      for part in (train, test))
  return Data(train=train, test=test, num_classes=parts.num_classes,
              privacy_unit=unit, is_test_unowned=is_test_unowned, warnings=parts.notes,
              label_counts=counts)


def embedded(*, num_clients: int = 200, partition: str = 'dirichlet',
             **of_partition: Any) -> Data:
  """The digits that ship with scikit-learn, 28 x 28, over simulated clients.

  There may be 1 to 1,437 clients. `data_seed` is that of the partition, and not of the
  test set; see partition.split.
  """
  test, train = labelled.framed_digits().divided(_EMBEDDED_TEST_EXAMPLES)
  return in_memory(labelled.Parts(train, test, 10), partition=partition,
                   num_clients=num_clients, **of_partition)


def fields(image_field: str, label_field: str,
           class_names: Sequence[str] = ()) -> list[records.Field]:
  """Raw fields of images and labels that have these names in the file."""
  return [
      records.Field(name=IMAGE, source_name=image_field, kind=records.PIXELS),
      records.Field(name=LABEL, source_name=label_field,
                    kind=records.CATEGORY if class_names else records.INTEGER)]


def images(source: task.ClientSource, *, num_classes: int, dark_ink: bool,
           class_names: Sequence[str] = (), shape: Shape = None
           ) -> records.MappedSource:
  """Converts a raw source of the fields above to the task's examples.

  Images are integers in [0, 255] or floats in [0, 1]. With `dark_ink` ink is near 0 and
  paper near the maximum, as in TFF's EMNIST; else the reverse, as in MNIST. Labels are
  scalars below `num_classes`, or one of the texts `class_names`; without labels, the
  examples have none. `shape` is that of the images, of which a list of all pixels is
  accepted too; None for that of the source. Raises ValueError for images of other
  shapes, or labels that are no scalars.
  """
  dtype, found = source.element_spec[IMAGE]
  where = records.where(source, source.client_ids[0])
  if shape is None:
    if len(found) not in (2, 3) or len(found) == 3 and found[2] > MAX_CHANNELS:
      raise ValueError(f'{where}: images must be [height, width] or [height, width, '
                       f'channels <= {MAX_CHANNELS}], found {list(found)}')
    shape = found
  elif found not in (shape, (math.prod(shape),), (*shape, 1)):
    raise ValueError(f'{where}: images must have the shape {list(shape)} or '
                     f'[{math.prod(shape)}], found {list(found)}')
  spec, has_labels = element_spec(shape), LABEL in source.element_spec
  if not has_labels:
    del spec['y']
  elif source.element_spec[LABEL][1] != ():
    raise ValueError(f'{where}: labels must be one integer per example, found the '
                     f'shape {list(source.element_spec[LABEL][1])}')
  arrays, tensors = _conversions(
      dtype.kind == 'f', num_classes, dark_ink, class_names, shape)
  return records.MappedSource(
      source, arrays, spec,
      convert_in_graph=tensors if has_labels and not class_names else None)


def _conversions(is_float: bool, num_classes: int, dark_ink: bool,
                 class_names: Sequence[str], shape: tuple[int, ...]
                 ) -> tuple[Callable, Callable]:
  """The conversion of examples in Python, and, of integer labels, in a graph."""
  limit = 1 if is_float else 255
  names = list(map(values_lib.category, class_names))  # As labels are read.
  rules = (f'{IMAGE}: pixels must be in [0, {limit}]',
           f'{LABEL} must be in [0, {num_classes})')

  def pixel_type(dtype):
    """A type in which 255 and differences of pixels are exact."""
    return np.promote_types(dtype, np.float32) if is_float else np.dtype(np.int64)

  def good(pixels, labels):
    """Masks of the pixels and labels in range; NaN is not."""
    return (pixels >= 0) & (pixels <= limit), (labels >= 0) & (labels < num_classes)

  def ink(pixels, rounded):
    pixels = limit - pixels if dark_ink else pixels
    return rounded(pixels * 255) if is_float else pixels

  def arrays(raw):
    pixels = raw[IMAGE].astype(pixel_type(raw[IMAGE].dtype))
    labels = raw.get(LABEL, np.zeros(len(pixels), np.int64))
    labels = (checks.indices(LABEL, labels, names) if class_names and LABEL in raw
              else labels.astype(np.int64))
    for values, mask, rule in zip((pixels, labels), good(pixels, labels), rules):
      if not mask.all():
        raise ValueError(f'{rule}, found {values[~mask][0]!r} in example '
                         f'{np.argwhere(~mask)[0][0]}')
    x = ink(pixels, np.rint).astype(np.uint8).reshape([-1, *shape])
    return {'x': x, 'y': labels.astype(np.int32)} if LABEL in raw else {'x': x}

  def tensors(raw):
    pixels = tf.cast(raw[IMAGE], pixel_type(raw[IMAGE].dtype.as_numpy_dtype))
    labels = tf.cast(raw[LABEL], tf.int64)
    with tf.control_dependencies([
        tf.debugging.Assert(tf.reduce_all(mask), [rule])
        for mask, rule in zip(good(pixels, labels), rules)]):
      x = tf.cast(ink(tf.identity(pixels), tf.round), tf.uint8)
    return {'x': tf.reshape(x, [-1, *shape]), 'y': tf.cast(labels, tf.int32)}

  return arrays, tensors
