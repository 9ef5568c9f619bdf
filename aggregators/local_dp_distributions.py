"""Exact distributions of local mechanisms: integers and fractions, no TensorFlow.

A client maps a coordinate in [-1, 1] to a point of a public grid, at random, and
then draws the output from a distribution that depends on that point alone. What counts
for privacy is how much the distributions of two points differ: those are ratios of
integers here, which never exceed e^epsilon, point masses included.

Outputs are grid values times public constants that make them unbiased. "Unit"
below is the distance of two inputs 1 apart on the grid of the input.
"""

import fractions
import functools
import itertools
import math

from aggregators import alias_table
from tff_pipelines.common import validate

Fraction = fractions.Fraction

# A coin is an integer below 2^this, compared with a threshold.
COIN_BITS = 62
# An index is an integer below 2^this times the number of indices, shifted down.
INDEX_BITS = 40
# epsilon of one coordinate or coin. Below, the signal is lost in the rounding of
# probabilities; beyond, a lie is too rare for 62 bits, and nothing is protected anyway.
MIN_EPSILON, MAX_EPSILON = 1e-4, 36.0

# Room for the last digits of epsilon and of its exponential.
_SLACK = Fraction(1, 2**40)
# Outputs of the piecewise mechanism: those of the window, where there is room, and all.
_WINDOW = 1024
_MAX_OUTPUTS = 2**20
# The scale of Laplace noise, and the standard deviation of Gaussian noise, in units
# of the grid, at least; and units to 1, at most.
_FINENESS, _MAX_STEPS = 64, 2**20
# Laplace noise beyond this many scales is moved there: less than e^-30 of it.
_REACH = 30
_LAPLACE_BITS = 120
# Epsilon that the table of Laplace noise leaves for its last digits. With E = 2 epsilon
# / distance, the part of one coordinate, and x = E / 2 + _REACH, the smallest
# probability is x e^-x 2^86 units of the table or more, and a probability is off by
# half a unit (that of 0 by less than e^-x of itself). So the log of a ratio is off by
# e^x / (x 2^86) at most: 1.9e-7 at the largest E, 36, which has 5.4e-7 left; 5e-15 at
# the smallest that there is a table for, 2e-4, which has 3e-12 left; and in between
# too, as the quotient by E is convex. On the simplex, where E is 18 at most, a unit of
# the grid alone has as much left as it needs.
_LAPLACE_SLACK = 2.0**-26

MAX_CLASSES = 1024
# Sets of the largest of k random integers below M = 2^COIN_BITS differ in probability
# by a factor of (M + i) / (M - i), for each i < k, at most, whatever ties do.
_EVEN = 1 + Fraction(1, 2**40)


def check_epsilon(**arguments: float) -> None:
  """Raises ValueError unless every argument is an epsilon that mechanisms support."""
  validate.positive(**arguments)
  for name, value in arguments.items():
    if not MIN_EPSILON <= value <= MAX_EPSILON:
      raise ValueError(f'{name} must be from {MIN_EPSILON:g} to {MAX_EPSILON:g} for one '
                       f'coordinate, found {value!r}')


def _coin_threshold(epsilon: float, rounding: Fraction = Fraction(1),
                    lost: int = 0) -> int:
  """The largest t: t / (2^62 - t) is at most (e^epsilon - lost) / rounding.

  e^epsilon is rounded down by no more than one part in 2^39.
  """
  odds = (Fraction(math.exp(epsilon)) * (1 - _SLACK) - lost) / rounding
  return math.floor(odds * 2**COIN_BITS / (1 + odds))


