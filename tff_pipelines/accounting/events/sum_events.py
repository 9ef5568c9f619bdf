"""Events of sums over clients or records: Skellam, Gaussian and discrete Gaussian."""

import dataclasses
import math
from typing import Self

from dp_accounting import dp_event
import numpy as np

from aggregators import params as params_lib
from tff_pipelines.accounting.divergences import curves, pairs, skellam_as_gaussian
from tff_pipelines.accounting.events import base, combinators
from tff_pipelines.common import caveats as caveats_lib, validate


# Variance up to which values of one integer are listed one by one; above it a Gaussian
# is as good.
_MOST_LISTED = 1e6
# Rounding of a product leaves no more noise than there is.
_ROUNDING = 1 - 1e-12


def surviving_variance(noise_variance: float, surviving_fraction: float) -> float:
  """The variance of the noise if only a fraction of its shares is present."""
  validate.unit_interval(surviving_fraction=surviving_fraction)
  return noise_variance * surviving_fraction


class ClientSum(base.Release, abstract=True):
  """A sum over clients with noise that is symmetric about 0.

  A replaced client moves it by twice its sensitivity.
  """

  adjacency = base.ZERO_OUT
  failure_probability = base.never_fails

  def replace_one(self) -> base.Event:
    return self.scaled(2)


def _norm(column: tuple[int, ...]) -> float:
  return math.sqrt(params_lib.squared_norm(column))


def _without_own(event: base.Event, honest: float | None, colluders: float,
                 cohort: float | None) -> base.Event:
  """The sum with the noise that is left of `noise_variance` in a cohort."""
  if colluders and (cohort is None or cohort <= colluders):
    return combinators.NoPrivacy()
  if honest in (None, 1.0) and not colluders:
    return event
  return dataclasses.replace(event, noise_variance=_ROUNDING * (
      event.noise_variance / (honest or 1.0) * (
          1 - colluders / cohort if colluders else 1.0)))


class _IntegerSum(ClientSum, abstract=True):
  """A sum of integer vectors with integer noise.

  Attributes:
    l1_sensitivity, l2_sensitivity: Grid units, zero-out. For integer vectors
      l2 <= l1 <= l2^2.
    noise_variance: Variance per coordinate of the honest noise, grid units squared
      (0: no guarantee).
    cohort_size: Expected number of clients, for the record; None if unknown.
  """

  l1_sensitivity: validate.Positive
  l2_sensitivity: validate.Positive
  noise_variance: validate.NonNegative
  cohort_size: validate.Positive | None = None
  pure_epsilon = base.not_pure
  factors = base.no_known_pair

  def __post_init__(self):
    if self.l1_sensitivity < self.l2_sensitivity * (1 - 1e-12):
      raise ValueError('l1_sensitivity must be at least l2_sensitivity='
                       f'{self.l2_sensitivity!r}, found {self.l1_sensitivity!r}')

  @classmethod
  def from_params(cls, params: params_lib.DistributedSumParams,
                  surviving_fraction: float = 1.0) -> Self:
    """The event of one round; shares are sized for the largest cohort.

    Scale and sensitivities are fixed before clients drop out: only a
    `surviving_fraction` of the planned noise, in [0, 1], is present.

    Raises ValueError if the grid is so coarse that every vector is rounded to zero.
    """
    if not params.l2_sensitivity_squared:
      raise ValueError(f'degenerate setting: {params.degeneracy()}')
    values = dict(
        l1_sensitivity=params.l1_sensitivity, l2_sensitivity=params.l2_sensitivity,
        noise_variance=surviving_variance(params.noise_variance, surviving_fraction),
        cohort_size=params.cohort_size, min_honest_fraction=params.min_honest_fraction,
        local_variance=params.total_noise_variance / params.most_shares,
        clients=math.ceil(params.most_shares), dimension=params.padded_dimension)
    return cls(**{field.name: values[field.name] for field in dataclasses.fields(cls)})

  def _with_clients(self, times: int) -> Self:
    """The sum if so many contributions differ."""
    return dataclasses.replace(self, l1_sensitivity=times * self.l1_sensitivity,
                               l2_sensitivity=times * self.l2_sensitivity)

  def rows(self, column: tuple[int, ...]) -> Self:
    # One vector with all rows side by side: the contribution is the same in all.
    dimension = getattr(self, 'dimension', None)
    return dataclasses.replace(
        self, l1_sensitivity=sum(column) * self.l1_sensitivity,
        l2_sensitivity=_norm(column) * self.l2_sensitivity,
        **({} if dimension is None else {'dimension': len(column) * dimension}))

  def replace_one(self) -> Self:
    # Twice the bound of a rounded vector, not the bound of a doubled clip: the
    # difference of two rounded vectors is what moves the sum.
    return self._with_clients(2)


