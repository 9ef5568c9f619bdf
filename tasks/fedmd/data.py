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

from tasks.sources import labelled

# x is uint8 [n, height, width, channels]; clients are writers, where they are known.
Labelled = labelled.Labelled

SPLITS = ('iid', 'noniid')

# Split once and for all, so that accuracies of different runs are of the same
# examples.
_SPLIT_SEED = 20230817
_EMBEDDED_TEST_PART = 0.2
# Parties hold no more than this in all unless asked for, as in the paper.
_LETTERS_IN_ALL = 28_800
_CIFAR_IN_ALL = 3_000

LETTERS = 'abcdef'
CIFAR_CLASSES = (0, 2, 20, 63, 71, 82)
CIFAR_SUPERCLASSES = (0, 1, 2, 3, 4, 5)
_DIGITS_PUBLIC = (0, 1, 2, 3)
_DIGIT_PAIRS = ((4, 5), (6, 7), (8, 9))
# Labels of files are below this; most of them are of classes that nobody asks for.
_MOST_LABELS = 2**15


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
  """Public records, and private ones split over parties.

  Attributes:
    public: Labelled public records; classes 0 to public_classes - 1.
    public_classes: Their number.
    parties: The private records of each party; classes from 0 on.
    test: Private records that no party holds.
    private_classes: Their number.
    party: What a party is, in words.
  """

  public: Labelled
  public_classes: int
  parties: tuple[Labelled, ...]
  test: Labelled
  private_classes: int
  party: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
  """How private records are divided over parties.

  Attributes:
    split: One of SPLITS.
    num_clients: Number of parties, >= 1.
    records_per_client: Records of each; None for as many as there are, up to what
      the paper had in all.
    seed: Of everything that is drawn, >= 0.
  """

  split: str
  num_clients: int
  records_per_client: int | None = None
  seed: int = 0

  def size(self, available: int, in_all: int | None = None) -> int:
    """Number of records of a party.

    Args:
      available: Records that there are for all parties together.
      in_all: Maximum of all parties together unless asked for; None for no limit.

    Raises:
      ValueError: If there are too few.
    """
    size = self.records_per_client
    if size is None:
      size = min(available, in_all or available) // self.num_clients
    if size < 1:
      raise ValueError(
          f'num_clients={self.num_clients} are more than the {available} private '
          'records that there are for them')
    if size * self.num_clients > available:
      raise ValueError(
          f'records_per_client={size} for each of {self.num_clients} parties are more '
          f'than the {available} private records that there are for them')
    return size


def _dealt(data: Labelled, choice: Choice, in_all: int | None
           ) -> tuple[Labelled, ...]:
  """Equally many random records to each party."""
  size = choice.size(len(data), in_all)
  order = np.random.default_rng([choice.seed, 0]).permutation(len(data))
  return tuple(data.rows(order[i * size:(i + 1) * size])
               for i in range(choice.num_clients))


def _one_kind_per_class(data: Labelled, kinds: np.ndarray, choice: Choice,
                        in_all: int | None) -> tuple[Labelled, ...]:
  """One kind (fine class) of every class to each party, equally many of each.

  Args:
    data: The private records.
    kinds: int [n], the fine class of each record; each belongs to one class.
    choice: How many parties and records.
    in_all: As for `Choice.size`.
  """
  rng = np.random.default_rng([choice.seed, 1])
  of_class = [np.unique(kinds[data.y == c]) for c in np.unique(data.y)]
  number = min(map(len, of_class))
  # So many parties have the same kinds, and share their records.
  sharing = math.ceil(choice.num_clients / number)
  fewest = min(np.sum(kinds == kind) for found in of_class for kind in found)
  available = fewest // sharing * len(of_class) * choice.num_clients
  size = choice.size(available, in_all)
  if choice.records_per_client is not None and size % len(of_class):
    raise ValueError(
        f'records_per_client must be a multiple of the {len(of_class)} classes for '
        f'split=noniid, found {size}')
  per_kind = size // len(of_class)
  if per_kind < 1:
    raise ValueError(
        f'num_clients={choice.num_clients} are too many: there is not one record of '
        'every class for each')
  pools = {kind: rng.permutation(np.flatnonzero(kinds == kind))
           for found in of_class for kind in found}
  parties = []
  for party in range(choice.num_clients):
    start = party // number * per_kind
    rows = [pools[found[party % number]][start:start + per_kind]
            for found in of_class]
    parties.append(data.rows(rng.permutation(np.concatenate(rows))))
  return tuple(parties)


