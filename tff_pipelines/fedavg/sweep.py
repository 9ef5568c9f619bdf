"""The runs of a sweep, started, resumed and compared: a table and a figure."""

from collections.abc import Mapping, Sequence
import ctypes
import dataclasses
import json
import math
import os
import pathlib
import shlex
import signal
import statistics
import subprocess
import sys
import time
from typing import Any

from tff_pipelines.accounting.guarantees import answers, ledger_query
from tff_pipelines.accounting.guarantees.guarantee import in_words
from tff_pipelines.common import decimals, files
from tff_pipelines.experiment import metrics, report as report_lib
from tff_pipelines.fedavg import sweep_settings as settings_lib

_COMMAND, _LOG, RUN = 'command.json', 'log.txt', 'run'
TABLE, FIGURE = 'sweep.json', 'sweep.png'
_PR_SET_PDEATHSIG = 1


@dataclasses.dataclass(frozen=True)
class Run:
  """A run of the setting `name`, with its command, log and output in a folder.

  `repeat`, from 0, is the seed of its initial weights; `flags` lack those that may
  differ when it is resumed.
  """

  name: str
  repeat: int
  folder: pathlib.Path
  flags: tuple[str, ...]

  @property
  def output(self) -> pathlib.Path:
    """The trainer's output folder."""
    return self.folder / RUN

  def prepare(self) -> None:
    """Creates the folder. Raises ValueError if it is that of other flags."""
    files.make_folder(self.folder)
    path = self.folder / _COMMAND
    if not path.exists():
      files.write_atomically(path, json.dumps(self.flags) + '\n')
    flags = json.loads(path.read_text(encoding='utf-8'))
    if flags != list(self.flags):
      raise ValueError(f'{self.folder} has a run of other flags, {shlex.join(flags)}')

  def start(self) -> subprocess.Popen:
    """Starts or resumes the trainer, which ends with this process."""
    with open(self.folder / _LOG, 'ab', opener=files.opener) as log:
      return subprocess.Popen(
          [sys.executable, '-m', 'tff_pipelines', 'train', *self.flags, '--resume',
           f'--output_dir={self.output}'],
          stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
          preexec_fn=lambda: ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM))


def build_runs(settings: Sequence[settings_lib.Setting],
               folder: str | os.PathLike[str], *, repeats: int,
               seeded: bool) -> list[Run]:
  """Builds all runs: every setting once, then every setting again, and so on.

  If they are seeded, cohorts and noise follow from the index of the repeat too.
  """
  seeds = ('initial_weights_seed', 'seed')[:1 + seeded]
  return [
      Run(setting.name, repeat, pathlib.Path(folder) / setting.folder / str(repeat),
          (*setting.flags, *(f'--{name}={repeat}' for name in seeds)))
      for repeat in range(repeats) for setting in settings]


def run_all(runs: Sequence[Run], at_once: int) -> None:
  """Runs those that are not done yet, at most `at_once` >= 1 at a time.

  Raises ValueError if folders are of other flags, or a run fails; says which, and the
  last line that it printed.
  """
  for run in runs:
    run.prepare()
  waiting = [run for run in runs if not (run.output / files.SUMMARY).is_file()]
  print(f'{len(runs)} runs, {len(runs) - len(waiting)} of them done', file=sys.stderr)
  running: dict[Run, tuple[subprocess.Popen, float]] = {}
  try:
    while waiting or running:
      while waiting and len(running) < at_once:
        run = waiting.pop(0)
        running[run] = run.start(), time.monotonic()
      time.sleep(0.2)
      for run, (process, start) in list(running.items()):
        if process.poll() is None:
          continue
        del running[run]
        name = f'{run.name}, repeat {run.repeat}'
        if process.returncode:
          log = (run.folder / _LOG).read_text(encoding='utf-8', errors='replace')
          raise ValueError(f'{name} ended with {process.returncode}: '
                           + log.rstrip().rpartition('\n')[2])
        print(f'{name}: {time.monotonic() - start:.0f} s', file=sys.stderr)
  finally:
    for process, _ in running.values():
      process.terminate()
    for process, _ in running.values():
      process.wait()


def warnings(rows: Sequence[Mapping[str, Any]]) -> list[str]:
  """Returns what a reader of a sweep's numbers must know."""
  runs = sum(len(row['values']) for row in rows)
  private = [row['epsilon'] is not None for row in rows]
  if runs < 2 or not any(private):
    return []
  return ['epsilon and delta are of each run alone: the {} runs together spend more, '
          'for the clients that they share{}'.format(runs, '' if all(private) else (
              '; runs without an epsilon protect no client'))]


def total(runs: Sequence[Run]) -> tuple[answers.Answer | None, str]:
  """Adds up what all runs of a sweep spend, by their ledgers, and says it in words.

  The answer is None where there is none.
  """
  try:
    answer = ledger_query.together([run.output / files.LEDGER for run in runs])
  except (OSError, ValueError) as error:
    return None, f'no epsilon of all runs together: {error}'
  if answer.epsilon is None:
    return None, 'no epsilon of all runs together: none is finite'
  chosen = '' if answer.chosen is None else (
      f' ({in_words(answer.chosen)} whatever cohorts it chooses)')
  return answer, (
      f'all {len(runs)} runs together: epsilon {decimals.epsilon(answer.epsilon)} at '
      f'delta {decimals.rounded_up(answer.delta)} against observers of the models, '
      f'{in_words(answer.server)} against the server{chosen}')


