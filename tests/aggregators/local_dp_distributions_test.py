"""The guarantee of local mechanisms as ratios of exact probabilities."""

import fractions
import itertools
import math

import mpmath
import numpy as np
import pytest

from aggregators import local_dp_distributions as distributions
from tests import statistics_lib

Fraction = fractions.Fraction
EPSILONS = [1e-3, 0.1, 0.5, 1.0, 1.29, 2.5, 5.0, 8.0, 12.0, 20.0, 36.0]


def is_within(ratio: Fraction, epsilon: float) -> bool:
  """Whether a ratio of probabilities is at most e^epsilon, to 60 digits."""
  with mpmath.workdps(60):
    return mpmath.mpf(ratio.numerator) / ratio.denominator <= mpmath.exp(epsilon)


def worst_ratio(channel: np.ndarray) -> float:
  """Of a matrix of probabilities [inputs, outputs], point masses of each output."""
  with np.errstate(divide='ignore', invalid='ignore'):
    return float(np.nanmax(channel.max(axis=0) / channel.min(axis=0)))


def _of_table(dist):
  """Values of a distribution's table, and their probabilities in float64."""
  exact = statistics_lib.table_probabilities(dist.table)
  return np.arange(len(exact)) - len(exact) // 2, np.array(exact, np.float64)


# Piecewise.


@pytest.mark.parametrize('epsilon', EPSILONS)
def test_no_output_of_piecewise_is_too_likely_exactly(epsilon):
  dist = distributions.PiecewiseDistribution(epsilon)
  assert is_within(dist.worst_ratio, epsilon)
  # And nothing is given away: next to all of epsilon is used.
  assert float(dist.worst_ratio) > math.exp(epsilon) * (1 - 1e-4)


@pytest.mark.parametrize('epsilon', [0.1, 1.0, 2.5, 5.0, 8.0])
def test_ratios_over_a_grid_of_inputs_and_all_outputs(epsilon):
  dist = distributions.PiecewiseDistribution(epsilon)
  starts = np.unique(np.linspace(0, dist.starts, 41).round().astype(int))
  channel = np.stack([dist.probabilities(start) for start in starts])
  np.testing.assert_allclose(channel.sum(axis=1), 1, rtol=1e-12)
  assert worst_ratio(channel) <= math.exp(epsilon) * (1 + 1e-9)


