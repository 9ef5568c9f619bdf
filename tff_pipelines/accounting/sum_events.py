"""Events of sums over clients: Skellam, discrete Gaussian, Gaussian, counts."""

import dataclasses
import math
from typing import ClassVar

import numpy as np

from aggregators import params as params_lib
from aggregators import validate
from tff_pipelines.accounting import base
from tff_pipelines.accounting import caveats as caveats_lib
from tff_pipelines.accounting import curves
from tff_pipelines.accounting import pairs


def _check_norms(l1_sensitivity: float, l2_sensitivity: float) -> None:
  """For integer vectors l2 <= l1 <= l2^2: a lower l1 is an impossible input."""
  validate.positive(l1_sensitivity=l1_sensitivity, l2_sensitivity=l2_sensitivity)
  if l1_sensitivity < l2_sensitivity * (1 - 1e-12):
    raise ValueError(
        f'l1_sensitivity must be at least l2_sensitivity={l2_sensitivity!r}, '
        f'found {l1_sensitivity!r}')


class ClientSum(base.Event):
  """A sum over clients with noise that is symmetric about 0."""

  @property
  def adjacency(self) -> str:
    return base.ZERO_OUT

  def check_sampled(self) -> None:
    pass


class _SkellamSum(ClientSum):
  """Base class of the distributed and the central Skellam sum."""

  @property
  def sensitivity(self) -> str:
    return (f'L1 {self.l1_sensitivity:.6g}, L2 {self.l2_sensitivity:.6g} grid '
            'units')

  def curve(self, max_order: int, amplification: str) -> np.ndarray:
    del amplification
    return curves.skellam(
        l1=self.l1_sensitivity, l2=self.l2_sensitivity,
        variance=self.noise_variance, max_order=max_order)

  def replace_one(self) -> 'ClientSum':
    # Twice the bound of a rounded vector, not the bound of a doubled clip: the
    # difference of two rounded vectors is what moves the sum.
    return dataclasses.replace(
        self, l1_sensitivity=2 * self.l1_sensitivity,
        l2_sensitivity=2 * self.l2_sensitivity)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistributedSkellam(_SkellamSum):
  """A sum of integer vectors to which clients add shares of Skellam noise.

  Attributes:
    l1_sensitivity: Grid units, zero-out, > 0.
    l2_sensitivity: Grid units, zero-out, > 0.
    noise_variance: Variance per coordinate of the honest clients' noise, grid
      units squared, >= 0 (0: no guarantee).
    cohort_size: Expected number of clients, for the record; None if unknown.
    min_honest_fraction: Fraction of the shares counted on, for the record.
  """

  l1_sensitivity: float
  l2_sensitivity: float
  noise_variance: float
  cohort_size: float | None = None
  min_honest_fraction: float | None = None

  source: ClassVar[str] = 'arXiv 2110.04995, Theorem 3.5 and Corollary 3.6'

  def __post_init__(self):
    _check_norms(self.l1_sensitivity, self.l2_sensitivity)
    validate.non_negative(noise_variance=self.noise_variance)
    if self.cohort_size is not None:
      validate.positive(cohort_size=self.cohort_size)
    if self.min_honest_fraction is not None:
      validate.fraction(min_honest_fraction=self.min_honest_fraction)

  @classmethod
  def from_params(cls, params: params_lib.DistributedSumParams,
                  surviving_fraction: float = 1.0) -> 'DistributedSkellam':
    """The event of one round.

    Args:
      params: Of the sum.
      surviving_fraction: Fraction of the planned noise that is there, in
        [0, 1], when clients drop out and nothing tops the noise up. Scale and
        sensitivities stay: they were fixed before.
    """
    return cls(
        l1_sensitivity=params.l1_sensitivity,
        l2_sensitivity=params.l2_sensitivity,
        noise_variance=base.scaled(params.noise_variance, surviving_fraction),
        cohort_size=params.cohort_size,
        min_honest_fraction=params.min_honest_fraction)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CentralSkellam(_SkellamSum):
  """A sum of integer vectors; the server adds all the Skellam noise, once.

  Attributes: as those of `DistributedSkellam`.
  """

  l1_sensitivity: float
  l2_sensitivity: float
  noise_variance: float
  cohort_size: float | None = None

  source: ClassVar[str] = 'arXiv 2110.04995, Theorem 3.5 and Corollary 3.6'

  def __post_init__(self):
    _check_norms(self.l1_sensitivity, self.l2_sensitivity)
    validate.non_negative(noise_variance=self.noise_variance)
    if self.cohort_size is not None:
      validate.positive(cohort_size=self.cohort_size)

  @classmethod
  def from_params(
      cls, params: params_lib.DistributedSumParams) -> 'CentralSkellam':
    """The event of one round; no share can be missing."""
    return cls(
        l1_sensitivity=params.l1_sensitivity,
        l2_sensitivity=params.l2_sensitivity,
        noise_variance=params.noise_variance,
        cohort_size=params.cohort_size)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistributedDiscreteGaussian(ClientSum):
  """A sum of integer vectors with shares of discrete Gaussian noise.

  Attributes:
    l1_sensitivity: Grid units, zero-out, > 0.
    l2_sensitivity: Grid units, zero-out, > 0.
    noise_variance: Variance per coordinate of the honest noise, grid units
      squared, >= 0.
    local_variance: Variance of one share, grid units squared, >= 0. Below 1/4
      the theorem says nothing, and epsilon is infinite.
    clients: Number of shares, >= 1; an upper bound is safe.
    dimension: Number of coordinates (padded), >= 1.
    cohort_size: Expected number of clients, for the record; None if unknown.
    min_honest_fraction: Fraction of the shares counted on, for the record.
  """

  l1_sensitivity: float
  l2_sensitivity: float
  noise_variance: float
  local_variance: float
  clients: int
  dimension: int
  cohort_size: float | None = None
  min_honest_fraction: float | None = None

  source: ClassVar[str] = 'arXiv 2102.06387, Theorem 1 and Proposition 14'

  def __post_init__(self):
    _check_norms(self.l1_sensitivity, self.l2_sensitivity)
    validate.non_negative(noise_variance=self.noise_variance,
                          local_variance=self.local_variance)
    validate.integer(clients=self.clients, low=1)
    validate.integer(dimension=self.dimension, low=1)
    if self.cohort_size is not None:
      validate.positive(cohort_size=self.cohort_size)
    if self.min_honest_fraction is not None:
      validate.fraction(min_honest_fraction=self.min_honest_fraction)

  @classmethod
  def from_params(
      cls, params: params_lib.DistributedSumParams,
      surviving_fraction: float = 1.0) -> 'DistributedDiscreteGaussian':
    """The event of one round; shares sized for the largest cohort."""
    cohort = params.max_cohort_size
    if cohort is None:
      cohort = params.cohort_size
    return cls(
        l1_sensitivity=params.l1_sensitivity,
        l2_sensitivity=params.l2_sensitivity,
        noise_variance=base.scaled(params.noise_variance, surviving_fraction),
        local_variance=params.total_noise_variance / cohort,
        clients=math.ceil(cohort),
        dimension=params.padded_dimension,
        cohort_size=params.cohort_size,
        min_honest_fraction=params.min_honest_fraction)

  @property
  def sensitivity(self) -> str:
    return (f'L1 {self.l1_sensitivity:.6g}, L2 {self.l2_sensitivity:.6g} grid '
            'units')

  def curve(self, max_order: int, amplification: str) -> np.ndarray:
    del amplification
    return curves.distributed_discrete_gaussian(
        l1=self.l1_sensitivity, l2=self.l2_sensitivity,
        variance=self.noise_variance, local_variance=self.local_variance,
        clients=self.clients, dimension=self.dimension, max_order=max_order)

  def replace_one(self) -> 'DistributedDiscreteGaussian':
    return dataclasses.replace(
        self, l1_sensitivity=2 * self.l1_sensitivity,
        l2_sensitivity=2 * self.l2_sensitivity)

  def caveats(self) -> tuple[caveats_lib.Caveat, ...]:
    if self.local_variance < 0.25:
      return (caveats_lib.Caveat(
          'noise shares below the grid',
          'the noise share of a client has a standard deviation below half '
          'a grid unit, for which the discrete Gaussian has no guarantee: '
          'use more bits or more noise'),)
    return ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class CentralGaussian(ClientSum):
  """A sum of clipped vectors; the server adds all the Gaussian noise, once.

  Real-valued noise in floating point carries the guarantee of ideal
  arithmetic only.

  Attributes:
    noise_multiplier: Noise standard deviation over L2 sensitivity, >= 0 (0: no
      guarantee).
  """

  noise_multiplier: float

  source: ClassVar[str] = (
      'arXiv 1702.07476, Corollary 3; PLD of N(0, z^2) against N(1, z^2)')

  def __post_init__(self):
    validate.non_negative(noise_multiplier=self.noise_multiplier)

  @property
  def sensitivity(self) -> str:
    return 'L2 1, in units of the clip'

  def curve(self, max_order: int, amplification: str) -> np.ndarray:
    del amplification
    return curves.gaussian(self.noise_multiplier, max_order)

  def factors(self, amplification: str) -> tuple[base.Factor, ...]:
    del amplification
    if self.noise_multiplier == 0:
      return ((pairs.Leak(probability=1.0), 1),)
    return ((pairs.Gaussian(noise_multiplier=self.noise_multiplier), 1),)

  def replace_one(self) -> 'CentralGaussian':
    return CentralGaussian(noise_multiplier=self.noise_multiplier / 2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SkellamCount(ClientSum):
  """An integer count with Skellam noise.

  A clipped-or-not bit sent as +1 or -1 has zero-out sensitivity 1.

  Attributes:
    l1_sensitivity: By how much one client moves the count, an integer >= 1.
    noise_variance: Variance of the honest noise, >= 0 (0: no guarantee).
  """

  l1_sensitivity: int = 1
  noise_variance: float

  source: ClassVar[str] = (
      'arXiv 2110.04995, Theorem 3.5; PLD of section 3.1 there')

  def __post_init__(self):
    validate.integer(l1_sensitivity=self.l1_sensitivity, low=1)
    validate.non_negative(noise_variance=self.noise_variance)

  @property
  def sensitivity(self) -> str:
    return f'{self.l1_sensitivity} in one coordinate'

  def curve(self, max_order: int, amplification: str) -> np.ndarray:
    del amplification
    return curves.skellam(
        l1=self.l1_sensitivity, l2=self.l1_sensitivity,
        variance=self.noise_variance, max_order=max_order)

  def factors(self, amplification: str) -> tuple[base.Factor, ...]:
    del amplification
    if self.noise_variance == 0:
      return ((pairs.Leak(probability=1.0), 1),)
    return ((pairs.Skellam(shift=self.l1_sensitivity,
                           variance=self.noise_variance), 1),)

  def replace_one(self) -> 'SkellamCount':
    return dataclasses.replace(self, l1_sensitivity=2 * self.l1_sensitivity)
