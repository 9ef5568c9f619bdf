"""Events of releases from sampled clients: what all share, and Poisson sampling."""

from collections.abc import Iterable
import dataclasses
import math

from dp_accounting import dp_event
import numpy as np
from scipy import stats

from tff_pipelines.accounting.divergences import curves, pairs
from tff_pipelines.accounting.events import attended, base
from tff_pipelines.common import (
    caveats as caveats_lib, decimals, declarations, validate)

HIDDEN_COHORT = caveats_lib.Caveat(
    'cohorts assumed to be hidden',
    'amplification by sampling holds against those who see the released models and '
    'learn neither which nor how many clients participated; against a server or '
    'participants, who know the cohorts, the epsilon that is stated for them holds')
# Bounds for one client in a round, for two, ... are mixed up to this many clients.
MOST_MIXED = 64


def unique(items: Iterable) -> tuple:
  """The items without repetitions, in their order."""
  return tuple(dict.fromkeys(items))


class Sampled(base.Event, abstract=True):
  """A release from a sample of the clients, taken independently of its noise.

  Attributes:
    event: The release from the sample, stated for zero-out.
  """

  event: base.Inner
  scaled = base.no_known_group  # It is one of sampled clients.
  as_gaussian = attended.as_gaussian_inside

  def __post_init__(self):
    self.event.replace_one()  # Raises ValueError if clients can't be sampled.
    if self.event.adjacency not in (base.ZERO_OUT, base.ANY):
      raise ValueError(f'event {type(self.event).__name__} cannot be amplified by '
                       f'sampling clients: its adjacency is {self.event.adjacency}')

  def _refuse_failures(self, release: base.Event) -> None:
    if release.failure_probability():
      raise ValueError(f'{type(self.event).__name__} cannot be amplified: it may fail')

  def skellam_coordinates(self) -> int:
    return self.event.skellam_coordinates()

  def honest_fraction(self) -> float | None:
    return self.event.honest_fraction()

  def is_known_in_part(self) -> bool:
    return self.event.is_known_in_part()

  def seen(self, colluders: float, cohort: float | None) -> base.Event:
    return dataclasses.replace(
        self, event=self.event.seen(colluders, self.minimum_cohort() or 1))


class SameNeighbours(Sampled, abstract=True):
  """A sample without a client, or with its zeros, is that of its neighbour."""

  @property
  def adjacency(self) -> str:
    return self.event.adjacency


class Ordered(SameNeighbours, abstract=True):
  """A round of clients who follow one order; defines `group_of_several` for all."""

  is_ordered = base.yes

  def group(self, clients: int, known: bool) -> base.Event | None:
    several = self.group_of_several(1, clients, known)
    return several and several[0]


class _Poisson(SameNeighbours, abstract=True):
  """Attributes and answers that one client and several of one person share."""

  sampling_rate: validate.Fraction
  pivotal_probability: validate.UnitInterval = 0.0
  max_participations: validate.Count | None = None
  least_cohort: validate.Count | None = None
  redrawn_probability: validate.UnitInterval = 0.0
  limit_of_others: validate.Count | None = None

  def __post_init__(self):
    super().__post_init__()
    self._refuse_failures(self.event)

  def failure_probability(self) -> float:
    return self.redrawn_probability if self._redraws_depend else 0.0

  def _factors(self, hidden: pairs.Pair, shown: pairs.Pair) -> base.Factors:
    """The pairs of a round: that of a random cohort, or of one that is known.

    Proofs: docs/proofs.md for suppressed rounds, docs/participation.md for cohorts that
    are drawn again.
    """
    redrawn = self.redrawn_probability
    if not self._redraws_depend:
      hidden = pairs.mixed(hidden, shown, redrawn)
    revealed = pairs.mixed(pairs.Nothing(), shown, self.sampling_rate)
    # In the rounds where nothing is drawn again.
    pivotal = min(1.0, self.pivotal_probability / max(1 - redrawn, 1e-9))
    leak = ((pairs.Leak(probability=redrawn), 1),) if self._redraws_depend else ()
    return (pairs.mixed(hidden, revealed, pivotal), 1), *leak

  def counted(self, count: int, amplification: str) -> base.Counted:
    limit = None if amplification != 'none' else self.max_participations
    return ((self, count if limit is None else min(count, limit)),)

  def repeated(self) -> base.Event:
    # A round that was not committed is in no client's count; others may be stopped.
    changes = dict(event=self.event.repeated(), max_participations=None,
                   limit_of_others=self.max_participations or self.limit_of_others)
    if self._redraws_depend:
      changes |= dict(sampling_rate=1.0, redrawn_probability=0.0, pivotal_probability=0.0)
    return dataclasses.replace(self, **changes)

  @property
  def _redraws_depend(self) -> bool:
    """Whether draws of different rounds depend on each other."""
    return self.redrawn_probability > 0 and (
        self.max_participations is not None or self.pivotal_probability > 0)

  def _redrawn(self, count: int) -> tuple[float, float]:
    """In how many rounds clients are because cohorts are drawn again.

    Returns the fraction of the rounds in which a client may be for certain; where
    rounds depend on each other 0, and the probability that there is such a round.
    """
    redrawn = self.redrawn_probability
    return (0.0, min(1.0, count * redrawn)) if self._redraws_depend else (redrawn, 0.0)

  def minimum_cohort(self) -> float | None:
    return self.least_cohort

  def caveats(self) -> tuple[caveats_lib.Caveat, ...]:
    if self.sampling_rate == 1:
      return self.event.caveats()
    caveats = [*self.event.caveats(), HIDDEN_COHORT]
    if self.pivotal_probability:
      probability = decimals.rounded_up(self.pivotal_probability, 2)
      caveats.append(caveats_lib.Caveat(
          'suppression depends on single clients',
          'whether a round is opened reveals a single client with probability '
          f'{probability} (counted in epsilon), if clients drop out independently of '
          'each other, of their data and of other rounds, and as rarely as stated'))
    elif (self.honest_fraction() or 1.0) < 1:
      caveats.append(caveats_lib.Caveat(
          'no dropouts and no collusion assumed',
          'suppressed rounds reveal nothing only if no client drops out or colludes'))
    return unique(caveats)


