"""Copies clients' data of any source to an SQLite file in TFF's format.

  python -m tff_pipelines.prepare_data --output=posts.sqlite \\
      --data_source=jsonl --data_path=posts.jsonl.gz \\
      --fields=text:text,score:integer
  python -m tff_pipelines.prepare_data --output=digits.sqlite --task=emnist \\
      --data_source=npz --data_path=mnist.npz

Without --task the fields are copied as they are; --task=emnist copies what the task
makes of its data, and data that only the task knows (embedded, official) are there
too; a task for texts copies the text that ships. Training with --data_source=sqlite
then reads every client by its id, where it is trained.

It may be stopped at any moment, in whatever way, and started again: clients that are
complete stay, and no client is ever there in part. A finished file is left alone.

Exit codes: 0; 2 for a wrong flag, bad data or a file that can't be written.
"""

from collections.abc import Sequence
import dataclasses
import sys

import tqdm

from tasks import registry
from tasks.sources import open_source
from tasks.sources import records
from tff_pipelines.experiment import cli
from tff_pipelines.experiment import files
from tff_pipelines.experiment import settings as settings_lib
from tff_pipelines.experiment.settings import setting
from tff_pipelines.fedavg import settings as fedavg_settings


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareSettings(fedavg_settings.DataSettings):
  """What is copied, and where to."""

  task: str | None = settings_lib.changed(
      fedavg_settings.DataSettings, 'task', None,
      otherwise='none, fields are copied as they are')
  fields: tuple[str, ...] | None = setting(
      None, 'What to copy without --task: NAME, NAME:KIND or, where it may be missing, '
      f'NAME:KIND?, separated by commas; KIND is one of {", ".join(records.KINDS)}.',
      group='data', essential=True, otherwise='all fields of the first record')
  output: str | None = setting(
      None, 'The SQLite file to write.', group='run', essential=True)

  def check(self) -> None:
    super().check()
    if self.output is None:
      raise ValueError('output must be the path of a file, found none')
    if self.task is None and self.data_source is None:
      raise ValueError('data_source must be given, or a task')

  def check_paths(self) -> None:
    files.check_writable(self.output, 'output')

  def unused(self):
    yield from super().unused()
    if self.task is not None:
      yield from (('fields', f'task={self.task}'), ('model', 'a copy of data'))
      return
    for name in settings_lib.declared(fedavg_settings.DataSettings):
      if name not in ('task', 'data_source', *open_source.OPTIONS):
        yield name, 'a copy of fields as they are, without task'


def prepare(settings: PrepareSettings) -> None:
  """Writes the file, or what is missing of it.

  Args:
    settings: What is copied, and where to.

  Raises:
    ValueError: On bad data that are not to be skipped, or an output of other data.
    OSError: If the output can't be written.
  """
  from tasks.sources import convert  # pylint: disable=g-import-not-at-top
  options, label_counts = settings.task_options, None
  source = options.pop('data_source', None)
  if settings.task is not None:
    raw, label_counts = registry.open_raw(
        settings.task, data_source=source, **options)
  else:
    raw = open_source.open_raw(source, fields=settings.fields and [
        convert.parse_field(text) for text in settings.fields], **options)
  copied = convert.copy(
      raw, settings.output, identifier=convert.identity(
          raw, options=options, task=settings.task, data_source=source,
          fields=settings.fields and list(settings.fields)),
      progress=lambda ids, split: tqdm.tqdm(
          ids, desc=split, unit='client', dynamic_ncols=True, mininterval=1.0))
  if copied is None:
    print(f'{settings.output} is complete already')
    return
  if label_counts is not None:
    from tff_pipelines.fedavg import partition_figure  # pylint: disable=g-import-not-at-top
    figure = f'{settings.output}.{partition_figure.FIGURE}'
    partition_figure.draw(label_counts, figure)
    print(f'labels of the clients are drawn in {figure}')
  clients, examples = copied
  print(f'{settings.output}: {clients:,} clients, {examples:,} examples')
  if raw.skips.describe() is not None:
    print(f'warning: {raw.skips.describe()}')


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs the program; see `cli.start`."""
  return cli.start(
      __doc__, PrepareSettings, 'tff_pipelines.prepare_data:prepare', arguments)


if __name__ == '__main__':
  sys.exit(main())
