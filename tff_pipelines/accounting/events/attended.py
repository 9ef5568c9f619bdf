"""Rounds for observers who know the cohorts: which rounds have the client.

Cohorts are drawn by the rule, independently of all that is released. Then which rounds
have the client, and in cohorts of which sizes, has the same distribution for both inputs,
and the divergence is the mean of the divergences given it (docs/participation.md).
"""

from collections.abc import Callable, Sequence
import dataclasses
import math
from typing import NamedTuple

import numpy as np
from scipy import stats

from tff_pipelines.accounting.divergences import counts, curves, pairs
from tff_pipelines.accounting.events import base
from tff_pipelines.common import caveats as caveats_lib, validate

# Cohorts in which a sum is told apart, and the probabilities at which they begin.
_BEGINS = (0.0, 1e-30, 1e-20, 1e-14, 1e-10, 1e-7, 1e-5, 1e-3, 0.01, 0.05, 0.15, 0.3, 0.5,
           0.7, 0.85, 0.95, 0.99)
# States of two clients in all rounds, beyond which a simpler bound is taken.
_MOST_STATES = 20_000_000
# Probability that fewer clients are counted on than there are.
_FEWER = 1e-20


def mapped(event: base.Event, change: Callable[[base.Event], base.Event]) -> base.Event:
  """An event that has events inside, with these changed."""
  if hasattr(event, 'event'):
    return dataclasses.replace(event, event=change(event.event))
  return dataclasses.replace(event, events=tuple(map(change, event.events)))


def as_gaussian_inside(self, distance: float) -> base.Event:
  """States that the noise is that of the events inside."""
  return mapped(self, lambda event: event.as_gaussian(distance))


def caveats_inside(self) -> tuple[caveats_lib.Caveat, ...]:
  """States that a reader need know no more than of the events inside."""
  return tuple(dict.fromkeys(
      caveat for event in base.parts(self) for caveat in event.caveats()))


def _check_single(event: base.Event) -> None:
  """Raises ValueError for a release that may fail, or that is one of an order's."""
  if event.failure_probability() or event.is_ordered():
    raise ValueError(f'event {type(event).__name__} must not fail, and must not be a '
                     'round of clients who take turns')


class Attended(base.Release, base.WithoutShares):
  """A number of rounds, some of which have the client; which ones is public.

  What its observer knows of the noise is subtracted already.

  Attributes:
    event: The release of a round with the client.
    rounds: Number of rounds, T >= 1.
    probability: Probability that a round has the client, independently of other rounds;
      in (0, 1].
    most: Maximum number of rounds with the client; None for T.
    at_most: Probability that `most` rounds have it, whatever `probability` is.
    failure: Probability that is taken off delta.
    depends: Whether sizes of cohorts are negatively associated, not independent.
    law: Probabilities of 0, 1, ..., `rounds` rounds with the client; empty for those
      that the attributes above give.
  """

  event: base.Inner
  rounds: validate.Count
  probability: validate.Fraction
  most: validate.Count | None = None
  at_most: validate.UnitInterval = 0.0
  failure: validate.UnitInterval = 0.0
  depends: bool = False
  law: tuple[float, ...] = ()

  source = 'docs/participation.md'
  scaled = base.no_known_group
  as_gaussian = as_gaussian_inside
  caveats = caveats_inside

  def __post_init__(self):
    _check_single(self.event)

  @property
  def adjacency(self) -> str:
    return self.event.adjacency

  @property
  def counts(self) -> counts.Counts:
    """The number of rounds with the client."""
    return counts.Counts(first=0, weights=self.law) if self.law else counts.binomial(
        self.rounds, self.probability, self.most, self.at_most)

  def failure_probability(self) -> float:
    return min(1.0, self.counts.missing + self.failure)

  def curve(self, max_order: int, amplification: str) -> np.ndarray:
    number, curve = self.counts, self.event.curve(max_order, 'none')
    return curves.mean([
        times * curve if times else np.zeros_like(curve) for times in number.numbers],
                        number.weights)

  def pure_epsilon(self, amplification: str) -> float:
    return math.inf if self.failure else self.event.pure_epsilon('none') * min(
        self.rounds, self.most or self.rounds)

  def factors(self, amplification: str) -> base.Factors | None:
    inner = self.event.factors('none')
    pair = None if inner is None else pairs.together(inner)
    if pair is None:
      return None
    number, lost = self.counts, self.failure
    if self.depends:
      # That sizes are negatively associated is enough for Gaussian noise alone.
      cases = pair.gaussian_cases()
      if cases is None:
        return None
      # The smallest come first: those that leave nothing are at most so probable.
      pair = _in_convex_order(cases)
      lost = min(1.0, lost + cases.leak * float(
          number.numbers @ np.array(number.weights)))
    leak = ((pairs.Leak(probability=lost), 1),) if lost else ()
    return (pair, number), *leak

  def skellam_coordinates(self) -> int:
    return min(self.rounds, self.most or self.rounds) * self.event.skellam_coordinates()


def _in_convex_order(cases: counts.Cases) -> pairs.Pair:
  """The pair of sizes of cohorts, with the next size in place of those that leak."""
  if not cases.ratios:
    return pairs.Leak(probability=1.0)
  return pairs.Mixed(
      pairs=tuple(pairs.Gaussian(noise_multiplier=ratio**-0.5) for ratio in cases.ratios),
      weights=(cases.weights[0] + cases.leak, *cases.weights[1:]), convex=True)


