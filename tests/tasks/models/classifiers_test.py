"""Networks of classifiers."""

import numpy as np
import pytest
import tensorflow as tf

from tasks.models import classifiers as voting_models


@pytest.mark.parametrize('name, shape', [
    ('softmax', (7,)), ('mlp', (7,)), ('softmax', (16, 16)), ('mlp', (16, 16)),
    ('cnn_small', (28, 28)), ('cnn_small', (16, 16)), ('cnn', (28, 28)),
    ('cnn', (16, 16)), ('cnn', (9, 9))])
def test_networks_classify_features(name, shape):
  network = voting_models.build(name, shape, 5)
  weights = network.initial_weights(1)
  x = np.random.default_rng(0).integers(0, 255, (3, *shape)).astype(
      np.uint8 if len(shape) == 2 else np.float32)
  features = network.features(weights, tf.constant(x))
  assert features.shape == (3, network.feature_size)
  logits = network.logits(weights, tf.constant(x))
  assert logits.shape == (3, 5) and np.isfinite(logits).all()
  np.testing.assert_array_equal(logits, network.classify(weights, features))
  for left, right in zip(weights, network.initial_weights(1)):
    np.testing.assert_array_equal(left, right)
    assert left.dtype == np.float32


def test_models_have_the_metrics_of_a_task():
  network = voting_models.build('mlp', (4,), 3)
  batch = {'x': tf.ones([2, 4]), 'y': tf.constant([0, 1])}
  actual = network.as_model().metrics(network.initial_weights(0), batch, tf.ones([2]))
  assert set(actual) == {'accuracy', 'loss'} and float(actual['loss'][1]) == 2


@pytest.mark.parametrize('shape, expected', [((28, 28), 'cnn'), ((9,), 'mlp')])
def test_the_model_suits_the_records_if_none_is_asked_for(shape, expected):
  assert voting_models.build(None, shape, 3).name == expected


@pytest.mark.parametrize('name, shape, message', [
    ('vgg', (28, 28), "model must be one of softmax, mlp, .*, found 'vgg'"),
    ('cnn', (10,), r'images of model cnn must be 8 x 8 or more, found \[10\]'),
    ('cnn_small', (8, 8), '12 x 12 or more'),
    ('cnn', (28, 28, 3, 2), 'found .28, 28, 3, 2')])
def test_networks_that_do_not_fit_are_refused(name, shape, message):
  with pytest.raises(ValueError, match=message):
    voting_models.build(name, shape, 3)
