"""Every epsilon of the accountant against lower bounds by concrete attacks.

  python -m benchmarks.epsilons                  # 10,000 settings
  python -m benchmarks.epsilons --quick
  python -m benchmarks.epsilons --turns --settings=500

Draws settings of all mechanisms, sampling schemes, limits, persons and adjacencies at
random, realistic and extreme ones, and compares each number that `account` prints with
what an attack attains (`worlds`, `attacks`), which shares nothing with the accountant.
A setting of few clients and two rounds at most is also enumerated. No number may be
below an attack: then the exit status is 1. Prints the distribution of the excess of
each number and the settings above 2%, with the reason.

A setting follows from the seed and its index. Its row is written when it is done, so
that a script that was stopped resumes; rows of another revision of the accountant must
be deleted by hand.
"""

import argparse
import collections
from collections.abc import Iterable, Iterator, Mapping, Sequence
import csv
import json
import math
import pathlib
import time
from typing import Any

import numpy as np
from scipy import stats

from benchmarks import attacks, documents, turns, worlds
from tff_pipelines.accounting.events import base
from tff_pipelines.accounting.guarantees import answers, bounds, mechanisms
from tff_pipelines.common.files import write_atomically

# An epsilon below this is judged by its absolute excess.
_SMALL = 0.05
LARGE = 0.02  # An excess that needs a reason.
UNEXPLAINED = 'UNEXPLAINED'
_TITLE = '# Epsilons against attacks (`python -m benchmarks.epsilons`)'
_QUANTILES = (0.5, 0.9, 0.99, 1.0)

SUMS = ('gaussian', 'skellam', 'skellam_central', 'discrete_gaussian', 'skellam_count',
        'none')
_CHANCES = {
    'gaussian': 0.27, 'skellam': 0.3, 'skellam_central': 0.08,
    'discrete_gaussian': 0.08, 'skellam_count': 0.1, 'none': 0.01, 'ae_vote': 0.05,
    'knn_vote': 0.04, 'piecewise': 0.02, 'duchi': 0.02, 'laplace': 0.02, 'nfdp': 0.01}

Settings = dict[str, Any]


class Draw:
  """Random numbers of one setting."""

  def __init__(self, seed: int, index: int):
    self._random = np.random.default_rng([seed, index])

  def log(self, low: float, high: float) -> float:
    """Log-uniform in [low, high]."""
    return float(np.exp(self._random.uniform(np.log(low), np.log(high))))

  def integer(self, low: int, high: int) -> int:
    """Log-uniform in low..high."""
    return min(high, max(low, round(self.log(low - 0.49, high + 0.49))))

  def one(self, *values: Any) -> Any:
    return values[self._random.integers(len(values))]

  def chance(self, probability: float) -> bool:
    return bool(self._random.random() < probability)

  def name(self, chances: Mapping[str, float]) -> str:
    weights = np.array(list(chances.values()))
    return str(self._random.choice(list(chances), p=weights / weights.sum()))


def drawn(seed: int, index: int, takes_turns: bool = False
          ) -> tuple[Settings, Settings]:
  """The settings of a mechanism, and those of the question about it."""
  draw = Draw(seed, index)
  name = draw.name({kind: _CHANCES[kind] for kind in SUMS[:-1]} if takes_turns else
                   _CHANCES)
  settings: Settings = {'mechanism': name}
  query: Settings = {'delta': draw.log(1e-9, 1e-2)}
  if name in ('piecewise', 'duchi', 'laplace'):
    settings.update(queries=draw.integer(1, 1000), epsilon=draw.log(0.01, 3))
    query['delta'] = draw.one(0.0, query['delta'])
  elif name == 'nfdp':
    records = draw.integer(2, 10**5)
    settings.update(records=records, subset_size=draw.integer(1, records),
                    replacement=draw.chance(0.5))
  elif name in ('ae_vote', 'knn_vote'):
    settings.update(queries=draw.integer(1, 2000), noise_stddev=draw.log(1, 200),
                    level=draw.one('agent', 'instance'),
                    noise=draw.one('skellam', 'gaussian'))
    if name == 'knn_vote':
      settings['neighbours'] = draw.integer(1, 50)
  else:
    _draw_sum(draw, settings, query)
    if takes_turns:
      for one in ('fixed_adjacency', 'max_participations', 'min_cohort_size'):
        settings.pop(one, None)
      turns.draw(draw, settings, query)
  return settings, query


