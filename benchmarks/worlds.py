"""Laws of cohorts, and the attacks on a setting, from its numbers alone.

Independent of the accountant, like `attacks`: what a scheme samples is restated here
from its description, and for two rounds of few clients it is enumerated.
"""

import collections
from collections.abc import Callable, Iterator
import dataclasses
import functools
import itertools
import math

import numpy as np
from scipy import stats

from benchmarks import attacks
from benchmarks.attacks import Law, Noise

# Points of the grid of a random sum, and the largest product of states of a chain.
_POINTS = 2**15
_MOST_STATES = 3e7
_TAIL = 1e-4  # As in `attacks`, a fraction of delta.
_SLACK = 0.05  # The same of rounds that are suppressed, or can't be drawn.


@dataclasses.dataclass(frozen=True, kw_only=True)
class World:
  """The numbers of a setting that an attack needs.

  Attributes:
    noise: Noise that a round counts on, alongside a contribution of one client.
    sampling: 'poisson', 'fixed', 'epochs' or 'none'.
    population, cohort_size, rounds: Sizes.
    replaces: Whether a client is replaced by another one, and not by zero.
    limit: Maximum number of rounds of one client; None for no limit.
    least: Minimum cohort, by drawing again; None for none.
    honest: Fraction h of the shares of noise that is counted on.
    colluders: Assumed colluders, by whom rounds are suppressed.
    dropout_rate: Upper bound of it.
    surviving: Fraction of the noise that is there.
    participants: Participants who pool what they know.
    person: Clients of a person.
    delta: Delta.
  """

  noise: Noise
  sampling: str
  population: int
  cohort_size: float
  rounds: int
  replaces: bool = False
  limit: int | None = None
  least: int | None = None
  honest: float = 1.0
  colluders: int = 0
  dropout_rate: float = 0.0
  surviving: float = 1.0
  participants: int = 1
  person: int = 1
  delta: float

  @property
  def rate(self) -> float:
    return self.cohort_size / self.population

  @property
  def smallest_opened(self) -> int:
    """The minimum cohort of an opened round if no client drops out."""
    if self.colluders == 0:
      return 0
    return math.ceil(self.colluders / (1 - self.honest * (1 - 1e-9)) * (1 - 1e-12))

  @property
  def is_tiny(self) -> bool:
    """Whether it can be enumerated: few clients, two rounds, and none suppressed."""
    return self.population <= 4 and self.rounds <= 2 and self.smallest_opened <= 1 and (
        not self.dropout_rate or self.honest == 1)

  @property
  def unseen(self) -> 'World':
    """The same with all the noise that there is, h or not."""
    return dataclasses.replace(self, noise=self.noise.scaled(1 / self.honest))

  @property
  def slack(self) -> float:
    """Probability that with a limit some round is suppressed, or can't be drawn."""
    if self.limit is None or self.limit >= self.rounds and self.smallest_opened <= 1:
      return 0.0
    found = 0.0
    if self.smallest_opened > 1:
      available = stats.binom.cdf(self.limit - 1, self.rounds - 1, self.rate)
      found += self.rounds * float(stats.binom.cdf(
          self.smallest_opened - 2, self.population - 1, self.rate * available))
    if self.least:
      # Drawing again takes more of the others, at most by this factor if enough are
      # left throughout.
      for factor in (1 + 1e-6, 2.0):
        available = stats.binom.cdf(self.limit - 1, self.rounds - 1,
                                    min(1.0, factor * self.rate))
        if factor * stats.binom.sf(self.least - 1, self.population - 1,
                                   self.rate * available) >= 1:
          break
      found += float(stats.binom.cdf(self.least - 1, self.population - 1, available))
    return min(1.0, found)


  @property
  def attacked(self) -> 'World':
    """The first rounds, in which that is improbable."""
    if self.slack <= _SLACK * self.delta:
      return self
    low, high = 1, self.rounds
    while high - low > 1:
      middle = (low + high) // 2
      if dataclasses.replace(self, rounds=middle).slack <= _SLACK * self.delta:
        low = middle
      else:
        high = middle
    return dataclasses.replace(self, rounds=low)


def point(value: float) -> Law:
  """The law of a constant."""
  return np.array([float(value)]), np.ones(1)


