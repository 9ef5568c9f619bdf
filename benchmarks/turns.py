"""Settings of clients who take turns, and attacks on rows of weighted sums.

Like `worlds` independent of the accountant: the schedule is restated from its
description, round by round, for the client whose turns are the earliest.
"""

from collections.abc import Sequence
import dataclasses
import math
from typing import Any

import numpy as np
from scipy import stats

from benchmarks import attacks, worlds
from tff_pipelines.accounting.guarantees import answers, mechanisms



def draw(draw_: Any, settings: dict[str, Any], query: dict[str, Any]) -> None:
  """Adds the settings of rounds of a sum by clients who take turns."""
  size = draw_.integer(1, 3000)
  population = draw_.integer(size, 200 * size)
  bands = draw_.integer(1, min(34, population // size))
  column = (1,) if bands == 1 else tuple(
      draw_.integer(1, 16) if draw_.chance(0.5) else max(1, 16 - index)
      for index in range(bands))
  rate = 1.0 if draw_.chance(0.6) else draw_.log(0.01, 1)
  settings.update(
      sampling='turns', population=population, rounds=draw_.integer(1, 3000),
      noise_multiplier=draw_.log(0.3, 20), column=column, turn_rate=rate,
      cohort_size=size if rate == 1 else max(1.0, size * rate))
  settings.pop('adaptive_clipping', None)
  if rate < 1:  # Rounds may be suppressed, which is not attacked.
    for name in ('assumed_colluders', 'dropout_rate', 'min_honest_fraction'):
      settings.pop(name, None)
  if 'clients_per_person' in query:
    query['clients_per_person'] = min(query['clients_per_person'], population)


@dataclasses.dataclass(frozen=True)
class Schedule:
  """The turns of a run, by positions in the order."""

  column: tuple[int, ...]
  size: int
  population: int
  rounds: int

  def turns(self, position: int) -> list[int]:
    """The rounds, from 0, of the turns of a client."""
    found = [(position + cycle * self.population) // self.size
             for cycle in range(self.rounds * self.size // self.population + 1)]
    return [turn for turn in found if turn < self.rounds]

  def shown(self, position: int) -> list[np.ndarray]:
    """The weights of a client's contributions in the rows of each turn."""
    return [np.array(self.column[:self.rounds - turn], float)
            for turn in self.turns(position)]

  def moved(self, positions: Sequence[int]) -> float:
    """Sum of squares of what the contributions of several clients move all rows by."""
    rows = np.zeros(self.rounds)
    for position in positions:
      for turn, weights in zip(self.turns(position), self.shown(position)):
        rows[turn:turn + weights.size] += weights
    return float(rows @ rows)

  def known_to(self, other: int, left: float) -> float:
    """Sum of squares over the noise left, if `left` is in the rows of a participant."""
    theirs = set(self.turns(other))
    return sum(weight**2 / (left if turn + index in theirs else 1.0)
               for turn, weights in zip(self.turns(0), self.shown(0))
               for index, weight in enumerate(weights))


def _coins(squares: list[float], rate: float) -> worlds.Law:
  """Distribution of the sum over the turns that a client is sampled in."""
  full, last = squares[:-1], squares[-1]
  numbers = np.arange(len(full) + 1)
  chances = stats.binom.pmf(numbers, len(full), rate)
  values = numbers * (full[0] if full else 0.0)
  order = np.argsort(both := np.concatenate([values, values + last]), kind='stable')
  return both[order], np.concatenate([chances * (1 - rate), chances * rate])[order]


def lower_bounds(mechanism: mechanisms.SumMechanism, query: answers.Query,
                 noises: list[attacks.Noise]) -> dict[str, float]:
  """Key of an answer -> the largest epsilon that an attack attains."""
  size = math.ceil(mechanism.cohort_size / mechanism.turn_rate * (1 - 1e-12))
  rate, one = mechanism.cohort_size / size, Schedule(
      mechanism.column, size, mechanism.population, mechanism.rounds)
  noise, delta = noises[0].scaled(mechanism.surviving()), query.delta
  if noise.shift == 0:
    return {}
  unseen = noise.scaled(1 / mechanism.min_honest_fraction)
  squares = [float(weights @ weights) for weights in one.shown(0)]
  if noise.is_skellam:
    # Of each turn the row of the largest weight alone, whose output is an integer.
    largest = max(mechanism.column[:one.rounds])
    noise, unseen = (dataclasses.replace(part, shift=largest * part.shift)
                     for part in (noise, unseen))
    squares = [1.0] * sum(weights.max() == largest for weights in one.shown(0))
  total, hidden = worlds.point(sum(squares)), 0.0
  if rate == 1:
    hidden = attacks.known(unseen, total, delta)
  else:
    turns = max(1, len(squares) - 1)
    moved = dataclasses.replace(unseen, shift=unseen.shift * (
        1 if noise.is_skellam else math.sqrt(squares[0])))
    hidden = attacks.hidden(moved, (np.array([0.0, 1.0]), np.array([1 - rate, rate])),
                            worlds.point(0), turns, delta)
  found = {'epsilon': hidden,
           'epsilon_server': max(hidden, attacks.known(
               noise, _coins(squares, rate), delta)),
           'epsilon_server_any_cohorts': attacks.known(noise, total, delta)}
  if 'colluders' in mechanism.family.uses:
    found['epsilon_participant'] = _participant(
        one, mechanism, unseen, squares, rate, delta)
  if query.clients_per_person > 1:
    person = query.clients_per_person
    moved = one.moved(range(person)) if rate == 1 and not noise.is_skellam else 0.0
    for key, part in (('epsilon', unseen), ('epsilon_server', noise)):
      name = 'epsilon_person' if key == 'epsilon' else 'epsilon_server_person'
      found[name] = max(found[key], attacks.known(
          part, worlds.point(moved), delta) if moved else 0.0)
  return found


def _participant(one: Schedule, mechanism: mechanisms.SumMechanism,
                 noise: attacks.Noise, squares: list[float], rate: float,
                 delta: float) -> float:
  """Lower bound for one participant, in the best of some positions."""
  law = _coins(squares, rate)
  if rate == 1 and not noise.is_skellam and one.population > 1 and one.size > 1:
    left = max(1e-6, 1 - 1 / (mechanism.surviving() * one.size))
    places = {1, *(index * one.size % one.population for index in range(
        1, len(one.column)))} - {0}
    law = worlds.point(max(one.known_to(place, left) for place in places))
  return attacks.known(noise, law, delta)
