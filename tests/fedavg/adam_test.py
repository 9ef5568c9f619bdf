"""Adam in pure functions: the textbook's steps, and resumable ones."""

import numpy as np
import pytest
import tensorflow as tf

from tff_pipelines.fedavg import adam as voting_training

CONFIG = voting_training.AdamConfig(
    learning_rate=0.1, batch_size=4, epochs=3, weight_decay=0.05)
TARGET = np.array([1.0, -2.0, 0.5], np.float32)


def _loss(weights, step):
  del step
  return tf.reduce_sum(tf.square(weights[0] - TARGET) * [1.0, 3.0, 0.1])


def _run(state, first, last, total, config=CONFIG):
  return tf.function(lambda s, a, b: voting_training.run_steps(
      _loss, s, a, b, total, config), autograph=False)(state, first, last)


def test_steps_are_those_of_adam():
  """Against a loop in float64."""
  total = 40
  w = np.zeros(3)
  m, v = np.zeros(3), np.zeros(3)
  for i in range(total):
    g = 2 * (w - TARGET) * [1.0, 3.0, 0.1]
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    rate = 0.1 * 0.5 * (1 + np.cos(np.pi * i / total))
    unbiased = (m / (1 - 0.9**(i + 1))) / (np.sqrt(v / (1 - 0.99**(i + 1))) + 1e-12)
    w = w - rate * unbiased - rate * 0.05 * w
  state = voting_training.initial_state([np.zeros(3)])
  actual = _run(state, 0, total, total)[0][0].numpy()
  np.testing.assert_allclose(actual, w, atol=2e-4)
  assert np.abs(actual - TARGET)[:2].max() < 0.35


def test_a_training_in_pieces_is_that_in_one_to_the_last_bit():
  state = voting_training.initial_state([np.zeros(3)])
  whole = _run(state, 0, 30, 30)
  for split in (1, 13, 30):
    part = _run(state, 0, split, 30)
    kept = tf.nest.map_structure(lambda x: tf.constant(x.numpy()), part)
    rest = _run(kept, split, 30, 30)
    for left, right in zip(tf.nest.flatten(whole), tf.nest.flatten(rest)):
      np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize('count, batch_size, steps', [
    (10, 4, 3), (4, 4, 1), (3, 4, 1), (1, 5, 1), (12, 4, 3)])
def test_an_epoch_sees_every_example(count, batch_size, steps):
  config = voting_training.AdamConfig(learning_rate=1.0, batch_size=batch_size, epochs=2)
  assert int(voting_training.steps_of(tf.constant(count), config)) == 2 * steps
  key = tf.constant([3, 4], tf.int64)
  orders = []
  for epoch in range(2):
    seen = np.concatenate([voting_training.batch_rows(
            key, tf.constant(epoch * steps + i), tf.constant(count),
            batch_size).numpy() for i in range(steps)])
    np.testing.assert_array_equal(np.sort(seen[:count]), np.arange(count))
    assert seen.size == steps * batch_size and set(seen) == set(range(count))
    orders.append(seen.tolist())
  assert count < 4 or orders[0] != orders[1]


@pytest.mark.parametrize('changes, message', [
    ({'learning_rate': 0.0}, 'learning_rate must be greater than 0'),
    ({'batch_size': 0}, 'batch_size must be at least 1'),
    ({'weight_decay': -0.1}, 'weight_decay must not be negative')])
def test_impossible_trainings_are_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    voting_training.AdamConfig(
        **{**dict(learning_rate=0.1, batch_size=4, epochs=3), **changes})
