"""Tests of aggregators.local_dp_distributions: the guarantee as ratios of exact chances."""

import fractions
import itertools
import math

import mpmath
import numpy as np
import pytest

from aggregators import local_dp_distributions as laws

Fraction = fractions.Fraction
EPSILONS = [1e-3, 0.1, 0.5, 1.0, 1.29, 2.5, 5.0, 8.0, 12.0, 20.0, 36.0]


def is_within(ratio: Fraction, epsilon: float) -> bool:
  """Whether a ratio of chances is at most e^epsilon, to 60 digits."""
  with mpmath.workdps(60):
    return mpmath.mpf(ratio.numerator) / ratio.denominator <= mpmath.exp(epsilon)


def worst_ratio(channel: np.ndarray) -> float:
  """Of a matrix of chances [inputs, outputs], point masses of each output."""
  with np.errstate(divide='ignore', invalid='ignore'):
    return float(np.nanmax(channel.max(axis=0) / channel.min(axis=0)))


# Piecewise.


@pytest.mark.parametrize('epsilon', EPSILONS)
def test_no_output_of_piecewise_is_too_likely_exactly(epsilon):
  law = laws.PiecewiseLaw(epsilon)
  assert is_within(law.worst_ratio, epsilon)
  # And nothing is given away: next to all of epsilon is used.
  assert float(law.worst_ratio) > math.exp(epsilon) * (1 - 1e-4)


@pytest.mark.parametrize('epsilon', [0.1, 1.0, 2.5, 5.0, 8.0])
def test_ratios_over_a_grid_of_inputs_and_all_outputs(epsilon):
  law = laws.PiecewiseLaw(epsilon)
  starts = np.unique(np.linspace(0, law.starts, 41).round().astype(int))
  channel = np.stack([law.chances(start) for start in starts])
  np.testing.assert_allclose(channel.sum(axis=1), 1, rtol=1e-12)
  assert worst_ratio(channel) <= math.exp(epsilon) * (1 + 1e-9)


