"""Events of releases before the first round and after the last.

Before the first round, such as a vocabulary; after the last, an evaluation. A trusted
party adds up integers of all clients and adds discrete Gaussian noise to each, once.
Where the keys of the integers are private themselves, as words are, a client adds at
most 1 to each of a bounded number of keys, and a key is released only if its noisy
count reaches a threshold.

Formal guarantees, zero-out adjacency:

* Public keys: the Renyi divergence at order alpha is at most
  alpha l2_sensitivity^2 / (2 noise_variance), arXiv 2004.00010, Theorem 14.
* Private keys: let U be the keys that the client alone has, at most `items`. With the
  client, no key of U is released except with probability `failure`, at most
  1 - (1 - P[N >= threshold - 1])^items for the noise N; without it, none is. Where none
  is, outputs are post-processed counts of the keys outside U, so their divergence is as
  above, and conditioning moves no probability by a factor of more than
  1 / (1 - failure), whose logarithm is added to it. The failure is added to delta. This
  is the argument of arXiv 2002.09745, section 4, for integer noise.
"""

from collections.abc import Iterable, Mapping
import dataclasses
import math
from typing import Any

import numpy as np

from tff_pipelines.common import validate
from tff_pipelines.accounting.events import base
from tff_pipelines.accounting.guarantees import calibration
from tff_pipelines.common import caveats as caveats_lib
from tff_pipelines.accounting.events import combinators
from tff_pipelines.accounting.divergences import curves
from tff_pipelines.accounting.events import sum_events

# Fraction of a run's delta that keys of a single client may take.
FAILURE_FRACTION = 0.1
# The sampler's standard deviation is at most this much larger: relative, absolute.
_SIGMA_ERRORS = 2.0**-22, 2.0**-24
# Total variation of one draw from the discrete Gaussian.
_DRAW_ERROR = 2.0**-80
_REACH = 40.0

# In an evaluation a client's integers are from -UNITS to UNITS: one for each metric,
# -UNITS at 0 and UNITS at 1, and UNITS to count the client.
UNITS = 4096
# The sampler draws no noise of a larger variance.
_MAX_VARIANCE = 2.0**52

TRUST = ('a trusted party adds up what clients contribute to a release, which it sees, '
         'and adds the noise')
SAMPLER = 'discrete Gaussian noise by rejection in integers'


def tail(variance: float, start: int) -> float:
  """An upper bound on the probability that discrete Gaussian noise is >= start.

  Args:
    variance: v > 0, grid units squared, as given to the sampler.
    start: >= 1.
  """
  # The sampler rounds its standard deviation up.
  relative, absolute = _SIGMA_ERRORS
  stddev = math.sqrt(variance) * (1 + relative) + absolute
  variance = stddev * stddev
  end = start + math.ceil(_REACH * (stddev + 1))
  k = np.arange(start, end, dtype=np.float64)
  terms = np.exp(-k * k / (2 * variance))
  # Beyond the end, each term is at most exp(-end / v) times the one before.
  rest = math.exp(-end * end / (2 * variance)) / -math.expm1(-end / variance)
  # Poisson summation: the sum over all integers is at least sqrt(2 pi v).
  total = max(1.0, math.sqrt(2 * math.pi * variance))
  return min(1.0, (float(terms.sum()) + rest) / total * (1 + 1e-9))


def failure(variance: float, items: int, threshold: int) -> float:
  """An upper bound on the probability that one of a client's own keys is released."""
  return -math.expm1(items * math.log1p(-min(tail(variance, threshold - 1), 0.5)))