def _one_writer_each(data: Labelled, choice: Choice) -> tuple[Labelled, ...]:
  """The writers with the most records, a party each."""
  if choice.records_per_client is not None:
    raise ValueError(
        'records_per_client is not used by split=noniid of letters: a party has '
        'all letters of its writer')
  names, counts = np.unique(data.clients, return_counts=True)
  if len(names) < choice.num_clients:
    raise ValueError(
        f'num_clients={choice.num_clients} are more than the {len(names)} writers')
  order = np.argsort(-counts, kind='stable')[:choice.num_clients]
  return tuple(data.rows(np.flatnonzero(data.clients == names[i])) for i in order)


def digits(choice: Choice) -> Data:
  """The digits that ship with scikit-learn: 0 to 3 public, 4 to 9 private.

  Images of 8 x 8. With split=noniid the classes are {4, 5}, {6, 7} and {8, 9},
  and a party has one digit of each.
  """
  # scikit-learn takes a second to import, which the other tasks need not pay.
  from sklearn import datasets  # pylint: disable=g-import-not-at-top
  found = datasets.load_digits()
  x = np.rint(found.images * (255 / 16)).astype(np.uint8)[..., np.newaxis]
  y = found.target.astype(np.int32)
  order = np.random.default_rng(_SPLIT_SEED).permutation(len(y))
  test, train = np.split(order, [round(_EMBEDDED_TEST_PART * len(y))])
  kinds = [digit for pair in _DIGIT_PAIRS for digit in pair]
  private = [rows[y[rows] >= kinds[0]] for rows in (train, test)]
  public = order[y[order] < kinds[0]]
  by_pair = choice.split == 'noniid'
  labels = (y - kinds[0]) // (2 if by_pair else 1)
  held, tested = (Labelled(x=x[rows], y=labels[rows]) for rows in private)
  if by_pair:
    parties = _one_kind_per_class(held, y[private[0]], choice, None)
  else:
    parties = _dealt(held, choice, None)
  return Data(
      public=Labelled(x=x[public], y=y[public]),
      public_classes=len(_DIGITS_PUBLIC), parties=parties, test=tested,
      private_classes=len(_DIGIT_PAIRS) if by_pair else len(kinds),
      party='a simulated party, with digits of unknown writers')


def mnist_letters(choice: Choice, *, data_path: str | os.PathLike[str],
                  cache_dir: str | os.PathLike[str] | None = None) -> Data:
  """MNIST digits public, handwritten letters a to f private.

  Args:
    choice: With split=noniid a party is a writer.
    data_path: Folder with mnist.npz, and with unipen62_writers.npz unless
      `cache_dir` is given.
    cache_dir: Folder with TFF's official emnist_all.sqlite, to take the letters
      from it (the paper's FEMNIST).
  """
  folder = pathlib.Path(data_path)
  public = _public(folder / 'mnist.npz')
  if cache_dir is None:
    held, test = _unipen_letters(folder / 'unipen62_writers.npz')
  else:
    held, test = _official_letters(cache_dir)
  if choice.split == 'noniid':
    parties = _one_writer_each(held, choice)
  else:
    parties = _dealt(held, choice, _LETTERS_IN_ALL)
  return Data(
      public=public, public_classes=10, parties=parties,
      test=test, private_classes=len(LETTERS),
      party='one writer' if choice.split == 'noniid' else
      'a simulated party, with letters of many writers')


def _unipen_letters(path: pathlib.Path) -> list[Labelled]:
  """Training and test letters with their writers."""
  names = [f'{array}_{part}' for array in ('x', 'y', 'writer')
           for part in labelled.PARTS]
  found = labelled.arrays(path, (*names, 'class_names'))
  known = found['class_names'].tolist()
  missing = [letter for letter in LETTERS if letter not in known]
  if missing:
    raise ValueError(f'{path}: class_names must have {", ".join(missing)}')
  numbers = [known.index(letter) for letter in LETTERS]
  return [_classes(path, found, f'x_{part}', f'y_{part}', f'writer_{part}',
                   numbers=numbers) for part in labelled.PARTS]


