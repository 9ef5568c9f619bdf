"""Copies clients' data of any source to an SQLite file in TFF's format.

  python -m tff_pipelines.prepare_data --output=posts.sqlite \\
      --data_source=jsonl --data_path=posts.jsonl.gz \\
      --fields=text:text,score:integer
  python -m tff_pipelines.prepare_data --output=digits.sqlite --task=emnist \\
      --data_source=npz --data_path=mnist.npz
  python -m tff_pipelines.prepare_data --roster --output=driver/digits.sqlite \\
      --data_source=sqlite --data_path=digits.sqlite

Without --task the fields are copied as they are; --task=emnist copies the task's
examples, of embedded and official data too; a task for texts copies the text that
ships. A copy that is stopped leaves nothing. --purge deletes the copies of training.
--roster writes a prepared file without the training clients' examples, for the driver of
a cluster whose workers have the file.
"""

import json
import os

from tff_pipelines.experiment import cli  # First: the search path follows from it.
# pylint: disable=g-bad-import-order
from tasks import registry, task as task_lib
from tasks.sources import open_source, records, rows
from tff_pipelines.experiment import report
from tff_pipelines.fedavg.settings import PrepareSettings


def prepare(settings: PrepareSettings) -> None:
  """Writes the file, unless it is there.

  Raises ValueError on bad data that are not to be skipped, or an output of other data;
  OSError if the output can't be written.
  """
  # They import TensorFlow, which takes seconds and settings do not need.
  # pylint: disable=g-import-not-at-top
  from tasks.sources import rosters
  from tasks.sources import store
  # pylint: enable=g-import-not-at-top
  if settings.purge:
    print('{}: {} copies deleted, {:,} bytes'.format(
        store.folder(settings.cache_dir), *store.purge(settings.cache_dir)))
    return
  if settings.roster:
    clients = rosters.write(settings.data_path, settings.output, settings.train_split)
    print(f'{settings.output}: {clients:,} clients, without their examples')
    return
  options, label_counts = settings.task_options, None
  source = options.pop('data_source', None)
  skips = task_lib.Skips(options.pop('skip_bad_clients', False))
  fields = settings.fields and list(map(records.parse_field, settings.fields))
  if settings.task is not None:
    raw, label_counts = registry.open_raw(
        settings.task, data_source=source, skip_bad_clients=skips.enabled or None,
        **options)
    skips, parts = raw.skips, {
        split: rows.of_source(part, open_source.files(options.get(path)))
        for split, part, path in (('train', raw.train, 'data_path'),
                                  ('test', raw.test, 'test_path')) if part is not None}
  else:
    open_source.check_options(source, options)
    parts = open_source.readers(source, fields=fields, **options)
  identity = json.dumps([
      settings.task, source, settings.fields, sorted(options.items()), skips.enabled,
      [[part.identity, part.states()] for part in parts.values()]])
  if os.path.exists(settings.output):
    if store.identity_of(settings.output) != identity:
      raise ValueError(f'output={settings.output} exists already and is of other data')
    print(f'{settings.output} is complete already')
    return
  clients, examples = store.write(
      settings.output, parts, fields=fields, skips=skips, identity=identity)
  if label_counts is not None:
    figure = f'{settings.output}.{report.LABELS_FIGURE}'
    report.draw_labels(label_counts, figure)
    print(f'labels of the clients are drawn in {figure}')
  print(f'{settings.output}: {clients:,} clients, {examples:,} examples')
  if (skipped := skips.describe()) is not None:
    print(f'warning: {skipped}')


main = cli.program(__name__, PrepareSettings, 'tff_pipelines.prepare_data:prepare')
