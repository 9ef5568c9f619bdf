"""Reads the folder of a finished run for its page, and writes pages.

No TensorFlow: the page of finished runs takes a moment.
"""

from collections.abc import Iterator, Mapping, Sequence
import math
import os
import pathlib
from typing import Any

from tff_pipelines.accounting.events import base, preliminary
from tff_pipelines.accounting.guarantees import ledger as ledger_lib, ledger_query
from tff_pipelines.common import files
from tff_pipelines.experiment import (
    configurations, measured, metrics, page_document as document, report)
from tff_pipelines.experiment.page_document import Curve, Run, Verdict

# Columns that index the rows of a table, the first one that is there.
_INDICES = ('communication_round', 'round', 'step', 'epoch')
# Columns that are not of held-out sets: exact values of cohorts, and of the mechanism.
_NOT_SETS = ('diagnostics/', 'public/')
# Columns that tell apart the curves of a table of errors.
_CELL = ('mechanism', 'n', 'd', 'bits')


def read(folder: str | os.PathLike[str], verdict: Verdict, *,
         name: str | None = None) -> Run:
  """The run in a folder, by its name or another; ValueError if unfinished or damaged."""
  path = pathlib.Path(folder)
  summary = report.read_summary(path / files.SUMMARY)
  configuration = configurations.read(path) or {}
  tables = sorted(path.glob('*.csv'), key=lambda table: table.name != files.METRICS)
  return Run(name=name or path.absolute().name, summary=summary,
             settings=configuration.get('settings', {}), verdict=verdict,
             curves=[*(curve for table in tables if (rows := metrics.rows(table))
                       for curve in _curves(rows, summary)),
                     *measured.curves(summary['details'].get('audit'))])


def write(path: pathlib.Path, runs: Sequence[Run]) -> None:
  """Writes the page of runs, seen complete or not at all."""
  files.write_atomically(path, document.document(runs))


def _curves(rows: Sequence[Mapping[str, str]],
            summary: Mapping[str, Any]) -> Iterator[Curve]:
  """Curves of a table, over its index and over epsilon."""
  if 'mse' in rows[0]:
    curves: dict[str, list[Mapping[str, str]]] = {}
    for row in rows:
      curves.setdefault(', '.join(
          f'{row[name]} {name}' if name != 'mechanism' else row[name]
          for name in _CELL if row[name]), []).append(row)
    for label, own in curves.items():
      yield from _curve(own, 'epsilon', 'mse', metric='squared error of a coordinate',
                        over='epsilon', label=label, log=True, covered=False)
    return
  if (index := next((name for name in _INDICES if name in rows[0]), None)) is None:
    return
  epsilon = next((name for name in ('epsilon', 'epsilon_if_unseeded')
                  if name in rows[0]), None)
  # Column -> held-out set and metric; where there is one set, columns may not name it.
  metrics = set().union(*summary['held_out'].values())
  sets = {name: name.split('/', 1) if '/' in name else ['test', name] for name in rows[0]
          if name in metrics or ('/' in name and not name.startswith(_NOT_SETS))}
  first = [name for name, (set_name, _) in sets.items() if set_name in (
      summary['headline_of'], 'mean')] or list(sets)[:1]
  rounds, hint = f'{index}s', ', without the seed' * (epsilon == 'epsilon_if_unseeded')
  for name, (set_name, metric) in sets.items():
    yield from _curve(rows, index, name, metric=metric, over=rounds, label=set_name,
                      main=name in first, covered=set_name in summary['held_out'])
  for name, (set_name, metric) in sets.items():
    if epsilon is not None and metric == summary['headline']:
      yield from _curve(rows, epsilon, name, metric=metric, over='epsilon',
                        label=f'{set_name}{hint}', main=name in first)
  for name, metric, label in ((epsilon, 'epsilon', f'observers{hint}'),
                              ('public/clip', 'clip', 'clip')):
    if name in rows[0]:
      yield from _curve(rows, index, name, metric=metric, over=rounds, label=label)


def _curve(rows: Sequence[Mapping[str, str]], across: str, up: str, *, metric: str,
           over: str, label: str, **attributes: bool) -> Iterator[Curve]:
  """Yields the curve of two columns, unless it has less than two points."""
  points = [(float(row[across] or math.nan), float(row[up] or math.nan)) for row in rows]
  points = [point for point in points if all(map(math.isfinite, point))]
  if len(points) > 1:
    x, y = zip(*points)
    words = lambda text: text.replace('_', ' ')
    yield Curve(metric=words(metric), over=words(over), label=words(label), x=x, y=y,
                **attributes)


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
