"""Records with labels: read from .npz files, checked, and their classes counted.

Every family reads labelled arrays here, so that the same error gives the same message,
one line that names the file, the array and the row.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import functools
import io
import math
import os
import sys
from typing import NamedTuple
import warnings
import zipfile

import numpy as np

from tasks import checks, task

PARTS = ('train', 'test')
# The arrays of most files.
ARRAYS = ('x_train', 'y_train', 'x_test', 'y_test')
# The arrays that state the number of classes.
CLASS_ARRAYS = ('num_classes', 'class_names')

# A larger label is an error in the file; it would size the last layer.
MAX_CLASSES = 1000

# Divides the data that ship with libraries, whatever the clients: accuracies of different
# runs are of the same examples.
SPLIT_SEED = 20230817

Path = str | os.PathLike[str]
# The name of an array, for messages, and the array -> the records of a task.
Convert = Callable[[str, np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Labelled:
  """Records [n, ...], labels int32 [n], and their clients where known."""

  x: np.ndarray
  y: np.ndarray
  clients: np.ndarray | None = None

  def __len__(self) -> int:
    return len(self.y)

  def rows(self, index: np.ndarray) -> 'Labelled':
    """Some of the records, in the order of `index`."""
    clients = None if self.clients is None else self.clients[index]
    return Labelled(x=self.x[index], y=self.y[index], clients=clients)

  def divided(self, count: int, seed: int | np.random.Generator = SPLIT_SEED
              ) -> tuple['Labelled', 'Labelled']:
    """So many of the records, at random, and all others; by default always the same."""
    order = np.random.default_rng(seed).permutation(len(self))
    return self.rows(order[:count]), self.rows(order[count:])


def concatenated(parts: Sequence[Labelled]) -> Labelled:
  """The records of all parts, end to end, without their clients."""
  return Labelled(x=np.concatenate([part.x for part in parts]),
                  y=np.concatenate([part.y for part in parts]))


class Parts(NamedTuple):
  """The parts of a file of labelled records.

  Attributes:
    train: The training part.
    test: The test part; None if there is none.
    num_classes: The exclusive upper bound of the labels of both.
    notes: Caveats for readers of results.
  """

  train: Labelled
  test: Labelled | None
  num_classes: int
  notes: tuple[task.Note, ...] = ()


@contextlib.contextmanager
def _open_archive(path: Path) -> Iterator[zipfile.ZipFile]:
  checks.file(path)
  try:
    # NumPy prints warnings about odd headers.
    with warnings.catch_warnings(action='ignore'), zipfile.ZipFile(path) as archive:
      yield archive
  # Damage shows as BadZipFile, LZMAError, zlib.error, EOFError, ValueError,
  # NotImplementedError and more, depending on the byte that it hits.
  except Exception as error:
    detail = checks.one_line(error)
    raise ValueError(f'{path} is not an npz file, or corrupted: {detail}') from error


def array_names(path: Path) -> list[str]:
  """The names of the arrays in a file, in its order. Raises ValueError."""
  with _open_archive(path) as archive:
    return [name.removesuffix('.npy') for name in archive.namelist()]


def arrays(path: Path, wanted: Sequence[str], optional: Sequence[str] = (),
           hint: str = '') -> dict[str, np.ndarray]:
  """Reads arrays of an .npz file by their names.

  Raises ValueError if the file is missing or damaged, or lacks a wanted array.
  """
  with _open_archive(path) as archive:
    present = set(archive.namelist())
    # Read to the end before parsing: only then is the checksum verified.
    by_name = {name: _checked(np.load(io.BytesIO(archive.read(f'{name}.npy')),
                                      allow_pickle=False))
               for name in [*wanted, *optional] if f'{name}.npy' in present}
    for other in present - {f'{name}.npy' for name in by_name}:
      archive.open(other).close()  # A damaged name of an optional array shows here.
  if missing := [name for name in wanted if name not in by_name]:
    raise ValueError(f'{path} has no array {", ".join(missing)}{hint}')
  return by_name


def mapped(path: Path, name: str, folder: str) -> np.ndarray:
  """One array, mapped into memory from its own file in a folder. Raises ValueError."""
  with _open_archive(path) as archive:
    # Extracted to the end before it is mapped: only then is the checksum verified.
    file = archive.extract(f'{name}.npy', folder)
    array = np.load(file, mmap_mode='r', allow_pickle=False)
    size = os.path.getsize(file)
    os.unlink(file)  # The map stays.
    # NumPy multiplies sizes modulo 2^64, and then maps less than it reads.
    if math.prod(array.shape) * array.itemsize > size:
      raise ValueError('an array is larger than its file')
    return _checked(array)


def _checked(array: np.ndarray) -> np.ndarray:
  """The array; ValueError if it has invalid characters, which NumPy does not check."""
  if array.dtype.kind == 'U' and array.size and array.itemsize:
    codes = np.ascontiguousarray(array).reshape(-1).view(
        np.dtype(np.uint32).newbyteorder(array.dtype.byteorder))
    if codes.max() > sys.maxunicode:
      raise ValueError(f'a text has the character {codes.max():#x}, which is none')
  return array


def stated_classes(path: Path, by_name: Mapping[str, np.ndarray]) -> int | None:
  """The number of classes that arrays state, whatever the labels are.

  Returns the number by num_classes, an integer, or class_names, one a class. None if
  there is neither array: then all that is said of classes is in the labels, which are as
  private as the records. Raises ValueError if one of them is malformed, or they differ.
  """
  number, names = map(by_name.get, CLASS_ARRAYS)
  if names is not None and (names.ndim != 1 or not 2 <= names.size <= MAX_CLASSES):
    raise checks.wrong(f'{path}: class_names', f'a list of 2 to {MAX_CLASSES}', names)
  if number is not None and (number.size != 1 or number.dtype.kind not in 'iu'):
    raise checks.wrong(f'{path}: num_classes', 'one integer', number)
  with checks.located(path):
    classes = named_classes(None if number is None else number.item(),
                            None if names is None else names.tolist())
  return len(classes) or None


def named_classes(num_classes: int | None,
                  class_names: Sequence[str] | None) -> tuple[str, ...]:
  """Names of the classes, or numbers; empty if neither is given. Raises ValueError."""
  if num_classes is None:
    return tuple(class_names or ())
  checks.integer('num_classes', num_classes, 2, MAX_CLASSES)
  if class_names and len(class_names) != num_classes:
    raise ValueError(f'class_names must be {num_classes}, found {len(class_names)}')
  return tuple(class_names or map(str, range(num_classes)))


def parts_of(path: Path, by_name: Mapping[str, np.ndarray], names: Sequence[str],
             convert: Convert, *, num_classes: int | None = None,
             otherwise: int | None = None) -> Parts:
  """Checks a training part and a test part, if there is one.

  Args:
    path: The file, for messages.
    by_name: Name -> array, with _train and _test at the ends of `names`; see `checked`
      and `stated_classes`.
    names: Those of records, labels and, if they are to be read, clients.
    convert: Converts the records of both parts.
    num_classes: The exclusive upper bound of labels; None for the file's own.
    otherwise: The same where the file states none; None counts labels.

  Returns the parts. The number of classes is that which is given or stated, or the
  largest label of both parts plus 1, which private labels decide; then there is a note.
  Raises ValueError if an array is malformed. The message names it and the file.
  """
  if num_classes is None:
    num_classes = stated_classes(path, by_name) or otherwise
  else:
    checks.integer('num_classes', num_classes, 2, MAX_CLASSES)
  train, test = (
      checked(path, by_name, *(f'{name}_{part}' for name in names), convert=convert,
              below=num_classes or MAX_CLASSES)
      if f'{names[0]}_{part}' in by_name else None for part in PARTS)
  if test is not None and test.x.shape[1:] != train.x.shape[1:]:
    raise ValueError(f'{path}: {names[0]}_train and {names[0]}_test must have records of '
                     f'one shape, found {checks.form(train.x)} and {checks.form(test.x)}')
  if num_classes is not None:
    return Parts(train, test, num_classes)
  # Both parts decide, so that no private label decides if the test part is in range.
  num_classes = 1 + max(int(part.y.max()) for part in (train, test) if part is not None)
  if num_classes < 2:
    raise ValueError(f'{path}: {names[1]} has only the label 0: nothing to learn')
  return Parts(train, test, num_classes, (task.Note(
      'classes counted in private labels',
      f'the number of classes, {num_classes}, was counted from labels, private ones '
      'among them, and is taken as public knowledge, outside the guarantee: give '
      '--num_classes, or an array num_classes or class_names'),))


def checked(path: Path, by_name: Mapping[str, np.ndarray], x: str, y: str,
            clients: str = '', *, convert: Convert, below: int = MAX_CLASSES) -> Labelled:
  """Records and labels of arrays that belong together.

  Args:
    path: The file, for messages.
    by_name: Name -> array.
    x: The name of the records, finite numbers [n, ...].
    y: The name of the labels, integers [n].
    clients: The name of the clients, which may be absent: integers or strings [n].
    convert: Converts the records, after the check that they are finite.
    below: The exclusive upper bound of labels.

  Raises ValueError if an array is malformed. The message names it, the file and the
  first bad row.
  """
  records, of_x = by_name[x], f'{path}: {x}'
  if records.dtype.kind not in 'iuf' or records.ndim < 2:
    raise checks.wrong(of_x, 'numbers [records, ...]', records)
  if not records.size:
    raise ValueError(f'{of_x} is empty: there must be at least one record')
  if records.dtype.kind == 'f':
    check_each(of_x, records, np.isfinite(records), 'finite')
  labels = checked_labels(f'{path}: {y}: labels', by_name[y], len(records), below)
  if clients in by_name:
    _check_one_each(f'{path}: {clients}', by_name[clients], len(records), 'iuU',
                    'integer or string')
  return Labelled(x=convert(of_x, records), y=labels, clients=by_name.get(clients))


def checked_labels(name: str, labels: np.ndarray, count: int, below: int) -> np.ndarray:
  """Labels of `count` records as int32; ValueError unless integers in [0, below)."""
  _check_one_each(name, labels, count, 'iu', 'integer')
  check_each(name, labels, (labels >= 0) & (labels < below), f'in [0, {below})')
  return labels.astype(np.int32)


def _check_one_each(name: str, array: np.ndarray, count: int, kinds: str,
                    rule: str) -> None:
  if array.shape != (count,) or array.dtype.kind not in kinds:
    raise checks.wrong(name, f'one {rule} for each of {count} records', array)


def check_each(name: str, array: np.ndarray, good: np.ndarray, rule: str) -> None:
  """Raises ValueError that names the first row with an entry that is not good."""
  if not np.all(good):
    first = np.unravel_index(np.argmin(good), good.shape)
    raise ValueError(f'{name} must be {rule}, found {array[first]!r} in row {first[0]}')


def images(name: str, x: np.ndarray,
           shape: tuple[int, ...] | None = (28, 28)) -> np.ndarray:
  """Images as uint8 [n, *shape], of integers in [0, 255] or floats in [0, 1].

  A shape that is None is any, maybe with channels. Raises ValueError, which begins with
  `name`, if they have another shape, or values are out of range.
  """
  if x.ndim not in (3, 4) if shape is None else x.shape[1:] != shape:
    sides = ('height', 'width(, channels)') if shape is None else shape
    raise checks.wrong(name, f'[examples, {", ".join(map(str, sides))}]', x)
  if x.dtype.kind == 'f':
    check_each(name, x, (x >= 0) & (x <= 1), 'in [0, 1] (where images are floats)')
    return np.rint(x * 255).astype(np.uint8)
  if x.dtype != np.uint8:
    check_each(name, x, (x >= 0) & (x <= 255), 'in [0, 255]')
  return x.astype(np.uint8, copy=False)


def _triangle(size: int, new_size: int) -> np.ndarray:
  """[new_size, size]: linear interpolation, widened where it shrinks."""
  scale = size / new_size
  centres = (np.arange(new_size) + 0.5) * scale - 0.5
  weights = np.maximum(0.0, 1.0 - np.abs(
      centres[:, None] - np.arange(size)) / max(scale, 1.0))
  return weights / weights.sum(axis=1, keepdims=True)


def resized(images: np.ndarray, size: int) -> np.ndarray:
  """Resizes uint8 [n, height, width] images to uint8 [n, size, size]."""
  _, height, width = images.shape
  down, across = _triangle(height, size), _triangle(width, size)
  return np.rint(down @ images.astype(np.float64) @ across.T).astype(np.uint8)


def pixels(name: str, x: np.ndarray, least: int = 1) -> np.ndarray:
  """Images uint8 with channels or without as [n, height, width, channels].

  Raises ValueError for others, and if height or width is below `least`.
  """
  if x.dtype != np.uint8 or x.ndim not in (3, 4) or not x.size or (
      min(x.shape[1:3]) < least):
    sides = f'height >= {least}, width >= {least}'
    raise checks.wrong(f'{name}: images', f'uint8 [n, {sides}(, channels)]', x)
  return x if x.ndim == 4 else x[..., np.newaxis]


def read(path: Path, names: Sequence[str] = ('x', 'y', 'writer'), *,
         num_classes: int | None = None, convert: Convert = images) -> Parts:
  """Reads the parts of a file of images; the test part may be absent, or its clients.

  Arguments, result and errors are those of `parts_of`; the clients of the training
  part must be there if they are to be read.
  """
  train, test = ([f'{name}_{part}' for name in names] for part in PARTS)
  has_test = not set(test).isdisjoint(array_names(path))
  hint = '; without clients, pass --partition' if len(names) > 2 else ''
  by_name = arrays(path, [*train, *(test[:2] if has_test else ())],
                   [*test[2:], *CLASS_ARRAYS], hint)
  return parts_of(path, by_name, names, convert, num_classes=num_classes)


@functools.lru_cache(maxsize=1)
def _digits() -> tuple[np.ndarray, np.ndarray]:
  """The digits of scikit-learn: ink in [0, 16], float64 [1797, 8, 8]; int32 [1797]."""
  # scikit-learn takes a second to import, which the other sources need not pay.
  from sklearn import datasets  # pylint: disable=g-import-not-at-top
  digits = datasets.load_digits()
  return digits.images, digits.target.astype(np.int32)


@functools.lru_cache(maxsize=1)
def framed_digits() -> Labelled:
  """Images uint8 [1797, 28, 28] as in MNIST: digits of 20 x 20 in a frame."""
  images, y = _digits()
  # Linear interpolation between the centres of pixels.
  size = images.shape[1]
  centres = (np.arange(20) + 0.5) * size / 20 - 0.5
  enlarge = np.stack(
      [np.interp(centres, np.arange(size), row) for row in np.eye(size)], axis=1)
  x = np.zeros([len(y), 28, 28], np.uint8)
  x[:, 4:24, 4:24] = np.rint(enlarge @ (images / 16.0) @ enlarge.T * 255.0)
  return Labelled(x=x, y=y)


def resized_digits(size: int = 16) -> Labelled:
  """Images uint8 [1797, size, size]."""
  images, y = _digits()
  return Labelled(
      x=resized(np.rint(images * (255 / 16)).astype(np.uint8), size), y=y)
