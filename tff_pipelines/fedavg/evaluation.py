"""Metrics of a model on held-out examples."""

from collections.abc import Callable, Iterator, Mapping
import math

import numpy as np
import tensorflow as tf

from tasks.task import Examples, Model


def batches(examples: Examples, most: int, size: Callable[[int], int] | None = None
            ) -> Iterator[tuple[dict[str, tf.Tensor], tf.Tensor]]:
  """Batches of examples, filled up with zeros, and float32 masks of their rows.

  Args:
    examples: Name of a feature -> array.
    most: Maximum number of rows.
    size: From the rows of a batch to those that it is filled up to; None for `most`.
  """
  count = len(next(iter(examples.values())))
  for start in range(0, count, most):
    rows = min(most, count - start)
    filled = min(most, size(rows)) if size else most
    yield {name: tf.constant(np.concatenate([
        array[start:start + rows],
        np.zeros((filled - rows, *array.shape[1:]), array.dtype)]))
           for name, array in examples.items()}, tf.constant(
               np.arange(filled) < rows, tf.float32)


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
        for name, examples in held_out.items()}
    self._batch = model.evaluation_batch
    self._batch_metrics = tf.function(
        model.metrics, autograph=False, reduce_retracing=True)
    self._batch_counts = model.breakdown and tf.function(
        model.breakdown.count, autograph=False, reduce_retracing=True)

  def evaluate(self, weights) -> dict[str, dict[str, float]]:
    """Name of the set -> metric -> value, a mean over its examples."""
    return {
        name: {metric: float(total / weight) if weight > 0 else math.nan
               for metric, (total, weight) in totals.items()}
        for name, totals in self._totals(self._batch_metrics, weights).items()}

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
      for batch, mask in batches(self._held_out[name], self._batch):
        for key, value in function(weights, batch, mask).items():
          totals[key] = totals.get(key, 0.0) + np.array(value, np.float64)
    return results
