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
# Norm of a row as a model takes it, if all columns are encoded as 1; it follows from
# whether the label is a class: cross-entropy has less curvature than squared errors. It
# does not grow with the number of columns, so that the same rates suit all tables.
_NORM = {True: 3.0, False: 1.5}
# A regression learns multiples of this: the same clip then has less noise.
_LABEL_UNIT = 0.2


def scales(columns: columns_lib.Columns) -> tuple[float, float]:
  """Factors of the encoded row before a model's first layer, and of its outputs."""
  is_class = columns.is_classification
  return (_NORM[is_class] * len(columns.features)**-0.5, 1.0 if is_class else _LABEL_UNIT)


def build(name: str | None, columns: columns_lib.Columns) -> task.Model:
  """Builds one of MODELS for the columns; None means the first for such a label.

  Raises ValueError if the model is not for such a label.
  """
  choices = MODELS[columns.is_classification]
  name = checks.choice('model', name, choices, choices[0])
  outputs = columns.label.width
  network = (classifiers.mlp((columns.width,), outputs, HIDDEN) if name == 'mlp' else
             classifiers.softmax((columns.width,), outputs))
  scale, _ = scales(columns)

  def logits(weights, x, seed=None):
    return network.logits(weights, scale * x, seed)

  attributes = dict(name=name, initial_weights=network.initial_weights,
                    weight_names=network.weight_names)
  if not columns.is_classification:
    return _regression(logits, columns.label, is_robust=name == 'mlp', **attributes)
  label = columns.label
  model = classifiers.model_of_logits(
      logits=logits, breakdown={'kind': 'class', 'names': label.categories}, **attributes)
  return _weighted(model, label.weights) if label.weights else model


def _weighted(model: task.Model, weights: Sequence[float]) -> task.Model:
  """The model whose loss of an example is multiplied by the weight of its class."""

  def loss(arrays, batch, seed):
    return model.loss(arrays, batch, seed) * tf.gather(
        tf.constant(weights, tf.float32), batch['y'])

  return dataclasses.replace(model, loss=loss)


def _regression(logits: Callable[..., tf.Tensor], label: columns_lib.Number, *,
                is_robust: bool, **attributes: Any) -> task.Model:
  """Builds the model of a network with one output, trained on half the squared error.

  The metric 'mae', the mean absolute error, is in the units of the label; 'loss' is
  half the squared error of the encoded label in _LABEL_UNIT. Predictions are within the
  bounds of the label. With `is_robust` the training has Huber's loss, which is linear
  beyond an error of 1.
  """

  def predicted(weights, batch):
    return _LABEL_UNIT * logits(weights, batch['x'])[:, 0]

  def errors(weights, batch):
    return (predicted(weights, batch) - batch['y']) / _LABEL_UNIT

  def loss(weights, batch, seed):
    del seed
    error = errors(weights, batch)
    # The first errors are of the mean, many units large: their steps, if not clipped,
    # would leave all rectified units of a hidden layer at 0 for good.
    slope = tf.clip_by_value(error, -1.0, 1.0) if is_robust else error
    return slope * (error - 0.5 * slope)

  def in_units(y):
    values = tf.clip_by_value(label.center + label.scale * y, *label.encoded_bounds)
    return tf.exp(values) if label.is_log else values

  def metrics(weights, batch, mask) -> Mapping[str, tuple[tf.Tensor, tf.Tensor]]:
    error = in_units(predicted(weights, batch)) - in_units(batch['y'])
    return {'mae': layers.masked_total(tf.abs(error), mask),
            'loss': layers.masked_total(0.5 * tf.square(errors(weights, batch)), mask)}

  def predict(weights, batch):
    return {'value': in_units(predicted(weights, batch))}

  return task.Model(loss=loss, metrics=metrics, headline='mae', predict=predict,
                    in_units=lambda y: in_units(y).numpy(), **attributes)
