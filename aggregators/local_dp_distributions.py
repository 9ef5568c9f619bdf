"""Exact laws of local mechanisms: integers and fractions, no TensorFlow.

A client maps a coordinate in [-1, 1] to a point of a public grid, at random, and
then draws the output from a law that depends on that point alone. Which point it
is may be decided by any arithmetic: what counts for privacy is how much the laws
of two points differ, and those are ratios of integers here. They never exceed
e^epsilon, point masses included; floating point plays no part in it.

Outputs are grid values times public constants that make them unbiased. "Unit"
below is the distance of two inputs 1 apart on the grid of the input.
"""

import dataclasses
import fractions
import functools
import math

import numpy as np

from aggregators import alias_table
from aggregators import discrete_gaussian_table
from aggregators import validate

Fraction = fractions.Fraction

# A coin is an integer below 2^this, compared with a threshold.
COIN_BITS = 62
# A place is an integer below 2^this times the number of places, shifted down.
PLACE_BITS = 40
# epsilon of one coordinate or coin. Below, the signal is lost in how finely chances
# are cut; beyond, a lie is too rare for 62 bits, and nothing is protected anyway.
MIN_EPSILON, MAX_EPSILON = 1e-4, 36.0

# Room for the last digits of epsilon and of its exponential.
_SLACK = Fraction(1, 2**40)
# The piecewise window: places, as many as there is room for.
_WINDOW = 1024
_MAX_PLACES = 2**20
# The scale of Laplace noise, and the standard deviation of Gaussian noise, in units
# of the grid, at least.
_FINENESS = 64
# Laplace noise beyond so many scales is moved there: less than e^-30 of it.
_REACH = 30
_LAPLACE_BITS = 120
# What the table of Laplace noise leaves of epsilon, for its last digits. With E =
# epsilon / d and x = E / 2 + _REACH, the least chance is x e^-x 2^86 units of the
# table or more, and a chance is off by half a unit (that of 0 by less than e^-x of
# itself). So the log of a ratio is off by e^x / (x 2^86) at most: 1.9e-7 at the
# largest E, 36, which has 5.4e-7 left; 5e-15 at the least that there is a table for,
# 2e-4, which has 3e-12 left; and in between too, as the quotient by E is convex.
_LAPLACE_SLACK = 2.0**-26


def check_epsilon(**arguments: float) -> None:
  """Raises ValueError unless every argument is an epsilon that can be had."""
  validate.positive(**arguments)
  for name, value in arguments.items():
    if not MIN_EPSILON <= value <= MAX_EPSILON:
      raise ValueError(
          f'{name} must be from {MIN_EPSILON:g} to {MAX_EPSILON:g} for one '
          f'coordinate, found {value!r}')


def odds(epsilon: float) -> Fraction:
  """At most e^epsilon, and not below it by more than one part in 2^39."""
  return Fraction(math.exp(epsilon)) * (1 - _SLACK)


def truth_threshold(limit: Fraction) -> int:
  """The largest t such that t / (2^62 - t) is at most `limit`."""
  return math.floor(limit * 2**COIN_BITS / (1 + limit))


def _part(threshold: int) -> Fraction:
  return Fraction(threshold, 2**COIN_BITS)