def _draw_sum(draw: Draw, settings: Settings, query: Settings) -> None:
  """Adds the settings of rounds of a sum."""
  name = settings['mechanism']
  sampling = draw.name({'poisson': 0.55, 'fixed': 0.2, 'epochs': 0.15, 'none': 0.1})
  is_tiny = draw.chance(0.06)
  n = draw.integer(2, 4) if is_tiny else draw.integer(2, 10**6)
  cohort = n if sampling == 'none' else draw.integer(1, n)
  rounds = draw.integer(1, 2) if is_tiny else draw.integer(1, 5000)
  settings.update(rounds=rounds)
  if name == 'none':
    return
  settings.update(population=n, cohort_size=cohort, sampling=sampling,
                  noise_multiplier=draw.log(0.3, 20))
  if sampling == 'fixed':
    settings['fixed_adjacency'] = draw.one(base.REPLACE_ONE, base.ZERO_OUT)
  if sampling == 'poisson':
    if draw.chance(0.4):
      mean = rounds * cohort / n
      settings['max_participations'] = min(rounds, draw.one(
          math.ceil(mean + math.sqrt(mean)), draw.integer(1, rounds),
          math.ceil(mean + 3 * math.sqrt(mean))))
    if draw.chance(0.25):
      settings['min_cohort_size'] = draw.integer(1, max(1, cohort))
  if draw.chance(0.35):
    query['clients_per_person'] = min(n, draw.integer(2, 4))
  if name in ('skellam', 'discrete_gaussian', 'skellam_central'):
    settings.update(
        clip=draw.log(0.01, 10), bits=draw.one(10, 12, 14, 16, 18, 20, 24, 28),
        dimension=draw.integer(1, 2**21))
    if draw.chance(0.08):
      settings['adaptive_clipping'] = True
  if name in ('skellam', 'discrete_gaussian'):
    settings['min_honest_fraction'] = draw.one(1.0, 1.0, 0.9, 0.5)
    if settings['min_honest_fraction'] < 1 and draw.chance(0.5):
      settings['assumed_colluders'] = draw.integer(1, 3)
    if draw.chance(0.25):
      settings['dropout_rate'] = draw.log(0.001, 0.3)
    if draw.chance(0.3):
      query['colluders'] = draw.integer(1, 3)
    if draw.chance(0.04):
      settings['surviving_fraction'] = draw.one(0.7, 0.9)


# Lower bounds.


def world(mechanism: mechanisms.SumMechanism, query: answers.Query,
          noise: attacks.Noise) -> worlds.World:
  """The numbers of a setting that attacks on a release with this noise need."""
  surviving = mechanism.surviving()
  return worlds.World(
      noise=noise.scaled(surviving), sampling=mechanism.sampling,
      population=mechanism.population, cohort_size=mechanism.cohort_size,
      rounds=mechanism.rounds, replaces=mechanism.sampling == 'fixed' and (
          mechanism.fixed_adjacency == base.REPLACE_ONE),
      limit=mechanism.max_participations if _is_limited(mechanism) else None,
      least=mechanism.min_cohort_size,
      honest=mechanism.min_honest_fraction, colluders=mechanism.assumed_colluders,
      dropout_rate=mechanism.dropout_rate, surviving=surviving,
      participants=query.colluders, person=query.clients_per_person, delta=query.delta)


