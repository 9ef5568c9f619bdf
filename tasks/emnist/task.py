"""Task: read a handwritten character from a 28 x 28 image (EMNIST).

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
from tasks.models import classifiers
from tasks.models import layers


def _cnn_1m_weights(num_classes: int, seed: int) -> list[np.ndarray]:
  # The convolutions leave 11 x 11 of 28 x 28 pixels: 26, pooled to 13, 11.
  return layers.layer_weights(
      np.random.default_rng(seed), (3, 3, 1, 32), (3, 3, 32, 64),
      (11 * 11 * 64, 128), (128, num_classes))


def _cnn_1m_logits(weights: task.Weights, images: Any, seed: Any) -> tf.Tensor:
  """float32 [batch, classes]; dropout only where a seed is given."""
  seeds = [seed if seed is None else layers.layer_seed(seed, i) for i in range(2)]
  x = layers.images_to_float(images)
  # Pooling here, between the convolutions, gives the papers' count of 1,018,174
  # parameters for 62 classes; after both it would be 1,206,590. The maximum before
  # the ReLU is the same, and a quarter of its work.
  x = tf.nn.relu(layers.max_pool(layers.conv2d(x, weights[0], weights[1]), 2))
  x = tf.nn.relu(layers.conv2d(x, weights[2], weights[3]))
  x = layers.flatten(layers.dropout(x, 0.25, seeds[0]))
  x = tf.nn.relu(layers.dense(x, weights[4], weights[5]))
  x = layers.dropout(x, 0.5, seeds[1])
  return layers.dense(x, weights[6], weights[7])


def _breakdown(num_classes: int, count: Callable) -> task.Breakdown:
  """Classes by their characters, where they are those of EMNIST or MNIST."""
  characters = string.digits + string.ascii_uppercase + string.ascii_lowercase
  if num_classes == len(string.digits):
    return task.Breakdown(kind='digit', names=string.digits, count=count)
  if num_classes != len(characters):
    return task.Breakdown(
        kind='class', names=[str(i) for i in range(num_classes)], count=count)
  return task.Breakdown(
      kind='character', names=characters, count=count,
      groups={'digits': range(10), 'upper case': range(10, 36),
              'lower case': range(36, 62)})


def cnn_1m(num_classes: int) -> task.Model:
  """Builds the CNN of the distributed-DP papers.

  Convolution 3 x 3 of 32, ReLU, max pool 2 x 2, convolution 3 x 3 of 64, ReLU,
  dropout 0.25, dense 128, ReLU, dropout 0.5, dense num_classes: 1,018,174
  parameters for 62 classes.
  """
  return classifiers.model(
      'cnn_1m', functools.partial(_cnn_1m_weights, num_classes), _cnn_1m_logits,
      functools.partial(_breakdown, num_classes))


def cnn_small(num_classes: int) -> task.Model:
  """Builds a CNN that learns from a few hundred clients under differential privacy.

  It is that of classifiers.cnn_small: 7,346 parameters for 10 classes, 27,366 for
  62. The norm of the noise that privacy adds grows with the number of parameters,
  and a rotation pads that to a power of two: these are just below 2^13 and 2^15. It
  has no dropout: privacy noise regularizes enough.
  """
  return classifiers.cnn_small((28, 28), num_classes).as_model(
      functools.partial(_breakdown, num_classes))


MODELS = {'cnn_1m': cnn_1m, 'cnn_small': cnn_small}


def build(*, model: str | None = None, **data_options: Any) -> task.Task:
  """Builds the EMNIST task.

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
