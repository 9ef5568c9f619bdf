"""Local mechanisms: ratios of exact probabilities, and outputs that follow them."""

import fractions
import itertools
import math

import mpmath
import numpy as np
import pytest
from scipy import stats
import tensorflow as tf

from aggregators import local_dp, local_dp_distributions as distributions
from tests import statistics_lib

Fraction = fractions.Fraction
EPSILONS = [1e-3, 0.1, 0.5, 1.0, 1.29, 2.5, 5.0, 8.0, 12.0, 20.0, 36.0]


def is_within(ratio: Fraction, epsilon: float) -> bool:
  """Whether a ratio of probabilities is at most e^epsilon, to 60 digits."""
  with mpmath.workdps(60):
    return mpmath.mpf(ratio.numerator) / ratio.denominator <= mpmath.exp(epsilon)


def _inside(dist) -> Fraction:
  """The probability that the coin of a distribution is below its threshold."""
  return Fraction(dist.threshold, 2**distributions.COIN_BITS)


def _of_table(dist):
  """Values of a distribution's table, and their probabilities in float64."""
  exact = statistics_lib.table_probabilities(dist.table)
  return np.arange(len(exact)) - len(exact) // 2, np.array(exact, np.float64)


def piecewise_ratio(dist) -> Fraction:
  """The largest ratio of an output's probabilities: in the window, and outside."""
  inside = _inside(dist)
  return inside * distributions._index_probabilities(dist.window)[1] / (
      (1 - inside) * distributions._index_probabilities(dist.starts)[0])


def piecewise_probabilities(dist, z: float) -> np.ndarray:
  """float64 [outputs], for an input in [-1, 1]."""
  inside = float(_inside(dist))
  position = (z + 1) / 2 * dist.starts
  low = int(position)
  result = np.zeros(dist.outputs)
  for start, share in ((low, low + 1 - position), (low + 1, position - low)):
    one = np.full(dist.outputs, (1 - inside) / dist.starts)
    one[start:start + dist.window] = inside / dist.window
    result += share * one
  return result


@pytest.mark.parametrize('epsilon', EPSILONS)
def test_no_output_of_piecewise_is_too_likely_exactly(epsilon):
  ratio = piecewise_ratio(distributions.PiecewiseDistribution(epsilon))
  assert is_within(ratio, epsilon)
  # And nothing is given away: next to all of epsilon is used.
  assert float(ratio) > math.exp(epsilon) * (1 - 1e-4)


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
  probabilities = piecewise_probabilities(dist, z)
  assert np.sum(probabilities) == pytest.approx(1, rel=1e-12)
  assert np.sum(probabilities * values) == pytest.approx(z, abs=1e-9 * values[-1])
  assert dist.variance(z) == pytest.approx(
      np.sum(probabilities * values**2) - z**2, rel=1e-9)


@pytest.mark.parametrize('epsilon', EPSILONS)
@pytest.mark.parametrize('dimension', [1, 10])
def test_no_output_of_duchi_is_too_likely_exactly(epsilon, dimension):
  agree = _inside(distributions.DuchiDistribution(epsilon, dimension))
  ratio = agree / (1 - agree)
  assert is_within(ratio, epsilon)
  # Next to all of epsilon is used, as far as 62 bits go.
  assert float(ratio) > math.exp(epsilon) * (
      1 - 1e-9 - math.exp(epsilon) / 2**distributions.COIN_BITS)


def duchi_probability(dist, product: int) -> Fraction:
  """The probability of one output t, given t.v with the signs v of the input."""
  side = {1: 2 * _inside(dist), 0: Fraction(1), -1: 2 * (1 - _inside(dist))}
  return side[(product > 0) - (product < 0)] / 2**dist.dimension


@pytest.mark.parametrize('dimension', [1, 2, 3, 4, 5])
def test_duchi_by_enumeration_is_a_distribution_unbiased_and_of_its_variance(dimension):
  dist = distributions.DuchiDistribution(1.3, dimension)
  outputs = np.array(list(itertools.product((-1, 1), repeat=dimension)))
  for signs in itertools.product((-1, 1), repeat=dimension):
    probabilities = [duchi_probability(dist, int(np.dot(t, signs))) for t in outputs]
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
  assert dist.variance(0.0) == pytest.approx(2 * (2 * dimension / epsilon)**2, rel=1e-3)
  halfway = 0.5 / dist.steps
  assert dist.variance(halfway) == pytest.approx(
      dist.variance(0.0) + 0.25 / dist.steps**2)


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
  assert dist.variance(0.0) == pytest.approx(variance / dist.steps**2, rel=1e-6)


