"""What a release costs in privacy, or what it takes to keep the cost in bounds.

Numbers only: no data is read and no model is built.

  python -m tff_pipelines.account --query=epsilon --mechanism=gaussian \\
      --noise_multiplier=1 --delta=1e-5 --rounds=100
  python -m tff_pipelines.account --query=noise_multiplier --mechanism=skellam \\
      --epsilon=10 --delta=0.000294117647 --clip=0.03 --bits=18 \\
      --dimension=1018174 --cohort_size=100 --population=3400 --rounds=1500 \\
      --sampling=poisson --format=json
  python -m tff_pipelines.account --ledger=run/ledger.jsonl

Which flags matter:
  skellam, discrete_gaussian, skellam_central: clip, bits (or scale), dimension,
    cohort_size, and those of gaussian; noise_multiplier unless it is asked for;
    beta, k_stddevs, rotation, adaptive_clipping and clip_count_stddev
  skellam, discrete_gaussian: also min_honest_fraction, assumed_colluders,
    dropout_rate and surviving_fraction
  gaussian, skellam_count: noise_multiplier, rounds, delta, and to sample the
    clients: sampling, cohort_size, population
  ae_vote, knn_vote: queries, noise_stddev, level, bound, noise, neighbours
  piecewise, duchi, laplace: epsilon (of one query), queries, delta (or none)
  nfdp: records, subset_size, replacement

Exit codes: 0; 1 if the chain of a ledger does not hold; 2 for a wrong flag.
"""

import math
import os
import sys
from typing import Any

from absl import flags

from aggregators import params as params_lib
from tff_pipelines import cli
from tff_pipelines.accounting import accountant
from tff_pipelines.accounting import answers
from tff_pipelines.accounting import base
from tff_pipelines.accounting import deviation
from tff_pipelines.accounting import events
from tff_pipelines.accounting import ledger as ledger_lib
from tff_pipelines.accounting import report
from tff_pipelines.accounting import request as request_lib

flags.DEFINE_enum(
    'query', 'epsilon', request_lib.QUERIES,
    'What to find. bits with --noise_multiplier: the fewest that keep --epsilon; '
    'bits without: the fewest whose noise multiplier is within 1% of the central '
    'Gaussian\'s. table: a row for several bits, or numbers of rounds.')
flags.DEFINE_enum('mechanism', None, tuple(request_lib.MECHANISMS),
                  'What is released.')
flags.DEFINE_float('epsilon', None, 'Target; for piecewise, duchi, laplace the '
                   'parameter of one query.')
flags.DEFINE_float('delta', None, 'Strictly between 0 and 1.')
flags.DEFINE_float('noise_multiplier', None,
                   'Noise standard deviation over the clip.')
flags.DEFINE_float('clip', None, 'L2 clip of a client\'s update, model units.')
flags.DEFINE_integer('bits', None, 'Bits of a coordinate of the sum.')
flags.DEFINE_float('scale', None,
                   'Grid units per model unit, fixed instead of from --bits.')
flags.DEFINE_float('beta', 0.60653066, 'Bias of the conditional rounding.')
flags.DEFINE_float('k_stddevs', 4.0,
                   'Standard deviations of the sum inside half the field.')
flags.DEFINE_enum('rotation', 'hadamard', params_lib.ROTATIONS,
                  'Of an update before it is rounded; it decides the padding.')
flags.DEFINE_bool('adaptive_clipping', False, 'Each round also releases the '
                  'noisy count of clients at most the clip.')
flags.DEFINE_float('clip_count_stddev', None, 'Noise of that count, in clients; '
                   'a twentieth of --cohort_size if not given.')
flags.DEFINE_integer('dimension', None, 'Coordinates of an update, unpadded.')
flags.DEFINE_float('cohort_size', None, 'Clients of a round, expected.')
flags.DEFINE_integer('population', None, 'Clients in all.')
flags.DEFINE_integer('rounds', 1, 'How many releases.')
flags.DEFINE_enum('sampling', 'none', request_lib.SAMPLINGS,
                  'How the clients of a round are drawn.')
flags.DEFINE_float('min_honest_fraction', 1.0,
                   'Part of the noise shares that is counted on.')
flags.DEFINE_integer('assumed_colluders', 0, 'Clients of a round that are assumed '
                     'to tell the server their shares of the noise.')
flags.DEFINE_float('dropout_rate', 0.0, 'Clients that were told to take part drop '
                   'out, each by itself and anew in every round, with a probability '
                   'that is not above this. What a withheld round tells under Poisson '
                   'sampling depends on it.')
