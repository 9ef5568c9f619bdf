"""The guarantee of a person who owns several clients: group privacy.

Neighbouring inputs then differ in up to g clients. Where the release between such
inputs is known, its event is accounted as every other one is (`of_group`). Elsewhere
the guarantee of one client is taken g times (`chained`). Proofs: docs/participation.md.
"""

import collections
from collections.abc import Callable
import dataclasses
import math

import numpy as np
from scipy import optimize
from scipy import stats

from tff_pipelines.common import validate
from tff_pipelines.accounting.guarantees import accountant as accountant_lib
from tff_pipelines.accounting.events import base
from tff_pipelines.common import caveats
from tff_pipelines.accounting.events import combinators
from tff_pipelines.accounting.divergences import curves
from tff_pipelines.accounting.guarantees import noise_budget
from tff_pipelines.accounting.divergences import pairs
from tff_pipelines.accounting.events import preliminary
from tff_pipelines.accounting.events import sum_events

# Of these k rounds with one client each cost no more than one round with k clients.
_SKELLAM = (sum_events.DistributedSkellam, sum_events.CentralSkellam)
_ADDITIVE = (*_SKELLAM, sum_events.CentralGaussian, combinators.NoPrivacy)
# Bounds for one client in a round, for two, ... are mixed up to this many clients.
_MOST_MIXED = 64
# The logarithm of the delta of a chain is found to this much.
_TOLERANCE = 0.01
_SMALLEST = math.log(1e-300)

# Names of the caveats of the numbers of a person.
NAMES = ('person: ideal distributions', 'person: no finite epsilon')
IDEAL = caveats.Caveat(
    NAMES[0], 'an epsilon of a person is that of ideal distributions: at such an epsilon '
    'the sampling error of the noise would consume more than half of delta')


def unbounded(clients: int) -> caveats.Caveat:
  """The caveat where no finite epsilon is proved for a person."""
  return caveats.Caveat(
      NAMES[1], f'no finite epsilon is proved for a person who owns {clients} clients')


def epsilon(event: base.Event, clients: int, delta: float, *, accountant: str = 'auto',
            amplification: str = 'tight', known: bool = False,
            total_variation: float | None = None) -> tuple[float, bool]:
  """Epsilon of a person who owns up to so many clients.

  Args:
    event: Everything that was released, as it is stated for one client.
    clients: g >= 1.
    delta: In [0, 1).
    accountant: As for `accountant.epsilon`.
    amplification: As there.
    known: Whether it is against those who know the cohorts: nothing is amplified.
    total_variation: Distance of all releases together from ideal ones, which consumes
      delta; None where no bound is proved.

  Returns:
    (epsilon >= 0, `inf` if nothing is proved; whether it is that of ideal releases, as
    the distance would consume more than half of delta).

  Raises:
    ValueError: If a record, and no client, is protected.
  """
  validate.integer(clients_per_person=clients, low=1)
  if event.adjacency in base.OF_RECORDS:
    raise ValueError(f'clients_per_person={clients} needs a guarantee of clients, found '
                     f'adjacency {event.adjacency}')
  group = of_group(event, clients, known=known)

  def at(delta: float) -> float:
    """Epsilon of ideal releases."""
    def of(one: base.Event, delta: float) -> float:
      return accountant_lib.epsilon(
          one.without_sampling() if known else one, delta, accountant=accountant,
          amplification='none' if known else amplification)
    if group is not None:
      return of(group, delta)
    return chained(lambda smaller: of(event, smaller), clients, delta)

  consumed = 0.0
  if total_variation:
    # With at least half of delta epsilon is at most this one.
    consumed = noise_budget.consumed(min(1.0, total_variation), at(delta / 2))
  return (at(noise_budget.remaining(delta, consumed)),
          noise_budget.is_too_much(consumed, delta))


def of_group(event: base.Event, clients: int, *,
             known: bool = False) -> base.Event | None:
  """The release between inputs that differ in up to so many clients.

  Args:
    event: The release as it is stated for one client.
    clients: g >= 1.
    known: Whether only `without_sampling` of the result is to be accounted.

  Returns:
    None if no such event is known.
  """
  return event if clients == 1 else _of_group(event, clients, known)


