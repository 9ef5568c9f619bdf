"""The report of a sweep: a table, printed and as JSON, and a figure."""

import dataclasses
import json
import math
import os
import pathlib

from tff_pipelines.accounting import decimals
from tff_pipelines.experiment import files
from tff_pipelines.sweeps import runs as sweep_runs
from tff_pipelines.sweeps import settings as settings_lib

TABLE, FIGURE = 'sweep.json', 'sweep.png'


def _epsilon(result: sweep_runs.Result) -> str:
  if result.epsilon is not None:
    return decimals.epsilon(result.epsilon)
  if result.epsilon_if_unseeded is not None:
    return f'({decimals.epsilon(result.epsilon_if_unseeded)})'
  return 'none'


def _print(results: list[sweep_runs.Result]) -> None:
  width = max(len('setting'), *(len(result.name) for result in results))
  print(f'\n{"setting":<{width}}  noise   epsilon   delta      '
        f'{results[0].metric}, % +- stddev: each')
  for result in results:
    noise, delta = (
        '-' if value is None else decimals.rounded_up(value)
        for value in (result.noise_multiplier, result.delta))
    repeats = ' '.join(f'{100 * value:.2f}' for value in result.values)
    spread = '' if math.isnan(result.stddev) else f' +- {100 * result.stddev:.2f}'
    line = (f'{result.name:<{width}}  {noise:<7} {_epsilon(result):<9} {delta:<10} '
            f'{100 * result.mean:.2f}{spread}')
    # Many repeats are in sweep.json alone.
    print(f'{line}: {repeats}' if len(line) + len(repeats) < 79 else line)
  if any(result.epsilon_if_unseeded is not None for result in results):
    print('(epsilon): what one run without a seed would guarantee, alone; these '
          'have none')
  for warning in sweep_runs.warnings(results):
    print(f'warning: {warning}')


def _draw(results: list[sweep_runs.Result], path: pathlib.Path,
          title: str | None) -> None:
  """Draws the mean of each setting as a line, and the range of its repeats."""
  from matplotlib import figure as figure_lib  # pylint: disable=g-import-not-at-top
  import pandas  # pylint: disable=g-import-not-at-top
  figure = figure_lib.Figure(figsize=(7, 4.2))
  axes = figure.subplots()
  for result in results:
    # A row for each round, a column for each repeat.
    table = 100 * pandas.DataFrame(map(dict, result.curves)).T.sort_index()
    line, = axes.plot(table.index, table.mean(axis=1), label=result.name)
    axes.fill_between(table.index, table.min(axis=1), table.max(axis=1),
                      color=line.get_color(), alpha=0.15, linewidth=0)
  held_out, metric = results[0].metric.split('/')
  axes.set_xlabel('round')
  axes.set_ylabel(f'{metric.replace("_", " ")} on {held_out} (%)')
  axes.set_title(title or '', fontsize=10)
  axes.grid(alpha=0.3)
  axes.legend(fontsize=9)
  figure.tight_layout()
  figure.savefig(path, dpi=120)


def write(results: list[sweep_runs.Result], folder: pathlib.Path,
          title: str | None) -> None:
  """Writes the table and the figure to a folder, and prints the table."""
  warnings = sweep_runs.warnings(results)
  files.write_atomically(folder / TABLE, json.dumps([
      {**dataclasses.asdict(result), 'mean': result.mean,
       'epsilon_is_of': None if result.delta is None else 'each run alone',
       'warnings': warnings} for result in results], indent=1) + '\n')
  _draw(results, folder / FIGURE, title)
  _print(results)
  print(f'written to {os.fspath(folder)}: {TABLE}, {FIGURE}')


def sweep(settings: settings_lib.SweepSettings) -> None:
  """Runs the runs of a sweep that are not done yet, and reports.

  Args:
    settings: Of the sweep.

  Raises:
    OSError, ValueError: For a mistake of the user, or a run that fails; the message
      is one line.
  """
  runs = sweep_runs.build_runs(
      settings.parsed, settings.output_dir, repeats=settings.repeats,
      seeded=settings.seeded)
  sweep_runs.run_all(runs, settings.at_once)
  write(sweep_runs.results(runs), pathlib.Path(settings.output_dir), settings.title)
