"""Settings of a sweep."""

import dataclasses
import functools

from tff_pipelines.experiment import cli
from tff_pipelines.experiment import files
from tff_pipelines.experiment import settings
from tff_pipelines.fedavg.settings import TrainSettings
from tff_pipelines.sweeps import runs

_settings, _run = (functools.partial(settings.setting, group=name, essential=True)
                   for name in ('settings', 'run'))


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
  def parsed(self) -> list[runs.Setting]:
    """All settings, with their common flags."""
    return runs.parse_settings(self.setting, self.common)