flags.DEFINE_float('surviving_fraction', 1.0,
                   'Part of the planned noise that is there, when nothing tops '
                   'it up.')
flags.DEFINE_enum('amplification', 'tight', base.AMPLIFICATIONS,
                  'Bound on sampling; generic is the published one.')
flags.DEFINE_enum('accountant', 'auto', base.ACCOUNTANTS,
                  'auto: pld where the worst case is known, else rdp.')
flags.DEFINE_enum('format', 'text', report.FORMATS, 'Of the answer.')
flags.DEFINE_string('plot', None, 'Also draw the figures of the mechanisms\' '
                    'comparison into this PNG file.')
flags.DEFINE_bool('allow_degenerate', False,
                  'Accept a grid too coarse to be useful, with a warning.')
flags.DEFINE_integer('queries', 1, 'Votes, or local queries, in all.')
flags.DEFINE_float('noise_stddev', None, 'Noise of the votes; an agent\'s votes '
                   'sum to 1.')
flags.DEFINE_enum('level', 'agent', ('agent', 'instance'), 'Who is protected by '
                  'a vote: an agent with all its data, or one record.')
flags.DEFINE_enum('bound', 'tight', ('tight', 'paper'),
                  'Sensitivity and conversion of votes.')
flags.DEFINE_enum('noise', None, ('skellam', 'gaussian'), 'Of votes: skellam '
                  'unless --bound=paper.')
flags.DEFINE_integer('neighbours', None, 'Votes of an agent in knn_vote.')
flags.DEFINE_integer('records', None, 'Records of a party in nfdp.')
flags.DEFINE_integer('subset_size', None, 'Records drawn in nfdp.')
flags.DEFINE_bool('replacement', True, 'Whether nfdp draws with replacement.')
flags.DEFINE_string('ledger', None, 'Recompute epsilon from this ledger alone.')

FLAGS = flags.FLAGS

# Of a broken ledger, so many are told.
_MOST_PROBLEMS = 5
_OF_EVERY_QUERY = {'query', 'mechanism', 'format', 'plot'}
_FIELDS = tuple(request_lib.Request.__dataclass_fields__)


def _unused(request: request_lib.Request) -> list[str]:
  """A warning for every given flag that this mechanism does not use."""
  used = request.family.uses | _OF_EVERY_QUERY
  found = [f'--{name} is not used by mechanism={request.mechanism} and was '
           'ignored' for name in _FIELDS
           if FLAGS[name].present and name not in used]
  asked = {'noise_multiplier': request.family.knob,
           'rounds': request.family.counter,
           'epsilon': request.family.target}.get(request.query, request.query)
  if asked in _FIELDS and FLAGS[asked].present and asked in used and (
      asked not in _OF_EVERY_QUERY):
    found.append(f'--{asked} is what query={request.query} finds: the given '
                 'value was ignored')
  return found


def _answer() -> int:
  if FLAGS.mechanism is None:
    if FLAGS.plot is None:
      raise ValueError('--mechanism must be given (or --ledger, or --plot)')
    _draw()
    return 0
  # A flag that the mechanism does not use is reported, and cannot fail either.
  uses = request_lib.MECHANISMS[FLAGS.mechanism].uses | {'query', 'mechanism'}
  request = request_lib.Request(**{
      name: FLAGS[name].value for name in _FIELDS if name in uses})
  is_table = request.query == 'table'
  rows = answers.table(request) if is_table else [answers.answer(request)]
  for row in rows:
    row.warnings.extend(_unused(request))
  print(report.formatted(rows, FLAGS.format, is_table))
  if FLAGS.plot is not None:
    _draw()
  return 0


def _draw() -> None:
  # Drawing needs matplotlib; the numbers do not.
  from tff_pipelines.accounting import figures  # pylint: disable=g-import-not-at-top
  figures.draw(FLAGS.plot)
  print(f'figures written to {FLAGS.plot}', file=sys.stderr)


