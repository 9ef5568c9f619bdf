"""Answers a question to the accountant, on standard output."""

import sys
import textwrap

from tff_pipelines.accounting import answers
from tff_pipelines.accounting import ledger as ledger_lib
from tff_pipelines.accounting import report
from tff_pipelines.queries import ledger as ledger_query
from tff_pipelines.queries import settings as settings_lib
from tff_pipelines.queries import votes as votes_query

BROKEN = 1


def answer(settings: settings_lib.AccountSettings) -> int:
  """Prints the answer.

  Args:
    settings: The question.

  Returns:
    The exit code: 0, or `BROKEN` if the chain of a ledger does not hold.

  Raises:
    OSError, ValueError: For a mistake of the user; the message is one line.
  """
  if settings.ledger is not None:
    return _answer_ledger(settings)
  is_table = settings.query == 'table'
  if settings.query == settings_lib.DATA_DEPENDENT:
    result = votes_query.answer(settings)
    if settings.format == 'text' and result.epsilon_data_dependent is not None:
      print(*textwrap.wrap(f'PRIVATE: {votes_query.DO_NOT_PUBLISH}', 80), '', sep='\n')
    print(report.formatted([result], settings.format, is_table))
  elif settings.mechanism is not None:
    query, mechanism = settings.question, settings.about
    rows = (answers.table(query, mechanism) if is_table
            else [answers.answer(query, mechanism)])
    print(report.formatted(rows, settings.format, is_table))
  if settings.plot is not None:
    # Drawing needs matplotlib; the numbers do not.
    from tff_pipelines.accounting import figures  # pylint: disable=g-import-not-at-top
    figures.draw(settings.plot)
    print(f'figures written to {settings.plot}', file=sys.stderr)
  return 0


def _answer_ledger(settings: settings_lib.AccountSettings) -> int:
  """Epsilon of a ledger, from the ledger alone."""
  problems = ledger_lib.Ledger(settings.ledger).verify()
  result = ledger_query.broken(problems) if problems else ledger_query.answer(
      settings.ledger, delta=settings.delta, accountant=settings.accountant,
      amplification=settings.amplification)
  if settings.format == 'text':
    print(f'ledger: {settings.ledger}, chain {"broken" if problems else "intact"}')
  print(report.formatted([result], settings.format, False))
  return BROKEN if problems else 0