def test_noise_on_the_simplex_is_of_its_diameters_whatever_the_dimension():
  for dimension in (2, 10, 100):
    laplace = distributions.LaplaceDistribution(2.0, dimension, simplex=True)
    assert laplace.scale == 4 / 2.0
    gaussian = distributions.GaussianDistribution(0.7, dimension, simplex=True)
    assert gaussian.stddev == pytest.approx(0.7 * 8**0.5, rel=1e-12)
    assert gaussian.parameter >= 0.7**2 * 8 * gaussian.steps**2


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


@pytest.mark.parametrize('epsilon', [5e-4, 0.05, 0.5, 5.0, 18.0, 36.0])
def test_no_unit_of_laplace_on_the_simplex_costs_too_much_exactly(epsilon):
  # Between two points of the simplex there are at most 4 `steps` units of the grid, in
  # all coordinates together: each may cost epsilon / (4 steps), whatever the output.
  dist = distributions.LaplaceDistribution(epsilon, 10, simplex=True)
  exact = statistics_lib.table_probabilities(dist.table)
  whole = max(p.denominator for p in exact)
  middle = len(exact) // 2
  noise = [int(p * whole) for p in exact[middle - dist.reach:middle + dist.reach + 1]]
  assert sum(noise) == whole and noise == noise[::-1]
  tails = [0, *itertools.accumulate(noise)][1:]  # Of -reach .. k.
  # An output within the limits, and one that stands for all below: point to the next.
  within = zip(noise[1:dist.reach + 1], noise[2:dist.reach + 2])
  below = zip(tails[:2 * dist.steps], tails[1:2 * dist.steps + 1])
  largest, smallest = 0, 1
  for rarer, likelier in itertools.chain(((a, b) for a, b in within if a < b), below):
    if likelier * smallest > largest * rarer:
      largest, smallest = likelier, rarer
  with mpmath.workdps(60):
    allowed = mpmath.mpf(epsilon) / (4 * dist.steps)
    assert 0.999 * allowed < mpmath.log(mpmath.mpf(largest) / smallest) <= allowed


KEY = np.array([2022, 3], np.int64)


@pytest.mark.parametrize('dimension, steps', [(2, 1), (10, 80), (1000, 7)])
def test_points_of_the_simplex_stay_within_its_diameter_when_they_are_rounded(
    dimension, steps):
  random = np.random.default_rng(0)
  soft = random.dirichlet(np.full(dimension, 0.3), size=200)
  corners = np.eye(dimension)[:2]
  # Whatever comes is rounded to a point of the simplex: NaN has become 0.
  rows = np.concatenate([2 * soft - 1, 2 * corners - 1, np.full([1, dimension], -1.0),
      random.uniform(-1, 1, [50, dimension]), np.zeros([1, dimension])])
  rounded = local_dp._on_simplex(tf.constant(rows), tf.constant(KEY), steps).numpy()
  dealt = rounded + steps
  assert dealt.min() >= 0 and np.all(dealt % 2 == 0)
  np.testing.assert_array_equal(dealt.sum(axis=1), 2 * steps)
  np.testing.assert_array_equal(dealt[200:202], 2 * steps * corners)
  distances = np.abs(rounded[:, np.newaxis] - rounded)
  assert distances.sum(axis=-1).max() == 4 * steps
  assert np.square(distances).sum(axis=-1).max() == 8 * steps**2
  one = np.tile(rows[:1], (20_000, 1))
  many = local_dp._on_simplex(tf.constant(one), tf.constant(KEY), steps).numpy()
  for column, z in zip(many.T[:10] / steps, one[0]):
    statistics_lib.check_mean(column, z, max(1e-9, np.var(column)))


