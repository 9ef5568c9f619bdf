"""Reads labelled images by client from an .npz file, and checks all of it."""

import dataclasses
import os
import pathlib

import numpy as np

from tasks import task
from tasks.sources import npz_file

# What states the number of classes, beside the arrays of records.
CLASS_ARRAYS = ('num_classes', 'class_names')

REQUIRED = ('x_train', 'y_train', 'writer_train', 'x_test', 'y_test')

# A label beyond is a mistake in the file; it would size the last layer.
MAX_CLASSES = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelledImages:
  """Images with labels, and their clients where known.

  Attributes:
    x: uint8 [examples, 28, 28].
    y: int32 [examples].
    clients: [examples] integers or strings, or None.
  """

  x: np.ndarray
  y: np.ndarray
  clients: np.ndarray | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Names:
  """What the arrays are called, before _train and _test.

  Attributes:
    image: Of the images.
    label: Of the labels.
    client: Of the client of each image.
  """

  image: str = 'x'
  label: str = 'y'
  client: str = 'writer'


def check_num_classes(num_classes: int) -> None:
  """Raises ValueError unless it is a number of classes that can be learnt."""
  if isinstance(num_classes, bool) or not isinstance(
      num_classes, int) or not 2 <= num_classes <= MAX_CLASSES:
    raise ValueError(f'num_classes must be an integer from 2 to {MAX_CLASSES}, found '
                     f'{num_classes!r}')


def stated_classes(path: str | os.PathLike[str]) -> int | None:
  """The number of classes that a file states, whatever labels it holds.

  Args:
    path: A file that may have num_classes, an integer, or class_names, one a class.

  Returns:
    The number; None if the file has neither array, so that all it says of classes
    is in its labels, which are as private as the records.

  Raises:
    ValueError: If the file or one of the arrays is malformed, or they differ.
  """
  arrays = npz_file.read(path, CLASS_ARRAYS)
  try:
    return _stated(arrays)[0]
  except ValueError as error:
    raise ValueError(f'{os.fspath(path)}: {error}') from error


def counted_note(num_classes: int) -> task.Note:
  """The note where classes were counted from labels."""
  return task.Note(
      'classes counted in private labels',
      f'the number of classes, {num_classes}, was counted from labels, private ones '
      'among them, and is taken as public knowledge, outside the guarantee: give '
      '--num_classes, or an array num_classes or class_names in the file')


def read(
    path: str | os.PathLike[str], image_shape: tuple[int, int] = (28, 28), *,
    names: Names = Names(), needs_clients: bool = True,
    num_classes: int | None = None
) -> tuple[LabelledImages, LabelledImages, int]:
  """Reads a training and a test part.

  Args:
    path: A file with the arrays IMAGE_*, images [N, height, width], integers in
      [0, 255] or floats in [0, 1]; LABEL_*, integers [N] from 0 on; CLIENT_*,
      integers or strings [N], the client of each image; * being train and test.
      CLIENT_test may be absent, and then the clients of the test part are None.
      num_classes, an integer, or class_names, one per class, may be present.
    image_shape: What every image must measure.
    names: IMAGE, LABEL and CLIENT.
    needs_clients: Whether CLIENT_train must be there; if not, it is not read.
    num_classes: Labels must be below; None for what the file says.

  Returns:
    The training part, the test part, and the number of classes: `num_classes` if
    given, else what the file states (`stated_classes`), else the largest label of
    both parts plus 1, which private labels decide (`counted_note`).

  Raises:
    ValueError: If the file is missing, corrupted or malformed. The message
      names the file and the array.
  """
  path = pathlib.Path(path)
  if num_classes is not None:
    check_num_classes(num_classes)
  arrays = _read_arrays(path, names, needs_clients)
  try:
    return _checked(arrays, image_shape, names, num_classes)
  except ValueError as error:
    raise ValueError(f'{path}: {error}') from error


def _read_arrays(path: pathlib.Path, names: Names,
                 needs_clients: bool) -> dict[str, np.ndarray]:
  """The arrays of the file that we know, by name."""
  clients = [f'{names.client}_train'] if needs_clients else []
  required = [f'{names.image}_train', f'{names.label}_train', *clients,
              f'{names.image}_test', f'{names.label}_test']
  more = [f'{names.client}_test'] if needs_clients else []
  arrays = npz_file.read(path, [*required, *more, *CLASS_ARRAYS])
  missing = [name for name in required if name not in arrays]
  if missing:
    hint = '' if missing != clients else (
        ': without clients, pass --partition to divide the examples over simulated '
        'ones')
    raise ValueError(
        f'{path} has no array {", ".join(missing)}; needed are '
        f'{", ".join(required)} (and {names.client}_test if known){hint}')
  return arrays


