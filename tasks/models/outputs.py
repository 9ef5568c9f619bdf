"""Reading a network's outputs: losses, metrics and predictions.

For models that come as a network and a loss: the loss says whether the outputs are
classes, and whether they are logits.
"""

from collections.abc import Callable, Sequence
import inspect
from typing import Any, NamedTuple

import tensorflow as tf

from tasks.models import layers, types

# A loss -> its labels: indices of classes, one of them by 0 and 1, or two classes.
INDEX, _ONE_HOT, _BINARY = 'index', 'one_hot', 'binary'
_LABELS = {'sparse_categorical_crossentropy': INDEX, 'categorical_crossentropy': _ONE_HOT,
           'categorical_focal_crossentropy': _ONE_HOT, 'binary_crossentropy': _BINARY,
           'binary_focal_crossentropy': _BINARY}


class Outputs(NamedTuple):
  """Outputs of a network for a batch: float32 values [batch, ...].

  The mask is 0 for positions of an example that must not count, its shape a beginning
  of that of the labels; None if all count. Each example's loss has the scalar penalty
  in addition.
  """

  values: tf.Tensor
  mask: tf.Tensor | None = None
  penalty: tf.Tensor | None = None


def attributes(outputs: Callable[..., Outputs], shape: tf.TensorShape, loss: Any,
               metrics: Sequence[Any], *, headline: str | None = None,
               class_names: Sequence[str] = (), labels: str | None = None,
               activation: str | None = None, **rest: Any) -> dict[str, Any]:
  """The attributes of the `task.Model` of a network.

  Args:
    outputs: (weights, batch, seed) -> outputs, whose values have this shape.
    loss: A Keras loss, its name, or (labels, outputs) -> a value for each example.
    metrics, headline, class_names, **rest: As in `task.Model.from_keras`.
    labels: INDEX for a loss of one's own of labels that are indices of classes, with
      logits as outputs; None where the loss says by itself.
    activation: Name of that of the last layer, if it is known.

  Raises ValueError if an argument is wrong, or outputs have other classes than names.
  """
  loss_of, kind, from_logits = _loss(loss)
  if from_logits and activation in ('softmax', 'sigmoid'):
    raise ValueError(f'loss has from_logits=True, but the last layer has the activation '
                     f'{activation}: leave one of them out')
  if labels is not None:
    kind, from_logits = labels, True
  metric_of = dict(map(_metric, metrics))
  names = {'loss', *metric_of, *(['accuracy'] if kind else [])}
  headline = headline or ('accuracy' if kind else 'loss')
  if headline not in names:
    raise ValueError(f'headline must be one of {sorted(names)}, found {headline!r}')
  metric_of.pop('accuracy', None)  # It is there anyway.
  if class_names:
    if kind is None or kind == _BINARY and shape.rank != 1 and shape[-1] != 1:
      raise ValueError('class_names need a loss of classes, one for each example')
    if (size := 2 if kind == _BINARY else shape[-1]) != len(class_names):
      raise ValueError(f'class_names must be {size}, found {len(class_names)}')

  def classes(values):
    if kind == _BINARY:
      return tf.cast(_without_unit(values) >= (0.0 if from_logits else 0.5), tf.int32)
    return tf.argmax(values, axis=-1, output_type=tf.int32)

  def class_of(y):
    return (tf.argmax(y, axis=-1, output_type=tf.int32) if kind == _ONE_HOT else
            tf.cast(_without_unit(y) if kind == _BINARY else y, tf.int32))

  def example_losses(weights, batch, seed):
    result = outputs(weights, batch, seed)
    losses = _of_examples(loss_of(batch['y'], result.values), result.mask)
    return losses if result.penalty is None else losses + result.penalty

  def totals(weights, batch, mask):
    result, y = outputs(weights, batch, None), tf.convert_to_tensor(batch['y'])
    mean = lambda values: layers.masked_total(values, _weights(values, result.mask, mask))
    all_totals = {}
    if kind:
      all_totals['accuracy'] = mean(tf.cast(
          tf.equal(classes(result.values), class_of(y)), tf.float32))
    for name, function in {'loss': loss_of, **metric_of}.items():
      values = function(y, result.values)
      all_totals[name] = (tuple(mean(part)[0] for part in values)
                          if isinstance(values, tuple) else mean(values))
    return all_totals

  def predict(weights, batch):
    values = outputs(weights, batch, None).values
    if kind is None:
      return {'value': values}
    probabilities = _without_unit(values) if kind == _BINARY else values
    if from_logits:
      probabilities = (tf.sigmoid if kind == _BINARY else tf.nn.softmax)(probabilities)
    return {'class': classes(values), 'probabilities': probabilities}

  def count(weights, batch, mask):
    result = outputs(weights, batch, None)
    predicted, truth = classes(result.values), class_of(batch['y'])
    return layers.confusion_counts(
        truth, predicted, _weights(predicted, result.mask, mask), size)

  breakdown = types.Breakdown(kind='class', names=tuple(class_names), count=count)
  return dict(loss=example_losses, metrics=totals, predict=predict, headline=headline,
              breakdown=breakdown if class_names else None, **rest)


