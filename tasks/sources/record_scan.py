"""Reads record files once, from end to end: checks all, and notes where it lies."""

import dataclasses
import os
from typing import Any, Callable, Iterable, Iterator, Mapping, Sequence

from tasks.sources import columns as columns_lib
from tasks.sources import record_index
from tasks.sources import records
from tasks import task

# A value as it stands in a file, and what is known of its field's kind -> value.
ReadValue = Callable[[Any, str | None], Any]


@dataclasses.dataclass(frozen=True)
class Entry:
  """One record of a file.

  Attributes:
    offset: Of its first byte, decompressed.
    line: On which it begins.
    content: Its bytes.
  """

  offset: int
  line: int
  content: bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Format:
  """A format in which every record is one example of one client.

  Attributes:
    entries: path -> its records. Raises ValueError if the file is damaged.
    parse: A record's bytes -> field -> value as it stands in the file. Raises
      ValueError.
    read_value: See ReadValue.
  """

  entries: Callable[[str | os.PathLike[str]], Iterator[Entry]]
  parse: Callable[[bytes], Mapping[str, Any]]
  read_value: ReadValue = lambda value, kind: value


def scan(paths: Sequence[str | os.PathLike[str]], format_: Format, *,
         client_field: str, fields: Sequence[records.Field] | None,
         skips: task.Skips) -> record_index.IndexedSource:
  """Opens files whose records each name their client.

  Args:
    paths: The files, which together are one population.
    format_: Of all of them.
    client_field: The field that names the client.
    fields: What to read; None reads all fields of the first record, and then
      every record must have the same.
    skips: What to do about bad clients and records.

  Returns:
    A source. Its clients stand in the order of their first records.

  Raises:
    ValueError: If a file is missing, empty or damaged, or has a bad record that
      is not to be skipped. The message names file, line, client and field.
  """
  files, index = record_index.Files(), record_index.RecordIndex()
  observed = None if fields is None else [
      columns_lib.Observed(field) for field in fields]
  bad: dict[str, str] = {}
  for path in paths:
    number = files.add(path)
    for entry in format_.entries(path):
      client = None
      try:
        record = format_.parse(entry.content)
        if client_field not in record:
          raise ValueError(_lacks(client_field, record, ' of the client'))
        client = record_index.client_id_of(record[client_field], client_field)
        if observed is None:
          observed = [columns_lib.Observed(records.Field(name=name))
                      for name in record if name != client_field]
        if fields is None:
          _check_names(record, observed, client_field)
        _observe(record, observed, format_.read_value)
      except ValueError as error:
        message = f'{record_index.place(path, entry.line, client)}: {error}'
        if client is None:
          skips.record(ValueError(message))
          continue
        skips.client(client, task.BadClientError(message))
        bad[client] = message
      offset = files.copy(number, entry.content, entry.offset)
      index.add(client, number, offset, len(entry.content), entry.line)
  index.sort()
  if observed is None:
    raise ValueError(f'{os.fspath(paths[0])} has no record')
  try:
    columns = [column.column() for column in observed]
  except ValueError as error:
    raise ValueError(f'{os.fspath(paths[0])}: {error}') from error
  return record_index.IndexedSource(
      files, index, columns, _parser(format_, columns), bad_clients=bad)


def _lacks(name: str, record: Mapping[str, Any], what: str = '') -> str:
  there = ', '.join(map(repr, record))
  return f'there is no field {name!r}{what}; there are {there[:200] or "none"}'


def _check_names(record: Mapping[str, Any],
                 observed: Iterable[columns_lib.Observed], client_field: str) -> None:
  expected = {column.source_name for column in observed} | {client_field}
  more = [name for name in record if name not in expected]
  if more:
    raise ValueError(f'field {more[0]!r} is not in the first record: name the fields '
                     'to read')


def _observe(record: Mapping[str, Any], observed: Iterable[columns_lib.Observed],
             read_value: ReadValue) -> None:
  for column in observed:
    name = column.source_name
    if name not in record and not column.optional:
      raise ValueError(_lacks(name, record))
    column.observe(read_value(record.get(name), column.kind))


def _parser(format_: Format,
            columns: Sequence[columns_lib.Column]) -> record_index.Parse:
  def parse(content: bytes) -> dict[str, list]:
    record = format_.parse(content)
    return {column.source_name:
            [format_.read_value(record.get(column.source_name), column.kind)]
            for column in columns}
  return parse


def located(
    path: str | os.PathLike[str],
    entries: Callable[[str | os.PathLike[str]], Iterator[Entry]],
    parse: Callable[[bytes], Mapping[str, Any]]
) -> Iterator[tuple[int, Mapping[str, Any]]]:
  """The line and the record of each record of a file; errors say where."""
  for entry in entries(path):
    try:
      record = parse(entry.content)
    except ValueError as error:
      raise ValueError(
          f'{record_index.place(path, entry.line, None)}: {error}') from error
    yield entry.line, record