def set_bounds(dist) -> tuple[Fraction, Fraction]:
  """The extreme probabilities of a set by ranks, times the number of sets.

  Of integers below M, n are in a given order with a probability of at least C(M, n)
  / M^n, where no two may be equal, and at most C(M + n - 1, n) / M^n, where they may.
  """
  whole, low, high = 2**distributions.COIN_BITS, Fraction(1), Fraction(1)
  for i in range(dist.dimension):
    low, high = low * Fraction(whole - i, whole), high * Fraction(whole + i, whole)
  return low, high


@pytest.mark.parametrize('epsilon', EPSILONS)
@pytest.mark.parametrize('dimension', [2, 3, 10, 100])
@pytest.mark.parametrize('size', [1, None])
def test_no_set_is_too_likely_exactly(epsilon, dimension, size):
  dist = distributions.SubsetDistribution(epsilon, dimension, size)
  low, high = set_bounds(dist)
  own = _inside(dist)
  # A set with the own class, against the same of an input whose class is not in it.
  ratio = 1 + own / (1 - own) * Fraction(dimension, dist.size) * high / low
  assert is_within(ratio, epsilon) and is_within(high / low, epsilon)
  assert float(ratio - 1) > math.expm1(epsilon) * (
      1 - 1e-7 - math.exp(epsilon) / 2**distributions.COIN_BITS)


@pytest.mark.parametrize('epsilon, dimension, size', [
    (0.01, 10, 5), (0.5, 10, 4), (1.0, 10, 3), (2.0, 10, 1), (2.2, 10, 1), (5.0, 10, 1),
    (2.0, 100, 12), (0.5, 2, 1)])
def test_sets_have_the_size_of_the_least_variance(epsilon, dimension, size):
  assert distributions.subset_size(epsilon, dimension) == size

  def total(of_size):
    dist = distributions.SubsetDistribution(epsilon, dimension, of_size)
    return dist.variance(1) + (dimension - 1) * dist.variance(-1)

  assert min(range(1, dimension), key=total) in (size, dimension - size)
  assert total(size) <= min(map(total, range(1, dimension))) * (1 + 1e-9)


@pytest.mark.parametrize('epsilon, size', [(1.0, 1), (1.0, 2), (0.3, 3)])
def test_subset_by_enumeration_is_epsilon_dp_unbiased_and_of_its_variance(epsilon, size):
  dist = distributions.SubsetDistribution(epsilon, 5, size)
  sets = [np.isin(range(5), s) for s in itertools.combinations(range(5), size)]
  odds = np.array([math.exp(epsilon * s[2]) for s in sets])
  chances = odds / odds.sum()
  held = chances @ np.array(sets)
  expected = np.where(np.arange(5) == 2, dist.inside, dist.outside)
  np.testing.assert_allclose(held, expected, rtol=1e-9)
  mechanism = local_dp.SubsetSelection(epsilon=epsilon, dimension=5, size=size)
  drawn = draw(mechanism, [-1.0, 0.2, 0.3, 0.3, -1.0])  # Of equals the first.
  drawn_sets = drawn > drawn.mean()
  np.testing.assert_array_equal(drawn_sets.sum(axis=1), size)
  counts = [np.sum(np.all(drawn_sets == s, axis=1)) for s in sets]
  assert statistics_lib.fits(counts, chances)
  assert not statistics_lib.fits(counts, np.full(len(sets), 1 / len(sets)))
  for column, z in zip(drawn.T, [-1, -1, 1, -1, -1]):
    statistics_lib.check_mean(column, z, mechanism.variance(z))
    kurtosis = np.mean((column - z)**4) / mechanism.variance(z)**2 - 3
    statistics_lib.check_variance(column - z, mechanism.variance(z), max(0., kurtosis))
COUNT = 200_000


def draw(mechanism, row, count=COUNT, key=KEY):
  """float64 [count, dimension]: outputs for one row of the input."""
  values = np.tile(np.asarray(row, np.float32), (count, 1))
  perturb = tf.function(mechanism.perturb, autograph=False)
  return perturb(tf.constant(values), tf.constant(key)).numpy().astype(np.float64)


ONE = [local_dp.Piecewise(epsilon=0.5), local_dp.Piecewise(epsilon=5.0),
       local_dp.Duchi(epsilon=1.0), local_dp.Laplace(epsilon=1.0),
       local_dp.Gaussian(noise_multiplier=0.5)]
