"""Metrics of released weights on held-out examples, computed in the driver."""

from typing import Mapping

import numpy as np
import tensorflow as tf

from tasks.task import Examples, Model


class Evaluator:
  """Evaluates weights on named sets of held-out examples."""

  def __init__(self, model: Model, held_out: Mapping[str, Examples]):
    """Initializes the evaluator.

    Args:
      model: Its `metrics` are computed.
      held_out: Name of a set -> its examples, arrays.
    """
    self._held_out = {
        name: {key: np.asarray(value) for key, value in examples.items()}
        for name, examples in held_out.items()
    }
    self._batch = model.evaluation_batch
    self._batch_metrics = tf.function(model.metrics, reduce_retracing=True)
    self._batch_counts = None
    if model.breakdown is not None:
      self._batch_counts = tf.function(
          model.breakdown.count, reduce_retracing=True)

  @property
  def sets(self) -> list[str]:
    return list(self._held_out)

  def evaluate(self, weights) -> dict[str, dict[str, float]]:
    """Name of the set -> metric -> value, a mean over its examples."""
    weights = [tf.constant(w) for w in weights]
    results = {}
    for name in self._held_out:
      totals = {}
      for batch, mask in self._batches(name):
        for metric, (total, weight) in self._batch_metrics(
            weights, batch, mask).items():
          old_total, old_weight = totals.get(metric, (0.0, 0.0))
          totals[metric] = (old_total + float(total), old_weight + float(weight))
      results[name] = {
          metric: total / weight if weight > 0 else float('nan')
          for metric, (total, weight) in totals.items()
      }
    return results

  def breakdown(self, weights) -> dict[str, dict[str, np.ndarray]]:
    """How predictions divide over classes; empty if the model does not say.

    Returns:
      Name of the set -> float64 counts: 'occurred', 'right' and 'predicted'
      [classes], and 'confusion' [classes, classes] if the model counts pairs.
      Sets without examples are left out.
    """
    if self._batch_counts is None:
      return {}
    weights = [tf.constant(w) for w in weights]
    results = {}
    for name in self._held_out:
      totals: dict[str, np.ndarray] = {}
      for batch, mask in self._batches(name):
        for key, value in self._batch_counts(weights, batch, mask).items():
          totals[key] = totals.get(key, 0.0) + value.numpy().astype(np.float64)
      if 'confusion' in totals:
        confusion = totals['confusion']
        totals.update(occurred=confusion.sum(axis=1), right=np.diag(confusion),
                      predicted=confusion.sum(axis=0))
      if totals:
        results[name] = totals
    return results

  def _batches(self, name: str):
    """Batches of one shape, and the mask of their rows that count."""
    examples = self._held_out[name]
    count = len(next(iter(examples.values())))
    for start in range(0, count, self._batch):
      batch = {
          key: _padded(value[start:start + self._batch], self._batch)
          for key, value in examples.items()
      }
      mask = np.arange(self._batch) < min(self._batch, count - start)
      yield batch, tf.constant(mask, tf.float32)


def _padded(rows: np.ndarray, size: int) -> tf.Tensor:
  """Fills a batch up with zeros, so that all batches have one shape."""
  missing = size - len(rows)
  if missing:
    rows = np.concatenate([rows, np.zeros((missing, *rows.shape[1:]), rows.dtype)])
  return tf.constant(rows)
