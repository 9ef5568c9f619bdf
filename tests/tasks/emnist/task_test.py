"""Tests of the models in tasks.emnist.task and of the task that they are in."""

import string

import numpy as np
import pytest
import tensorflow as tf

from tasks import registry
from tasks.emnist import task as emnist

_MODELS = sorted(emnist.MODELS)


def _batch(size=16, num_classes=10, seed=0):
  """Smooth random images, which excite filters more than noise does."""
  rng = np.random.default_rng(seed)
  coarse = rng.integers(0, 256, [size, 7, 7])
  x = np.kron(coarse, np.ones([1, 4, 4])).astype(np.uint8)
  return {'x': tf.constant(x),
          'y': tf.constant(rng.integers(0, num_classes, size), tf.int32)}


def _seed(*values):
  return tf.constant(values, tf.int64)


def _tensors(model, seed=0):
  return [tf.constant(w) for w in model.initial_weights(seed)]


@pytest.mark.parametrize('name, num_classes, count', [
    ('cnn_1m', 62, 1_018_174),
    ('cnn_1m', 10, 1_011_466),
    ('cnn_small', 10, 7_346),
    ('cnn_small', 62, 27_366)])
def test_number_of_parameters(name, num_classes, count):
  model = emnist.build_model(name, emnist.SHAPE, num_classes)
  assert model.name == name
  assert model.parameter_count() == count


def _keras_model(name):
  """The same networks by Keras, as an oracle."""
  keras = tf.keras.layers
  if name == 'cnn_1m':
    stack = [
        keras.Conv2D(32, 3, activation='relu'), keras.MaxPool2D(),
        keras.Conv2D(64, 3, activation='relu'), keras.Dropout(0.25), keras.Flatten(),
        keras.Dense(128, activation='relu'), keras.Dropout(0.5), keras.Dense(10)]
  else:
    stack = [
        keras.Conv2D(8, 7, activation='relu'), keras.MaxPool2D(),
        keras.Conv2D(24, 4, activation='relu'), keras.MaxPool2D(),
        keras.Flatten(), keras.Dense(10)]
  return tf.keras.Sequential([tf.keras.Input([28, 28, 1]), *stack])


@pytest.mark.parametrize('name', _MODELS)
def test_loss_and_metrics_equal_those_of_keras(name):
  model = emnist.build_model(name, emnist.SHAPE, 10)
  weights = model.initial_weights(1)
  oracle = _keras_model(name)
  oracle.set_weights(weights)
  batch = _batch()
  logits = oracle(batch['x'].numpy()[..., np.newaxis] / np.float32(255))
  expected = tf.keras.losses.sparse_categorical_crossentropy(
      batch['y'], logits, from_logits=True).numpy()
  loss = model.loss([tf.constant(w) for w in weights], batch, None)
  np.testing.assert_allclose(loss, expected, rtol=1e-4)

  mask = np.array([1, 0] * 8, np.float32)
  metrics = model.metrics(weights, batch, tf.constant(mask))
  assert {name: float(w) for name, (_, w) in metrics.items()} == {
      'accuracy': 8.0, 'loss': 8.0}
  np.testing.assert_allclose(metrics['loss'][0], np.sum(expected * mask), rtol=1e-4)
  correct = np.argmax(logits, axis=1) == batch['y'].numpy()
  assert float(metrics['accuracy'][0]) == np.sum(correct * mask)


def _gradients(model, weights, batch, seed):
  with tf.GradientTape() as tape:
    tape.watch(weights)
    loss = tf.reduce_mean(model.loss(weights, batch, seed))
  return tape.gradient(loss, weights)


@pytest.mark.parametrize('name', _MODELS)
def test_padding_changes_no_other_row(name):
  model = emnist.build_model(name, emnist.SHAPE, 10)
  weights = _tensors(model)
  batch = _batch(12)
  padded = {key: tf.concat([v, tf.zeros_like(v[:8])], axis=0) for key, v in batch.items()}
  alone = model.loss(weights, batch, _seed(3, 4)).numpy()
  among = model.loss(weights, padded, _seed(3, 4)).numpy()
  assert among.shape == (20,)
  np.testing.assert_allclose(among[:12], alone, rtol=1e-5)


def test_dropout_of_cnn_1m_follows_the_seed():
  model = emnist.build_model('cnn_1m', emnist.SHAPE, 10)
  weights = _tensors(model)
  batch = _batch()
  loss = lambda seed: model.loss(weights, batch, seed).numpy()
  np.testing.assert_array_equal(loss(_seed(1, 2)), loss(_seed(1, 2)))
  assert np.all(loss(_seed(1, 2)) != loss(_seed(1, 3)))
  assert np.all(loss(_seed(1, 2)) != loss(None))