def test_the_check_sees_a_mechanism_that_divides_the_outside_by_halves():
  # Both sides of the window equally likely, however short: as published code has
  # it. Near an end, one side is a few places with half of the mass.
  law = laws.PiecewiseLaw(1.0)
  inside = law.threshold / 2**laws.COIN_BITS

  def chances(start):
    found = np.zeros(law.places)
    found[start:start + law.window] = inside / law.window
    sides = [slice(0, start), slice(start + law.window, law.places)]
    for side in sides:
      found[side] = (1 - inside) / 2 / max(1, len(found[side]))
    return found / found.sum()

  # 9 of 10 of the way from the middle to the end, and farther.
  for part, least in ((0.95, 4), (0.995, 30), (0.999, 100)):
    channel = np.stack(
        [chances(int(part * law.starts)), chances(law.starts // 2)])
    assert worst_ratio(channel) > least > math.e


@pytest.mark.parametrize('count', [1, 3, 64, 1000, 1024, 1688, 2**20 - 1, 2**20])
def test_chances_of_places_are_those_of_shifted_products(count):
  # Place i has the words from ceil(i 2^40 / count) to before the next.
  whole = 2**laws.PLACE_BITS
  if count <= 4096:
    places = range(count + 1)
  else:
    places = [*range(2000), *range(count - 2000, count + 1)]
  firsts = {i: -(-i * whole // count) for i in places}
  sizes = {firsts[i + 1] - firsts[i] for i in places if i + 1 in firsts}
  low, high = laws._place_chances(count)
  assert low * whole == whole // count and high * whole == -(-whole // count)
  assert min(sizes) >= low * whole and max(sizes) <= high * whole


@pytest.mark.parametrize('epsilon', EPSILONS)
@pytest.mark.parametrize('z', [-1.0, -0.3, 0.0, 0.123, 1.0])
def test_piecewise_is_unbiased_and_its_variance_is_that_of_its_chances(epsilon, z):
  law = laws.PiecewiseLaw(epsilon)
  values = (np.arange(law.places) - law.centre) * law.unit
  position = (z + 1) / 2 * law.starts
  low = int(position)
  chances = law.chances(low)
  if position > low:
    chances = (1 - position + low) * chances + (position - low) * law.chances(low + 1)
  assert np.sum(chances * values) == pytest.approx(z, abs=1e-9 * law.bound)
  assert law.variance(z) == pytest.approx(
      np.sum(chances * values**2) - z**2, rel=1e-9)


@pytest.mark.parametrize('epsilon', [0.5, 1.0, 2.5, 5.0, 8.0])
@pytest.mark.parametrize('z', [0.0, 0.5, 1.0])
def test_piecewise_variance_is_the_published_formula(epsilon, z):
  growth = math.exp(epsilon / 2)
  published = z**2 / (growth - 1) + (growth + 3) / (3 * (growth - 1)**2)
  assert laws.PiecewiseLaw(epsilon).variance(z) == pytest.approx(
      published, rel=2e-3)


def test_piecewise_output_range_is_the_published_one():
  growth = math.exp(2.5 / 2)
  assert laws.PiecewiseLaw(2.5).bound == pytest.approx(
      (growth + 1) / (growth - 1), rel=2e-3)


# Duchi.


@pytest.mark.parametrize('epsilon', EPSILONS)
@pytest.mark.parametrize('dimension', [1, 2, 3, 10])
def test_no_output_of_duchi_is_too_likely_exactly(epsilon, dimension):
  law = laws.DuchiLaw(epsilon, dimension)
  assert is_within(law.worst_ratio, epsilon)
  sides = [law.chance(product) for product in (-dimension, 0, dimension)]
  assert is_within(max(sides) / min(sides), epsilon)
  # Next to all of epsilon is used, as far as 62 bits go.
  assert float(law.worst_ratio) > math.exp(epsilon) * (
      1 - 1e-9 - math.exp(epsilon) / 2**laws.COIN_BITS)


@pytest.mark.parametrize('dimension', [1, 2, 3, 4, 5])
def test_duchi_by_enumeration_is_a_law_unbiased_and_of_its_variance(dimension):
  law = laws.DuchiLaw(1.3, dimension)
  outputs = np.array(list(itertools.product((-1, 1), repeat=dimension)))
  for signs in itertools.product((-1, 1), repeat=dimension):
    chances = [law.chance(int(np.dot(t, signs))) for t in outputs]
    assert sum(chances) == 1
    mean = np.array([float(c) for c in chances]) @ outputs * law.bound
    np.testing.assert_allclose(mean, signs, rtol=1e-9)
  assert law.variance(0.5) == law.bound**2 - 0.25


@pytest.mark.parametrize('dimension, factor', [
    (1, 1.0), (2, 2.0), (3, 2.0), (10, 1024 / 252), (11, 1024 / 252),
    (100_001, math.sqrt(math.pi * 50_000))])
def test_duchi_bound_is_the_inverse_of_the_mean_agreement(dimension, factor):
  expected = factor * (math.exp(2.0) + 1) / (math.exp(2.0) - 1)
  assert laws.DuchiLaw(2.0, dimension).bound == pytest.approx(expected, rel=1e-5)


def test_worst_variances_of_piecewise_and_duchi_cross_where_published():
  def difference(epsilon):
    return (laws.PiecewiseLaw(epsilon).variance(1.0)
            - laws.DuchiLaw(epsilon, 1).variance(0.0))

  assert difference(1.27) > 0 > difference(1.31)


# Laplace.


# The least epsilon that there is a table for is 2.3e-4 of a dimension.
@pytest.mark.parametrize('epsilon, dimension', [
    (1e-3, 1), (0.5, 1), (1.0, 1), (8.0, 1), (20.0, 1), (34.0, 1), (35.0, 1),
    (35.5, 1), (35.9, 1), (laws.MAX_EPSILON, 1), (8.0, 2), (35.5, 2),
    (laws.MAX_EPSILON, 2), (laws.MAX_EPSILON, 3), (0.5, 3), (5.0, 10), (2.0, 100)])
def test_no_output_of_laplace_is_too_likely_exactly(epsilon, dimension):
  law = laws.LaplaceLaw(epsilon, dimension)
  chances = laws.table_chances(law.table)
  middle = len(chances) // 2
  assert sum(chances) == 1
  # As integers over one denominator, which are compared sooner than fractions.
  whole = max(chance.denominator for chance in chances)
  noise = [int(chance * whole)
           for chance in chances[middle - law.reach:middle + law.reach + 1]]
  assert sum(noise) == whole
  total = [0, *itertools.accumulate(noise)]

  def chance(output: int, point: int) -> int:
    """Of an output, cut off, for an input at a point of the grid."""
    k = output - point + law.reach
    if output == law.cut:
      return whole - total[k]
    if output == -law.cut:
      return total[k + 1]
    return noise[k]

  # The larger the noise the rarer it is, but for what stands for all beyond the
  # reach, which outputs that are cut off alone can have.
  assert noise == noise[::-1]
  assert all(a < b for a, b in itertools.pairwise(noise[1:law.reach + 1]))
  # So an output is likeliest from the nearest point and rarest from the farthest.
  most, least = 0, 1
  for output in range(-law.cut, law.cut + 1):
    nearest = min(max(output, -law.steps), law.steps)
    a = chance(output, nearest)
    b = chance(output, -law.steps if output >= 0 else law.steps)
    if a * least > most * b:
      most, least = a, b
  # In all coordinates together.
  with mpmath.workdps(60):
    value = mpmath.mpf(most) / least
    assert value <= mpmath.exp(mpmath.mpf(epsilon) / dimension)
    assert value > mpmath.exp(mpmath.mpf(epsilon) / dimension) * (1 - 1e-6)


@pytest.mark.parametrize('epsilon, dimension', [(0.5, 1), (5.0, 10), (8.0, 2)])
def test_laplace_variance_is_that_of_its_table_and_of_the_published_scale(
    epsilon, dimension):
  law = laws.LaplaceLaw(epsilon, dimension)
  chances = np.array([float(c) for c in laws.table_chances(law.table)])
  values = np.arange(chances.size) - chances.size // 2
  assert law.variance(0.0) == pytest.approx(
      np.sum(chances * values**2.0) / law.steps**2, rel=1e-6)
  assert law.variance(0.0) == pytest.approx(
      2 * (2 * dimension / epsilon)**2, rel=1e-3)
  halfway = 0.5 / law.steps
  assert law.variance(halfway) == pytest.approx(
      law.variance(0.0) + 0.25 / law.steps**2)


# Gaussian.


@pytest.mark.parametrize('noise_multiplier, dimension', [
    (0.05, 1), (1.0, 1), (0.7, 10), (30.0, 100)])
def test_gaussian_noise_is_that_of_the_multiplier_and_the_largest_distance(
    noise_multiplier, dimension):
  law = laws.GaussianLaw(noise_multiplier, dimension)
  distance = 2 * math.sqrt(dimension)  # Of two opposite corners.
  # The parameter is what accounting counts on: in units, at least so much.
  assert law.parameter >= (noise_multiplier * distance * law.steps)**2
  chances = laws.table_chances(law.table)
  values = np.arange(len(chances)) - len(chances) // 2
  variance = float(sum(c * int(v)**2 for c, v in zip(chances, values)))
  assert variance == pytest.approx(law.parameter, rel=1e-6)
  assert law.variance(0.0) == pytest.approx(
      variance / law.steps**2, rel=1e-6)


def test_gaussian_table_follows_the_law():
  law = laws.GaussianLaw(0.7, 10)
  chances = np.array([float(c) for c in laws.table_chances(law.table)])
  values = np.arange(chances.size) - chances.size // 2
  expected = np.exp(-values.astype(float)**2 / (2 * law.parameter))
  np.testing.assert_allclose(chances, expected / expected.sum(), atol=1e-15)


@pytest.mark.parametrize('noise_multiplier', [0.3, 1.0, 3.0])
def test_no_event_of_gaussian_outputs_is_too_likely(noise_multiplier):
  law = laws.GaussianLaw(noise_multiplier, 1)
  chances = np.array([float(c) for c in laws.table_chances(law.table)])
  far = 2 * law.steps  # The ends of the grid.
  one = np.concatenate([chances, np.zeros(far)])
  other = np.concatenate([np.zeros(far), chances])
  orders = np.linspace(1.01, 300, 5000)
  for epsilon in (0.1, 1.0, 3.0):
    # The weakest conversion of the divergence that is claimed.
    claimed = math.exp(min(0.0, np.min(
        (orders - 1) * (orders / (2 * noise_multiplier**2) - epsilon))))
    found = np.maximum(one - math.exp(epsilon) * other, 0).sum()
    assert found <= claimed + 1e-12
  assert np.maximum(one - math.exp(0.1) * other, 0).sum() > 0.01


# Bad input.


@pytest.mark.parametrize('epsilon', [
    0.0, -1.0, 1e-9, 40.0, math.nan, math.inf, True, '1', None])
@pytest.mark.parametrize('make', [
    laws.PiecewiseLaw, lambda e: laws.DuchiLaw(e, 3),
    lambda e: laws.LaplaceLaw(e, 3)])
def test_impossible_epsilon_is_named(make, epsilon):
  with pytest.raises(ValueError, match=f'epsilon .*{epsilon!r}'):
    make(epsilon)


@pytest.mark.parametrize('dimension', [0, -1, 2.0, True])
@pytest.mark.parametrize('make', [
    lambda d: laws.DuchiLaw(1.0, d), lambda d: laws.LaplaceLaw(1.0, d),
    lambda d: laws.GaussianLaw(1.0, d)])
def test_impossible_dimension_is_named(make, dimension):
  with pytest.raises(ValueError, match=f'dimension .*{dimension!r}'):
    make(dimension)


@pytest.mark.parametrize('noise_multiplier', [0.0, -1.0, math.nan, math.inf, 1e6])
def test_impossible_noise_is_named(noise_multiplier):
  with pytest.raises(ValueError, match='noise_multiplier'):
    laws.GaussianLaw(noise_multiplier, 10)


def test_laplace_table_that_would_be_too_large_is_refused():
  with pytest.raises(ValueError, match='too large'):
    laws.LaplaceLaw(0.001, 1000)
