"""The task of distillation: data owners, unlabelled public images, a test set.

The training part of a labelled data set is divided once. Some of its images lose
their labels and are the public pool, which queries are taken from. The others, with
labels, are the owners'. Nothing here is private but the owners' records.
"""

import dataclasses
import math
import os
from typing import Any, Sequence

import numpy as np

from tasks import task as task_lib
from tasks.sources import partition as partition_lib
from tasks.voting import data as voting_data

Labelled = voting_data.Labelled

# Name of the task -> name of the data set among Keras' loaders, None for what ships
# with scikit-learn or is in a file of the user's.
_KERAS = {'cifar10': 'cifar10', 'digits': None, 'fashion_mnist': 'fashion_mnist',
          'mnist': 'mnist', 'npz': None}
TASKS = tuple(sorted(_KERAS))
# Classes of the data sets that are known by name, whatever file they come from.
_CLASSES = {'cifar10': 10, 'fashion_mnist': 10, 'mnist': 10}

OPTIONS = ('data_path', 'num_classes', 'num_clients', 'public_records',
           'validation_records', 'stand_ins', 'records_per_client', 'partition',
           'dirichlet_alpha', 'labels_per_client', 'size_exponent', 'data_seed')
# Owners where their number is not given.
NUM_CLIENTS = 50

# The embedded digits are split by this seed, so that accuracies of different runs
# are of the same examples.
_SPLIT_SEED = 20230817
_EMBEDDED_TEST = 360
_ARRAYS = ('x_train', 'y_train', 'x_test', 'y_test')


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillationTask:
  """A task of distillation.

  Attributes:
    name: One of TASKS.
    num_classes: Of the labels.
    public: uint8 [P, height, width, channels], the pool of queries.
    holdings: The labelled records behind the owners' teachers. One of each owner,
      or, in a simulation, fewer, which stand in for owners alternately.
    num_clients: Number of owners, at least as many as holdings.
    validation: Public labelled records that a run may be stopped by; may be empty.
    test: Labelled records that are no owner's.
    privacy_unit: What an owner is, in words.
    notes: Notes about the data.
  """

  name: str
  num_classes: int
  public: np.ndarray
  holdings: Sequence[Labelled]
  num_clients: int
  validation: Labelled
  test: Labelled
  privacy_unit: str
  notes: tuple[task_lib.Note, ...] = ()

  @property
  def shares_holdings(self) -> bool:
    """Whether a holding answers for more than one owner."""
    return len(self.holdings) < self.num_clients


def build(name: str, **options: Any) -> DistillationTask:
  """Builds a task.

  Args:
    name: One of TASKS.
    **options: Some of OPTIONS, None for not given. `data_path`: an .npz file with
      x_train, y_train, x_test and y_test, images as uint8 [n, height, width] or
      [n, height, width, channels]; without it Keras' loader is asked, which may
      download. `num_classes`: labels are below; else what the file states
      (`image_npz.stated_classes`), else 10 for the data sets that are known by
      name. For others labels are counted, and the notes say so.
      `num_clients`: number of owners (50). `public_records`: images of the pool (a
      tenth of the training part). `validation_records`: test records that are set
      aside (0). `partition` and the three options after it: how the records are
      dealt to the owners (iid), see `partition.split`. `stand_ins` and
      `records_per_client`: instead, this number of sets of this number of random
      records, which overlap and stand in for owners alternately. `data_seed`: of all
      this (0).

  Raises:
    ValueError: On an unknown task or option, one that is not used, and bad data.
  """
  if name not in TASKS:
    raise ValueError(f'task must be one of {", ".join(TASKS)}, found {name!r}')
  given = {key: value for key, value in options.items() if value is not None}
  unknown = sorted(set(given) - set(OPTIONS))
  if unknown:
    raise ValueError(f'task {name} has no option {", ".join(unknown)}; its options '
                     f'are {", ".join(OPTIONS)}')
  train, test, num_classes, notes = _load(
      name, given.pop('data_path', None), given.pop('num_classes', None))
  task = _divided(name, train, test, num_classes, **given)
  return dataclasses.replace(task, notes=(*task.notes, *notes))


def _load(name: str, data_path: str | os.PathLike[str] | None,
          num_classes: int | None
          ) -> tuple[Labelled, Labelled, int, tuple[task_lib.Note, ...]]:
  """The training and the test part, the number of classes, and notes."""
  if name == 'digits':
    for option, value in (('data_path', data_path), ('num_classes', num_classes)):
      if value is not None:
        raise ValueError(f'task digits does not use {option}: it is embedded')
    data = voting_data.embedded()
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(data))
    test, train = np.split(order, [_EMBEDDED_TEST])
    data = _images('digits', data.x, data.y)
    return data.rows(train), data.rows(test), 10, ()
  if data_path is None:
    if _KERAS[name] is None:
      raise ValueError(f'task {name} needs data_path, an .npz file')
    found, where = _from_keras(_KERAS[name]), f'Keras data set {name}'
  else:
    found, where = voting_data.arrays(data_path, _ARRAYS), os.fspath(data_path)
  if num_classes is not None or data_path is not None:
    num_classes = voting_data.stated_classes(data_path, num_classes)
  if num_classes is None:
    num_classes = _CLASSES.get(name)
  parts, notes = ('train', 'test'), ()
  train, test = (_images(f'{where}, {part}', found[f'x_{part}'], found[f'y_{part}'],
                         num_classes) for part in parts)
  if num_classes is None:
    num_classes, notes = voting_data.counted_classes(train, test)
  if train.x.shape[1:] != test.x.shape[1:]:
    raise ValueError(
        f'{where}: x_train and x_test must have images of one shape, found '
        f'{list(train.x.shape[1:])} and {list(test.x.shape[1:])}')
  return train, test, num_classes, notes


