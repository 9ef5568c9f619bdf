"""Settings of a sweep."""

import dataclasses

from tff_pipelines.experiment import files
from tff_pipelines.experiment import settings
from tff_pipelines.sweeps import runs


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepSettings(settings.Settings):
  """Settings of the trainer, each run several times."""

  setting: tuple[str, ...] = settings.setting(
      (), 'A name, a colon and flags of the trainer; given once for each setting.',
      group='settings', repeated=True, essential=True)
  common: tuple[str, ...] = settings.setting(
      (), 'Flags of the trainer for all settings; may be given several times.',
      group='settings', repeated=True, essential=True)
  repeats: int = settings.setting(
      1, 'Runs of each setting.', group='settings', low=1, essential=True)
  seeded: bool = settings.setting(
      False, 'Cohorts and noise follow from the index of the repeat: the same clients '
      'under all settings, and no privacy guarantee.', group='settings',
      essential=True)
  output_dir: str | None = settings.setting(
      None, 'Folder of all runs, the table and the figure.', group='run',
      essential=True)
  at_once: int = settings.setting(
      1, 'Runs at a time.', group='run', low=1, essential=True)
  title: str | None = settings.setting(
      None, 'Title of the figure.', group='run', essential=True, otherwise='none')

  def check(self) -> None:
    super().check()
    if self.output_dir is None:
      raise ValueError('output_dir must be given')
    for parsed in self.parsed:
      parsed.check()

  def check_paths(self) -> None:
    files.check_writable(self.output_dir, 'output_dir')

  @property
  def parsed(self) -> list[runs.Setting]:
    """All settings, with the flags that they have in common."""
    return runs.parse_settings(self.setting, self.common)
