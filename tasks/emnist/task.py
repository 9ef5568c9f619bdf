"""Task: read a handwritten character from a 28 x 28 image (EMNIST).

One client is one writer. The models take batches of the features 'x', uint8
[batch, 28, 28] with ink near 255, and 'y', int32 [batch] class numbers.
"""

import dataclasses
import functools
import os
import string
from typing import Any, Callable, Mapping

import numpy as np
import tensorflow as tf

from tasks import checks
from tasks import official
from tasks import task
from tasks.models import classifiers
from tasks.models import layers
from tasks.sources import labelled
from tasks.sources import open_source
from tasks.sources import partition as partition_lib
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

# The embedded data are split by this seed whatever the clients, so that
# accuracies of different populations are of the same examples.
_SPLIT_SEED = 20230817
_EMBEDDED_TEST_EXAMPLES = 360

# Names of the image and the label in files of each format, where none are given;
# OFFICIAL_FIELDS in others.
_FIELDS = {'folder': ('image', 'label'), 'leaf': ('x', 'y')}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data(task.Task):
  """The task of a source before it has a model; `held_out` is empty until it is loaded.

  Features are 'x', uint8 [28, 28], and 'y', int32.

  Attributes:
    train: All training clients; once loaded, those of the population.
    test: The test part; None if there is none.
    num_classes: Labels are below.
    is_test_unowned: Whether the clients of `test` are not known.
    held_out_fraction: See records.with_held_out.
  """

  name: str = 'emnist'
  model: task.Model | None = None
  held_out: Mapping[str, task.Examples] = dataclasses.field(default_factory=dict)
  privacy_unit: str = 'one client of the files'
  test: task.ClientSource | None
  num_classes: int
  is_test_unowned: bool = False
  held_out_fraction: float | None = None


def load(*, data_source: str | None = None, **options: Any) -> Data:
  """Loads data from a source.

  Args:
    data_source: One of SOURCES; None means 'embedded'.
    **options: The keyword arguments of that source's function below.

  Raises:
    ValueError: On an unknown source, an option that it does not use, one that
      it needs and lacks, and bad data.
  """
  data = _open(data_source, options)
  if data.is_test_unowned:
    train, held_out = data.train, {'test': records.gather(data.test)[0]}
    if data.held_out_fraction is not None:
      raise ValueError('held_out_fraction is not used: the data have a test part')
  else:
    train, held_out = records.with_held_out(
        data.train, data.test, skips=data.skips,
        held_out_fraction=data.held_out_fraction)
  return dataclasses.replace(data, train=train, held_out=held_out)


def open_raw(*, data_source: str | None = None,
             **options: Any) -> tuple[records.RawData, np.ndarray | None]:
  """Opens what prepare_data writes: the data and their label_counts (see task.Task).

  The fields are 'pixels', uint8 [28, 28] with ink near 255, and 'label', int32;
  `load` reads them back from an SQLite file as they are.
  """
  data = _open(data_source, options)
  names = dict(zip('xy', OFFICIAL_FIELDS))
  train, test = (
      None if source is None else records.MappedSource(
          source, lambda examples: {names[key]: examples[key] for key in names},
          {names[key]: spec for key, spec in ELEMENT_SPEC.items()})
      for source in (data.train, data.test))
  return records.RawData(train=train, test=test, skips=data.skips), data.label_counts


def options_of(data_source: str) -> tuple[str, ...]:
  """Names of the options of a source."""
  if data_source in _SOURCES:
    own = checks.keywords(_SOURCES[data_source])[0]
    return (*own, *_OF_PARTITION.get(data_source, ()))
  return (*open_source.options(data_source), *checks.keywords(_files)[0])


def _open(data_source: str | None, options: Mapping[str, Any]) -> Data:
  data_source = checks.choice('data_source', data_source, SOURCES, 'embedded')
  known = options_of(data_source)
  given = checks.options(f'data_source {data_source}', options, known,
                         {'data_path'}.intersection(known))
  if data_source in _SOURCES:
    return _SOURCES[data_source](**given)
  return _files(data_source, **given)


