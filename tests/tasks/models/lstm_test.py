"""Tests of the LSTM of tasks.models.text, against the layer of Keras."""

import numpy as np
import pytest
import tensorflow as tf

from tasks.models import layers, text as text_models

# Steps that are unrolled at once, that loop over blocks, and a prime number.
SIZES = [(3, 1, 2, 4), (4, 7, 3, 5), (2, 20, 4, 8), (1, 23, 5, 3), (6, 80, 8, 16)]


def _weights(inputs, units, seed=0, scale=1.0):
  rng = np.random.default_rng(seed)
  return [(scale * rng.normal(size=shape)).astype(np.float32)
          for shape in ([inputs, 4 * units], [units, 4 * units], [4 * units])]


def _rows(batch, steps, inputs):
  return np.random.default_rng(7).normal(size=[batch, steps, inputs]).astype(np.float32)


def _outputs_and_gradients(layer, x, weights, upstream):
  x, weights = tf.convert_to_tensor(x), list(map(tf.convert_to_tensor, weights))
  with tf.GradientTape() as tape:
    tape.watch([x, *weights])
    outputs = layer(x, *weights)
    # Not linear in the outputs, so that all steps' gradients differ.
    loss = tf.reduce_sum(tf.sin(outputs) * upstream)
  return outputs, tape.gradient(loss, [x, *weights])


def _keras(units):
  def layer(x, kernel, recurrent, bias):
    cell = tf.keras.layers.LSTMCell(units)
    cell.build([None, x.shape[2]])
    # Keras' own arithmetic on tensors that the tape watches.
    cell.kernel, cell.recurrent_kernel, cell.bias = kernel, recurrent, bias
    states = [tf.zeros([x.shape[0], units])] * 2
    outputs = []
    for step in range(x.shape[1]):
      output, states = cell(x[:, step], states)
      outputs.append(output)
    return tf.stack(outputs, axis=1)
  return layer


@tf.custom_gradient
def _without_shape(x):
  """Identity, whose gradient has no known shape."""
  return tf.identity(x), lambda upstream: tf.numpy_function(
      lambda value: value, [upstream], tf.float32)


@pytest.mark.parametrize('batch', [0, 2])
def test_batch_and_gradient_of_unknown_shape(batch):
  weights = list(map(tf.convert_to_tensor, _weights(3, 5)))

  @tf.function(input_signature=[tf.TensorSpec([None, 20, 3])])
  def gradients(x):
    return [_outputs_and_gradients(layer, x, weights, 1.0)[1][1] for layer in (
        lambda *arguments: _without_shape(text_models.lstm(*arguments)),
        text_models.lstm)]

  unknown, known = gradients(_rows(batch, 20, 3))
  np.testing.assert_array_equal(unknown, known)
  assert np.any(known) == (batch > 0)


@pytest.mark.parametrize('sizes, in_graph', [
    *((sizes, False) for sizes in SIZES), (SIZES[1], True)])
def test_outputs_and_gradients_are_those_of_keras(sizes, in_graph):
  batch, steps, inputs, units = sizes
  x, weights = _rows(batch, steps, inputs), _weights(inputs, units, scale=0.7)
  upstream = np.random.default_rng(3).normal(
      size=[batch, steps, units]).astype(np.float32)
  layer = text_models.lstm
  if in_graph:
    layer = tf.function(lambda *a: text_models.lstm(*a))
  outputs, gradients = _outputs_and_gradients(layer, x, weights, upstream)
  expected, expected_gradients = _outputs_and_gradients(
      _keras(units), x, weights, upstream)
  np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)
  for actual, wanted in zip(gradients, expected_gradients):
    scale = np.abs(wanted).max()
    np.testing.assert_allclose(actual, wanted, rtol=1e-3, atol=1e-4 * scale)