def _answer_ledger() -> int:
  """Epsilon of a ledger, from the ledger alone."""
  if not os.path.isfile(FLAGS.ledger):
    raise ValueError('--ledger must be the ledger.jsonl of a run, found '
                     f'{FLAGS.ledger!r}, which is no file')
  ledger = ledger_lib.Ledger(FLAGS.ledger)
  problems = ledger.verify()
  given = {name for name in _FIELDS if FLAGS[name].present}
  given -= {'delta', 'accountant', 'amplification'}
  warnings = [f'--{name} is not used with --ledger and was ignored'
              for name in sorted(given)]
  if problems:
    left = len(problems) - _MOST_PROBLEMS
    more = [f'and {left} problems more'] if left > 0 else []
    answer = answers.Answer(warnings=[
        'the chain of the ledger does not hold: no epsilon can be given',
        *problems[:_MOST_PROBLEMS], *more, *warnings])
  else:
    answer = _of_ledger(ledger, warnings)
  if FLAGS.format == 'text':
    state = 'broken' if problems else 'intact'
    print(f'ledger: {FLAGS.ledger}, chain {state}')
  print(report.formatted([answer], FLAGS.format, False))
  return 1 if problems else 0


def _unique(texts: list[str]) -> list[str]:
  return list(dict.fromkeys(texts))


def _left(header: dict[str, Any], releases: int, event: base.Event, delta: float,
          amplification: str, warnings: list[str]) -> float:
  """What of delta the sampler of the noise leaves; says so if that is too much."""
  if not header['deviation_per_round']:  # None, or nothing deviates.
    return delta
  part = deviation.taken_at_most(
      min(1.0, releases * header['deviation_per_round']), event, delta,
      accountant=FLAGS.accountant, amplification=amplification)
  if part > delta / 2:
    against = ('those who know who took part' if amplification == 'none'
               else 'those who see the models')
    warnings.append(
        f'epsilon against {against} is that of exact laws: the draws of the noise '
        f'would take {part:.3g} of delta, more than half')
  return deviation.left(delta, part)


def _of_ledger(ledger: ledger_lib.Ledger, warnings: list[str]) -> answers.Answer:
  header = ledger.header()
  population = header['population']
  delta = FLAGS.delta if FLAGS.delta is not None else header['delta']
  if delta is None:
    if population is None:
      raise ValueError(
          '--delta must be given: the ledger states neither delta nor population')
    delta = 1 / population
  lines = ledger.lines()
  # A restart may have repeated a round before the eyes of those who see it all: the
  # server, or, where parties protect themselves, everybody.
  repeated = lines[-1]['starts'] - 1 if lines else 0
  event, seen_by_all = ledger.event(), 0
  if event.adjacency == base.LOCAL and repeated:
    event, seen_by_all = ledger.event(repeated=repeated), repeated
  found = accountant.guarantee(
      event, _left(header, len(lines) + seen_by_all, event, delta,
                   FLAGS.amplification, warnings),
      accountant=FLAGS.accountant, amplification=FLAGS.amplification,
      population=population)
  seen = ledger.event(repeated=repeated).without_sampling()
  unamplified = accountant.epsilon(
      seen, _left(header, len(lines) + repeated, seen, delta, 'none', warnings),
      accountant=FLAGS.accountant)
  if any(line['outcome'] == 'withheld' for line in lines):
    unamplified = math.inf
    warnings.append(
        'rounds were withheld from outsiders, but the server saw their sums with '
        'less noise than was planned: no epsilon holds against it')
  elif not isinstance(
      events.from_json(lines[-1]['event']),
      # Charged before they are given; of a draw that is charged once.
      (events.LocalAnswers, events.PostProcessing)):
    warnings.append(
        'a round that never ended, because the run was killed and not resumed, is in '
        'no line; the server may have seen its sum')
  stated = header['adjacency']
  if stated is not None and stated != found.adjacency:
    warnings.append(f'the header states adjacency {stated}, the events '
                    f'{found.adjacency}')
  if header['seeded']:
    return answers.Answer(
        delta=delta, rounds=len(lines), adjacency=found.adjacency,
        trust_model=header['trust_model'],
        warnings=_unique([*header['warnings'], *warnings]))
  return answers.Answer(
      epsilon=answers.finite(found.epsilon),
      epsilon_unamplified=answers.finite(unamplified), delta=delta,
      rounds=len(lines), order=answers.integer_order(found.order),
      accountant=found.accountant,
      amplification=(
          None if event.without_sampling() == event else found.amplification),
      adjacency=found.adjacency, trust_model=header['trust_model'],
      warnings=_unique([*header['warnings'], *found.warnings, *warnings]))


def main(argv: list[str]) -> int:
  del argv
  return _answer() if FLAGS.ledger is None else _answer_ledger()


if __name__ == '__main__':
  cli.run(main)
