"""The report of a sweep of mean estimations: table, text and figure."""

import collections
from collections.abc import Iterable, Mapping, Sequence
import math
import operator
import pathlib
from typing import Any

import numpy as np
from scipy import stats

from tff_pipelines.accounting import base
from tff_pipelines.accounting import decimals
from tff_pipelines.experiment import files
from tff_pipelines.experiment import guarantee
from tff_pipelines.experiment import report
from tff_pipelines.mean import figure
from tff_pipelines.mean import plan as plan_lib
from tff_pipelines.mean.settings import KEY
from tff_pipelines.mean.settings import MeanSettings
from tff_pipelines.mean.settings import RESULTS

TABLE, FIGURE = 'results.csv', 'mean_estimation.png'
COLUMNS = (
    *KEY, 'delta', 'accountant', 'noise_multiplier', 'scale', 'local_stddev_grid',
    'dimension_padded', 'degenerate', 'repeats', 'mse', 'mse_low', 'mse_high',
    'l2_error', 'l2_low', 'l2_high', 'noise_mse', 'predicted_mse', 'gaussian_mse',
    'gaussian_rdp_mse', 'ratio_to_gaussian', 'ratio_to_gaussian_rdp', 'seconds')
# A list, which rows have in JSON only.
OF_REPEATS = 'mse_of_repeats'
KEYS = (*COLUMNS, OF_REPEATS)

Row = dict[str, Any]
key = operator.itemgetter(*KEY)  # Of a row, as `Cell.key` of a setting.


def interval(values: Sequence[float]) -> tuple[float, float, float]:
  """Returns the mean of at least two values, and its 95% interval by Student's t."""
  values = np.asarray(values, np.float64)
  mean = values.mean()
  half = stats.t.ppf(0.975, values.size - 1) * math.sqrt(
      values.var(ddof=1) / values.size)
  return float(mean), float(mean - half), float(mean + half)


def against_gaussian(rows: Iterable[Row]) -> list[Row]:
  """Returns the error over the Gaussian's, accounted by RDP, over all epsilon.

  The Gaussian's error is exact, that of the mechanism measured; the repeats of all
  epsilon are pooled, so that the interval is small enough to show a few percent.
  """
  groups = collections.defaultdict(list)
  for row in rows:
    groups[key(row)[:-1]] += [mse / row['gaussian_rdp_mse'] for mse in row[OF_REPEATS]]
  names = (*KEY[:-1], 'ratio', 'ratio_low', 'ratio_high', 'releases')
  return [dict(zip(names, (*group, *interval(ratios), len(ratios))))
          for group, ratios in groups.items()]


def _listed(values: Iterable[Any]) -> str:
  return ','.join(f'{value:g}' if isinstance(value, float) else f'{value}'
                  for value in values)


def _release(settings: MeanSettings) -> str:
  return (f'epsilon {_listed(settings.epsilon)} at delta '
          f'{decimals.rounded_up(settings.delta)} of one release of one data set')


def describe(settings: MeanSettings, plan: plan_lib.MeanPlan) -> report.Description:
  """Describes the sweep before its first release."""
  bits = dict.fromkeys(cell.bits for cell in plan.cells if cell.bits is not None)
  at_bits = f'; {_listed(bits)} bits' if bits else ''
  return report.Description(
      lines=[
          ('task', f'mean of vectors of norm {settings.clip:g} ({settings.vectors}); '
           f'{_listed(settings.num_clients)} clients, '
           f'{_listed(settings.dimension)} coordinates'),
          ('settings', f'{len(plan.cells)}, each on {settings.repeats} data sets: '
           f'{", ".join(settings.mechanisms)}{at_bits}'),
          ('release', _release(settings))],
      details=['epsilon of the whole folder is that of all releases of all settings '
               'together, of a client that is in all data sets'])


def _line(row: Row) -> str:
  bits = '' if row['bits'] is None else f' bits={row["bits"]}'
  return (f'{row["mechanism"]} n={row["n"]} d={row["d"]}{bits} '
          f'epsilon={row["epsilon"]:g}: mse {row["mse"]:.4g} [{row["mse_low"]:.4g}, '
          f'{row["mse_high"]:.4g}], predicted {row["predicted_mse"]:.4g}, '
          f'{row["ratio_to_gaussian_rdp"]:.3f} of the Gaussian by RDP, '
          f'{row["ratio_to_gaussian"]:.3f} of the analytic')


def _group(group: Row, groups: Sequence[Row]) -> str:
  """Describes the error over the Gaussian's; n and d where they vary."""
  bits = '' if group['bits'] is None else f', {group["bits"]} bits'
  sizes = ''.join(f', {name}={group[name]}' for name in ('n', 'd')
                  if len({other[name] for other in groups}) > 1)
  return (f'{group["mechanism"]}{bits}{sizes}: {group["ratio"]:.3f} '
          f'[{group["ratio_low"]:.3f}, {group["ratio_high"]:.3f}] of the Gaussian\'s '
          'error')


def outcome(folder: pathlib.Path, settings: MeanSettings, plan: plan_lib.MeanPlan,
            rows: Mapping[tuple, Row]) -> report.Outcome:
  """Writes all rows as JSON and as CSV.

  Args:
    folder: Of the run.
    settings: Of the sweep.
    plan: Of the sweep.
    rows: Of the folder, by key, as `run.estimate` returns them.

  Returns:
    The results of the settings of this sweep.
  """
  files.write_table(folder / TABLE, [
      {name: row[name] for name in COLUMNS} for row in rows.values()])
  seeded = [guarantee.SEEDED] if settings.seed is not None else []
  files.write_json(folder / RESULTS, {
      'configuration': settings.configuration(),
      'epsilon_is_of': 'one release of one data set, without sampling',
      'adjacency': base.ZERO_OUT,
      'adjacency_in_words': base.ADJACENCY_IN_WORDS[base.ZERO_OUT],
      'secure_aggregation': 'simulated',
      'warnings': [str(caveat) for caveat in (*plan.notes(), *seeded)],
      'against_gaussian': against_gaussian(rows.values()),
      'rows': list(rows.values())})
  asked = [rows[cell.key] for cell in plan.cells]
  groups = against_gaussian(asked)
  sums = [group for group in groups if group['bits'] is not None] or groups
  nearest = min(sums, key=lambda group: abs(math.log(group['ratio'])))
  farthest = max(sums, key=lambda group: group['ratio'])

  def only(name: str) -> Any:
    values = {row[name] for row in asked}
    return values.pop() if len(values) == 1 else None

  return report.Outcome(
      result=_group(nearest, groups),
      weakest=_group(farthest, groups) if farthest != nearest else None,
      details=[
          *map(_line, asked),
          *(f'{_group(group, groups)}, by RDP, over all epsilon' for group in groups),
          f'each setting: {_release(settings)}'],
      files=(RESULTS, TABLE),
      figures={FIGURE: lambda path: figure.draw(path, asked, delta=settings.delta)},
      fields={
          'task': 'mean_estimation', 'algorithm': 'mean', 'bits': only('bits'),
          'mechanism': ','.join(settings.mechanisms), 'clip': settings.clip,
          'noise_multiplier': only('noise_multiplier'), 'population': only('n'),
          'details': {
              'settings': len(asked), 'repeats': settings.repeats,
              'epsilon_of_one_release': list(settings.epsilon),
              'against_gaussian': groups}})
