"""Models of tables: logistic and linear regression, and a network of one hidden layer.

Batches have 'x', float32 [batch, width], encoded columns; and 'y', int32 [batch]
classes or float32 [batch] encoded numbers.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Any

import tensorflow as tf

from tasks import checks, task
from tasks.models import classifiers, layers
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
  # A row has a norm of about 1 then, whatever the number of columns, or 2 for classes,
  # of which the loss has a quarter of the curvature, or less: the same rates suit all.
  scale = (2 if columns.is_classification else 1) * len(columns.features)**-0.5

  def logits(weights, x, seed=None):
    return network.logits(weights, scale * x, seed)

  attributes = dict(
      name=name, initial_weights=network.initial_weights,
      weight_names=network.weight_names)
  if not columns.is_classification:
    return _regression(logits, columns.label, **attributes)
  label = columns.label
  model = classifiers.model_of_logits(
      logits=logits, breakdown={'kind': 'class', 'names': label.categories},
      **attributes)
  return _weighted(model, label.weights) if label.weights else model


def _weighted(model: task.Model, weights: Sequence[float]) -> task.Model:
  """The model whose loss of an example is multiplied by the weight of its class."""

  def loss(arrays, batch, seed):
    return model.loss(arrays, batch, seed) * tf.gather(
        tf.constant(weights, tf.float32), batch['y'])

  return dataclasses.replace(model, loss=loss)


def _regression(logits: Callable[..., tf.Tensor], label: columns_lib.Number,
                **attributes: Any) -> task.Model:
  """Builds the model of a network with one output, trained on the squared error.

  The metric 'mae', the mean absolute error, is in the units of the label; 'loss' is
  half the squared error of the encoded label. Predictions are within its bounds.
  """

  def predicted(weights, batch):
    return logits(weights, batch['x'])[:, 0]

  def in_units(y):
    values = tf.clip_by_value(label.center + label.scale * y, *label.encoded_bounds)
    return tf.exp(values) if label.is_log else values

  def loss(weights, batch, seed):
    del seed
    return 0.5 * tf.square(predicted(weights, batch) - batch['y'])

  def metrics(weights, batch, mask) -> Mapping[str, tuple[tf.Tensor, tf.Tensor]]:
    values = predicted(weights, batch)
    return {'mae': layers.masked_total(
        tf.abs(in_units(values) - in_units(batch['y'])), mask),
            'loss': layers.masked_total(0.5 * tf.square(values - batch['y']), mask)}

  def predict(weights, batch):
    return {'value': in_units(predicted(weights, batch))}

  return task.Model(
      loss=loss, metrics=metrics, headline='mae', predict=predict,
      in_units=lambda y: in_units(y).numpy(), **attributes)
