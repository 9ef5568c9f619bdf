"""Training and predictions of a party, against Keras and NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from tasks.models import fedmd as fedmd_models
from tff_pipelines.fedmd import process as party_lib
from tff_pipelines.fedmd.process import FitConfig

SHAPE, CLASSES = (8, 8, 1), 5
ARCHITECTURE = fedmd_models.build('dense2', SHAPE, CLASSES)
KEY = tf.constant([7, 8], tf.int64)


def _images(count, seed=0):
  return np.random.default_rng(seed).integers(0, 256, (count, *SHAPE), dtype=np.uint8)


def _labels(count, seed=1):
  return np.random.default_rng(seed).integers(CLASSES, size=count).astype(np.int32)


def _fit(images, targets, epochs, *, kind='labels', weights=None, key=KEY,
         rate=0.01, batch=1000, factor=1.0):
  if weights is None:
    weights = ARCHITECTURE.initial_weights(0)
  return party_lib.fit(
      ARCHITECTURE, tf.constant(weights), tf.constant(images),
      tf.constant(targets), tf.constant(epochs), key, kind=kind,
      config=FitConfig(learning_rate=rate, batch_size=batch), rate_factor=factor).numpy()


def _targets(kind, count):
  if kind == 'labels':
    return _labels(count)
  logits = np.random.default_rng(2).normal(size=(count, CLASSES)).astype(np.float32)
  return logits if kind == 'logits' else tf.nn.softmax(logits).numpy()


@pytest.mark.parametrize('kind', ['labels', 'logits', 'softmax', 'argmax'])
def test_fit_takes_the_steps_of_keras_adam(kind):
  images, targets = _images(12), _targets(kind, 12)
  loss = {'labels': tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
          'logits': tf.keras.losses.MeanAbsoluteError()}.get(
              kind, tf.keras.losses.CategoricalCrossentropy(from_logits=True))
  weights = tf.Variable(ARCHITECTURE.initial_weights(0))
  optimizer = tf.keras.optimizers.legacy.Adam(0.01)
  for _ in range(6):
    with tf.GradientTape() as tape:
      value = loss(targets, ARCHITECTURE.logits(weights, images))
    optimizer.apply_gradients([(tape.gradient(value, weights), weights)])
  # One batch has all examples, so their order does not matter.
  trained = _fit(images, targets, 6, kind=kind)
  change = np.abs(trained - ARCHITECTURE.initial_weights(0)).max()
  assert change > 0.01
  np.testing.assert_allclose(trained, weights.numpy(), atol=1e-3 * change)


def test_rate_factor_multiplies_the_learning_rate():
  images, labels = _images(12), _labels(12)
  weights = _fit(images, labels, 3, rate=0.04, factor=0.25)
  np.testing.assert_array_equal(weights, _fit(images, labels, 3, rate=0.01))
  assert np.any(weights != _fit(images, labels, 3, rate=0.04))


def test_every_example_is_seen_once_an_epoch_in_an_order_of_the_key():
  # One example a step: weights depend on the order, and all examples count.
  images, labels = _images(5), _labels(5)
  first = _fit(images, labels, 1, batch=1)
  again = _fit(images, labels, 1, batch=1)
  other = _fit(images, labels, 1, batch=1, key=tf.constant([7, 9], tf.int64))
  np.testing.assert_array_equal(first, again)
  assert np.any(first != other)
  for row in range(5):
    fewer = np.delete(images, row, axis=0), np.delete(labels, row)
    assert np.any(first != _fit(*fewer, 1, batch=1))


def test_uneven_last_batch_counts_its_own_examples_only():
  # Of 3 examples in batches of 2 the last batch has one; doubled examples make
  # a batch of two equal ones, which has the same gradient.
  images, labels = _images(1), _labels(1)
  one = _fit(images, labels, 1, batch=2)
  two = _fit(np.repeat(images, 2, 0), np.repeat(labels, 2), 1, batch=2)
  np.testing.assert_allclose(one, two, atol=1e-6)


def test_half_of_the_images_are_mirrored_left_to_right():
  seen = []

  class Recorder:
    """A stand-in for an architecture that records the images it reads."""

    @staticmethod
    def logits(weights, images):
      tf.py_function(lambda x: seen.append(x.numpy()), [images], [])
      return tf.zeros([tf.shape(images)[0], CLASSES]) + 0 * weights[0]

  images = np.zeros([400, 8, 8, 1], np.uint8)
  images[:, 1, 2] = 200  # Mirrored left to right it is in column 5.
  images[:, 0, 0, 0] = images[:, 0, 7, 0] = np.arange(400) % 200
  for mirror in (True, False):
    seen.clear()
    party_lib.fit(
        Recorder, tf.zeros([3]), tf.constant(images), tf.zeros([400], tf.int32),
        tf.constant(2), KEY, kind='labels',
        config=FitConfig(learning_rate=0.1, batch_size=100, mirror=mirror))
    shown = np.concatenate(seen)
    assert shown.shape == (800, 8, 8, 1)
    there, mirrored = shown[:, 1, 2, 0] == 200, shown[:, 1, 5, 0] == 200
    assert np.all(there != mirrored)
    assert np.sum(mirrored) == pytest.approx(400 if mirror else 0,
                                             abs=85 if mirror else 0)
    assert not np.any(shown[:, 6])  # Never upside down.


@pytest.mark.parametrize('count, epochs', [(0, 3), (4, 0)])
def test_no_examples_or_no_epochs_change_nothing(count, epochs):
  weights = _fit(_images(count), _labels(count), epochs)
  np.testing.assert_array_equal(weights, ARCHITECTURE.initial_weights(0))


@pytest.mark.parametrize('count', [1, 500, 501, 1203])
def test_predictions_in_pieces_are_predictions_of_the_whole(count):
  weights, images = ARCHITECTURE.initial_weights(3), _images(count)
  logits = party_lib.predict(ARCHITECTURE, weights, tf.constant(images))
  assert logits.shape == [count, CLASSES]
  np.testing.assert_allclose(logits, ARCHITECTURE.logits(weights, images), atol=1e-5)
