"""Labelled arrays for the voting tasks, read from files and checked."""

import dataclasses
import io
import os
import pathlib
from typing import Sequence
import zipfile

import numpy as np

from tasks import task
from tasks.sources import image_npz
from tasks.sources import npz_file

OFFICE_DOMAINS = ('amazon', 'caltech10', 'dslr', 'webcam')
_EMBEDDED_SIZE = 16


# What a reader must know where a file does not list its agents.
_UNLISTED = task.Note(
    'population taken as public',
    'the agents are those that have a record in the file; who they are is taken as '
    'public knowledge, outside the guarantee: an array writers names all of them')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Labelled:
  """Attributes: x [n, ...] numbers, images as uint8 [n, height, width]; y int32 [n]."""

  x: np.ndarray
  y: np.ndarray

  def __len__(self) -> int:
    return len(self.y)

  def rows(self, index: np.ndarray) -> 'Labelled':
    """Some of the records."""
    return Labelled(x=self.x[index], y=self.y[index])


def arrays(path: str | os.PathLike[str],
           names: Sequence[str]) -> dict[str, np.ndarray]:
  """The named arrays of an .npz file.

  Raises:
    ValueError: If the file or an array is missing, or damaged; it names both.
  """
  path = pathlib.Path(path)
  if not path.is_file():
    raise ValueError(f'{path} does not exist or is not a file')
  found = {}
  try:
    with zipfile.ZipFile(path) as archive:
      present = set(archive.namelist())
      for name in names:
        if f'{name}.npy' in present:
          # Read to the end before parsing: only then is the checksum verified.
          content = io.BytesIO(archive.read(f'{name}.npy'))
          found[name] = np.load(content, allow_pickle=False)
  # Damage shows as errors of many kinds, depending on the byte that it hits.
  except Exception as error:
    detail = ' '.join(str(error).split()) or type(error).__name__
    raise ValueError(
        f'{path} is not an npz file, or corrupted: {detail}') from error
  missing = [name for name in names if name not in found]
  if missing:
    raise ValueError(f'{path} has no array {", ".join(missing)}')
  return found


def checked(name: str, x: np.ndarray, y: np.ndarray,
            num_classes: int | None = None) -> Labelled:
  """Records whose values are finite and whose labels are in range.

  Args:
    name: Of the part, for messages.
    x: [n, ...] numbers.
    y: [n] integers.
    num_classes: Labels must be below it; None for any.

  Raises:
    ValueError: For what is wrong; it names the part and the row.
  """
  if y.ndim != 1 or y.dtype.kind not in 'iu' or len(x) != len(y):
    raise ValueError(
        f'{name}: labels must be one integer a record, found {y.dtype} '
        f'{list(y.shape)} for {len(x)} records')
  if x.dtype.kind not in 'iuf' or x.ndim < 2:
    raise ValueError(f'{name}: records must be arrays of numbers, found '
                     f'{x.dtype} {list(x.shape)}')
  if not len(y):
    raise ValueError(f'{name}: there must be at least one record, found none')
  finite = np.isfinite(x.reshape(len(x), -1)).all(axis=1)
  if not finite.all():
    raise ValueError(f'{name}: records must be finite, found another value in row '
                     f'{int(np.argmin(finite))}')
  limit = image_npz.MAX_CLASSES if num_classes is None else num_classes
  good = (y >= 0) & (y < limit)
  if not good.all():
    row = int(np.argmin(good))
    raise ValueError(f'{name}: labels must be in [0, {limit}), found {y[row]} in '
                     f'row {row}')
  return Labelled(x=x, y=y.astype(np.int32))


def _triangle(size: int, new_size: int) -> np.ndarray:
  """[new_size, size]: linear interpolation, widened where it makes smaller."""
  scale = size / new_size
  centres = (np.arange(new_size) + 0.5) * scale - 0.5
  weights = np.maximum(0.0, 1.0 - np.abs(
      centres[:, None] - np.arange(size)) / max(scale, 1.0))
  return weights / weights.sum(axis=1, keepdims=True)


def resized(images: np.ndarray, size: int) -> np.ndarray:
  """uint8 [n, height, width] images as uint8 [n, size, size]."""
  _, height, width = images.shape
  down, across = _triangle(height, size), _triangle(width, size)
  return np.rint(down @ images.astype(np.float64) @ across.T).astype(np.uint8)


def grey(images: np.ndarray) -> np.ndarray:
  """uint8 [n, height, width, 3] as its luma (ITU-R BT.601), uint8."""
  return np.rint(images @ np.array([0.299, 0.587, 0.114])).astype(np.uint8)


def embedded() -> Labelled:
  """The 1,797 digits that ship with scikit-learn, as images of 16 x 16."""
  # scikit-learn takes a second to import, which the other sources need not pay.
  from sklearn import datasets  # pylint: disable=g-import-not-at-top
  digits = datasets.load_digits()
  images = np.rint(digits.images * (255 / 16)).astype(np.uint8)
  return Labelled(x=resized(images, _EMBEDDED_SIZE),
                  y=digits.target.astype(np.int32))


def digits_domain(folder: str | os.PathLike[str], domain: str, size: int,
                  frame: int = 0) -> tuple[Labelled, Labelled]:
  """The training and test part of a domain of digits, grey images [size, size].

  Args:
    folder: That holds mnist.npz, usps.npz and svhn_1000.npz.
    domain: 'mnist', 'usps' or 'svhn'.
    size: Of the images.
    frame: Pixels that are cut off at each side first.
  """
  name = {'svhn': 'svhn_1000'}.get(domain, domain)
  path = pathlib.Path(folder) / f'{name}.npz'
  found = arrays(path, ('x_train', 'y_train', 'x_test', 'y_test'))
  parts = []
  for part in ('train', 'test'):
    x = found[f'x_{part}']
    x = grey(x) if x.ndim == 4 else x
    x = x[:, frame:x.shape[1] - frame, frame:x.shape[2] - frame]
    x = x if x.shape[1:] == (size, size) else resized(x, size)
    parts.append(checked(f'{path} {part}', x, found[f'y_{part}'], 10))
  return parts[0], parts[1]


