"""Epsilon of a run, recomputed from its ledger alone."""

from collections.abc import Mapping, Sequence
import os
from typing import Any

from tff_pipelines.accounting.events import base, combinators, preliminary
from tff_pipelines.accounting.guarantees import (
    accountant as accountant_lib, answers, bounds, ledger as ledger_lib, observers)
from tff_pipelines.accounting.guarantees.guarantee import Caveat, SUPPRESSED

# Events that are charged before they happen, or once for a sample that is kept.
_CHARGED_FIRST = ('LocalAnswers', 'PostProcessing')

_UNENDED = Caveat('a round may be missing', 'the ledger has no line of a round that was '
                  'interrupted and never repeated, whose sum the server may have seen')


def broken(problems: list[str]) -> answers.Answer:
  """The answer where the chain of a ledger does not hold: no epsilon.

  `problems` are those that `Ledger.verify` finds, at least one.
  """
  shown = problems[:5]
  if len(problems) > len(shown):
    shown.append(f'and {len(problems) - len(shown)} problems more')
  return answers.Answer(caveats=(Caveat('broken chain', 'the chain of the ledger does '
                                        'not hold: no epsilon can be given'), *shown))


def answer(path: str | os.PathLike[str], **how: Any) -> answers.Answer:
  """Epsilon of everything that a ledger says was released, restarts included."""
  return together([path], **how)


def together(paths: Sequence[str | os.PathLike[str]], **how: Any) -> answers.Answer:
  """Epsilon of everything that runs on the same clients released; see `explained`."""
  return explained(paths, **how)[0]


def explained(
    paths: Sequence[str | os.PathLike[str]], *, delta: float | None = None, **how: Any
) -> tuple[answers.Answer, dict[str, observers.View], observers.Method]:
  """Epsilon by ledgers, and the views and the method that gave the numbers.

  A client is taken to be in all of the runs. They may be adaptive: each may follow from
  what earlier ones released.

  Args:
    paths: Paths of ledger.jsonl files, at least one, all different.
    delta: In [0, 1); None for the smallest of the headers, each its own or the default
      for its population.
    **how: As in `observers.Method`, except for populations and records.

  Raises OSError if a file can't be read; ValueError if a chain does not hold, nothing
  was released yet, no delta is known, or, of several, one is seeded, there twice, or of
  another adjacency.
  """
  ledgers = [ledger_lib.Ledger(path) for path in paths]
  runs, headers = [ledger.lines() for ledger in ledgers], [
      ledger.header() for ledger in ledgers]
  if len(ledgers) > 1:
    _check_together(ledgers, headers)
  delta = min(map(_delta, headers)) if delta is None else delta
  populations = [header['population'] for header in headers]
  method = observers.Method(
      **how, population=max(filter(None, populations), default=None),
      # One client has no others to hide among.
      least_population=1 if None in populations else min(populations))
  views = _views(ledgers, runs, headers)
  found, numbers_notes = observers.numbers(views, delta, method)
  adjacency = found[bounds.OUTSIDERS].adjacency
  notes = [*(text for header in headers for text in header['warnings']), *numbers_notes]
  if any(line['outcome'] not in ('released', ledger_lib.UNUSED)
         and not base.from_json(line['event']).keeps_closed()
         for run in runs for line in run):
    for observer in (bounds.SERVER, bounds.SERVER_ANY_COHORTS, bounds.PERSON_SERVER,
                     *[bounds.PARTICIPANT] * (adjacency in base.OF_RECORDS)):
      found.pop(observer, None)
    notes.append(SUPPRESSED)
  elif any(run[-1]['event']['kind'] not in _CHARGED_FIRST
           and not preliminary.count(run[-1:], preliminary.EvaluationRelease)
           for run in runs):
    notes.append(_UNENDED)
  notes += [Caveat(
      'adjacency differs', f'the header states adjacency {header["adjacency"]}, the '
      f'events {adjacency}') for header in headers
            if header['adjacency'] not in (None, adjacency)]
  numbers = dict(seeded=True) if headers[0]['seeded'] else dict(
      found, clients_per_person=method.clients_per_person)
  return answers.Answer(
      terms=answers.terms('; '.join(dict.fromkeys(
          header['trust_model'] for header in headers if header['trust_model'])) or None,
          'records' if any(line['event']['kind'] == 'SampledRecords'
                           for run in runs for line in run) else None),
      delta=delta, rounds=sum(map(len, runs)), adjacency=adjacency,
      caveats=tuple(dict.fromkeys(notes)), **numbers), views, method


def _views(ledgers: Sequence[ledger_lib.Ledger], runs: Sequence[Sequence[Mapping]],
           headers: Sequence[Mapping[str, Any]]) -> dict[str, observers.View]:
  """Observer -> its view, of all observers."""
  deviations = [header['deviation_per_round'] for header in headers]

  def view(parts: Sequence[base.Event], counts: Sequence[int]) -> observers.View:
    # Limits on participations are those of each run.
    return observers.View(
        parts[0] if len(parts) == 1 else combinators.Composed(events=tuple(parts)),
        None if None in deviations else sum(
            part * count for part, count in zip(deviations, counts)))

  counts = list(map(len, runs))
  once = view([ledger.event() for ledger in ledgers], counts)
  repeated = view([ledger.seen_event() for ledger in ledgers], [
      count + ledger.repeats for count, ledger in zip(counts, ledgers)])
  return observers.by_observer(once, repeated, once.event.adjacency)


def _delta(header: Mapping[str, Any]) -> float:
  """The delta that a header states, or the default for its population."""
  if header['delta'] is not None:
    return header['delta']
  if header['population'] is None:
    raise ValueError('delta must be given: the ledger has neither it nor population')
  return accountant_lib.default_delta(header['population'])


def _check_together(ledgers: Sequence[ledger_lib.Ledger],
                    headers: Sequence[Mapping[str, Any]]) -> None:
  """Raises ValueError unless these ledgers have an epsilon together."""
  heads, adjacencies = {}, {}
  for ledger, header in zip(ledgers, headers):
    if header['seeded']:
      raise ValueError(f'ledger must be of a run without a seed, found {ledger.path}')
    other = heads.setdefault(ledger.path.read_bytes(), ledger.path)
    if other is not ledger.path:
      raise ValueError(f'ledger must name different ones: {other} and {ledger.path}')
    adjacencies[ledger.event().adjacency] = ledger.path
  adjacencies.pop(base.ANY, None)
  if len(adjacencies) > 1:
    raise ValueError('ledger must name runs of one adjacency, found ' + ', '.join(
        f'{name} in {path}' for name, path in adjacencies.items()))
