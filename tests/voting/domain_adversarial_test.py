"""Gradient reversal, and what it does to features."""

import numpy as np
import pytest
import tensorflow as tf

from tff_pipelines.voting import agents


def test_reversed_gradients_are_minus_the_strength():
  x = tf.constant([1.0, -2.0])
  for strength in (0.0, 0.5, 3.0):
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = tf.reduce_sum(agents.reverse_gradient(x, strength) * [2.0, 5.0])
    np.testing.assert_array_equal(y, -8.0)
    np.testing.assert_allclose(
        tape.gradient(y, x), [-2.0 * strength, -5.0 * strength])


def test_strength_grows_from_nothing_to_the_largest():
  strengths = [float(agents.adversarial_strength(tf.constant(p), 0.7))
               for p in (0.0, 0.1, 0.5, 1.0)]
  assert strengths[0] == 0 and strengths[-1] == pytest.approx(0.7, abs=1e-3)
  assert strengths == sorted(strengths)


def _training(own, public, strength, steps=150):
  """Losses of a linear map to 2 features and its discriminator."""
  weights = [tf.Variable(np.eye(3, 2, dtype=np.float32))] + [
      tf.Variable(w) for w in agents.initial_discriminator(2, 0)]
  losses = []
  for _ in range(steps):
    with tf.GradientTape() as tape:
      loss = agents.domain_loss(
          weights[1:], own @ weights[0], public @ weights[0], strength)
    for w, g in zip(weights, tape.gradient(loss, weights)):
      w.assign_sub(0.1 * g)
    losses.append(float(loss))
  return weights[0].numpy(), losses


@pytest.mark.slow
def test_features_lose_what_tells_the_domains_apart_and_keep_the_rest():
  rng = np.random.default_rng(0)
  own, public = rng.normal(size=(2, 200, 3)).astype(np.float32)
  public[:, 0] += 3.0  # The domains differ along the first coordinate alone.
  kept, losses = _training(own, public, strength=0.0)
  assert losses[-1] < 0.3
  lost, losses = _training(own, public, strength=1.0)
  assert losses[-1] > 0.9 * np.log(2)
  shift = np.array([3.0, 0.0, 0.0])
  assert np.linalg.norm(shift @ lost) < 0.35 * np.linalg.norm(shift @ kept)
  assert abs(lost[1, 1]) > 0.7


def test_both_domains_weigh_the_same():
  weights = [tf.constant(w) for w in agents.initial_discriminator(2, 1)]
  rng = np.random.default_rng(1)
  own, public = rng.normal(size=(2, 8, 2)).astype(np.float32)
  loss = agents.domain_loss(weights, own, public, 1.0)
  repeated = agents.domain_loss(weights, own, np.tile(public, (5, 1)), 1.0)
  np.testing.assert_allclose(loss, repeated, rtol=1e-5)