def _embedded(*, num_clients: int = 200, partition: str = 'dirichlet',
              **of_partition: Any) -> Data:
  """The 1,797 digits that ship with scikit-learn, over simulated clients.

  Args:
    num_clients: From 1 to the 1,437 training examples.
    partition: See partition.split.
    **of_partition: data_seed, of the partition and not of the test set; and
      partition.OPTIONS.
  """
  x, y = _embedded_digits()
  order = np.random.default_rng(_SPLIT_SEED).permutation(len(y))
  test, train = (
      labelled.Labelled(x=x[rows], y=y[rows])
      for rows in np.split(order, [_EMBEDDED_TEST_EXAMPLES]))
  return _in_memory(labelled.Parts(train, test, 10), partition=partition,
                    num_clients=num_clients, **of_partition)


@functools.lru_cache(maxsize=1)
def _embedded_digits() -> tuple[np.ndarray, np.ndarray]:
  """The embedded digits as uint8 [1797, 28, 28] and int32 [1797]."""
  # scikit-learn takes a second to import, which the other sources need not pay.
  from sklearn import datasets  # pylint: disable=g-import-not-at-top
  digits = datasets.load_digits()
  # Linear interpolation between the centres of pixels.
  size = digits.images.shape[1]
  centres = (np.arange(20) + 0.5) * size / 20 - 0.5
  enlarge = np.stack(
      [np.interp(centres, np.arange(size), row) for row in np.eye(size)], axis=1)
  ink = enlarge @ (digits.images / 16.0) @ enlarge.T
  x = np.zeros([len(ink), 28, 28], np.uint8)
  # As in MNIST, digits of 20 x 20 in a frame of 28 x 28.
  x[:, 4:24, 4:24] = np.rint(ink * 255.0)
  return x, digits.target.astype(np.int32)


def _npz(*, data_path: str | os.PathLike[str], image_field: str = 'x',
         label_field: str = 'y', client_field: str = 'writer',
         num_classes: int | None = None, partition: str | None = None,
         held_out_fraction: float | None = None, **of_partition: Any) -> Data:
  """An .npz file of images, by writer or over simulated clients.

  Args:
    data_path: The file; see labelled.read.
    image_field: Name of its arrays of images, before _train and _test.
    label_field: That of the labels.
    client_field: That of the clients.
    num_classes: Labels are below; None for what the file says.
    partition: Divide the examples over simulated clients, regardless of who wrote
      them; None leaves them to the clients of the file. See partition.split.
    held_out_fraction: See records.with_held_out.
    **of_partition: num_clients, which a partition needs; data_seed, 0 if not given;
      and partition.OPTIONS.
  """
  names = (image_field, label_field)
  if partition is None:
    names = (*names, client_field)
    for name in of_partition:
      raise ValueError(f'data_source npz does not use {name} without partition')
  elif 'num_clients' not in of_partition:
    raise ValueError('partition needs num_clients')
  return _in_memory(
      labelled.read(data_path, names, num_classes=num_classes), partition=partition,
      test_of_files=True, held_out_fraction=held_out_fraction, **of_partition)


def _in_memory(parts: labelled.Parts, *, partition: str | None,
               num_clients: int | None = None, data_seed: int = 0,
               held_out_fraction: float | None = None, test_of_files: bool = False,
               **of_partition: Any) -> Data:
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
      None if part is None else records.ArraysByClient(
          {'x': part.x, 'y': part.y}, part.clients) for part in (train, test))
  return Data(
      train=train, test=test, skips=task.Skips(), num_classes=parts.num_classes,
      privacy_unit=unit, held_out_fraction=held_out_fraction,
      is_test_unowned=is_test_unowned, test_of_files=test_of_files,
      warnings=parts.notes, label_counts=counts)


