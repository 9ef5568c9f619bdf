"""The report of a sweep of mean estimations: table, text and figure."""

import collections
from collections.abc import Iterable, Mapping, Sequence
import math
import operator
import pathlib
from typing import Any

import matplotlib
from matplotlib import figure as figure_lib
import numpy as np
import pandas
from scipy import stats

from tff_pipelines.accounting.events import base
from tff_pipelines.accounting.guarantees import plan as guarantee
from tff_pipelines.common import decimals, files
from tff_pipelines.experiment import report
from tff_pipelines.mean import plan as plan_lib
from tff_pipelines.mean.settings import KEY, MeanSettings, RESULTS

TABLE, FIGURE = 'results.csv', 'mean_estimation.png'
# A list, which rows have in JSON only.
OF_REPEATS = 'mse_of_repeats'

# In the order of the legend. Sums of integers are coloured by their bits.
_STYLES = {
    'skellam': dict(label='Skellam', linestyle='-', marker='o'),
    'discrete_gaussian': dict(label='discrete Gaussian', linestyle='-.', marker='s'),
    'skellam_central': dict(label='central Skellam', linestyle=(0, (1, 1)), marker='^'),
    'gaussian': dict(
        label='Gaussian, analytic', color='black', linestyle='--', marker='x'),
    'gaussian_rdp': dict(
        label='Gaussian, RDP', color='dimgray', linestyle=':', marker='+')}
# The range of the ratio in the lower panels; curves beyond it are named instead.
_LOWEST, _HIGHEST = 0.78, 1.42
_CLAIM = 0.05

Row = dict[str, Any]
key = operator.itemgetter(*KEY)  # Of a row, as `Cell.key` of a setting.


def interval(values: Sequence[float]) -> tuple[float, float, float]:
  """Returns the mean of at least two values, and its 95% interval by Student's t."""
  values = np.asarray(values, np.float64)
  mean = values.mean()
  half = stats.t.ppf(0.975, values.size - 1) * math.sqrt(values.var(ddof=1) / values.size)
  return float(mean), float(mean - half), float(mean + half)


def against_gaussian(rows: Iterable[Row]) -> list[Row]:
  """Returns the error over the Gaussian's, accounted by RDP, over all epsilon."""
  # The Gaussian's error is exact, that of the mechanism measured; the repeats of all
  # epsilon are pooled, so that the interval is small enough to show a few percent.
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


def _curves(rows: Sequence[Row],
            all_bits: list[int]) -> list[tuple[dict[str, Any], np.recarray]]:
  """Returns the style of each curve of a panel, and its rows sorted by epsilon."""
  colours = matplotlib.colormaps['turbo'](np.linspace(0.9, 0.05, len(all_bits)))
  curves = []
  for mechanism, style in _STYLES.items():
    own = [row for row in rows if row['mechanism'] == mechanism]
    for bits in sorted({row['bits'] for row in own}, key=lambda bits: bits or 0):
      if bits is not None:
        style = dict(style, color=colours[all_bits.index(bits)],
                     label=f'{_STYLES[mechanism]["label"]}, {bits} bits')
      table = pandas.DataFrame([row for row in own if row['bits'] == bits])
      curves.append((style, table.sort_values('epsilon').to_records()))
  return curves


def _draw_ratios(axes, curves) -> None:
  axes.axhspan(1 - _CLAIM, 1 + _CLAIM, color='tab:green', alpha=0.12, linewidth=0)
  axes.axhline(1, color='tab:green', linewidth=0.8)
  outside = []
  # Points are shifted: the intervals of equally good settings overlap.
  shifts = np.linspace(-0.28, 0.28, len(curves)) if len(curves) > 1 else [0.0]
  epsilons = np.unique(np.concatenate([rows.epsilon for _, rows in curves]))
  gap = min(np.diff(epsilons), default=1.0)
  for (style, rows), shift in zip(curves, shifts):
    predicted, ratio, low, high = (
        rows[name] / rows.gaussian_rdp_mse
        for name in ('predicted_mse', 'mse', 'mse_low', 'mse_high'))
    axes.plot(rows.epsilon, predicted, color=style['color'],
              linestyle=style['linestyle'], linewidth=0.9)
    axes.errorbar(rows.epsilon + shift * gap, ratio, yerr=[ratio - low, high - ratio],
                  markersize=3.5, linewidth=1, **{**style, 'linestyle': 'none'})
    if ratio.max() > _HIGHEST:
      outside.append(f'{style["label"]}: {ratio.min():.2f} to {ratio.max():.2f}')
  if outside:
    axes.text(0.98, 0.97, 'above the range:\n' + '\n'.join(outside), va='top',
              ha='right', transform=axes.transAxes, fontsize=8,
              bbox=dict(facecolor='white', alpha=0.85, edgecolor='none'))
  axes.set_ylim(_LOWEST, _HIGHEST)


