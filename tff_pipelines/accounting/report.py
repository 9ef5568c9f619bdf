"""Answers as text, JSON and CSV."""

import csv
import io
import json
import math

from tff_pipelines.accounting import answers
from tff_pipelines.accounting import base
from tff_pipelines.accounting import decimals

FORMATS = ('text', 'json', 'csv')


# A participant knows the share of the noise that it added itself.
OWN_SHARE = (
    'a participant who subtracts its own share of the noise counts as a colluder')


# Printed rounded up, as every epsilon is: more promises less, or is more noise.
_ROUNDED_UP = ('delta', 'noise_multiplier', 'local_stddev_grid')


def _number(value: float | None) -> str:
  return 'unbounded' if value is None else decimals.rounded_up(value)


def in_three_sentences(answer: answers.Answer) -> str:
  """What the guarantee says, to someone who has not read a paper on it."""
  neighbours = base.ADJACENCY_IN_WORDS.get(answer.adjacency, 'any two inputs')
  trust = answer.trust_model or 'the ledger does not say who is trusted'
  if answer.epsilon is None:
    return (
        'There is no guarantee: what is released may reveal any input. '
        f'It would be stated for inputs that differ as follows: {neighbours}. '
        f'Trust: {trust}.')
  first = (
      'Nothing that can be released is more than '
      f'e^{decimals.rounded_up(answer.epsilon)} = {_odds(answer.epsilon)} times as '
      'likely with one of two neighbouring inputs as with the other, but for a part of '
      f'probability {decimals.rounded_up(answer.delta)}.')
  second = f'Neighbouring inputs differ as follows: {neighbours}.'
  if answer.sampling == 'none' or answer.epsilon_unamplified in (
      None, answer.epsilon):  # The same number against everybody.
    third = f'Trust: {trust}.'
  else:
    shares = f' ({OWN_SHARE})' if 'noise is that of the clients' in trust else ''
    third = (
        'That epsilon holds against those who do not learn who or how many took '
        'part, and against the server and the participants it is '
        f'{_number(answer.epsilon_unamplified)}{shares}; trust: {trust}.')
  return ' '.join((first, second, third))


def _odds(epsilon: float) -> str:
  return decimals.rounded_up(math.exp(epsilon), 3) if epsilon < 700 else 'any number of'


def as_text(rows: list[answers.Answer]) -> str:
  """Numbers, then the guarantee in words, then the warnings."""
  blocks = []
  for answer in rows:
    lines = [f'{key}: {_plain(key, value)}' for key, value in answer.to_json().items()
             if value is not None and key not in ('warnings', 'trust_model')]
    if answer.epsilon is None:
      lines.insert(0, 'epsilon: none')
    if answer.adjacency is not None:
      lines += ['', in_three_sentences(answer)]
    lines += [f'warning: {text}' for text in answer.warnings]
    blocks.append('\n'.join(lines))
  return '\n\n'.join(blocks)


def _plain(key: str, value) -> str:
  if key.startswith('epsilon') or key in _ROUNDED_UP:
    return decimals.rounded_up(value, 7)
  return f'{value:.7g}' if isinstance(value, float) else str(value)


def as_json(rows: list[answers.Answer], is_table: bool) -> str:
  """One object; a table is {"rows": [...]}."""
  found = [answer.to_json() for answer in rows]
  return json.dumps({'rows': found} if is_table else found[0], allow_nan=False)


def as_csv(rows: list[answers.Answer]) -> str:
  """A header and one line an answer; warnings joined by ' | '."""
  out = io.StringIO()
  writer = None
  for answer in rows:
    record = answer.to_json()
    record['warnings'] = ' | '.join(answer.warnings)
    if writer is None:
      writer = csv.DictWriter(out, fieldnames=list(record), lineterminator='\n')
      writer.writeheader()
    writer.writerow(record)
  return out.getvalue().rstrip('\n')


def formatted(rows: list[answers.Answer], how: str, is_table: bool) -> str:
  """The rows in one of FORMATS."""
  if how == 'json':
    return as_json(rows, is_table)
  if how == 'csv':
    return as_csv(rows)
  return as_text(rows)
