"""Epsilon of a run, recomputed from its ledger alone."""

from collections.abc import Mapping
from collections.abc import Sequence
import math
import os
from typing import Any

from tff_pipelines.accounting.guarantees import accountant as accountant_lib
from tff_pipelines.accounting.guarantees import answers
from tff_pipelines.accounting.events import base
from tff_pipelines.common import caveats
from tff_pipelines.accounting.events import combinators
from tff_pipelines.accounting.guarantees import ledger as ledger_lib
from tff_pipelines.accounting.guarantees import noise_budget
from tff_pipelines.accounting.events import preliminary

_MAX_SHOWN_PROBLEMS = 5  # Of a broken chain.

# Events that are charged before they happen, or once for a sample that is kept.
_CHARGED_FIRST = ('LocalAnswers', 'PostProcessing')

_SUPPRESSED = caveats.Caveat(
    'suppressed rounds',
    'rounds were suppressed for outsiders, but the server saw their sums with less '
    'noise than was planned: no epsilon holds against it')
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
  return answers.Answer(warnings=[caveats.Caveat(
      'broken chain',
      'the chain of the ledger does not hold: no epsilon can be given'), *shown])


def answer(path: str | os.PathLike[str], **how: Any) -> answers.Answer:
  """Epsilon of everything that a ledger says was released, restarts included.

  Args:
    path: Path of a ledger.jsonl.
    **how: As for `together`.

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
  ledgers = [ledger_lib.Ledger(path) for path in paths]
  if len(ledgers) > 1:
    _check_together(ledgers)
  runs, headers = [ledger.lines() for ledger in ledgers], [
      ledger.header() for ledger in ledgers]
  lines = [line for run in runs for line in run]
  delta = min(map(_delta, headers)) if delta is None else delta
  repeats = sum(ledger.repeats for ledger in ledgers)
  alone_seen = _composed([ledger.event() for ledger in ledgers])
  seen = _composed([ledger.seen_event() for ledger in ledgers])

  def deviation(with_repeats: bool) -> float | None:
    """Total variation distance of all releases; None where no bound is known."""
    parts = [header['deviation_per_round'] for header in headers]
    if None in parts:
      return None
    return sum(part * (len(run) + with_repeats * ledger.repeats)
               for part, run, ledger in zip(parts, runs, ledgers))

  # Repetitions are seen by the server or, where clients protect themselves, by all.
  seen_by_all = bool(alone_seen.adjacency == base.LOCAL and repeats)
  event = seen if seen_by_all else alone_seen
  left, ideal = _left(event, deviation(seen_by_all), delta, amplification)
  population = max((header['population'] for header in headers
                    if header['population'] is not None), default=None)
  result = accountant_lib.guarantee(
      event, left, accountant=accountant, amplification=amplification,
      population=population, stated_delta=delta)
  notes = [*(text for header in headers for text in header['warnings']),
           *result.warnings, *ideal]
  # Records that agents sample themselves are known to no server and no other agent.
  own = all(line['event']['kind'] == 'NoisyGradients' for line in lines)
  unsampled, known = (
      (seen, amplification) if own else (seen.without_sampling(), 'none'))
  left, ideal = _left(unsampled, deviation(True), delta, known)
  server = accountant_lib.epsilon(
      unsampled, left, accountant=accountant, amplification=known)
  notes += ideal
  alone = None
  if event.has_shares():
    others = alone_seen.seen_by_participants(colluders).without_sampling()
    left, ideal = _left(others, deviation(False), delta, 'none')
    alone = accountant_lib.epsilon(others, left, accountant=accountant)
    notes += [answers.unbounded()] if alone == math.inf else ideal
  person, unproved = answers.of_person(
      event, clients_per_person, delta, seen=seen, population=population,
      deviation=deviation(seen_by_all), deviation_seen=deviation(True),
      accountant=accountant, amplification=amplification)
  notes += unproved
  if any(line['outcome'] not in ('released', ledger_lib.UNUSED) for line in lines):
    server = math.inf
    person |= dict(epsilon_server_person=None)
    notes.append(_SUPPRESSED)
  elif any(run[-1]['event']['kind'] not in _CHARGED_FIRST
           and not preliminary.count(run[-1:], preliminary.EvaluationRelease)
           for run in runs):
    notes.append(_UNENDED)
  notes += [caveats.Caveat(
      'adjacency differs', f'the header states adjacency {header["adjacency"]}, the '
      f'events {result.adjacency}') for header in headers
            if header['adjacency'] not in (None, result.adjacency)]
  trust = '; '.join(dict.fromkeys(
      header['trust_model'] for header in headers if header['trust_model'])) or None
  common = dict(
      delta=delta, rounds=len(lines), adjacency=result.adjacency, trust_model=trust,
      warnings=list(dict.fromkeys(notes)))
  if headers[0]['seeded']:
    return answers.Answer(**common)
  sampled = event.without_sampling() != event
  return answers.Answer(
      epsilon=answers.finite(result.epsilon), epsilon_server=answers.finite(server),
      epsilon_participant=answers.finite(alone),
      order=answers.integer_order(result.order), accountant=result.accountant,
      amplification=result.amplification if sampled else None, **person, **common)


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
      raise ValueError(f'ledger must name different ones, found {heads[head]} and {ledger.path}')
    heads[head] = ledger.path
  adjacencies = {ledger.event().adjacency: ledger.path for ledger in ledgers}
  adjacencies.pop(base.ANY, None)
  if len(adjacencies) > 1:
    raise ValueError('ledger must name runs of one adjacency, found ' + ', '.join(
        f'{name} in {path}' for name, path in adjacencies.items()))


def _left(event: base.Event, total_variation: float | None, delta: float,
          amplification: str) -> tuple[float, list[caveats.Caveat]]:
  """What sampling error leaves of delta, and a caveat if it would leave too little."""
  consumed = noise_budget.consumed_by(event, total_variation, delta, amplification)
  left = noise_budget.remaining(delta, consumed)
  if not noise_budget.is_too_much(consumed, delta):
    return left, []
  observers = ('those who know who participated' if amplification == 'none'
               else 'observers of the models')
  return left, [caveats.Caveat(
      'epsilon of ideal distributions',
      f'epsilon against {observers} is that of ideal distributions: the sampling error '
      f'of the noise would consume {consumed:.3g} of delta, more than half')]