def test_rows_that_end_early_equal_the_masked_layer_of_keras_up_to_their_end():
  x = _rows(2, 10, 4)
  lengths = [10, 4]
  layer = tf.keras.layers.LSTM(6, return_sequences=True)
  mask = np.arange(10)[np.newaxis] < np.array(lengths)[:, np.newaxis]
  expected = layer(x, mask=tf.constant(mask)).numpy()
  actual = text_models.lstm(x, *layer.get_weights()).numpy()
  np.testing.assert_allclose(actual[mask], expected[mask], rtol=1e-4, atol=1e-5)
  assert not np.allclose(actual[~mask], expected[~mask])


def test_gradients_inside_a_loop_of_training_steps_are_the_same():
  x, weights = _rows(2, 20, 3), _weights(3, 4)
  upstream = tf.ones([2, 20, 4])

  @tf.function
  def second_step():
    def body(step, *current):
      _, gradients = _outputs_and_gradients(text_models.lstm, x, list(current), upstream)
      return step + 1, *[w - 0.1 * g for w, g in zip(current, gradients[1:])]
    return tf.while_loop(lambda i, *_: i < 2, body, (0, *map(tf.constant, weights)))

  current = weights
  for _ in range(2):
    _, gradients = _outputs_and_gradients(_keras(4), x, current, upstream)
    current = [w - 0.1 * g for w, g in zip(current, gradients[1:])]
  for actual, wanted in zip(second_step()[1:], current):
    np.testing.assert_allclose(actual, wanted, rtol=1e-3, atol=1e-4)


def test_batch_without_rows_gives_none():
  outputs, gradients = _outputs_and_gradients(
      text_models.lstm, np.zeros([0, 10, 3], np.float32), _weights(3, 4),
      tf.zeros([0, 10, 4]))
  assert outputs.shape == [0, 10, 4]
  assert all(np.all(g.numpy() == 0) for g in gradients[1:])


def test_initial_weights_have_the_distribution_of_keras():
  rng = np.random.default_rng(5)
  kernel, recurrent, bias = text_models.lstm_weights(
      layers.he_normal(rng, 300, 4 * 40), rng)
  assert [w.shape for w in (kernel, recurrent, bias)] == [(300, 160), (40, 160), (160,)]
  assert all(w.dtype == np.float32 for w in (kernel, recurrent, bias))
  np.testing.assert_allclose(recurrent @ recurrent.T, np.eye(40), atol=1e-5)
  expected = tf.keras.layers.LSTMCell(40)
  expected.build([None, 300])
  np.testing.assert_array_equal(bias, expected.bias.numpy())
  again = np.random.default_rng(5)
  repeated = text_models.lstm_weights(layers.he_normal(again, 300, 4 * 40), again)
  np.testing.assert_array_equal(repeated[1], recurrent)


def test_he_normal_has_the_distribution_of_keras():
  actual = layers.he_normal(np.random.default_rng(2), 400, 500)
  expected = tf.keras.initializers.HeNormal(seed=1)([400, 500]).numpy()
  # 200,000 draws: five standard errors of a standard deviation are 0.8%.
  assert actual.std() == pytest.approx(np.sqrt(2 / 400), rel=0.008)
  assert expected.std() == pytest.approx(actual.std(), rel=0.016)
  assert abs(actual.mean()) < 5 * actual.std() / np.sqrt(actual.size)
  assert np.abs(actual).max() == pytest.approx(np.abs(expected).max(), rel=0.01)


def test_uniform_has_the_distribution_of_keras_embeddings():
  actual = layers.uniform(np.random.default_rng(1), 300, 80, limit=0.05)
  expected = tf.keras.initializers.get('uniform')([300, 80]).numpy()
  # 24,000 draws: five standard errors of a standard deviation are 2%.
  assert actual.std() == pytest.approx(0.05 / np.sqrt(3), rel=0.02)
  assert expected.std() == pytest.approx(actual.std(), rel=0.04)
  assert 0.0499 < np.abs(actual).max() <= 0.05