class _WithSkellam(ClientSum, abstract=True):
  """A sum of `l1_sensitivity` and `l2_sensitivity` with noise of `noise_variance`."""

  caveats = base.no_caveats
  pure_epsilon = base.not_pure

  def curve(self, max_order: int, amplification: str) -> np.ndarray:
    return curves.skellam(l1=self.l1_sensitivity, l2=self.l2_sensitivity,
                          variance=self.noise_variance, max_order=max_order)

  def as_gaussian(self, distance: float) -> base.Event:
    return gaussian_of_skellam(self, variance=self.noise_variance,
                               l2_sensitivity=self.l2_sensitivity, distance=distance)


class _SkellamSum(_WithSkellam, _IntegerSum, abstract=True):
  """A sum of integer vectors with Skellam noise.

  Attributes:
    dimension: Number of coordinates (padded); None if unknown, and then Skellam noise
      is accounted as such.
  """

  dimension: validate.Count | None = None

  source = ('docs/skellam_as_gaussian.md (PLD of a Gaussian); arXiv 2110.04995, '
            'Theorem 3.5 and Corollary 3.6 (RDP)')

  is_additive = base.yes

  def factors(self, amplification: str) -> base.Factors | None:
    if self.dimension != 1 or not 0 < self.noise_variance <= _MOST_LISTED:
      return None
    # The largest integer is the worst: docs/skellam_as_gaussian.md.
    shift = math.floor(min(self.l1_sensitivity, self.l2_sensitivity) * (1 + 1e-9))
    return ((pairs.Skellam(shift=max(shift, 1), variance=self.noise_variance), 1),)

  def skellam_coordinates(self) -> int:
    return self.dimension or 0

  def scaled(self, clients: int) -> Self:
    # One round with all clients stands for as many rounds as clients: what Skellam
    # noise lacks to Gaussian noise is paid in each.
    return dataclasses.replace(self._with_clients(clients),
                               dimension=self.dimension and clients * self.dimension)


class _Shares(_IntegerSum, abstract=True):
  """A sum of integer vectors to which clients add shares of the noise.

  Attributes:
    min_honest_fraction: Fraction of the shares counted on, for the record.
  """

  min_honest_fraction: validate.Fraction | None = None

  is_known_in_part = base.yes

  def honest_fraction(self) -> float:
    return self.min_honest_fraction or 1.0

  def minimum_cohort(self) -> float | None:
    return self.cohort_size

  def seen(self, colluders: float, cohort: float | None) -> base.Event:
    return _without_own(self, self.min_honest_fraction, colluders,
                        self.cohort_size if cohort is None else cohort)


class DistributedSkellam(_SkellamSum, _Shares):
  """A sum of integer vectors to which clients add shares of Skellam noise."""


class CentralSkellam(_SkellamSum, base.WithoutShares):
  """A sum of integer vectors; the server adds all the Skellam noise, once."""


class DistributedDiscreteGaussian(_Shares):
  """A sum of integer vectors with shares of discrete Gaussian noise.

  Attributes:
    local_variance: Variance of one share, grid units squared. Below 1/4 the theorem
      says nothing, and epsilon is infinite.
    clients: Number of shares; an upper bound is safe.
    dimension: Number of coordinates (padded).
  """

  local_variance: validate.NonNegative
  clients: validate.Count
  dimension: validate.Count

  source = 'arXiv 2102.06387, Theorem 1 and Proposition 14'

  def curve(self, max_order: int, amplification: str) -> np.ndarray:
    return curves.distributed_discrete_gaussian(
        l1=self.l1_sensitivity, l2=self.l2_sensitivity,
        variance=self.noise_variance, local_variance=self.local_variance,
        clients=self.clients, dimension=self.dimension, max_order=max_order)

  def scaled(self, clients: int) -> Self:
    return self._with_clients(clients)

  def caveats(self) -> tuple[caveats_lib.Caveat, ...]:
    return () if self.local_variance >= 0.25 else (caveats_lib.Caveat(
        'noise shares below the grid',
        'the noise share of a client has a standard deviation below half a grid unit, '
        'for which nothing is proved: use more bits or more noise'),)


class GaussianNoise(base.Release, base.WithoutShares, abstract=True):
  """One release with Gaussian noise, of whose worst pair kinds say what is known.

  Attributes:
    noise_multiplier: Noise standard deviation over L2 sensitivity (0: no guarantee).
  """

  noise_multiplier: validate.NonNegative

  failure_probability = base.never_fails
  caveats = base.no_caveats
  pure_epsilon = base.not_pure

  def curve(self, max_order: int, amplification: str) -> np.ndarray:
    return curves.gaussian(self.noise_multiplier, max_order)


