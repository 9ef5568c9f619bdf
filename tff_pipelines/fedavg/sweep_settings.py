"""Settings of a sweep."""

from collections.abc import Iterable, Sequence
import dataclasses
import functools
import re
import shlex

from tff_pipelines.common import declarations, files
from tff_pipelines.experiment import cli, settings
from tff_pipelines.fedavg.settings import TrainSettings

_settings, _run = (functools.partial(declarations.setting, group=name, essential=True)
                   for name in ('settings', 'run'))
# Flags that a sweep sets itself.
_OWN = ('output_dir', 'resume', 'initial_weights_seed', 'seed')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
  """A setting of the trainer."""

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
class SweepSettings(settings.Settings):
  """Settings of the trainer, each run several times."""

  setting: tuple[str, ...] = _settings((), 'A name, a colon and flags of the trainer; '
      'given once for each setting.', repeated=True)
  common: tuple[str, ...] = _settings((), 'Flags of the trainer for all settings; may '
      'be given several times.', repeated=True)
  repeats: int = _settings(1, 'Runs of each setting.', low=1)
  seeded: bool = _settings(False, 'Cohorts and noise follow from the index of the '
      'repeat: the same clients under all settings, and no privacy guarantee.')
  output_dir: str | None = _run(None, 'Folder of all runs, the table and the figure.')
  at_once: int = _run(1, 'Runs at a time.', low=1)
  title: str | None = _run(None, 'Title of the figure.', otherwise='none')

  def check(self) -> None:
    super().check()
    if self.output_dir is None:
      raise ValueError('output_dir must be given')
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
