"""Models of tables: logistic and linear regression, and a network of one hidden layer.

Batches have 'x', float32 [batch, width], encoded columns; and 'y', int32 [batch]
classes or float32 [batch] encoded numbers.
"""

from collections.abc import Mapping
import dataclasses

import tensorflow as tf

from tasks import checks, task
from tasks.models import classifiers
from tasks.tabular import columns as columns_lib

HIDDEN = 32
# Whether the label is a class -> the models.
MODELS = {True: ('logistic', 'mlp'), False: ('linear', 'mlp')}


def build(name: str | None, columns: columns_lib.Columns) -> task.Model:
  """Builds one of MODELS for the columns; None means the first for such a label.

  Raises ValueError if the model is not for such a label.
  """
  choices = MODELS[columns.is_classification]
  name = checks.choice('model', name, choices, choices[0])
  outputs = columns.label.width
  network = (classifiers.mlp((columns.width,), outputs, HIDDEN) if name == 'mlp' else
             classifiers.softmax((columns.width,), outputs))
  network = dataclasses.replace(network, name=name)
  if not columns.is_classification:
    return _regression(network, columns.label)
  return network.as_model({'kind': 'class', 'names': columns.label.categories})


def _regression(network: classifiers.Network, label: columns_lib.Number) -> task.Model:
  """Builds the model of a network with one output, trained on the squared error.

  The metrics 'mae' and 'mse', the mean absolute and squared error, are in the units of
  the label; 'loss' is half the squared error of the encoded label. 'explained' is the
  fraction of the squared distances from the label's public center that predictions
  save: it is R^2 where the center is the mean.
  """

  def predicted(weights, batch):
    return network.logits(weights, batch['x'])[:, 0]

  def loss(weights, batch, seed):
    del seed
    return 0.5 * tf.square(predicted(weights, batch) - batch['y'])

  def metrics(weights, batch, mask) -> Mapping[str, tuple[tf.Tensor, tf.Tensor]]:
    error = mask * (predicted(weights, batch) - batch['y'])
    squared, count = tf.reduce_sum(tf.square(error)), tf.reduce_sum(mask)
    total = tf.reduce_sum(mask * tf.square(batch['y']))
    return {'mae': (label.scale * tf.reduce_sum(tf.abs(error)), count),
            'mse': (label.scale**2 * squared, count),
            'explained': (total - squared, total), 'loss': (0.5 * squared, count)}

  def predict(weights, batch):
    value = label.center + label.scale * predicted(weights, batch)
    value = tf.clip_by_value(value, *label.encoded_bounds)
    return {'value': tf.exp(value) if label.is_log else value}

  return task.Model(
      name=network.name, initial_weights=network.initial_weights, loss=loss,
      metrics=metrics, headline='mae', predict=predict,
      weight_names=network.weight_names)
