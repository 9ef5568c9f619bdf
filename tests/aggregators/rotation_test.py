"""Tests of aggregators.rotation."""

import functools
import math

import numpy as np
import pytest
import tensorflow as tf

from aggregators import hadamard, rotation
from tests import statistics_lib

KEY = np.array([11, -12], np.int64)
# Dimensions that each kind takes.
ORDERS = [12, 20 * 2**6, 28 * 2**7, 144, 240 * 2**8, 336 * 2**8, 400, 560 * 2**8,
          784 * 2**8]
DIMENSIONS = ([('hadamard', d) for d in (1, 2, 4, 128, 256, 2048, 2**20, *ORDERS)] +
    [('dft', d) for d in (2, 6, 1000, 2**20)] + [('none', d) for d in (1, 7, 1000)])


def _signs(key, dim):
  """+1 and -1, float32 [dim]."""
  return rotation.flip(
      tf.ones([dim]), rotation.sign_bits(tf.constant(key, tf.int64), dim)).numpy()


def _vector(dim, seed=0):
  return np.random.default_rng(seed).normal(size=dim).astype(np.float32)


@pytest.mark.parametrize('kind, dim', DIMENSIONS)
def test_rotation_preserves_the_norm_and_is_inverted(kind, dim):
  vector = _vector(dim)
  rotated = rotation.rotate(tf.constant(vector), KEY, kind)
  assert rotated.shape == [dim] and rotated.dtype == tf.float32
  norm = np.linalg.norm(vector.astype(np.float64))
  assert np.linalg.norm(rotated.numpy().astype(np.float64)) == pytest.approx(
      norm, rel=2e-6)
  back = rotation.unrotate(rotated, KEY, kind).numpy()
  np.testing.assert_allclose(back, vector, rtol=0, atol=1e-5)


@pytest.mark.parametrize('kind, dim', [
    ('hadamard', 2), ('hadamard', 256), ('hadamard', 12), ('hadamard', 40),
    ('hadamard', 112), ('hadamard', 240), ('dft', 2), ('dft', 100)])
def test_rotation_is_an_orthogonal_matrix(kind, dim):
  rows = [rotation.rotate(tf.constant(row), KEY, kind).numpy()
          for row in np.eye(dim, dtype=np.float32)]
  matrix = np.array(rows, np.float64)
  np.testing.assert_allclose(matrix @ matrix.T, np.eye(dim), atol=2e-6)