def rounded_up(probability: float) -> float:
  """A probability, above what round-off took from it."""
  return min(1.0, float(probability) * (1 + 1e-12))


class PoissonSampled(_Poisson):
  """A release from clients that are selected independently with one probability.

  Holds against observers to whom the cohort and its size stay hidden.

  Attributes:
    sampling_rate: q.
    max_participations: Maximum number of rounds that select one client; None for no
      such limit. Whoever sees the cohorts sees a client in so many rounds at most;
      against all others the limit changes nothing (docs/participation.md).
    pivotal_probability: rho, the fraction of the rounds in which the number of other
      clients is such that a release shows that a client participates, so that its loss
      is not amplified. See `cohorts.pivotal_probability`.
    least_cohort: Minimum number of clients in a round: a smaller cohort is drawn again
      before any client is told; None if a cohort may be of one.
    redrawn_probability: Fraction of the rounds in which that may tell of a client. They
      are not amplified; with a limit or suppression they are taken off delta. See
      `schemes.Poisson`.
    limit_of_others: The limit of a round that is in no client's count, such as one that
      was lost: it is none for the client, but others may have been stopped by it.
  """

  source = 'arXiv 2210.00597 (tight); Zhu and Wang 2019, Theorem 5 (generic)'

  def curve(self, max_order: int, amplification: str) -> np.ndarray:
    curve = self.event.curve(max_order, amplification)
    if amplification == 'none':
      return curve
    hidden = curves.poisson(curve, self.sampling_rate, generic=amplification == 'generic')
    if not self._redraws_depend:
      hidden = curves.mixed(hidden, curve, self.redrawn_probability)
    revealed = curves.mixed(np.zeros_like(curve), curve, self.sampling_rate)
    return curves.mixed(hidden, np.maximum(hidden, revealed), self.pivotal_probability)

  def pure_epsilon(self, amplification: str) -> float:
    epsilon = self.event.pure_epsilon(amplification)
    if amplification == 'none' or self.pivotal_probability or self.redrawn_probability:
      return epsilon
    return curves.pure_poisson(epsilon, self.sampling_rate)

  def factors(self, amplification: str) -> base.Factors | None:
    inner = self.event.factors(amplification)
    if amplification == 'none' or self.sampling_rate == 1:
      return inner
    if amplification == 'generic' or inner is None:
      return None
    pair = pairs.together(inner)
    if pair is None:
      return None
    if isinstance(pair, pairs.Leak):
      return inner  # Nothing is claimed for being left out of a bare release.
    return self._factors(pairs.Poisson(pair=pair, sampling_rate=self.sampling_rate), pair)

  def without_sampling(self) -> base.Event:
    return self.event

  def known(self, count: int, participants: base.Participants | None) -> base.Counted:
    if self.sampling_rate == 1 and self.max_participations is None:
      return ((base.seen_by(self, participants).event, count),)
    release, depends, failure = self.event, False, 0.0
    if participants is not None and self.is_known_in_part():
      found = attended.cohorts(self.sampling_rate, participants,
                               self.max_participations or self.limit_of_others,
                               self.least_cohort)
      if found is None:
        release = release.seen(participants.shares, self.least_cohort or 1)
      else:
        release = attended.coin([
            release.seen(participants.shares, size) for size in found.sizes],
                                found.weights)
        depends, failure = found.depends, found.failure
    redrawn, for_certain = self._redrawn(count)
    rate = self.sampling_rate
    return ((attended.Attended(
        event=release, rounds=count, probability=rounded_up(rate + (1 - rate) * redrawn),
        most=self.max_participations, at_most=for_certain, failure=failure,
        depends=depends), 1),)

  def group(self, clients: int, known: bool) -> base.Event | None:
    release, rate = self.event.scaled(clients), self.sampling_rate
    if release is None or self.pivotal_probability and not known:
      return None
    limit, redrawn = self.max_participations, self.redrawn_probability
    if limit is not None and not self.event.is_additive():
      limit *= clients
    if redrawn:
      redrawn = 1.0 if rate == 1 else min(
          1.0, clients * redrawn * math.exp((1 - clients) * math.log1p(-rate)))
    changes = dict(max_participations=limit, redrawn_probability=redrawn)
    if rate == 1:
      return dataclasses.replace(self, event=release, **changes)
    return PoissonGroup(**{**vars(self), **changes}, clients=clients)

  def to_dp_accounting(self) -> dp_event.DpEvent:
    if self.pivotal_probability or self.redrawn_probability:
      return super().to_dp_accounting()  # There, cohorts reveal nothing.
    return dp_event.PoissonSampledDpEvent(
        self.sampling_rate, self.event.to_dp_accounting())


