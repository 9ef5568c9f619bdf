"""Reading a network's outputs: losses, metrics and predictions.

For models that come as a network and a loss: the loss says whether the outputs are
classes, and whether they are logits.
"""

from collections.abc import Callable, Sequence
import inspect
from typing import Any, NamedTuple

import tensorflow as tf

from tasks.models import types

# A loss -> its labels: indices of classes, one of them by 0 and 1, or two classes.
INDEX, _ONE_HOT, _BINARY = 'index', 'one_hot', 'binary'
_LABELS = {
    'sparse_categorical_crossentropy': INDEX, 'categorical_crossentropy': _ONE_HOT,
    'categorical_focal_crossentropy': _ONE_HOT, 'binary_crossentropy': _BINARY,
    'binary_focal_crossentropy': _BINARY}


class Outputs(NamedTuple):
  """Outputs of a network for a batch.

  Attributes:
    values: float32 [batch, ...].
    mask: float32, 0 for positions of an example that must not count; its shape is a
      beginning of that of the labels. None if all count.
    penalty: Scalar that each example's loss has in addition; None for none.
  """

  values: tf.Tensor
  mask: tf.Tensor | None = None
  penalty: tf.Tensor | None = None


class Reading:
  """The meaning of outputs.

  Attributes:
    headline: The metric that heads the report.
  """

  def __init__(self, loss: Any, metrics: Sequence[Any], headline: str | None,
               class_names: Sequence[str], labels: str | None = None):
    """Initializes the reading.

    Args:
      loss: A Keras loss, its name, or (labels, outputs) -> a value for each example.
      metrics: As in `task.Model.from_keras`.
      headline: As the attribute; None for accuracy, of classes, else the loss.
      class_names: Names of the classes; empty for no breakdown by class.
      labels: INDEX for a loss of one's own of labels that are indices of classes, with
        logits as outputs; None where the loss says by itself.
    """
    self._loss, self._labels, self._from_logits = _loss(loss)
    if labels is not None:
      self._labels, self._from_logits = labels, True
    self._metrics = dict(map(_metric, metrics))
    names = {'loss', *self._metrics, *(['accuracy'] if self._labels else [])}
    self.headline = headline or ('accuracy' if self._labels else 'loss')
    if self.headline not in names:
      raise ValueError(f'headline must be one of {", ".join(sorted(names))}, found '
                       f'{headline!r}')
    if class_names and self._labels is None:
      raise ValueError('class_names are not used with a loss that is of no classes')
    self._class_names = tuple(class_names)
    # Accuracy is there anyway.
    self._metrics.pop('accuracy', None)

  def attributes(self, outputs: Callable[..., Outputs], shape: tf.TensorShape,
                 **rest: Any) -> dict[str, Any]:
    """The attributes of the `task.Model` of a network.

    Args:
      outputs: (weights, batch, seed) -> outputs.
      shape: Shape of their values.
      **rest: Further attributes.

    Raises:
      ValueError: If there are names of other classes than outputs have.
    """
    if self._class_names:
      several = shape.rank != 1 and shape[-1] != 1
      if self._labels == _BINARY and several:
        raise ValueError('class_names are not used with several outputs of a binary '
                         'cross-entropy: an example may have all of them')
      count = 2 if self._labels == _BINARY else shape[-1]
      if count != len(self._class_names):
        raise ValueError(f'class_names must be {count}, as many as the outputs have '
                         f'classes, found {len(self._class_names)}')

    def loss(weights, batch, seed):
      result = outputs(weights, batch, seed)
      losses = self._of_examples(self._loss(batch['y'], result.values), result.mask)
      return losses if result.penalty is None else losses + result.penalty

    def metrics(weights, batch, mask):
      result, y = outputs(weights, batch, None), tf.convert_to_tensor(batch['y'])
      totals = {}
      if self._labels:
        right = tf.cast(tf.equal(self._classes(result.values), self._class_of(y)),
                        tf.float32)
        totals['accuracy'] = _mean(right, result.mask, mask)
      totals['loss'] = _mean(self._loss(y, result.values), result.mask, mask)
      for name, metric in self._metrics.items():
        values = metric(y, result.values)
        totals[name] = (
            tuple(_mean(part, result.mask, mask)[0] for part in values)
            if isinstance(values, tuple) else _mean(values, result.mask, mask))
      return totals

    def predict(weights, batch):
      values = outputs(weights, batch, None).values
      if self._labels is None:
        return {'value': values}
      return {'class': self._classes(values),
              'probabilities': self._probabilities(values)}

    def count(weights, batch, mask):
      result = outputs(weights, batch, None)
      classes, truth = self._classes(result.values), self._class_of(batch['y'])
      size = len(self._class_names)
      pairs = tf.math.unsorted_segment_sum(
          tf.reshape(_weights(classes, result.mask, mask), [-1]),
          tf.reshape(truth * size + classes, [-1]), size * size)
      return {'confusion': tf.reshape(pairs, [size, size])}

    breakdown = types.Breakdown(kind='class', names=self._class_names, count=count)
    return dict(loss=loss, metrics=metrics, predict=predict, headline=self.headline,
                breakdown=breakdown if self._class_names else None, **rest)

  def _of_examples(self, values: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
    """One value for each example: the mean over its positions that count."""
    if mask is None:
      return tf.reduce_mean(tf.reshape(values, [tf.shape(values)[0], -1]), axis=1)
    weights = _weights(values, mask, tf.ones([tf.shape(values)[0]]))
    axes = tf.range(1, tf.rank(values))
    return (tf.reduce_sum(values * weights, axes)
            / tf.maximum(tf.reduce_sum(weights, axes), 1.0))

  def _probabilities(self, values: tf.Tensor) -> tf.Tensor:
    if self._labels == _BINARY:
      values = _without_unit(values)
      return tf.sigmoid(values) if self._from_logits else values
    return tf.nn.softmax(values) if self._from_logits else values

  def _classes(self, values: tf.Tensor) -> tf.Tensor:
    if self._labels == _BINARY:
      return tf.cast(_without_unit(values) >= (0.0 if self._from_logits else 0.5),
                     tf.int32)
    return tf.argmax(values, axis=-1, output_type=tf.int32)

  def _class_of(self, labels: tf.Tensor) -> tf.Tensor:
    if self._labels == _ONE_HOT:
      return tf.argmax(labels, axis=-1, output_type=tf.int32)
    return tf.cast(_without_unit(labels) if self._labels == _BINARY else labels,
                   tf.int32)


def _without_unit(values: tf.Tensor) -> tf.Tensor:
  """Without a last dimension of 1."""
  return values[..., 0] if values.shape.rank > 1 and values.shape[-1] == 1 else values


def _weights(values: tf.Tensor, positions: tf.Tensor | None,
             mask: tf.Tensor) -> tf.Tensor:
  """The weight of each value: that of its example, and of its position.

  Args:
    values: [batch, ...].
    positions: See `Outputs.mask`.
    mask: float32 [batch].
  """
  weights = tf.ones_like(values, tf.float32)
  for factor in (mask, positions):
    if factor is not None:
      # A comparison of one's own may have no known rank in a graph.
      missing = tf.rank(values) - tf.rank(factor)
      weights *= tf.reshape(factor, tf.concat(
          [tf.shape(factor), tf.ones([missing], tf.int32)], axis=0))
  return weights


def _mean(values: tf.Tensor, positions: tf.Tensor | None,
          mask: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """The weighted sum of values, and the sum of their weights."""
  weights = _weights(values, positions, mask)
  # Not values * weights: a padding row's loss may be infinite, 0 * inf is NaN.
  return (tf.reduce_sum(tf.where(weights > 0, values * weights, 0.0)),
          tf.reduce_sum(weights))


def _per_example(function: Callable, labels: Any, values: tf.Tensor) -> Any:
  """A function's values, float32; of outputs with one unit also for labels without."""
  labels = tf.convert_to_tensor(labels)
  if values.shape.rank == labels.shape.rank + 1 and values.shape[-1] == 1:
    labels = labels[..., tf.newaxis]
  result = function(labels, values)
  if isinstance(result, tuple):
    return tuple(tf.cast(part, tf.float32) for part in result)
  return tf.cast(result, tf.float32)


def _loss(loss: Any) -> tuple[Callable, str | None, bool]:
  """The loss of each example, the kind of its labels, whether outputs are logits."""
  try:
    loss = tf.keras.losses.get(loss)
  except ValueError:
    raise ValueError('loss must be a Keras loss, its name, or a function of labels and '
                     f'outputs, found {loss!r}') from None
  if not callable(loss):
    raise ValueError(f'loss must be callable, found {loss!r}')
  if not isinstance(loss, tf.keras.losses.Loss):
    return (lambda y, x: _per_example(loss, y, x),
            _LABELS.get(getattr(loss, '__name__', '')), False)
  config = loss.get_config()
  kind = _LABELS.get(config.get('fn', config.get('name')))
  return (lambda y, x: _per_example(loss.call, y, x), kind,
          bool(config.get('from_logits', False)))


def _metric(metric: Any) -> tuple[str, Callable]:
  """The name of a metric, and its values by example."""
  function = metric
  if isinstance(metric, str) and metric != 'accuracy':
    try:
      function = tf.keras.metrics.get(metric)
    except ValueError:
      raise ValueError(f'metrics must be names of Keras, or functions, found '
                       f'{metric!r}') from None
  if isinstance(function, tf.keras.metrics.Metric):
    raise ValueError(
        f'metric {metric!r} keeps state between batches: use a function of labels and '
        'outputs with a value for each example, such as '
        'tf.keras.metrics.mean_absolute_error')
  if metric != 'accuracy' and not inspect.isroutine(function):
    raise ValueError(f'metrics must be names of Keras, or functions, found {metric!r}')
  name = metric if isinstance(metric, str) else function.__name__
  return name, lambda y, x: _per_example(function, y, x)
