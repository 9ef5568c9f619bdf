"""Tasks of one's own with models of every kind, in a form that a program finds.

They are cached, because tracing a model is slow, and programs build it again.
"""

from collections.abc import Callable
import functools

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tasks.sources.records import ArraysByClient
from tasks.task import Model, Task

keras = tf.keras.layers
CROSS_ENTROPY = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _task(name: str, model: Model, features: Callable, labels: Callable) -> Task:
  """Six clients of two examples, and nine that are held out."""
  def examples(seed, count):
    rng = np.random.default_rng(seed)
    return {**features(rng, count), 'y': labels(rng, count)}

  return Task(
      name=name, model=model, privacy_unit='one simulated person',
      train=ArraysByClient(examples(1, 12), np.arange(12) // 2),
      held_out={'test': examples(2, 9)})


def _of_three(rng, count):
  return rng.integers(3, size=count).astype(np.int32)


def _images_network() -> tf.keras.Model:
  x = tf.keras.Input([6, 6, 2])
  hidden = keras.Conv2D(4, 3)(tf.cast(x, tf.float32) / 255.0)
  hidden = tf.nn.relu(keras.GroupNormalization(2)(hidden))
  return tf.keras.Model(x, keras.Dense(3)(keras.Flatten()(hidden)))


@functools.cache
def images() -> Task:
  """Operations between layers."""
  return _task(
      'own_images', Model.from_keras(
          _images_network, CROSS_ENTROPY, class_names=('cat', 'cow', 'dog')),
      lambda rng, n: {'x': rng.integers(256, size=(n, 6, 6, 2)).astype(np.uint8)},
      _of_three)


def _tokens_network() -> tf.keras.Model:
  tokens = tf.keras.Input([4], dtype='int32')
  x = keras.Embedding(7, 3, mask_zero=True)(tokens[:, 1:])
  return tf.keras.Model(tokens, keras.Dense(3)(keras.LSTM(2)(x)))


@functools.cache
def tokens() -> Task:
  """An LSTM that skips padding."""
  return _task(
      'own_tokens', Model.from_keras(_tokens_network, CROSS_ENTROPY),
      lambda rng, n: {'x': rng.integers(7, size=(n, 4)).astype(np.int32)}, _of_three)


def _tags_network() -> tf.keras.Model:
  one, two = tf.keras.Input([3], name='one'), tf.keras.Input([2], name='two')
  return tf.keras.Model([one, two], keras.Dense(4, activation='sigmoid')(
      keras.Concatenate()([one, two])))


@functools.cache
def tags() -> Task:
  """Two inputs, and several classes of an example."""
  return _task(
      'own_tags', Model.from_keras(_tags_network, 'binary_crossentropy'),
      lambda rng, n: {'one': rng.normal(size=(n, 3)).astype(np.float32),
                      'two': rng.normal(size=(n, 2)).astype(np.float32)},
      lambda rng, n: rng.integers(2, size=(n, 4)).astype(np.float32))


def _number_network() -> tf.keras.Model:
  return tf.keras.Sequential([
      tf.keras.Input([3]), keras.Dense(4, trainable=False), keras.Dense(1)])


def _of_features(rng, count):
  return {'x': rng.normal(size=(count, 3)).astype(np.float32)}


@functools.cache
def number() -> Task:
  """A regression, with weights that are not trained."""
  return _task(
      'own_number', Model.from_keras(_number_network, 'mse', ['mae']), _of_features,
      lambda rng, n: rng.normal(size=n).astype(np.float32))


def _plain_network() -> tf.keras.Model:
  return tf.keras.Sequential([tf.keras.Input([3]), keras.Dense(3)])


@functools.cache
def functional() -> Task:
  """A model of TFF."""
  return _task('own_functional', Model.from_functional(
      tff.learning.models.functional_model_from_keras(
          _plain_network, CROSS_ENTROPY,
          (tf.TensorSpec([None, 3]), tf.TensorSpec([None], tf.int32))),
      classes=True), _of_features, _of_three)