def test_the_check_sees_a_mechanism_that_divides_the_outside_by_halves():
  # Both sides of the window equally likely, however short: as published code has
  # it. Near an end, one side is a few outputs with half of the mass.
  dist = distributions.PiecewiseDistribution(1.0)
  inside = dist.threshold / 2**distributions.COIN_BITS

  def probabilities(start):
    result = np.zeros(dist.outputs)
    result[start:start + dist.window] = inside / dist.window
    sides = [slice(0, start), slice(start + dist.window, dist.outputs)]
    for side in sides:
      result[side] = (1 - inside) / 2 / max(1, len(result[side]))
    return result / result.sum()

  # 9 of 10 of the way from the middle to the end, and farther.
  for position, minimum in ((0.95, 4), (0.995, 30), (0.999, 100)):
    channel = np.stack(
        [probabilities(int(position * dist.starts)), probabilities(dist.starts // 2)])
    assert worst_ratio(channel) > minimum > math.e


@pytest.mark.parametrize('count', [1, 3, 64, 1000, 1024, 1688, 2**20 - 1, 2**20])
def test_probabilities_of_indices_are_those_of_shifted_products(count):
  # Index i has the integers from ceil(i 2^40 / count) to before the next.
  whole = 2**distributions.INDEX_BITS
  if count <= 4096:
    indices = range(count + 1)
  else:
    indices = [*range(2000), *range(count - 2000, count + 1)]
  firsts = {i: -(-i * whole // count) for i in indices}
  sizes = {firsts[i + 1] - firsts[i] for i in indices if i + 1 in firsts}
  low, high = distributions._index_probabilities(count)
  assert low * whole == whole // count and high * whole == -(-whole // count)
  assert min(sizes) >= low * whole and max(sizes) <= high * whole


@pytest.mark.parametrize('epsilon', EPSILONS)
@pytest.mark.parametrize('z', [-1.0, -0.3, 0.0, 0.123, 1.0])
def test_piecewise_is_unbiased_and_its_variance_is_exact(epsilon, z):
  dist = distributions.PiecewiseDistribution(epsilon)
  values = (np.arange(dist.outputs) - dist.centre) * dist.unit
  position = (z + 1) / 2 * dist.starts
  low = int(position)
  probabilities = dist.probabilities(low)
  if position > low:
    probabilities = (1 - position + low) * probabilities + (
        position - low) * dist.probabilities(low + 1)
  assert np.sum(probabilities * values) == pytest.approx(z, abs=1e-9 * values[-1])
  assert dist.variance(z) == pytest.approx(
      np.sum(probabilities * values**2) - z**2, rel=1e-9)


@pytest.mark.parametrize('epsilon', [0.5, 1.0, 2.5, 5.0, 8.0])
@pytest.mark.parametrize('z', [0.0, 0.5, 1.0])
def test_piecewise_variance_is_the_published_formula(epsilon, z):
  growth = math.exp(epsilon / 2)
  published = z**2 / (growth - 1) + (growth + 3) / (3 * (growth - 1)**2)
  assert distributions.PiecewiseDistribution(epsilon).variance(z) == pytest.approx(
      published, rel=2e-3)


# Duchi.


@pytest.mark.parametrize('epsilon', EPSILONS)
@pytest.mark.parametrize('dimension', [1, 2, 3, 10])
def test_no_output_of_duchi_is_too_likely_exactly(epsilon, dimension):
  dist = distributions.DuchiDistribution(epsilon, dimension)
  assert is_within(dist.worst_ratio, epsilon)
  sides = [dist.probability(product) for product in (-dimension, 0, dimension)]
  assert is_within(max(sides) / min(sides), epsilon)
  # Next to all of epsilon is used, as far as 62 bits go.
  assert float(dist.worst_ratio) > math.exp(epsilon) * (
      1 - 1e-9 - math.exp(epsilon) / 2**distributions.COIN_BITS)


@pytest.mark.parametrize('dimension', [1, 2, 3, 4, 5])
def test_duchi_by_enumeration_is_a_distribution_unbiased_and_of_its_variance(dimension):
  dist = distributions.DuchiDistribution(1.3, dimension)
  outputs = np.array(list(itertools.product((-1, 1), repeat=dimension)))
  for signs in itertools.product((-1, 1), repeat=dimension):
    probabilities = [dist.probability(int(np.dot(t, signs))) for t in outputs]
    assert sum(probabilities) == 1
    mean = np.array([float(p) for p in probabilities]) @ outputs * dist.bound
    np.testing.assert_allclose(mean, signs, rtol=1e-9)
  assert dist.variance(0.5) == dist.bound**2 - 0.25


@pytest.mark.parametrize('dimension, factor', [
    (1, 1.0), (2, 2.0), (3, 2.0), (10, 1024 / 252), (11, 1024 / 252),
    (100_001, math.sqrt(math.pi * 50_000))])
def test_duchi_bound_is_the_inverse_of_the_mean_agreement(dimension, factor):
  expected = factor * (math.exp(2.0) + 1) / (math.exp(2.0) - 1)
  dist = distributions.DuchiDistribution(2.0, dimension)
  assert dist.bound == pytest.approx(expected, rel=1e-5)


# Laplace.


# The smallest epsilon that there is a table for is 2.3e-4 of a dimension.
@pytest.mark.parametrize('epsilon, dimension', [
    (1e-3, 1), (0.5, 1), (1.0, 1), (8.0, 1), (20.0, 1), (34.0, 1), (35.0, 1),
    (35.5, 1), (35.9, 1), (distributions.MAX_EPSILON, 1), (8.0, 2), (35.5, 2),
    (distributions.MAX_EPSILON, 2), (distributions.MAX_EPSILON, 3), (0.5, 3),
    (5.0, 10), (2.0, 100)])
def test_no_output_of_laplace_is_too_likely_exactly(epsilon, dimension):
  dist = distributions.LaplaceDistribution(epsilon, dimension)
  exact = statistics_lib.table_probabilities(dist.table)
  middle = len(exact) // 2
  assert sum(exact) == 1
  # As integers over one denominator, which are compared sooner than fractions.
  whole = max(p.denominator for p in exact)
  noise = [int(p * whole) for p in exact[middle - dist.reach:middle + dist.reach + 1]]
  assert sum(noise) == whole
  total = [0, *itertools.accumulate(noise)]

  def probability(output: int, point: int) -> int:
    """Of a clipped output, for an input at a point of the grid."""
    k = output - point + dist.reach
    if output == dist.limit:
      return whole - total[k]
    if output == -dist.limit:
      return total[k + 1]
    return noise[k]

  # The larger the noise the rarer it is, except for that which stands for all beyond
  # the reach, which clipped outputs alone can have.
  assert noise == noise[::-1]
  assert all(a < b for a, b in itertools.pairwise(noise[1:dist.reach + 1]))
  # So an output is likeliest from the nearest point and rarest from the farthest.
  largest, smallest = 0, 1
  for output in range(-dist.limit, dist.limit + 1):
    nearest = min(max(output, -dist.steps), dist.steps)
    a = probability(output, nearest)
    b = probability(output, -dist.steps if output >= 0 else dist.steps)
    if a * smallest > largest * b:
      largest, smallest = a, b
  # In all coordinates together.
  with mpmath.workdps(60):
    value = mpmath.mpf(largest) / smallest
    assert value <= mpmath.exp(mpmath.mpf(epsilon) / dimension)
    assert value > mpmath.exp(mpmath.mpf(epsilon) / dimension) * (1 - 1e-6)


@pytest.mark.parametrize('epsilon, dimension', [(0.5, 1), (5.0, 10), (8.0, 2)])
def test_laplace_variance_is_that_of_its_table_and_of_the_published_scale(
    epsilon, dimension):
  dist = distributions.LaplaceDistribution(epsilon, dimension)
  values, probabilities = _of_table(dist)
  assert dist.variance(0.0) == pytest.approx(
      np.sum(probabilities * values**2.0) / dist.steps**2, rel=1e-6)
  assert dist.variance(0.0) == pytest.approx(
      2 * (2 * dimension / epsilon)**2, rel=1e-3)
  halfway = 0.5 / dist.steps
  assert dist.variance(halfway) == pytest.approx(
      dist.variance(0.0) + 0.25 / dist.steps**2)


# Gaussian.


@pytest.mark.parametrize('noise_multiplier, dimension', [
    (0.05, 1), (1.0, 1), (0.7, 10), (30.0, 100)])
def test_gaussian_noise_is_that_of_the_multiplier_and_the_largest_distance(
    noise_multiplier, dimension):
  dist = distributions.GaussianDistribution(noise_multiplier, dimension)
  distance = 2 * math.sqrt(dimension)  # Of two opposite corners.
  # The parameter is what accounting counts on: in units, at least this much.
  assert dist.parameter >= (noise_multiplier * distance * dist.steps)**2
  values, probabilities = _of_table(dist)
  variance = np.sum(probabilities * values.astype(float)**2)
  assert variance == pytest.approx(dist.parameter, rel=1e-6)
  assert dist.variance(0.0) == pytest.approx(
      variance / dist.steps**2, rel=1e-6)


def test_gaussian_table_follows_its_distribution():
  dist = distributions.GaussianDistribution(0.7, 10)
  values, probabilities = _of_table(dist)
  expected = np.exp(-values.astype(float)**2 / (2 * dist.parameter))
  np.testing.assert_allclose(probabilities, expected / expected.sum(), atol=1e-15)


@pytest.mark.parametrize('noise_multiplier', [0.3, 1.0, 3.0])
def test_no_event_of_gaussian_outputs_is_too_likely(noise_multiplier):
  dist = distributions.GaussianDistribution(noise_multiplier, 1)
  _, probabilities = _of_table(dist)
  far = 2 * dist.steps  # The ends of the grid.
  one = np.concatenate([probabilities, np.zeros(far)])
  other = np.concatenate([np.zeros(far), probabilities])
  orders = np.linspace(1.01, 300, 5000)
  for epsilon in (0.1, 1.0, 3.0):
    # The weakest conversion of the divergence that is claimed.
    claimed = math.exp(min(0.0, np.min(
        (orders - 1) * (orders / (2 * noise_multiplier**2) - epsilon))))
    delta = np.maximum(one - math.exp(epsilon) * other, 0).sum()
    assert delta <= claimed + 1e-12
  assert np.maximum(one - math.exp(0.1) * other, 0).sum() > 0.01


# Bad input.


@pytest.mark.parametrize('epsilon', [
    0.0, -1.0, 1e-9, 40.0, math.nan, math.inf, True, '1', None])
@pytest.mark.parametrize('build', [
    distributions.PiecewiseDistribution,
    lambda e: distributions.DuchiDistribution(e, 3),
    lambda e: distributions.LaplaceDistribution(e, 3)])
def test_impossible_epsilon_is_named(build, epsilon):
  with pytest.raises(ValueError, match=f'epsilon .*{epsilon!r}'):
    build(epsilon)


@pytest.mark.parametrize('dimension', [0, -1, 2.0, True])
@pytest.mark.parametrize('build', [
    lambda d: distributions.DuchiDistribution(1.0, d),
    lambda d: distributions.LaplaceDistribution(1.0, d),
    lambda d: distributions.GaussianDistribution(1.0, d)])
def test_impossible_dimension_is_named(build, dimension):
  with pytest.raises(ValueError, match=f'dimension .*{dimension!r}'):
    build(dimension)


@pytest.mark.parametrize('noise_multiplier', [0.0, -1.0, math.nan, math.inf, 1e6])
def test_impossible_noise_is_named(noise_multiplier):
  with pytest.raises(ValueError, match='noise_multiplier'):
    distributions.GaussianDistribution(noise_multiplier, 10)


def test_laplace_table_that_would_be_too_large_is_refused():
  with pytest.raises(ValueError, match='too large'):
    distributions.LaplaceDistribution(0.001, 1000)
