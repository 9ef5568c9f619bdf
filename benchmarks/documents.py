"""Results of runs as lines of a file, and tables between the marks of a page.

A line of results.jsonl is one run, written as soon as it is done, so that a script
that was stopped resumes. A table is in its page between two marks,
`<!-- name: begin -->` and `<!-- name: end -->`.
"""

import json
import os
import pathlib
import statistics
from typing import Any, Mapping, Sequence

from tff_pipelines.common.files import write_atomically

RESULTS = 'results.jsonl'
_BEGIN, _END = '<!-- {}: begin -->', '<!-- {}: end -->'

# Name of a run -> its line.
Results = Mapping[str, Mapping[str, Any]]


def read(folder: pathlib.Path, key: str = 'name') -> dict[str, dict[str, Any]]:
  """Reads the lines of a folder by name; a line that was cut off does not count.

  Args:
    folder: That has, or will have, the file RESULTS.
    key: Field of a line that is its name. The last line of a name counts.
  """
  path = folder / RESULTS
  if not path.exists():
    return {}
  lines = path.read_text(encoding='utf-8').splitlines()
  rows = [json.loads(line) for line in lines if line.endswith('}')]
  return {row[key]: row for row in rows}


def append(folder: pathlib.Path, line: Mapping[str, Any]) -> None:
  """Adds a line; it is on the disk when this returns."""
  path = folder / RESULTS
  whole = not path.exists() or path.read_bytes().endswith(b'\n')
  with open(path, 'a', encoding='utf-8') as file:
    file.write(('' if whole else '\n') + json.dumps(line) + '\n')
    file.flush()
    os.fsync(file.fileno())


def of_row(results: Results, row: str) -> list[Mapping[str, Any]]:
  """Returns all repetitions of a row."""
  return [result for result in results.values() if result['row'] == row]


def percent(values: Sequence[float]) -> str:
  """Formats the mean and, of several values, the standard deviation, in percent."""
  mean = 100 * statistics.fmean(values)
  if len(values) < 2:
    return f'{mean:.1f}'
  return f'{mean:.1f} ± {100 * statistics.stdev(values):.1f}'


def rewritten(document: str, name: str, content: str) -> str:
  """Returns a document with new content between the marks of a name."""
  begin, end = _BEGIN.format(name), _END.format(name)
  before, has_begin, rest = document.partition(begin)
  _, has_end, after = rest.partition(end)
  if not has_begin or not has_end:
    raise ValueError(f'the document must have the marks {begin} and {end}')
  return f'{before}{begin}\n{content}\n{end}{after}'


def put(path: str, contents: Mapping[str, str]) -> None:
  """Rewrites a document between the marks of all names; '' for no document."""
  if not path or not contents:
    return
  document = pathlib.Path(path)
  text = document.read_text(encoding='utf-8')
  for name, content in contents.items():
    text = rewritten(text, name, content)
  write_atomically(document, text)
