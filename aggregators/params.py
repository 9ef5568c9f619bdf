"""Parameters of a distributed sum, and every number that follows from them.

The factories clip, scale, round and add noise by these numbers, and the accountant reads
the very same ones, so what is accounted is what runs. No TensorFlow here.

Units. "Model units" are those of a client's update. "Grid units" are the
integers that a client sends: one model unit is `scale` grid units.
"""

import dataclasses
import functools
import math

from aggregators import hadamard, noises
from tff_pipelines.common import declarations, validate
from tff_pipelines.common.declarations import REQUIRED, setting

ROTATIONS = ('hadamard', 'dft', 'none')

# The largest clip in grid units. A coordinate then fits an int32 and the sum of
# squares of a vector an int64, whatever the dimension; float32 updates carry
# no more than 24 bits, so a finer grid would buy nothing.
MAX_CLIP_GRID = 2.0**30
# The smallest: on a coarser grid nothing of a client is left, and float32 could
# not return to model units.
_MIN_CLIP_GRID = 2.0**-60
# Clients and the server compute in float32; within these bounds no norm, scale
# or sum of coordinates overflows or loses bits to subnormal numbers.
MIN_CLIP, MAX_CLIP = 1e-20, 1e20
# The largest weight of a sum in a row, and number of sums in one.
MAX_WEIGHT, MAX_BANDS = 2**10, 2**10
# Cohorts that clients disbelieve come by chance once in as many rounds; exp of this.
_DISBELIEVED_ODDS = math.log(1e9)


def has_enough(num_reporting, num_selected, min_honest_fraction: float,
               assumed_colluders: int):
  """Whether a sum may be opened: honest shares hold the noise that is counted on.

  In floats, NumPy arrays or float64 tensors alike. For m' reporting clients, m selected
  ones, h = `min_honest_fraction` in (0, 1], c >= 0 `assumed_colluders`: m' - c >= h m,
  bool, with a tolerance for the rounding of an integer h m;
  `share_tables.SHARE_EXCESS` makes up for it.
  """
  return (num_reporting - assumed_colluders
          >= min_honest_fraction * num_selected * (1 - 1e-9))


def check_column(column) -> tuple[int, ...]:
  """Weights of a row as a tuple of integers. Raises ValueError for other weights."""
  column = tuple(column)
  for index, weight in enumerate(column):
    validate.integer(**{f'column[{index}]': weight}, low=0, high=MAX_WEIGHT)
  if not column or column[0] == 0:
    raise ValueError(f'column must begin with a positive weight, found {column!r}')
  if len(column) > MAX_BANDS:
    raise ValueError(f'column must have at most {MAX_BANDS} weights, found {len(column)}')
  if len(column) == 1 and column != (1,):
    raise ValueError(f'column of one weight must be (1,), found {column!r}')
  return tuple(int(weight) for weight in column)


def squared_norm(column) -> int:
  """The squared norm of the weights of a row: what a client's contribution costs."""
  return sum(weight * weight for weight in column)


class NoiseShares:
  """Parameters of noise that clients add as shares, of which some may be missing.

  Subclasses are dataclasses with `bits`, `min_honest_fraction`, `assumed_colluders`,
  `noise_variance` and `has_shares`, whether clients add the noise.
  """

  def check_honest(self, selected: float) -> None:
    """Raises ValueError if even a round without dropouts would be suppressed."""
    validate.fraction(min_honest_fraction=self.min_honest_fraction)
    validate.integer(assumed_colluders=self.assumed_colluders, low=0)
    if self.has_shares and not self.has_enough(selected, selected):
      raise ValueError(f'assumed_colluders={self.assumed_colluders} leave fewer than '
                       f'min_honest_fraction={self.min_honest_fraction:g} of '
                       f'{selected:g} honest: every sum would be suppressed')

  def has_enough(self, num_reporting, num_selected):
    """`has_enough` by these parameters."""
    return has_enough(num_reporting, num_selected, self.min_honest_fraction,
                      self.assumed_colluders)

  @property
  def counted_on(self) -> float:
    """The fraction of the noise that the guarantee counts on, in (0, 1]."""
    return self.min_honest_fraction if self.has_shares else 1.0

  @functools.cached_property
  def total_noise_variance(self) -> float:
    """Variance of all the noise, no share missing, grid units or counts squared."""
    return self.noise_variance / self.counted_on

  @property
  def modulus(self) -> int:
    """2^bits; sums are known modulo this many grid units or counts."""
    return 2**self.bits

  def replace(self, **changes):
    """A copy with these fields changed, validated again."""
    return dataclasses.replace(self, **changes)


