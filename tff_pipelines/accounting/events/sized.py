"""Events of releases from cohorts of a fixed size: uniform ones, and epochs."""

import dataclasses
import functools
import math

from dp_accounting import dp_event
import numpy as np

from tff_pipelines.accounting.divergences import curves, pairs
from tff_pipelines.accounting.events import attended, base, sampled
from tff_pipelines.common import caveats as caveats_lib, validate


class _Sized(sampled.Sampled, abstract=True):
  """A release from exactly `cohort_size` of `population` clients."""

  cohort_size: validate.Count
  population: validate.Count

  def __post_init__(self):
    super().__post_init__()
    validate.integer(cohort_size=self.cohort_size, high=self.population)

  def minimum_cohort(self) -> float:
    return self.cohort_size


class FixedSizeSampled(_Sized, base.Release):
  """A release from a cohort of fixed size, sampled without replacement.

  For replace-one neighbours it has twice the zero-out sensitivities throughout. For
  zero-out neighbours it has its own profile where noise is Gaussian, and else that of
  replace-one, of which zeroing is a case.

  Attributes:
    neighbours: Adjacency, 'replace-one' or 'zero-out'.
    clients: g, clients of one person, whose contributions all change. `event` is that
      of one of them. Where the others are fewer than a cohort, nothing is amplified.
  """

  neighbours: str = base.REPLACE_ONE
  clients: validate.Count = 1

  source = 'docs/fixed_size.md (PLD); arXiv 1808.00087, Theorem 9 (RDP)'

  def __post_init__(self):
    super().__post_init__()
    validate.one_of((base.REPLACE_ONE, base.ZERO_OUT), neighbours=self.neighbours)
    validate.integer(clients=self.clients, high=self.population)
    if not self._is_everyone:
      self._refuse_failures(self._unsampled())

  @property
  def adjacency(self) -> str:
    return self.neighbours

  @property
  def _is_everyone(self) -> bool:
    return self.cohort_size == self.population

  @property
  def _is_exchanged(self) -> bool:
    """Whether the person's clients may be exchanged for others, which amplifies."""
    return self.clients <= self.population - self.cohort_size

  def _release(self, k: int) -> base.Event:
    """The release from a cohort with k of the person's clients."""
    return self.event if self.clients == 1 else self.event.scaled(k)

  def _unsampled(self) -> base.Event:
    """The release whose selected clients are other ones, or zero."""
    release = self._release(self.clients)
    return release if self.neighbours == base.ZERO_OUT else release.replace_one()

  @functools.cached_property
  def _chances(self) -> np.ndarray:
    """Probability of 0, 1, ..., g of the person's clients in a cohort."""
    clients, cohort, all_ = self.clients, self.cohort_size, self.population
    return np.array([
        math.comb(clients, k) * math.perm(cohort, k) * math.perm(
            all_ - cohort, clients - k) / math.perm(all_, clients)
        for k in range(clients + 1)])

  @property
  def _numbers(self) -> np.ndarray:
    """The numbers k >= 1 of them that a cohort may have."""
    return np.flatnonzero(self._chances[1:]) + 1

  def _cases(self) -> tuple[list[base.Event], np.ndarray, np.ndarray]:
    """Releases with so many of the clients, their probabilities and fractions.

    See docs/fixed_size.md. The cohorts without any of them may be shared out among the
    cases in any way; in proportion to k^2 times the probability is a good one.
    """
    k = self._numbers
    chances = self._chances[k]
    fractions = 1 / (1 + self._chances[0] * k**2 / (chances @ k**2))
    weights = chances / fractions
    return list(map(self._release, k.tolist())), weights / weights.sum(), fractions

  def failure_probability(self) -> float:
    return self._unsampled().failure_probability()

  def curve(self, max_order: int, amplification: str) -> np.ndarray:
    if amplification == 'none' or not self._is_exchanged:
      return self._unsampled().curve(max_order, amplification)
    releases, weights, fractions = self._cases()
    listed = [release.replace_one().curve(max_order, amplification)
              for release in releases]
    return curves.mean(list(map(curves.fixed_size, listed, fractions)), weights)

  def pure_epsilon(self, amplification: str) -> float:
    if amplification == 'none' or not self._is_exchanged:
      return self._unsampled().pure_epsilon(amplification)
    return curves.pure_poisson(
        self._release(self.clients).replace_one().pure_epsilon(amplification),
        float(self._chances[1:].sum()))

  def factors(self, amplification: str) -> base.Factors | None:
    inner = self._unsampled().factors(amplification)
    if amplification == 'none' or not self._is_exchanged:
      return inner
    if amplification == 'generic' or inner is None:
      return None
    pair = pairs.together(inner)
    if isinstance(pair, pairs.Leak):
      return inner
    releases, weights, fractions = self._cases()
    listed = tuple(map(self._pair, releases, fractions.tolist()))
    if None in listed:
      return None
    return ((listed[0] if len(listed) == 1 else pairs.Mixed(
        pairs=listed, weights=tuple(weights.tolist())), 1),)

  def _pair(self, release: base.Event, fraction: float) -> pairs.Pair | None:
    """The pair of a release that is exchanged, or zeroed, with this probability."""
    if self.neighbours == base.ZERO_OUT:
      pair = pairs.together(release.factors('tight'))
      if isinstance(pair, pairs.Gaussian):
        return pairs.ZeroedWithoutReplacement(
            noise_multiplier=pair.noise_multiplier, fraction=fraction)
    pair = pairs.together(release.replace_one().factors('tight'))
    return pair and pairs.WithoutReplacement(pair=pair, fraction=fraction)

  def _with(self, k: int) -> base.Event:
    """The release of a cohort that is known to have k of the clients."""
    # Not the bare event: the unamplified number is for the same neighbours.
    return dataclasses.replace(
        self, event=self._release(k), clients=1, cohort_size=self.population)

  def without_sampling(self) -> base.Event:
    return self._with(self.clients)

  def known(self, count: int, participants: base.Participants | None) -> base.Counted:
    seen = base.seen_by(self, participants)
    if self._is_everyone:
      return ((seen, count),)
    k = self._numbers
    return ((attended.Attended(
        event=attended.coin(list(map(seen._with, k.tolist())), self._chances[k]),
        rounds=count, probability=sampled.rounded_up(self._chances[1:].sum())), 1),)

  def group(self, clients: int, known: bool) -> base.Event | None:
    release = self.event.scaled(clients)
    if release is None or self.clients > 1:
      return None  # It is of one person already.
    # Where cohorts are hidden, they are exchanged for as many others.
    others = self.population - (0 if known else self.cohort_size)
    if clients <= min(sampled.MOST_MIXED, others) and not self._is_everyone:
      return dataclasses.replace(self, clients=clients)
    return dataclasses.replace(self, event=release, cohort_size=self.population) if (
        known or self._is_everyone) else None

  def may_be_chained(self, known: bool) -> bool:
    return not known and self.clients > 1  # They are exchanged for others.

  def to_dp_accounting(self) -> dp_event.DpEvent:
    if self.neighbours == base.ZERO_OUT or self.clients > 1:
      return super().to_dp_accounting()
    return dp_event.SampledWithoutReplacementDpEvent(
        self.population, self.cohort_size, self.event.replace_one().to_dp_accounting())

  def caveats(self) -> tuple[caveats_lib.Caveat, ...]:
    hidden = () if self._is_everyone else (sampled.HIDDEN_COHORT,)
    return sampled.unique((*self.event.caveats(), *hidden))


