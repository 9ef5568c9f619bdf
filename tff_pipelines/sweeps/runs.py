"""The runs of a sweep: started one after another, resumed, and put together."""

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
from tff_pipelines.experiment import cli
from tff_pipelines.experiment import files
from tff_pipelines.experiment import report
from tff_pipelines.fedavg.settings import TrainSettings

_COMMAND, _LOG, RUN = 'command.json', 'log.txt', 'run'
_TRAIN = 'tff_pipelines.train'
# Flags that a sweep sets itself.
_OWN = ('output_dir', 'resume', 'initial_weights_seed', 'seed')
_POLL_SECONDS = 0.2
_PR_SET_PDEATHSIG = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
  """A setting of the trainer.

  Attributes:
    name: For people.
    flags: Of the trainer.
  """

  name: str
  flags: tuple[str, ...]

  @classmethod
  def parse(cls, text: str, common: Sequence[str]) -> 'Setting':
    """From 'name: --flag=value ...', after the flags of all settings.

    Raises:
      ValueError: If it has another form, or sets what the sweep sets itself.
    """
    name, colon, rest = text.partition(':')
    if not colon or not name.strip() or name.lstrip().startswith('-'):
      raise ValueError(
          f'setting must be a name, a colon and flags, found {text!r}')
    flags = [word for part in (*common, rest) for word in shlex.split(part)]
    for flag in flags:
      match = re.fullmatch(r'--?(?:no)?(\w+)(=.*)?', flag, re.DOTALL)
      if not match:
        raise ValueError(f'setting {name.strip()!r}: flags must have the form '
                         f'--flag=value, found {flag!r}')
      if match.group(1) in _OWN:
        raise ValueError(
            f'setting {name.strip()!r}: --{match.group(1)} is set by the sweep')
    return cls(name=name.strip(), flags=tuple(flags))

  def check(self) -> None:
    """Raises ValueError unless the trainer accepts the flags."""
    try:
      cli.parsed(TrainSettings, self.flags)
    except ValueError as error:
      raise ValueError(f'setting {self.name!r}: {error}') from None

  @property
  def folder_name(self) -> str:
    """The name, in the characters of a folder's name."""
    return re.sub(r'[^a-z0-9.]+', '_', self.name.lower()).strip('_') or '_'


def parse_settings(settings: Iterable[str], common: Sequence[str]) -> list[Setting]:
  """All settings, whose folders must differ. Raises ValueError."""
  by_folder: dict[str, Setting] = {}
  for text in settings:
    setting = Setting.parse(text, common)
    if setting.folder_name in by_folder:
      raise ValueError(f'settings must have different names, found '
                       f'{by_folder[setting.folder_name].name!r} and {setting.name!r}')
    by_folder[setting.folder_name] = setting
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
    """Of the trainer, except for those that may differ when it is resumed."""
    own = [f'--initial_weights_seed={self.repeat}']
    if self.seeded:
      own.append(f'--seed={self.repeat}')
    return [*self.setting.flags, *own]

  def prepare(self) -> None:
    """Creates the folder. Raises ValueError if it is that of other flags."""
    self.folder.mkdir(parents=True, exist_ok=True)
    path = self.folder / _COMMAND
    if path.exists():
      flags = json.loads(path.read_text(encoding='utf-8'))
      if flags != self.flags:
        raise ValueError(
            f'{self.folder} has a run of other flags, {shlex.join(flags)}: choose '
            'another output_dir or remove it')
    else:
      files.write_atomically(path, json.dumps(self.flags) + '\n')

  @property
  def is_done(self) -> bool:
    """Whether it has ended."""
    return (self.folder / RUN / files.SUMMARY).is_file()

  def start(self) -> subprocess.Popen:
    """Starts or resumes the trainer, which ends with this process."""
    with open(self.folder / _LOG, 'ab') as log:
      return subprocess.Popen(
          [sys.executable, '-m', _TRAIN, *self.flags, '--resume',
           f'--output_dir={self.folder / RUN}'],
          stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
          preexec_fn=_end_with_parent)

  def last_line(self) -> str:
    """Of its log."""
    lines = (self.folder / _LOG).read_text(
        encoding='utf-8', errors='replace').split('\n')
    return next((line for line in reversed(lines) if line.strip()), '')

  def summary(self) -> dict[str, Any]:
    """With the keys of `report.SCHEMA`."""
    return report.read_summary(self.folder / RUN / files.SUMMARY)

  def curve(self, name: str) -> list[tuple[int, float]]:
    """(round, value) of a column of the metrics, where it was computed."""
    with open(self.folder / RUN / files.METRICS, encoding='utf-8',
              newline='') as file:
      return [(int(row['round']), float(row[name]))
              for row in csv.DictReader(file) if row.get(name)]