def _official(*, cache_dir: str | os.PathLike[str] | None = None,
              only_digits: bool = False, skip_bad_clients: bool = False) -> Data:
  """TFF's federated EMNIST, downloaded unless it is in the cache.

  Args:
    cache_dir: Where emnist_all.sqlite is or will be; None means .tff in the
      home directory, as in TFF.
    only_digits: 10 digits instead of all 62 classes.
    skip_bad_clients: See task.Skips.
  """
  path = OFFICIAL.find_or_download(cache_dir)
  train, test = (
      open_official(path, part, only_digits=only_digits)
      for part in ('train', 'test'))
  return Data(
      train=train, test=test, skips=task.Skips(skip_bad_clients),
      num_classes=10 if only_digits else 62, privacy_unit='one writer')


def _files(data_source: str, *, image_field: str | None = None,
           label_field: str | None = None, dark_ink: bool | None = None,
           num_classes: int = 62, held_out_fraction: float | None = None,
           **given: Any) -> Data:
  """Files of a format of open_source.

  Args:
    data_source: The format.
    image_field: Name of the images: 28 x 28 or 784 integers in [0, 255] or floats
      in [0, 1]. Defaults to 'image' for folders, 'x' for leaf, else 'pixels'.
    label_field: Name of the labels; 'label', or 'y' for leaf.
    dark_ink: Whether ink is near 0, as in LEAF's and TFF's data; by default so for
      leaf, and for sqlite files of floats that prepare_data did not write.
    num_classes: Labels are below.
    held_out_fraction: See records.with_held_out.
    **given: See open_source.open_raw.
  """
  checks.integer('num_classes', num_classes, 2, labelled.MAX_CLASSES)
  default_image, default_label = _FIELDS.get(data_source, OFFICIAL_FIELDS)
  image, label = image_field or default_image, label_field or default_label
  raw = open_source.open_raw(
      data_source, fields=fields(image, label), **given)
  if dark_ink is None:
    dark_ink = data_source == 'leaf'
    if data_source == 'sqlite' and raw.train.element_spec[IMAGE][0].kind == 'f':
      if raw.train.is_prepared:
        raise ValueError(f'{given["data_path"]} has images as they were in files: pass '
                         '--dark_ink or --nodark_ink')
      dark_ink = True
  train, test = (
      source and images(source, num_classes=num_classes, dark_ink=dark_ink)
      for source in (raw.train, raw.test))
  return Data(train=train, test=test, skips=raw.skips, num_classes=num_classes,
              held_out_fraction=held_out_fraction)


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
    source: Source of the fields above. Images are integers in [0, 255] or floats in
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
  if shape not in ((SIDE, SIDE), (SIDE * SIDE,), (SIDE, SIDE, 1)):
    raise ValueError(f'{where}: images must have the shape [28, 28] or [784], found '
                     f'{list(shape)}')
  if source.element_spec[LABEL][1] != ():
    raise ValueError(f'{where}: labels must be one integer per example, found the '
                     f'shape {list(source.element_spec[LABEL][1])}')
  arrays, tensors = _conversions(dtype.kind == 'f', num_classes, dark_ink)
  return records.MappedSource(source, arrays, ELEMENT_SPEC, convert_in_graph=tensors)


