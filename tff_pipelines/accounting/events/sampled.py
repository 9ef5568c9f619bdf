"""Events of releases from sampled clients: Poisson, fixed size, epochs."""

from collections.abc import Iterable
import dataclasses
import functools
import math

from dp_accounting import dp_event
import numpy as np
from scipy import stats

from tff_pipelines.accounting.divergences import curves, pairs
from tff_pipelines.accounting.events import base
from tff_pipelines.common import (
    caveats as caveats_lib, decimals, declarations, validate)

_HIDDEN_COHORT = caveats_lib.Caveat(
    'cohorts assumed to be hidden',
    'amplification by sampling holds against those who see the released models and '
    'learn neither which nor how many clients participated; against a server or '
    'participants who know the cohort the unamplified epsilon is the guarantee')
# A limit on participations that no run meets.
_NEVER_MET = 2**62
# Bounds for one client in a round, for two, ... are mixed up to this many clients.
_MOST_MIXED = 64


def _mixed(low: np.ndarray, high: np.ndarray, weight: float) -> np.ndarray:
  """The curve `high` with probability `weight`, and else `low`."""
  return curves.mixed((low, high), (1 - weight, weight))


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

  def __post_init__(self):
    super().__post_init__()
    self.event.replace_one()  # Raises ValueError if clients can't be sampled.
    if self.event.adjacency not in (base.ZERO_OUT, base.ANY):
      raise ValueError(f'event {type(self.event).__name__} cannot be amplified by '
                       f'sampling clients: its adjacency is {self.event.adjacency}')

  def _refuse_failures(self, release: base.Event) -> None:
    if release.failure_probability():
      raise ValueError(f'{type(self.event).__name__} cannot be amplified: it may fail')

  def skellam_coordinates(self) -> int:
    return self.event.skellam_coordinates()

  def as_gaussian(self, distance: float) -> base.Event:
    return dataclasses.replace(self, event=self.event.as_gaussian(distance))

  def honest_fraction(self) -> float | None:
    return self.event.honest_fraction()

  def is_known_in_part(self) -> bool:
    return self.event.is_known_in_part()

  def seen(self, colluders: float, cohort: float | None) -> base.Event:
    return dataclasses.replace(
        self, event=self.event.seen(colluders, self.minimum_cohort() or 1))


class _SameNeighbours(Sampled, abstract=True):
  """A sample without a client, or with its zeros, is that of its neighbour."""

  @property
  def adjacency(self) -> str:
    return self.event.adjacency