def _place_chances(places: int) -> tuple[Fraction, Fraction]:
  """The least and the largest chance of one of so many places."""
  whole = 2**PLACE_BITS
  return (Fraction(whole // places, whole), Fraction(-(-whole // places), whole))


@dataclasses.dataclass(frozen=True)
class PiecewiseLaw:
  """The piecewise mechanism on one coordinate (arXiv 1907.00782, section III-B).

  There are `window + starts` places. The input, as one of the starts 0..starts,
  says where a window of places begins; the output is a place of the window with
  the chance e^(epsilon/2) / (e^(epsilon/2) + 1), else one of the others. That is
  the published mechanism on a grid instead of an interval, and its mean is still
  a linear function of the start.

  Attributes:
    epsilon: Of this coordinate.
    window: Places in the window.
    starts: Places outside, and the last start.
    threshold: Of the coin that says "in the window".
  """

  epsilon: float
  window: int = dataclasses.field(init=False)
  starts: int = dataclasses.field(init=False)
  threshold: int = dataclasses.field(init=False)

  def __post_init__(self):
    check_epsilon(epsilon=self.epsilon)
    growth = math.exp(self.epsilon / 2)
    window = max(1, min(_WINDOW, int(_MAX_PLACES / (1 + growth))))
    starts = max(1, min(_MAX_PLACES - window, round(window * growth)))
    # A place inside is likelier than one outside by this part at most.
    rounding = _place_chances(window)[1] / _place_chances(starts)[0]
    object.__setattr__(self, 'window', window)
    object.__setattr__(self, 'starts', starts)
    object.__setattr__(
        self, 'threshold', truth_threshold(odds(self.epsilon) / rounding))

  @property
  def places(self) -> int:
    return self.window + self.starts

  @property
  def worst_ratio(self) -> Fraction:
    """The largest ratio of an output's chances under two inputs."""
    inside = _part(self.threshold)
    return (inside * _place_chances(self.window)[1]) / (
        (1 - inside) * _place_chances(self.starts)[0])

  def chances(self, start: int) -> np.ndarray:
    """float64 [places]: of each output, for an input at `start`."""
    inside = float(_part(self.threshold))
    found = np.full(self.places, (1 - inside) / self.starts)
    found[start:start + self.window] = inside / self.window
    return found

  @functools.cached_property
  def unit(self) -> float:
    """What one place is worth, so that outputs are unbiased."""
    inside = float(_part(self.threshold))
    per_start = inside - (1 - inside) * self.window / self.starts
    return 2.0 / (self.starts * per_start)

  @property
  def centre(self) -> float:
    """The place that means 0."""
    return (self.places - 1) / 2

  @property
  def bound(self) -> float:
    """No output is farther from 0."""
    return self.centre * self.unit

  def variance(self, z: float) -> float:
    """Of the output for an input in [-1, 1]."""
    inside = float(_part(self.threshold))
    n, w = self.places, self.window
    everywhere = (n * n - 1) / 12  # Mean square of a place about the centre, all n.
    position = (z + 1) / 2 * self.starts
    low = math.floor(position)

    def square(start: int) -> float:
      middle = start + (w - 1) / 2 - self.centre
      window = (w * w - 1) / 12 + middle**2
      others = (n * everywhere - w * window) / self.starts
      return inside * window + (1 - inside) * others

    share = position - low
    mean_square = (1 - share) * square(low)
    if share > 0:
      mean_square += share * square(low + 1)
    return mean_square * self.unit**2 - z * z


@dataclasses.dataclass(frozen=True)
class DuchiLaw:
  """The mechanism of Duchi, Jordan and Wainwright on d coordinates.

  Coordinates are rounded to signs v; a uniform sign vector t is turned so that it
  agrees with v, in the sense of t.v > 0, with the chance
  e^epsilon / (e^epsilon + 1). Where t.v = 0, which only an even d allows, t stays
  as it is. (The published form, arXiv 1907.00782, Algorithm 3, puts such t into both
  halves, where they are twice as likely: as private, but B is larger, 5.06 instead
  of 4.06 times (e^epsilon + 1)/(e^epsilon - 1) at d = 10.) Outputs are B t.

  Attributes:
    epsilon: Of the whole vector.
    dimension: d.
    threshold: Of the coin that says "agree".
  """

  epsilon: float
  dimension: int
  threshold: int = dataclasses.field(init=False)

  def __post_init__(self):
    check_epsilon(epsilon=self.epsilon)
    validate.integer(dimension=self.dimension, low=1)
    object.__setattr__(self, 'threshold', truth_threshold(odds(self.epsilon)))

  @property
  def worst_ratio(self) -> Fraction:
    """The largest ratio of an output's chances under two inputs."""
    agree = _part(self.threshold)
    return agree / (1 - agree)

  @functools.cached_property
  def bound(self) -> float:
    """B: every coordinate of an output is B or -B."""
    # E|t.v| / d is the chance that a walk of 2 m steps ends where it began.
    m = self.dimension // 2
    agreement = math.exp(
        math.lgamma(2 * m + 1) - 2 * math.lgamma(m + 1) - 2 * m * math.log(2))
    return 1.0 / (float(2 * _part(self.threshold) - 1) * agreement)

  def chance(self, product: int) -> Fraction:
    """Of one output t, given its product t.v with the signs of the input."""
    agree = _part(self.threshold)
    side = {1: 2 * agree, 0: Fraction(1), -1: 2 * (1 - agree)}
    return side[(product > 0) - (product < 0)] / 2**self.dimension

  def variance(self, z: float) -> float:
    """Of a coordinate of the output, for a coordinate of the input."""
    return self.bound**2 - z * z


@dataclasses.dataclass(frozen=True)
class LaplaceLaw:
  """Two-sided geometric noise on a grid: Laplace noise of scale 2 d / epsilon.

  An input is rounded at random to the grid, `steps` units to 1, and P[X = k] is
  proportional to r^|k| with r = e^(-epsilon / (2 d steps)), so that inputs as far
  apart as they can be differ by epsilon in all d coordinates together. What lies
  beyond `reach` is drawn as `reach`, and outputs are cut off `steps` before it: a
  cut-off output has exactly the chance of all that it stands for.

  Attributes:
    epsilon: Of the whole vector.
    dimension: d.
    steps: Units of the grid to 1.
    reach: Largest noise, units.
  """

  epsilon: float
  dimension: int
  steps: int = dataclasses.field(init=False)
  reach: int = dataclasses.field(init=False)

  def __post_init__(self):
    validate.integer(dimension=self.dimension, low=1)
    check_epsilon(epsilon=self.epsilon)
    steps = max(1, math.ceil(_FINENESS * self.epsilon / (2 * self.dimension)))
    reach = steps + math.ceil(_REACH * 2 * self.dimension * steps / self.epsilon)
    object.__setattr__(self, 'steps', steps)
    object.__setattr__(self, 'reach', reach)
    if alias_table.log_size(reach) > alias_table.MAX_LOG_SIZE:
      raise ValueError(
          f'epsilon={self.epsilon!r} is too small for Laplace noise on '
          f'dimension={self.dimension} coordinates: its table would be too large')

  @property
  def scale(self) -> float:
    """Of the noise, for inputs in [-1, 1]."""
    return 2 * self.dimension / self.epsilon

  @property
  def cut(self) -> int:
    """The largest output, units."""
    return self.reach - self.steps

  @functools.cached_property
  def table(self) -> alias_table.AliasTable:
    """Of the noise, units."""
    exponent = self.epsilon * (1 - _LAPLACE_SLACK) / (
        2 * self.dimension * self.steps)
    ratio = Fraction(math.exp(-exponent)) * (1 + _SLACK / 2**10)
    whole = 1 << _LAPLACE_BITS
    powers = [whole]
    for _ in range(self.reach - 1):
      powers.append(powers[-1] * ratio.numerator // ratio.denominator)
    last = powers[-1] * ratio / (1 - ratio)
    return alias_table.symmetric(
        self.scale, [*powers, math.floor(last)], alias_table.log_size(self.reach))

  def variance(self, z: float) -> float:
    """Of a coordinate of the output (but for what is cut off)."""
    ratio = math.exp(-1.0 / (self.scale * self.steps))
    noise = 2 * ratio / (1 - ratio)**2
    return (noise + _rounding_variance(z, self.steps)) / self.steps**2


@dataclasses.dataclass(frozen=True)
class GaussianLaw:
  """Discrete Gaussian noise on a grid, on d coordinates.

  An input is rounded at random to the grid, `steps` units to 1. Any two are at most
  2 sqrt(d) steps units apart in L2; the noise has the parameter (noise_multiplier
  times that)^2. Its Renyi divergence is that of Gaussian noise or less
  (arXiv 2004.00010, Proposition 5).

  Attributes:
    noise_multiplier: Noise over the largest L2 distance of two inputs.
    dimension: d.
    steps: Units of the grid to 1.
  """

  noise_multiplier: float
  dimension: int
  steps: int = dataclasses.field(init=False)

  def __post_init__(self):
    validate.positive(noise_multiplier=self.noise_multiplier)
    validate.integer(dimension=self.dimension, low=1)
    steps = max(1, math.ceil(_FINENESS / self.stddev))
    object.__setattr__(self, 'steps', steps)
    if not discrete_gaussian_table.fits(self.parameter):
      raise ValueError(
          f'noise_multiplier={self.noise_multiplier!r} is too large for '
          f'dimension={self.dimension}: its table would be too large')

  @property
  def stddev(self) -> float:
    """Of the noise, for inputs in [-1, 1]."""
    return self.noise_multiplier * 2 * math.sqrt(self.dimension)

  @property
  def parameter(self) -> float:
    """v of the discrete Gaussian, units squared, rounded up."""
    return (self.stddev * self.steps)**2 * (1 + 2.0**-40)

  @functools.cached_property
  def table(self) -> alias_table.AliasTable:
    """Of the noise, units."""
    return discrete_gaussian_table.build(self.parameter)

  def variance(self, z: float) -> float:
    """Of a coordinate of the output."""
    return self.stddev**2 + _rounding_variance(z, self.steps) / self.steps**2


def _rounding_variance(z: float, steps: int) -> float:
  """Of rounding z to a grid at random, units squared."""
  share = z * steps - math.floor(z * steps)
  return share * (1 - share)


def table_chances(table: alias_table.AliasTable) -> list[Fraction]:
  """The exact chances of all values of a table, from the least value on."""
  size = table.packed.size
  capacity = 1 << (alias_table.FIRST_BITS + alias_table.TIE_BITS)
  found = [0] * size
  for cell, (packed, tie) in enumerate(zip(table.packed, table.tie)):
    threshold = (int(packed) >> 32 << alias_table.TIE_BITS) + int(tie) + (1 << 63)
    found[cell] += threshold
    found[int(packed) & 0xffffffff] += capacity - threshold
  return [Fraction(share, size * capacity) for share in found]
