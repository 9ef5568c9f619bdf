"""Runs from Python: functions called after each commit of a round, and results."""

from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import pathlib
import types
from typing import Any

from tff_pipelines.common import decimals, files

# (index of a round, its metrics) -> True to stop the run there.
Callback = Callable[[int, Mapping[str, float]], Any]


class StopTraining(Exception):
  """Raised by a callback to stop the run after the round that it was called for."""


def ask_to_stop(callbacks: Iterable[Callback], index: int,
                metrics: Mapping[str, float]) -> bool:
  stop = False
  for callback in callbacks:
    try:
      stop |= callback(index, dict(metrics)) is True
    except StopTraining:
      stop = True
  return stop


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
  """The result of a run.

  Attributes:
    weights: Name -> array of the released model, in the order of its layers. Empty if
      the run releases none.
    guarantee: All numbers of the guarantee and their terms, a
      `accounting.guarantees.guarantee.Guarantee`.
    summary: Content of summary.json; docs/summary.md.
    metrics: A row for each round, a pandas.DataFrame. Its epsilon is of the rounds so
      far; the guarantee of the run is `guarantee`.
    figures: Paths of the figures.
    folder: Folder of the run.
  """

  weights: Mapping[str, Any]
  guarantee: Any
  summary: Mapping[str, Any]
  metrics: Any
  figures: tuple[pathlib.Path, ...]
  folder: pathlib.Path

  def __repr__(self) -> str:
    summary, lines = self.summary, [f'Result in {self.folder}']
    if summary['value'] is not None:
      lines += ['{headline_of}: {headline} {value:.4f}'.format(**summary)]
    for who in ('', '_server', '_participant'):
      if (epsilon := summary[f'epsilon{who}']) is not None:
        lines += [f'epsilon {decimals.epsilon(epsilon)} at delta {summary["delta"]} '
                  f'against {summary["observers" + who]}']
    return '\n'.join([*lines, f'caveats: {", ".join(summary["caveats"])}'])


def run(experiment: Any, callbacks: Sequence[Callback] = ()) -> Result:
  """Runs an `Experiment`, which prints nothing unless it is to be verbose."""
  import pandas  # pylint: disable=g-import-not-at-top
  experiment.callbacks = tuple(callbacks)
  experiment.quiet = not experiment.settings.verbose
  summary, folder = experiment.run(), experiment.folder
  path = folder / files.METRICS
  return Result(
      weights=types.MappingProxyType(dict(experiment.weights)), folder=folder,
      guarantee=experiment.guarantee, summary=types.MappingProxyType(summary),
      figures=tuple(folder / name for name in experiment.figures),
      metrics=pandas.read_csv(path, float_precision='round_trip') if path.exists() else
      pandas.DataFrame())
