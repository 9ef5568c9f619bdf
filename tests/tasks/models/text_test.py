"""Tests of tasks.models.text, against the models of TFF's baselines."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_federated.python.simulation.baselines.stackoverflow import (
    word_prediction_models)

from tasks.models import text as text_models
from tasks.text import shakespeare, stackoverflow_word, vocabulary as vocabulary_lib

SPECIAL = text_models.Special(6)
PADDING, UNKNOWN, BEGIN, END = 0, 7, 8, 9
ROWS = np.array([
    [BEGIN, 1, 2, 3, 4, END], [BEGIN, 5, UNKNOWN, END, PADDING, PADDING],
    [BEGIN, 1, 1, 1, 1, 6], [BEGIN, END, PADDING, PADDING, PADDING, PADDING]], np.int32)


def _network(**changes):
  return text_models.Network(**{
      'tokens': SPECIAL.count, 'embedding': 4, 'units': (5,), **changes})


def _model(network=None, **options):
  return text_models.next_token_model(
      'tiny', network or _network(), SPECIAL, kind='word',
      names=SPECIAL.names('abcdef'), **options)


def _vocabulary(size):
  return vocabulary_lib.Vocabulary(
      words=tuple(f'w{i}' for i in range(size)), made_from=vocabulary_lib.PUBLIC)


def _logits(network, weights, tokens):
  """All of them: [batch, steps, tokens]."""
  count = tokens.size
  actual = network.logits(weights, tf.constant(tokens), tf.range(count))
  return np.reshape(actual, [*tokens.shape, -1])


@pytest.mark.parametrize('options', [
    {}, {'projected': True, 'tied': True}, {'units': (5, 3), 'projected': True}])
def test_weights_have_names_in_the_order_of_the_layers(options):
  model = _model(_network(**options))
  shapes = {name: array.shape
            for name, array in model.named(model.initial_weights(0)).items()}
  assert shapes['embedding'] == (SPECIAL.count, 4)
  assert shapes['lstm_0/kernel'] == (4, 20) and shapes['lstm_0/recurrent'] == (5, 20)
  assert shapes['lstm_0/bias'] == (20,) and shapes['output/bias'] == (SPECIAL.count,)
  assert shapes.get('projection_0/kernel') == (
      (5, 4) if options.get('projected') else None)
  assert ('output/kernel' in shapes) != bool(options.get('tied'))


def test_prediction_follows_the_last_token_that_is_no_padding():
  network = _network()
  weights = network.initial_weights(3)
  outputs = _model(network).predict(weights, {'tokens': ROWS})
  every = tf.nn.softmax(_logits(network, weights, ROWS)).numpy()
  expected = every[np.arange(4), [5, 3, 5, 1]]
  np.testing.assert_allclose(outputs['probabilities'], expected, rtol=1e-5)
  np.testing.assert_array_equal(outputs['class'], expected.argmax(axis=1))


def test_models_of_the_papers_have_their_numbers_of_parameters():
  assert shakespeare.build_model('lstm_256').parameter_count() == 820_522
  model = stackoverflow_word.build_model('lstm_670', _vocabulary(10_000))
  assert model.parameter_count() == 4_050_748


def test_small_models_stay_below_a_power_of_two():
  assert shakespeare.build_model('lstm_small').parameter_count() == 28_026
  small = stackoverflow_word.build_model('lstm_small', _vocabulary(1_000))
  keras = word_prediction_models.create_recurrent_model(
      1_004, 32, lstm_size=64, shared_embedding=True)
  # Keras' tied model has no bias of the logits.
  assert small.parameter_count() == keras.count_params() + 1_004 == 60_044


@pytest.mark.parametrize('tied', [False, True])
def test_word_logits_are_those_of_tff(tied):
  keras = word_prediction_models.create_recurrent_model(
      50, 6, lstm_size=7, shared_embedding=tied)
  network = text_models.Network(
      tokens=50, embedding=6, units=(7,), projected=True, tied=tied)
  weights = network.initial_weights(1)
  weights[-1] = np.linspace(-1, 1, 50, dtype=np.float32)
  ours = weights[:-1] if tied else weights
  assert [w.shape for w in ours] == [w.shape for w in keras.get_weights()]
  keras.set_weights(ours)
  # Keras masks padding; before it both are the same.
  tokens = np.random.default_rng(0).integers(1, 50, [4, 10]).astype(np.int32)
  tokens[2, 6:] = 0
  expected = keras(tokens).numpy() + (weights[-1] if tied else 0)
  np.testing.assert_allclose(
      _logits(network, weights, tokens)[tokens > 0], expected[tokens > 0], rtol=1e-3,
      atol=1e-5)


@pytest.mark.parametrize('changes', [
    {'units': (5, 3)}, {'projected': True, 'tied': True}])
def test_all_weights_have_a_gradient_and_training_lowers_the_loss(changes):
  model = _model(_network(**changes))
  weights = [tf.constant(w) for w in model.initial_weights(0)]
  batch = {'tokens': tf.constant(ROWS)}

  @tf.function
  def step(weights):
    with tf.GradientTape() as tape:
      tape.watch(weights)
      loss = tf.reduce_mean(model.loss(weights, batch, None))
    return loss, list(map(tf.convert_to_tensor, tape.gradient(loss, weights)))

  losses = []
  for _ in range(15):
    loss, gradients = step(weights)
    losses.append(float(loss))
    assert all(np.any(g.numpy() != 0) for g in gradients)
    weights = [w - g for w, g in zip(weights, gradients)]
  assert losses[-1] < 0.9 * losses[0]


def _token_losses(model, weights):
  """Cross entropy of every target by NumPy, [rows, 5]."""
  del model
  logits = _logits(_network(), weights, ROWS[:, :-1]).astype(np.float64)
  logits -= logits.max(axis=2, keepdims=True)
  logits -= np.log(np.exp(logits).sum(axis=2, keepdims=True))
  targets = ROWS[:, 1:]
  actual = -np.take_along_axis(logits, targets[:, :, np.newaxis], axis=2)[:, :, 0]
  return actual, logits.argmax(axis=2), targets


def test_loss_of_a_row_is_the_sum_over_its_tokens_by_the_constant_length():
  model = _model()
  weights = model.initial_weights(2)
  losses, _, targets = _token_losses(model, weights)
  actual = model.loss(weights, {'tokens': tf.constant(ROWS)}, None)
  np.testing.assert_allclose(
      actual, np.where(targets != PADDING, losses, 0).sum(axis=1) / 5, rtol=1e-5)


def test_metrics_leave_out_what_they_say_and_rows_that_do_not_count():
  model = _model()
  rng = np.random.default_rng(5)
  weights = [3 * rng.normal(size=w.shape).astype(np.float32)
             for w in model.initial_weights(0)]
  losses, guesses, targets = _token_losses(model, weights)
  mask = np.array([1, 1, 1, 0], np.float32)
  every = (targets != PADDING) & (mask[:, np.newaxis] > 0)
  proper = every & (targets >= 1) & (targets <= SPECIAL.size)
  actual = {name: (float(total), float(weight)) for name, (total, weight) in
           model.metrics(weights, {'tokens': tf.constant(ROWS)}, mask).items()}
  right = guesses == targets
  assert actual['accuracy'] == (right[proper].sum(), proper.sum())
  assert actual['accuracy_all_tokens'] == (right[every].sum(), every.sum())
  assert actual['loss'] == pytest.approx((losses[every].sum(), every.sum()), rel=1e-4)
  assert proper.sum() == 4 + 1 + 5 and every.sum() == 5 + 3 + 5


@pytest.mark.parametrize('confusion', [False, True])
def test_breakdown_counts_what_accuracy_counts(confusion):
  model = _model(confusion=confusion)
  weights = model.initial_weights(8)
  batch, mask = {'tokens': tf.constant(ROWS)}, tf.constant([1.0, 1.0, 1.0, 0.0])
  total, weight = model.metrics(weights, batch, mask)['accuracy']
  actual = {name: value.numpy() for name, value in
           model.breakdown.count(weights, batch, mask).items()}
  if confusion:
    matrix = actual['confusion']
    assert matrix.shape == (10, 10) and matrix.sum() == float(weight)
    assert np.trace(matrix) == float(total)
    occurred = matrix.sum(axis=1)
  else:
    assert actual['right'].sum() == float(total)
    assert actual['predicted'].sum() == float(weight)
    occurred = actual['occurred']
  # Of targets in rows that count: one of 2 to 6 each, but four of 1.
  assert occurred.tolist() == [0, 5, 1, 1, 1, 1, 1, 0, 0, 0]
  assert len(model.breakdown.names) == SPECIAL.count


def test_batch_of_padding_alone_has_no_loss_and_no_weight():
  model = _model()
  weights = model.initial_weights(0)
  batch = {'tokens': tf.zeros([2, 6], tf.int32)}
  assert model.loss(weights, batch, None).numpy().tolist() == [0, 0]
  for total, weight in model.metrics(weights, batch, tf.ones(2)).values():
    assert (float(total), float(weight)) == (0, 0)