def _is_limited(mechanism: mechanisms.SumMechanism) -> bool:
  """Whether there is a limit that can be met."""
  return (mechanism.max_participations or mechanism.rounds) < mechanism.rounds


def noises(mechanism: mechanisms.SumMechanism) -> list[attacks.Noise]:
  """The noise of a round, or of the parts of it that are attacked one by one."""
  z = mechanism.noise_multiplier * math.sqrt(sum(g * g for g in mechanism.column))
  if mechanism.mechanism == 'gaussian':
    return [attacks.Noise(variance=z * z)]
  if mechanism.mechanism == 'skellam_count':
    return [attacks.Noise(variance=z * z, is_skellam=True)]
  params = mechanism.params()
  found = attacks.vector(
      sensitivity_squared=params.l2_sensitivity_squared,
      coordinates=params.padded_dimension, variance=params.noise_variance)
  if mechanism.mechanism == 'discrete_gaussian' and found.is_skellam:
    # The sum of the shares is near a Gaussian on a grid.
    found = attacks.nearly_gaussian(
        1 / found.multiplier, 1 / found.variance, 10.0)
  if not mechanism.adaptive_clipping:
    return [found]
  stddev = 2 * (mechanism.clip_count_stddev or 0.05 * mechanism.cohort_size)
  if stddev < 10 or found.is_skellam:
    return [found, attacks.Noise(variance=stddev**2, is_skellam=True)]
  both = math.hypot(found.shift / math.sqrt(found.variance), 1 / stddev)
  return [attacks.nearly_gaussian(both, stddev**-6 / both**4, 10.0)]


def _of_votes(mechanism: mechanisms.VoteMechanism, delta: float) -> float:
  """Lower bound for votes, by the counts with their noise."""
  votes, is_instance = mechanism.neighbours or 1, mechanism.level == 'instance'
  stddev = votes * mechanism.noise_stddev
  if mechanism.noise == 'gaussian':
    squared = (2 if is_instance else votes**2) * mechanism.queries
    return attacks.known(
        attacks.Noise(variance=stddev**2), worlds.point(squared), delta)
  noise = attacks.Noise(shift=1 if is_instance else votes, variance=stddev**2,
                        is_skellam=True)
  return attacks.hidden(noise, worlds.point(1), worlds.point(0),
                        mechanism.queries * (2 if is_instance else 1), delta)


def _of_local(mechanism: mechanisms.LocalMechanism, delta: float) -> float:
  """Lower bound for answers with noise of the client's own."""
  epsilon, queries = mechanism.epsilon, mechanism.queries
  if delta == 0:
    return epsilon * queries * (1 - 1e-9)
  if mechanism.mechanism == 'duchi':
    p = np.array([1.0, math.exp(-epsilon)]) / (1 + math.exp(-epsilon))
    q = p[::-1]
  elif mechanism.mechanism == 'piecewise':
    inside = math.exp(epsilon / 2) / (1 + math.exp(epsilon / 2))
    p = np.array([inside, 1 - inside * (1 + math.exp(-epsilon)),
                  inside * math.exp(-epsilon)])
    q = p[::-1]
  else:
    edges = np.concatenate([[-np.inf], np.linspace(0, epsilon, 2000), [np.inf]])
    p = np.diff(stats.laplace.cdf(edges))
    q = np.diff(stats.laplace.cdf(edges - epsilon))
  return attacks.composed(p, q, queries, delta)