def draw(path: pathlib.Path, rows: Sequence[Row], *, delta: float) -> None:
  """Draws the figure of arXiv 2110.04995 (figure 4), a column for each n and d.

  Above: the error of the mean against epsilon, a line for each number of bits,
  with 95% intervals. Below: the same over the Gaussian's error under the same
  accounting, where settings can be distinguished; points are measured, lines are
  expected values. `rows` are as `run.estimate` returns them, at least one.
  """
  panels = sorted({(row['n'], row['d']) for row in rows})
  all_bits = sorted({row['bits'] for row in rows if row['bits'] is not None})
  figure = figure_lib.Figure(figsize=(max(5.6 * len(panels), 6.5), 7.6))
  axes = figure.subplots(2, len(panels), squeeze=False, sharex='col',
                         gridspec_kw=dict(height_ratios=(3, 2)))
  legend = {}
  for (n, d), (top, bottom) in zip(panels, axes.T):
    curves = _curves([row for row in rows if (row['n'], row['d']) == (n, d)], all_bits)
    for style, own in curves:
      top.plot(own.epsilon, own.mse, markersize=4, linewidth=1.3, **style)
      top.fill_between(own.epsilon, own.mse_low, own.mse_high, alpha=0.25,
                       color=style['color'], linewidth=0)
    top.set_yscale('log')
    _draw_ratios(bottom, curves)
    top.set_title(f'{n:,} clients, {d:,} coordinates')
    bottom.set_xlabel('epsilon')
    for panel in (top, bottom):
      panel.grid(True, which='both', alpha=0.2)
    handles, labels = top.get_legend_handles_labels()
    legend.update(zip(labels, handles))
  axes[0, 0].set_ylabel('MSE per coordinate of the mean')
  axes[1, 0].set_ylabel('MSE over the Gaussian\'s (RDP)')
  figure.legend(legend.values(), legend.keys(), loc='lower center', ncols=4,
                fontsize=9, frameon=False)
  figure.suptitle(
      f'Distributed mean estimation, one release, delta = {delta:g}\n'
      f'mean of {max(row["repeats"] for row in rows)} data sets, 95% intervals; '
      f'below, lines: prediction, green: within {_CLAIM:.0%}', fontsize=10)
  figure.tight_layout(rect=(0, 0.01 + 0.03 * -(-len(legend) // 4), 1, 1))
  figure.savefig(path, dpi=110)


def outcome(folder: pathlib.Path, settings: MeanSettings, plan: plan_lib.MeanPlan,
            rows: Mapping[tuple, Row]) -> report.Outcome:
  """Writes all rows as JSON and as CSV."""
  files.write_table(folder / TABLE, [
      {name: value for name, value in row.items() if name != OF_REPEATS}
      for row in rows.values()])
  seeded = [guarantee.SEEDED] if settings.seed is not None else []
  files.write_json(folder / RESULTS, {
      'configuration': settings.configuration(),
      'epsilon_is_of': 'one release of one data set, without sampling',
      'adjacency': base.ZERO_OUT,
      'adjacency_in_words': base.ADJACENCY_IN_WORDS[base.ZERO_OUT],
      'secure_aggregation': 'simulated',
      'warnings': [str(caveat) for caveat in (*plan.notes(), *seeded)],
      'against_gaussian': against_gaussian(rows.values()), 'rows': list(rows.values())})
  asked = [rows[cell.key] for cell in plan.cells]
  groups = against_gaussian(asked)
  sums = [group for group in groups if group['bits'] is not None] or groups
  nearest = min(sums, key=lambda group: abs(math.log(group['ratio'])))
  farthest = max(sums, key=lambda group: group['ratio'])
  # Values that all of them share.
  only = {name: asked[0][name] for name in ('bits', 'noise_multiplier', 'n')
          if len({row[name] for row in asked}) == 1}
  return report.Outcome(
      result=_group(nearest, groups),
      weakest=_group(farthest, groups) if farthest != nearest else None, details=[
          *map(_line, asked),
          *(f'{_group(group, groups)}, by RDP, over all epsilon' for group in groups),
          f'each setting: {_release(settings)}'],
      files=(RESULTS, TABLE),
      figures={FIGURE: lambda path: draw(path, asked, delta=settings.delta)}, fields={
          'task': 'mean_estimation', 'algorithm': 'mean', 'bits': only.get('bits'),
          'mechanism': ','.join(settings.mechanisms), 'clip': settings.clip,
          'noise_multiplier': only.get('noise_multiplier'), 'population': only.get('n'),
          'details': {'settings': len(asked), 'repeats': settings.repeats,
                      'epsilon_of_one_release': list(settings.epsilon),
                      'against_gaussian': groups}})