def _matrix(dim):
  """The Hadamard matrix of a length, built as a whole."""
  factors = hadamard.factors(dim)
  return functools.reduce(np.kron, map(hadamard.matrix, (
      *factors, dim // math.prod(factors))))


@pytest.mark.parametrize('dim', [
    1, 2, 128, 256, 512, 2048, 12, 20, 28, 144, 560, 12 * 2**6, 20 * 2**6, 28 * 2**6,
    12 * 2**8])
def test_transform_is_the_kronecker_product(dim):
  vector, matrix = _vector(dim), _matrix(dim)
  expected = matrix.astype(np.float64) @ vector
  np.testing.assert_allclose(
      rotation.transformed(tf.constant(vector)), expected, rtol=0, atol=1e-5 * dim**0.5)
  # Of integers it is exact.
  integers = np.arange(dim, dtype=np.float32) % 7
  np.testing.assert_array_equal(
      rotation.transformed(tf.constant(integers)), matrix @ integers)


@pytest.mark.parametrize('order', [*hadamard.ORDERS, 2, 16, 64])
def test_small_matrices_are_symmetric_hadamard_matrices(order):
  matrix = hadamard.matrix(order)
  np.testing.assert_array_equal(matrix @ matrix, order * np.eye(order))
  np.testing.assert_array_equal(matrix, matrix.T)
  np.testing.assert_array_equal(np.abs(matrix), np.ones_like(matrix))
  np.testing.assert_array_equal(matrix[0], np.ones(order))


def test_vectors_are_padded_by_a_quarter_at_most():
  dimensions = np.unique(np.geomspace(1024, 1e8, 5000).astype(int)).tolist()
  lengths = [hadamard.padded(d) for d in dimensions]
  ratios = np.array(lengths) / dimensions
  assert ratios.min() >= 1 and ratios.max() <= 1.25 and ratios.mean() < 1.07
  assert max(r for d, r in zip(dimensions, ratios) if d > 784 * 2**8) < 1.16
  for length in set(lengths):
    assert hadamard.padded(length) == length  # And it has factors.
    # The name is a product of the length.
    assert eval(hadamard.name(length).replace('^', '**')) == length
  # A power of two stays one, also where no shorter order would pay.
  assert [hadamard.padded(d) for d in (1, 3, 1000, 2**20 - 1, 2**20)] == [
      1, 4, 1024, 2**20, 2**20]
  assert [hadamard.name(hadamard.padded(d)) for d in (10_000, 820_522, 5_000_500)] == [
      '20 * 2^9', '28 * 2^15', '20 * 2^18']


def test_signs_are_fair_and_independent_of_their_neighbours():
  # 2^22 signs: a probability of 0.5 + 0.0013 would be seen.
  signs = _signs(KEY, 2**22)
  assert set(np.unique(signs)) == {-1.0, 1.0}
  statistics_lib.check_mean(signs * _signs([11, -13], 2**22), 0, 1)
  for lag in (1, 2, 31, 32, 33, 64, 128):
    statistics_lib.check_mean(signs[lag:] * signs[:-lag], 0, 1)
  # Of each bit in an integer of 32, and with power.
  for bit in range(32):
    statistics_lib.check_mean(signs[bit::32], 0, 1)
  with pytest.raises(AssertionError):
    biased = np.where(np.arange(2**22) % 200 == 0, 1.0, signs)
    statistics_lib.check_mean(biased, 0, 1)


def _spiky_vectors(dim):
  """Vectors that are far from flat, or from random, by name."""
  one_hot = np.zeros(dim, np.float32)
  one_hot[3] = 1
  few = np.zeros(dim, np.float32)
  few[:5] = [5, -4, 3, -2, 1]
  return {'one coordinate': one_hot, 'few coordinates': few,
      'constant': np.ones(dim, np.float32),
      'decaying': 0.99**np.arange(dim, dtype=np.float32),
      'row of the transform': _matrix(dim)[37].astype(np.float32)}


def _exceedances(rotated, norm, t):
  return np.mean(np.abs(rotated) > t * norm / rotated.shape[-1]**0.5)


@pytest.mark.parametrize('kind, dim', [
    ('hadamard', 1024), ('hadamard', 12 * 2**6), ('hadamard', 20 * 2**6),
    ('hadamard', 28 * 2**6), ('hadamard', 144 * 2**3), ('dft', 1024)])
@pytest.mark.parametrize('name', sorted(_spiky_vectors(64)))
def test_rotation_spreads_a_vector_evenly(kind, dim, name):
  rounds = 64
  vector = _spiky_vectors(dim)[name]
  norm = np.linalg.norm(vector)
  rotate = tf.function(lambda key: rotation.rotate(tf.constant(vector), key, kind))
  rotated = np.array([
      rotate(tf.constant([i, 99], tf.int64)).numpy() for i in range(rounds)])
  for t in (2.0, 3.0, 4.0):
    # Sub-Gaussian: P(|y| > t norm / sqrt D) <= 2 exp(-t^2 / 2). For the
    # discrete Fourier transform a coordinate of one complex number adds sqrt 2.
    bound = 2 * np.exp(-t**2 / (4 if kind == 'dft' else 2))
    assert _exceedances(rotated, norm, t) <= bound
  # A coordinate has mean zero and variance norm^2 / D over the keys. Each is
  # seen over the rounds alone, as coordinates of a round may be dependent.
  errors = rotated.mean(axis=0) / (norm / dim**0.5 / rounds**0.5)
  assert np.abs(errors).max() < 6.5
  if name == 'decaying' and dim >= 1024:
    # Power: left as it is, the vector is far from flat.
    assert _exceedances(vector[np.newaxis], norm, 4.0) > 2 * np.exp(-8)


@pytest.mark.parametrize('function', [rotation.rotate, rotation.unrotate])
def test_an_unknown_kind_is_named(function):
  with pytest.raises(ValueError, match="rotation .*'fourier'"):
    function(tf.zeros([4]), KEY, 'fourier')


@pytest.mark.parametrize('length', [11, 36, 6, 44, 12**3 // 8])
def test_a_length_without_a_matrix_is_named(length):
  with pytest.raises(ValueError, match=f'12, 20 and 28, found {length}$'):
    rotation.transformed(tf.zeros([length]))
