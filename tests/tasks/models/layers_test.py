"""Tests of tasks.models.layers."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tasks.models import classifiers, layers


def _seed(*values):
  return tf.constant(values, tf.int64)


def test_images_are_scaled_to_the_unit_interval_with_a_channel():
  images = np.array([[[0, 51], [102, 255]]], np.uint8)
  x = classifiers.to_float(tf.constant(images))
  assert x.dtype == tf.float32
  np.testing.assert_allclose(x.numpy(), [[[[0.0], [0.2]], [[0.4], [1.0]]]], rtol=1e-6)


def test_max_pool_takes_the_maximum_of_each_tile_and_drops_the_rest():
  x = np.arange(25, dtype=np.float32).reshape([1, 5, 5, 1])
  pooled = layers.max_pool(tf.constant(x), 2).numpy()
  np.testing.assert_array_equal(pooled[0, :, :, 0], [[6, 8], [16, 18]])


def test_dropout_repeats_with_its_seed_and_differs_with_another():
  x = tf.ones([50, 40])
  first = layers.dropout(x, 0.5, _seed(3, 4)).numpy()
  np.testing.assert_array_equal(first, layers.dropout(x, 0.5, _seed(3, 4)))
  for other in (_seed(3, 5), _seed(4, 4)):
    different = np.mean(first != layers.dropout(x, 0.5, other).numpy())
    assert 0.4 < different < 0.6  # Half of 2,000: 0.5 +- 9 standard errors.


def test_dropout_is_the_same_under_xla():
  x = tf.ones([20, 11, 64])
  seed = _seed(5, 6)

  def masked(x):
    return layers.dropout(x, 0.25, layers.layer_seed(seed, 0))

  np.testing.assert_array_equal(
      tf.function(masked, jit_compile=True)(x), tf.function(masked)(x))


@pytest.mark.parametrize('jit_compile', [False, True])
def test_dropout_of_a_row_does_not_depend_on_padding(jit_compile):
  dropout = tf.function(
      lambda x: layers.dropout(x, 0.25, _seed(8, 9)), jit_compile=jit_compile)
  full = dropout(tf.ones([20, 7, 13])).numpy()
  for rows in (1, 3, 19):
    np.testing.assert_array_equal(dropout(tf.ones([rows, 7, 13])), full[:rows])


@pytest.mark.parametrize('rate', [0.1, 0.25, 0.5])
def test_dropout_has_its_rate_and_not_a_neighbouring_one(rate):
  n = 200_000
  x = layers.dropout(tf.ones([n]), rate, _seed(10, 11)).numpy()
  dropped = np.mean(x == 0)
  error = lambda p: abs(dropped - p) / math.sqrt(p * (1 - p) / n)
  assert error(rate) < 5  # A false alarm has probability 6e-7.
  assert error(rate * 2 / 3) > 5
  assert error(rate * 3 / 2) > 5
  np.testing.assert_allclose(x[x != 0], 1 / (1 - rate), rtol=1e-6)


def test_dropout_masks_of_neighbours_and_layers_are_independent():
  n = 100_000
  seed = _seed(12, 13)
  a, b = (layers.dropout(tf.ones([n]), 0.5, layers.layer_seed(seed, i)).numpy()
          for i in (0, 1))
  for other in (b[:-1], a[1:], b[1:]):
    correlation = np.mean((a[:-1] - 1) * (other - 1))
    assert abs(correlation) < 5 / math.sqrt(n)


def test_dropout_is_the_identity_without_a_seed_and_at_rate_0():
  x = tf.constant([1.0, -2.0, 3.0])
  np.testing.assert_array_equal(layers.dropout(x, 0.5, None), x)
  np.testing.assert_array_equal(layers.dropout(x, 0.0, _seed(1, 1)), x)


@pytest.mark.parametrize('rate', [-0.1, 1.0, 1.5, math.nan])
def test_dropout_rejects_a_bad_rate(rate):
  with pytest.raises(ValueError, match='rate must be in'):
    layers.dropout(tf.ones([3]), rate, _seed(1, 1))


def test_metrics_count_only_rows_under_the_mask():
  logits = tf.constant([[2.0, 0.0], [2.0, 0.0], [0.0, 0.0], [np.inf, 0.0]])
  labels = tf.constant([0, 1, 0, 1])
  metrics = layers.classification_metrics(
      logits, labels, tf.constant([1.0, 1.0, 0.0, 0.0]))
  assert [float(v) for v in metrics['accuracy']] == [1.0, 2.0]
  loss, weight = metrics['loss']
  assert float(weight) == 2.0
  expected = math.log1p(math.exp(-2)) + math.log1p(math.exp(2))
  assert float(loss) == pytest.approx(expected, rel=1e-6)


def test_glorot_uniform_repeats_and_fills_its_interval():
  first = layers.glorot_uniform(np.random.default_rng(7), 5, 5, 8, 16)
  again = layers.glorot_uniform(np.random.default_rng(7), 5, 5, 8, 16)
  np.testing.assert_array_equal(first, again)
  assert first.dtype == np.float32
  limit = math.sqrt(6 / (25 * (8 + 16)))
  assert 0.99 * limit < np.abs(first).max() <= limit * (1 + 1e-6)
  # Variance limit^2 / 3, relative standard error sqrt(0.8 / 3200) = 1.6%.
  assert np.var(first) == pytest.approx(limit**2 / 3, rel=0.08)


def test_glorot_uniform_of_a_seed_never_changes():
  # Recorded once: runs of a seed stay comparable across versions and machines.
  weights = layers.glorot_uniform(np.random.default_rng(0), 2, 2)
  np.testing.assert_array_equal(
      weights, np.array([[0.33548626, -0.56390506], [-1.1243806, -1.1842606]],
                        np.float32))