def lower_bounds(mechanism: mechanisms.Mechanism, query: answers.Query
                 ) -> dict[str, float]:
  """Key of an answer -> the largest epsilon that an attack attains."""
  name = mechanism.mechanism
  if name in ('nfdp', 'none'):
    return {'epsilon': 0.0 if name == 'nfdp' else math.inf}
  if name in ('ae_vote', 'knn_vote'):
    return {'epsilon': _of_votes(mechanism, query.delta)}
  if name not in SUMS:
    return {'epsilon': _of_local(mechanism, query.delta)}
  if mechanism.sampling == 'turns':
    return turns.lower_bounds(mechanism, query, noises(mechanism))
  keys = dict(worlds.ATTACKS)
  if 'colluders' not in mechanism.family.uses:
    del keys['epsilon_participant']
  if query.clients_per_person == 1:
    del keys['epsilon_person'], keys['epsilon_server_person']
  found = dict.fromkeys(keys, 0.0)
  for noise in noises(mechanism):
    if noise.shift == 0:
      continue  # No client moves the sum by a unit of the grid.
    one = world(mechanism, query, noise)
    bound_by = {key: attack(one) for key, attack in keys.items()}
    if one.is_tiny:
      enumerated = worlds.enumerated(one)
      bound_by = {key: max(epsilon, enumerated.get(key, 0.0))
                  for key, epsilon in bound_by.items()}
    found = {key: max(epsilon, bound_by[key]) for key, epsilon in found.items()}
  # Whoever knows cohorts knows the models.
  for key, more in (('epsilon', 'epsilon_server'),
                    ('epsilon_person', 'epsilon_server_person')):
    if key in found:
      found[more] = max(found[more], found[key])
  return found


# Rows.


def excess(printed: float, lower: float) -> float:
  """By how much a number is above a lower bound, relative; negative if below."""
  if lower == math.inf:
    return 0.0 if printed == math.inf else -math.inf
  return (printed - lower) / max(lower, _SMALL)


def row(seed: int, index: int, takes_turns: bool = False) -> dict[str, Any]:
  """One setting: what is printed, the lower bounds, and the excess of each number."""
  settings, question = drawn(seed, index, takes_turns)
  result = {'name': f'{seed}-{index}', 'kind': settings['mechanism'],
            'settings': settings, 'query': question}
  start = time.perf_counter()
  try:
    mechanism = mechanisms.build(**settings)
    query = answers.Query(kind='epsilon', **question)
    answer = answers.answer(query, mechanism)
  except ValueError as error:
    return {**result, 'refused': str(error)}
  found = {key: getattr(answer, observer) for observer, key in bounds.KEYS.items()}
  printed = {key: bound.epsilon for key, bound in found.items() if bound is not None}
  if settings['mechanism'] != 'none' and answer.delta:
    query = answers.Query(kind='epsilon', **{**question, 'delta': answer.delta})
  middle = time.perf_counter()
  lower = lower_bounds(mechanism, query)
  numbers = {}
  for key, value in printed.items():
    if key not in lower:
      numbers[key] = {'printed': value, 'unchecked': True}
      continue
    over = excess(value, lower[key])
    numbers[key] = {'printed': value, 'lower': lower[key], 'excess': over}
    if over > LARGE:
      numbers[key]['reason'] = reason(mechanism, key, found[key])
  return {**result, 'numbers': numbers, 'seconds': [
      round(middle - start, 4), round(time.perf_counter() - middle, 4)]}