def _official_letters(cache_dir: str | os.PathLike[str]) -> list[Labelled]:
  """As `_unipen_letters`, from TFF's federated EMNIST."""
  # These import TensorFlow.
  from tasks.emnist import official as emnist_official  # pylint: disable=g-import-not-at-top
  from tasks.emnist import image_records  # pylint: disable=g-import-not-at-top
  path = emnist_official.FILE.find_or_download(cache_dir)
  count = emnist_official.num_classes(False)
  # Digits, upper case, lower case.
  numbers = [10 + 26 + ord(letter) - ord('a') for letter in LETTERS]
  parts = []
  for part in labelled.PARTS:
    source = image_records.images(
        emnist_official.open_split(path, part, only_digits=False),
        num_classes=count, dark_ink=True)
    images, labels, writers = [], [], []
    for client in source.client_ids:
      examples = source.examples(client)
      rows = np.isin(examples['y'], numbers)
      images.append(examples['x'][rows])
      labels.append(examples['y'][rows])
      writers.extend([client] * int(rows.sum()))
    found = {'x': np.concatenate(images), 'y': np.concatenate(labels),
             'writer': np.array(writers)}
    parts.append(_classes(path, found, *found, numbers=numbers))
  return parts


def cifar(choice: Choice, *, data_path: str | os.PathLike[str]) -> Data:
  """CIFAR-10 public, some of CIFAR-100 private.

  Args:
    choice: With split=iid the fine classes of CIFAR_CLASSES, with split=noniid
      the superclasses of CIFAR_SUPERCLASSES, of which a party has one fine class
      each.
    data_path: Folder with cifar10.npz or cifar10_subset.npz, and cifar100.npz or
      cifar100_subset.npz.
  """
  public = _public(_first(data_path, 'cifar10.npz', 'cifar10_subset.npz'))
  path = _first(data_path, 'cifar100.npz', 'cifar100_subset.npz')
  found = labelled.arrays(path, [
      f'{array}_{part}' for array in ('x', 'y_fine', 'y_coarse')
      for part in labelled.PARTS])
  by_superclass = choice.split == 'noniid'
  kind, numbers = 'y_fine', CIFAR_CLASSES
  if by_superclass:
    kind, numbers = 'y_coarse', CIFAR_SUPERCLASSES
  held, test = (_classes(path, found, f'x_{part}', f'{kind}_{part}', numbers=numbers)
                for part in labelled.PARTS)
  if by_superclass:
    kinds = found['y_fine_train'][np.isin(found['y_coarse_train'], numbers)]
    parties = _one_kind_per_class(held, kinds, choice, _CIFAR_IN_ALL)
  else:
    parties = _dealt(held, choice, _CIFAR_IN_ALL)
  return Data(
      public=public, public_classes=10, parties=parties,
      test=test, private_classes=len(numbers),
      party='a simulated party, with one fine class of every superclass'
      if by_superclass else 'a simulated party, with random images')


# Name of the task -> its data. Keyword arguments after the choice are options.
TASKS: dict[str, Callable[..., Data]] = {
    'digits': digits, 'mnist_letters': mnist_letters, 'cifar': cifar}


def _first(folder: str | os.PathLike[str], *names: str) -> pathlib.Path:
  """The first of these files that there is."""
  for name in names:
    if (pathlib.Path(folder) / name).is_file():
      return pathlib.Path(folder) / name
  raise ValueError(
      f'data_path={os.fspath(folder)} must hold {" or ".join(names)}, found neither')


def _public(path: pathlib.Path) -> Labelled:
  """The training part of a file."""
  found = labelled.arrays(path, ('x_train', 'y_train'))
  return labelled.checked(path, found, 'x_train', 'y_train', convert=labelled.pixels,
                          below=_MOST_LABELS)


def _classes(path: pathlib.Path, found: Mapping[str, np.ndarray], *names: str,
             numbers: Sequence[int]) -> Labelled:
  """The records of some classes, numbered from 0 again.

  Args:
    path: The file, for messages.
    found: Name -> array.
    *names: Those of records, labels and maybe writers.
    numbers: The classes.
  """
  data = labelled.checked(
      path, found, *names, convert=labelled.pixels, below=_MOST_LABELS)
  new = np.full(_MOST_LABELS, -1, np.int32)
  new[list(numbers)] = np.arange(len(numbers))
  data = dataclasses.replace(data, y=new[data.y])
  missing = sorted(set(range(len(numbers))) - set(data.y.tolist()))
  if missing:
    raise ValueError(
        f'{path} has no image of class {", ".join(str(numbers[i]) for i in missing)}')
  return data.rows(np.flatnonzero(data.y >= 0))