def _index_probabilities(count: int) -> tuple[Fraction, Fraction]:
  """The smallest and the largest probability of one of `count` indices."""
  whole = 2**INDEX_BITS
  return Fraction(whole // count, whole), Fraction(-(-whole // count), whole)


class PiecewiseDistribution:
  """The piecewise mechanism on one coordinate (arXiv 1907.00782, section III-B).

  Outputs are the integers below `window + starts`. The input, as one of the starts
  0..starts, says where a window of outputs begins; the output is in the window with
  probability e^(epsilon/2) / (e^(epsilon/2) + 1), else one of the others. That is
  the published mechanism on a grid instead of an interval, and its mean is still
  a linear function of the start.

  Attributes:
    window: Outputs in the window.
    starts: Outputs outside, and the last start.
    outputs: Number of outputs.
    centre: The output that means 0.
    threshold: Threshold of the coin that says "in the window".
    unit: Distance of two outputs, model units, for which outputs are unbiased.
  """

  def __init__(self, epsilon: float):
    check_epsilon(epsilon=epsilon)
    growth = math.exp(epsilon / 2)
    self.window = max(1, min(_WINDOW, int(_MAX_OUTPUTS / (1 + growth))))
    self.starts = max(1, min(_MAX_OUTPUTS - self.window, round(self.window * growth)))
    self.outputs = self.window + self.starts
    self.centre = (self.outputs - 1) / 2
    # An output inside is likelier than one outside by this factor at most.
    rounding = (
        _index_probabilities(self.window)[1] / _index_probabilities(self.starts)[0])
    self.threshold = _coin_threshold(epsilon, rounding)
    inside = self._inside = self.threshold / 2**COIN_BITS
    per_start = inside - (1 - inside) * self.window / self.starts
    self.unit = 2.0 / (self.starts * per_start)

  def variance(self, z: float) -> float:
    """Variance of the output for an input in [-1, 1], model units squared."""
    inside, n, w = self._inside, self.outputs, self.window
    everywhere = (n * n - 1) / 12  # Mean square of an output about the centre.
    position = (z + 1) / 2 * self.starts
    low = math.floor(position)

    def square(start: int) -> float:
      middle = start + (w - 1) / 2 - self.centre
      window = (w * w - 1) / 12 + middle**2
      others = (n * everywhere - w * window) / self.starts
      return inside * window + (1 - inside) * others

    fraction = position - low
    mean_square = (1 - fraction) * square(low) + fraction * square(low + 1)
    return mean_square * self.unit**2 - z * z


class DuchiDistribution:
  """The mechanism of Duchi, Jordan and Wainwright on d coordinates.

  Coordinates are rounded to signs v; a uniform sign vector t is turned so that it
  agrees with v, in the sense of t.v > 0, with probability
  e^epsilon / (e^epsilon + 1). Where t.v = 0, which only an even d allows, t stays
  as it is. (The published form, arXiv 1907.00782, Algorithm 3, puts such t into both
  halves, where they are twice as likely: as private, but B is larger, 5.06 instead
  of 4.06 times (e^epsilon + 1)/(e^epsilon - 1) at d = 10.) Outputs are B t.

  Attributes:
    dimension: d.
    threshold: Threshold of the coin that says "agree".
    bound: B.
  """

  def __init__(self, epsilon: float, dimension: int = 1):
    check_epsilon(epsilon=epsilon)
    validate.integer(dimension=dimension, low=1)
    self.dimension = dimension
    self.threshold = _coin_threshold(epsilon)
    # E|t.v| / d is the probability that a walk of 2 m steps ends where it began.
    m = dimension // 2
    agreement = math.exp(
        math.lgamma(2 * m + 1) - 2 * math.lgamma(m + 1) - 2 * m * math.log(2))
    coins = 2**COIN_BITS
    self.bound = 1.0 / ((2 * self.threshold - coins) / coins * agreement)

  def variance(self, z: float) -> float:
    """Variance of a coordinate of the output, for a coordinate z of the input."""
    return self.bound**2 - z * z


class SubsetDistribution:
  """Subset selection: a set of `size` of k classes that tends to hold the own one.

  If a coin is below `threshold`, the set holds the own class and any others, else it is
  any set; e^epsilon times likelier, at most, if it holds the own class (arXiv
  1702.00610, 1607.08025). With `size` 1 it is k-ary randomized response. `inside` and
  `outside` are the probabilities that it holds the own class, and another. Outputs are
  linear in its indicator: in the mean 1 for the own class, -1 for others.
  """

  def __init__(self, epsilon: float, dimension: int, size: int | None = None):
    """Initializes the distribution; `size` is `subset_size` if it is None."""
    check_epsilon(epsilon=epsilon)
    validate.integer(dimension=dimension, low=2, high=MAX_CLASSES)
    self.dimension = dimension
    self.size = subset_size(epsilon, dimension) if size is None else size
    validate.integer(size=self.size, low=1, high=dimension - 1)
    self.threshold = _coin_threshold(
        epsilon, _EVEN * Fraction(dimension, self.size), lost=1)
    own = self.threshold / 2**COIN_BITS
    any_set = (1 - own) * self.size / dimension
    self.inside = own + any_set
    self.outside = own * (self.size - 1) / (dimension - 1) + any_set

  def variance(self, z: float) -> float:
    """Variance of a coordinate, which is of the own class if z is 1."""
    chance = self.inside if z == 1 else self.outside
    return 4 * chance * (1 - chance) / (self.inside - self.outside)**2


def subset_size(epsilon: float, classes: int) -> int:
  """The size of sets, about k / (1 + e^epsilon), with the minimum total variance."""
  def total(size: int) -> float:
    dist = SubsetDistribution(epsilon, classes, size)
    return dist.variance(1) + (classes - 1) * dist.variance(-1)

  least = max(1, int(classes / (1 + math.exp(epsilon))))
  return min((least, min(least + 1, classes - 1)), key=total)


class _NoiseDistribution:
  """Noise that is added on a grid, `steps` units to 1, of `dimension` d.

  Inputs are rounded at random, each coordinate alone; if they are probabilities p, as 2
  p - 1, of the `simplex`, together, to even numbers of units, not negative, from -1 on,
  with the sum 2 `steps`. So none are farther apart than points of the domain can be.
  """

  def _use(self, dimension: int, simplex: bool, scale: float) -> None:
    validate.integer(dimension=dimension, low=1)
    if simplex:
      validate.integer(dimension=dimension, low=2, high=MAX_CLASSES)
    self.dimension, self.simplex = dimension, simplex
    self.steps = max(1, math.ceil(_FINENESS / scale))
    if self.steps > _MAX_STEPS:
      raise ValueError(f'the scale of noise must be at least {_FINENESS / _MAX_STEPS:g}'
                       f', found {scale!r}')

  def _rounding_variance(self, z: float) -> float:
    """Variance of rounding a coordinate z at random, model units squared."""
    gap = 2 if self.simplex else 1
    position = (z + 1) * self.steps / gap
    fraction = position - math.floor(position)
    return fraction * (1 - fraction) * (gap / self.steps)**2

  @property
  def worst_variance(self) -> float:
    # Rounding adds most halfway between two points of the grid.
    return self.variance((1.0 if self.simplex else 0.5) / self.steps - 1)


class LaplaceDistribution(_NoiseDistribution):
  """Two-sided geometric noise on a grid: Laplace noise of scale distance / epsilon.

  `distance` is that of any two inputs in L1: 2 d in the cube, 4 on the simplex, whatever
  d. P[X = k] is proportional to r^|k| with r = e^(-epsilon / (distance steps)). Noise
  beyond `reach` is drawn as `reach`, and outputs are clipped `steps` before it: a
  clipped output has exactly the probability of all that it stands for.

  Attributes:
    scale: Scale of the noise, for inputs in [-1, 1].
    limit: Largest output, units.
    reach: Largest noise, units.
  """

  def __init__(self, epsilon: float, dimension: int = 1, simplex: bool = False):
    validate.integer(dimension=dimension, low=1)
    check_epsilon(epsilon=epsilon)
    self._epsilon = epsilon
    self._distance = 4 if simplex else 2 * dimension
    self.scale = self._distance / epsilon
    self._use(dimension, simplex, self.scale)
    self.limit = math.ceil(_REACH * self._distance * self.steps / epsilon)
    self.reach = self.steps + self.limit
    if alias_table.log_size(self.reach) > alias_table.MAX_LOG_SIZE:
      raise ValueError(f'{epsilon=} is too small for {dimension=}: the table of '
                       'Laplace noise would be too large')

  @functools.cached_property
  def table(self) -> alias_table.AliasTable:
    """The table of the noise, units."""
    exponent = self._epsilon * (1 - _LAPLACE_SLACK) / (self._distance * self.steps)
    ratio = Fraction(math.exp(-exponent)) * (1 + _SLACK / 2**10)
    powers = list(itertools.accumulate(
        range(self.reach - 1),
        lambda power, _: power * ratio.numerator // ratio.denominator,
        initial=1 << _LAPLACE_BITS))
    return alias_table.build([*powers, math.floor(powers[-1] * ratio / (1 - ratio))])

  def variance(self, z: float) -> float:
    """Variance of a coordinate of the output (except for clipping)."""
    ratio = math.exp(-1.0 / (self.scale * self.steps))
    noise = 2 * ratio / (1 - ratio)**2
    return noise / self.steps**2 + self._rounding_variance(z)


class GaussianDistribution(_NoiseDistribution):
  """Discrete Gaussian noise on a grid.

  Any two inputs are at most `distance` apart in L2, 2 sqrt(d) in the cube and 2 sqrt(2)
  on the simplex, whatever d; the noise has the parameter (noise_multiplier times
  that)^2. Its Renyi divergence is that of Gaussian noise or less (arXiv 2004.00010,
  Proposition 5).

  Attributes:
    stddev: Standard deviation of the noise, for inputs in [-1, 1].
    parameter: v of the discrete Gaussian, units squared, rounded up.
  """

  def __init__(self, noise_multiplier: float, dimension: int = 1, simplex: bool = False):
    validate.positive(noise_multiplier=noise_multiplier)
    validate.integer(dimension=dimension, low=1)
    self.stddev = noise_multiplier * 2 * math.sqrt(2 if simplex else dimension)
    self._use(dimension, simplex, self.stddev)
    self.parameter = (self.stddev * self.steps)**2 * (1 + 2.0**-40)
    if not alias_table.DISCRETE_GAUSSIAN.fits(self.parameter):
      raise ValueError(f'{noise_multiplier=} is too large for {dimension=}: the table '
                       'would be too large')

  @property
  def table(self) -> alias_table.AliasTable:
    """The table of the noise, units."""
    return alias_table.DISCRETE_GAUSSIAN.build(self.parameter)

  def variance(self, z: float) -> float:
    """Variance of a coordinate of the output."""
    return self.stddev**2 + self._rounding_variance(z)