def _conversions(is_float: bool, num_classes: int,
                 dark_ink: bool) -> tuple[Callable, Callable]:
  """The conversion of a client's examples, in Python and in a graph.

  The first raises ValueError, the other one InvalidArgumentError when it is run.
  """
  limit = 1 if is_float else 255
  pixel_rule = f'{IMAGE}: pixels must be in [0, {limit}]'
  label_rule = f'{LABEL} must be in [0, {num_classes})'

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
    labels = raw[LABEL].astype(np.int64)
    good_pixels, good_labels = good(pixels, labels)
    if not good_pixels.all():
      bad = ~good_pixels
      raise ValueError(f'{pixel_rule}, found {pixels[bad][0]!r} in example '
                       f'{np.argwhere(bad)[0][0]}')
    if not good_labels.all():
      raise ValueError(f'{label_rule}, found {labels[~good_labels][0]} in example '
                       f'{np.argmin(good_labels)}')
    x = ink(pixels, np.rint).astype(np.uint8)
    return {'x': x.reshape([-1, SIDE, SIDE]), 'y': labels.astype(np.int32)}

  def tensors(raw):
    pixels = tf.cast(raw[IMAGE], pixel_type(raw[IMAGE].dtype.as_numpy_dtype))
    labels = tf.cast(raw[LABEL], tf.int64)
    with tf.control_dependencies([
        tf.debugging.Assert(tf.reduce_all(mask), [rule])
        for mask, rule in zip(good(pixels, labels), (pixel_rule, label_rule))]):
      x = tf.cast(ink(tf.identity(pixels), tf.round), tf.uint8)
    return {'x': tf.reshape(x, [-1, SIDE, SIDE]), 'y': tf.cast(labels, tf.int32)}

  return arrays, tensors


_SOURCES = {'embedded': _embedded, 'npz': _npz, 'official': _official}
_OF_PARTITION = {'embedded': ('data_seed', *partition_lib.OPTIONS),
                 'npz': ('num_clients', 'data_seed', *partition_lib.OPTIONS)}

SOURCES = tuple(sorted({*_SOURCES, *open_source.FORMATS}))


def _breakdown(num_classes: int, count: Callable) -> task.Breakdown:
  """Classes by their characters, where they are those of EMNIST or MNIST."""
  characters = string.digits + string.ascii_uppercase + string.ascii_lowercase
  if num_classes == len(string.digits):
    return task.Breakdown(kind='digit', names=string.digits, count=count)
  if num_classes != len(characters):
    return task.Breakdown(
        kind='class', names=[str(i) for i in range(num_classes)], count=count)
  return task.Breakdown(
      kind='character', names=characters, count=count,
      groups={'digits': range(10), 'upper case': range(10, 36),
              'lower case': range(36, 62)})


def cnn_1m(num_classes: int) -> task.Model:
  """Builds the CNN of the distributed-DP papers.

  Convolution 3 x 3 of 32, ReLU, max pool 2 x 2, convolution 3 x 3 of 64, ReLU,
  dropout 0.25, dense 128, ReLU, dropout 0.5, dense num_classes: 1,018,174
  parameters for 62 classes.
  """
  return classifiers.network(
      'cnn_1m', (28, 28), num_classes,
      # Pooling here, between the convolutions, gives the papers' count of parameters;
      # after both it would be 1,206,590.
      layers.Convolution(3, 32, pool=2), layers.Convolution(3, 64),
      layers.Dropout(0.25), layers.Hidden(128), layers.Dropout(0.5)
  ).as_model(functools.partial(_breakdown, num_classes))


def cnn_small(num_classes: int) -> task.Model:
  """Builds a CNN that learns from a few hundred clients under differential privacy.

  It is that of classifiers.cnn_small: 7,346 parameters for 10 classes, 27,366 for
  62. The norm of the noise that privacy adds grows with the number of parameters,
  and a rotation pads that to a power of two: these are just below 2^13 and 2^15. It
  has no dropout: privacy noise regularizes enough.
  """
  return classifiers.cnn_small((28, 28), num_classes).as_model(
      functools.partial(_breakdown, num_classes))


MODELS = {'cnn_1m': cnn_1m, 'cnn_small': cnn_small}


def build(*, model: str | None = None, **data_options: Any) -> task.Task:
  """Builds the EMNIST task.

  Args:
    model: One of MODELS; None means 'cnn_small'.
    **data_options: See load.

  Returns:
    The task. Its model has as many classes as the data.

  Raises:
    ValueError: On an unknown model, options that the data source does not use,
      and data that are missing, corrupted or malformed.
  """
  model = checks.choice('model', model, MODELS, 'cnn_small')
  data = load(**data_options)
  return dataclasses.replace(data, model=MODELS[model](data.num_classes))
