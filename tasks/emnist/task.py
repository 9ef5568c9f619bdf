"""The EMNIST task: read a handwritten character from a 28 x 28 image.

One client is one writer. The models take batches of the features 'x', uint8
[batch, 28, 28] with ink near 255, and 'y', int32 [batch] class numbers.
"""

import functools
import string
from typing import Any, Callable

import numpy as np
import tensorflow as tf

from tasks import checks
from tasks import task
from tasks.emnist import data as emnist_data
from tasks.models import layers

# What the convolutions leave of 28 x 28 pixels. cnn_1m: 26, pooled to 13, 11;
# cnn_small: 22, pooled to 11, 8, pooled to 4.
_CNN_1M_FEATURES = 11 * 11 * 64
_CNN_SMALL_FEATURES = 4 * 4 * 24


def _cnn_1m_weights(num_classes: int, seed: int) -> list[np.ndarray]:
  rng = np.random.default_rng(seed)
  return [
      layers.glorot_uniform(rng, 3, 3, 1, 32), layers.zeros(32),
      layers.glorot_uniform(rng, 3, 3, 32, 64), layers.zeros(64),
      layers.glorot_uniform(rng, _CNN_1M_FEATURES, 128), layers.zeros(128),
      layers.glorot_uniform(rng, 128, num_classes), layers.zeros(num_classes),
  ]


def _cnn_1m_logits(weights: task.Weights, images: Any, seed: Any) -> tf.Tensor:
  """float32 [batch, classes]; dropout only where a seed is given."""
  first_seed, second_seed = None, None
  if seed is not None:
    first_seed = layers.layer_seed(seed, 0)
    second_seed = layers.layer_seed(seed, 1)
  x = layers.images_to_float(images)
  # Pooling here, between the convolutions, is what makes the papers' count of
  # 1,018,174 parameters for 62 classes; after both it would be 1,206,590. The
  # maximum before the ReLU is the same, and a quarter of its work.
  x = tf.nn.relu(layers.max_pool(layers.conv2d(x, weights[0], weights[1]), 2))
  x = tf.nn.relu(layers.conv2d(x, weights[2], weights[3]))
  x = layers.flatten(layers.dropout(x, 0.25, first_seed))
  x = tf.nn.relu(layers.dense(x, weights[4], weights[5]))
  x = layers.dropout(x, 0.5, second_seed)
  return layers.dense(x, weights[6], weights[7])


def _cnn_small_weights(num_classes: int, seed: int) -> list[np.ndarray]:
  rng = np.random.default_rng(seed)
  return [
      layers.glorot_uniform(rng, 7, 7, 1, 8), layers.zeros(8),
      layers.glorot_uniform(rng, 4, 4, 8, 24), layers.zeros(24),
      layers.glorot_uniform(rng, _CNN_SMALL_FEATURES, num_classes),
      layers.zeros(num_classes),
  ]


def _cnn_small_logits(weights: task.Weights, images: Any,
                      seed: Any) -> tf.Tensor:
  """float32 [batch, classes]. No dropout: privacy noise regularizes enough."""
  del seed
  x = layers.images_to_float(images)
  x = tf.nn.relu(layers.max_pool(layers.conv2d(x, weights[0], weights[1]), 2))
  x = tf.nn.relu(layers.max_pool(layers.conv2d(x, weights[2], weights[3]), 2))
  return layers.dense(layers.flatten(x), weights[4], weights[5])


def _classifier(
    name: str,
    num_classes: int,
    initial_weights: Callable[[int, int], list[np.ndarray]],
    logits: Callable[[task.Weights, Any, Any], tf.Tensor],
) -> task.Model:
  """The Model of a network given by its weights and its logits."""

  def loss(weights, batch, seed):
    return layers.softmax_cross_entropy(
        logits(weights, batch['x'], seed), batch['y'])

  def metrics(weights, batch, mask):
    return layers.classification_metrics(
        logits(weights, batch['x'], None), batch['y'], mask)

  def count(weights, batch, mask):
    return layers.class_counts(
        logits(weights, batch['x'], None), batch['y'], mask, confusion=True)

  return task.Model(
      name=name,
      initial_weights=functools.partial(initial_weights, num_classes),
      loss=loss, metrics=metrics,
      breakdown=_breakdown(num_classes, count))


def _breakdown(num_classes: int, count: Callable) -> task.Breakdown:
  """Classes by their characters, where they are those of EMNIST or MNIST."""
  characters = string.digits + string.ascii_uppercase + string.ascii_lowercase
  if num_classes not in (len(string.digits), len(characters)):
    return task.Breakdown(
        kind='class', names=[str(i) for i in range(num_classes)], count=count)
  if num_classes == len(string.digits):
    return task.Breakdown(kind='digit', names=string.digits, count=count)
  return task.Breakdown(
      kind='character', names=characters, count=count,
      groups={'digits': range(10), 'upper case': range(10, 36),
              'lower case': range(36, 62)})


def cnn_1m(num_classes: int) -> task.Model:
  """The CNN of the distributed-DP papers: 1,018,174 parameters for 62 classes.

  Convolution 3 x 3 of 32, ReLU, max pool 2 x 2, convolution 3 x 3 of 64, ReLU,
  dropout 0.25, dense 128, ReLU, dropout 0.5, dense num_classes.
  """
  return _classifier('cnn_1m', num_classes, _cnn_1m_weights, _cnn_1m_logits)


def cnn_small(num_classes: int) -> task.Model:
  """A CNN that learns from a few hundred clients under differential privacy.

  Convolution 7 x 7 of 8, ReLU, max pool 2 x 2, convolution 4 x 4 of 24, ReLU,
  max pool 2 x 2, dense num_classes: 7,346 parameters for 10 classes, 27,366
  for 62. The norm of the noise that privacy adds grows with the number of
  parameters, and a rotation pads that to a power of two: these are just below
  2^13 and 2^15.
  """
  return _classifier(
      'cnn_small', num_classes, _cnn_small_weights, _cnn_small_logits)


MODELS = {'cnn_1m': cnn_1m, 'cnn_small': cnn_small}


def build(*, model: str | None = None, **data_options: Any) -> task.Task:
  """The EMNIST task.

  Args:
    model: One of MODELS; None means 'cnn_small'.
    **data_options: See emnist_data.load.

  Returns:
    The task. Its model has as many classes as the data.

  Raises:
    ValueError: On an unknown model, options that the data source does not use,
      and data that are missing, corrupted or malformed.
  """
  model = checks.choice('model', model, MODELS, 'cnn_small')
  data = emnist_data.load(**data_options)
  return task.Task(
      name='emnist', model=MODELS[model](data.num_classes), train=data.train,
      held_out=data.held_out, privacy_unit=data.privacy_unit,
      test_of_files=data.test_of_files, skips=data.skips,
      label_counts=data.label_counts, warnings=data.warnings)
