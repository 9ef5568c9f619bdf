"""CSV files with a header and a column that names the client of each row."""

import csv
import io
import os
from typing import Any, Iterator, Mapping, Sequence

from tasks.sources import columns
from tasks.sources import line_files
from tasks.sources import record_index
from tasks.sources import record_scan
from tasks.sources import records
from tasks import task


def open_files(
    paths: Sequence[str | os.PathLike[str]], *, client_field: str,
    fields: Sequence[records.Field] | None,
    skips: task.Skips) -> record_index.IndexedSource:
  """Opens .csv and .csv.gz files of one header, together one population.

  RFC 4180 in UTF-8; cells may contain line breaks. A column whose kind is not
  given has that of its first cell, and integers may become floats. See
  record_scan.scan for arguments and errors.
  """
  # A cell left open by a missing quote would otherwise end as too long at 128 kB.
  csv.field_size_limit(line_files.MAX_LINE_BYTES)
  header = _header(paths[0])
  for path in paths[1:]:
    if _header(path) != header:
      raise ValueError(f'{path}, line 1: the header must be that of {paths[0]}')
  return record_scan.scan(
      paths,
      record_scan.Format(
          entries=_entries, parse=lambda content: _parse(content, header),
          read_value=lambda cell, kind: (
              None if cell is None else columns.parse_cell(cell, kind))),
      client_field=client_field, fields=fields, skips=skips)


def _header(path: str | os.PathLike[str]) -> list[str]:
  try:
    first = next(_records(path), None)
    if first is None:
      raise ValueError('there is no header')
    header = _cells(first.content)
  except ValueError as error:
    where = '' if os.fspath(path) in str(error) else f'{path}, line 1: '
    raise ValueError(f'{where}{error}') from error
  for name in header:
    if not name or header.count(name) > 1:
      raise ValueError(
          f'{path}, line 1: columns must have names of their own, found {name!r}')
  return header


def _entries(path: str | os.PathLike[str]) -> Iterator[record_scan.Entry]:
  rows = _records(path)
  next(rows)
  yield from rows


def _records(path: str | os.PathLike[str]) -> Iterator[record_scan.Entry]:
  """The header and the rows; a row goes on while a quote is open."""
  first, parts, size, is_open = None, [], 0, False
  for line in line_files.lines(path):
    if first is None:
      if not line.content.strip():
        continue
      first = line
    parts.append(line.content)
    size += len(line.content)
    # Quotes inside cells are doubled: whether one is open is a matter of parity.
    is_open ^= line.content.count(b'"') % 2 == 1
    if size > line_files.MAX_LINE_BYTES:
      raise ValueError(f'{path}, line {first.number}: a quote is not closed')
    if not is_open:
      yield record_scan.Entry(first.offset, first.number, b''.join(parts))
      first, parts, size = None, [], 0
  if first is not None:
    raise ValueError(f'{path}, line {first.number}: a quote is not closed')


def _cells(content: bytes) -> list[str]:
  text = line_files.decoded(content)
  try:
    rows = list(csv.reader(io.StringIO(text, newline=''), strict=True))
  except csv.Error as error:
    raise ValueError(f'not CSV: {error}') from error
  if len(rows) != 1:
    raise ValueError(f'not CSV: found {len(rows)} rows where one should be')
  return rows[0]


def _parse(content: bytes, header: Sequence[str]) -> Mapping[str, Any]:
  cells = _cells(content)
  if len(cells) != len(header):
    raise ValueError(
        f'there are {len(cells)} cells, but {len(header)} columns in the header')
  return dict(zip(header, cells))


def located_records(
    path: str | os.PathLike[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
  """The line and the row of each row of a file. Raises ValueError."""
  header = _header(path)
  yield from record_scan.located(
      path, _entries, lambda content: _parse(content, header))
