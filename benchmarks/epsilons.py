"""Every epsilon of the accountant against lower bounds by concrete attacks.

  python -m benchmarks.epsilons                  # 10,000 settings
  python -m benchmarks.epsilons --quick

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
from collections.abc import Callable, Iterator, Mapping, Sequence
import json
import math
import pathlib
import time
from typing import Any

import numpy as np
from scipy import stats

from benchmarks import attacks, documents, worlds
from tff_pipelines.accounting.events import base
from tff_pipelines.accounting.guarantees import answers, bounds, mechanisms

# An epsilon below this is judged by its absolute excess.
_SMALL = 0.05
LARGE = 0.02  # An excess that needs a reason.
_QUANTILES = (0.5, 0.9, 0.99, 1.0)

SUMS = ('gaussian', 'skellam', 'skellam_central', 'discrete_gaussian', 'skellam_count',
        'none')
_CHANCES = {
    'gaussian': 0.27, 'skellam': 0.3, 'skellam_central': 0.08, 'discrete_gaussian': 0.08,
    'skellam_count': 0.1, 'none': 0.01, 'ae_vote': 0.05, 'knn_vote': 0.04,
    'piecewise': 0.02, 'duchi': 0.02, 'laplace': 0.02, 'nfdp': 0.01}

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


def drawn(seed: int, index: int) -> tuple[Settings, Settings]:
  """The settings of a mechanism, and those of the question about it."""
  draw = Draw(seed, index)
  name = draw.name(_CHANCES)
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


def world(mechanism: mechanisms.SumMechanism, query: answers.Query) -> worlds.World:
  """The numbers of a setting that attacks need."""
  surviving = mechanism.surviving()
  return worlds.World(
      noise=_noise(mechanism).scaled(surviving), sampling=mechanism.sampling,
      population=mechanism.population, cohort_size=mechanism.cohort_size,
      rounds=mechanism.rounds, replaces=mechanism.sampling == 'fixed' and (
          mechanism.fixed_adjacency == base.REPLACE_ONE),
      limit=mechanism.max_participations, least=mechanism.min_cohort_size,
      honest=mechanism.min_honest_fraction, colluders=mechanism.assumed_colluders,
      dropout_rate=mechanism.dropout_rate, surviving=surviving,
      participants=query.colluders, person=query.clients_per_person, delta=query.delta)


def _noise(mechanism: mechanisms.SumMechanism) -> attacks.Noise:
  z = mechanism.noise_multiplier
  if mechanism.mechanism == 'gaussian':
    return attacks.Noise(variance=z * z)
  if mechanism.mechanism == 'skellam_count':
    return attacks.Noise(variance=z * z, is_skellam=True)
  params = mechanism.params()
  found = attacks.vector(
      sensitivity_squared=params.l2_sensitivity_squared,
      coordinates=params.padded_dimension, variance=params.noise_variance)
  if mechanism.mechanism == 'discrete_gaussian' and found.is_skellam:
    # A lattice Gaussian, near which its shares' sum is from some variance on.
    found = attacks.nearly_gaussian(
        1 / found.multiplier, 1 / found.variance, 10.0)
  if mechanism.adaptive_clipping and not found.is_skellam:
    stddev = 2 * (mechanism.clip_count_stddev or 0.05 * mechanism.cohort_size)
    if stddev >= 10:  # The count is nearly Gaussian, and adds to the vector.
      both = math.hypot(found.shift / math.sqrt(found.variance), 1 / stddev)
      return attacks.nearly_gaussian(both, stddev**-6 / both**4, 10.0)
  return found


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
    p, q = np.diff(stats.laplace.cdf(edges)), np.diff(stats.laplace.cdf(edges - epsilon))
  return attacks.composed(p, q, queries, delta)


def lower_bounds(mechanism: mechanisms.Mechanism, query: answers.Query
                 ) -> dict[str, float]:
  """Key of an answer -> the largest epsilon that an attack attains."""
  name = mechanism.mechanism
  if name == 'nfdp' or name == 'none':
    return {'epsilon': 0.0 if name == 'nfdp' else math.inf}
  if name in ('ae_vote', 'knn_vote'):
    return {'epsilon': _of_votes(mechanism, query.delta)}
  if name not in SUMS:
    return {'epsilon': _of_local(mechanism, query.delta)}
  one = world(mechanism, query)
  keys = dict(worlds.ATTACKS)
  if 'colluders' not in mechanism.family.uses:
    del keys['epsilon_participant']
  if one.person == 1:
    del keys['epsilon_person'], keys['epsilon_server_person']
  found = {key: attack(one) for key, attack in keys.items()}
  if one.population <= 4 and one.rounds <= 2 and one.smallest_opened <= 1 and (
      not one.dropout_rate or one.honest == 1):
    for key, epsilon in worlds.enumerated(one).items():
      found[key] = max(found.get(key, 0.0), epsilon)
  # Whoever knows cohorts knows the models.
  found['epsilon_server'] = max(found['epsilon_server'], found['epsilon'])
  if one.person > 1:
    found['epsilon_server_person'] = max(
        found['epsilon_server_person'], found['epsilon_person'])
  return found


# Rows.


def excess(printed: float, lower: float) -> float:
  """By how much a number is above a lower bound, relative; negative if below."""
  if lower == math.inf:
    return 0.0 if printed == math.inf else -math.inf
  return (printed - lower) / max(lower, _SMALL)


def row(seed: int, index: int, answer_of: Callable[..., answers.Answer] = answers.answer
        ) -> dict[str, Any]:
  """One setting: what is printed, the lower bounds, and the excess of each number."""
  settings, question = drawn(seed, index)
  result = {'name': f'{seed}-{index}', 'kind': settings['mechanism'],
            'settings': settings, 'query': question}
  start = time.perf_counter()
  try:
    mechanism = mechanisms.build(**settings)
    query = answers.Query(kind='epsilon', **question)
    answer = answer_of(query, mechanism)
  except ValueError as error:
    return {**result, 'refused': str(error)}
  printed = {key: value for key, value in answer.to_json().items()
             if key.startswith('epsilon') and value is not None}
  if settings['mechanism'] != 'none' and answer.delta:
    query = answers.Query(kind='epsilon', **{**question, 'delta': answer.delta})
  middle = time.perf_counter()
  lower = lower_bounds(mechanism, query)
  numbers = {}
  for key, value in printed.items():
    value = math.inf if value is None else value
    if key not in lower:
      numbers[key] = {'printed': value, 'unchecked': True}
      continue
    over = excess(value, lower[key])
    numbers[key] = {'printed': value, 'lower': lower[key], 'excess': over}
    if over > LARGE:
      numbers[key]['reason'] = reason(settings, question, key, answer)
  return {**result, 'numbers': numbers, 'seconds': [
      round(middle - start, 4), round(time.perf_counter() - middle, 4)]}


def reason(settings: Settings, query: Settings, key: str, answer: answers.Answer) -> str:
  """Why a number may be more than a little above the lower bound, by rules."""
  observer = {key: observer for observer, key in bounds.KEYS.items()}.get(key)
  bound = getattr(answer, observer or '', None)
  return f'{settings["mechanism"]} {getattr(bound, "accountant", None)}'


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
  return ''


def main(arguments: Sequence[str] | None = None) -> int:
  return 0


if __name__ == '__main__':
  raise SystemExit(main())