MANY = [local_dp.Piecewise(epsilon=1.0, dimension=4),
        local_dp.Piecewise(epsilon=5.0, dimension=10),
        local_dp.Piecewise(epsilon=30.0, dimension=3),
        local_dp.Duchi(epsilon=2.0, dimension=4),
        local_dp.Duchi(epsilon=2.0, dimension=5),
        local_dp.Laplace(epsilon=5.0, dimension=10),
        local_dp.Gaussian(noise_multiplier=0.5, dimension=10),
        local_dp.Laplace(epsilon=5.0, dimension=10, simplex=True),
        local_dp.Gaussian(noise_multiplier=0.02, dimension=10, simplex=True)]
LABELS = [local_dp.SubsetSelection(epsilon=1.5, dimension=10),
          local_dp.SubsetSelection(epsilon=1.5, dimension=10, size=1)]
ANY = pytest.mark.parametrize(
    'mechanism', ONE + MANY + LABELS, ids=lambda m: f'{type(m).__name__}_{m.dimension}')


@pytest.mark.parametrize(
    'mechanism', ONE + MANY, ids=lambda m: f'{type(m).__name__}_{m.dimension}')
def test_outputs_are_unbiased_and_have_the_stated_variance(mechanism):
  row = np.linspace(-1, 1, mechanism.dimension) if mechanism.dimension > 1 else [0.3]
  if getattr(mechanism, 'simplex', False):
    row = 2 * np.arange(10) / 45 - 1
  drawn = draw(mechanism, row)
  for column, z in zip(drawn.T, row):
    variance = mechanism.variance(float(np.float32(z)))
    assert variance <= mechanism.worst_variance * (1 + 1e-9)
    statistics_lib.check_mean(column, z, variance)
    centred = column - z
    # Its own fourth moment says how far the mean square may be off.
    kurtosis = np.mean(centred**4) / variance**2 - 3
    statistics_lib.check_variance(centred, variance, max(0.0, kurtosis))


@pytest.mark.parametrize('epsilon', [0.5, 5.0])
@pytest.mark.parametrize('z', [-1.0, 0.0, 0.2, 1.0])
def test_piecewise_outputs_follow_the_exact_distribution(epsilon, z):
  mechanism = local_dp.Piecewise(epsilon=epsilon)
  dist = mechanism.distribution
  outputs = np.rint(draw(mechanism, [z])[:, 0] / dist.unit + dist.centre).astype(int)
  assert outputs.min() >= 0 and outputs.max() < dist.outputs
  counts = np.bincount(outputs, minlength=dist.outputs)
  z = float(np.float32(z))
  low = math.floor((z + 1) / 2 * dist.starts)
  expected = piecewise_probabilities(dist, z)
  assert statistics_lib.fits(counts, expected)
  # The same window, as likely as at another epsilon.
  odds = math.exp(epsilon * 1.1) * dist.window / dist.starts
  other = np.full(dist.outputs, 1 / (1 + odds) / dist.starts)
  other[low:low + dist.window] = odds / (1 + odds) / dist.window
  # A few wide bins see what is spread too thin over thousands of outputs.
  counts, expected, other = (
      in_wide_bins(x, dist, low) for x in (counts, expected, other))
  assert statistics_lib.fits(counts, expected)
  assert not statistics_lib.fits(counts, other)


def in_wide_bins(values, dist, start):
  """Sums over some bins inside the window of `start` and some outside."""
  parts = np.split(np.asarray(values, float), [start, start + dist.window])
  return np.array([chunk.sum() for part in parts if part.size
      for chunk in np.array_split(part, min(8, part.size))])


def test_an_input_at_the_end_has_nothing_beyond_its_window():
  # Where published code put half of what is outside the window.
  mechanism = local_dp.Piecewise(epsilon=1.0)
  dist = mechanism.distribution
  outputs = np.rint(draw(mechanism, [1.0])[:, 0] / dist.unit + dist.centre).astype(int)
  inside = np.mean(outputs >= dist.starts)
  assert inside == pytest.approx(dist.threshold / 2**62, abs=0.01)
  # One of the last outputs is not likelier than any other of the window.
  assert np.mean(outputs == dist.outputs - 1) < 3 * inside / dist.window


