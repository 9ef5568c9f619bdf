"""Data of the EMNIST task: clients, held-out sets and number of classes."""

import dataclasses
import functools
import os
from typing import Any, Mapping

import numpy as np

from tasks import checks
from tasks import task
from tasks.emnist import image_records
from tasks.sources import labelled
from tasks.sources import open_source
from tasks.sources import partition as partition_lib
from tasks.sources import records

# The embedded data are split by this seed whatever the clients, so that
# accuracies of different populations are of the same examples.
_SPLIT_SEED = 20230817
_EMBEDDED_TEST_EXAMPLES = 360

# Names of the image and the label in files of each format, where none are given.
_IMAGE, _LABEL = image_records.OFFICIAL_FIELDS
_FIELDS = {'folder': ('image', 'label'), 'leaf': ('x', 'y')}

# The client of test examples in memory that belong to no client.
_NOBODY = 'nobody'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
  """Examples of a source; for what is not explained, see task.Task.

  Features are 'x', uint8 [28, 28], and 'y', int32.

  Attributes:
    train: All training clients; once loaded, those of the population.
    test: The test part; None if there is none.
    skips: See task.Task.
    num_classes: Labels are below.
    held_out: Empty before the data are loaded.
    privacy_unit: See task.Task.
    is_test_unowned: Whether the clients of `test` are not known.
    test_of_files: See task.Task.
    label_counts: See task.Task.
    held_out_fraction: See records.with_held_out.
    warnings: See task.Task.
  """

  train: task.ClientSource
  test: task.ClientSource | None
  skips: task.Skips
  num_classes: int
  held_out: Mapping[str, task.Examples] = dataclasses.field(default_factory=dict)
  privacy_unit: str = 'one client of the files'
  is_test_unowned: bool = False
  test_of_files: bool = False
  label_counts: np.ndarray | None = None
  held_out_fraction: float | None = None
  warnings: tuple[str, ...] = ()


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
  names = {'x': _IMAGE, 'y': _LABEL}
  train, test = (
      None if source is None else records.MappedSource(
          source, lambda examples: {names[key]: examples[key] for key in names},
          {names[key]: spec for key, spec in image_records.ELEMENT_SPEC.items()})
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
    test = dataclasses.replace(test, clients=np.full(len(test), _NOBODY))
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
  path = image_records.OFFICIAL.find_or_download(cache_dir)
  train, test = (
      image_records.open_official(path, part, only_digits=only_digits)
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
  default_image, default_label = _FIELDS.get(data_source, (_IMAGE, _LABEL))
  image, label = image_field or default_image, label_field or default_label
  raw = open_source.open_raw(
      data_source, fields=image_records.fields(image, label), **given)
  if dark_ink is None:
    dark_ink = data_source == 'leaf'
    if data_source == 'sqlite' and raw.train.element_spec[
        image_records.IMAGE][0].kind == 'f':
      if raw.train.is_prepared:
        raise ValueError(f'{given["data_path"]} has images as they were in files: pass '
                         '--dark_ink or --nodark_ink')
      dark_ink = True
  train, test = (
      source and image_records.images(
          source, num_classes=num_classes, dark_ink=dark_ink)
      for source in (raw.train, raw.test))
  return Data(train=train, test=test, skips=raw.skips, num_classes=num_classes,
              held_out_fraction=held_out_fraction)


_SOURCES = {'embedded': _embedded, 'npz': _npz, 'official': _official}
_OF_PARTITION = {'embedded': ('data_seed', *partition_lib.OPTIONS),
                 'npz': ('num_clients', 'data_seed', *partition_lib.OPTIONS)}

SOURCES = tuple(sorted({*_SOURCES, *open_source.FORMATS}))
