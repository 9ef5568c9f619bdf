"""Labels for all public records from the few that were released.

Everything here follows from public records and released labels: it is
post-processing and costs no privacy.
"""

import numpy as np
from scipy import sparse

from aggregators import validate

_NEIGHBOURS = 10
_KEPT = 0.95  # Fraction of a record's label that comes from its neighbours.
_TEMPERATURE = 0.1
_ROUNDS = 60


def _graph(features: np.ndarray, neighbours: int) -> sparse.csr_matrix:
  """Symmetric, normalised weights between each record and the most similar ones."""
  from sklearn import neighbors  # pylint: disable=g-import-not-at-top
  lengths = np.linalg.norm(features, axis=1, keepdims=True)
  unit = features / np.maximum(lengths, 1e-12)
  count = min(neighbours, len(features) - 1)
  distances, places = neighbors.NearestNeighbors(
      n_neighbors=count, algorithm='brute').fit(unit).kneighbors()
  # Of unit vectors, the cosine is 1 - distance^2 / 2.
  weights = np.exp(-distances**2 / 2 / _TEMPERATURE)
  rows = np.repeat(np.arange(len(unit)), count)
  one_way = sparse.csr_matrix(
      (weights.ravel(), (rows, places.ravel())), shape=(len(unit),) * 2)
  both = one_way.maximum(one_way.T)
  degrees = np.asarray(both.sum(axis=1)).ravel()
  inverse = sparse.diags(1 / np.sqrt(np.maximum(degrees, 1e-12)))
  return inverse @ both @ inverse


def spread(features: np.ndarray, rows: np.ndarray, labels: np.ndarray,
           num_classes: int, *, neighbours: int = _NEIGHBOURS) -> np.ndarray:
  """Spreads labels along a graph of nearest neighbours (Zhou et al. 2004).

  Each class starts with the same mass, however many labels it has.

  Args:
    features: float [n, d] of all public records, n >= 2.
    rows: int [q], the records that have a label.
    labels: int [q] in [0, num_classes).
    num_classes: C.
    neighbours: >= 1, edges of a record.

  Returns:
    float32 [n, C], non-negative, each row of sum 1. Records that no label
    reaches have equal weights for all classes.

  Raises:
    ValueError: If there is no label, or one is out of range.
  """
  validate.integer(neighbours=neighbours, low=1)
  if len(features) < 2:
    raise ValueError('public records must be 2 or more to spread labels over, '
                     f'found {len(features)}')
  if not len(rows):
    raise ValueError('labels must be at least one to be spread, found none: no '
                     'query was answered')
  if np.min(labels) < 0 or np.max(labels) >= num_classes:
    raise ValueError(f'labels must be in [0, {num_classes}), found '
                     f'{int(np.min(labels))} to {int(np.max(labels))}')
  graph = _graph(np.asarray(features, np.float64), neighbours)
  start = np.zeros((len(features), num_classes))
  np.add.at(start, (rows, labels), 1.0)
  start /= np.maximum(start.sum(axis=0, keepdims=True), 1.0)
  found = start
  for _ in range(_ROUNDS):
    found = _KEPT * (graph @ found) + (1 - _KEPT) * start
  totals = found.sum(axis=1, keepdims=True)
  return np.where(totals > 0, found / np.maximum(totals, 1e-300),
                  1 / num_classes).astype(np.float32)