def _of_examples(values: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
  """One value for each example: the mean over its positions that count."""
  if mask is None:
    return tf.reduce_mean(tf.reshape(values, [tf.shape(values)[0], -1]), axis=1)
  weights = _weights(values, mask, tf.ones([tf.shape(values)[0]]))
  axes = tf.range(1, tf.rank(values))
  return (tf.reduce_sum(values * weights, axes)
          / tf.maximum(tf.reduce_sum(weights, axes), 1.0))


def _without_unit(values: tf.Tensor) -> tf.Tensor:
  """Without a last dimension of 1."""
  return values[..., 0] if values.shape.rank > 1 and values.shape[-1] == 1 else values


def _weights(values: tf.Tensor, positions: tf.Tensor | None,
             mask: tf.Tensor) -> tf.Tensor:
  """The weight of each value: that of its example (mask), times its position's."""
  weights = tf.ones_like(values, tf.float32)
  for factor in (mask, positions):
    if factor is not None:
      # A comparison of one's own may have no known rank in a graph.
      missing = tf.rank(values) - tf.rank(factor)
      weights *= tf.reshape(factor, tf.concat(
          [tf.shape(factor), tf.ones([missing], tf.int32)], axis=0))
  return weights


def _per_example(function: Callable, labels: Any, values: tf.Tensor) -> Any:
  """A function's values, float32; of outputs with one unit also for labels without."""
  labels = tf.convert_to_tensor(labels)
  if values.shape.rank == labels.shape.rank + 1 and values.shape[-1] == 1:
    labels = labels[..., tf.newaxis]
  return tf.nest.map_structure(
      lambda part: tf.cast(part, tf.float32), function(labels, values))


def _loss(loss: Any) -> tuple[Callable, str | None, bool]:
  """The loss of each example, the kind of its labels, whether outputs are logits."""
  try:
    function = tf.keras.losses.get(loss)
  except ValueError:
    function = None
  if not callable(function):
    raise ValueError(f'loss must be a Keras loss or a function, found {loss!r}')
  config = {'fn': getattr(function, '__name__', '')}
  if isinstance(function, tf.keras.losses.Loss):
    config, function = function.get_config(), function.call
  return (lambda y, x: _per_example(function, y, x),
          _LABELS.get(config.get('fn', config.get('name'))),
          bool(config.get('from_logits', False)))


def _metric(metric: Any) -> tuple[str, Callable]:
  """The name of a metric, and its values by example."""
  function = metric
  if isinstance(metric, str) and metric != 'accuracy':
    try:
      function = tf.keras.metrics.get(metric)
    except ValueError:
      function = None
  if isinstance(function, tf.keras.metrics.Metric):
    raise ValueError(f'metric {metric!r} keeps state between batches: use a function, '
                     'such as tf.keras.metrics.mean_absolute_error')
  if metric != 'accuracy' and not inspect.isroutine(function):
    raise ValueError(f'metrics must be names of Keras, or functions, found {metric!r}')
  name = metric if isinstance(metric, str) else function.__name__
  return name, lambda y, x: _per_example(function, y, x)
