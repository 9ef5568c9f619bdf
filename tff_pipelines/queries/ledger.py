"""Epsilon of a run, recomputed from its ledger alone."""

import math
import os

from tff_pipelines.accounting import accountant as accountant_lib
from tff_pipelines.accounting import answers
from tff_pipelines.accounting import base
from tff_pipelines.accounting import caveats
from tff_pipelines.accounting import ledger as ledger_lib
from tff_pipelines.accounting import noise_budget

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


def answer(path: str | os.PathLike[str], *, delta: float | None = None,
           accountant: str = 'auto', amplification: str = 'tight') -> answers.Answer:
  """Epsilon of everything that a ledger says was released, restarts included.

  Args:
    path: Path of a ledger.jsonl.
    delta: In [0, 1); None for that of the header, or 1/population.
    accountant: 'auto', 'rdp' or 'pld'.
    amplification: Bound on sampling: 'tight', 'generic' or 'none'.

  Raises:
    OSError: If the file can't be read.
    ValueError: If the chain does not hold, nothing was released yet, or no delta is
      known.
  """
  ledger = ledger_lib.Ledger(path)
  lines, header = ledger.lines(), ledger.header()
  delta = header['delta'] if delta is None else delta
  if delta is None:
    if header['population'] is None:
      raise ValueError(
          'delta must be given: the ledger states neither delta nor population')
    delta = 1 / header['population']
  repeats, seen = ledger.repeats, ledger.seen_event()
  # Repetitions are seen by the server or, where clients protect themselves, by all.
  event, seen_by_all = ledger.event(), 0
  if event.adjacency == base.LOCAL and repeats:
    event, seen_by_all = seen, repeats
  deviation = header['deviation_per_round']
  left, ideal = _left(
      event, deviation and (len(lines) + seen_by_all) * deviation, delta, amplification)
  result = accountant_lib.guarantee(
      event, left, accountant=accountant, amplification=amplification,
      population=header['population'])
  notes = [*header['warnings'], *result.warnings, *ideal]
  # Records that agents sample themselves are known to no server and no other agent.
  own = all(line['event']['kind'] == 'NoisyGradients' for line in lines)
  unsampled, known = (
      (seen, amplification) if own else (seen.without_sampling(), 'none'))
  left, ideal = _left(
      unsampled, deviation and (len(lines) + repeats) * deviation, delta, known)
  server = accountant_lib.epsilon(
      unsampled, left, accountant=accountant, amplification=known)
  notes += ideal
  if any(line['outcome'] not in ('released', ledger_lib.UNUSED) for line in lines):
    server = math.inf
    notes.append(_SUPPRESSED)
  elif lines[-1]['event']['kind'] not in _CHARGED_FIRST:
    notes.append(_UNENDED)
  if header['adjacency'] not in (None, result.adjacency):
    notes.append(caveats.Caveat(
        'adjacency differs', f'the header states adjacency {header["adjacency"]}, the '
        f'events {result.adjacency}'))
  common = dict(
      delta=delta, rounds=len(lines), adjacency=result.adjacency,
      trust_model=header['trust_model'], warnings=list(dict.fromkeys(notes)))
  if header['seeded']:
    return answers.Answer(**common)
  sampled = event.without_sampling() != event
  return answers.Answer(
      epsilon=answers.finite(result.epsilon), epsilon_server=answers.finite(server),
      order=answers.integer_order(result.order), accountant=result.accountant,
      amplification=result.amplification if sampled else None, **common)


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
