"""The figure of distributed mean estimation (arXiv 2110.04995, figure 4).

Above: the error of the mean against epsilon, a line for each number of bits,
with 95% intervals. Below: the same over the Gaussian's error under the same
accounting, where settings can be distinguished; points are measured, lines are
expected values.
"""

import os
from typing import Any, Sequence

import matplotlib

matplotlib.use('Agg')
# pylint: disable=g-import-not-at-top,wrong-import-position
from matplotlib import pyplot
import numpy as np

_LABELS = {'skellam': 'Skellam', 'discrete_gaussian': 'discrete Gaussian',
           'skellam_central': 'central Skellam', 'gaussian': 'Gaussian, analytic',
           'gaussian_rdp': 'Gaussian, RDP'}
# Those of sums of integers are coloured by their bits.
_STYLES = {'skellam': dict(linestyle='-', marker='o'),
           'discrete_gaussian': dict(linestyle='-.', marker='s'),
           'skellam_central': dict(linestyle=(0, (1, 1)), marker='^'),
           'gaussian': dict(color='black', linestyle='--', marker='x'),
           'gaussian_rdp': dict(color='dimgray', linestyle=':', marker='+')}
_ORDER = tuple(_LABELS)
# The range of the ratio in the lower panels; lines beyond it are named instead.
_LOWEST, _HIGHEST = 0.78, 1.42
_CLAIM = 0.05

Row = dict[str, Any]


def _curves(rows: Sequence[Row]) -> dict[tuple[str, int | None], list[Row]]:
  """Rows of one panel by mechanism and bits, each by epsilon."""
  found: dict[tuple[str, int | None], list[Row]] = {}
  for row in sorted(rows, key=lambda row: row['epsilon']):
    found.setdefault((row['mechanism'], row['bits']), []).append(row)
  return dict(sorted(found.items(), key=lambda item: (
      _ORDER.index(item[0][0]), item[0][1] or 0)))


def _column(rows: Sequence[Row], name: str) -> np.ndarray:
  return np.array([row[name] for row in rows])


def _styles(curves, all_bits: list[int]) -> dict[tuple, dict[str, Any]]:
  colours = pyplot.get_cmap('turbo')(np.linspace(0.9, 0.05, len(all_bits)))
  found = {}
  for mechanism, bits in curves:
    style = dict(_STYLES[mechanism], label=_LABELS[mechanism])
    if bits is not None:
      style.update(color=colours[all_bits.index(bits)],
                   label=f'{_LABELS[mechanism]}, {bits} bits')
    found[mechanism, bits] = style
  return found


def _draw_errors(axes, curves, styles) -> None:
  for key, rows in curves.items():
    xs = _column(rows, 'epsilon')
    axes.plot(xs, _column(rows, 'mse'), markersize=4, linewidth=1.3,
              **styles[key])
    axes.fill_between(
        xs, _column(rows, 'mse_low'), _column(rows, 'mse_high'), alpha=0.25,
        color=styles[key]['color'], linewidth=0)
  axes.set_yscale('log')


def _draw_ratios(axes, curves, styles) -> None:
  axes.axhspan(1 - _CLAIM, 1 + _CLAIM, color='tab:green', alpha=0.12,
               linewidth=0)
  axes.axhline(1, color='tab:green', linewidth=0.8)
  outside = []
  # Points side by side, as the intervals of equally good settings overlap.
  shifts = np.linspace(-0.28, 0.28, len(curves)) if len(curves) > 1 else [0.0]
  epsilons = sorted({row['epsilon'] for rows in curves.values() for row in rows})
  gap = min(np.diff(epsilons)) if len(epsilons) > 1 else 1.0
  for (key, rows), shift in zip(curves.items(), shifts):
    gaussian = _column(rows, 'gaussian_rdp_mse')
    axes.plot(_column(rows, 'epsilon'), _column(rows, 'predicted_mse') / gaussian,
              color=styles[key]['color'], linestyle=styles[key]['linestyle'],
              linewidth=0.9)
    ratios = _column(rows, 'mse') / gaussian
    errors = [ratios - _column(rows, 'mse_low') / gaussian,
              _column(rows, 'mse_high') / gaussian - ratios]
    style = dict(styles[key], linestyle='none')
    axes.errorbar(_column(rows, 'epsilon') + shift * gap, ratios, yerr=errors,
                  markersize=3.5, linewidth=1, **style)
    if ratios.max() > _HIGHEST:
      outside.append(f'{style["label"]}: {ratios.min():.2f} to '
                     f'{ratios.max():.2f}')
  if outside:
    axes.text(0.98, 0.97, 'above the range:\n' + '\n'.join(outside), va='top',
              ha='right', transform=axes.transAxes, fontsize=8,
              bbox=dict(facecolor='white', alpha=0.85, edgecolor='none'))
  axes.set_ylim(_LOWEST, _HIGHEST)


def draw(path: str | os.PathLike, rows: Sequence[Row], *, delta: float) -> None:
  """Draws the rows of a sweep into a PNG file, a column for each n and d.

  Args:
    path: Of the file, overwritten if it is there.
    rows: As `run.estimate` returns them, at least one.
    delta: Of all of them, for the title.

  Raises:
    OSError: If it cannot be written.
  """
  panels = sorted({(row['n'], row['d']) for row in rows})
  all_bits = sorted({row['bits'] for row in rows if row['bits'] is not None})
  repeats = max(row['repeats'] for row in rows)
  figure, axes = pyplot.subplots(
      2, len(panels), figsize=(max(5.6 * len(panels), 6.5), 7.6), squeeze=False,
      sharex='col', gridspec_kw=dict(height_ratios=(3, 2)))
  try:
    handles = {}
    for column, (n, d) in enumerate(panels):
      curves = _curves([row for row in rows if (row['n'], row['d']) == (n, d)])
      styles = _styles(curves, all_bits)
      top, bottom = axes[0, column], axes[1, column]
      _draw_errors(top, curves, styles)
      _draw_ratios(bottom, curves, styles)
      top.set_title(f'{n:,} clients, {d:,} coordinates')
      bottom.set_xlabel('epsilon')
      for panel in (top, bottom):
        panel.grid(True, which='both', alpha=0.2)
      found, labels = top.get_legend_handles_labels()
      handles.update(zip(labels, found))
    axes[0, 0].set_ylabel('MSE per coordinate of the mean')
    axes[1, 0].set_ylabel('MSE over the Gaussian\'s (RDP)')
    figure.legend(handles.values(), handles.keys(), loc='lower center',
                  ncols=4, fontsize=9, frameon=False)
    figure.suptitle(
        f'Distributed mean estimation, one release, delta = {delta:g}\n'
        f'mean of {repeats} data sets, 95% intervals; below, lines: prediction, '
        f'green: within {_CLAIM:.0%}', fontsize=10)
    lines = -(-len(handles) // 4)
    figure.tight_layout(rect=(0, 0.01 + 0.03 * lines, 1, 1))
    figure.savefig(path, dpi=110)
  finally:
    pyplot.close(figure)
