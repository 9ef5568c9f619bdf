"""The data of the EMNIST task: clients, held-out sets and number of classes."""

import dataclasses
import functools
import os
from typing import Any, Callable, Mapping

import numpy as np

from tasks import checks
from tasks.emnist import official as emnist_official
from tasks.emnist import image_records
from tasks.sources import labelled
from tasks.sources import open_source
from tasks.sources import partition as partition_lib
from tasks.sources import records
from tasks.sources import arrays as sources
from tasks import task

# The embedded data are split by this seed whatever the clients, so that
# accuracies of different populations are of the same examples.
_SPLIT_SEED = 20230817
_EMBEDDED_TEST_EXAMPLES = 360

# Names of the image and the label in files of each format, where none are given.
_IMAGE, _LABEL = emnist_official.IMAGE_FIELD, emnist_official.LABEL_FIELD
_FIELDS = {'folder': ('image', 'label'), 'leaf': ('x', 'y')}

# What `open_raw` of arrays in memory calls the owner of examples of nobody.
_NOBODY = 'nobody'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
  """See task.Task. Features are 'x', uint8 [28, 28], and 'y', int32."""

  train: task.ClientSource
  held_out: Mapping[str, task.Examples]
  num_classes: int
  privacy_unit: str
  test_of_files: bool
  skips: task.Skips
  label_counts: np.ndarray | None
  warnings: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Opened:
  """A source that was opened.

  Attributes:
    raw: As it is in the files.
    to_examples: A raw source -> the task's.
    num_classes: Labels are below.
    privacy_unit: See task.Task.
    test_is_of_nobody: The clients of raw.test are not those that drew.
    test_of_files: See task.Task.
    label_counts: See task.Task.
    held_out_fraction: See records.with_held_out.
    warnings: See task.Task.
  """

  raw: records.RawData
  to_examples: Callable[[task.ClientSource], task.ClientSource]
  num_classes: int
  privacy_unit: str = 'one client of the files'
  test_is_of_nobody: bool = False
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
  opened = _open(data_source, options)
  raw = opened.raw
  train = opened.to_examples(raw.train)
  test = None if raw.test is None else opened.to_examples(raw.test)
  if opened.test_is_of_nobody:
    held_out = {'test': records.gather(test)[0]}
    if opened.held_out_fraction is not None:
      raise ValueError('held_out_fraction is not used: the data have a test part')
  else:
    train, held_out = records.with_held_out(
        train, test, skips=raw.skips, held_out_fraction=opened.held_out_fraction)
  return Data(
      train=train, held_out=held_out, num_classes=opened.num_classes,
      privacy_unit=opened.privacy_unit, test_of_files=opened.test_of_files,
      skips=raw.skips, label_counts=opened.label_counts, warnings=opened.warnings)


def open_raw(*, data_source: str | None = None,
             **options: Any) -> tuple[records.RawData, np.ndarray | None]:
  """What prepare_data writes: the data and their label_counts (see task.Task).

  The fields are 'pixels', uint8 [28, 28] with ink near 255, and 'label', int32;
  `load` reads them back from an SQLite file as they are.
  """
  opened = _open(data_source, options)
  train, test = (
      None if source is None else records.MappedSource(
          opened.to_examples(source),
          lambda found: {_IMAGE: found['x'], _LABEL: found['y']},
          {_IMAGE: image_records.ELEMENT_SPEC['x'],
           _LABEL: image_records.ELEMENT_SPEC['y']})
      for source in (opened.raw.train, opened.raw.test))
  raw = records.RawData(train=train, test=test, skips=opened.raw.skips)
  return raw, opened.label_counts


def options_of(data_source: str) -> tuple[str, ...]:
  """The options of a source."""
  if data_source in _SOURCES:
    own = checks.keywords(_SOURCES[data_source])[0]
    return (*own, *_OF_PARTITION.get(data_source, ()))
  return (*open_source.options(data_source), *checks.keywords(_files)[0])


def _open(data_source: str | None, options: Mapping[str, Any]) -> _Opened:
  data_source = checks.choice('data_source', data_source, SOURCES, 'embedded')
  known = options_of(data_source)
  given = checks.options(f'data_source {data_source}', options, known,
                         {'data_path'}.intersection(known))
  if data_source in _SOURCES:
    return _SOURCES[data_source](**given)
  return _files(data_source, **given)


