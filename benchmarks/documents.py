"""Results of runs as lines of a file, and tables between the marks of a page.

A line of results.jsonl is one run, written as soon as it is done, so that a script
that was stopped resumes. A table is in its page between two marks,
`<!-- name: begin -->` and `<!-- name: end -->`.
"""

import json
import pathlib
from typing import Any

RESULTS = 'results.jsonl'
_BEGIN, _END = '<!-- {}: begin -->', '<!-- {}: end -->'


def read(folder: pathlib.Path) -> dict[str, dict[str, Any]]:
  """Reads the lines of a folder by name; a line that was cut off does not count.

  Args:
    folder: That has, or will have, the file RESULTS. The last line of a name counts.
  """
  path = folder / RESULTS
  if not path.exists():
    return {}
  lines = path.read_text(encoding='utf-8').splitlines()
  rows = [json.loads(line) for line in lines if line.endswith('}')]
  return {row['name']: row for row in rows}


def rewritten(document: str, name: str, content: str) -> str:
  """Returns a document with new content between the marks of a name."""
  begin, end = _BEGIN.format(name), _END.format(name)
  before, has_begin, rest = document.partition(begin)
  _, has_end, after = rest.partition(end)
  if not has_begin or not has_end:
    raise ValueError(f'the document must have the marks {begin} and {end}')
  return f'{before}{begin}\n{content}\n{end}{after}'
