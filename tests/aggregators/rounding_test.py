"""Tests of aggregators.rounding."""

import numpy as np
import pytest
import tensorflow as tf

from aggregators import keys, noisy_rounding, rounding
from aggregators.params import DistributedSumParams
from tests import statistics_lib

KEY = np.array([31, -41], np.int64)
_params = DistributedSumParams(
    clip=1.0, noise_multiplier=0.0, bits=16, dimension=64, cohort_size=10,
    rotation='none').replace


def _conditional_round(vector, key, bound):
  """The rounding alone: no noise, not wrapped."""
  return noisy_rounding.noisy_round(
      vector, key, bound, noisy_rounding.SampledNoise(sample=None), None, compiled=False)


def _to_grid(vector, scale, clip_grid):
  return vector * rounding.grid_factor(rounding.squared_norm(vector), scale, clip_grid)


def _squared_norm(values):
  return sum(int(v)**2 for v in values)


def _adversarial_vectors(dim, clip, count, seed):
  """Vectors that try to be longer than they should, float32 [count, dim]."""
  rng = np.random.default_rng(seed)
  def boundary():
    x = rng.normal(size=dim)
    return x * clip / np.linalg.norm(x)

  def one_coordinate():
    x = np.zeros(dim)
    x[rng.integers(dim)] = clip * rng.choice([-1, 1, 1 - 1e-7, 1 + 1e-7, 1e3])
    return x

  def few_coordinates():
    x = np.zeros(dim)
    x[rng.integers(dim, size=3)] = rng.normal(size=3)
    return x * clip

  families = [boundary,
      # Beyond by some units in the last place.
      lambda: np.float32(boundary()) * np.float32(1 + 2.0**-rng.integers(20, 24)),
      one_coordinate, few_coordinates, lambda: rng.normal(size=dim) * 1e38,
      lambda: np.full(dim, np.finfo(np.float32).max) * rng.choice([-1, 1]),
      lambda: rng.normal(size=dim) * 1e-38, lambda: np.full(dim, 1e-45),
      lambda: np.zeros(dim), lambda: -np.zeros(dim),
      lambda: np.full(dim, clip / dim**0.5),
      lambda: np.full(dim, clip / dim**0.5) * rng.choice([-1, 1], size=dim),
      lambda: np.where(rng.random(dim) < 0.02, np.nan, 1.0),
      lambda: np.where(rng.random(dim) < 0.02, np.inf, boundary()),
      lambda: boundary() * 10.0**rng.uniform(-40, 37),
      # Mostly tiny coordinates, which all may round away from zero.
      lambda: boundary() * rng.uniform(0, 1e-3, size=dim)]
  with np.errstate(all='ignore'):
    return np.array([
        families[i % len(families)]() for i in range(count)]).astype(np.float32)


@pytest.mark.parametrize('changes', [dict(bits=16), dict(bits=16, beta=0.0),
    dict(fixed_scale=3.3, beta=0.999), dict(fixed_scale=2.0**30),
    dict(dimension=1, fixed_scale=12.5), dict(clip=1e-3, fixed_scale=2e4, dimension=257),
    dict(clip=1e20, bits=12)])
@pytest.mark.usefixtures('form')
def test_no_adversarial_vector_exceeds_the_bound(changes):
  params = _params(**changes)
  vectors = _adversarial_vectors(params.dimension, params.clip, 1000, seed=1)

  def one(arguments):
    vector, index = arguments
    clipped, _, is_finite = rounding.clip_by_norm(vector, params.clip)
    grid = _to_grid(clipped, params.scale, params.clip_grid)
    rounded = _conditional_round(
        grid, keys.derive(KEY, index), params.l2_sensitivity_squared)
    return rounded.values, rounded.fell_back, is_finite

  run = tf.function(lambda: tf.map_fn(one, (tf.constant(vectors), tf.range(len(vectors))),
      fn_output_signature=(tf.int32, tf.bool, tf.bool), parallel_iterations=8),
                    autograph=False)
  values, fell_back, is_finite = run()
  norms = [_squared_norm(v) for v in values.numpy()]
  assert max(norms) <= params.l2_sensitivity_squared
  # And not because everything is sent as zero.
  assert max(norms) > 0.5 * (params.clip_grid - 1)**2
  np.testing.assert_array_equal(is_finite, np.isfinite(vectors).all(axis=1))
  if params.beta < 0.95:
    assert not np.any(fell_back)
  for i in np.flatnonzero(~is_finite.numpy()):
    assert norms[i] == 0