def threshold(variance: float, items: int, most: float) -> int:
  """The minimum threshold whose failure is at most `most`, in (0, 1/2)."""
  low, high = 2, 4
  while failure(variance, items, high) > most:
    low, high = high, 2 * high
  while low < high:
    middle = (low + high) // 2
    if failure(variance, items, middle) > most:
      low = middle + 1
    else:
      high = middle
  return low


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreliminaryRelease(base.Event):
  """Integers of all clients with discrete Gaussian noise, once; see the module.

  Attributes:
    l2_sensitivity: L2 norm of one client's integers, zero-out, > 0.
    noise_variance: Variance of the noise of each integer, > 0.
    dimension: Maximum number of integers, >= 1.
    items: Maximum number of keys that a client adds to, each by 1; 0 if keys are
      public.
    threshold: Minimum noisy count of a key that is released, >= 2; None if keys are
      public.
  """

  l2_sensitivity: float
  noise_variance: float
  dimension: int
  items: int = 0
  threshold: int | None = None

  adjacency = base.ZERO_OUT
  source = 'arXiv 2004.00010, Theorem 14; arXiv 2002.09745, section 4 (threshold)'

  def __post_init__(self):
    validate.positive(l2_sensitivity=self.l2_sensitivity,
                      noise_variance=self.noise_variance)
    validate.integer(dimension=self.dimension, low=1)
    validate.integer(items=self.items, low=0)
    if (self.items == 0) != (self.threshold is None):
      raise ValueError('threshold must be given exactly where keys are private, '
                       f'found items={self.items!r} and threshold={self.threshold!r}')
    if self.items:
      validate.integer(threshold=self.threshold, low=2)
      if self.l2_sensitivity**2 < self.items * (1 - 1e-12):
        raise ValueError(
            f'l2_sensitivity must be at least the square root of items={self.items!r}, '
            f'found {self.l2_sensitivity!r}')

  @property
  def sensitivity(self) -> str:
    return f'L2 {self.l2_sensitivity:.6g} in integers'

  @property
  def noise_multiplier(self) -> float:
    return math.sqrt(self.noise_variance) / self.l2_sensitivity

  @property
  def total_variation(self) -> float:
    """Distance of the release from that of ideal noise."""
    return min(1.0, self.dimension * _DRAW_ERROR)

  def failure_probability(self) -> float:
    if not self.items:
      return 0.0
    return failure(self.noise_variance, self.items, self.threshold)

  def curve(self, max_order: int, amplification: str) -> np.ndarray:
    return curves.gaussian(self.noise_multiplier, max_order) - math.log1p(
        -self.failure_probability())

  def replace_one(self) -> 'PreliminaryRelease':
    # Either client's own keys may fail, each in one direction of the divergence.
    return dataclasses.replace(self, l2_sensitivity=2 * self.l2_sensitivity)

  def check_sampled(self) -> None:
    """Passes: `FixedSizeSampled` of all clients states it for replaced clients."""

  def caveats(self) -> tuple[caveats_lib.Caveat, ...]:
    return (caveats_lib.Caveat(
        'a release before training is central',
        f'before the first round {TRUST}; no epsilon holds against it'),)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationRelease(PreliminaryRelease):
  """Metrics of clients' held-out examples, as integers, after the last round.

  A client contributes an integer for each metric and one by which clients are counted;
  one without such examples contributes zeros. See `UNITS`. Gaussian noise stands for
  the noise as in docs/skellam_as_gaussian.md, so that the rounds keep their accountant.
  """

  def skellam_coordinates(self) -> int:
    return self.dimension

  def as_gaussian(self, distance: float) -> base.Event:
    removed = math.log(8 / distance) / (2 * math.pi**2)
    if removed >= self.noise_variance / 2:
      return self
    return sum_events.CentralGaussian(noise_multiplier=math.sqrt(
        self.noise_variance - removed) / self.l2_sensitivity)

  def caveats(self) -> tuple[caveats_lib.Caveat, ...]:
    return (caveats_lib.Caveat(
        'evaluation of clients is central',
        f'after the last round {TRUST}; no epsilon holds against it'),)


def planned(*, l2_sensitivity: float, dimension: int, items: int, epsilon: float,
            delta: float, replace_one_of: int | None = None,
            kind: type[PreliminaryRelease] = PreliminaryRelease) -> base.Event:
  """The release with the minimum noise for an epsilon of its own, and a threshold.

  Args:
    l2_sensitivity: As in `PreliminaryRelease`.
    dimension: As there.
    items: As there.
    epsilon: Epsilon of this release alone, at delta.
    delta: Delta of the run; keys of a single client take FAILURE_FRACTION of it.
    replace_one_of: Number of clients, to state it for a replaced client; None for
      zero-out.
    kind: Class of the release.

  Raises:
    ValueError: If the target can't be met.
  """
  def event(z: float, **keys: Any) -> base.Event:
    release = kind(
        l2_sensitivity=l2_sensitivity, dimension=dimension,
        noise_variance=(z * l2_sensitivity)**2, **keys)
    return release if replace_one_of is None else combinators.FixedSizeSampled(
        event=release, cohort_size=replace_one_of, population=replace_one_of)

  if not items:
    return event(calibration.noise_multiplier(event, epsilon=epsilon, delta=delta))
  # As if keys failed as often as they may: what they do jumps with the threshold, and
  # epsilon would not fall with the noise.
  most = FAILURE_FRACTION * delta
  z = calibration.noise_multiplier(
      event, epsilon=epsilon + math.log1p(-most), delta=delta - most)
  return event(z, items=items, threshold=threshold(
      (z * l2_sensitivity)**2, items, most))


def planned_evaluation(metrics: int, *, epsilon: float, delta: float,
                       replace_one_of: int | None = None) -> base.Event:
  """The release of so many metrics, and of how many clients have them; as `planned`."""
  try:
    event = planned(
        l2_sensitivity=UNITS * math.sqrt(metrics + 1), dimension=metrics + 1, items=0,
        epsilon=epsilon, delta=delta, replace_one_of=replace_one_of,
        kind=EvaluationRelease)
  except calibration.Unreachable:
    event = None
  if event is None or release_of(event).noise_variance > _MAX_VARIANCE:
    raise ValueError(
        f'private_evaluation={epsilon:g} is too small: the sampler can\'t draw noise '
        'of that size')
  return event


def release_of(event: base.Event) -> PreliminaryRelease:
  """The release inside an event of `planned`."""
  return event.event if isinstance(event, combinators.FixedSizeSampled) else event


def count(lines: Iterable[Mapping[str, Any]],
          *kinds: type[PreliminaryRelease]) -> int:
  """Number of lines of a ledger that are of such releases; of all kinds, or of some."""
  names = {kind.__name__ for kind in kinds or (PreliminaryRelease, EvaluationRelease)}
  return sum(not names.isdisjoint((
      line['event']['kind'], (line['event'].get('event') or {}).get('kind')))
             for line in lines)
