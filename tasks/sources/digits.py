"""The 1,797 digits that ship with scikit-learn, which every task can learn from."""

import functools

import numpy as np

from tasks.sources import labelled


@functools.lru_cache(maxsize=1)
def _loaded() -> tuple[np.ndarray, np.ndarray]:
  """Ink in [0, 16], float64 [1797, 8, 8], and the digits, int32 [1797]."""
  # scikit-learn takes a second to import, which the other sources need not pay.
  from sklearn import datasets  # pylint: disable=g-import-not-at-top
  digits = datasets.load_digits()
  return digits.images, digits.target.astype(np.int32)


@functools.lru_cache(maxsize=1)
def framed() -> labelled.Labelled:
  """Images uint8 [1797, 28, 28] as in MNIST: digits of 20 x 20 in a frame."""
  images, y = _loaded()
  # Linear interpolation between the centres of pixels.
  size = images.shape[1]
  centres = (np.arange(20) + 0.5) * size / 20 - 0.5
  enlarge = np.stack(
      [np.interp(centres, np.arange(size), row) for row in np.eye(size)], axis=1)
  x = np.zeros([len(y), 28, 28], np.uint8)
  x[:, 4:24, 4:24] = np.rint(enlarge @ (images / 16.0) @ enlarge.T * 255.0)
  return labelled.Labelled(x=x, y=y)


def resized(size: int = 16) -> labelled.Labelled:
  """Images uint8 [1797, size, size]."""
  images, y = _loaded()
  return labelled.Labelled(
      x=labelled.resized(np.rint(images * (255 / 16)).astype(np.uint8), size), y=y)