class PoissonGroup(_Poisson):
  """Poisson sampling of clients of whom a person owns several.

  `event` and `sampling_rate` are those of one client, at a rate below 1; the other
  attributes of `PoissonSampled` are those of the person. Proof: docs/participation.md.

  Attributes:
    clients: Clients of the person, g >= 2.
  """

  clients: validate.Count

  source = 'docs/participation.md; arXiv 2401.10294'

  def _with(self, k: int) -> PoissonSampled:
    """The release if a round has k of the person's clients whenever it has any."""
    some = -math.expm1(self.clients * math.log1p(-self.sampling_rate))
    return PoissonSampled(**declarations.shared(
        PoissonSampled, self, event=self.event.scaled(k), redrawn_probability=0.0,
        sampling_rate=min(1.0, some * (1 + 1e-12))))

  @property
  def _chances(self) -> np.ndarray:
    """Probability of 1, 2, ..., g of them in a round."""
    return stats.binom.pmf(
        np.arange(1, self.clients + 1), self.clients, self.sampling_rate)

  def curve(self, max_order: int, amplification: str) -> np.ndarray:
    shown = self.without_sampling().curve(max_order, amplification)
    if amplification == 'none':
      return shown
    if self.clients > MOST_MIXED:
      hidden = self._with(self.clients).curve(max_order, amplification)
    else:
      chances = self._chances
      hidden = curves.mean([self._with(k).curve(max_order, amplification)
                             for k in range(1, self.clients + 1)],
                            chances / chances.sum())
    return hidden if self._redraws_depend else curves.mixed(
        hidden, shown, self.redrawn_probability)

  def pure_epsilon(self, amplification: str) -> float:
    return self._with(self.clients).pure_epsilon(amplification)

  def factors(self, amplification: str) -> base.Factors | None:
    if self.pivotal_probability:
      return None  # It is that of one client.
    factors = self._with(self.clients).factors(amplification)
    if factors is None or not isinstance(factors[0][0], pairs.Poisson):
      return factors
    hidden, shown = factors[0][0], factors[0][0].pair
    if isinstance(shown, pairs.Gaussian):
      hidden = pairs.PoissonGroup(noise_multiplier=self.clients * shown.noise_multiplier,
                                  sampling_rate=self.sampling_rate, clients=self.clients)
    elif self.clients <= MOST_MIXED:
      chances = self._chances
      hidden = pairs.Mixed(weights=tuple(chances / chances.sum()), pairs=tuple(
          self._with(k).factors(amplification)[0][0]
          for k in range(1, self.clients + 1)))
    return self._factors(hidden, shown)

  def without_sampling(self) -> base.Event:
    return self.event.scaled(self.clients)

  def known(self, count: int, participants: base.Participants | None) -> base.Counted:
    redrawn, for_certain = self._redrawn(count)
    if (law := self._law_of_two(count)) is not None:
      return ((attended.Attended(event=self.event, rounds=len(law) - 1, law=law,
                                 probability=1.0), 1),)
    chances = (1 - redrawn) * self._chances
    chances[-1] += redrawn
    numbers = range(1, self.clients + 1)
    if self.clients > MOST_MIXED:
      numbers, chances = [self.clients], [chances.sum()]
    return ((attended.Attended(
        event=attended.coin(list(map(self.event.scaled, numbers)), chances),
        rounds=count, probability=rounded_up(sum(chances)), failure=for_certain,
        most=self._most(count)), 1),)

  def _law_of_two(self, count: int) -> tuple[float, ...] | None:
    """The result of `attended.rounds_of_two`, where it holds and can be listed."""
    limit, factors = self.max_participations, self.event.factors('none')
    if self.clients > 2 or limit is None or self.redrawn_probability or (
        not self.event.is_additive() or factors is not None and any(
            not isinstance(pair, pairs.Gaussian) for pair, _ in factors)):
      return None
    return attended.rounds_of_two(count, self.sampling_rate, limit)

  def _most(self, count: int) -> int | None:
    """Maximum number of rounds with any of the person's clients; None for no limit."""
    limit = self.max_participations
    return limit and limit * (self.clients if self.event.is_additive() else 1)

  def group(self, clients: int, known: bool) -> None:
    """States that it is of one person already."""