def _end_with_parent() -> None:
  ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def build_runs(settings: Sequence[Setting], folder: str | os.PathLike[str], *,
              repeats: int, seeded: bool) -> list[Run]:
  """All runs: every setting once, then every setting again, and so on."""
  validate.integer(repeats=repeats, low=1)
  return [
      Run(setting=setting, repeat=repeat, seeded=seeded,
          folder=pathlib.Path(folder) / setting.folder_name / str(repeat))
      for repeat in range(repeats) for setting in settings]


def run_all(runs: Sequence[Run], at_once: int) -> None:
  """Runs what is not done yet.

  Raises:
    ValueError: If folders are of other flags, or a run fails; says which, and the
      last line that it printed.
  """
  validate.integer(at_once=at_once, low=1)
  for run in runs:
    run.prepare()
  waiting = [run for run in runs if not run.is_done]
  print(f'{len(runs)} runs, {len(runs) - len(waiting)} of them done',
        file=sys.stderr)
  running: list[tuple[Run, subprocess.Popen, float]] = []
  try:
    while waiting or running:
      while waiting and len(running) < at_once:
        run = waiting.pop(0)
        running.append((run, run.start(), time.monotonic()))
      time.sleep(_POLL_SECONDS)
      for entry in list(running):
        run, process, began = entry
        if process.poll() is None:
          continue
        running.remove(entry)
        what = f'{run.setting.name}, repeat {run.repeat}'
        if process.returncode:
          raise ValueError(f'{what} ended with {process.returncode}: '
                           f'{run.last_line()}')
        print(f'{what}: {time.monotonic() - began:.0f} s', file=sys.stderr)
  finally:
    for _, process, _ in running:
      process.terminate()
    for _, process, _ in running:
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
    epsilon_if_unseeded: What a run without a seed would have guaranteed, alone.
    delta: Of either; None if there is neither.
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


def _largest(values: Iterable[float | None]) -> float | None:
  """None if one of them is."""
  values = list(values)
  return None if None in values else max(values)


def warnings(results: Sequence[Result]) -> list[str]:  # pylint: disable=redefined-outer-name
  """What a reader of a sweep's numbers must know, in words."""
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
  """Results of finished runs, in the order of their settings."""
  by_setting = []
  for setting in dict.fromkeys(run.setting for run in runs):
    repeats = [run for run in runs if run.setting == setting]
    summaries = [run.summary() for run in repeats]
    first = summaries[0]
    held_out, metric = first['headline_of'], first['headline']
    values = [summary['held_out'][held_out][metric] for summary in summaries]
    epsilon, unseeded = (
        _largest(summary[key] for summary in summaries)
        for key in ('epsilon', 'epsilon_if_unseeded'))
    by_setting.append(Result(
        name=setting.name, metric=f'{held_out}/{metric}',
        values=[math.nan if value is None else value for value in values],
        curves=[run.curve(f'{held_out}/{metric}') for run in repeats],
        epsilon=epsilon, epsilon_if_unseeded=unseeded,
        delta=first['delta'] if (epsilon, unseeded) != (None, None) else None,
        noise_multiplier=first['noise_multiplier']))
  return by_setting