@pytest.mark.parametrize('name', _MODELS)
def test_models_compile_with_xla_to_the_same_numbers(name):
  model = emnist.build_model(name, emnist.SHAPE, 10)
  weights = _tensors(model)
  batch = _batch(20)
  compiled = tf.function(lambda w, b, s: _gradients(model, w, b, s), jit_compile=True)
  def agree(kept):
    some = {key: tf.gather(values, kept) for key, values in batch.items()}
    return all(np.allclose(a, b, rtol=1e-3, atol=1e-6) for a, b in zip(
        compiled(weights, some, _seed(5, 6)), _gradients(model, weights, some, _seed(5, 6))))
  # A pool may take another of two nearly equal inputs where sums are in another order.
  kept = [i for i in range(20) if agree([i])]
  assert len(kept) >= 19 and agree(kept)


def _train(task, epochs, rate=0.1, batch_size=20):
  """Plain SGD over all clients' examples together; returns the weights."""
  data = [task.train.examples(c) for c in task.train.client_ids]
  x = tf.constant(np.concatenate([d['x'] for d in data]))
  y = tf.constant(np.concatenate([d['y'] for d in data]))
  variables = [tf.Variable(w) for w in task.model.initial_weights(0)]

  @tf.function
  def step(rows, seed):
    batch = {'x': tf.gather(x, rows), 'y': tf.gather(y, rows)}
    gradients = _gradients(task.model, variables, batch, seed)
    for variable, gradient in zip(variables, gradients):
      variable.assign_sub(rate * gradient)

  rng = np.random.default_rng(0)
  count = 0
  for _ in range(epochs):
    order = rng.permutation(len(y)).astype(np.int32)
    for start in range(0, len(order) - batch_size + 1, batch_size):
      step(tf.constant(order[start:start + batch_size]), _seed(0, count))
      count += 1
  return variables


def _accuracy(task, weights):
  examples = task.held_out['test']
  total, weight = task.model.metrics(
      weights, {k: tf.constant(v) for k, v in examples.items()},
      tf.ones([len(examples['y'])]))['accuracy']
  return float(total) / float(weight)


@pytest.mark.parametrize('name, epochs, least', [
    ('cnn_small', 10, 0.95), pytest.param('cnn_1m', 4, 0.93, marks=pytest.mark.slow)])
def test_models_learn_the_embedded_digits(name, epochs, least):
  task = registry.build('emnist', data_source='embedded', model=name)
  assert _accuracy(task, task.model.initial_weights(0)) < 0.3
  assert _accuracy(task, _train(task, epochs)) >= least


@pytest.mark.parametrize('num_classes, kind, names, groups', [
    (10, 'digit', string.digits, []),
    (62, 'character', string.digits + string.ascii_uppercase + string.ascii_lowercase,
     ['digits', 'upper case', 'lower case']),
    (3, 'class', ['0', '1', '2'], [])])
def test_classes_have_the_names_of_their_characters(num_classes, kind, names, groups):
  breakdown = emnist.build_model('cnn_small', emnist.SHAPE, num_classes).breakdown
  assert breakdown.kind == kind and list(breakdown.names) == list(names)
  assert list(breakdown.groups) == groups
  members = [i for group in breakdown.groups.values() for i in group]
  assert members == (list(range(num_classes)) if groups else [])
  for group, fits in zip(breakdown.groups.values(), (
      str.isdigit, str.isupper, str.islower)):
    assert all(fits(breakdown.names[i]) for i in group)


def test_confusion_has_a_row_for_what_is_true():
  model = emnist.build_model('cnn_small', emnist.SHAPE, 10)
  rng = np.random.default_rng(3)
  weights = model.initial_weights(0)
  batch = {'x': tf.constant(rng.integers(0, 256, [40, 28, 28]), tf.uint8),
           'y': tf.constant(rng.integers(0, 10, 40), tf.int32)}
  mask = tf.constant([1.0] * 30 + [0.0] * 10)
  actual = model.breakdown.count(weights, batch, mask)['confusion'].numpy()
  total, weight = model.metrics(weights, batch, mask)['accuracy']
  assert actual.shape == (10, 10)
  assert actual.sum() == float(weight) == 30 and np.trace(actual) == float(total)
  np.testing.assert_array_equal(
      actual.sum(axis=1), np.bincount(batch['y'].numpy()[:30], minlength=10))