@declarations.documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class DistributedSumParams(NoiseShares):
  """A sum of integer vectors with integer noise (arXiv 2110.04995, 2102.06387).

  Adjacency is zero-out: neighbouring inputs differ in one client, whose vector
  is replaced by zero; it still participates and still adds its noise share.

  The guarantee rests on noise of standard deviation z * clip (model units) per
  coordinate of the sum, for z the noise multiplier; noise in all is 1/h times that, for
  h the `min_honest_fraction`. With a `column` g of several weights that is the noise of
  a row, and z * clip * |g| its standard deviation. A round is suppressed when the reporting clients less
  `assumed_colluders` are fewer than h times the selected ones. `max_cohort_size` bounds
  wrap-around only; privacy does not depend on it. With a mechanism by which the server,
  which is trusted, adds all the noise, these fractions have no effect.
  """

  clip: float = setting(REQUIRED, 'L2 clip of a client\'s update.', unit='model units',
                        low=MIN_CLIP, high=MAX_CLIP, essential=True)
  noise_multiplier: float = setting(
      REQUIRED, 'Noise standard deviation over the clip.', low=0, essential=True)
  bits: int = setting(
      REQUIRED, 'Bits of a coordinate of the sum.', low=2, high=30, essential=True)
  dimension: int = setting(REQUIRED, 'Coordinates of an update, unpadded.', low=1,
                           high=2**30, essential=True)
  cohort_size: float = setting(REQUIRED, 'Expected number of clients in a round.',
                               unit='clients', low=1, essential=True)
  beta: float = setting(
      0.60653066, 'Bias of the conditional rounding: a bound on the probability that '
      'one try fails; 0: the norm is bounded without one. The default is exp(-1/2).',
      low=0, below=1)
  k_stddevs: float = setting(4.0, 'Standard deviations of a coordinate of the sum that '
                             'fit into half the modulus.', above=0)
  rotation: str = setting(
      'hadamard', 'Rotation of an update before it is rounded; it decides the padding.',
      choices=ROTATIONS)
  min_honest_fraction: float = setting(
      1.0, 'Fraction of the selected clients whose noise the guarantee counts on; sums '
      'of fewer are suppressed.', above=0, high=1)
  assumed_colluders: int = setting(
      0, 'Clients of a round that are assumed to tell the server their noise.', low=0,
      unit='clients')
  max_cohort_size: float | None = setting(
      None, 'Clients that the modulus holds: under Poisson sampling an upper quantile '
      'of the cohort.', unit='clients', above=0, otherwise='cohort_size')
  cohort_limit: float | None = setting(
      None, 'No cohort is larger: the population, or a fixed size; see '
      '`believed_cohort`.', above=0, unit='clients', otherwise='not known')
  sqrtn_norm_growth: bool = setting(
      False, 'Size the modulus for vectors that are nearly orthogonal: n instead of n^2 '
      'in the heuristic of the scale.')
  fixed_scale: float | None = setting(
      None, 'Grid units per model unit, fixed instead of derived from the bits.', above=0)
  column: tuple[int, ...] = setting(
      (1,), 'Weights of the sums of this round and those before it in the row that a '
      'round opens, the latest first (`banded_sum`).', low=0, high=MAX_WEIGHT)
  mechanism: str = setting(
      'skellam', 'Mechanism of the noise: clients add shares of it, or, with '
      'skellam_central, the server adds all.', choices=noises.NOISES)

  def __post_init__(self):
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if hasattr(value, 'item'):  # A NumPy scalar, which would wrap around.
        object.__setattr__(self, field.name, value.item())
    object.__setattr__(self, 'column', check_column(self.column))
    declarations.check(self)
    self.check_honest(self.cohort_size)
    if self.most_shares < self.cohort_size:
      raise ValueError(f'max_cohort_size must be at least cohort_size='
                       f'{self.cohort_size!r}, found {self.max_cohort_size!r}')
    if self.fixed_scale is not None and not (
        _MIN_CLIP_GRID <= self.fixed_scale * self.clip <= MAX_CLIP_GRID):
      raise ValueError('fixed_scale times clip must be in [2^-60, 2^30] grid units, '
                       f'found {self.fixed_scale!r} * {self.clip!r}')
    self.scale  # Raises when the bits can't hold the cohort.

  @property
  def noise(self) -> noises.Noise:
    """The object of the mechanism."""
    return noises.named(self.mechanism)

  @property
  def has_shares(self) -> bool:
    """Whether clients add the noise, and some of it may be missing."""
    return self.noise.has_shares

  @property
  def sent_dimension(self) -> int:
    """Number of integers that a client sends: D, or 2 D where sums stay closed."""
    return self.padded_dimension * (1 if len(self.column) == 1 else 2)

  @property
  def padded_dimension(self) -> int:
    """Number of coordinates D of a sum."""
    if self.rotation == 'hadamard':
      return hadamard.padded(self.dimension)
    return self.dimension + (self.dimension % 2 if self.rotation == 'dft' else 0)

  @property
  def rotation_order(self) -> str | None:
    """The order of the Hadamard matrix, such as 20 * 2^18; None for other rotations."""
    return hadamard.name(self.padded_dimension) if self.rotation == 'hadamard' else None

  @functools.cached_property
  def scale(self) -> float:
    """Grid units per model unit (arXiv 2102.06387, section 4).

    The largest for which `k_stddevs` standard deviations of a coordinate of the sum of
    `max_cohort_size` clients, with all the noise, stay inside the field; of a row of
    sums that have the same direction, where it has several.
    """
    if self.fixed_scale is not None:
      return float(self.fixed_scale)
    cohort, k, z = self.most_shares, float(self.k_stddevs), float(self.noise_multiplier)
    # Products and not powers, which raise OverflowError.
    total, square = sum(self.column), squared_norm(self.column)
    # Rounding errors and noise of a row's sums add in squares, their values as they are.
    if (room := 4.0**self.bits - cohort * (k * k) * square) <= 0:
      needed = math.floor(math.log2(k) + math.log2(cohort * square) / 2) + 1
      raise ValueError(f'bits={self.bits} are too few for a cohort of {cohort:g} and '
                       f'k_stddevs={k:g}: at least {max(2, needed)} bits are needed')
    growth = cohort if self.sqrtn_norm_growth else cohort * cohort
    spread = (growth * (total * total) / self.padded_dimension
              + z * z * square / self.counted_on)
    if (clip_grid := math.sqrt(room) / math.sqrt(spread) / (2 * k)) < _MIN_CLIP_GRID:
      raise ValueError(
          f'noise_multiplier={z:g}, min_honest_fraction={self.min_honest_fraction:g} '
          f'and a cohort of {cohort:g} leave nothing of the clip at bits={self.bits}')
    return min(clip_grid, MAX_CLIP_GRID) / self.clip

  @property
  def clip_grid(self) -> float:
    """The clip s * c in grid units, before rounding."""
    return self.scale * self.clip

  @functools.cached_property
  def l2_sensitivity_squared(self) -> int:
    """The integer that the squared norm of a rounded vector never exceeds.

    floor of min{(s c + sqrt D)^2, s^2 c^2 + D/4 + sqrt(2 ln(1/beta)) (s c +
    sqrt(D)/2)} (arXiv 2102.06387, Theorem 1 and Proposition 22); grid units
    squared. The rounding compares with this very integer.
    """
    clip, dim = self.clip_grid, self.padded_dimension
    bound = (clip + math.sqrt(dim))**2
    if self.beta > 0:
      bound = min(bound, clip**2 + dim / 4 + math.sqrt(2 * math.log(1 / self.beta)) * (
          clip + math.sqrt(dim) / 2))
    return math.floor(bound)

  @property
  def l2_sensitivity(self) -> float:
    """L2 sensitivity Delta_2 of the rounded sum, grid units, zero-out."""
    return math.sqrt(self.l2_sensitivity_squared)

  @property
  def l1_sensitivity(self) -> float:
    """L1 sensitivity Delta_1 = min(sqrt(D) Delta_2, Delta_2^2), grid units."""
    return min(math.sqrt(self.padded_dimension) * self.l2_sensitivity,
               float(self.l2_sensitivity_squared))

  @property
  def noise_variance(self) -> float:
    """Variance mu per coordinate that the guarantee rests on, grid units^2."""
    stddev = self.clip_grid * self.noise_multiplier
    return stddev * stddev * squared_norm(self.column)

  @property
  def local_stddev_grid(self) -> float:
    """Standard deviation of one client's share in an expected cohort."""
    return math.sqrt(self.total_noise_variance / self.cohort_size)

  @property
  def most_shares(self) -> float:
    """The largest planned cohort; discrete Gaussian shares are never smaller."""
    return float(self.max_cohort_size or self.cohort_size)

  @functools.cached_property
  def believed_cohort(self) -> float:
    """The largest cohort size that clients believe; a share is never smaller.

    A client's share of the noise is one part of the cohort that the server tells: one
    beyond all cohorts would take the noise away. Clients believe what is planned, and
    up to `cohort_limit` what sampling exceeds less than once in 10^9 rounds (Bernstein:
    P[m >= n + sqrt(2 n t) + t/3] <= e^-t).
    """
    n, t = float(self.cohort_size), _DISBELIEVED_ODDS
    by_chance = n + math.sqrt(2 * n * t) + t / 3
    return max(self.most_shares, min(by_chance, self.cohort_limit or math.inf))

  def over_silos(self, silos: int, **changes) -> 'DistributedSumParams':
    """The sum over silos of the vectors of this one, on its grid.

    The modulus holds this one's `max_cohort_size` vectors; each of the silos, of which
    there is at least one, adds a share of the noise to the sum of its own.
    """
    return self.replace(fixed_scale=self.scale, cohort_size=silos, max_cohort_size=None,
                        cohort_limit=silos, **changes)

  def check_shares(self) -> None:
    """Raises ValueError if shares are too small for the mechanism's bound."""
    smallest = math.sqrt(self.total_noise_variance / self.most_shares)
    if self.noise_multiplier > 0 and smallest < self.noise.smallest_share:
      raise ValueError(f'mechanism={self.mechanism} needs noise shares of at least '
                       f'{self.noise.smallest_share:g} grid units in cohorts of up to '
                       f'{self.most_shares:g}, found {smallest:.3g} at bits={self.bits}')

  def degeneracy(self) -> str | None:
    """The reason why the grid is too coarse to be of use, or None.

    A run with less than a grid unit of clip, or a norm that rounding more than doubles,
    is still private, but the noise pays for the rounding.
    """
    where = (f'bits={self.bits}' if self.fixed_scale is None
             else f'scale={self.fixed_scale:g}')
    if self.clip_grid < 1:
      return f'the clip is {self.clip_grid:.3g} grid units, less than one, at {where}'
    if self.l2_sensitivity > 2 * self.clip_grid:
      return (f'rounding raises the sensitivity from {self.clip_grid:.4g} to '
              f'{self.l2_sensitivity:.4g} grid units, more than double, at {where}')
    return None


@declarations.documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class AdaptiveClipParams:
  """Parameters of a clip that follows a quantile of the norms (arXiv 1905.03871).

  Each client adds +1 to a count if its norm is at most the clip and -1 if it is
  above; zero-out adjacency moves that count by 1. Half of it, plus half the
  expected cohort, estimates how many clients are at most the clip.
  """

  count_stddev: float = setting(
      REQUIRED, 'Noise standard deviation of the count of clients at most the clip; 0: '
      'no guarantee.', low=0, unit='clients')
  target_quantile: float = setting(
      0.5, 'Fraction of the clients that an adaptive clip leaves unclipped.', above=0,
      below=1)
  learning_rate: float = setting(
      0.2, 'Learning rate of an adaptive clip: a round changes the clip by less than '
      'this fraction, except for noise.', above=0)

  def __post_init__(self):
    declarations.check(self)

  @property
  def sensitivity(self) -> int:
    """Sensitivity of the sum of the +1 and -1 to one client, zero-out."""
    return 1

  @property
  def noise_variance(self) -> float:
    """Variance that the guarantee rests on in the sum of the +1 and -1."""
    stddev = 2 * self.count_stddev
    return stddev * stddev
