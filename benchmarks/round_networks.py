"""Networks of `benchmarks.round`, ours and the same for TFF's federated averaging."""

from collections.abc import Callable, Mapping
import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from tasks import task as task_lib
from tasks.emnist import task as emnist
from tasks.models import classifiers, layers
from tasks.text import shakespeare, stackoverflow_tag, vocabulary as vocabulary_lib

_WORDS, _TAGS = 10_000, 500
_STEPS, _CHARACTERS = 80, 90


@dataclasses.dataclass(frozen=True, kw_only=True)
class Network:
  """A network, and synthetic clients.

  Attributes:
    model: () -> our model.
    examples: (generator, number of examples) -> name -> array, examples of a client.
    keras: () -> the same network in Keras, for TFF; None where TFF is no peer.
    loss: () -> the loss of the Keras network.
    pairs: Examples of a client -> features and labels of the Keras network.
  """

  model: Callable[[], task_lib.Model]
  examples: Callable[[np.random.Generator, int], Mapping[str, np.ndarray]]
  keras: Callable[[], tf.keras.Model] | None = None
  loss: Callable[[], tf.keras.losses.Loss] = (
      lambda: tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
  pairs: Callable[[Mapping[str, np.ndarray]], tuple[Any, Any]] = (
      lambda examples: (examples['x'][..., np.newaxis], examples['y']))


def softmax() -> task_lib.Model:
  """784 x 10 softmax regression."""

  def weights(seed):
    rng = np.random.default_rng(seed)
    return [layers.glorot_uniform(rng, 784, 10), layers.zeros(10)]

  def loss(weights, batch, seed):
    del seed  # No dropout.
    x = tf.reshape(classifiers.to_float(batch['x']), [-1, 784])
    return layers.softmax_cross_entropy(
        layers.dense(x, weights[0], weights[1]), batch['y'])

  return task_lib.Model(
      name='softmax', initial_weights=weights, loss=loss, metrics=lambda *_: {})


def _tags(words: int = _WORDS) -> task_lib.Model:
  """The tag model, of 5,000,500 parameters for 10,000 words."""
  return stackoverflow_tag.build_model('logistic', vocabulary_lib.Vocabulary(
      words=tuple(f'w{i}' for i in range(words)),
      labels=tuple(f't{i}' for i in range(_TAGS)), made_from=vocabulary_lib.PUBLIC))


def _emnist(name: str, classes: int):
  return lambda: emnist.build_model(name, emnist.SHAPE, classes)


def _images(classes: int):
  def examples(rng, count):
    return {'x': rng.integers(0, 256, [count, 28, 28]).astype(np.uint8),
            'y': rng.integers(0, classes, [count]).astype(np.int32)}
  return examples


def _texts(rng, count):
  return {'tokens': rng.integers(1, 86, [count, _STEPS + 1]).astype(np.uint8)}


def _posts(rng, count):
  return {'x': rng.integers(1, _WORDS, [count, stackoverflow_tag.MAX_WORDS], np.int32),
          'y': rng.integers(1, _TAGS, [count, stackoverflow_tag.MAX_TAGS], np.int32)}


def _frequencies(examples):
  """Frequencies of the words and indicators of the tags."""
  x, y = (np.zeros([len(examples['x']), size], np.float32) for size in (_WORDS, _TAGS))
  for row in range(len(x)):
    np.add.at(x[row], examples['x'][row] - 1, 1 / stackoverflow_tag.MAX_WORDS)
    y[row, examples['y'][row] - 1] = 1
  return x, y


_keras = tf.keras.layers


def _keras_softmax():
  return tf.keras.Sequential([
      _keras.Rescaling(1 / 255, input_shape=(28, 28, 1)), _keras.Flatten(),
      _keras.Dense(10)])


def _keras_cnn():
  return tf.keras.Sequential([
      _keras.Rescaling(1 / 255, input_shape=(28, 28, 1)),
      _keras.Conv2D(32, 3, activation='relu'), _keras.MaxPool2D(),
      _keras.Conv2D(64, 3, activation='relu'), _keras.Dropout(0.25),
      _keras.Flatten(), _keras.Dense(128, activation='relu'), _keras.Dropout(0.5),
      _keras.Dense(62)])


def _keras_lstm():
  return tf.keras.Sequential([
      _keras.Embedding(_CHARACTERS, 8, input_length=_STEPS),
      _keras.LSTM(256, return_sequences=True), _keras.LSTM(256, return_sequences=True),
      _keras.Dense(_CHARACTERS)])


def _keras_tags():
  return tf.keras.Sequential([_keras.Dense(_TAGS, input_shape=(_WORDS,))])


NETWORKS = {
    'tags_large': Network(model=lambda: _tags(10 * _WORDS), examples=_posts),
    'softmax': Network(model=softmax, examples=_images(10), keras=_keras_softmax),
    'cnn': Network(model=_emnist('cnn_1m', 62), examples=_images(62),
                   keras=_keras_cnn),
    'lstm': Network(
        model=lambda: shakespeare.build_model('lstm_256'), examples=_texts,
        keras=_keras_lstm, pairs=lambda examples: (
            examples['tokens'][:, :-1].astype(np.int32),
            examples['tokens'][:, 1:].astype(np.int32))),
    'tags': Network(
        model=_tags, examples=_posts, keras=_keras_tags, pairs=_frequencies,
        loss=lambda: tf.keras.losses.BinaryCrossentropy(from_logits=True)),
    'cnn_small': Network(model=_emnist('cnn_small', 10), examples=_images(10)),
    'cnn_small_62': Network(model=_emnist('cnn_small', 62), examples=_images(62))}
