"""Models from Keras and from TFF are pure functions, equal to what they come from."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from benchmarks import keras_model
from tasks import task as task_lib
from tasks.models import classifiers

keras = tf.keras.layers
KEY, OTHER = (tf.constant([1, n], tf.int64) for n in (2, 3))
CROSS_ENTROPY = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
SPEC = tf.TensorSpec([None, 4]), tf.TensorSpec([None], tf.int32)  # Of a functional model.


def _dense(*hidden):
  return tf.keras.Sequential([
      tf.keras.Input([4]), keras.Dense(5, activation='swish'), *hidden, keras.Dense(3)])


def _recurrent():
  tokens = tf.keras.Input([6], dtype='int32')
  x = keras.Embedding(9, 3, mask_zero=True)(tokens)
  x = keras.LSTM(4, return_sequences=True, dropout=0.3, recurrent_dropout=0.3)(x)
  x = keras.GRU(4, return_sequences=True)(x)
  return tf.keras.Model(tokens, keras.Dense(9)(x))


def _batch(rows=4):
  rng = np.random.default_rng(0)
  return {'x': rng.normal(size=(rows, 4)).astype(np.float32),
          'y': (np.arange(rows) % 3).astype(np.int32)}


def _sequences():
  tokens = np.random.default_rng(0).integers(1, 9, (3, 7)).astype(np.int32)
  tokens[1, 4:] = 0  # Padding.
  return {'x': tokens[:, :-1], 'y': tokens[:, 1:]}


@pytest.fixture(name='recurrent', scope='module')
def _recurrent_model():
  return task_lib.Model.from_keras(_recurrent, CROSS_ENTROPY)


def _gradient(model, weights, batch, key, **how):

  @tf.function(**how)
  def gradient(weights):
    with tf.GradientTape() as tape:
      tape.watch(weights)
      loss = tf.reduce_sum(model.loss(weights, batch, key))
    return [tf.convert_to_tensor(x) for x in tape.gradient(loss, weights)]

  return gradient([tf.constant(weight) for weight in weights])


def _keras_gradient(model, weights, batch, loss=CROSS_ENTROPY):
  network = model.to_keras(weights)
  with tf.GradientTape() as tape:
    total = tf.reduce_sum(loss.call(batch['y'], network(batch['x'], training=False)))
  return [tf.convert_to_tensor(x)
          for x in tape.gradient(total, network.trainable_weights)]


def _assert_computes_what_keras_does(model, weights, seed):
  batch = _batch()
  wanted = CROSS_ENTROPY.call(batch['y'], model.to_keras(weights)(batch['x']))
  np.testing.assert_allclose(model.loss(weights, batch, seed), wanted, rtol=1e-5)
  for mine, theirs in zip(_gradient(model, weights, batch, seed),
                          _keras_gradient(model, weights, batch), strict=True):
    np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)


def test_losses_and_gradients_are_those_of_keras():
  model = task_lib.Model.from_keras(_dense, CROSS_ENTROPY)
  _assert_computes_what_keras_does(model, model.initial_weights(3), seed=None)
  assert model.weight_names == ('dense/kernel', 'dense/bias', 'dense_1/kernel',
                                'dense_1/bias')


@pytest.mark.slow
def test_recurrent_layers_skip_what_the_embedding_masks(recurrent):
  weights, batch = recurrent.initial_weights(0), _sequences()
  losses = recurrent.to_keras(weights)(batch['x'])
  losses = CROSS_ENTROPY.call(batch['y'], losses).numpy()
  mask = batch['x'] != 0
  np.testing.assert_allclose(
      recurrent.loss(weights, batch, None), (losses * mask).sum(1) / mask.sum(1),
      rtol=1e-5)
  metrics = recurrent.metrics(weights, batch, tf.constant([1.0, 1.0, 0.0]))
  total, weight = map(float, metrics['loss'])
  assert weight == mask[:2].sum()
  assert total == pytest.approx((losses * mask)[:2].sum(), rel=1e-5)
  assert sum(bool(tf.norm(x) > 0)
             for x in _gradient(recurrent, weights, batch, KEY)) == len(weights)


def _operations_of_tensors():
  x = tf.keras.Input([4])
  hidden = keras.Dense(3, activation='relu')(2.0 * x[:, 1:])
  hidden = tf.concat([hidden, x], axis=1) + 1.0
  return tf.keras.Model(x, keras.Dense(3)(
      hidden - tf.reduce_mean(hidden, axis=1, keepdims=True)))


def _operations_of_images():
  x = tf.keras.Input([4])
  image = tf.pad(tf.reshape(x, [-1, 2, 2, 1]) / 255.0, [[0, 0], [1, 1], [1, 1], [0, 0]])
  hidden = keras.Conv2D(2, 3)(tf.image.flip_left_right(image))
  return tf.keras.Model(x, keras.Dense(3)(keras.Flatten()(hidden)))


@pytest.mark.parametrize('build', [_operations_of_tensors, _operations_of_images])
def test_operations_between_layers_are_those_of_keras(build):
  model = task_lib.Model.from_keras(build, CROSS_ENTROPY)
  _assert_computes_what_keras_does(model, model.initial_weights(0), seed=KEY)


def test_dropout_follows_from_the_key_alone(recurrent):
  for model, batch in ((recurrent, _sequences()),
                       (task_lib.Model.from_keras(lambda: _dense(keras.Dropout(0.5)),
                                                  CROSS_ENTROPY), _batch())):
    weights = model.initial_weights(0)
    one, again, other, off = (np.asarray(model.loss(weights, batch, key))
                              for key in (KEY, KEY, OTHER, None))
    np.testing.assert_array_equal(one, again)
    assert not np.allclose(one, other) and not np.allclose(one, off)


@pytest.mark.parametrize('layer', [
    keras.GaussianNoise(0.5), keras.AlphaDropout(0.5), keras.GaussianDropout(0.5)])
def test_random_layers_draw_from_the_key(layer):
  kind, config = type(layer), layer.get_config()
  model = task_lib.Model.from_keras(
      lambda: _dense(kind.from_config(config)), CROSS_ENTROPY)
  weights, batch = model.initial_weights(0), _batch()
  one, again, other = (model.loss(weights, batch, key) for key in (KEY, KEY, OTHER))
  np.testing.assert_array_equal(one, again)
  assert not np.allclose(one, other)


def test_initial_weights_follow_from_the_seed():
  model = task_lib.Model.from_keras(_dense, CROSS_ENTROPY)
  one, again, other = (model.initial_weights(seed) for seed in (7, 7, 8))
  assert all(map(np.array_equal, one, again))
  assert not np.allclose(one[0], other[0])
  assert all(weight.dtype == np.float32 for weight in one)


def test_weights_that_are_not_trainable_are_constants():
  def build():
    frozen = keras.Dense(5, trainable=False)
    return tf.keras.Sequential([tf.keras.Input([4]), frozen, keras.Dense(3)])

  model = task_lib.Model.from_keras(build, CROSS_ENTROPY)
  weights, batch = model.initial_weights(0), _batch()
  assert [weight.shape for weight in weights] == [(5, 3), (3,)]
  np.testing.assert_allclose(
      model.predict(weights, {'x': batch['x']})['probabilities'],
      tf.nn.softmax(model.to_keras(weights)(batch['x'])), rtol=1e-5)


def test_regularizers_of_weights_are_part_of_the_training_loss():
  def build():
    return tf.keras.Sequential([
        tf.keras.Input([4]), keras.Dense(3, kernel_regularizer='l2')])

  model = task_lib.Model.from_keras(build, CROSS_ENTROPY)
  weights, batch = model.initial_weights(0), _batch()
  np.testing.assert_allclose(
      model.loss(weights, batch, KEY) - model.loss(weights, batch, None),
      np.full(4, 0.01 * np.sum(weights[0]**2)), rtol=1e-3)


def test_model_runs_under_xla():
  model = task_lib.Model.from_keras(keras_model.build_cnn, CROSS_ENTROPY)
  ours = classifiers.cnn_small((28, 28), 10).as_model()
  weights = ours.initial_weights(0)
  batch = {'x': np.arange(2 * 784, dtype=np.uint8).reshape(2, 28, 28),
           'y': np.array([3, 7], np.int32)}
  for mine, theirs in zip(_gradient(model, weights, batch, KEY, jit_compile=True),
                          _gradient(ours, weights, batch, KEY), strict=True):
    np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize('loss, labels, outputs, classes', [
    (CROSS_ENTROPY, [2], [[0.0, 1.0, 4.0]], 2),
    ('sparse_categorical_crossentropy', [1], [[0.1, 0.7, 0.2]], 1),
    (tf.keras.losses.CategoricalCrossentropy(from_logits=True), [[0.0, 1.0, 0.0]],
     [[0.0, 1.0, 0.5]], 1),
    (tf.keras.losses.BinaryCrossentropy(from_logits=True), [1], [[0.2]], 1),
    ('binary_crossentropy', [0], [[0.2]], 0)])
def test_losses_say_what_outputs_mean(loss, labels, outputs, classes):
  size = len(outputs[0])
  model = task_lib.Model.from_keras(
      lambda: tf.keras.Sequential([
          tf.keras.Input([size]), keras.Dense(size, use_bias=False)]), loss)
  batch = {'x': np.array(outputs, np.float32), 'y': np.array(labels)}
  weights = [np.eye(size, dtype=np.float32)]
  predicted = model.predict(weights, {'x': batch['x']})
  assert predicted['class'].numpy() == [classes]
  chances = predicted['probabilities'].numpy()[0]
  assert chances.sum() == pytest.approx(1) if size > 1 else 0 < chances < 1
  keras_loss = tf.keras.losses.get(loss)
  function = getattr(keras_loss, 'call', keras_loss)
  wanted = function(np.reshape(batch['y'], [1, -1]) if size == 1 else batch['y'],
                    batch['x'])
  np.testing.assert_allclose(model.loss(weights, batch, None), wanted, rtol=1e-5)
  accuracy = model.metrics(weights, batch, tf.ones([1]))['accuracy']
  assert tuple(map(float, accuracy)) == (1, 1)
  assert model.headline == 'accuracy'


def test_regression_has_values_and_the_metrics_asked_for():
  model = task_lib.Model.from_keras(
      lambda: tf.keras.Sequential([tf.keras.Input([2]), keras.Dense(1)]), 'mse',
      ['mae'], headline='mae')
  weights = [np.ones((2, 1), np.float32), np.zeros(1, np.float32)]
  batch = {'x': np.array([[1, 2], [3, 4]], np.float32), 'y': np.array([3.0, 5.0])}
  np.testing.assert_allclose(model.loss(weights, batch, None), [0, 4])
  assert tuple(map(float, model.metrics(weights, batch, tf.ones([2]))['mae'])) == (2, 2)
  np.testing.assert_allclose(
      model.predict(weights, {'x': batch['x']})['value'], [[3], [7]])


def test_metric_of_pairs_is_the_ratio_of_their_totals():
  def recall(y, outputs):
    # Of unknown rank in a graph, as comparisons of tensors are.
    found = (y[..., tf.newaxis] == tf.math.top_k(outputs, 1).indices[:, tf.newaxis])
    return tf.math.count_nonzero(found, [1, 2]), tf.math.count_nonzero(y, 1)

  model = task_lib.Model.from_keras(
      _dense, lambda y, outputs: tf.reduce_sum(outputs, axis=1), [recall],
      headline='recall')
  weights = [np.zeros(w.shape, np.float32) for w in model.initial_weights(0)]
  weights[-1][1] = 1.0  # Class 1 is always the likeliest.
  batch = {'x': tf.zeros([4, 4]), 'y': tf.constant([[1, 2], [2, 0], [1, 0], [1, 2]])}
  metrics = tf.function(model.metrics, autograph=False)
  spec = {name: tf.TensorSpec([None, *x.shape[1:]], x.dtype) for name, x in batch.items()}
  mask = tf.constant([1.0, 1.0, 1.0, 0.0])
  for function in (metrics, metrics.get_concrete_function(
      weights, spec, tf.TensorSpec([None]))):
    assert tuple(map(float, function(weights, batch, mask)['recall'])) == (2, 4)


def test_several_inputs_are_features_of_their_names():
  def build():
    one, two = tf.keras.Input([2], name='one'), tf.keras.Input([3], name='two')
    return tf.keras.Model([one, two], keras.Dense(1)(keras.Concatenate()([one, two])))

  model = task_lib.Model.from_keras(build, 'mse')
  batch = {'two': np.ones((1, 3), np.float32), 'one': np.zeros((1, 2), np.float32),
           'y': np.zeros(1, np.float32)}
  weights = [np.arange(5, dtype=np.float32)[:, None], np.zeros(1, np.float32)]
  np.testing.assert_allclose(model.loss(weights, batch, None), [81])
  with pytest.raises(ValueError, match="have no feature 'one'"):
    model.loss(weights, {'two': batch['two'], 'y': batch['y']}, None)


class _Counting(keras.Layer):

  def build(self, _):
    self.count = self.add_weight(name='count', shape=[], trainable=False)

  def call(self, x):
    self.count.assign_add(1.0)
    return x


@pytest.mark.parametrize('layer, message', [
    (keras.BatchNormalization, r"layer 'batch_normalization.*' changes its weight "
     "'moving_mean' .* such as tf.keras.layers.GroupNormalization"),
    (_Counting, "changes its weight 'count' when it is called"),
    (lambda: keras.Lambda(lambda x: x + tf.random.normal([1])),
     r"operation .*lambda.*RandomStandardNormal.* use .*Dropout"),
    (lambda: keras.ActivityRegularization(0.1), 'activity_regularizer and add_loss'),
    (lambda: keras.Dense(4, kernel_initializer=lambda shape, dtype: tf.random.normal(
        shape, dtype=dtype)), 'give its initializer a seed'),
    (lambda: keras.Dense(4, dtype='float64'), 'weights, all float32, found')])
def test_layers_with_state_are_refused_by_name(layer, message):
  with pytest.raises(ValueError, match=message) as raised:
    task_lib.Model.from_keras(lambda: _dense(layer()), CROSS_ENTROPY)
  assert '\n' not in str(raised.value)


def _weight_of_a_constant():
  x = tf.keras.Input([4])
  positions = keras.Embedding(4, 1)(tf.range(4))[:, 0]  # Keras would not train it.
  return tf.keras.Model(x, keras.Dense(1)(x + positions))


@pytest.mark.parametrize('build, loss, metrics, message', [
    (lambda: None, 'mse', (), 'must return a tf.keras.Model, found None'),
    (lambda: tf.keras.Sequential([keras.Dense(1)]), 'mse', (),
     'with tf.keras.Input and one output'),
    (lambda: tf.keras.Sequential([tf.keras.Input([2]), keras.Flatten()]), 'mse', (),
     'trainable weights, all float32, found none'),
    (lambda: tf.keras.Sequential([
        tf.keras.Input(batch_shape=[3, 2, 1]), keras.LSTM(1, stateful=True)]), 'mse',
     (), 'stateful=False'),
    (_dense, 'no_such_loss', (), "loss must be a Keras loss .*'no_such_loss'"),
    (_weight_of_a_constant, 'mse', (), 'weight emb.* must be of a layer between'),
    (_dense, 'mse', ('no_such',), "metrics must be names .*'no_such'"),
    (_dense, 'mse', (tf.keras.metrics.AUC(),), 'keeps state between batches: use'),
    (_dense(), 'mse', (), 'must be a function that builds a new model at each call, '
     'found '),
    (lambda: tf.keras.Sequential([tf.keras.Input([4]), keras.Dense(3, 'softmax')]),
     CROSS_ENTROPY, (), 'from_logits=True, but the last layer has .* softmax')])
def test_what_is_no_model_is_one_line(build, loss, metrics, message):
  with pytest.raises(ValueError, match=message) as raised:
    task_lib.Model.from_keras(build, loss, metrics)
  assert '\n' not in str(raised.value)


@pytest.mark.parametrize('loss, names, message', [
    (CROSS_ENTROPY, 'ab', 'class_names must be 3, found 2'),
    (tf.keras.losses.BinaryCrossentropy(from_logits=True), 'abc',
     'class_names need a loss of classes')])
def test_names_are_as_many_as_classes(loss, names, message):
  with pytest.raises(ValueError, match=message):
    task_lib.Model.from_keras(_dense, loss, class_names=names)


def test_functional_model_of_tff_is_the_same_function():
  functional = tff.learning.models.functional_model_from_keras(
      _dense, CROSS_ENTROPY, SPEC)
  model = task_lib.Model.from_functional(functional, classes=True)
  weights, batch = model.initial_weights(0), _batch()
  ours = task_lib.Model.from_keras(_dense, CROSS_ENTROPY)
  for key in (KEY, None):
    np.testing.assert_allclose(
        model.loss(weights, batch, key), ours.loss(weights, batch, key), rtol=1e-5)
    for one, other in zip(_gradient(model, weights, batch, key),
                          _gradient(ours, weights, batch, key), strict=True):
      np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
  assert set(model.predict(weights, {'x': batch['x']})) == {'class', 'probabilities'}


def test_model_of_tff_that_is_not_functional_is_refused():
  variables = tff.learning.models.from_keras_model(
      _dense(), CROSS_ENTROPY, input_spec=SPEC)
  with pytest.raises(ValueError, match='functional must be .*functional_model_from'):
    task_lib.Model.from_functional(variables)


def test_functional_model_that_draws_is_refused():
  functional = tff.learning.models.functional_model_from_keras(
      lambda: _dense(keras.Dropout(0.5)), CROSS_ENTROPY, SPEC)
  with pytest.raises(ValueError, match='use Model.from_keras'):
    task_lib.Model.from_functional(functional)