class WorstOfGaussian(GaussianNoise, abstract=True):
  """One whose worst pair is that of the noise."""

  def factors(self, amplification: str) -> base.Factors:
    return base.EVERYTHING if self.noise_multiplier == 0 else (
        (pairs.Gaussian(noise_multiplier=self.noise_multiplier), 1),)


class _GaussianSum(WorstOfGaussian, ClientSum, abstract=True):
  """A sum of vectors to which a server adds Gaussian noise."""

  is_additive = base.yes

  def scaled(self, clients: int) -> Self:
    return dataclasses.replace(self, noise_multiplier=self.noise_multiplier / clients)

  def rows(self, column: tuple[int, ...]) -> Self:
    return dataclasses.replace(
        self, noise_multiplier=self.noise_multiplier / _norm(column))

  def to_dp_accounting(self) -> dp_event.DpEvent:
    return dp_event.GaussianDpEvent(self.noise_multiplier)


class CentralGaussian(_GaussianSum):
  """A sum of clipped vectors; the server adds all the Gaussian noise, once.

  Real-valued noise in floating point carries the guarantee of ideal arithmetic only.
  """

  source = 'arXiv 1702.07476, Corollary 3; PLD of N(0, z^2) against N(1, z^2)'


class GaussianOfSkellam(_GaussianSum):
  """A sum with Gaussian noise of which one with Skellam noise is a post-processing.

  Attributes:
    variance: Certified variance of the Skellam noise in a coordinate, at most its own,
      grid units squared.
    removed: By how much the variance of the Gaussian noise is smaller.
    nodes: Number of Gaussians in the certificate.
    total_variation: Distance that it certifies for each coordinate.
    dimension: Number of coordinates.
  """

  variance: float
  removed: float
  nodes: int
  total_variation: float
  dimension: int

  source = 'docs/skellam_as_gaussian.md'

  def certificate(self) -> dict[str, float]:
    """Its certificate as JSON, for whoever wants to verify it."""
    return {name: getattr(self, name) for name in (
        'variance', 'removed', 'nodes', 'total_variation', 'dimension')}


def certificates(event: base.Event) -> tuple[GaussianOfSkellam, ...]:
  """The distinct sums in an event that `as_gaussian` gave Gaussian noise."""
  if isinstance(event, GaussianOfSkellam):
    return (event,)
  return tuple(dict.fromkeys(certificate for part in base.parts(event)
                             for certificate in certificates(part)))


def gaussian_of_skellam(event: base.Event, *, variance: float, l2_sensitivity: float,
                        distance: float) -> base.Event:
  """`as_gaussian` of a zero-out sum with Skellam noise of this variance, grid units."""
  if variance == 0 or not event.skellam_coordinates():
    return event
  certificate = skellam_as_gaussian.find(variance, distance)
  if certificate is None:
    return event
  return GaussianOfSkellam(
      noise_multiplier=certificate.gaussian_variance**0.5 / l2_sensitivity,
      variance=float(certificate.variance), removed=float(certificate.removed),
      nodes=certificate.nodes, total_variation=certificate.total_variation,
      dimension=event.skellam_coordinates())


class SkellamCount(_WithSkellam, base.WithoutShares):
  """An integer count with Skellam noise.

  A clipped-or-not bit sent as +1 or -1 has zero-out sensitivity 1.

  Attributes:
    l1_sensitivity: By how much one client moves the count.
    noise_variance: Variance of the honest noise (0: no guarantee).
  """

  l1_sensitivity: validate.Count = 1
  noise_variance: validate.NonNegative

  source = 'arXiv 2110.04995, Theorem 3.5; PLD of section 3.1 there'
  l2_sensitivity = property(lambda self: self.l1_sensitivity)

  def factors(self, amplification: str) -> base.Factors:
    return base.EVERYTHING if self.noise_variance == 0 else (
        (pairs.Skellam(shift=self.l1_sensitivity, variance=self.noise_variance), 1),)

  def skellam_coordinates(self) -> int:
    return 1

  def scaled(self, clients: int) -> Self:
    return dataclasses.replace(self, l1_sensitivity=clients * self.l1_sensitivity)

  def rows(self, column: tuple[int, ...]) -> base.Event:
    if len(column) == 1:
      return self.scaled(column[0])
    # Pairs of several integers are slow to multiply; Gaussian noise stands for theirs.
    return CentralSkellam(
        l1_sensitivity=sum(column) * self.l1_sensitivity, dimension=len(column),
        l2_sensitivity=_norm(column) * self.l1_sensitivity,
        noise_variance=self.noise_variance)

  # Alongside a sum of shares its noise is in shares too; alone the server adds it.
  def seen(self, colluders: float, cohort: float | None) -> base.Event:
    return _without_own(self, None, colluders, cohort)