def _of_group(event: base.Event, clients: int, known: bool) -> base.Event | None:
  if isinstance(event, combinators.SelfComposed):
    return _repeated(event.event, event.count, clients, known)
  if isinstance(event, combinators.Composed) and not isinstance(
      event, combinators.Together):
    return _all(_repeated(part, count, clients, known)
                for part, count in collections.Counter(event.events).items())
  if isinstance(event, combinators.EpochSampled):
    return _repeated(event, 1, clients, known)
  if isinstance(event, combinators.PoissonSampled):
    return _of_poisson(event, clients, known)
  if isinstance(event, combinators.FixedSizeSampled):
    release = _scaled(event.event, clients)
    if release is None or not known and event.cohort_size < event.population:
      return None
    return dataclasses.replace(event, event=release, cohort_size=event.population)
  return _scaled(event, clients)


def _all(parts, kind=combinators.Composed) -> base.Event | None:
  """The composition; None if a part is."""
  parts = tuple(parts)
  return None if None in parts else kind(events=parts)


def _repeated(event: base.Event, count: int, clients: int,
              known: bool) -> base.Event | None:
  """Several releases, one after the other."""
  if isinstance(event, combinators.EpochSampled):
    release = _scaled(event.event, clients)
    if not _is_additive(event.event):
      # An epoch may have each of the clients in a round of its own.
      count = min(count, clients * event.participations(count, 'none'))
    elif release is not None:
      release = dataclasses.replace(event, event=release)
  else:
    release = _of_group(event, clients, known)
  return None if release is None else combinators.SelfComposed(
      event=release, count=count)


def _of_poisson(event: combinators.PoissonSampled, clients: int,
                known: bool) -> base.Event | None:
  release, rate = _scaled(event.event, clients), event.sampling_rate
  if release is None or event.pivotal_probability and not known:
    return None
  limit, redrawn = event.max_participations, event.redrawn_probability
  if limit is not None and not _is_additive(event.event):
    limit *= clients
  if redrawn:
    redrawn = 1.0 if rate == 1 else min(
        1.0, clients * redrawn * math.exp((1 - clients) * math.log1p(-rate)))
  changes = dict(max_participations=limit, redrawn_probability=redrawn)
  if rate == 1:
    return dataclasses.replace(event, event=release, **changes)
  return _Sampled(**{**vars(event), **changes}, clients=clients)


def _scaled(event: base.Event, clients: int) -> base.Event | None:
  """A release without sampling, of so many clients at once; None if not known."""
  if isinstance(event, combinators.Together):
    return _all((_scaled(part, clients) for part in event.events), combinators.Together)
  if isinstance(event, combinators.NoPrivacy):
    return event
  if isinstance(event, sum_events.CentralGaussian):
    return dataclasses.replace(event, noise_multiplier=event.noise_multiplier / clients)
  if isinstance(event, sum_events.SkellamCount):
    return dataclasses.replace(event, l1_sensitivity=clients * event.l1_sensitivity)
  if isinstance(event, (*_SKELLAM, sum_events.DistributedDiscreteGaussian)):
    changes = dict(l1_sensitivity=clients * event.l1_sensitivity,
                   l2_sensitivity=clients * event.l2_sensitivity)
    if isinstance(event, _SKELLAM) and event.dimension is not None:
      # Of one round with all clients, which stands for as many rounds as clients: what
      # Skellam noise lacks to Gaussian noise is paid in each.
      changes['dimension'] = clients * event.dimension
    return dataclasses.replace(event, **changes)
  if isinstance(event, preliminary.PreliminaryRelease):
    threshold = event.threshold
    if threshold is not None:
      # All of them may add to a key that nobody else has.
      threshold -= clients - 1
      if threshold < 2:
        return combinators.NoPrivacy()
    return dataclasses.replace(
        event, l2_sensitivity=clients * event.l2_sensitivity,
        items=clients * event.items, threshold=threshold)
  return None


