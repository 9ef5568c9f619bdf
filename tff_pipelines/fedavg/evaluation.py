"""Metrics of released weights on held-out examples, computed in the driver."""

from collections.abc import Callable, Mapping

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
    self._batch_counts = model.breakdown and tf.function(
        model.breakdown.count, reduce_retracing=True)

  @property
  def sets(self) -> list[str]:
    return list(self._held_out)

  def evaluate(self, weights) -> dict[str, dict[str, float]]:
    """Name of the set -> metric -> value, a mean over its examples."""
    results = {}
    for name, totals in self._totals(self._batch_metrics, weights).items():
      results[name] = {
          metric: float(total / weight) if weight > 0 else float('nan')
          for metric, (total, weight) in totals.items()}
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
    results = self._totals(self._batch_counts, weights)
    for counts in results.values():
      if 'confusion' in counts:
        confusion = counts['confusion']
        counts.update(occurred=confusion.sum(axis=1), right=np.diag(confusion),
                      predicted=confusion.sum(axis=0))
    return {name: counts for name, counts in results.items() if counts}

  def _totals(self, function: Callable, weights) -> dict[str, dict[str, np.ndarray]]:
    """Name of the set -> float64 sums of what `function` returns of its batches."""
    weights = [tf.constant(w) for w in weights]
    results = {name: {} for name in self._held_out}
    for name, totals in results.items():
      for batch, mask in self._batches(name):
        for key, value in function(weights, batch, mask).items():
          totals[key] = totals.get(key, 0.0) + np.array(value, np.float64)
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