def _embedded(*, num_clients: int = 200, partition: str = 'dirichlet',
              **of_partition: Any) -> _Opened:
  """The 1,797 digits that ship with scikit-learn, over simulated clients.

  Args:
    num_clients: From 1 to the 1,437 training examples.
    partition: See partition.split.
    **of_partition: data_seed, of the division over clients, not of the test set; and
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
  """All embedded digits as uint8 [1797, 28, 28] and int32 [1797]."""
  # scikit-learn takes a second to import, which the other sources need not pay.
  from sklearn import datasets  # pylint: disable=g-import-not-at-top
  digits = datasets.load_digits()
  enlarge = _bilinear(digits.images.shape[1], 20)
  ink = enlarge @ (digits.images / 16.0) @ enlarge.T
  x = np.zeros([len(ink), 28, 28], np.uint8)
  # As in MNIST, digits of 20 x 20 in a frame of 28 x 28.
  x[:, 4:24, 4:24] = np.rint(ink * 255.0)
  return x, digits.target.astype(np.int32)


def _bilinear(size: int, new_size: int) -> np.ndarray:
  """[new_size, size]: linear interpolation between the centres of pixels."""
  centres = (np.arange(new_size) + 0.5) * size / new_size - 0.5
  pixels = np.arange(size)
  return np.stack(
      [np.interp(centres, pixels, row) for row in np.eye(size)], axis=1)


def _npz(*, data_path: str | os.PathLike[str], image_field: str = 'x',
         label_field: str = 'y', client_field: str = 'writer',
         num_classes: int | None = None, partition: str | None = None,
         held_out_fraction: float | None = None, **of_partition: Any) -> _Opened:
  """An .npz file of images, by writer or over simulated clients.

  Args:
    data_path: The file; see labelled.read.
    image_field: What its arrays are called, before _train and _test.
    label_field: The same of the labels.
    client_field: The same of the clients.
    num_classes: Labels are below; None for what the file says.
    partition: Divide the examples over simulated clients, whoever wrote them; None
      leaves them to the clients of the file. See partition.split.
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
               test_of_files: bool = False, held_out_fraction: float | None = None,
               **of_partition: Any) -> _Opened:
  """The task's own examples, in memory."""
  train, test, unit, counts = parts.train, parts.test, 'one writer', None
  if partition is not None:
    clients = partition_lib.split(
        train.y, partition=partition, num_clients=num_clients, seed=data_seed,
        **of_partition)
    train = dataclasses.replace(train, clients=clients)
    unit = f'one of {num_clients} simulated clients, not people'
    counts = partition_lib.label_counts(train.y, clients)
  of_nobody = test is not None and test.clients is None
  if of_nobody:
    test = dataclasses.replace(test, clients=np.full(len(test), _NOBODY))
  return _Opened(
      raw=records.RawData(
          train=_by_client(train), test=None if test is None else _by_client(test),
          skips=task.Skips()),
      to_examples=lambda source: source, num_classes=parts.num_classes,
      privacy_unit=unit, held_out_fraction=held_out_fraction,
      test_is_of_nobody=of_nobody, test_of_files=test_of_files,
      warnings=parts.notes, label_counts=counts)


def _by_client(part: labelled.Labelled) -> sources.ArraysByClient:
  return sources.ArraysByClient({'x': part.x, 'y': part.y}, part.clients)


def _official(*, cache_dir: str | os.PathLike[str] | None = None,
              only_digits: bool = False, skip_bad_clients: bool = False) -> _Opened:
  """TFF's federated EMNIST, downloaded unless it is in the cache.

  Args:
    cache_dir: Where emnist_all.sqlite is or will be; None means .tff in the
      home directory, as in TFF.
    only_digits: 10 digits instead of all 62 classes.
    skip_bad_clients: See task.Skips.
  """
  path = emnist_official.FILE.find_or_download(cache_dir)
  train, test = (
      emnist_official.open_split(path, part, only_digits=only_digits)
      for part in ('train', 'test'))
  num_classes = emnist_official.num_classes(only_digits)
  return _Opened(
      raw=records.RawData(
          train=train, test=test, skips=task.Skips(skip_bad_clients)),
      to_examples=functools.partial(
          image_records.images, num_classes=num_classes, dark_ink=True),
      num_classes=num_classes, privacy_unit='one writer')


def _files(data_source: str, *, image_field: str | None = None,
           label_field: str | None = None, dark_ink: bool | None = None,
           num_classes: int = 62, held_out_fraction: float | None = None,
           **given: Any) -> _Opened:
  """Files of a format of open_source.

  Args:
    data_source: The format.
    image_field: Of the images: 28 x 28 or 784 integers in [0, 255] or floats in
      [0, 1]. Defaults to 'image' for folders, 'x' for leaf, else 'pixels'.
    label_field: Of the labels; 'label', or 'y' for leaf.
    dark_ink: Ink is near 0, as in LEAF's and TFF's data; by default so for leaf,
      and for sqlite files of floats that prepare_data did not write.
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
  return _Opened(
      raw=raw, to_examples=functools.partial(
          image_records.images, num_classes=num_classes, dark_ink=dark_ink),
      num_classes=num_classes, held_out_fraction=held_out_fraction)


_SOURCES = {'embedded': _embedded, 'npz': _npz, 'official': _official}
_OF_PARTITION = {'embedded': ('data_seed', *partition_lib.OPTIONS),
                 'npz': ('num_clients', 'data_seed', *partition_lib.OPTIONS)}

SOURCES = tuple(sorted({*_SOURCES, *open_source.FORMATS}))
