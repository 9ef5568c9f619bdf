"""The figure of distributed mean estimation (arXiv 2110.04995, figure 4).

Above: the error of the mean against epsilon, a line for each number of bits,
with 95% intervals. Below: the same over the Gaussian's error under the same
accounting, where settings can be distinguished; points are measured, lines are
expected values.
"""

from collections.abc import Sequence
import os
from typing import Any

import matplotlib
from matplotlib import figure as figure_lib
import numpy as np
import pandas

# In the order of the legend. Sums of integers are coloured by their bits.
_STYLES = {
    'skellam': dict(label='Skellam', linestyle='-', marker='o'),
    'discrete_gaussian': dict(label='discrete Gaussian', linestyle='-.', marker='s'),
    'skellam_central': dict(
        label='central Skellam', linestyle=(0, (1, 1)), marker='^'),
    'gaussian': dict(
        label='Gaussian, analytic', color='black', linestyle='--', marker='x'),
    'gaussian_rdp': dict(
        label='Gaussian, RDP', color='dimgray', linestyle=':', marker='+')}
# The range of the ratio in the lower panels; curves beyond it are named instead.
_LOWEST, _HIGHEST = 0.78, 1.42
_CLAIM = 0.05

Row = dict[str, Any]


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


def _draw_errors(axes, curves) -> None:
  for style, rows in curves:
    axes.plot(rows.epsilon, rows.mse, markersize=4, linewidth=1.3, **style)
    axes.fill_between(rows.epsilon, rows.mse_low, rows.mse_high, alpha=0.25,
                      color=style['color'], linewidth=0)
  axes.set_yscale('log')


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


def draw(path: str | os.PathLike, rows: Sequence[Row], *, delta: float) -> None:
  """Draws the rows of a sweep to a PNG file, a column for each n and d.

  Args:
    path: Of the file, overwritten if it exists.
    rows: As `run.estimate` returns them, at least one.
    delta: Of all of them, for the title.

  Raises:
    OSError: If it can't be written.
  """
  panels = sorted({(row['n'], row['d']) for row in rows})
  all_bits = sorted({row['bits'] for row in rows if row['bits'] is not None})
  figure = figure_lib.Figure(figsize=(max(5.6 * len(panels), 6.5), 7.6))
  axes = figure.subplots(2, len(panels), squeeze=False, sharex='col',
                         gridspec_kw=dict(height_ratios=(3, 2)))
  legend = {}
  for (n, d), (top, bottom) in zip(panels, axes.T):
    curves = _curves([row for row in rows if (row['n'], row['d']) == (n, d)], all_bits)
    _draw_errors(top, curves)
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
