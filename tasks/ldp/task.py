"""Task of locally private distillation: clients, unlabelled public images, a test set.

The training part of a labelled data set is divided once. Some of its images lose
their labels and are the public pool, which queries are taken from. The others, with
labels, are the clients', which are called data owners. Nothing here is private except
the clients' records.
"""

import dataclasses
import functools
import math
import os
from typing import Any, Sequence

import numpy as np

from tasks import checks, task as task_lib
from tasks.sources import labelled, partition as partition_lib

# Classes of the data sets that Keras has by these names, whatever file they come from.
_CLASSES = {'cifar10': 10, 'fashion_mnist': 10, 'mnist': 10}
# In addition, the digits that ship with scikit-learn, and a file of the user's.
TASKS = tuple(sorted((*_CLASSES, 'digits', 'npz')))

_OF_ALL = ('num_clients', 'public_records', 'validation_records', 'stand_ins',
           'records_per_client', 'partition', 'dirichlet_alpha', 'labels_per_client',
           'size_exponent', 'data_seed')
OPTIONS = ('data_path', 'num_classes', *_OF_ALL)
# Default number of clients.
NUM_CLIENTS = 50

_EMBEDDED_TEST = 360


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillationTask:
  """A task of locally private distillation; `name` is one of TASKS.

  Attributes:
    public: uint8 [P, height, width, channels], the pool of queries.
    holdings: The labelled records behind the clients' teachers. One of each client, or,
      in a simulation, fewer, which stand in for clients alternately.
    num_clients: At least as many as holdings.
    validation: Public labelled records for early stopping; may be empty.
    test: Labelled records that are no client's.
    privacy_unit: What a client is, for the report.
    notes: Notes about the data.
  """

  name: str
  num_classes: int
  public: np.ndarray
  holdings: Sequence[labelled.Labelled]
  num_clients: int
  validation: labelled.Labelled
  test: labelled.Labelled
  privacy_unit: str
  notes: tuple[task_lib.Note, ...] = ()


def build(name: str, **options: Any) -> DistillationTask:
  """Builds a task.

  Args:
    name: One of TASKS.
    **options: Some of OPTIONS, None for not given. `data_path`: an .npz file with
      x_train, y_train, x_test and y_test, images as uint8 [n, height, width] or [n,
      height, width, channels]; without it Keras' loader is asked, which may download.
      `num_classes`: labels are below; else what the file states
      (`labelled.stated_classes`), else 10 for data sets known by name; for others
      labels are counted, and the notes say so. `num_clients` (50). `public_records`:
      images of the pool (a tenth of the training part). `validation_records`: test
      records that are set aside (0). `partition` and its three options: how the records
      are dealt to the clients (iid), see `partition.split`. `stand_ins` and `records_per_client`:
      instead, this number of sets of this number of random records, which overlap and
      stand in for clients alternately. `data_seed`: of all this (0).

  Raises ValueError on an unknown task or option, one that is not used, and bad data.
  """
  checks.choice('task', name, TASKS)
  given = checks.options(
      f'task {name}', options, _OF_ALL if name == 'digits' else OPTIONS,
      ['data_path'] if name == 'npz' else [])
  parts = load(name, given.pop('data_path', None), given.pop('num_classes', None))
  return _divided(name, parts, **given)


def load(name: str, data_path: str | os.PathLike[str] | None,
          num_classes: int | None) -> labelled.Parts:
  """Loads the training and the test part, x uint8 [n, height, width, channels]."""
  if name == 'digits':
    data = labelled.resized_digits()
    data = dataclasses.replace(data, x=data.x[..., np.newaxis])
    test, train = data.divided(_EMBEDDED_TEST)
    return labelled.Parts(train, test, 10)
  arrays = _from_keras(name) if data_path is None else labelled.arrays(
      data_path, labelled.ARRAYS, labelled.CLASS_ARRAYS)
  return labelled.parts_of(data_path or f'Keras data set {name}', arrays, ('x', 'y'),
                           functools.partial(labelled.pixels, least=8),
                           num_classes=num_classes, otherwise=_CLASSES.get(name))


def _from_keras(name: str) -> dict[str, np.ndarray]:
  """Loads the arrays of a data set of Keras, downloaded unless they are cached."""
  # TensorFlow takes seconds to import, which files need not pay.
  import tensorflow as tf  # pylint: disable=g-import-not-at-top
  try:
    (x, y), (x_test, y_test) = getattr(tf.keras.datasets, name).load_data()
  # A failed download raises a bare Exception.
  except Exception as error:
    raise ValueError(
        f'Keras can\'t load {name}: {error}; pass data_path, an .npz file') from error
  # CIFAR-10's labels come as columns.
  return dict(zip(labelled.ARRAYS, (x, np.ravel(y), x_test, np.ravel(y_test))))


def _divided(name: str, parts: labelled.Parts, *, num_clients: int = NUM_CLIENTS,
             public_records: int | None = None, validation_records: int = 0,
             stand_ins: int | None = None, records_per_client: int | None = None,
             data_seed: int = 0, **partition: Any) -> DistillationTask:
  """Divides a data set; arguments are those of `build`."""
  train, test = parts.train, parts.test
  checks.integer('data_seed', data_seed, 0)
  checks.integer('validation_records', validation_records, 0, len(test) - 1)
  if public_records is None:
    public_records = max(2, len(train) // 10)
  checks.integer('public_records', public_records, 2, len(train) - 1)
  rng = [np.random.default_rng([data_seed, purpose]) for purpose in range(3)]
  public, private = train.divided(public_records, rng[0])
  notes, unit = parts.notes, f'one of {num_clients} '
  checks.integer('num_clients', num_clients, 1,
                 len(private) if stand_ins is None else math.inf)
  if (stand_ins is None) != (records_per_client is None):
    raise ValueError('stand_ins and records_per_client must be given together')
  if stand_ins is None:
    clients = partition_lib.split(private.y, num_clients=num_clients, seed=data_seed,
                                  **{'partition': 'iid', **partition})
    rows = np.split(np.argsort(clients, kind='stable'),
                    np.cumsum(np.bincount(clients, minlength=num_clients))[:-1])
    unit += 'simulated data owners, with all its records'
  else:
    if partition:
      raise ValueError(f'stand_ins does not use {", ".join(sorted(partition))}')
    checks.integer('stand_ins', stand_ins, 1, num_clients)
    checks.integer('records_per_client', records_per_client, 1, len(private))
    rows = [rng[1].permutation(len(private))[:records_per_client]
            for _ in range(stand_ins)]
    unit += (f'supposed data owners, for whom {stand_ins} overlapping sets of '
             f'{records_per_client} records stand in')
    notes = (task_lib.Note('stand-ins for clients', f'{num_clients} owners are supposed, '
                           f'but the records are those of {stand_ins} overlapping sets: '
                           'each set answers for many owners, and epsilon of a holding '
                           'is what its answers cost together; a record in several sets '
                           'spends in each'), *notes)
  validation, test = (test.rows(np.sort(part)) for part in np.split(
      rng[2].permutation(len(test)), [validation_records]))
  return DistillationTask(
      name=name, num_classes=parts.num_classes, public=public.x,
      holdings=tuple(map(private.rows, rows)), num_clients=num_clients, notes=notes,
      validation=validation, test=test, privacy_unit=unit)
