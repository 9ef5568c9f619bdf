"""Epsilon of a run, recomputed from its ledger alone."""

from collections.abc import Mapping, Sequence
import os
from typing import Any

from tff_pipelines.accounting.events import base, combinators, preliminary
from tff_pipelines.accounting.guarantees import (
    accountant as accountant_lib, answers, bounds, ledger as ledger_lib, observers)
from tff_pipelines.accounting.guarantees.guarantee import SUPPRESSED, UNBOUNDED
from tff_pipelines.common import caveats, validate

_MAX_SHOWN_PROBLEMS = 5  # Of a broken chain.

# Events that are charged before they happen, or once for a sample that is kept.
_CHARGED_FIRST = ('LocalAnswers', 'PostProcessing')

_UNENDED = caveats.Caveat(
    'a round may be missing',
    'the ledger has no line of a round that was interrupted and never repeated; the '
    'server may have seen its sum')


def broken(problems: list[str]) -> answers.Answer:
  """The answer where the chain of a ledger does not hold: no epsilon.

  Args:
    problems: As `Ledger.verify` finds them, at least one.
  """
  shown = problems[:_MAX_SHOWN_PROBLEMS]
  if len(problems) > len(shown):
    shown.append(f'and {len(problems) - len(shown)} problems more')
  return answers.Answer(caveats=(caveats.Caveat(
      'broken chain',
      'the chain of the ledger does not hold: no epsilon can be given'), *shown))


def answer(path: str | os.PathLike[str], **how: Any) -> answers.Answer:
  """Epsilon of everything that a ledger says was released, restarts included.

  Raises:
    OSError, ValueError: As `together` does.
  """
  return together([path], **how)


def together(paths: Sequence[str | os.PathLike[str]], *, delta: float | None = None,
             accountant: str = 'auto', amplification: str = 'tight',
             colluders: int = 1, clients_per_person: int = 1) -> answers.Answer:
  """Epsilon of everything that runs on the same clients released, by their ledgers.

  A client is taken to be in all of them. Runs may be adaptive: each may follow from
  what earlier ones released.

  Args:
    paths: Paths of ledger.jsonl files, at least one, all different.
    delta: In [0, 1); None for the smallest of the headers, each its own or the default
      for its population.
    accountant: 'auto', 'rdp' or 'pld'.
    amplification: Bound on sampling: 'tight', 'generic' or 'none'.
    colluders: Number of participants who pool what they know, >= 1.
    clients_per_person: Clients that one person may own, >= 1.

  Raises:
    OSError: If the file can't be read.
    ValueError: If a chain does not hold, nothing was released yet, no delta is known,
      or, of several, one is seeded, there twice, or of another adjacency.
  """
  return explained(
      paths, delta=delta, accountant=accountant, amplification=amplification,
      colluders=colluders, clients_per_person=clients_per_person)[0]


def explained(
    paths: Sequence[str | os.PathLike[str]], *, delta: float | None = None,
    colluders: int = 1, clients_per_person: int = 1, **how: str
) -> tuple[answers.Answer, dict[str, observers.View], observers.Method]:
  """The same as `together`, with the views and the method that gave the numbers."""
  ledgers = [ledger_lib.Ledger(path) for path in paths]
  if len(ledgers) > 1:
    _check_together(ledgers)
  runs, headers = [ledger.lines() for ledger in ledgers], [
      ledger.header() for ledger in ledgers]
  lines = [line for run in runs for line in run]
  delta = min(map(_delta, headers)) if delta is None else delta
  method = observers.Method(
      **how, colluders=colluders, clients_per_person=clients_per_person, population=max(
          (header['population'] for header in headers
           if header['population'] is not None), default=None))
  views = _views(ledgers, runs, headers)
  if method.population is not None:
    validate.integer(clients_per_person=clients_per_person, low=1,
                     high=method.population)
  found = {observer: observers.bound_of_view(view, observer, delta, method)
           for observer, view in views.items()
           if clients_per_person > 1 or observer not in (
               bounds.PERSON, bounds.PERSON_SERVER)}
  outsiders = found[bounds.OUTSIDERS]
  notes = [*(text for header in headers for text in header['warnings']),
           *observers.caveats_of(found)]
  if bounds.PARTICIPANT in found and not found[bounds.PARTICIPANT].is_finite:
    notes.append(UNBOUNDED)
  if any(line['outcome'] not in ('released', ledger_lib.UNUSED) for line in lines):
    for observer in (bounds.SERVER, bounds.PERSON_SERVER):
      found.pop(observer, None)
    notes.append(SUPPRESSED)
  elif any(run[-1]['event']['kind'] not in _CHARGED_FIRST
           and not preliminary.count(run[-1:], preliminary.EvaluationRelease)
           for run in runs):
    notes.append(_UNENDED)
  notes += [caveats.Caveat(
      'adjacency differs', f'the header states adjacency {header["adjacency"]}, the '
      f'events {outsiders.adjacency}') for header in headers
            if header['adjacency'] not in (None, outsiders.adjacency)]
  trust = '; '.join(dict.fromkeys(
      header['trust_model'] for header in headers if header['trust_model'])) or None
  common = dict(
      terms=answers.terms(trust), delta=delta, rounds=len(lines),
      adjacency=outsiders.adjacency, caveats=tuple(dict.fromkeys(notes)))
  if headers[0]['seeded']:
    return answers.Answer(**common, seeded=True), views, method
  return answers.Answer(
      **common, **found, clients_per_person=clients_per_person), views, method