@pytest.mark.usefixtures('form')
def test_beta_zero_bounds_every_rounding_so_that_none_is_repeated():
  params = _params(beta=0.0, fixed_scale=5.0, dimension=100)
  vectors = _adversarial_vectors(100, 1.0, 300, seed=2)
  round_once = tf.function(lambda v, k: _conditional_round(
      _to_grid(rounding.clip_by_norm(v, 1.0)[0], params.scale, params.clip_grid),
      k, params.l2_sensitivity_squared), autograph=False)
  retries = [int(round_once(v, keys.derive(KEY, i)).retries)
             for i, v in enumerate(vectors)]
  assert retries == [0] * 300


def test_a_vector_of_more_coordinates_than_a_float32_counts_stays_in_bounds():
  dim = 2**23 + 1
  params = _params(dimension=dim, fixed_scale=1000.0)
  vector = np.full(dim, 1.0, np.float32)
  vector[::2] = -1.0
  clipped, was_clipped, _ = rounding.clip_by_norm(tf.constant(vector), 1.0)
  assert bool(was_clipped)
  grid = _to_grid(clipped, params.scale, params.clip_grid)
  assert np.linalg.norm(grid.numpy().astype(np.float64)) == pytest.approx(
      1000.0, rel=1e-5)
  rounded = _conditional_round(grid, KEY, params.l2_sensitivity_squared)
  squared_norm = int(np.sum(rounded.values.numpy().astype(np.int64)**2))
  assert not bool(rounded.fell_back)
  assert 0 < squared_norm <= params.l2_sensitivity_squared


@pytest.mark.usefixtures('form')
def test_rounding_is_unbiased_with_the_variance_of_the_fraction():
  patterns, repeats = 200, 2000
  x = np.random.default_rng(3).uniform(-20, 20, patterns).astype(np.float32)
  x[:6] = [0.5, -0.5, 0.001, -0.001, 0.999, 3.0]
  rounded = _conditional_round(tf.constant(np.tile(x, repeats)), KEY, 2**60)
  values = rounded.values.numpy().reshape(repeats, patterns)
  assert int(rounded.retries) == 0
  floor = np.floor(x)
  assert np.all((values == floor) | (values == floor + 1))
  fraction = x.astype(np.float64) - floor
  # Every coordinate alone; 1e-6 in all, so 5.8 standard errors.
  error = np.sqrt(fraction * (1 - fraction) / repeats)
  assert np.all(np.abs(values.mean(axis=0) - x) <= 5.8 * error + 2.0**-23)
  # All together: rounding to the nearest or towards zero would be seen.
  deviations = (values - x)[:, error > 0]
  variance = np.mean((fraction * (1 - fraction))[error > 0])
  signed = deviations * np.sign(x[error > 0])
  statistics_lib.check_mean(signed, 0, variance)
  statistics_lib.check_variance(deviations, variance)
  with pytest.raises(AssertionError):
    statistics_lib.check_mean((np.trunc(x) - x) * np.sign(x), 0, variance)
  with pytest.raises(AssertionError):
    nearest = np.tile(np.rint(x) - x, repeats)
    statistics_lib.check_variance(nearest, variance)


