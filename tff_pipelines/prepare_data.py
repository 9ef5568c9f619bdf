"""Copies clients' data of any source to an SQLite file in TFF's format.

  python -m tff_pipelines.prepare_data --output=posts.sqlite --data_source=jsonl \\
      --data_path=posts.jsonl.gz --fields=text:text,score:integer
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

import hashlib
import json
import os
import pathlib
import sqlite3

from absl import flags
import numpy as np
import tqdm

from tasks import open_source
from tasks import records
from tasks import registry
from tasks import task as task_lib
from tff_pipelines import cli
from tff_pipelines import flags as flags_lib

flags_lib.define_data(default_task=None)
flags_lib.define_preparation()
flags.adopt_module_key_flags(flags_lib)  # So that --help shows them.


def _files(options: dict) -> list[tuple[str, int, int]]:
  """The files of the data, their sizes and times; folders by name only."""
  found = []
  for name in ('data_path', 'test_path'):
    for path in open_source.paths(options[name]) if options.get(name) else ():
      status = os.stat(path)
      is_file = pathlib.Path(path).is_file()
      found.append((os.path.abspath(path), status.st_size if is_file else 0,
                    status.st_mtime_ns if is_file else 0))
  return found


def _identity(config: flags_lib.PrepareConfig, raw: records.RawData) -> str:
  """Of the data and what is made of them, as JSON."""
  clients = hashlib.sha256()
  for source in (raw.train, raw.test):
    for client in () if source is None else source.client_ids:
      clients.update(client.encode('utf-8', 'surrogateescape') + b'\0')
    clients.update(b'\0')
  options = {key: value for key, value in config.options.items()
             if key not in ('data_path', 'test_path', 'skip_bad_clients')}
  return json.dumps(dict(
      task=config.task, data_source=config.data_source, options=options,
      fields=config.fields, files=_files(config.options),
      element_spec=_spec(raw.train), clients=clients.hexdigest()), sort_keys=True)


def _spec(source: task_lib.ClientSource) -> list:
  return sorted((name, str(dtype), list(shape))
                for name, (dtype, shape) in source.element_spec.items())


def _open(config: flags_lib.PrepareConfig
          ) -> tuple[records.RawData, np.ndarray | None]:
  if config.task is not None:
    if config.fields is not None:
      raise ValueError('fields are not used with --task, which knows its own')
    return registry.open_raw(
        config.task, data_source=config.data_source, **config.options)
  if config.data_source is None:
    raise ValueError('data_source must be given, or a task')
  fields = config.fields and [parse_field(text) for text in config.fields]
  raw = open_source.open_raw(config.data_source, fields=fields, **config.options)
  return raw, None


def parse_field(text: str) -> records.Field:
  """A field of --fields: NAME, NAME:KIND or NAME:KIND? Raises ValueError."""
  name, _, kind = text.partition(':')
  if not name:
    raise ValueError(f'fields must be NAME, NAME:KIND or NAME:KIND?, found {text!r}')
  return records.Field(name=name, kind=kind.removesuffix('?') or None,
                       optional=kind.endswith('?'))


def _already_there(path: pathlib.Path, identity: str) -> bool:
  """Whether the output is there; raises ValueError if it is of other data."""
  from tasks import source_sqlite  # pylint: disable=g-import-not-at-top
  from tasks import sqlite_writer  # pylint: disable=g-import-not-at-top
  if not path.exists():
    return False
  try:
    with source_sqlite.connected(path) as connection:
      found = sqlite_writer.read_identity(connection)
  except (ValueError, sqlite3.Error):
    found = None
  if found != identity:
    raise ValueError(f'output={os.fspath(path)} exists already and is of other data')
  return True


def prepare(config: flags_lib.PrepareConfig) -> None:
  """Writes the file, or what is missing of it.

  Raises:
    ValueError: On bad data that are not to be skipped, or an output of other data.
    OSError: If the output can't be written.
  """
  from tasks import sqlite_writer  # pylint: disable=g-import-not-at-top
  raw, label_counts = _open(config)
  if raw.test is not None and _spec(raw.test) != _spec(raw.train):
    raise ValueError(f'fields of the test part must be those of the training part, '
                     f'{_spec(raw.train)}, found {_spec(raw.test)}')
  path = pathlib.Path(config.output)
  identity = _identity(config, raw)
  if _already_there(path, identity):
    print(f'{config.output} is complete already')
    return
  with sqlite_writer.SqliteWriter(
      path, element_spec=raw.train.element_spec, identity=identity) as writer:
    for split, source in (('train', raw.train), ('test', raw.test)):
      if source is not None:
        _write_split(writer, split, source, raw.skips)
    clients, examples = writer.finish()
  if label_counts is not None:
    from tff_pipelines import partition_figure  # pylint: disable=g-import-not-at-top
    picture = f'{config.output}.{partition_figure.PICTURE}'
    partition_figure.draw(label_counts, picture)
    print(f'labels of the clients are drawn in {picture}')
  print(f'{config.output}: {clients:,} clients, {examples:,} examples')
  if raw.skips.describe() is not None:
    print(f'warning: {raw.skips.describe()}')


def _write_split(writer, split: str, source: task_lib.ClientSource,
                 skips: task_lib.Skips) -> None:
  written = 0
  for client_id in tqdm.tqdm(
      source.client_ids, desc=split, unit='client', dynamic_ncols=True,
      mininterval=1.0):
    if writer.has(split, client_id):
      written += 1
      continue
    try:
      examples = source.examples(client_id)
    except task_lib.BadClientError as error:
      skips.client(client_id, error)
      continue
    try:
      writer.write(split, client_id, examples)
    except ValueError as error:
      raise ValueError(f'{records.where(source, client_id)}: {error}') from error
    written += 1
  if not written:
    raise ValueError(f'the {split} part has no client whose data are good')


def main(argv: list[str]) -> int:
  del argv  # Unused.
  prepare(flags_lib.prepare_config())
  return 0


if __name__ == '__main__':
  cli.run(main)