class _Poisson(_SameNeighbours, abstract=True):
  """Attributes and answers that one client and several of one person share."""

  sampling_rate: validate.Fraction
  pivotal_probability: validate.UnitInterval = 0.0
  max_participations: validate.Count | None = None
  least_cohort: validate.Count | None = None
  redrawn_probability: validate.UnitInterval = 0.0

  def __post_init__(self):
    super().__post_init__()
    self._refuse_failures(self.event)

  @property
  def _is_independent(self) -> bool:
    """Whether cohorts are, in different rounds, those that are drawn again included."""
    return self.max_participations is None and not self.pivotal_probability

  def failure_probability(self) -> float:
    return 0.0 if self._is_independent else self.redrawn_probability

  def _factors(self, hidden: pairs.Pair, shown: pairs.Pair) -> tuple[base.Factor, ...]:
    """The pairs of a round: that of a random cohort, or of one that is known.

    Proofs: docs/proofs.md for suppressed rounds, docs/participation.md for cohorts that
    are drawn again.
    """
    redrawn = self.redrawn_probability
    if self._is_independent:
      return ((pairs.mixed(hidden, shown, redrawn), 1),)
    # In the rounds where nothing is drawn again.
    pivotal = min(1.0, self.pivotal_probability / max(1 - redrawn, 1e-9))
    revealed = pairs.mixed(pairs.Nothing(), shown, self.sampling_rate)
    leak = ((pairs.Leak(probability=redrawn), 1),) if redrawn else ()
    return (pairs.mixed(hidden, revealed, pivotal), 1), *leak

  def participations(self, count: int, amplification: str) -> int:
    limit = None if amplification != 'none' else self.max_participations
    return count if limit is None else min(count, limit)

  def repeated(self) -> base.Event:
    # A round that was not committed is in no client's count, but its cohort depends on
    # the counts.
    return dataclasses.replace(
        self, event=self.event.repeated(),
        max_participations=self.max_participations and _NEVER_MET)

  def minimum_cohort(self) -> float | None:
    return self.least_cohort

  def caveats(self) -> tuple[caveats_lib.Caveat, ...]:
    if self.sampling_rate == 1:
      return self.event.caveats()
    caveats = [*self.event.caveats(), _HIDDEN_COHORT]
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
  """

  source = 'arXiv 2210.00597 (tight); Zhu and Wang 2019, Theorem 5 (generic)'

  def curve(self, max_order: int, amplification: str) -> np.ndarray:
    curve = self.event.curve(max_order, amplification)
    if amplification == 'none':
      return curve
    hidden = curves.poisson(
        curve, self.sampling_rate, generic=amplification == 'generic')
    if self._is_independent:
      return _mixed(hidden, curve, self.redrawn_probability)
    revealed = _mixed(np.zeros_like(curve), curve, self.sampling_rate)
    return _mixed(hidden, np.maximum(hidden, revealed), self.pivotal_probability)

  def pure_epsilon(self, amplification: str) -> float:
    epsilon = self.event.pure_epsilon(amplification)
    if amplification == 'none' or self.pivotal_probability or self.redrawn_probability:
      return epsilon
    return curves.pure_poisson(epsilon, self.sampling_rate)

  def factors(self, amplification: str) -> tuple[base.Factor, ...] | None:
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
    return self._factors(
        pairs.Poisson(pair=pair, sampling_rate=self.sampling_rate), pair)

  def without_sampling(self) -> base.Event:
    return self.event

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
    if self.clients > _MOST_MIXED:
      hidden = self._with(self.clients).curve(max_order, amplification)
    else:
      chances = self._chances
      hidden = curves.mixed([self._with(k).curve(max_order, amplification)
                             for k in range(1, self.clients + 1)],
                            chances / chances.sum())
    return _mixed(
        hidden, shown, self.redrawn_probability) if self._is_independent else hidden

  def pure_epsilon(self, amplification: str) -> float:
    return self._with(self.clients).pure_epsilon(amplification)

  def factors(self, amplification: str) -> tuple[base.Factor, ...] | None:
    if self.pivotal_probability:
      return None  # It is that of one client.
    factors = self._with(self.clients).factors(amplification)
    if factors is None or not isinstance(factors[0][0], pairs.Poisson):
      return factors
    hidden, shown = factors[0][0], factors[0][0].pair
    if isinstance(shown, pairs.Gaussian):
      hidden = pairs.PoissonGroup(
          noise_multiplier=self.clients * shown.noise_multiplier,
          sampling_rate=self.sampling_rate, clients=self.clients)
    elif self.clients <= _MOST_MIXED:
      chances = self._chances
      hidden = pairs.Mixed(weights=tuple(chances / chances.sum()), pairs=tuple(
          self._with(k).factors(amplification)[0][0]
          for k in range(1, self.clients + 1)))
    return self._factors(hidden, shown)

  def without_sampling(self) -> base.Event:
    return self.event.scaled(self.clients)

  def group(self, clients: int, known: bool) -> None:
    """States that it is of one person already."""


class _Sized(Sampled, abstract=True):
  """A release from exactly `cohort_size` of `population` clients."""

  cohort_size: validate.Count
  population: validate.Count

  def __post_init__(self):
    super().__post_init__()
    validate.integer(cohort_size=self.cohort_size, high=self.population)

  def minimum_cohort(self) -> float:
    return self.cohort_size


class FixedSizeSampled(_Sized):
  """A release from a cohort of fixed size, sampled without replacement.

  For replace-one neighbours it has twice the zero-out sensitivities throughout. For
  zero-out neighbours it has its own profile where noise is Gaussian, and else that of
  replace-one, of which zeroing is a case.

  Attributes:
    neighbours: Adjacency, 'replace-one' or 'zero-out'.
    clients: g, clients of one person, whose contributions all change; the others are at
      least as many as a cohort. `event` is that of one of them.
  """

  neighbours: str = base.REPLACE_ONE
  clients: validate.Count = 1

  source = 'docs/fixed_size.md (PLD); arXiv 1808.00087, Theorem 9 (RDP)'

  def __post_init__(self):
    super().__post_init__()
    validate.one_of((base.REPLACE_ONE, base.ZERO_OUT), neighbours=self.neighbours)
    validate.integer(clients=self.clients,
                     high=max(1, self.population - self.cohort_size))
    if not self._is_everyone:
      self._refuse_failures(self._unsampled())

  @property
  def adjacency(self) -> str:
    return self.neighbours

  @property
  def _is_everyone(self) -> bool:
    return self.cohort_size == self.population

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

  def _cases(self) -> tuple[tuple[base.Event, ...], np.ndarray, np.ndarray]:
    """Releases with 1, 2, ..., g of the clients, their probabilities and fractions.

    See docs/fixed_size.md. The cohorts without any of them may be shared out among the
    cases in any way; in proportion to k^2 times the probability is a good one.
    """
    k = np.flatnonzero(self._chances[1:]) + 1
    chances = self._chances[k]
    fractions = 1 / (1 + self._chances[0] * k**2 / (chances @ k**2))
    weights = chances / fractions
    return tuple(map(self._release, k.tolist())), weights / weights.sum(), fractions

  def failure_probability(self) -> float:
    return self._unsampled().failure_probability()

  def curve(self, max_order: int, amplification: str) -> np.ndarray:
    if amplification == 'none' or self._is_everyone:
      return self._unsampled().curve(max_order, amplification)
    releases, weights, fractions = self._cases()
    return curves.mixed([
        curves.fixed_size(release.replace_one().curve(max_order, amplification), fraction)
        for release, fraction in zip(releases, fractions)], weights)

  def pure_epsilon(self, amplification: str) -> float:
    if amplification == 'none' or self._is_everyone:
      return self._unsampled().pure_epsilon(amplification)
    return curves.pure_poisson(
        self._release(self.clients).replace_one().pure_epsilon(amplification),
        1 - self._chances[0])

  def factors(self, amplification: str) -> tuple[base.Factor, ...] | None:
    inner = self._unsampled().factors(amplification)
    if amplification == 'none' or self._is_everyone:
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

  def without_sampling(self) -> base.Event:
    # Not the bare event: the unamplified number is for the same neighbours.
    return dataclasses.replace(self, event=self._release(self.clients), clients=1,
                               cohort_size=self.population)

  def participations(self, count: int, amplification: str) -> int:
    return count

  def repeated(self) -> base.Event:
    return self

  def group(self, clients: int, known: bool) -> base.Event | None:
    release = self.event.scaled(clients)
    if release is None or self.clients > 1:
      return None  # It is of one person already.
    if known or self._is_everyone:
      return dataclasses.replace(self, event=release, cohort_size=self.population)
    if clients > min(_MOST_MIXED, self.population - self.cohort_size):
      return None
    return dataclasses.replace(self, clients=clients)

  def to_dp_accounting(self) -> dp_event.DpEvent:
    if self.neighbours == base.ZERO_OUT or self.clients > 1:
      return super().to_dp_accounting()
    return dp_event.SampledWithoutReplacementDpEvent(
        self.population, self.cohort_size,
        self.event.replace_one().to_dp_accounting())

  def caveats(self) -> tuple[caveats_lib.Caveat, ...]:
    hidden = () if self._is_everyone else (_HIDDEN_COHORT,)
    return unique((*self.event.caveats(), *hidden))


class EpochSampled(base.Equivalent, _Sized, _SameNeighbours):
  """A release from a cohort of fixed size of a shuffled population.

  All clients are selected once before any is selected again, so one client is in
  ceil(rounds * cohort_size / population) of the rounds at most, whoever watches: of all
  rounds, so they must have the same event (`combinators.composed`).
  """

  source = 'docs/participation.md'

  @property
  def equivalent(self) -> base.Event:
    return self.event

  def participations(self, count: int, amplification: str) -> int:
    return -(-count * self.cohort_size // self.population)

  def without_sampling(self) -> base.Event:
    return self  # Nothing is hidden, and the order limits participations.

  def repeated(self) -> base.Event:
    # A round that was not committed is outside of the order.
    return self.event.repeated()

  def group(self, clients: int, known: bool) -> base.Event | None:
    several = self.group_of_several(1, clients, known)
    return several and several[0]

  def group_of_several(self, count: int, clients: int,
                       known: bool) -> tuple[base.Event, int] | None:
    release = self.event.scaled(clients)
    if release is None:
      return None
    if self.event.is_additive():
      return dataclasses.replace(self, event=release), count
    # An epoch may have each of the clients in a round of its own.
    return release, min(count, clients * self.participations(count, 'none'))

  def caveats(self) -> tuple[caveats_lib.Caveat, ...]:
    return self.event.caveats()