def binomial(trials: int, chance: float, limit: int | None = None) -> Law:
  """Binomial numbers, those above a limit as the limit."""
  values = np.arange(trials + 1.0)
  weights = stats.binom.pmf(values, trials, min(1.0, chance))
  if limit is not None and limit < trials:
    weights = np.append(weights[:limit], weights[limit:].sum())
    values = values[:limit + 1]
  return values, weights


def of_round(world: World, clients: int, dropout_rate: float = 0.0) -> Law:
  """Law of how many of some clients are in a sum that is opened, without a limit.

  What it lacks to 1 is the probability that a round is suppressed.
  """
  values, n, q = np.arange(clients + 1.0), world.population, world.rate
  if world.sampling == 'none':
    return point(clients)
  if world.sampling == 'fixed':
    return values, stats.hypergeom.pmf(values, n, clients, int(world.cohort_size))
  weights = stats.binom.pmf(values, clients, q)
  if world.limit is not None:
    return values, weights
  if dropout_rate:
    return values, weights_of_dropouts(world, dropout_rate)
  least, opened = world.least or 0, max(world.least or 0, world.smallest_opened)
  others = stats.binom(n - clients, q)
  kept = float(weights @ others.sf(least - values - 1))
  return values, weights * others.sf(opened - values - 1) / kept


def weights_of_dropouts(world: World, dropout_rate: float) -> np.ndarray:
  """Probabilities that an opened sum is without and with a client, if some drop out."""
  q, stay = world.rate, 1 - dropout_rate
  others = stats.binom(world.population - 1, q)
  low, high = others.ppf(1e-13), others.isf(1e-13)
  selected = np.unique(np.rint(np.linspace(low, high, int(min(high - low + 1, 4000)))))
  if selected.size < high - low + 1:
    return np.zeros(2)  # Hardly a round is suppressed.
  chances = others.pmf(selected)

  def opened(is_selected: int, is_present: int) -> float:
    needed = np.ceil(world.honest * (1 - 1e-9) * (selected + is_selected)
                     + world.colluders - is_present)
    return float(chances @ stats.binom.sf(needed - 1, selected, stay))

  return np.array([(1 - q) * opened(0, 0) + q * dropout_rate * opened(1, 0),
                   q * stay * opened(1, 1)])


def rounds_of_client(world: World) -> Law:
  """Law of the number of rounds of a client, cohorts drawn by the rule."""
  total, n, cohort = world.rounds, world.population, world.cohort_size
  if world.sampling == 'none':
    return point(total)
  if world.sampling == 'epochs':
    whole, rest = divmod(total * int(cohort), n)
    return np.array([whole, whole + 1.0]), np.array([1 - rest / n, rest / n])
  if world.limit is not None:
    return binomial(total, world.rate, world.limit)
  return binomial(total, float(of_round(world, 1)[1][1]))