def _views(ledgers: Sequence[ledger_lib.Ledger], runs: Sequence[Sequence[Mapping]],
           headers: Sequence[Mapping[str, Any]]) -> dict[str, observers.View]:
  """Observer -> its view, for all observers that there are."""
  def deviation(with_repeats: bool) -> float | None:
    """Total variation distance of all releases; None where no bound is known."""
    parts = [header['deviation_per_round'] for header in headers]
    if None in parts:
      return None
    return sum(part * (len(run) + with_repeats * ledger.repeats)
               for part, run, ledger in zip(parts, runs, ledgers))

  once = observers.View(
      _composed([ledger.event() for ledger in ledgers]), deviation(False))
  repeated = observers.View(
      _composed([ledger.seen_event() for ledger in ledgers]), deviation(True),
      # Records that agents sample themselves are known to no server and no other agent.
      all(line['event']['kind'] == 'NoisyGradients' for run in runs for line in run))
  # Repetitions are seen by the server or, where clients protect themselves, by all.
  seen_by_all = once.event.adjacency == base.LOCAL and any(
      ledger.repeats for ledger in ledgers)
  models = repeated if seen_by_all else once
  views = {bounds.OUTSIDERS: models, bounds.SERVER: repeated}
  if models.event.has_shares():
    views[bounds.PARTICIPANT] = once
  return {**views, bounds.PERSON: models, bounds.PERSON_SERVER: repeated}


def _composed(parts: Sequence[base.Event]) -> base.Event:
  """Releases of several runs: limits on participations are those of each run."""
  return parts[0] if len(parts) == 1 else combinators.Composed(events=tuple(parts))


def _delta(header: Mapping[str, Any]) -> float:
  """The delta that a header states, or the default for its population."""
  if header['delta'] is not None:
    return header['delta']
  if header['population'] is None:
    raise ValueError(
        'delta must be given: the ledger states neither delta nor population')
  return accountant_lib.default_delta(header['population'])


def _check_together(ledgers: Sequence[ledger_lib.Ledger]) -> None:
  """Raises ValueError unless these ledgers have an epsilon together."""
  heads = {}
  for ledger in ledgers:
    if problems := ledger.verify():
      raise ValueError(f'ledger must have an intact chain, found {ledger.path}: '
                       f'{problems[0]}')
    if ledger.header()['seeded']:
      raise ValueError('ledger must be of a run without a seed, which has no epsilon, '
                       f'found {ledger.path}')
    head = ledger.path.read_bytes()
    if head in heads:
      raise ValueError(f'ledger must name different ones, found {heads[head]} and '
                       f'{ledger.path}')
    heads[head] = ledger.path
  adjacencies = {ledger.event().adjacency: ledger.path for ledger in ledgers}
  adjacencies.pop(base.ANY, None)
  if len(adjacencies) > 1:
    raise ValueError('ledger must name runs of one adjacency, found ' + ', '.join(
        f'{name} in {path}' for name, path in adjacencies.items()))
