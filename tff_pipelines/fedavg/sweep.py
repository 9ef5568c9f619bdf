"""The runs of a sweep, started, resumed and compared: a table and a figure."""

from collections.abc import Sequence
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

from tff_pipelines.accounting.guarantees import answers, ledger_query
from tff_pipelines.common import decimals, files
from tff_pipelines.experiment import metrics, report as report_lib
from tff_pipelines.fedavg import sweep_settings as settings_lib

_COMMAND, _LOG, RUN = 'command.json', 'log.txt', 'run'
TABLE, FIGURE = 'sweep.json', 'sweep.png'
_PR_SET_PDEATHSIG = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
  """One run of a sweep.

  Attributes:
    setting: Setting of the run.
    repeat: Its index, from 0; the seed of its initial weights.
    folder: Folder of its command, its log and its output folder.
    seeded: Whether cohorts and noise follow from the index too.
  """

  setting: settings_lib.Setting
  repeat: int
  folder: pathlib.Path
  seeded: bool

  @property
  def flags(self) -> list[str]:
    """Flags of the trainer, except for those that may differ when it is resumed."""
    seeds = ('initial_weights_seed', 'seed')[:1 + self.seeded]
    return [*self.setting.flags, *(f'--{name}={self.repeat}' for name in seeds)]

  def prepare(self) -> None:
    """Creates the folder. Raises ValueError if it is that of other flags."""
    files.make_folder(self.folder)
    path = self.folder / _COMMAND
    if not path.exists():
      files.write_atomically(path, json.dumps(self.flags) + '\n')
    flags = json.loads(path.read_text(encoding='utf-8'))
    if flags != self.flags:
      raise ValueError(
          f'{self.folder} has a run of other flags, {shlex.join(flags)}: choose '
          'another output_dir or remove it')

  def start(self) -> subprocess.Popen:
    """Starts or resumes the trainer, which ends with this process."""
    with open(self.folder / _LOG, 'ab', opener=files.opener) as log:
      return subprocess.Popen(
          [sys.executable, '-m', 'tff_pipelines', 'train', *self.flags, '--resume',
           f'--output_dir={self.folder / RUN}'],
          stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
          preexec_fn=lambda: ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM))


def build_runs(settings: Sequence[settings_lib.Setting],
               folder: str | os.PathLike[str], *, repeats: int,
               seeded: bool) -> list[Run]:
  """Builds all runs: every setting once, then every setting again, and so on."""
  return [
      Run(setting=setting, repeat=repeat, seeded=seeded,
          folder=pathlib.Path(folder) / setting.folder_name / str(repeat))
      for repeat in range(repeats) for setting in settings]


def run_all(runs: Sequence[Run], at_once: int) -> None:
  """Runs those that are not done yet, at most `at_once` >= 1 at a time.

  Raises:
    ValueError: If folders are of other flags, or a run fails; says which, and the
      last line that it printed.
  """
  for run in runs:
    run.prepare()
  waiting = [run for run in runs if not (run.folder / RUN / files.SUMMARY).is_file()]
  print(f'{len(runs)} runs, {len(runs) - len(waiting)} of them done',
        file=sys.stderr)
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
        name = f'{run.setting.name}, repeat {run.repeat}'
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
  """The results of the repeats of one setting.

  Attributes:
    name: Name of the setting.
    metric: 'set/metric' that is compared.
    values: Values of the last round, one for each repeat.
    curves: (round, value) of each repeat.
    epsilon: Epsilon of each repeat alone, the maximum; None if nothing is guaranteed.
    epsilon_if_unseeded: Epsilon that a run without a seed would have had, alone.
    delta: Delta of either epsilon; None if there is neither.
    noise_multiplier: None if there is no noise.
  """

  name: str
  metric: str
  values: list[float]
  curves: list[list[tuple[int, float]]]
  epsilon: float | None
  epsilon_if_unseeded: float | None
  delta: float | None
  noise_multiplier: float | None

  @property
  def mean(self) -> float:
    return statistics.fmean(self.values)

  @property
  def stddev(self) -> float:
    """Standard deviation of the sample of repeats; NaN for one."""
    return statistics.stdev(self.values) if len(self.values) > 1 else math.nan