class EpochSampled(base.Equivalent, _Sized, sampled.Ordered):
  """A release from a cohort of fixed size of a shuffled population.

  All clients are selected once before any is selected again, so one client is in
  ceil(rounds * cohort_size / population) of the rounds at most, whoever watches: of all
  rounds, so they must have the same event (`combinators.composed`).
  """

  source = 'docs/participation.md'
  caveats = attended.caveats_inside

  @property
  def equivalent(self) -> base.Event:
    return self.event

  def _orders(self, count: int) -> int:
    """Maximum number of `count` rounds with one client."""
    return -(-count * self.cohort_size // self.population)

  def counted(self, count: int, amplification: str) -> base.Counted:
    return ((self.event, self._orders(count)),)

  def without_sampling(self) -> base.Event:
    return self.event  # Nothing is hidden.

  def known(self, count: int, participants: base.Participants | None) -> base.Counted:
    # All clients are in all full orders, and in the last one by exchangeability.
    release = base.seen_by(self, participants).event
    orders, more = divmod(count * self.cohort_size, self.population)
    last = () if not more else ((attended.Attended(
        event=release, rounds=1,
        probability=sampled.rounded_up(more / self.population)), 1),)
    return ((release, orders), *last) if orders else last

  def repeated(self) -> base.Event:
    # A round that was not committed is outside of the order.
    return self.event.repeated()

  def group_of_several(self, count: int, clients: int,
                       known: bool) -> tuple[base.Event, int] | None:
    release = self.event.scaled(clients)
    if release is None:
      return None
    if self.event.is_additive():
      # In the last order any of them may be.
      return release, self._orders(count)
    # An epoch may have each of the clients in a round of its own.
    return release, min(count, clients * self._orders(count))