def reason(mechanism: mechanisms.Mechanism, key: str, bound: bounds.Bound) -> str:
  """Why a number may be well above the attack: the first rule that fits."""
  kind, settings = mechanism.mechanism, mechanism
  if kind == 'nfdp':
    return 'published theorem (epsilon 0 holds too)'
  if kind not in SUMS:
    return 'one pair stands for all such mechanisms'
  is_hidden, is_person = key in ('epsilon', 'epsilon_person'), 'person' in key
  sampling, is_vector = settings.sampling, kind in ('skellam', 'skellam_central')
  is_drawn = key != 'epsilon_server_any_cohorts'
  suppresses = settings.assumed_colluders or (
      settings.dropout_rate and settings.min_honest_fraction < 1)
  limited = _is_limited(mechanism)
  noise = noises(mechanism)
  rules = (
      (not bound.is_finite, 'no finite number'),
      (kind == 'discrete_gaussian', 'Renyi only (discrete Gaussian)'),
      (len(noise) > 1, 'attack on the vector or on the count of the clip alone'),
      (is_hidden and sampling == 'epochs', 'epochs: nothing is taken to be hidden'),
      (is_hidden and sampling == 'fixed' and is_person,
       'fixed size: from neighbour to neighbour, or weak attack'),
      (is_hidden and sampling == 'fixed', 'fixed size: one pair for two worst inputs'),
      (is_vector and mechanism.params().noise_variance < 400**2,
       'certificate of small variance, or none'),
      (is_vector and (bound.accountant == 'rdp' or bound.epsilon > 300),
       'Renyi: no certificate at such an epsilon'),
      (sampling == 'turns' and is_person,
       'turns: triangle inequality, or no amplification for a person'),
      (sampling == 'turns' and noise[0].is_skellam,
       'turns: one row of each is attacked'),
      (sampling == 'turns' and is_hidden and mechanism.turn_rate < 1,
       'turns: the last turn of two or more is not attacked'),
      (sampling == 'turns' and key == 'epsilon_participant',
       'turns: one participant attacks, its own rows alone, of full cohorts'),
      (suppresses and sampling == 'poisson' and is_drawn,
       'suppression: the attack has the stated dropouts, or none'),
      (settings.min_cohort_size and limited and is_drawn,
       'limit with a minimum cohort: draws depend on each other'),
      (settings.min_cohort_size and is_drawn, 'minimum cohort'),
      (is_hidden and limited,
       'limit: number of no limit, or attack on the first rounds'),
      (is_person and limited,
       'limit: rounds with several of the clients are not attacked'),
      (key == 'epsilon_participant' and limited,
       'limit: cohorts attacked as large as without'),
      (key == 'epsilon_server_person' and sampling == 'epochs',
       'epochs: rounds with several of the clients are not attacked'),
      (settings.adaptive_clipping, 'count of the clip: a certificate of small '
       'variance, or attacked with all the noise there is'),
      (noise[0].is_skellam and is_hidden and is_person,
       'Skellam noise: rounds as if with all clients whenever with any'),
      (noise[0].is_skellam and key == 'epsilon_server_person',
       'Skellam noise: rounds attacked as if with equally many clients'),
      (noise[0].is_skellam and 'server' in key, 'attack on the sum of few integers'),
      (noise[0].is_skellam and key == 'epsilon_participant',
       'weak attack: its own share is not used'),
      (is_vector and mechanism.params().l2_sensitivity_squared < 10_000,
       'few units of the grid: the attack is an integer below the norm'),
      (key == 'epsilon_participant',
       'sizes of cohorts in classes, a convex majorant, or a weak attack'))
  return next((text for fits, text in rules if fits), UNEXPLAINED)


# Summaries.


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
  """Tables in Markdown: the excess of each number, and reasons of large ones."""
  every = [(line, key, number) for line in rows
           for key, number in line.get('numbers', {}).items()]
  groups = collections.defaultdict(list)
  for line, key, number in every:
    if 'excess' in number:
      groups[key, line['kind']].append(number)
      groups[key, 'all'].append(number)
  head = ['number', 'mechanism', 'compared', 'below', 'infinite',
          *(f'excess, {quantile:.0%}' for quantile in _QUANTILES), 'above 2%']
  lines = [f'{len(rows)} settings, {sum("refused" in line for line in rows)} refused, '
           f'{sum("excess" in number for *_, number in every)} numbers compared, '
           f'{sum("excess" not in number for *_, number in every)} not compared.', '',
           _cells(head), _cells(['---'] * len(head))]
  for (key, kind), numbers in sorted(groups.items()):
    over = np.array([number['excess'] for number in numbers])
    finite = over[np.isfinite(over)]
    lines.append(_cells([
        key, kind, over.size, sum(map(is_below, numbers)),
        int((over == math.inf).sum()),
        *(_percent(np.quantile(finite, quantile)) if finite.size else ''
          for quantile in _QUANTILES), int((over > LARGE).sum())]))
  lines += ['', _cells(['number', 'reason of an excess above 2%', 'settings', 'median',
                        'most', 'setting with the most']), _cells(['---'] * 6)]
  reasons = collections.defaultdict(list)
  for line, key, number in every:
    if 'reason' in number:
      reasons[key, number['reason']].append((number['excess'], line['name']))
  for (key, text), found in sorted(reasons.items()):
    values = [value for value, _ in found]
    lines.append(_cells([key, text, len(found), _percent(np.median(values)),
                         _percent(max(values)), max(found)[1]]))
  lines += ['', 'The settings, in the order of the table:', '', *(
      f'* {key}, {text}: ' + ', '.join(sorted(
          (name.partition('-')[2] for _, name in found), key=int))
      for (key, text), found in sorted(reasons.items()))]
  return '\n'.join(lines)


