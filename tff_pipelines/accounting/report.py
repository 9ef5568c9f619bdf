"""Answers as text, JSON and CSV."""

import csv
import io
import itertools
import json
import math
import textwrap

from tff_pipelines.accounting import answers
from tff_pipelines.accounting import base
from tff_pipelines.accounting import decimals

FORMATS = ('text', 'json', 'csv')
_WIDTH = 80

# A participant knows the share of the noise that it added itself.
OWN_SHARE = (
    'a participant who subtracts its own share of the noise counts as a colluder')

# Printed rounded up, as every epsilon is: more promises less, or is more noise.
_ROUNDED_UP = ('delta', 'noise_multiplier', 'local_stddev_grid')


def in_three_sentences(answer: answers.Answer) -> str:
  """The guarantee in words, for a reader who has not read a paper on it."""
  neighbours = base.ADJACENCY_IN_WORDS.get(answer.adjacency, 'any two inputs')
  trust = answer.trust_model or 'the ledger does not say who is trusted'
  if answer.epsilon is None:
    return (
        'There is no guarantee: the release may reveal any input. '
        f'It would be stated for inputs that differ as follows: {neighbours}. '
        f'Trust: {trust}.')
  first = (
      'Nothing that can be released is more than '
      f'e^{decimals.rounded_up(answer.epsilon)} = {_odds(answer.epsilon)} times as '
      'likely with one of two neighbouring inputs as with the other, except for a part '
      f'of probability {decimals.rounded_up(answer.delta)}.')
  second = f'Neighbouring inputs differ as follows: {neighbours}.'
  if 'suppressed rounds' in _names(answer):
    third = ('That epsilon does not hold against the server, against which none is '
             f'guaranteed; trust: {trust}.')
  elif answer.sampling == 'none' or answer.epsilon_server in (
      None, answer.epsilon):  # The same number against any observer.
    third = f'Trust: {trust}.'
  else:
    shares = f' ({OWN_SHARE})' if 'noise is that of the clients' in trust else ''
    third = (
        'That epsilon holds against observers who do not learn who or how many '
        'participated, and against the server and the participants it is '
        f'{decimals.rounded_up(answer.epsilon_server)}{shares}; trust: {trust}.')
  return ' '.join((first, second, third))


def _odds(epsilon: float) -> str:
  return decimals.rounded_up(math.exp(epsilon), 3) if epsilon < 700 else 'any number of'


def as_text(answer: answers.Answer) -> str:
  """Numbers, the guarantee in words, and the names of the caveats; 80 columns."""
  values = {key: value for key, value in answer.to_json().items()
            if value is not None and key not in (
                'warnings', 'trust_model', 'adjacency', 'sampling')}
  cells = [f'{key}: {_plain(key, value)}' for key, value in values.items()]
  if answer.epsilon is None:
    cells.insert(0, 'epsilon: none')
  half = -(-len(cells) // 2)
  lines = [f'{left:<{_WIDTH // 2}}{right}'.rstrip() for left, right in
           itertools.zip_longest(cells[:half], cells[half:], fillvalue='')]
  if answer.adjacency is not None:
    lines += ['', *textwrap.wrap(in_three_sentences(answer), _WIDTH)]
  if answer.warnings:
    lines += textwrap.wrap(f'caveats: {"; ".join(_names(answer))}', _WIDTH)
  return '\n'.join(lines)


def _names(answer: answers.Answer) -> list[str]:
  return list(dict.fromkeys(getattr(text, 'name', text) for text in answer.warnings))


def as_table(rows: list[answers.Answer]) -> str:
  """A line for each answer, in 80 columns."""
  lines = [f'{"bits":>4} {"rounds":>12} {"noise":>11} {"epsilon":>11} '
           f'{"server":>11}  caveats']
  for answer in rows:
    noise, epsilon, server = (
        '-' if value is None else decimals.rounded_up(value, 6) for value in (
            answer.noise_multiplier, answer.epsilon, answer.epsilon_server))
    bits, rounds = ('-' if value is None else f'{value}'
                    for value in (answer.bits, answer.rounds))
    line = f'{bits:>4} {rounds:>12} {noise:>11} {epsilon:>11} {server:>11}  '
    lines.append(line + textwrap.shorten(
        '; '.join(_names(answer)), _WIDTH - len(line), placeholder='...'))
  return '\n'.join(line.rstrip() for line in lines)


def _plain(key: str, value) -> str:
  if key.startswith('epsilon') or key in _ROUNDED_UP:
    return decimals.rounded_up(value, 7)
  return f'{value:.7g}' if isinstance(value, float) else str(value)


def as_json(rows: list[answers.Answer], is_table: bool) -> str:
  """One object; a table is {"rows": [...]}."""
  objects = [answer.to_json() for answer in rows]
  return json.dumps({'rows': objects} if is_table else objects[0], allow_nan=False)


def as_csv(rows: list[answers.Answer]) -> str:
  """A header and one line an answer; warnings joined by ' | '."""
  out = io.StringIO()
  writer = csv.DictWriter(out, fieldnames=list(rows[0].to_json()), lineterminator='\n')
  writer.writeheader()
  writer.writerows({**answer.to_json(), 'warnings': ' | '.join(answer.warnings)}
                   for answer in rows)
  return out.getvalue().rstrip('\n')


def formatted(rows: list[answers.Answer], how: str, is_table: bool) -> str:
  """The rows in one of FORMATS."""
  if how == 'json':
    return as_json(rows, is_table)
  if how == 'csv':
    return as_csv(rows)
  return as_table(rows) if is_table else as_text(rows[0])
