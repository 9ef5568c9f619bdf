"""Settings of a sweep."""

from collections.abc import Iterable, Sequence
import dataclasses
import functools
import re
import shlex
from typing import NamedTuple

from tff_pipelines.common import declarations, files
from tff_pipelines.experiment import cli, settings
from tff_pipelines.fedavg.settings import TrainSettings

_settings, _run = (functools.partial(declarations.setting, group=name, essential=True)
                   for name in ('settings', 'run'))
_FLAG = re.compile(r'--?(?:no)?(\w+)(=.*)?', re.DOTALL)
_UNUSED = re.compile(r'(\w+) is not used with ')
_MECHANISMS = tuple(f'{name}: --rounds=30 --mechanism={mechanism}' for name, mechanism in (
    ('no privacy', 'none'), ('central Gaussian', 'gaussian'), ('Skellam', 'skellam')))
# Flags that a sweep sets itself.
_OWN = ('output_dir', 'resume', 'initial_weights_seed', 'seed')


class Setting(NamedTuple):
  """A setting of the trainer, and its name in the characters of a folder's."""

  name: str
  flags: tuple[str, ...]
  folder: str


def parse_settings(settings: Iterable[str], common: Sequence[str]) -> list[Setting]:
  """Parses each 'name: --flag=value ...' after the flags of all settings.

  A flag of all settings that one does not use is left out of that one.

  Raises ValueError if there is none, one has another form, or sets what the sweep sets
  itself, or two have the same folder.
  """
  by_folder: dict[str, Setting] = {}
  for text in settings:
    name, colon, rest = text.partition(':')
    name = name.strip()
    if not colon or not name or name.startswith('-'):
      raise ValueError(f'setting must be a name, a colon and flags, found {text!r}')
    shared, own = ([flag for part in parts for flag in shlex.split(part)]
                   for parts in (common, [rest]))
    for flag in (*shared, *own):
      match = _FLAG.fullmatch(flag)
      if not match:
        raise ValueError(f'setting {name!r} must be of --flag=value, found {flag!r}')
      if match[1] in _OWN:
        raise ValueError(f'setting {name!r}: --{match[1]} is set by the sweep')
    folder = re.sub(r'[^a-z0-9.]+', '_', name.lower()).strip('_') or '_'
    if folder in by_folder:
      raise ValueError(f'settings must have different names, found {name!r} and '
                       f'{by_folder[folder].name!r}')
    by_folder[folder] = Setting(name, (*_used(shared, own), *own), folder)
  if not by_folder:
    raise ValueError('there must be at least one setting')
  return list(by_folder.values())


def _used(shared: Sequence[str], own: Sequence[str]) -> Sequence[str]:
  """The flags of all settings that the trainer uses with those of one."""
  while True:
    try:
      cli.parsed(TrainSettings, (*shared, *own))
    except ValueError as error:
      unused = _UNUSED.match(str(error))
      left = [flag for flag in shared if not unused or (
          _FLAG.fullmatch(flag)[1] != unused[1])]
      if len(left) < len(shared):
        shared = left
        continue
    return shared


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepSettings(settings.Settings):
  """Settings of the trainer, each run several times."""

  setting: tuple[str, ...] = _settings(_MECHANISMS, 'A name, a colon and flags; once '
      'for each setting.', repeated=True, otherwise='three mechanisms')
  common: tuple[str, ...] = _settings((), 'Flags for all settings.', repeated=True)
  repeats: int = _settings(1, 'Runs of each setting.', low=1)
  seeded: bool = _settings(False, 'Cohorts and noise follow from the index of the '
      'repeat: the same clients under all settings, and no privacy guarantee.')
  output_dir: str = _run('out/sweep', 'Folder of all runs, the table and the figure.')
  at_once: int = _run(1, 'Runs at a time.', low=1)
  title: str | None = _run(None, 'Title of the figure.', otherwise='none')

  def check(self) -> None:
    super().check()
    for setting in self.parsed:
      try:
        cli.parsed(TrainSettings, setting.flags)
      except ValueError as error:
        raise ValueError(f'setting {setting.name!r}: {error}') from None

  def check_paths(self) -> None:
    files.check_writable(self.output_dir, 'output_dir')

  @property
  def parsed(self) -> list[Setting]:
    """All settings, with their common flags."""
    return parse_settings(self.setting, self.common)
