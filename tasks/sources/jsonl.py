"""JSON lines: one record a line, each naming its client."""

import json
import os
from typing import Any, Iterator, Mapping, Sequence

from tasks.sources import line_files
from tasks.sources import record_index
from tasks.sources import record_scan
from tasks.sources import records
from tasks import task


def open_files(
    paths: Sequence[str | os.PathLike[str]], *, client_field: str,
    fields: Sequence[records.Field] | None,
    skips: task.Skips) -> record_index.IndexedSource:
  """Opens .jsonl and .jsonl.gz files, together one population.

  Every line is read once, to be checked and to note where it lies; see
  record_scan.scan for arguments and errors. Empty lines do not count.
  """
  return record_scan.scan(
      paths, record_scan.Format(entries=_entries, parse=_parse),
      client_field=client_field, fields=fields, skips=skips)


def _entries(path: str | os.PathLike[str]) -> Iterator[record_scan.Entry]:
  for line in line_files.lines(path):
    if line.content.strip():
      yield record_scan.Entry(line.offset, line.number, line.content)


def _parse(content: bytes) -> Mapping[str, Any]:
  found = parse_json(content)
  if not isinstance(found, dict):
    raise ValueError(f'must be a JSON object, found {type(found).__name__}')
  return found


def parse_json(content: bytes) -> Any:
  """JSON in UTF-8, without NaN and infinities. Raises ValueError."""
  text = line_files.decoded(content)
  try:
    return json.loads(text, parse_constant=_no_constant)
  except json.JSONDecodeError as error:
    raise ValueError(f'not JSON: {error.msg} at character {error.pos}') from error
  except RecursionError:
    raise ValueError('not JSON that can be read: nested too deeply') from None


def _no_constant(name: str) -> None:
  raise ValueError(f'not JSON: {name} is no number')


def located_records(
    path: str | os.PathLike[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
  """The line and the record of each record of a file. Raises ValueError."""
  yield from record_scan.located(path, _entries, _parse)
