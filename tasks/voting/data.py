"""Labelled arrays for the voting tasks, read from files and checked."""

import functools
import os
import pathlib

import numpy as np

from tasks import task
from tasks.sources import labelled

Labelled = labelled.Labelled

OFFICE_DOMAINS = ('amazon', 'caltech10', 'dslr', 'webcam')
_EMBEDDED_SIZE = 16

# What a reader must know where a file does not list its agents.
_UNLISTED = task.Note(
    'population taken as public',
    'the agents are those that have a record in the file; who they are is taken as '
    'public knowledge, outside the guarantee: an array writers names all of them')


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
  def convert(name, x):
    del name
    x = grey(x) if x.ndim == 4 else x
    x = x[:, frame:x.shape[1] - frame, frame:x.shape[2] - frame]
    return x if x.shape[1:] == (size, size) else resized(x, size)

  name = {'svhn': 'svhn_1000'}.get(domain, domain)
  path = pathlib.Path(folder) / f'{name}.npz'
  found = labelled.parts_of(
      path, labelled.arrays(path, labelled.ARRAYS), ('x', 'y'), convert, num_classes=10)
  return found.train, found.test


def office_caltech(path: str | os.PathLike[str]) -> dict[str, Labelled]:
  """Domain -> SURF words, the square roots of their shares; float32 [n, 800].

  Roots make every vector one of length 1, and distances those of Hellinger, which
  suit counts better. Each image's follow from that image alone.
  """
  def roots(name, x):
    if x.ndim != 2:
      raise ValueError(f'{name} must be [images, words], found {list(x.shape)}')
    x = x.astype(np.float32)
    labelled.check_each(name, x, (x >= 0) & (x < np.inf), 'finite and at least 0')
    return np.sqrt(x / np.maximum(x.sum(axis=1, keepdims=True), 1.0))

  found = labelled.arrays(
      path, [f'{domain}_{kind}' for domain in OFFICE_DOMAINS for kind in 'xy'])
  return {domain: labelled.checked(path, found, f'{domain}_x', f'{domain}_y',
                                   convert=roots, below=10)
          for domain in OFFICE_DOMAINS}


def npz(path: str | os.PathLike[str],
        num_classes: int | None = None) -> tuple[labelled.Parts, np.ndarray]:
  """Any file with x_train, y_train, writer_train, x_test and y_test.

  Args:
    path: x_* are images [n, height, width], as for `labelled.images`, or feature
      vectors [n, d], which become float32; writer_train says whose each record is. It
      may have writers, all agents, and num_classes or class_names.
    num_classes: Labels are below; None for what the file says.

  Returns:
    The parts, and all agents, sorted: integers or strings [agents].

  Raises:
    ValueError: For what is wrong; it names the file.
  """
  found = labelled.arrays(path, (*labelled.ARRAYS, 'writer_train'), (
      'writer_test', 'writers', *labelled.CLASS_ARRAYS))
  shape = found['x_train'].shape[1:]
  convert = lambda name, x: x.astype(np.float32)
  if len(shape) == 2:
    convert = functools.partial(labelled.images, shape=shape)
  parts = labelled.parts_of(
      path, found, ('x', 'y', 'writer'), convert, num_classes=num_classes)
  owners, listed = parts.train.clients, found.get('writers')
  if listed is None:
    return parts._replace(notes=(*parts.notes, _UNLISTED)), np.unique(owners)
  kinds = {'i': 'iu', 'u': 'iu', 'U': 'U'}[owners.dtype.kind]
  agents = np.unique(listed)
  if listed.shape != agents.shape or listed.dtype.kind not in kinds:
    raise ValueError(
        f'{path}: writers must list each agent once, in the type of writer_train '
        f'({owners.dtype}), found {listed.dtype} {list(listed.shape)} of '
        f'{agents.size} different values')
  unknown = ~np.isin(owners, agents)
  if unknown.any():
    row = int(np.argmax(unknown))
    raise ValueError(f'{path}: writer_train must be one of writers, found '
                     f'{owners[row]!r} in row {row}')
  return parts, agents
