"""The data of the EMNIST task: clients, held-out sets and number of classes."""

import dataclasses
import functools
import inspect
import os
from typing import Any, Mapping

import numpy as np

from tasks import emnist_official
from tasks import image_npz
from tasks import partition
from tasks import sources
from tasks import task

# The embedded data are split by this seed whatever the clients, so that
# accuracies of different populations are of the same examples.
_SPLIT_SEED = 20230817
_EMBEDDED_TEST_EXAMPLES = 360


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
  """See task.Task. Features are 'x', uint8 [28, 28], and 'y', int32."""

  train: task.ClientSource
  held_out: Mapping[str, task.Examples]
  num_classes: int
  privacy_unit: str


def load(*, data_source: str | None = None, **options: Any) -> Data:
  """Loads data from a source.

  Args:
    data_source: One of SOURCES; None means 'embedded'.
    **options: The keyword arguments of that source's function below.

  Raises:
    ValueError: On an unknown source, an option that it does not use, one that
      it needs and lacks, and bad data.
  """
  if data_source is None:
    data_source = 'embedded'
  if data_source not in SOURCES:
    raise ValueError(
        f'data_source must be one of {", ".join(sorted(SOURCES))}, found '
        f'{data_source!r}')
  source = SOURCES[data_source]
  parameters = inspect.signature(source).parameters
  unused = sorted(set(options) - set(parameters))
  if unused:
    raise ValueError(
        f'data_source {data_source} does not use {", ".join(unused)}; its '
        f'options are {", ".join(parameters)}')
  lacking = [name for name, parameter in parameters.items()
             if parameter.default is parameter.empty and name not in options]
  if lacking:
    raise ValueError(f'data_source {data_source} needs {", ".join(lacking)}')
  return source(**options)


def embedded(*, num_clients: int = 200, dirichlet_alpha: float = 1.0,
             data_seed: int = 0) -> Data:
  """The 1,797 digits that ship with scikit-learn, over simulated clients.

  Args:
    num_clients: From 1 to the 1,437 training examples.
    dirichlet_alpha: See partition.dirichlet.
    data_seed: Of the division over clients, not of the test set.
  """
  x, y = _embedded_digits()
  order = np.random.default_rng(_SPLIT_SEED).permutation(len(y))
  test, train = np.split(order, [_EMBEDDED_TEST_EXAMPLES])
  clients = partition.dirichlet(
      y[train], num_clients=num_clients, alpha=dirichlet_alpha, seed=data_seed)
  return Data(
      train=sources.ArraysByClient({'x': x[train], 'y': y[train]}, clients),
      # The clients are simulated: the test digits are nobody's.
      held_out={'test': {'x': x[test], 'y': y[test]}},
      num_classes=10,
      privacy_unit=f'one of {num_clients} simulated clients, not people')


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


def npz(*, data_path: str | os.PathLike[str]) -> Data:
  """An .npz file of images by writer; see image_npz.read.

  Args:
    data_path: The file.
  """
  train, test, num_classes = image_npz.read(data_path)
  source = sources.ArraysByClient({'x': train.x, 'y': train.y}, train.clients)
  return Data(
      train=source,
      held_out=held_out_sets(
          {'x': test.x, 'y': test.y}, test.clients, source),
      num_classes=num_classes, privacy_unit='one writer')


def official(*, cache_dir: str | os.PathLike[str] | None = None,
             only_digits: bool = False) -> Data:
  """TFF's federated EMNIST, downloaded unless it is in the cache.

  Args:
    cache_dir: Where emnist_all.sqlite is or will be; None means .tff in the
      home directory, as in TFF.
    only_digits: 10 digits instead of all 62 classes.
  """
  path = emnist_official.find_or_download(cache_dir)
  train = emnist_official.open_split(path, 'train', only_digits=only_digits)
  test = emnist_official.open_split(path, 'test', only_digits=only_digits)
  return Data(
      train=train, held_out=held_out_sets(*test.all_examples(), train),
      num_classes=emnist_official.num_classes(only_digits),
      privacy_unit='one writer')


SOURCES = {'embedded': embedded, 'npz': npz, 'official': official}


def held_out_sets(
    examples: Mapping[str, np.ndarray], clients: np.ndarray | None,
    population: task.ClientSource) -> dict[str, dict[str, np.ndarray]]:
  """Held-out examples under the names that say whose they are.

  Args:
    examples: Feature name -> array.
    clients: [examples], whose they are; None if not known.
    population: The training clients.

  Returns:
    'test_clients', examples of clients outside the population, and
    'test_examples', further examples of the population's clients; only those
    that there are. 'test' if the clients are not known.
  """
  if clients is None:
    return {'test': dict(examples)}
  known = np.isin(clients.astype(str), list(population.client_ids))
  sets = {}
  for name, rows in (('test_clients', ~known), ('test_examples', known)):
    if np.all(rows):
      sets[name] = dict(examples)
    elif np.any(rows):
      sets[name] = {key: array[rows] for key, array in examples.items()}
  return sets
