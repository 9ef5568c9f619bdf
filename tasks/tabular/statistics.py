"""Means and deviations of columns, released with noise before the first round.

A column of numbers is mapped to z in [-1, 1] by its public bounds. A client adds, for
each column, the mean of z over its rows and the mean of z^2 less 1/2, as integers. So
no client moves the sums by more than an L2 norm of 1.25^(1/2) per column, however many
rows it has. Categories have no statistics, and the label keeps its bounds.
"""

from collections.abc import Callable, Mapping
import dataclasses
import math

import numpy as np

from tasks import task
from tasks.sources import records
from tasks.tabular import columns as columns_lib

# Integers of a mean of 1. The noise is much larger than rounding to these.
SCALE = 1024
# Deviations are at least this fraction of half the width of the bounds.
_MIN_DEVIATION = 0.02


def _of_client(raw: records.RawExamples, numbers: tuple[columns_lib.Number, ...],
               missing: str) -> np.ndarray:
  """A client's integers, int64 [2 * numbers]: means, and means of squares less 1/2."""
  result = []
  for column in numbers:
    z = column.encode(raw[column.name], missing)[:, 0].astype(np.float64).clip(-1, 1)
    # Rounded towards 0, so that norms do not grow.
    result.append((int(SCALE * z.mean()), int(SCALE * ((z * z).mean() - 0.5))))
  return np.array(result, np.int64).T.reshape(-1)


def release(source: task.ClientSource, columns: columns_lib.Columns,
            skips: task.Skips, missing: str,
            finish: Callable[[columns_lib.Columns], task.Task]) -> task.Preliminary:
  """The release of the statistics of columns that have public bounds.

  Raises ValueError if there is no column of numbers.
  """
  numbers = tuple(column for column in columns.features
                  if isinstance(column, columns_lib.Number))
  if not numbers:
    raise ValueError('statistics_epsilon is not used: no feature is a number')
  keys = [(kind, column.name) for kind in ('mean', 'square') for column in numbers]

  def totals() -> dict[tuple[str, str], int]:
    of_client = records.MappedSource(source, lambda raw: {
        'total': _of_client(raw, numbers, missing)[np.newaxis]}, {
            'total': (np.dtype(np.int64), (len(keys),))})
    total = sum((examples['total'][0] for _, examples in skips.examples(of_client)),
                np.zeros(len(keys), np.int64))
    return dict(zip(keys, total.tolist()))

  def complete(noisy: Mapping[tuple[str, str], int]) -> task.Task:
    clients = SCALE * len(source.client_ids)
    return finish(dataclasses.replace(
        columns, made_from=columns_lib.STATISTICS, features=tuple(
            _standardised(column, noisy['mean', column.name] / clients,
                          noisy['square', column.name] / clients + 0.5)
            if column in numbers else column for column in columns.features)))

  return task.Preliminary(
      file=columns_lib.FILE, totals=totals, dimension=len(keys),
      l2_sensitivity=SCALE * math.sqrt(1.25 * len(numbers)), complete=complete)


def _standardised(column: columns_lib.Number, mean: float,
                  square: float) -> columns_lib.Number:
  """The column with a noisy mean and mean square of z."""
  mean = min(max(mean, -1.0), 1.0)
  deviation = math.sqrt(max(square - mean * mean, _MIN_DEVIATION**2))
  center, (low, high) = column.center + mean * column.scale, column.encoded_bounds
  return dataclasses.replace(
      column, center=min(max(center, low), high),
      scale=column.scale * min(deviation, 1.0))
