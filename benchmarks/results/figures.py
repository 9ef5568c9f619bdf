"""Figures of recorded rows."""

from collections.abc import Mapping, Sequence
import pathlib

from matplotlib import figure as figure_lib

from benchmarks.results import pages, statistics

# Label -> names of its rows, by epsilon.
Curves = Mapping[str, Mapping[float, str]]


def against_epsilon(records: Mapping[str, pages.Record], path: pathlib.Path,
                    curves: Curves, *, none: str, title: str, metric: str) -> None:
  """Draws means and intervals of accuracy against epsilon, and the row without noise."""
  figure = figure_lib.Figure(figsize=(7.5, 4.6))
  axes = figure.subplots()
  drawn = False
  for label, by_epsilon in curves.items():
    points = [(epsilon, statistics.interval(pages.values(records[name])))
              for epsilon, name in by_epsilon.items() if name in records]
    if points:
      drawn = True
      x, found = zip(*points)
      bars = [[value.mean - (value.mean if value.low is None else value.low)
               for value in found],
              [(value.mean if value.high is None else value.high) - value.mean
               for value in found]]
      axes.errorbar(x, [value.mean for value in found], yerr=bars, marker='.',
                    capsize=2, linewidth=1, label=label)
  if none in records:
    axes.axhline(statistics.interval(pages.values(records[none])).mean, color='black',
                 linewidth=1, linestyle='--', label='no privacy')
  if not drawn:
    return
  axes.set_xscale('log', base=2)
  ticks: Sequence[float] = sorted({e for by in curves.values() for e in by})
  axes.set_xticks(ticks, [f'{tick:g}' for tick in ticks])
  axes.set_xlabel('epsilon')
  axes.set_ylabel(metric)
  axes.set_title(title, fontsize=10)
  axes.grid(alpha=0.3)
  axes.legend(fontsize=8)
  figure.tight_layout()
  figure.savefig(path, dpi=120)
