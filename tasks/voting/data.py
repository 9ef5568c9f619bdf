"""Labelled arrays for the voting tasks, read from files and checked."""

import functools
import os
import pathlib

import numpy as np

from tasks import checks, task
from tasks.sources import labelled

OFFICE_DOMAINS = ('amazon', 'caltech10', 'dslr', 'webcam')

# For files that do not list their agents.
UNLISTED = task.Note('population taken as public', 'the agents are those that have a '
                     'record in the file, taken as public knowledge, outside the '
                     'guarantee: an array writers names all of them')


def grey(images: np.ndarray) -> np.ndarray:
  """Converts uint8 [n, height, width, 3] to its luma (ITU-R BT.601), uint8."""
  return np.rint(images @ np.array([0.299, 0.587, 0.114])).astype(np.uint8)


def digits_domain(folder: str | os.PathLike[str], domain: str, size: int,
                  frame: int = 0) -> tuple[labelled.Labelled, labelled.Labelled]:
  """Reads the training and test part of a domain of digits, grey images [size, size].

  The folder has mnist.npz, usps.npz and svhn_1000.npz; `frame` pixels are cut off at
  each side first.
  """
  def convert(_, x):
    x = grey(x) if x.ndim == 4 else x
    x = x[:, frame:x.shape[1] - frame, frame:x.shape[2] - frame]
    return x if x.shape[1:] == (size, size) else labelled.resized(x, size)

  path = pathlib.Path(folder, f'{"svhn_1000" if domain == "svhn" else domain}.npz')
  parts = labelled.parts_of(
      path, labelled.arrays(path, labelled.ARRAYS), ('x', 'y'), convert, num_classes=10)
  return parts.train, parts.test


def roots(name: str, x: np.ndarray) -> np.ndarray:
  """Square roots of the frequencies in counts [n, d], float32."""
  if x.ndim != 2:
    raise ValueError(f'{name} must be [images, words], found {list(x.shape)}')
  x = x.astype(np.float32)
  labelled.check_each(name, x, (x >= 0) & (x < np.inf), 'finite and at least 0')
  return np.sqrt(x / np.maximum(x.sum(axis=1, keepdims=True), 1.0))


def office_caltech(path: str | os.PathLike[str]) -> dict[str, labelled.Labelled]:
  """Reads SURF features by domain: square roots of frequencies, float32 [n, 800].

  Every vector of roots has length 1, and distances are those of Hellinger, which
  suit counts better. An image's features follow from that image alone.
  """
  arrays = labelled.arrays(
      path, [f'{domain}_{kind}' for domain in OFFICE_DOMAINS for kind in 'xy'])
  return {domain: labelled.checked(path, arrays, f'{domain}_x', f'{domain}_y',
                                   convert=roots, below=10)
          for domain in OFFICE_DOMAINS}


def npz(path: str | os.PathLike[str],
        num_classes: int | None = None) -> tuple[labelled.Parts, np.ndarray]:
  """Reads any file with x_train, y_train, writer_train, x_test and y_test.

  x_* are images [n, height, width], as for `labelled.images`, or feature vectors [n,
  d], which become float32; writer_train is the agent of each record. It may have
  writers, all agents, and num_classes or class_names; `num_classes` comes first.

  Returns the parts, and all agents, sorted: integers or strings [agents]. Raises
  ValueError if an array is missing or malformed; it names the file.
  """
  arrays = labelled.arrays(path, (*labelled.ARRAYS, 'writer_train'), (
      'writer_test', 'writers', *labelled.CLASS_ARRAYS))
  shape = arrays['x_train'].shape[1:]
  convert = lambda name, x: x.astype(np.float32)
  if len(shape) == 2:
    convert = functools.partial(labelled.images, shape=shape)
  parts = labelled.parts_of(
      path, arrays, ('x', 'y', 'writer'), convert, num_classes=num_classes)
  writers, listed = parts.train.clients, arrays.get('writers')
  if listed is None:
    return parts._replace(notes=(*parts.notes, UNLISTED)), np.unique(writers)
  agents = np.unique(listed)
  if listed.shape != agents.shape or (listed.dtype.kind == 'U') != (
      writers.dtype.kind == 'U') or listed.dtype.kind not in 'iuU':
    raise ValueError(
        f'{path}: writers must list each agent once, {writers.dtype} as writer_train, '
        f'found {checks.form(listed)} of {agents.size} different values')
  labelled.check_each(f'{path}: writer_train', writers, np.isin(writers, agents),
                      'one of writers')
  return parts, agents