def _from_keras(name: str) -> dict[str, np.ndarray]:
  """The arrays of one of Keras' data sets, downloaded unless they are cached."""
  # TensorFlow takes seconds to import, which files need not pay.
  import tensorflow as tf  # pylint: disable=g-import-not-at-top
  try:
    (x, y), (x_test, y_test) = getattr(tf.keras.datasets, name).load_data()
  # A failed download raises a bare Exception.
  except Exception as error:
    raise ValueError(
        f'Keras can\'t load {name}: {error}; pass data_path, an .npz file with '
        f'{", ".join(_ARRAYS)}') from error
  # CIFAR-10's labels come as columns.
  return dict(zip(_ARRAYS, (x, np.ravel(y), x_test, np.ravel(y_test))))


def _images(where: str, x: np.ndarray, y: np.ndarray,
            num_classes: int | None = None) -> Labelled:
  """Checked images, uint8 [n, height, width, channels], with labels."""
  data = voting_data.checked(where, x, y, num_classes)
  if x.dtype != np.uint8 or x.ndim not in (3, 4) or min(x.shape[1:3]) < 8:
    raise ValueError(
        f'{where}: images must be uint8 [n, height, width] or [n, height, width, '
        f'channels] of 8 x 8 pixels or more, found {x.dtype} {list(x.shape)}')
  return Labelled(x=x if x.ndim == 4 else x[..., np.newaxis], y=data.y)


def _check_integer(low: int, high: float = math.inf, **arguments: Any) -> None:
  for name, value in arguments.items():
    if isinstance(value, bool) or not isinstance(
        value, (int, np.integer)) or not low <= value <= high:
      limit = '' if high == math.inf else f' to {high}'
      raise ValueError(
          f'{name} must be an integer from {low}{limit or " on"}, found {value!r}')


def _divided(name: str, train: Labelled, test: Labelled, num_classes: int, *,
             num_clients: int = NUM_CLIENTS, public_records: int | None = None,
             validation_records: int = 0, stand_ins: int | None = None,
             records_per_client: int | None = None, data_seed: int = 0,
             **partition: Any) -> DistillationTask:
  """Divides a data set; arguments are those of `build`."""
  _check_integer(0, data_seed=data_seed)
  _check_integer(0, len(test) - 1, validation_records=validation_records)
  if public_records is None:
    public_records = max(2, len(train) // 10)
  _check_integer(2, len(train) - 1, public_records=public_records)
  order = np.random.default_rng([data_seed, 0]).permutation(len(train))
  public, private = np.split(order, [public_records])
  records = train.rows(private)
  if stand_ins is None:
    if records_per_client is not None:
      raise ValueError('records_per_client needs stand_ins: owners of their own '
                       'records are dealt all that there are')
    _check_integer(1, len(private), num_clients=num_clients)
    holdings = _dealt(records, num_clients, data_seed, **partition)
    unit = f'one of {num_clients} simulated data owners, with all its records'
    notes = ()
  else:
    if partition:
      raise ValueError(f'{", ".join(sorted(partition))} can\'t be used with '
                       'stand_ins, whose records are drawn at random')
    _check_integer(1, num_clients=num_clients)
    _check_integer(1, num_clients, stand_ins=stand_ins)
    if records_per_client is None:
      raise ValueError('stand_ins needs records_per_client, which each is drawn')
    _check_integer(1, len(private), records_per_client=records_per_client)
    rng = np.random.default_rng([data_seed, 1])
    holdings = tuple(
        records.rows(rng.permutation(len(private))[:records_per_client])
        for _ in range(stand_ins))
    unit = (f'one of {num_clients} supposed data owners, for whom {stand_ins} '
            f'overlapping sets of {records_per_client} records stand in')
    notes = (task_lib.Note(
        'stand-ins for clients',
        f'{num_clients} owners are supposed, but the records are those of {stand_ins} '
        'overlapping sets: each set answers for many owners, and epsilon of a holding '
        'is what its answers cost together; a record in several sets spends in each'),)
  validation, rest = np.split(
      np.random.default_rng([data_seed, 2]).permutation(len(test)),
      [validation_records])
  return DistillationTask(
      name=name, num_classes=num_classes, public=train.x[public],
      holdings=holdings, num_clients=num_clients,
      validation=test.rows(np.sort(validation)),
      test=test.rows(np.sort(rest)), privacy_unit=unit, notes=notes)


def _dealt(records: Labelled, num_clients: int, data_seed: int,
           partition: str = 'iid', **options: Any) -> tuple[Labelled, ...]:
  """All records, dealt to owners."""
  clients = partition_lib.split(
      records.y, partition=partition, num_clients=num_clients, seed=data_seed,
      **options)
  order = np.argsort(clients, kind='stable')
  ends = np.cumsum(np.bincount(clients, minlength=num_clients))
  return tuple(records.rows(rows) for rows in np.split(order, ends[:-1]))