def _is_additive(event: base.Event) -> bool:
  if isinstance(event, combinators.Together):
    return all(map(_is_additive, event.events))
  return isinstance(event, _ADDITIVE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Sampled(combinators.PoissonSampled):
  """Poisson sampling of clients of whom a person owns several.

  `event` and `sampling_rate` are those of one client, at a rate below 1.

  Attributes:
    clients: g >= 2.
  """

  clients: int

  def _of(self, k: int) -> combinators.PoissonSampled:
    """As if k of the person's clients were in each round that one of them is in."""
    some = -math.expm1(self.clients * math.log1p(-self.sampling_rate))
    fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(
        combinators.PoissonSampled)}
    return combinators.PoissonSampled(**{
        **fields, 'event': _scaled(self.event, k),
        'sampling_rate': min(1.0, some * (1 + 1e-12))})

  @property
  def _chances(self) -> np.ndarray:
    """Probability of 1, 2, ..., g of them in a round."""
    return stats.binom.pmf(
        np.arange(1, self.clients + 1), self.clients, self.sampling_rate)

  def curve(self, max_order: int, amplification: str) -> np.ndarray:
    if amplification == 'none' or self.clients > _MOST_MIXED:
      return self._of(self.clients).curve(max_order, amplification)
    mixed, before = np.zeros(max_order - 1), 0.0
    for k, chance in enumerate(self._chances, 1):
      hidden = self._of(k).curve(max_order, amplification)
      before += chance
      mixed = curves.mixed(mixed, np.maximum(mixed, hidden), chance / before)
    return mixed

  def pure_epsilon(self, amplification: str) -> float:
    return self._of(self.clients).pure_epsilon(amplification)

  def factors(self, amplification: str) -> tuple[base.Factor, ...] | None:
    factors = self._of(self.clients).factors(amplification)
    if factors is None or not isinstance(factors[0][0], pairs.Poisson):
      return factors
    (pair, _), *leak = factors  # Of cohorts that are drawn again.
    if isinstance(pair.pair, pairs.Gaussian):
      pair = pairs.PoissonGroup(
          noise_multiplier=self.clients * pair.pair.noise_multiplier,
          sampling_rate=self.sampling_rate, clients=self.clients)
    elif self.clients <= _MOST_MIXED:
      chances = self._chances
      pair = pairs.Mixed(weights=tuple(chances / chances.sum()), pairs=tuple(
          self._of(k).factors(amplification)[0][0]
          for k in range(1, self.clients + 1)))
    return (pair, 1), *leak

  def without_sampling(self) -> base.Event:
    return _scaled(self.event, self.clients)


def chained(of: Callable[[float], float], clients: int, delta: float) -> float:
  """Epsilon of a group by that of one client, from neighbour to neighbour.

  (e, d) for one client is (g e, d (e^(g e) - 1) / (e^e - 1)) for g of them.

  Args:
    of: From a delta in [0, 1) to the epsilon of one client.
    clients: g >= 1.
    delta: Delta of the group, in [0, 1).

  Returns:
    g times the epsilon of one client at a smaller delta; `inf` if none is small enough.
  """
  if delta == 0 or clients == 1:
    return clients * of(delta)
  found = [math.inf]

  def excess(log_delta: float) -> float:
    """By how much the logarithm of the group's delta is too large."""
    one = of(math.exp(log_delta))
    total = log_delta + _log_sum(one, clients) - math.log(delta) + 1e-12
    if total <= 0:
      found.append(clients * one)
    return min(max(total, -50.0), 50.0)

  high, step = math.log(delta / clients), 2.0
  if excess(high) > 0:
    while (low := math.log(delta) - step) > _SMALLEST and excess(low) > 0:
      high, step = low, 2 * step
    if len(found) > 1:
      optimize.brentq(excess, low, high, xtol=_TOLERANCE)
  return min(found)


def _log_sum(epsilon: float, clients: int) -> float:
  """log(1 + e^epsilon + ... + e^((g-1) epsilon))."""
  if epsilon == math.inf:
    return math.inf
  return float(np.logaddexp.reduce(epsilon * np.arange(clients)))