def warnings(results: Sequence[Result]) -> list[str]:
  """Returns what a reader of a sweep's numbers must know."""
  runs = sum(len(result.values) for result in results)
  private = [result.epsilon is not None for result in results]
  if runs < 2 or not any(private):
    return []
  text = (f'epsilon and delta are of each run alone: the {runs} runs together spend '
          'more, for the clients that they share')
  if not all(private):
    text += '; runs without an epsilon protect no client'
  return [text]


def total(runs: Sequence[Run]) -> tuple[answers.Answer | None, str]:
  """Adds up what all runs of a sweep spend, by their ledgers.

  Returns:
    The answer, None where there is none, and a sentence for the terminal.
  """
  try:
    answer = ledger_query.together(
        [run.folder / RUN / files.LEDGER for run in runs])
  except (OSError, ValueError) as error:
    return None, f'no epsilon of all runs together: {error}'
  if answer.epsilon is None:
    return None, 'no epsilon of all runs together: none is finite'
  server = 'none' if answer.epsilon_server is None else decimals.epsilon(
      answer.epsilon_server)
  return answer, (
      f'all {len(runs)} runs together: epsilon {decimals.epsilon(answer.epsilon)} at '
      f'delta {decimals.rounded_up(answer.delta)} against observers of the models, '
      f'{server} against the server')


def collect(runs: Sequence[Run]) -> list[Result]:
  """Returns the results of finished runs, in the order of their settings."""
  by_setting = []
  for setting in dict.fromkeys(run.setting for run in runs):
    repeats = [run for run in runs if run.setting == setting]
    summaries = [report_lib.read_summary(run.folder / RUN / files.SUMMARY)
                 for run in repeats]
    first = summaries[0]
    held_out, metric = first['headline_of'], first['headline']
    values = [summary['held_out'][held_out].get(metric) for summary in summaries]
    name = f'{held_out}/{metric}'
    tables = [metrics.rows(run.folder / RUN / files.METRICS) for run in repeats]
    largest = {}
    for key in ('epsilon', 'epsilon_if_unseeded'):
      epsilons = [summary[key] for summary in summaries]
      largest[key] = None if None in epsilons else max(epsilons)
    by_setting.append(Result(
        name=setting.name, metric=name, **largest,
        values=[math.nan if value is None else value for value in values],
        curves=[[(int(row['round']), float(row[name])) for row in table
                 if row.get(name)] for table in tables],
        delta=None if set(largest.values()) == {None} else first['delta'],
        noise_multiplier=first['noise_multiplier']))
  return by_setting


def _epsilon(result: Result) -> str:
  if result.epsilon is not None:
    return decimals.epsilon(result.epsilon)
  if result.epsilon_if_unseeded is not None:
    return f'({decimals.epsilon(result.epsilon_if_unseeded)})'
  return 'none'


def _print(results: list[Result]) -> None:
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
  for warning in warnings(results):
    print(f'warning: {warning}')


def _draw(results: list[Result], path: pathlib.Path,
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


def write(results: list[Result], folder: pathlib.Path, title: str | None,
          runs: Sequence[Run] = ()) -> None:
  """Writes the table and the figure to a folder, and prints the table.

  Args:
    results: Of all settings.
    folder: An existing one.
    title: Title of the figure; None for none.
    runs: All runs, for what they spend together.
  """
  texts, spent, words = warnings(results), None, None
  if texts:
    spent, words = total(runs)
  together = {'epsilon_of_all_runs': spent and spent.epsilon,
              'epsilon_server_of_all_runs': spent and spent.epsilon_server,
              'delta_of_all_runs': spent and spent.delta}
  files.write_atomically(folder / TABLE, json.dumps([
      {**dataclasses.asdict(result), 'mean': result.mean,
       'epsilon_is_of': None if result.delta is None else 'each run alone',
       **together, 'warnings': texts} for result in results], indent=1) + '\n')
  with files.replacing(folder / FIGURE) as path:
    _draw(results, path, title)
  _print(results)
  if words is not None:
    print(words)
  print(f'written to {os.fspath(folder)}: {TABLE}, {FIGURE}')


def sweep(settings: settings_lib.SweepSettings) -> None:
  """Runs the runs of a sweep that are not done yet, and reports.

  Raises:
    OSError, ValueError: For a mistake of the user, or a run that fails; the message
      is one line.
  """
  runs = build_runs(settings.parsed, settings.output_dir, repeats=settings.repeats,
                    seeded=settings.seeded)
  run_all(runs, settings.at_once)
  write(collect(runs), pathlib.Path(settings.output_dir), settings.title, runs)
