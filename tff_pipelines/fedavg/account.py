"""Answers a question to the accountant, on standard output."""

from collections.abc import Sequence
import dataclasses
import itertools
import json
import os
import textwrap
from typing import Any

import numpy as np

from tff_pipelines.accounting.guarantees import (
    answers, explain, ledger as ledger_lib, ledger_query, votes as votes_lib)
from tff_pipelines.common import caveats, decimals, files
from tff_pipelines.fedavg import account_compare, account_settings as settings_lib

BROKEN = 1
_WIDTH = 80

# Printed rounded up, as every epsilon is: more promises less, or is more noise.
_ROUNDED_UP = ('delta', 'noise_multiplier', 'local_stddev_grid')
DO_NOT_PUBLISH = caveats.Caveat(
    'PRIVATE: do not publish',
    'do not publish: epsilon_data_dependent is computed from the private votes')


def answer(settings: settings_lib.AccountSettings) -> int:
  """Prints the answer.

  Returns the exit code: 0, or `BROKEN` if the chain of a ledger does not hold.

  Raises OSError or ValueError for a mistake of the user; the message is one line.
  """
  problems = {path: ledger_lib.Ledger(path).verify() for path in settings.ledger or ()}
  broken = [text for texts in problems.values() for text in texts]
  rows, known = found(settings, broken)
  if settings.format == 'text':
    for path, texts in problems.items():
      print(f'ledger: {path}, chain {"broken" if texts else "intact"}')
    if settings.query == settings_lib.DATA_DEPENDENT:
      print(*textwrap.wrap(f'PRIVATE: {DO_NOT_PUBLISH}', 80), '', sep='\n')
  is_table = settings.compare or settings.query == 'table'
  print(formatted(rows, settings.format, is_table,
                  explain.steps(*known) if settings.explain else None))
  return BROKEN if broken else 0


def found(settings: settings_lib.AccountSettings, broken: Sequence[str] = ()
          ) -> tuple[Sequence[answers.Answer], Any]:
  """The answers, and what explains the only one; None for several. Raises as `answer`.

  `broken` are the problems of the ledgers' chains.
  """
  known = None
  if broken:
    known = ledger_query.broken(broken), {}, None
  elif settings.ledger is not None:
    known = ledger_query.explained(settings.ledger, **{
        name: getattr(settings, name) for name in settings_lib.OF_LEDGERS})
  elif settings.query == settings_lib.DATA_DEPENDENT:
    return [answer_votes(settings)], None
  elif settings.compare:
    return account_compare.compare(settings), None
  elif settings.query == 'table':
    return answers.table(settings.question, settings.about), None
  else:
    known = answers.explained(settings.question, settings.about)
  return known[:1], known


@dataclasses.dataclass(frozen=True, kw_only=True)
class VotesAnswer(answers.Answer):
  """An answer about votes that were counted.

  Attributes:
    epsilon_data_dependent: On these votes alone, as private as they are; None if it is
      infinite.
  """

  epsilon_data_dependent: float | None = None

  def to_json(self) -> dict[str, Any]:
    return {**super().to_json(), 'epsilon_data_dependent': self.epsilon_data_dependent}


def read_votes(path: str | os.PathLike[str]) -> np.ndarray:
  """Vote counts of a file, [queries, labels], integers >= 0.

  The file is an .npz with one such array, or CSV with one line a query and no header.
  OSError if it can't be read, ValueError if it holds anything else.
  """
  name = os.fspath(path)
  try:
    if name.endswith('.npz'):
      with np.load(name, allow_pickle=False) as arrays:
        (votes,) = (arrays[key] for key in arrays.files)
    else:
      with open(name, encoding='utf-8') as file:
        votes = np.array([[int(cell) for cell in line.split(',')]
                          for line in file if line.strip()])
    if votes.ndim != 2 or not votes.size:
      raise ValueError(f'its shape is {votes.shape}')
    for counts in votes:
      votes_lib.checked_counts(counts)
  except OSError:
    raise
  except Exception as error:  # zipfile, NumPy and int() raise errors of all kinds.
    raise ValueError('votes must be a file of integer counts, [queries, labels], found '
                     f'{name!r}: {error}') from error
  return votes