def _percent(value: float) -> str:
  return f'{value:.2%}' if value < 10 else f'{1 + value:.3g} times'


def _cells(values: Iterable[Any]) -> str:
  return f'| {" | ".join(map(str, values))} |'


def is_below(number: Mapping[str, Any]) -> bool:
  """Whether a number is below the attack, by more than rounding."""
  return number.get('excess', 0.0) < -1e-7


def above(rows: Sequence[Mapping[str, Any]]) -> Iterator[list[Any]]:
  """The numbers below an attack, and those more than 2% above it, with settings."""
  for line in rows:
    for key, number in line.get('numbers', {}).items():
      if is_below(number) or 'reason' in number:
        yield [line['name'], key, number['printed'], number['lower'], number['excess'],
               'BELOW' if is_below(number) else number['reason'],
               json.dumps({**line['settings'], **line['query']})]


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs the script; returns its exit status, 1 if a number is below an attack."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--settings', type=int, help='number of settings, 10,000 if none '
                      'is given')
  parser.add_argument('--seed', type=int, default=0, help='seed of the settings')
  parser.add_argument('--output_dir', help='folder of results.jsonl and above.csv, '
                      'out/epsilons if none is given')
  parser.add_argument('--document', help='page that the summary is written to')
  parser.add_argument('--quick', action='store_true', help='few settings')
  parser.add_argument('--turns', action='store_true', help='clients who take turns')
  flags = parser.parse_args(arguments)
  folder = pathlib.Path(flags.output_dir or (
      'out/epsilons_quick' if flags.quick else 'out/epsilons'))
  folder.mkdir(parents=True, exist_ok=True)
  known = documents.read(folder)
  rows = []
  with open(folder / documents.RESULTS, 'a', encoding='utf-8') as file:
    file.write('\n')  # The last line may have been cut off.
    for index in range(flags.settings or (24 if flags.quick else 10_000)):
      line = known.get(f'{flags.seed}-{index}')
      if line is None:
        line = row(flags.seed, index, flags.turns)
        print(json.dumps(line), file=file, flush=True)
        for key, number in line.get('numbers', {}).items():
          if is_below(number):
            print(f'BELOW: {key} {number}, {line["settings"]}, {line["query"]}',
                  flush=True)
      rows.append(line)
  with open(folder / 'above.csv', 'w', encoding='utf-8', newline='') as file:
    csv.writer(file).writerows([
        ['setting', 'number', 'printed', 'attack', 'excess', 'reason', 'settings'],
        *above(rows)])
  content = summary(rows)
  print(content)
  if flags.document:
    write_atomically(pathlib.Path(flags.document), f'{_TITLE}\n\n{content}\n')
  return int(any(is_below(number) for line in rows
                 for number in line.get('numbers', {}).values()))


if __name__ == '__main__':
  raise SystemExit(main())