@pytest.mark.parametrize('dimension, epsilon, sampled', [
    (10, 1.0, 1), (10, 4.9, 1), (10, 5.0, 2), (10, 8.0, 3), (3, 30.0, 3), (1, 9.0, 1)])
def test_piecewise_sends_as_many_coordinates_as_the_rule_says(
    dimension, epsilon, sampled):
  mechanism = local_dp.Piecewise(epsilon=epsilon, dimension=dimension)
  assert mechanism.sampled == sampled
  drawn = draw(mechanism, np.zeros(dimension), 5000)
  # A coordinate that is sent may be 0 too, where the number of outputs is odd.
  assert np.max(np.sum(drawn != 0, axis=1)) == sampled
  assert np.mean(np.sum(drawn != 0, axis=1) == sampled) > 0.99


@pytest.mark.parametrize('dimension', [1, 3, 10])
@pytest.mark.parametrize('epsilon', [0.5, 5.0, 8.0, 12.3, 30.0])
def test_all_coordinates_that_are_sent_keep_the_budget_of_the_row(dimension, epsilon):
  # Which are sent is chosen by chance alone, so the ratios of those that are multiply.
  mechanism = local_dp.Piecewise(epsilon=epsilon, dimension=dimension)
  worst = piecewise_ratio(mechanism.distribution)**mechanism.sampled
  assert is_within(worst, epsilon) and float(worst) > math.exp(epsilon) * (1 - 1e-3)


def test_every_set_of_coordinates_is_equally_likely_and_none_comes_twice():
  mechanism = local_dp.Piecewise(epsilon=5.0, dimension=5)
  drawn = draw(mechanism, np.full(5, 0.9))
  sets = {pair: 0 for pair in itertools.combinations(range(5), 2)}
  for row in drawn[np.sum(drawn != 0, axis=1) == 2][:50_000] != 0:
    sets[tuple(np.flatnonzero(row))] += 1
  assert statistics_lib.fits(list(sets.values()), np.full(10, 0.1))


def test_which_coordinates_are_sent_does_not_depend_on_the_input():
  mechanism = local_dp.Piecewise(epsilon=5.0, dimension=10)
  one, other = (draw(mechanism, row, 2000) for row in (np.ones(10), -np.ones(10)))
  np.testing.assert_array_equal(one != 0, other != 0)


@pytest.mark.parametrize('dimension', [3, 4])
def test_duchi_outputs_follow_the_exact_distribution(dimension):
  mechanism = local_dp.Duchi(epsilon=1.0, dimension=dimension)
  signs = np.array([1, -1, 1, 1][:dimension])
  drawn = draw(mechanism, signs)
  np.testing.assert_allclose(np.abs(drawn), mechanism.bound, rtol=1e-6)
  outputs = np.array(list(itertools.product((-1, 1), repeat=dimension)))
  codes = ((drawn > 0) * 2**np.arange(dimension - 1, -1, -1)).sum(axis=1)
  counts = np.bincount(codes, minlength=2**dimension)
  expected = [float(duchi_probability(mechanism, int(t @ signs))) for t in outputs]
  assert statistics_lib.fits(counts, expected)
  assert not statistics_lib.fits(counts, expected[::-1])


def test_laplace_noise_is_on_the_grid_of_its_distribution_and_clipped():
  mechanism = local_dp.Laplace(epsilon=4.0, dimension=2)
  drawn = draw(mechanism, [1.0, -1.0])[:, 0] * mechanism.steps
  np.testing.assert_array_equal(drawn, np.rint(drawn))
  assert np.abs(drawn).max() <= mechanism.limit
  edges = np.quantile(drawn, np.linspace(0, 1, 41)[1:-1])
  edges = np.unique(np.rint(edges)) + 0.5
  counts = np.histogram(drawn, [-np.inf, *edges, np.inf])[0]
  scale = mechanism.scale * mechanism.steps
  expected = np.diff(stats.laplace.cdf(
      [-np.inf, *edges, np.inf], loc=mechanism.steps, scale=scale))
  assert statistics_lib.fits(counts, expected)


