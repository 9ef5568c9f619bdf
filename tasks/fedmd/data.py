"""Public and private images of the FedMD tasks, split over parties.

A task has labelled public images, on which parties exchange predictions, and
private images of other classes, which the parties hold. Everything here is a
choice of real records by a seed; nothing is private except the records.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import math
import os
import pathlib

import numpy as np

from tasks import checks
from tasks.sources import labelled, records

# x is uint8 [n, height, width, channels]; clients are writers, where they are known.
Labelled = labelled.Labelled

SPLITS = ('iid', 'noniid')

_EMBEDDED_TEST_PART = 0.2
# Maximum number of records of all parties together by default, as in the paper.
_LETTERS_IN_ALL = 28_800
_CIFAR_IN_ALL = 3_000

LETTERS = 'abcdef'
CIFAR_CLASSES = (0, 2, 20, 63, 71, 82)
CIFAR_SUPERCLASSES = (0, 1, 2, 3, 4, 5)
# Digits below this are public.
_PUBLIC_DIGITS = 4
# Labels of files are below this; most of them are of classes that are not used.
_MAX_LABELS = 2**15


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
  """Public records, and private ones split over parties.

  Labels are from 0 to public_classes - 1, and to classes - 1 of private records: those
  of each of the parties, and `test`, which no party holds. `party` describes a party.
  """

  public: Labelled
  public_classes: int
  parties: tuple[Labelled, ...]
  test: Labelled
  classes: int
  party: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
  """Division of private records over `num_clients` >= 1 parties by a split of SPLITS.

  `records_per_client` None is as many as there are, up to the number that the paper had
  in all. `seed` >= 0 is that of all random choices.
  """

  split: str
  num_clients: int
  records_per_client: int | None = None
  seed: int = 0

  def size(self, available: int, in_all: int | None = None) -> int:
    """The number of records of a party, of those available to all together.

    `in_all` is the default maximum of all together. Raises ValueError if there are too
    few.
    """
    if (size := self.records_per_client) is None:
      size = min(available, in_all or available) // self.num_clients
    if size < 1 or size * self.num_clients > available:
      raise ValueError(f'num_clients={self.num_clients} with {max(size, 1)} records '
                       f'each are more than the {available} private records')
    return size


def _dealt(data: Labelled, choice: Choice, in_all: int | None = None
           ) -> tuple[Labelled, ...]:
  """Deals equally many random records to each party."""
  size = choice.size(len(data), in_all)
  order = np.random.default_rng([choice.seed, 0]).permutation(len(data))
  return tuple(map(
      data.rows, order[:size * choice.num_clients].reshape(choice.num_clients, size)))


def _one_kind_per_class(data: Labelled, kinds: np.ndarray, choice: Choice,
                        in_all: int | None = None) -> tuple[Labelled, ...]:
  """Deals one kind (fine class) of every class to each party, equally many of each."""
  rng = np.random.default_rng([choice.seed, 1])
  of_class = [np.unique(kinds[data.y == c]) for c in np.unique(data.y)]
  number = min(map(len, of_class))
  # This many parties have the same kinds, and share their records.
  sharing = math.ceil(choice.num_clients / number)
  pools = {kind: rng.permutation(np.flatnonzero(kinds == kind))
           for of_one in of_class for kind in of_one}
  available = min(map(len, pools.values())) // sharing * len(of_class)
  size = choice.size(available * choice.num_clients, in_all)
  if choice.records_per_client is not None and size % len(of_class):
    raise checks.wrong(
        'records_per_client', f'a multiple of the {len(of_class)} classes', size)
  if (per_kind := size // len(of_class)) < 1:
    raise ValueError(f'num_clients={choice.num_clients} are too many: there is not one '
                     'record of every class for each')
  parties = []
  for party in range(choice.num_clients):
    start = party // number * per_kind
    rows = [pools[of_one[party % number]][start:start + per_kind] for of_one in of_class]
    parties.append(data.rows(rng.permutation(np.concatenate(rows))))
  return tuple(parties)


def _one_writer_each(data: Labelled, choice: Choice) -> tuple[Labelled, ...]:
  """Makes each of the writers with the most records a party."""
  if choice.records_per_client is not None:
    raise ValueError('records_per_client is not used by split=noniid of letters')
  names, counts = np.unique(data.clients, return_counts=True)
  if len(names) < choice.num_clients:
    raise checks.wrong('num_clients', f'<= {len(names)} writers', choice.num_clients)
  order = np.argsort(-counts, kind='stable')[:choice.num_clients]
  return tuple(data.rows(np.flatnonzero(data.clients == names[i])) for i in order)


def digits(choice: Choice) -> Data:
  """Loads the digits that ship with scikit-learn: 0 to 3 public, 4 to 9 private.

  Images of 8 x 8. With split=noniid the classes are {4, 5}, {6, 7} and {8, 9},
  and a party has one digit of each.
  """
  embedded = labelled.resized_digits(8)
  x, y = embedded.x[..., np.newaxis], embedded.y
  order = np.random.default_rng(labelled.SPLIT_SEED).permutation(len(y))
  by_pair = choice.split == 'noniid'
  private = Labelled(x=x, y=(y - _PUBLIC_DIGITS) // (2 if by_pair else 1))
  test, train = (rows[y[rows] >= _PUBLIC_DIGITS]
                 for rows in np.split(order, [round(_EMBEDDED_TEST_PART * len(y))]))
  held = private.rows(train)
  return Data(
      public=Labelled(x=x, y=y).rows(order[y[order] < _PUBLIC_DIGITS]),
      public_classes=_PUBLIC_DIGITS, test=private.rows(test),
      parties=(_one_kind_per_class(held, y[train], choice) if by_pair else
               _dealt(held, choice)),
      classes=3 if by_pair else 6,
      party='a simulated party, with digits of unknown writers')


def mnist_letters(choice: Choice, *, data_path: str | os.PathLike[str],
                  cache_dir: str | os.PathLike[str] | None = None) -> Data:
  """Loads MNIST digits, public, and handwritten letters a to f, private.

  With split=noniid a party is a writer. `data_path` is a folder with mnist.npz, and
  with unipen62_writers.npz unless the letters are those of TFF's emnist_all.sqlite in
  `cache_dir` (the paper's FEMNIST).
  """
  folder = pathlib.Path(data_path)
  public = _public(folder / 'mnist.npz')
  held, test = (_unipen_letters(folder / 'unipen62_writers.npz') if cache_dir is None else
                _official_letters(cache_dir))
  by_writer = choice.split == 'noniid'
  return Data(
      public=public, public_classes=10, test=test, classes=len(LETTERS),
      parties=(_one_writer_each(held, choice) if by_writer else
               _dealt(held, choice, _LETTERS_IN_ALL)),
      party=('one writer' if by_writer else
             'a simulated party, with letters of many writers'))


def _unipen_letters(path: pathlib.Path) -> list[Labelled]:
  """Reads training and test letters with their writers."""
  of_parts = [[f'{array}_{part}' for array in ('x', 'y', 'writer')]
              for part in labelled.PARTS]
  arrays = labelled.arrays(path, (*sum(of_parts, []), 'class_names'))
  known = arrays['class_names'].tolist()
  if missing := [letter for letter in LETTERS if letter not in known]:
    raise ValueError(f'{path}: class_names must have {", ".join(missing)}')
  return [_classes(path, arrays, *names, numbers=list(map(known.index, LETTERS)))
          for names in of_parts]


def _official_letters(cache_dir: str | os.PathLike[str]) -> list[Labelled]:
  """Loads the letters of `_unipen_letters` from TFF's federated EMNIST."""
  # This imports TensorFlow.
  from tasks.emnist import task as emnist_task  # pylint: disable=g-import-not-at-top
  path = emnist_task.OFFICIAL.find_or_download(cache_dir)
  # Digits, upper case, lower case.
  numbers = [10 + 26 + ord(letter) - ord('a') for letter in LETTERS]
  parts = []
  for part in labelled.PARTS:
    source = emnist_task.open_official(path, part, only_digits=False)
    examples, writers = records.gather(source)
    arrays = {**examples, 'writer': writers}
    parts.append(_classes(path, arrays, *arrays, numbers=numbers))
  return parts


def cifar(choice: Choice, *, data_path: str | os.PathLike[str]) -> Data:
  """Loads CIFAR-10, public, and some of CIFAR-100, private.

  With split=iid the fine classes of CIFAR_CLASSES, with split=noniid the superclasses of
  CIFAR_SUPERCLASSES, of which a party has one fine class each. `data_path` is a folder
  with cifar10.npz or cifar10_subset.npz, and cifar100.npz or cifar100_subset.npz.
  """
  public = _public(_first(data_path, 'cifar10.npz', 'cifar10_subset.npz'))
  path = _first(data_path, 'cifar100.npz', 'cifar100_subset.npz')
  arrays = labelled.arrays(path, [
      f'{array}_{part}' for array in ('x', 'y_fine', 'y_coarse')
      for part in labelled.PARTS])
  by_superclass = choice.split == 'noniid'
  kind, numbers, held_by_party = (
      ('y_coarse', CIFAR_SUPERCLASSES, 'one fine class of every superclass')
      if by_superclass else ('y_fine', CIFAR_CLASSES, 'random images'))
  held, test = (_classes(path, arrays, f'x_{part}', f'{kind}_{part}', numbers=numbers)
                for part in labelled.PARTS)
  kinds = arrays['y_fine_train'][np.isin(arrays[f'{kind}_train'], numbers)]
  return Data(
      public=public, public_classes=10, test=test, classes=len(numbers),
      parties=(_one_kind_per_class(held, kinds, choice, _CIFAR_IN_ALL)
               if by_superclass else _dealt(held, choice, _CIFAR_IN_ALL)),
      party=f'a simulated party, with {held_by_party}')


# Name of the task -> its data. Keyword arguments after the choice are options.
TASKS: dict[str, Callable[..., Data]] = {
    'digits': digits, 'mnist_letters': mnist_letters, 'cifar': cifar}


def _first(folder: str | os.PathLike[str], *names: str) -> pathlib.Path:
  """The path of the first of these files that exists."""
  for path in (pathlib.Path(folder) / name for name in names):
    if path.is_file():
      return path
  raise ValueError(f'data_path={os.fspath(folder)} must hold {" or ".join(names)}')


def _public(path: pathlib.Path) -> Labelled:
  """Reads the training part of a file."""
  names = 'x_train', 'y_train'
  return labelled.checked(path, labelled.arrays(path, names), *names,
                          convert=labelled.pixels, below=_MAX_LABELS)


def _classes(path: pathlib.Path, arrays: Mapping[str, np.ndarray], *names: str,
             numbers: Sequence[int]) -> Labelled:
  """Selects the records of some classes, which are numbered from 0."""
  data = labelled.checked(
      path, arrays, *names, convert=labelled.pixels, below=_MAX_LABELS)
  if missing := [str(number) for number in numbers if number not in data.y]:
    raise ValueError(f'{path} has no image of class {", ".join(missing)}')
  new = np.full(_MAX_LABELS, -1, np.int32)
  new[list(numbers)] = np.arange(len(numbers))
  data = dataclasses.replace(data, y=new[data.y])
  return data.rows(np.flatnonzero(data.y >= 0))
