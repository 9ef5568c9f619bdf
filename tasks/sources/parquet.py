"""Parquet files with a column that names the client of each row."""

import os
import pathlib
import pickle
from typing import Any, Iterator, Sequence

import numpy as np

from tasks.sources import columns as columns_lib
from tasks.sources import record_index
from tasks.sources import records
from tasks import task

_ROWS = 4096


def open_files(
    paths: Sequence[str | os.PathLike[str]], *, client_field: str,
    fields: Sequence[records.Field] | None,
    skips: task.Skips) -> record_index.IndexedSource:
  """Opens .parquet files, together one population.

  Rows of a client need not stand together, so a file is read once, some thousand
  rows at a time, and what is needed of it copied by client to a temporary file.

  Args:
    paths: The files.
    client_field: The column that names the client, texts or integers.
    fields: What to read; None reads all other columns.
    skips: What to do about bad clients and rows.

  Returns:
    A source. Its clients stand in the order of their first rows.

  Raises:
    ValueError: If a file is missing, damaged or lacks a column, or has a bad row
      that is not to be skipped. The message names file, client and field.
  """
  files, index = record_index.Files(), record_index.RecordIndex()
  observed = None
  bad: dict[str, str] = {}
  for path in paths:
    number = files.add(path, copied=True)
    for names, batch in _batches(path, client_field, fields):
      if observed is None:
        wanted = fields if fields is not None else [
            records.Field(name=name) for name in names if name != client_field]
        observed = [columns_lib.Observed(field) for field in wanted]
      for client, rows in _by_client(path, batch, client_field, skips):
        part = {column.source_name: batch[column.source_name].take(rows).to_pylist()
                if column.source_name in batch else [None] * len(rows)
                for column in observed}
        try:
          for column in observed:
            for value in part[column.source_name]:
              column.observe(value)
        except ValueError as error:
          message = f'{record_index.place(path, 0, client)}: {error}'
          skips.client(client, task.BadClientError(message))
          bad[client] = message
        content = pickle.dumps(part)
        index.add(client, number, files.copy(number, content, 0), len(content), 0)
  index.sort()
  if observed is None:
    raise ValueError(f'{os.fspath(paths[0])} has no rows')
  try:
    columns = [column.column() for column in observed]
  except ValueError as error:
    raise ValueError(f'{os.fspath(paths[0])}: {error}') from error
  # The pickles are our own, in a file that nobody else can open.
  return record_index.IndexedSource(
      files, index, columns, pickle.loads, bad_clients=bad)


def _batches(path: str | os.PathLike[str], client_field: str,
             fields: Sequence[records.Field] | None
             ) -> Iterator[tuple[list[str], dict[str, Any]]]:
  """The names of the columns, and some rows as name -> Arrow array."""
  # A quarter of a second to import, which the other sources need not pay.
  import pyarrow  # pylint: disable=g-import-not-at-top
  from pyarrow import parquet  # pylint: disable=g-import-not-at-top
  if not pathlib.Path(path).is_file():
    raise ValueError(f'{path} does not exist or is not a file')
  try:
    with parquet.ParquetFile(path) as file:
      names = file.schema_arrow.names
      needed = [client_field] + [
          field.column for field in fields or () if not field.optional]
      lacking = [name for name in needed if name not in names]
      if lacking:
        raise ValueError(f'there is no column {lacking[0]!r}; there are '
                         f'{", ".join(map(repr, names))}')
      wanted = names if fields is None else [
          name for name in names if name in {f.column for f in fields} | {client_field}]
      for batch in file.iter_batches(_ROWS, columns=wanted):
        yield names, {name: batch.column(i)
                      for i, name in enumerate(batch.schema.names)}
  except (pyarrow.ArrowException, OSError, ValueError) as error:
    detail = ' '.join(str(error).split())
    where = '' if os.fspath(path) in detail else f'{path}: '
    raise ValueError(f'{where}{detail}') from error


def _by_client(path, batch, client_field: str,
               skips: task.Skips) -> Iterator[tuple[str, np.ndarray]]:
  """The clients of some rows, in order of appearance, and the rows of each."""
  rows: dict[str, list[int]] = {}
  for row, value in enumerate(batch[client_field].to_pylist()):
    try:
      client = record_index.client_id_of(value, client_field)
    except ValueError as error:
      skips.record(ValueError(f'{path}: {error}'))
      continue
    rows.setdefault(client, []).append(row)
  for client, numbers in rows.items():
    yield client, np.array(numbers)
