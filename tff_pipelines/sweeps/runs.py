"""The runs of a sweep: started, resumed and compared."""

from collections.abc import Iterable, Sequence
import csv
import ctypes
import dataclasses
import json
import math
import os
import pathlib
import re
import shlex
import signal
import statistics
import subprocess
import sys
import time
from typing import Any

from aggregators import validate
from tff_pipelines.experiment import files
from tff_pipelines.experiment import report

_COMMAND, _LOG, RUN = 'command.json', 'log.txt', 'run'
# Flags that a sweep sets itself.
_OWN = ('output_dir', 'resume', 'initial_weights_seed', 'seed')
_PR_SET_PDEATHSIG = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
  """A setting of the trainer.

  Attributes:
    name: As printed and drawn.
    flags: Of the trainer.
  """

  name: str
  flags: tuple[str, ...]

  @classmethod
  def parse(cls, text: str, common: Sequence[str]) -> 'Setting':
    """Parses 'name: --flag=value ...' after the flags of all settings.

    Raises:
      ValueError: If it has another form, or sets what the sweep sets itself.
    """
    name, colon, rest = text.partition(':')
    name = name.strip()
    if not colon or not name or name.startswith('-'):
      raise ValueError(
          f'setting must be a name, a colon and flags, found {text!r}')
    flags = [flag for part in (*common, rest) for flag in shlex.split(part)]
    for flag in flags:
      match = re.fullmatch(r'--?(?:no)?(\w+)(=.*)?', flag, re.DOTALL)
      if not match:
        raise ValueError(f'setting {name!r}: flags must have the form '
                         f'--flag=value, found {flag!r}')
      if match.group(1) in _OWN:
        raise ValueError(f'setting {name!r}: --{match.group(1)} is set by the sweep')
    return cls(name=name, flags=tuple(flags))

  @property
  def folder_name(self) -> str:
    """The name, in the characters of a folder's name."""
    return re.sub(r'[^a-z0-9.]+', '_', self.name.lower()).strip('_') or '_'


def parse_settings(settings: Iterable[str], common: Sequence[str]) -> list[Setting]:
  """Parses all settings, whose folders must differ. Raises ValueError."""
  by_folder: dict[str, Setting] = {}
  for setting in (Setting.parse(text, common) for text in settings):
    other = by_folder.setdefault(setting.folder_name, setting)
    if other is not setting:
      raise ValueError(f'settings must have different names, found '
                       f'{other.name!r} and {setting.name!r}')
  if not by_folder:
    raise ValueError('there must be at least one setting')
  return list(by_folder.values())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
  """One run of a sweep.

  Attributes:
    setting: Of the run.
    repeat: Its index, from 0; the seed of its initial weights.
    folder: Of its command, its log and its output folder.
    seeded: Whether cohorts and noise follow from the index too.
  """

  setting: Setting
  repeat: int
  folder: pathlib.Path
  seeded: bool

  @property
  def flags(self) -> list[str]:
    """Flags of the trainer, except for those that may differ when it is resumed."""
    seeds = ('initial_weights_seed', 'seed') if self.seeded else (
        'initial_weights_seed',)
    return [*self.setting.flags, *(f'--{name}={self.repeat}' for name in seeds)]

  def prepare(self) -> None:
    """Creates the folder. Raises ValueError if it is that of other flags."""
    self.folder.mkdir(parents=True, exist_ok=True)
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
    with open(self.folder / _LOG, 'ab') as log:
      return subprocess.Popen(
          [sys.executable, '-m', 'tff_pipelines.train', *self.flags, '--resume',
           f'--output_dir={self.folder / RUN}'],
          stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
          preexec_fn=lambda: ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM))

  def last_line(self) -> str:
    """Returns the last line of its log that is not empty."""
    text = (self.folder / _LOG).read_text(encoding='utf-8', errors='replace')
    return text.rstrip().rpartition('\n')[2]

  def summary(self) -> dict[str, Any]:
    """Returns the summary, with the keys of `report.SCHEMA`."""
    return report.read_summary(self.folder / RUN / files.SUMMARY)

  def curve(self, name: str) -> list[tuple[int, float]]:
    """Returns (round, value) of a column of the metrics, where it was computed."""
    with open(self.folder / RUN / files.METRICS, encoding='utf-8',
              newline='') as file:
      return [(int(row['round']), float(row[name]))
              for row in csv.DictReader(file) if row.get(name)]


def build_runs(settings: Sequence[Setting], folder: str | os.PathLike[str], *,
               repeats: int, seeded: bool) -> list[Run]:
  """Builds all runs: every setting once, then every setting again, and so on."""
  validate.integer(repeats=repeats, low=1)
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
          raise ValueError(
              f'{name} ended with {process.returncode}: {run.last_line()}')
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
    name: Of the setting.
    metric: 'set/metric' that is compared.
    values: Of the last round, one for each repeat.
    curves: (round, value) of each repeat.
    epsilon: Of each repeat alone, the maximum; None if nothing is guaranteed.
    epsilon_if_unseeded: Epsilon that a run without a seed would have had, alone.
    delta: Of either epsilon; None if there is neither.
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
    """Of the repeats, as a sample; NaN for one."""
    return statistics.stdev(self.values) if len(self.values) > 1 else math.nan


def warnings(results: Sequence[Result]) -> list[str]:  # pylint: disable=redefined-outer-name
  """Returns what a reader of a sweep's numbers must know."""
  runs = sum(len(result.values) for result in results)
  private = [result.epsilon is not None for result in results]
  if runs < 2 or not any(private):
    return []
  text = (f'epsilon and delta are of each run alone: the {runs} runs together spend '
          'more, for the clients that they share, and how much is not computed')
  if not all(private):
    text += '; runs without an epsilon protect no client'
  return [text]


def results(runs: Sequence[Run]) -> list[Result]:
  """Returns the results of finished runs, in the order of their settings."""
  by_setting = []
  for setting in dict.fromkeys(run.setting for run in runs):
    repeats = [run for run in runs if run.setting == setting]
    summaries = [run.summary() for run in repeats]
    first = summaries[0]
    held_out, metric = first['headline_of'], first['headline']
    values = [summary['held_out'][held_out][metric] for summary in summaries]
    largest = {}
    for name in ('epsilon', 'epsilon_if_unseeded'):
      epsilons = [summary[name] for summary in summaries]
      largest[name] = None if None in epsilons else max(epsilons)
    by_setting.append(Result(
        name=setting.name, metric=f'{held_out}/{metric}', **largest,
        values=[math.nan if value is None else value for value in values],
        curves=[run.curve(f'{held_out}/{metric}') for run in repeats],
        delta=None if set(largest.values()) == {None} else first['delta'],
        noise_multiplier=first['noise_multiplier']))
  return by_setting