def office_caltech(path: str | os.PathLike[str]) -> dict[str, Labelled]:
  """Domain -> SURF words, the square roots of their shares; float32 [n, 800].

  Roots make every vector one of length 1, and distances those of Hellinger, which
  suit counts better. Each image's follow from that image alone.
  """
  names = [f'{domain}_{kind}' for domain in OFFICE_DOMAINS for kind in 'xy']
  found = arrays(path, names)
  result = {}
  for domain in OFFICE_DOMAINS:
    x = found[f'{domain}_x'].astype(np.float32)
    if x.ndim != 2:
      raise ValueError(
          f'{path}: {domain}_x must be [images, words], found {list(x.shape)}')
    x = np.sqrt(x / np.maximum(x.sum(axis=1, keepdims=True), 1.0))
    result[domain] = checked(f'{path} {domain}', x, found[f'{domain}_y'], 10)
  return result


@dataclasses.dataclass(frozen=True, kw_only=True)
class AgentsFile:
  """What a file of records by agent holds.

  Attributes:
    train: The agents' records.
    owners: [n] integers or strings, the agent of each of them.
    agents: [N], distinct and sorted, all agents, with records or without.
    test: Records of the server.
    num_classes: Labels are below.
    notes: What a reader of results must know of the file.
  """

  train: Labelled
  owners: np.ndarray
  agents: np.ndarray
  test: Labelled
  num_classes: int
  notes: tuple[str, ...]


def counted_classes(*parts: Labelled) -> tuple[int, tuple[str, ...]]:
  """How many classes labels name, at least 2, and the note that says so."""
  number = max(2, *(int(part.y.max()) + 1 for part in parts))
  return number, (image_npz.counted_note(number),)


def stated_classes(path: str | os.PathLike[str],
                   given: int | None = None) -> int | None:
  """The number of classes: as given, or as the file states it; None if neither is.

  Raises:
    ValueError: If it is out of range, or malformed in the file.
  """
  if given is not None:
    image_npz.check_num_classes(given)
    return given
  return image_npz.stated_classes(path)


def _agents(path: str | os.PathLike[str],
            owners: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
  """All agents of a file, sorted, and a note if it does not list them."""
  if 'writers' not in npz_file.names(path):
    return np.unique(owners), (_UNLISTED,)
  listed = npz_file.read(path, ['writers'])['writers']
  kinds = {'i': 'iu', 'u': 'iu', 'U': 'U'}[owners.dtype.kind]
  agents = np.unique(listed)
  if listed.ndim != 1 or listed.dtype.kind not in kinds or (
      agents.size != listed.size):
    raise ValueError(
        f'{path}: writers must list each agent once, in the type of writer_train '
        f'({owners.dtype}), found {listed.dtype} {list(listed.shape)} of '
        f'{agents.size} different values')
  unknown = ~np.isin(owners, agents)
  if unknown.any():
    row = int(np.argmax(unknown))
    raise ValueError(f'{path}: writer_train must be one of writers, found '
                     f'{owners[row]!r} in row {row}')
  return agents, ()


def npz(path: str | os.PathLike[str],
        num_classes: int | None = None) -> AgentsFile:
  """Any file with x_train, y_train, writer_train, x_test and y_test.

  Args:
    path: x_* are images [n, height, width], checked as `image_npz.read` does, or
      feature vectors [n, d]; writer_train says whose each record is. It may have
      writers, all agents, and num_classes or class_names (`image_npz`).
    num_classes: Labels are below; None for what the file says.

  Raises:
    ValueError: For what is wrong; it names the file.
  """
  found = arrays(path, image_npz.REQUIRED)
  num_classes, notes = stated_classes(path, num_classes), ()
  x, owners = found['x_train'], found['writer_train']
  if x.ndim == 3:
    parts = image_npz.read(path, x.shape[1:], num_classes=num_classes)[:2]
    train, test = (Labelled(x=part.x, y=part.y) for part in parts)
  else:
    train, test = _vectors(path, found, num_classes)
  if num_classes is None:
    num_classes, notes = counted_classes(train, test)
  agents, more = _agents(path, owners)
  return AgentsFile(
      train=train, owners=owners, agents=agents, test=test,
      num_classes=num_classes, notes=(*notes, *more))


def _vectors(path: str | os.PathLike[str], found: dict[str, np.ndarray],
             num_classes: int | None) -> tuple[Labelled, Labelled]:
  """The training and the test part of a file of feature vectors, as float32."""
  train, test = (
      checked(f'{path} {part}', found[f'x_{part}'], found[f'y_{part}'], num_classes)
      for part in ('train', 'test'))
  agents = found['writer_train']
  if agents.shape != train.y.shape or agents.dtype.kind not in 'iuU':
    raise ValueError(
        f'{path}: writer_train must be an integer or string for each record, '
        f'found {agents.dtype} {list(agents.shape)}')
  if train.x.shape[1:] != test.x.shape[1:]:
    raise ValueError(
        f'{path}: x_train and x_test must have records of one shape, found '
        f'{list(train.x.shape[1:])} and {list(test.x.shape[1:])}')
  return tuple(
      Labelled(x=p.x.astype(np.float32), y=p.y) for p in (train, test))