class Coin(base.Release, base.WithoutShares):
  """One of several releases, chosen by a public coin.

  Attributes:
    events: The releases, at least one.
    weights: Their probabilities, > 0.
  """

  events: base.Several
  weights: tuple[float, ...]

  source = 'docs/participation.md'
  scaled = base.no_known_group
  failure_probability = base.never_fails
  as_gaussian = as_gaussian_inside
  caveats = caveats_inside

  def __post_init__(self):
    if len(self.events) != len(self.weights):
      raise ValueError(f'weights must be as many as events, found {self.weights!r}')
    for weight in self.weights:
      validate.fraction(weights=weight)
    if not abs(sum(self.weights) - 1) < 1e-6:
      raise ValueError(f'weights must add up to 1, found {sum(self.weights)!r}')
    for event in self.events:
      _check_single(event)

  @property
  def adjacency(self) -> str:
    return next((event.adjacency for event in self.events
                 if event.adjacency != base.ANY), base.ANY)

  def curve(self, max_order: int, amplification: str) -> np.ndarray:
    return curves.mean(
        [event.curve(max_order, 'none') for event in self.events], self.weights)

  def pure_epsilon(self, amplification: str) -> float:
    return max(event.pure_epsilon('none') for event in self.events)

  def factors(self, amplification: str) -> base.Factors | None:
    listed = [event.factors('none') for event in self.events]
    found = [inner and pairs.together(inner) for inner in listed]
    if not all(found):
      return None
    return ((pairs.Mixed(pairs=tuple(found), weights=self.weights), 1),)

  def skellam_coordinates(self) -> int:
    return max(event.skellam_coordinates() for event in self.events)


def coin(events: Sequence[base.Event], weights: Sequence[float]) -> base.Event:
  """One of several releases by a public coin; the release itself if it is one."""
  total = math.fsum(weights)
  return events[0] if len(events) == 1 else Coin(
      events=tuple(events), weights=tuple(
          max(float(weight / total), 5e-324) for weight in weights))


def rounds_of_two(count: int, sampling_rate: float,
                  limit: int) -> tuple[float, ...] | None:
  """The distribution of the sum of k^2 over rounds with k of a person's two clients.

  Each is in the first `limit` >= 1 rounds that select it, of `count`. With Gaussian
  noise a round with both costs what four with one do.

  Returns probabilities of 0, 1, 2, ..., 4 limit; None where they are too many to list.
  """
  limit, q = min(limit, count), sampling_rate
  if count * limit**3 > _MOST_STATES:
    return None
  # Probabilities by the rounds of the first client, of the second, and of both.
  chances = np.zeros([limit + 1] * 3)
  chances[0, 0, 0] = 1.0
  for _ in range(count):
    after = (1 - q)**2 * chances
    after[1:] += q * (1 - q) * chances[:-1]
    after[:, 1:] += q * (1 - q) * chances[:, :-1]
    after[1:, 1:, 1:] += q * q * chances[:-1, :-1, :-1]
    # A client that was in enough rounds is not selected.
    after[-1] += q * (1 - q) * chances[-1]
    after[:, -1] += q * (1 - q) * chances[:, -1]
    after[-1, 1:] += q * q * chances[-1, :-1]
    after[1:, -1] += q * q * chances[:-1, -1]
    after[-1, -1] += q * q * chances[-1, -1]
    chances = after
  first, second, both = np.indices(chances.shape)
  return tuple((np.bincount((first + second + 2 * both).ravel(), chances.ravel(),
                            4 * limit + 1) * (1 + 1e-9)).tolist())


class Cohorts(NamedTuple):
  """The cohorts of the rounds that a client is in with certain participants.

  Attributes:
    sizes, weights: Numbers of clients, and their probabilities; smaller than the true
      ones, at worst.
    failure: Probability that they are smaller still, in any round.
    depends: As in `Attended`.
  """

  sizes: tuple[int, ...]
  weights: tuple[float, ...]
  failure: float
  depends: bool


def cohorts(sampling_rate: float, participants: base.Participants,
            max_participations: int | None, least: int | None) -> Cohorts | None:
  """The cohorts of Poisson sampling; None if no bound on them is proved.

  Args:
    sampling_rate: q in (0, 1].
    participants: They are in all rounds of the client.
    max_participations, least: As in `sampled.PoissonSampled`.
  """
  sure = 1 + participants.colluders
  if participants.population is None or participants.population < sure:
    return None
  others, rate, failure = participants.population - sure, sampling_rate, 0.0
  rounds = participants.rounds
  is_limited = max_participations is not None and max_participations < rounds
  if max_participations is not None and least is not None:
    return None  # How often others are drawn again is not known.
  if is_limited:
    # Clients that the limit never stops: others are left out.
    never = stats.binom.cdf(max_participations, rounds, rate)
    found = int(stats.binom.ppf(_FEWER, others, never))
    while stats.binom.cdf(found - 1, others, never) > _FEWER:
      found -= 1
    others, failure = found, _FEWER
    # The rate does not matter if there are no others.
    rate *= stats.binom.cdf(max_participations - 1, rounds - 1, rate) / (never or 1.0)
    rate *= 1 - 1e-9
  law = stats.binom(max(others, 0), min(rate, 1.0))
  begins = sorted({int(law.ppf(begin)) if begin else 0 for begin in _BEGINS})
  weights = np.diff([0.0, *(law.cdf(begin - 1) for begin in begins[1:]), 1.0])
  kept = [(max(sure + begin, least or 1), float(weight))
          for begin, weight in zip(begins, weights) if weight > 0]
  return Cohorts(*zip(*kept), failure, is_limited)