@ANY
def test_rows_and_keys_differ_and_the_same_key_repeats(mechanism):
  row = np.full(mechanism.dimension, 0.25)
  first, again = draw(mechanism, row, 50), draw(mechanism, row, 50)
  other = draw(mechanism, row, 50, KEY + 1)
  np.testing.assert_array_equal(first, again)
  assert np.mean(first != other) > 0.05
  assert len(np.unique(first, axis=0)) > 1


@ANY
def test_coordinates_outside_are_clipped_and_nan_counts_as_zero(mechanism):
  rows = np.zeros([5, mechanism.dimension])
  rows[:, 0] = [7.0, -7.0, math.inf, -math.inf, math.nan]
  clipped = np.nan_to_num(np.clip(rows, -1, 1))
  perturbed = [mechanism.perturb(tf.constant(x), tf.constant(KEY))
               for x in (np.tile(rows, (20, 1)), np.tile(clipped, (20, 1)))]
  np.testing.assert_array_equal(*perturbed)


@pytest.mark.parametrize('shape', [[10], [3, 9], [2, 3, 10]])
def test_values_of_another_shape_are_named(shape):
  mechanism = local_dp.Duchi(epsilon=1.0, dimension=10)
  with pytest.raises(ValueError, match='values must have the shape'):
    mechanism.perturb(tf.zeros(shape), tf.constant(KEY))


def test_probabilities_are_scaled_by_constants_alone():
  # Of rows of different ranges, so that a scaling by the range would show.
  probabilities = np.array([[0.2, 0.5, 0.3], [0.0, 1.0, 0.0], [1/3, 1/3, 1/3]])
  scaled = local_dp.scaled_probabilities(tf.constant(probabilities)).numpy()
  np.testing.assert_allclose(scaled, 2 * probabilities - 1)
  np.testing.assert_allclose(local_dp.unscaled_probabilities(scaled), probabilities)


@pytest.mark.parametrize('arguments, message', [
    (dict(name='coin', epsilon=1.0), 'mechanism must be one of'),
    (dict(name='duchi'), 'needs epsilon'),
    (dict(name='gaussian', epsilon=1.0), 'needs noise_multiplier'),
    (dict(name='krr', epsilon=1.0), 'krr needs simplex=True'),
    *((dict(name=name, epsilon=1.0, simplex=True, dimension=bad), f'dimension .*{bad}')
      for name in ('krr', 'subset', 'laplace') for bad in (1, 1025, True)),
    (dict(name='gaussian', noise_multiplier=1e-9), 'scale of noise must be at least'),
    (dict(name='laplace', epsilon=1.0, noise_multiplier=1.0), 'nothing else'),
    (dict(name='piecewise', epsilon=math.nan), 'epsilon .*nan'),
    *((dict(name=name, epsilon=1.0, dimension=bad), f'dimension .*{bad}')
      for name in ('piecewise', 'duchi', 'laplace') for bad in (0, 2.0, True)),
    *((dict(name='gaussian', noise_multiplier=bad), 'noise_multiplier')
      for bad in (0.0, -1.0, math.nan, math.inf, 1e6)),
    (dict(name='piecewise', epsilon=500.0, dimension=3), 'epsilon'),
    (dict(name='duchi', epsilon=-1.0), 'epsilon .*-1')])
def test_wrong_requests_are_named(arguments, message):
  with pytest.raises(ValueError, match=message):
    local_dp.build(**{'dimension': 2, **arguments})


@pytest.mark.parametrize('epsilon', [
    0.0, -1.0, 1e-9, 40.0, math.nan, math.inf, True, '1', None])
@pytest.mark.parametrize('build', [
    distributions.PiecewiseDistribution, lambda e: distributions.DuchiDistribution(e, 3),
    lambda e: distributions.SubsetDistribution(e, 3),
    lambda e: distributions.LaplaceDistribution(e, 3)])
def test_impossible_epsilon_is_named(build, epsilon):
  with pytest.raises(ValueError, match=f'epsilon .*{epsilon!r}'):
    build(epsilon)


def test_laplace_table_that_would_be_too_large_is_refused():
  with pytest.raises(ValueError, match='too large'):
    distributions.LaplaceDistribution(0.001, 1000)
