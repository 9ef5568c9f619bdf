"""Writes one page about finished runs, side by side.

  python -m tff_pipelines.report out/run
  python -m tff_pipelines.report out/a out/b out/c --output=comparison.html

The page is one file without scripts, for a browser on a computer or a phone: the
guarantees in plain words, curves, confusion, the settings that differ, a verdict on
each ledger, and all warnings. Every program that keeps a folder leaves such a page of
its run there, report.html. Here ledgers are read again: their chains are verified, and
epsilon is recomputed from them alone.

Exit code 1 if a ledger does not prove what its summary states.
"""

import dataclasses
import os
import pathlib

from tff_pipelines.experiment import cli  # First: the search path follows from it.
# pylint: disable=g-bad-import-order
from tff_pipelines.common import files
from tff_pipelines.experiment import pages, settings as settings_lib
from tff_pipelines.common.declarations import setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportSettings(settings_lib.Settings):
  """Settings of a page."""

  runs: tuple[str, ...] = setting(
      (), 'Folders of finished runs, of any program.', group='run', essential=True,
      positional=True)
  output: str | None = setting(
      None, 'The HTML file to write.', group='run', essential=True,
      otherwise=f'{files.PAGE} in the folder of a single run, or here')

  def check(self) -> None:
    folders = list(map(os.path.realpath, self.runs))
    if len(set(folders)) != len(folders):
      raise ValueError(f'runs must name every folder once, found {self.runs!r}')

  def check_paths(self) -> None:
    files.check_writable(self.path, 'output')

  @property
  def path(self) -> pathlib.Path:
    """The file to write."""
    return (pathlib.Path(self.output) if self.output is not None else
            pathlib.Path(self.runs[0] if len(self.runs) == 1 else '.') / files.PAGE)


def report(settings: ReportSettings) -> int:
  """Writes the page.

  Returns the exit code: 1 if a ledger does not prove the guarantee of its summary.

  Raises OSError or ValueError if a folder has no finished run, or the page can't be
  written.
  """
  folders = list(map(pathlib.Path, settings.runs))
  names = [folder.absolute().name for folder in folders]
  if len(set(names)) != len(names):
    names = list(settings.runs)
  runs = [pages.read(folder, pages.verdict_on(folder), name=name)
          for folder, name in zip(folders, names)]
  pages.write(settings.path, runs)
  print(settings.path)
  wrong = [run.name for run in runs if not run.verdict.proves(run.summary)]
  for name in wrong:
    print(f'the ledger of {name} does not prove the guarantee that its summary states')
  return int(bool(wrong))


main = cli.program(__name__, ReportSettings, 'tff_pipelines.report:report')