def _stated(arrays: dict[str, np.ndarray]) -> tuple[int | None, str]:
  """The number of classes that arrays state and where; None if they do not."""
  found = None, ''
  if 'class_names' in arrays:
    class_names = arrays['class_names']
    if class_names.ndim != 1 or not 2 <= class_names.size <= MAX_CLASSES:
      raise ValueError(
          f'class_names must be a list of 2 to {MAX_CLASSES} names, found '
          f'shape {list(class_names.shape)}')
    found = class_names.size, 'there are as many class_names'
  if 'num_classes' in arrays:
    array = arrays['num_classes']
    if array.size != 1 or array.dtype.kind not in 'iu':
      raise ValueError(f'num_classes must be one integer, found {array.dtype} '
                       f'{list(array.shape)}')
    number = int(array.item())
    check_num_classes(number)
    if found[0] not in (None, number):
      raise ValueError(f'num_classes must be the number of class_names, {found[0]}, '
                       f'found {number}')
    found = number, 'as num_classes says'
  return found


def _checked(
    arrays: dict[str, np.ndarray], image_shape: tuple[int, int], names: Names,
    num_classes: int | None
) -> tuple[LabelledImages, LabelledImages, int]:
  """Checks the arrays one by one, then against each other."""
  parts = []
  for part in ('train', 'test'):
    image, label, client = (
        f'{name}_{part}' for name in (names.image, names.label, names.client))
    x = _images(image, arrays[image], image_shape)
    y = _labels(label, arrays[label])
    clients = arrays.get(client)
    if clients is not None:
      _check_clients(client, clients)
      _check_length(client, clients, image, x)
    _check_length(label, y, image, x)
    parts.append(LabelledImages(x=x, y=y, clients=clients))
  train, test = parts
  rule = 'as num_classes says'
  if num_classes is None:
    num_classes, rule = _stated(arrays)
  if num_classes is None:
    # Of both parts, so that no private label decides if the test part is in range.
    num_classes = int(max(train.y.max(), test.y.max())) + 1
    if num_classes < 2:
      raise ValueError(f'{names.label}_train and {names.label}_test have only the '
                       'label 0: nothing to learn')
  for part, y in (('train', train.y), ('test', test.y)):
    _check_each(f'{names.label}_{part}', y, y < num_classes,
                f'below {num_classes} ({rule})')
  return train, test, num_classes


def _check_length(name: str, array: np.ndarray, other_name: str,
                  other: np.ndarray) -> None:
  if len(array) != len(other):
    raise ValueError(
        f'{name} has {len(array)} rows but {other_name} has {len(other)}')


def _check_each(name: str, array: np.ndarray, good: np.ndarray,
                rule: str) -> None:
  """Raises ValueError that names the first row with a bad entry."""
  if not np.all(good):
    first = np.unravel_index(np.argmin(good), good.shape)
    raise ValueError(
        f'{name} must be {rule}, found {array[first]!r} in row {first[0]}')


def _images(name: str, array: np.ndarray,
            image_shape: tuple[int, int]) -> np.ndarray:
  """Checks images and returns them as uint8 [examples, height, width]."""
  if array.ndim != 3 or array.shape[1:] != image_shape:
    raise ValueError(
        f'{name} must have the shape [examples, {image_shape[0]}, '
        f'{image_shape[1]}], found {list(array.shape)}')
  if array.size == 0:
    raise ValueError(f'{name} is empty: there must be at least one example')
  if array.dtype.kind == 'f':
    _check_each(name, array, np.isfinite(array), 'finite')
    _check_each(name, array, (array >= 0) & (array <= 1),
                'in [0, 1] (where images are floats)')
    return np.rint(array * 255).astype(np.uint8)
  if array.dtype.kind not in 'iu':
    raise ValueError(
        f'{name} must be integers in [0, 255] or floats in [0, 1], found '
        f'{array.dtype}')
  if array.dtype != np.uint8:
    _check_each(name, array, (array >= 0) & (array <= 255), 'in [0, 255]')
  return array.astype(np.uint8, copy=False)


def _labels(name: str, array: np.ndarray) -> np.ndarray:
  """Checks labels and returns them as int32 [examples]."""
  if array.ndim != 1 or array.dtype.kind not in 'iu':
    raise ValueError(
        f'{name} must be one integer per example, found {array.dtype} '
        f'{list(array.shape)}')
  if array.size == 0:
    raise ValueError(f'{name} is empty: there must be at least one example')
  _check_each(name, array, array >= 0, 'at least 0')
  _check_each(name, array, array < MAX_CLASSES, f'below {MAX_CLASSES}')
  return array.astype(np.int32)


def _check_clients(name: str, array: np.ndarray) -> None:
  if array.ndim != 1 or array.dtype.kind not in 'iuU':
    raise ValueError(
        f'{name} must be one integer or string per example, found '
        f'{array.dtype} {list(array.shape)}')
