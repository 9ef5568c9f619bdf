"""Local training, against a plain loop in NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from aggregators import keys
from tests import tiny_task
from tff_pipelines.fedavg import local_training

KEY = np.array([11, 22], np.int64)


def _config(**changes):
  return local_training.LocalConfig(
      **{'learning_rate': 0.3, 'batch_size': 3, 'epochs': 1, **changes})


def _update(loss, weights, examples, config, key=KEY):
  """`update` inside a graph, with a number of examples unknown to it."""
  signature = {name: tf.TensorSpec([None, *x.shape[1:]], x.dtype)
               for name, x in examples.items()}

  @tf.function(input_signature=[signature, tf.TensorSpec([2], tf.int64)])
  def run(examples, key):
    return local_training.update(loss, weights, examples, key, config)

  delta, training = run(examples, key)
  return [d.numpy() for d in delta], {k: float(v) for k, v in training.items()}


def _order(epoch, count, key=KEY):
  """The documented order of an epoch's examples."""
  words = keys.random_bits(
      keys.derive(keys.derive(key, epoch), 0), [count], tf.int64).numpy()
  return np.argsort(words, kind='stable')


def _plain_loop(examples, config):
  """SGD of softmax regression, in float64, written down independently."""
  start = [w.astype(np.float64) for w in tiny_task.initial_weights(0)]
  kernel, bias = (w.copy() for w in start)
  count = len(examples['y'])
  total = 0.0
  for epoch in range(config.epochs):
    order = _order(epoch, count)
    for first in range(0, count, config.batch_size):
      rows = order[first:first + config.batch_size]
      x, y = examples['x'][rows].astype(np.float64), examples['y'][rows]
      logits = x @ kernel + bias
      logits -= logits.max(axis=1, keepdims=True)
      probabilities = np.exp(logits)
      probabilities /= probabilities.sum(axis=1, keepdims=True)
      total -= np.log(probabilities[np.arange(len(y)), y]).sum()
      error = (probabilities - np.eye(tiny_task.CLASSES)[y]) / len(y)
      gradients = x.T @ error, error.sum(axis=0)
      for w, first, gradient in zip((kernel, bias), start, gradients):
        w -= config.learning_rate * (
            gradient + config.proximal * (w - first) + config.weight_decay * w)
  return [kernel - start[0], bias - start[1]], total


@pytest.mark.parametrize('count, batch_size, epochs, pulls', [
    (6, 3, 1, {}), (7, 3, 2, {}), (2, 5, 3, {}), (1, 1, 1, {}), (9, 1, 1, {}),
    (6, 3, 2, {'proximal': 0.5}), (6, 3, 2, {'weight_decay': 0.5}),
    (7, 3, 2, {'proximal': 0.5, 'weight_decay': 0.2})])
def test_update_is_that_of_a_plain_loop(count, batch_size, epochs, pulls):
  examples = tiny_task.examples(count, 5)
  config = _config(batch_size=batch_size, epochs=epochs, **pulls)
  delta, training = _update(
      tiny_task.loss, tiny_task.initial_weights(0), examples, config)
  expected, loss = _plain_loop(examples, config)
  for result, wanted in zip(delta, expected):
    np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-6)
    assert np.abs(wanted).max() > 1e-3
  assert training['loss'] == pytest.approx(loss, rel=1e-5)
  assert training['examples'] == count * epochs


def test_client_without_examples_changes_nothing():
  delta, training = _update(
      tiny_task.loss, tiny_task.initial_weights(0), tiny_task.examples(0, 5),
      _config(epochs=2))
  assert all(np.all(d == 0) for d in delta)
  assert training == {'loss': 0.0, 'examples': 0.0}


def _by_id(weights, batch, seed):
  """A loss whose gradient counts how often each example is seen."""
  del seed
  return tf.gather(weights[0], batch['id'])


def test_every_epoch_sees_every_example_once():
  examples = {'id': np.arange(10, dtype=np.int32)}
  delta, _ = _update(_by_id, [np.zeros(10, np.float32)], examples,
                     _config(learning_rate=1.0, batch_size=1, epochs=3))
  np.testing.assert_array_equal(delta[0], np.full(10, -3.0))


def _random_loss(weights, batch, seed):
  return tf.gather(weights[0], batch['id']) * keys.uniform(seed, [])


def test_dropout_key_is_new_in_every_step_and_repeats():
  examples = {'id': np.arange(8, dtype=np.int32)}
  def draws(key):
    delta, _ = _update(_random_loss, [np.zeros(8, np.float32)], examples,
                       _config(learning_rate=1.0, batch_size=1), key=key)
    return delta[0]
  result = draws(KEY)
  assert len(set(result.tolist())) == 8
  np.testing.assert_array_equal(result, draws(KEY))
  assert not set(result.tolist()) & set(draws(KEY + 1).tolist())


def test_update_from_values_that_are_not_finite_is_not_finite():
  examples = tiny_task.examples(4, 5)
  examples['x'][2, 1] = np.nan
  delta, _ = _update(tiny_task.loss, tiny_task.initial_weights(0), examples, _config())
  assert not np.all(np.isfinite(delta[0]))


def test_config_is_checked():
  with pytest.raises(ValueError, match='learning_rate'):
    _config(learning_rate=float('nan'))