def answer_votes(settings: settings_lib.AccountSettings) -> VotesAnswer:
  """Epsilon on the votes of a file; raises as `answer`."""
  for name in ('delta', 'votes'):
    if getattr(settings, name) is None:
      raise ValueError(f'{name} must be given for query=data_dependent')
  votes = read_votes(settings.votes)
  mechanism = settings.about.replace(queries=len(votes))
  independent = answers.answer(answers.Query(
      delta=settings.delta, accountant=settings.accountant), mechanism)
  epsilon = votes_lib.data_dependent_epsilon(mechanism.release(), votes, settings.delta)
  if independent.epsilon is not None:
    epsilon = min(epsilon, independent.epsilon)
  return VotesAnswer(**{
      **vars(independent), 'epsilon_data_dependent': files.finite(epsilon),
      'caveats': (DO_NOT_PUBLISH, *independent.caveats)})


def as_text(row: answers.Answer) -> str:
  """Numbers, the guarantee in words, and the caveats (names, if all have one)."""
  values = {key: value for key, value in row.to_json().items()
            if value is not None and key not in (
                'warnings', 'trust_model', 'adjacency', 'sampling')}
  cells = [f'{key}: {_plain(key, value)}' for key, value in values.items()]
  if row.epsilon is None:
    cells.insert(0, 'epsilon: none')
  half = -(-len(cells) // 2)
  lines = [f'{left:<{_WIDTH // 2}}{right}'.rstrip() for left, right in
           itertools.zip_longest(cells[:half], cells[half:], fillvalue='')]
  if row.adjacency is not None:
    lines += ['', *textwrap.wrap(row.sentences(), _WIDTH)]
  if row.caveats:
    if all(hasattr(text, 'name') for text in row.caveats):
      lines += textwrap.wrap(f'caveats: {"; ".join(_names(row))}', _WIDTH)
    else:  # A ledger's header has sentences without names.
      lines += ['', 'caveats:']
      for text in dict.fromkeys(row.caveats):
        lines += textwrap.wrap(f'- {text}', _WIDTH, subsequent_indent='  ')
  return '\n'.join(lines)


def _names(row: answers.Answer) -> list[str]:
  return list(dict.fromkeys(getattr(text, 'name', text) for text in row.caveats))


def as_table(rows: Sequence[answers.Answer]) -> str:
  """A line for each answer, in 80 columns."""
  lines = [f'{"bits":>4} {"rounds":>12} {"noise":>11} {"epsilon":>11} '
           f'{"server":>11}  caveats']
  for row in rows:
    noise, epsilon, server = (
        '-' if value is None else decimals.rounded_up(value, 6) for value in (
            row.noise_multiplier, row.epsilon, row.epsilon_server))
    bits, rounds = ('-' if value is None else f'{value}'
                    for value in (row.bits, row.rounds))
    line = f'{bits:>4} {rounds:>12} {noise:>11} {epsilon:>11} {server:>11}  '
    lines.append(line + textwrap.shorten(
        '; '.join(_names(row)), _WIDTH - len(line), placeholder='...'))
  return '\n'.join(line.rstrip() for line in lines)


def _plain(key: str, value) -> str:
  if key.startswith('epsilon') or key in _ROUNDED_UP:
    return decimals.rounded_up(value, 7)
  return f'{value:.7g}' if isinstance(value, float) else str(value)


def formatted(rows: Sequence[answers.Answer], how: str, is_table: bool,
              steps: Sequence[explain.Step] | None = None) -> str:
  """The rows as text, as JSON or as CSV.

  Args:
    rows: One answer, or those of a table.
    how: 'text', 'json' (one object; a table is {"rows": [...]}) or 'csv' (a header and
      one line an answer; warnings joined by ' | ').
    is_table: Whether the rows are those of a table.
    steps: Steps to the numbers of the answer, to be shown; None for none.
  """
  if how == 'text':
    if steps:
      return '\n'.join([f'neighbouring inputs: {rows[0].adjacency_in_words}', *(
          step.line() for step in steps)])
    if isinstance(rows[0], account_compare.Row):
      return account_compare.as_table(rows)
    return as_table(rows) if is_table else as_text(rows[0])
  objects = [row.to_json() for row in rows]
  if how == 'csv':
    return files.table([{**fields, 'warnings': ' | '.join(fields['warnings'])}
                        for fields in objects]).rstrip('\n')
  if steps is not None:
    objects[0]['steps'] = [step.to_json() for step in steps]
  return json.dumps({'rows': objects} if is_table else objects[0], allow_nan=False)