def most_rounds(world: World) -> int:
  """The number of rounds of a client, if the server chooses the cohorts."""
  if world.sampling == 'epochs':
    return -(-world.rounds * int(world.cohort_size) // world.population)
  return min(world.rounds, world.limit or world.rounds)


def _powered(values: np.ndarray, weights: np.ndarray, count: int) -> Law:
  """Law of the sum of `count` independent integers >= 0."""
  size = 1 << int(values.max() * count).bit_length()
  masses = np.bincount(values.astype(int), weights, size)
  found = np.fft.irfft(np.fft.rfft(masses)**count, size)
  found = np.where(found > 1e-15 * (count + 100), found, 0.0)
  return np.arange(size, dtype=float), found


def squares_of_person(world: World) -> Law:
  """Law of the sum over rounds of the squared number of clients of a person."""
  g, total, n = world.person, world.rounds, world.population
  if world.sampling == 'epochs':
    cohort = int(world.cohort_size)
    if n % cohort == 0 and total * cohort >= n:
      each = _squares_of_epoch(n, cohort, g)
      return _powered(*map(np.array, zip(*each.items())), total * cohort // n)
    values, weights = rounds_of_client(world)  # Rounds with several are left out.
    return _powered(values, weights, g)
  if world.limit is None or world.sampling != 'poisson':
    values, weights = of_round(world, g)
    return _powered(values**2, np.append(1 - weights[1:].sum(), weights[1:])
                    if values.size > 1 else weights, total)
  if g == 2 and (law := _rounds_of_two(world)):
    found = np.bincount(law[0] @ [1, 4], law[1])
    return np.arange(found.size, dtype=float), found
  return _powered(*binomial(total, world.rate, world.limit), g)


def _squares_of_epoch(population: int, cohort: int, clients: int) -> dict[int, float]:
  """Sum of the squared numbers of clients in the cohorts of an epoch -> probability."""
  states = {(0,): 1.0}
  for before in range(clients):
    following = collections.Counter()
    for counts, chance in states.items():
      for index, count in enumerate(counts):
        # The last entry stands for all cohorts without any of the clients.
        places = cohort - count if count else (
            population - cohort * (len(counts) - 1))
        if places > 0:
          added = counts[:index] + (count + 1,) + counts[index + 1:]
          following[tuple(sorted(added if count else added + (0,), reverse=True))] += (
              chance * places / (population - before))
    states = following
  result = collections.Counter()
  for counts, chance in states.items():
    result[sum(count**2 for count in counts)] += chance
  return dict(result)


def _rounds_of_two(world: World) -> Law | None:
  """Law of the rows (rounds with one of two clients, with both) with a limit.

  By a chain over rounds; None if it has too many states.
  """
  rounds, rate, limit = world.rounds, world.rate, world.limit
  if rounds * (limit + 1)**3 > _MOST_STATES:
    return None
  states = np.zeros([limit + 1] * 3)  # Rounds of each, and those with both.
  states[0, 0, 0] = 1.0
  first = np.where(np.arange(limit + 1) < limit, rate, 0.0)[:, None, None]
  second = first.reshape(1, -1, 1)
  for _ in range(rounds):
    following = states * (1 - first) * (1 - second)
    following[1:] += (states * first * (1 - second))[:-1]
    following[:, 1:] += (states * (1 - first) * second)[:, :-1]
    following[1:, 1:, 1:] += (states * first * second)[:-1, :-1, :-1]
    states = following
  first, second, both = np.nonzero(states)
  table = np.zeros([2 * limit + 1, limit + 1])
  np.add.at(table, (first + second - 2 * both, both), states[first, second, both])
  one, both = np.nonzero(table)
  return np.stack([one, both], axis=1), table[one, both]


def losses_to_participants(world: World) -> Law:
  """Law of the sum over a client's rounds of 1 over the fraction of noise left."""
  n, q, k = world.population, world.rate, min(world.participants, world.population - 1)
  counts, weights = rounds_of_client(world)
  if world.sampling != 'poisson':
    cohort = n if world.sampling == 'none' else world.cohort_size
    left = max(1e-6, 1 - min(k, cohort - 1) / (world.surviving * cohort))
    return counts / left, weights
  others = stats.binom(n - 1 - k, q)
  sizes = 1 + k + np.arange(others.ppf(1e-15), others.isf(1e-15) + 1)
  sizes = sizes[sizes >= max(world.least or 0, world.smallest_opened)]
  if not sizes.size:
    return counts, weights
  chances = others.pmf(sizes - 1 - k)
  chances /= chances.sum()
  each = 1 / np.maximum(1e-6, 1 - k / (world.surviving * sizes))
  return _random_sum((counts, weights), (each, chances), world.delta)


def _random_sum(count: Law, each: Law, delta: float) -> Law:
  """Law of a random number of independent values >= 1, not above the true one.

  Values are rounded at random to neighbours on a grid, so that their means stay; what
  that may add is subtracted from the sum, but for a small fraction of delta.
  """
  counts, weights = attacks.pruned(count, _TAIL * delta, 10**6)
  values, chances = each
  if not counts.size:
    return count
  most, tail = float(counts.max()), _TAIL * delta
  # Values that are too rare to matter are made smaller.
  order = np.argsort(values)
  values, chances = values[order], chances[order]
  rare = most * np.cumsum(chances[::-1])[::-1] < tail
  values = np.where(rare, values[~rare].max(initial=values[0]), values)
  step = most * float(values.max()) / (_POINTS - 2)
  low = np.floor(values / step).astype(int)
  up = values / step - low
  masses = (np.bincount(low, chances * (1 - up), _POINTS) +
            np.bincount(low + 1, chances * up, _POINTS))
  one = np.fft.rfft(masses)
  total = np.zeros_like(one)
  weight_of = dict(zip(counts.astype(int).tolist(), weights.tolist()))
  least = int(counts.min())
  for number in range(int(most), least - 1, -1):
    total = total * one + weight_of.get(number, 0.0)
  found = np.fft.irfft(total * one**least, _POINTS)
  reach = step * math.sqrt(most / 2 * math.log(1 / tail))
  sums = np.arange(_POINTS) * step - reach
  found = np.where((found > 1e-14) & (sums > 0), found, 0.0)
  return np.maximum(sums, 1e-12), found


# Lower bounds by the keys of the answers.


def outsiders(world: World) -> float:
  """Lower bound for observers of the models."""
  return _hidden(world.unseen.attacked, 1)


def person(world: World) -> float:
  """Lower bound for observers of the models, of a person with several clients."""
  return max(_hidden(world.unseen.attacked, clients) for clients in {1, world.person})


def _hidden(world: World, g: int) -> float:
  noise, total, delta = world.noise, world.rounds, world.delta
  if world.sampling == 'none' or world.cohort_size == world.population and (
      world.limit is None):
    return _known(world, point(total), (2 if world.replaces else 1) * g)
  if world.sampling == 'epochs':
    values, weights = rounds_of_client(world)
    return attacks.allocated(noise, (values[:, None], weights), total, delta)
  if world.sampling == 'fixed':
    values, weights = of_round(world, g)
    pairs = [((2 * values, weights), point(0))]
    if not world.replaces:
      pairs = [((2 * values, weights), (values, weights)),
               ((values, weights), point(0))]
    return max(attacks.hidden(noise, one, other, total, delta) for one, other in pairs)
  if world.limit is None:
    return max(attacks.hidden(noise, (values, weights), (np.zeros(1), np.array(
        [weights.sum()])), total, delta) for values, weights in _rounds(world, g))
  delta += world.slack
  if delta >= 1:
    return 0.0
  found = []
  law = _rounds_of_two(world) if g == 2 else None
  if g == 1:
    values, weights = rounds_of_client(world)
    law = values[:, None], weights
  if law is not None:
    found.append(attacks.allocated(noise, law, total, delta))
  # The first rounds, in which the limit is hardly met.
  for fraction in (0.02, 0.5):
    count = _rounds_below_limit(world, g, fraction * delta)
    law = of_round(world, g)
    if count:
      found.append(attacks.hidden(noise, law, point(0), count, delta * (1 + fraction)))
  return max(found, default=0.0)


def _rounds(world: World, g: int) -> Iterator[Law]:
  """Laws of a round without a limit, with and without dropouts."""
  yield of_round(world, g)
  if world.dropout_rate and g == 1 and world.least is None and (
      world.honest < 1 or world.colluders):
    law = of_round(world, g, world.dropout_rate)
    if law[1][1]:
      yield law


def _rounds_below_limit(world: World, g: int, chance: float) -> int:
  """The largest number of rounds in which a limit is met with this probability."""
  low, high = min(world.limit, world.rounds), world.rounds + 1
  while high - low > 1:
    middle = (low + high) // 2
    if g * stats.binom.sf(world.limit, middle, world.rate) <= chance:
      low = middle
    else:
      high = middle
  return low


def _known(world: World, law: Law, shift: float = 1.0) -> float:
  delta = world.delta + world.slack
  noise = dataclasses.replace(world.noise, shift=shift * world.noise.shift)
  return attacks.known(noise, law, delta) if delta < 1 else 0.0


def server(world: World) -> float:
  """Lower bound for whoever knows cohorts that are drawn by the rule."""
  world = world.attacked
  return _known(world, rounds_of_client(world), 2 if world.replaces else 1)


def server_any_cohorts(world: World) -> float:
  """Lower bound for a server that chooses the cohorts."""
  return _known(dataclasses.replace(world, limit=None), point(most_rounds(world)),
                2 if world.replaces else 1)


def participant(world: World) -> float:
  """Lower bound for participants who are in all rounds of a client."""
  world, shift = world.unseen.attacked, 2 if world.replaces else 1
  if world.noise.is_skellam:  # What they know of the noise is not used.
    return _known(world, rounds_of_client(world), shift)
  return _known(world, losses_to_participants(world), shift)


def person_server(world: World) -> float:
  """Lower bound for whoever knows drawn cohorts, of a person with several clients."""
  world, shift = world.attacked, 2 if world.replaces else 1
  if not world.noise.is_skellam:
    return _known(world, squares_of_person(world), shift)
  if world.sampling == 'epochs' or world.limit is not None:
    return _known(world, rounds_of_client(world), shift)
  values, weights = of_round(world, world.person)
  # Rounds with at least k clients, as if with k.
  return max(_known(world, binomial(world.rounds, weights[values >= k].sum()),
                    k * shift) for k in range(1, world.person + 1))


# The keys of answers about sums.
ATTACKS: dict[str, Callable[[World], float]] = {
    'epsilon': outsiders, 'epsilon_server': server,
    'epsilon_server_any_cohorts': server_any_cohorts,
    'epsilon_participant': participant, 'epsilon_person': person,
    'epsilon_server_person': person_server}


# Enumeration of two rounds of few clients.


@functools.lru_cache(maxsize=256)
def sequences(sampling: str, population: int, cohort_size: float, rounds: int,
              limit: int | None, least: int | None
              ) -> dict[tuple[frozenset[int], ...], float]:
  """All cohorts of the rounds and their probability, step by step as they are drawn."""
  clients, found = range(population), collections.Counter()
  every = [frozenset(chosen) for size in range(population + 1)
           for chosen in itertools.combinations(clients, size)]
  if sampling == 'epochs':
    for orders in itertools.product(itertools.permutations(clients), repeat=rounds):
      found[_epochs(orders, int(cohort_size), rounds)] += 1 / len(
          list(itertools.permutations(clients)))**rounds
    return dict(found)
  q = cohort_size / population

  def drawn(before: tuple[frozenset[int], ...]) -> dict[frozenset[int], float]:
    if sampling == 'none':
      return {frozenset(clients): 1.0}
    if sampling == 'fixed':
      fitting = [one for one in every if len(one) == cohort_size]
      return dict.fromkeys(fitting, 1 / len(fitting))
    full = {c for c in clients if limit and sum(c in one for one in before) >= limit}
    chances = collections.Counter()
    for one in every:
      chances[one - full] += q**len(one) * (1 - q)**(population - len(one))
    kept = {one: chance for one, chance in chances.items() if len(one) >= (least or 0)}
    if not sum(kept.values()):
      return {frozenset(): 1.0}  # The run ends with an error.
    return {one: chance / sum(kept.values()) for one, chance in kept.items() if chance}

  found[()] = 1.0
  for _ in range(rounds):
    following = collections.Counter()
    for before, chance in found.items():
      for one, share in drawn(before).items():
        following[*before, one] += chance * share
    found = following
  return dict(found)


def _epochs(orders: tuple[tuple[int, ...], ...], cohort: int, rounds: int
            ) -> tuple[frozenset[int], ...]:
  """The cohorts that are taken from one order after another."""
  result, order, upcoming = [], [], iter(orders)
  for _ in range(rounds):
    taken, order = order[:cohort], order[cohort:]
    if len(taken) < cohort:
      following = list(next(upcoming))
      first = [c for c in following if c not in taken][:cohort - len(taken)]
      order = [c for c in following if c not in first]
      taken = taken + first
    result.append(frozenset(taken))
  return tuple(result)


def enumerated(world: World) -> dict[str, float]:
  """Lower bounds of a setting of few clients and one or two rounds, by enumeration.

  Of all observers who are not participants, as `ATTACKS`, where no round is suppressed.
  """
  chances = sequences(world.sampling, world.population, world.cohort_size, world.rounds,
                      world.limit, world.least)
  result, scale = {}, 2 if world.replaces else 1
  noise = dataclasses.replace(world.noise, shift=scale * world.noise.shift)
  for clients, hidden_key, known_key in (
      (1, 'epsilon', 'epsilon_server'),
      (world.person, 'epsilon_person', 'epsilon_server_person')):
    rows, squares = collections.Counter(), collections.Counter()
    for cohorts, chance in chances.items():
      row = tuple(sum(c < clients for c in cohort) for cohort in cohorts)
      rows[row] += chance
      squares[sum(k * k for k in row)] += chance
    # Others contribute nothing; if a client is replaced, the opposite.
    result[hidden_key] = attacks.patterns(
        noise.scaled(1 / world.honest), dict(rows), world.delta)
    if not noise.is_skellam or clients == 1:
      values = sorted(squares)
      result[known_key] = attacks.known(noise, (
          np.array(values, float), np.array([squares[v] for v in values])), world.delta)
  return result
