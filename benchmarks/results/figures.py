"""Figures of recorded rows."""

from collections.abc import Mapping, Sequence
import pathlib

from matplotlib import figure as figure_lib

from benchmarks.results import pages, statistics

# Label -> names of its rows, by the value on the x-axis.
Curves = Mapping[str, Mapping[float, str]]


def _curves(axes, records: Mapping[str, pages.Record], curves: Curves) -> bool:
  """Draws means and intervals; returns whether there are any."""
  drawn = False
  for label, by_value in curves.items():
    points = [(value, statistics.interval(pages.values(records[name])))
              for value, name in by_value.items() if name in records]
    if points:
      drawn = True
      x, found = zip(*points)
      ends = [(one.mean if one.low is None else one.low,
               one.mean if one.high is None else one.high) for one in found]
      axes.errorbar(x, [one.mean for one in found], marker='.', capsize=2, linewidth=1,
                    label=label, yerr=[
                        [one.mean - low for one, (low, _) in zip(found, ends)],
                        [high - one.mean for one, (_, high) in zip(found, ends)]])
  ticks = sorted({value for by in curves.values() for value in by if value % 1 == 0})
  axes.set_xscale('log', base=2)
  axes.set_xticks(ticks, [f'{tick:g}' for tick in ticks])
  axes.grid(alpha=0.3)
  return drawn


def against_epsilon(records: Mapping[str, pages.Record], path: pathlib.Path,
                    curves: Curves, *, none: str, title: str, metric: str) -> None:
  """Draws means and intervals of accuracy against epsilon, and the row without noise."""
  figure = figure_lib.Figure(figsize=(7.5, 4.6))
  axes = figure.subplots()
  if not _curves(axes, records, curves):
    return
  if none in records:
    axes.axhline(statistics.interval(pages.values(records[none])).mean, color='black',
                 linewidth=1, linestyle='--', label='no privacy')
  axes.set_xlabel('epsilon')
  axes.set_ylabel(metric)
  axes.set_title(title, fontsize=10)
  axes.legend(fontsize=8)
  figure.tight_layout()
  figure.savefig(path, dpi=120)


def panels(records: Mapping[str, pages.Record], path: pathlib.Path,
           parts: Sequence[tuple[str, str, Curves]], *, metric: str) -> None:
  """Draws panels of (title, label of the x-axis, curves), those with any row."""
  parts = [part for part in parts if any(
      name in records for by in part[2].values() for name in by.values())]
  if not parts:
    return
  figure = figure_lib.Figure(figsize=(4.5 * len(parts), 3.8))
  for axes, (title, label, curves) in zip(
      figure.subplots(1, len(parts), squeeze=False)[0], parts):
    _curves(axes, records, curves)
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(label)
    axes.set_ylabel(metric)
    axes.legend(fontsize=8)
  figure.tight_layout()
  figure.savefig(path, dpi=100)