def collect(runs: Sequence[Run]) -> list[dict[str, Any]]:
  """Returns the results of finished runs, a row for each of their settings.

  Each repeat has a value of the last round, and a curve: (round, value). Epsilons, the
  maximum over repeats, are of one alone; None if nothing is guaranteed.
  """
  rows = []
  for name in dict.fromkeys(run.name for run in runs):
    outputs = [run.output for run in runs if run.name == name]
    summaries = [report_lib.read_summary(output / files.SUMMARY) for output in outputs]
    first = summaries[0]
    held_out, headline = first['headline_of'], first['headline']
    values = [summary['held_out'][held_out].get(headline) for summary in summaries]
    values = [math.nan if value is None else value for value in values]
    metric, largest = f'{held_out}/{headline}', {}
    for key in ('epsilon', 'epsilon_if_unseeded'):
      epsilons = [summary[key] for summary in summaries]
      largest[key] = None if None in epsilons else max(epsilons)
    is_private = set(largest.values()) != {None}
    rows.append({
        'name': name, 'metric': metric, 'values': values, 'curves': [
            [(int(row['round']), float(row[metric]))
             for row in metrics.rows(output / files.METRICS) if row.get(metric)]
            for output in outputs],
        **largest, 'delta': first['delta'] if is_private else None,
        'noise_multiplier': first['noise_multiplier'],
        'mean': statistics.fmean(values),
        'epsilon_is_of': 'each run alone' if is_private else None})
  return rows


def _epsilon(row: Mapping[str, Any]) -> str:
  if row['epsilon'] is not None:
    return decimals.epsilon(row['epsilon'])
  if row['epsilon_if_unseeded'] is not None:
    return f'({decimals.epsilon(row["epsilon_if_unseeded"])})'
  return 'none'


def _print(rows: list[dict[str, Any]]) -> None:
  width = max(len('setting'), *(len(row['name']) for row in rows))
  print(f'\n{"setting":<{width}}  noise   epsilon   delta      '
        f'{rows[0]["metric"]}, % +- stddev: each')
  for row in rows:
    noise, delta = (
        '-' if value is None else decimals.rounded_up(value)
        for value in (row['noise_multiplier'], row['delta']))
    values = row['values']
    repeats = ' '.join(f'{100 * value:.2f}' for value in values)
    spread = f' +- {100 * statistics.stdev(values):.2f}' if len(values) > 1 else ''
    line = (f'{row["name"]:<{width}}  {noise:<7} {_epsilon(row):<9} {delta:<10} '
            f'{100 * row["mean"]:.2f}{spread}')
    # Many repeats are in sweep.json alone.
    print(f'{line}: {repeats}' if len(line) + len(repeats) < 79 else line)
  if any(row['epsilon_if_unseeded'] is not None for row in rows):
    print('(epsilon): what one run without a seed would guarantee, alone; these '
          'have none')
  for warning in warnings(rows):
    print(f'warning: {warning}')


def _draw(rows: list[dict[str, Any]], path: pathlib.Path, title: str | None) -> None:
  """Draws the mean of each setting as a line, and the range of its repeats."""
  import pandas  # pylint: disable=g-import-not-at-top
  held_out, metric = rows[0]['metric'].split('/')
  ylabel = f'{metric.replace("_", " ")} on {held_out} (%)'
  with report_lib.figure(path, 'round', ylabel, title=title or '') as axes:
    for row in rows:
      # A row for each round, a column for each repeat.
      table = 100 * pandas.DataFrame(map(dict, row['curves'])).T.sort_index()
      line, = axes.plot(table.index, table.mean(axis=1), label=row['name'])
      axes.fill_between(table.index, table.min(axis=1), table.max(axis=1),
                        color=line.get_color(), alpha=0.15, linewidth=0)
    axes.grid(alpha=0.3)
    repeats = max(len(row['curves']) for row in rows)
    axes.legend(fontsize=9, title_fontsize=8, title=(
        f'mean and range of {repeats} repeats' if repeats > 1 else None))


def write(rows: list[dict[str, Any]], folder: pathlib.Path, title: str | None,
          runs: Sequence[Run]) -> None:
  """Writes the table of `collect` and the figure to a folder, and prints the table.

  The folder exists; `runs` are all runs, for what they spend together.
  """
  texts = warnings(rows)
  spent, words = total(runs) if texts else (None, '')
  together = {f'{name}_of_all_runs': spent and spent.to_json()[name] for name in (
      'epsilon', 'epsilon_server', 'epsilon_server_any_cohorts', 'delta')}
  files.write_atomically(folder / TABLE, json.dumps([
      {**row, **together, 'warnings': texts} for row in rows], indent=1) + '\n')
  with files.replacing(folder / FIGURE) as path:
    _draw(rows, path, title)
  _print(rows)
  if words:
    print(words)
  print(f'written to {os.fspath(folder)}: {TABLE}, {FIGURE}')


def sweep(settings: settings_lib.SweepSettings) -> list[dict[str, Any]]:
  """Runs the runs of a sweep that are not done yet, and reports; a row a setting.

  Raises OSError or ValueError, in one line, for a mistake of the user or a run that
  fails.
  """
  runs = build_runs(settings.parsed, settings.output_dir, repeats=settings.repeats,
                    seeded=settings.seeded)
  run_all(runs, settings.at_once)
  rows = collect(runs)
  write(rows, pathlib.Path(settings.output_dir), settings.title, runs)
  return rows
