"""Tables in text files, as spreadsheets and programs write them.

Separators are commas, semicolons or tabs, as the header has them; decimal commas are
read where the separator is another. Files are in UTF-8, in UTF-16 with a byte-order
mark, or in Windows-1252. All files of a data set have the same columns.
"""

import codecs
import collections
import csv as csv_lib
import functools
import io
import itertools
import os
import re
import sys
from typing import Any, BinaryIO, Iterator, Sequence

from tasks.sources import rows

_WINDOWS = 'Windows-1252'
_QUOTED = re.compile(r'"[^"]*("|$)')
# Names that pandas gives to an index, written as a column, that has none.
_INDEX = re.compile(r'(Unnamed: \d+(\.\d+)?|__index_level_\d+__)?')


def is_index(name: str) -> bool:
  """Whether a column is the number of the row, which says nothing about it."""
  return _INDEX.fullmatch(name) is not None


def csv(paths: Sequence[rows.Path], progress: rows.Progress) -> Iterator[rows.Row]:
  """A row for every row of cells; RFC 4180 with one header, and the dialects above."""
  header = None
  for path in paths:
    lines = _rows(path, progress)
    location, names, cell = next(lines, (f'{path}, line 1', None, None))
    if names is None:
      raise ValueError(f'{location}: there is no header')
    # The first column may have no name: it is an index, and left out.
    named = names[names[0] == '':]
    for name, count in collections.Counter(named).items():
      if not name or count > 1:
        raise ValueError(f'{location}: columns must differ, found {name[:100]!r}')
    header = header or named
    if named != header:
      raise ValueError(f'{location}: the header must be that of {paths[0]}')
    for location, cells, _ in lines:
      cells, wanted = cells[len(names) - len(named):], len(cells) == len(names)
      yield rows.Row(location, None, dict(zip(header, map(cell, cells))) if (
          wanted) else ValueError(f'there are {len(cells)} cells, but {len(named)} '
                                  'columns in the header'))


def _rows(path: rows.Path, progress: rows.Progress
          ) -> Iterator[tuple[str, list[str], type[rows.Cell]]]:
  """The location of the first line and the cells of every row that is not empty."""
  # A cell left open by a missing quote would otherwise end as too long at 128 kB.
  csv_lib.field_size_limit(rows.MAX_BYTES)
  lines = _lines(path, progress)
  number, header = next(
      (line for line in enumerate(lines, start=1) if line[1].strip()), (1, ''))
  separator = _separator(header)
  cell = rows.Cell if separator == ',' else rows.CommaCell
  reader = csv_lib.reader(
      itertools.chain([header], lines), delimiter=separator, strict=True)
  cells = []
  while cells is not None:
    location = f'{path}, line {number + reader.line_num}'
    try:
      cells = next(reader, None)
    except (csv_lib.Error, ValueError) as error:
      reason = str(error)
      if 'unexpected end' in reason or 'field larger' in reason:
        reason = 'a quote is not closed'
      elif isinstance(error, csv_lib.Error):
        reason = f'not CSV: {reason}'
      raise ValueError(reason if os.fspath(path) in reason else
                       f'{location}: {reason}') from error
    if cells and (len(cells) > 1 or cells[0].strip()):
      yield location, cells, cell


def _separator(header_line: str) -> str:
  """The separator that a header has outside quotes."""
  names = _QUOTED.sub('', header_line)
  if '\t' in names:
    return '\t'
  return ';' if names.count(';') >= max(1, names.count(',')) else ','


def _lines(path: rows.Path, progress: rows.Progress) -> Iterator[str]:
  """The text of every line. Raises ValueError that names it."""
  encoding, location = None, f'{path}, line 1'
  try:
    for location, content in rows.lines(path, progress, _opened):
      if isinstance(content, bytes):
        if content.startswith(codecs.BOM_UTF8):
          encoding, content = encoding or 'UTF-8', content.removeprefix(codecs.BOM_UTF8)
        # The first line that is not ASCII decides for the whole file.
        if encoding is None and not content.isascii():
          encoding = _encoding(content)
        content = rows.decoded(content, encoding or 'UTF-8')
        if encoding == _WINDOWS:
          say_windows(path)
      yield content
  except ValueError as error:
    after = ' or the next, in UTF-16' * isinstance(error, UnicodeError)
    raise ValueError(str(error) if os.fspath(path) in str(error) else
                     f'{location}{after}: {error}') from error


@functools.lru_cache(maxsize=1000)
def say_windows(path: rows.Path) -> None:
  """Says on standard error, once, that a file is in Windows-1252."""
  print(f'{path}: not in UTF-8, read as Windows-1252', file=sys.stderr)


def _opened(file: BinaryIO) -> Any:
  """A file of lines of bytes, or of text if it begins with UTF-16's mark."""
  if file.peek(2)[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
    return io.TextIOWrapper(file, 'utf-16', newline='\n')
  return file


def _encoding(line: bytes) -> str:
  """The encoding of a line that is not ASCII."""
  try:
    line.decode('UTF-8')
    return 'UTF-8'
  except UnicodeDecodeError:
    return _WINDOWS