@pytest.mark.usefixtures('form')
def test_the_distribution_is_conditioned_on_the_bound():
  # Of (0,0) (0,1) (1,0) (1,1), all equally likely, the last one is too long.
  draw = tf.function(lambda: tf.map_fn(
      lambda i: _conditional_round(tf.constant([0.5, 0.5]), keys.derive(KEY, i), 1),
      tf.range(3000), fn_output_signature=noisy_rounding.Rounded(
          tf.int32, tf.int32, tf.bool)), autograph=False)
  rounded = draw()
  outcome = rounded.values.numpy() @ [1, 2]
  counts = np.bincount(outcome, minlength=4)
  assert counts[3] == 0
  assert statistics_lib.fits(counts[:3], [1 / 3] * 3)
  assert not statistics_lib.fits(counts[:3], [0.4, 0.3, 0.3])
  # A try fails with probability 1/4: retries are geometric.
  retries = np.bincount(np.minimum(rounded.retries.numpy(), 4), minlength=5)
  assert statistics_lib.fits(retries, [0.75, 0.75 / 4, 0.75 / 16, 0.75 / 64, 1 / 256])
  assert not np.any(rounded.fell_back)


@pytest.mark.usefixtures('form')
@pytest.mark.slow
@pytest.mark.parametrize('extra', [-1, 0, noisy_rounding.BLOCK + 3])
def test_vectors_of_several_blocks_are_rounded_under_one_bound(extra):
  dim = noisy_rounding.BLOCK + extra
  integers = np.arange(dim) % 5 - 2
  rounded = _conditional_round(tf.constant(integers, tf.float32), KEY, 2**40)
  np.testing.assert_array_equal(rounded.values, integers)
  # Half of the tries are too long: of ones there are dim / 2, give or take.
  half = tf.fill([dim], 0.5)
  round_half = tf.function(lambda key: _conditional_round(
      half, key, dim // 2), autograph=False)
  retries, means = [], []
  for i in range(40):
    rounded = round_half(keys.derive(KEY, i))
    values = rounded.values.numpy()
    assert set(np.unique(values)) == {0, 1} and values.sum() <= dim // 2
    assert not bool(rounded.fell_back)
    retries.append(int(rounded.retries))
    parts = [values[start:start + noisy_rounding.BLOCK]
             for start in range(0, dim, noisy_rounding.BLOCK)]
    means += [part.mean() for part in parts if len(part) > 1000]
    if len(parts) > 1 and len(parts[0]) == len(parts[1]):
      assert np.mean(parts[0] == parts[1]) < 0.55  # Random bits of their own.
  # Of 40 geometric numbers with mean 1, 1e-12 are all zero.
  assert 0 < sum(retries) < 150
  assert np.all(np.abs(np.array(means) - 0.5) < 0.03)
  fallback = _conditional_round(half, KEY, 0)
  assert bool(fallback.fell_back) and not np.any(fallback.values)


@pytest.mark.usefixtures('form')
def test_a_bound_that_no_try_meets_falls_back_towards_zero():
  x = np.array([2.9, -2.9, 2.9, -2.9] * 100, np.float32)
  rounded = _conditional_round(tf.constant(x), KEY, 1600)
  np.testing.assert_array_equal(rounded.values, np.trunc(x))
  assert bool(rounded.fell_back) and int(rounded.retries) == 63


@pytest.mark.usefixtures('form')
@pytest.mark.parametrize('x', [
    [np.nan, 0.0], [np.inf, 1.0], [-np.inf, np.inf], [3e9, 3e9], [1e38, -1e38],
    [2.0**31, 0.0], [-2.0**31] * 2, [2.0**30.75] * 8])
@pytest.mark.parametrize('bound', [0, 100, 2**61])
def test_vectors_outside_the_documented_range_keep_the_bound(x, bound):
  # Cast to int32 they would be -2^31, whose squares add up to 0 modulo 2^64.
  rounded = _conditional_round(tf.constant(x, tf.float32), KEY, bound)
  assert _squared_norm(rounded.values.numpy()) <= bound
  assert bool(rounded.fell_back)


@pytest.mark.parametrize('dtype', [np.float32, np.float64])
@pytest.mark.parametrize('clip', [1e-20, 0.1, 1.0, 1e20])
def test_clipping_holds_the_norm_and_keeps_the_direction(dtype, clip):
  rng = np.random.default_rng(4)
  sizes = [1e-3, 0.999, 1.001, 1e3, 1e15]
  if dtype == np.float64:
    sizes += [1e280]
  for size in sizes:
    direction = rng.normal(size=1000)
    direction /= np.linalg.norm(direction)
    vector = (direction * size * clip).astype(dtype)
    clipped, was_clipped, is_finite = rounding.clip_by_norm(tf.constant(vector), clip)
    assert clipped.dtype == tf.float32
    assert bool(is_finite) and bool(was_clipped) == (size > 1)
    norm = np.linalg.norm(clipped.numpy().astype(np.float64))
    assert norm == pytest.approx(clip * min(size, 1), rel=1e-6)
    np.testing.assert_allclose(clipped.numpy() / norm, direction, atol=1e-6)


def test_the_clip_is_taken_in_float64():
  # 0.1 is 0.100000001 as a float32; in float64 this vector is longer than it.
  _, was_clipped, _ = rounding.clip_by_norm(tf.constant([0.1000000001], tf.float64), 0.1)
  assert bool(was_clipped)


@pytest.mark.parametrize('values, dtype, expected', [
    ([0.0, -0.0], np.float32, [0.0, 0.0]),
    ([3e38, -3e38], np.float32, [0.5**0.5, -0.5**0.5]),
    ([1e38] * 4, np.float32, [0.5] * 4),
    ([1e300, 0.0], np.float64, [1.0, 0.0]),
    ([1e300, -1e300], np.float64, [0.5**0.5, -0.5**0.5]),
    ([1.7e308] * 4, np.float64, [0.5] * 4),
    ([1e-45, -1e-40], np.float32, [0.0, 0.0]),
    ([5e-324, 1e-310], np.float64, [0.0, 0.0]),
    ([5e-324, 1.0], np.float64, [0.0, 1.0]),
    ([1e-45, 30.0], np.float32, [0.0, 1.0])])
def test_extreme_finite_values_are_clipped(values, dtype, expected):
  clipped, _, is_finite = rounding.clip_by_norm(tf.constant(np.array(values, dtype)), 1.0)
  assert bool(is_finite)
  np.testing.assert_allclose(clipped, expected, rtol=1e-6, atol=1e-37)


@pytest.mark.parametrize('values', [
    [np.nan], [1.0, np.nan], [np.inf, 1.0], [-np.inf, np.inf], [np.nan, np.inf],
    [1e30, np.nan, 0.0]])
@pytest.mark.parametrize('dtype', [np.float32, np.float64])
def test_a_vector_with_nan_or_infinities_becomes_zero(values, dtype):
  clipped, was_clipped, is_finite = rounding.clip_by_norm(
      tf.constant(np.array(values, dtype)), 1.0)
  np.testing.assert_array_equal(clipped, np.zeros(len(values)))
  assert not bool(is_finite) and not bool(was_clipped)


def test_grid_factor_scales_and_never_exceeds_the_clip_in_float64():
  rng = np.random.default_rng(5)
  scale = 1e4 / 3
  for i in range(200):
    vector = rng.normal(size=500)
    vector = (vector / np.linalg.norm(vector)).astype(np.float32)
    vector *= np.float32(1 + i * 2e-8)
    grid = _to_grid(tf.constant(vector), scale, scale)
    assert np.linalg.norm(grid.numpy().astype(np.float64)) <= scale
  short = _to_grid(tf.constant(vector / 2), scale, scale).numpy()
  np.testing.assert_allclose(short, vector / 2 * scale, rtol=2e-7)
