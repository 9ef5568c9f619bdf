"""The verdict on a finished run: whether its ledger proves what its summary states."""

import pathlib

from tff_pipelines.accounting.events import base, preliminary
from tff_pipelines.accounting.guarantees import ledger as ledger_lib, ledger_query
from tff_pipelines.common import files
from tff_pipelines.experiment import configurations, report
from tff_pipelines.experiment.page_document import Verdict


def verdict_on(folder: pathlib.Path) -> Verdict:
  """The verdict on the ledger of a finished run, from the ledger alone.

  Raises OSError or ValueError if there is no finished run, or no ledger.
  """
  summary, path = report.read_summary(folder / files.SUMMARY), folder / files.LEDGER
  ledger, releases = ledger_lib.Ledger(path), summary['rounds']
  problems = ledger.verify()
  if not problems:
    lines = ledger.lines()
    # Rounds of a run that was stopped are charged, but were not run.
    releases += preliminary.count(lines) + ledger_lib.unused(lines)
    problems = ledger.verify(releases)
  if problems:
    return Verdict(rounds=releases, problems=problems)
  if summary['epsilon'] is None:
    return Verdict(rounds=releases)
  # Each number has the proof that is best for it, the first one's need not be so.
  settings = (configurations.read(folder) or {}).get('settings', {})
  accountant = settings.get('accountant')
  answer = ledger_query.answer(
      path, delta=summary['delta'],
      accountant=accountant if accountant in base.ACCOUNTANTS else 'auto',
      amplification=settings.get('amplification', 'tight'),
      clients_per_person=summary['clients_per_person'] or 1)
  return Verdict(rounds=answer.rounds, guarantee=answer)
