"""Events of releases before the first round and after the last.

Before the first round, such as a vocabulary; after the last, an evaluation. A trusted
party adds up integers of all clients and adds discrete Gaussian noise to each, once.
Where the keys of the integers are private themselves, as words are, a client adds at
most 1 to each of a bounded number of keys, and a key is released only if its noisy
count reaches a threshold.

Formal guarantees, zero-out adjacency:

* Public keys: the Renyi divergence at order alpha is at most
  alpha l2_sensitivity^2 / (2 noise_variance), arXiv 2004.00010, Theorem 14. Up to a
  distance, the release is a post-processing of one with slightly less Gaussian noise
  (docs/skellam_as_gaussian.md).
* Private keys: let U be the keys that the client alone has, at most `items`. With the
  client, no key of U is released except with probability `failure`, at most
  1 - (1 - P[N >= threshold - 1])^items for the noise N; without it, none is. The other
  keys have counts and noise as above, independent of U's. So the failure, a distance in
  total variation, is a leak in addition (docs/proofs.md). The threshold is that of
  arXiv 2002.09745, section 4, for integer noise.
"""

import bisect
from collections.abc import Iterable, Mapping
import dataclasses
import math
from typing import Any, ClassVar, Self

import numpy as np

from tff_pipelines.accounting.divergences import curves, pairs
from tff_pipelines.accounting.events import base, combinators, sum_events
from tff_pipelines.common import caveats as caveats_lib, validate

# The sampler's standard deviation is at most this much larger: relative, absolute.
_SIGMA_ERRORS = 2.0**-22, 2.0**-24
# Total variation of one draw from the discrete Gaussian.
_DRAW_ERROR = 2.0**-80
_REACH = 40.0

# In an evaluation a client's integers are from -UNITS to UNITS: one for each metric,
# -UNITS at 0 and UNITS at 1, and UNITS to count the client.
UNITS = 4096

TRUST = ('a trusted party adds up what clients contribute to a release, which it sees, '
         'and adds the noise')
SAMPLER = 'discrete Gaussian noise by rejection in integers'


def tail(variance: float, start: int) -> float:
  """An upper bound on the probability that discrete Gaussian noise is >= start.

  Args:
    variance: v > 0, grid units squared, as given to the sampler.
    start: At least 1.
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
  high = 4
  while failure(variance, items, high) > most:
    high *= 2
  return 2 + bisect.bisect_left(
      range(2, high), True, key=lambda least: failure(variance, items, least) <= most)


class PrivateKeys(sum_events.WorstOfGaussian):
  """Gaussian noise on counts of private keys, of which some are a single client's.

  Attributes:
    failure: Probability that a key of the client alone is released.
  """

  failure: validate.UnitInterval

  adjacency = base.ZERO_OUT
  source = 'docs/proofs.md'
  scaled = base.no_known_group

  def failure_probability(self) -> float:
    return self.failure

  def factors(self, amplification: str) -> base.Factors:
    leak = ((pairs.Leak(probability=self.failure), 1),) if self.failure else ()
    return super().factors(amplification) + leak

  def replace_one(self) -> Self:
    # Counts of two clients are farthest apart if they have no key in common.
    return dataclasses.replace(
        self, noise_multiplier=self.noise_multiplier / math.sqrt(2))


class CentralRelease(base.Release, base.WithoutShares, abstract=True):
  """Integers of all clients with discrete Gaussian noise, once; see the module.

  Attributes:
    l2_sensitivity: L2 norm of one client's integers, zero-out.
    noise_variance: Variance of the noise of each integer.
    dimension: Maximum number of integers.
    items: Maximum number of keys that a client adds to, each by 1; 0 if keys are public.
    threshold: Minimum noisy count of a key that is released, >= 2; None with public keys.
  """

  l2_sensitivity: validate.Positive
  noise_variance: validate.Positive
  dimension: validate.Count
  items: int = 0
  threshold: int | None = None

  adjacency = base.ZERO_OUT
  source = 'arXiv 2004.00010, Theorem 14; arXiv 2002.09745, section 4 (threshold)'
  pure_epsilon = base.not_pure
  factors = base.no_known_pair
  stage: ClassVar[tuple[str, str]]  # Name of its caveat; when it happens, in words.

  def __post_init__(self):
    validate.integer(items=self.items, low=0)
    if (self.items == 0) != (self.threshold is None):
      raise ValueError('threshold must be given exactly where keys are private, '
                       f'found items={self.items!r} and threshold={self.threshold!r}')
    if self.items:
      validate.integer(threshold=self.threshold, low=2)
      if self.l2_sensitivity**2 < self.items * (1 - 1e-12):
        raise ValueError('l2_sensitivity must be at least the square root of items='
                         f'{self.items!r}, found {self.l2_sensitivity!r}')

  @property
  def noise_multiplier(self) -> float:
    return math.sqrt(self.noise_variance) / self.l2_sensitivity

  @property
  def total_variation(self) -> float:
    """Distance of the release from that of ideal noise."""
    return min(1.0, self.dimension * _DRAW_ERROR)

  def failure_probability(self) -> float:
    return 0.0 if not self.items else failure(
        self.noise_variance, self.items, self.threshold)

  def curve(self, max_order: int, amplification: str) -> np.ndarray:
    return curves.gaussian(self.noise_multiplier, max_order)

  def skellam_coordinates(self) -> int:
    return self.dimension

  def as_gaussian(self, distance: float) -> base.Event:
    removed = math.log(8 / distance) / (2 * math.pi**2)
    if removed >= self.noise_variance / 2:
      return self
    z = math.sqrt(self.noise_variance - removed) / self.l2_sensitivity
    if not self.items:
      return sum_events.CentralGaussian(noise_multiplier=z)
    return PrivateKeys(noise_multiplier=z, failure=self.failure_probability())

  def replace_one(self) -> Self:
    # `FixedSizeSampled` of all clients states it for replaced clients. Own keys of one
    # are a leak in one direction, those of the other in the other.
    times = math.sqrt(2) if self.items else 2
    return dataclasses.replace(self, l2_sensitivity=times * self.l2_sensitivity)

  def scaled(self, clients: int) -> base.Event:
    # All of them may add to a key that no other client has.
    threshold_ = self.threshold and self.threshold - (clients - 1)
    if threshold_ is not None and threshold_ < 2:
      return combinators.NoPrivacy()
    return dataclasses.replace(self, l2_sensitivity=clients * self.l2_sensitivity,
                               items=clients * self.items, threshold=threshold_)

  def caveats(self) -> tuple[caveats_lib.Caveat, ...]:
    name, when = self.stage
    return (caveats_lib.Caveat(name, f'{when} {TRUST}; no epsilon holds against it'),)


class PreliminaryRelease(CentralRelease):
  """A release from clients before the first round, such as a vocabulary."""

  stage = 'a release before training is central', 'before the first round'


class EvaluationRelease(CentralRelease):
  """Metrics of clients' held-out examples, as integers, after the last round.

  A client contributes an integer for each metric and one by which clients are counted;
  one without such examples contributes zeros. See `UNITS`.
  """

  stage = 'evaluation of clients is central', 'after the last round'


def count(lines: Iterable[Mapping[str, Any]], *kinds: type[CentralRelease]) -> int:
  """Number of lines of a ledger that are of such releases; of all kinds, or of some."""
  return sum(issubclass(base.innermost_kind(line['event']), kinds or CentralRelease)
             for line in lines)
