"""Reads labelled images by client from an .npz file, and checks all of it."""

import dataclasses
import io
import os
import pathlib
import zipfile

import numpy as np

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


def read(
    path: str | os.PathLike[str], image_shape: tuple[int, int] = (28, 28)
) -> tuple[LabelledImages, LabelledImages, int]:
  """Reads a training and a test part.

  Args:
    path: A file with the arrays of REQUIRED: x_*, images [N, height, width],
      integers in [0, 255] or floats in [0, 1]; y_*, integers [N] from 0 on;
      writer_*, integers or strings [N], the client of each image. writer_test
      may be absent, and then the clients of the test part are None.
      class_names, one per class, may be present.
    image_shape: What every image must measure.

  Returns:
    The training part, the test part, and the number of classes: that of
    class_names if present, else the largest training label plus 1.

  Raises:
    ValueError: If the file is missing, corrupted or malformed. The message
      names the file and the array.
  """
  path = pathlib.Path(path)
  arrays = _read_arrays(path)
  try:
    return _checked(arrays, image_shape)
  except ValueError as error:
    raise ValueError(f'{path}: {error}') from error


def _read_arrays(path: pathlib.Path) -> dict[str, np.ndarray]:
  """The arrays of the file that we know, by name."""
  if not path.is_file():
    raise ValueError(f'{path} does not exist or is not a file')
  arrays = {}
  try:
    with zipfile.ZipFile(path) as archive:
      present = set(archive.namelist())
      for name in (*REQUIRED, 'writer_test', 'class_names'):
        if f'{name}.npy' in present:
          # Read to the end before parsing: only then is the checksum verified.
          content = io.BytesIO(archive.read(f'{name}.npy'))
          arrays[name] = np.load(content, allow_pickle=False)
  # Damage shows as BadZipFile, LZMAError, zlib.error, EOFError, ValueError,
  # NotImplementedError and more, depending on the byte that it hits.
  except Exception as error:
    detail = ' '.join(str(error).split()) or type(error).__name__
    raise ValueError(
        f'{path} is not an npz file, or corrupted: {detail}') from error
  missing = [name for name in REQUIRED if name not in arrays]
  if missing:
    raise ValueError(
        f'{path} has no array {", ".join(missing)}; needed are '
        f'{", ".join(REQUIRED)} (and writer_test if known)')
  return arrays


def _checked(
    arrays: dict[str, np.ndarray], image_shape: tuple[int, int]
) -> tuple[LabelledImages, LabelledImages, int]:
  """Checks the arrays one by one, then against each other."""
  parts = []
  for part in ('train', 'test'):
    x = _images(f'x_{part}', arrays[f'x_{part}'], image_shape)
    y = _labels(f'y_{part}', arrays[f'y_{part}'])
    clients = arrays.get(f'writer_{part}')
    if clients is not None:
      _check_clients(f'writer_{part}', clients)
      _check_length(f'writer_{part}', clients, f'x_{part}', x)
    _check_length(f'y_{part}', y, f'x_{part}', x)
    parts.append(LabelledImages(x=x, y=y, clients=clients))
  train, test = parts
  if 'class_names' in arrays:
    names = arrays['class_names']
    if names.ndim != 1 or not 2 <= names.size <= MAX_CLASSES:
      raise ValueError(
          f'class_names must be a list of 2 to {MAX_CLASSES} names, found '
          f'shape {list(names.shape)}')
    num_classes, rule = names.size, 'there are as many class_names'
  else:
    num_classes = int(train.y.max()) + 1
    rule = 'the largest label of y_train is one less'
    if num_classes < 2:
      raise ValueError('y_train has only the label 0: nothing to learn')
  for name, y in (('y_train', train.y), ('y_test', test.y)):
    _check_each(name, y, y < num_classes, f'below {num_classes} ({rule})')
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
