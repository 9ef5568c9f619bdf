"""Means and deviations of columns, released with noise before the first round.

A column of numbers is mapped to z in [-1, 1] by its public bounds. A client adds, for
each column, the mean of z over its rows and the mean of z^2 less 1/2, as integers. So
no client moves the sums by more than an L2 norm of 1.25^(1/2) per column, however many
rows it has. Categories have no statistics, and the label keeps its bounds. For weights
of classes a client also adds the fractions of its rows by class: a norm of at most 1.
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
# Deviations below this fraction of half the width of the bounds are taken for noise.
_MIN_DEVIATION = 0.02


def _of_client(raw: records.RawExamples, numbers: tuple[columns_lib.Number, ...],
               missing: str, label: columns_lib.Category | None) -> np.ndarray:
  """A client's integers: means, means of squares less 1/2, and fractions by class."""
  result = []
  for column in numbers:
    z = column.encode(raw[column.name], missing)[:, 0].astype(np.float64).clip(-1, 1)
    # Rounded towards 0, so that norms do not grow.
    result.append((int(SCALE * z.mean()), int(SCALE * ((z * z).mean() - 0.5))))
  shares = [] if label is None else (SCALE * np.bincount(
      label.target(raw[label.name]), minlength=label.width) / max(
          1, len(raw[label.name])))
  return np.append(np.array(result, np.int64).reshape(-1, 2).T, np.int64(shares))


def release(source: task.ClientSource, columns: columns_lib.Columns, skips: task.Skips,
            missing: str, finish: Callable[[columns_lib.Columns], task.Task], *,
            counts_classes: bool = False) -> task.Preliminary:
  """The release of the statistics of columns that have public bounds.

  With `counts_classes` also of the label's, which then has balanced weights. Raises
  ValueError if there is nothing to release.
  """
  label = columns.label if counts_classes else None
  numbers = tuple(column for column in columns.features
                  if isinstance(column, columns_lib.Number))
  if not numbers and label is None:
    raise ValueError('statistics_epsilon is not used: no feature is a number')
  keys = [(kind, column.name) for kind in ('mean', 'square') for column in numbers]
  keys += [('class', name) for name in (label.categories if label else ())]

  def totals() -> dict[tuple[str, str], int]:
    of_client = records.MappedSource(source, lambda raw: {
        'total': _of_client(raw, numbers, missing, label)[np.newaxis]}, {
            'total': (np.dtype(np.int64), (len(keys),))})
    total = sum((examples['total'][0] for _, examples in skips.examples(of_client)),
                np.zeros(len(keys), np.int64))
    return dict(zip(keys, total.tolist()))

  def complete(noisy: Mapping[tuple[str, str], int]) -> task.Task:
    clients = SCALE * len(source.client_ids)
    return finish(dataclasses.replace(
        columns, made_from=columns_lib.STATISTICS, label=columns.label if label is None
        else columns_lib.balanced(label, [
            noisy['class', name] for name in label.categories]), features=tuple(
            _standardised(column, noisy['mean', column.name] / clients,
                          noisy['square', column.name] / clients + 0.5)
            if column in numbers else column for column in columns.features)))

  return task.Preliminary(
      file=columns_lib.FILE, totals=totals, dimension=len(keys),
      l2_sensitivity=SCALE * math.sqrt(1.25 * len(numbers) + counts_classes),
      complete=complete)


def _standardised(column: columns_lib.Number, mean: float,
                  square: float) -> columns_lib.Number:
  """The column with a noisy mean and mean square of z."""
  mean = min(max(mean, -1.0), 1.0)
  if (variance := square - mean * mean) <= _MIN_DEVIATION**2:
    return column  # It is hidden by the noise.
  deviation = math.sqrt(variance)
  center, (low, high) = column.center + mean * column.scale, column.encoded_bounds
  return dataclasses.replace(column, center=min(max(center, low), high),
                             scale=column.scale * min(deviation, 1.0))
