"""Metrics of a model on held-out examples."""

from collections.abc import Callable, Iterator, Mapping
import math

import numpy as np
import tensorflow as tf

from tasks.task import Examples, Model


def batches(examples: Examples, most: int, size: Callable[[int], int] | None = None
            ) -> Iterator[tuple[dict[str, tf.Tensor], tf.Tensor]]:
  """Batches of at most `most` examples, and float32 masks of their rows.

  They are filled up with zeros: to `most` rows, or to those that `size` gives.
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


def sums(function: Callable, weights, examples: Examples, most: int,
         size: Callable[[int], int] | None = None) -> dict[str, np.ndarray]:
  """Name -> float64 sum of what a function of (weights, batch, mask) returns.

  Arguments are those of `batches`.
  """
  totals: dict[str, np.ndarray] = {}
  for batch, mask in batches(examples, most, size):
    for key, value in function(weights, batch, mask).items():
      totals[key] = totals.get(key, 0.0) + np.array(value, np.float64)
  return totals


def quotient(total: float, weight: float) -> float:
  """The mean of a sum and its weight; NaN where nothing counts."""
  return float(total / weight) if weight > 0 else math.nan


def of_confusion(confusion: np.ndarray) -> dict[str, np.ndarray]:
  """All counts of a breakdown, from those of pairs of label and prediction."""
  return {'confusion': confusion, 'occurred': confusion.sum(axis=1),
          'right': np.diag(confusion), 'predicted': confusion.sum(axis=0)}


def in_graph(function: Callable) -> Callable:
  """A function of batches that is traced for few of their shapes."""
  return tf.function(function, autograph=False, reduce_retracing=True)


class Evaluator:
  """Evaluates weights on named sets of held-out examples."""

  def __init__(self, model: Model, held_out: Mapping[str, Examples]):
    """Initializes the evaluator of a model's `metrics` on examples, arrays, by set."""
    self._held_out = {
        name: {key: np.asarray(value) for key, value in examples.items()}
        for name, examples in held_out.items()}
    self._batch = model.evaluation_batch
    self._batch_metrics = in_graph(model.metrics)
    self._batch_counts = model.breakdown and in_graph(model.breakdown.count)

  def evaluate(self, weights) -> dict[str, dict[str, float]]:
    """Name of the set -> metric -> value, a mean over its examples."""
    return {
        name: {metric: quotient(*total) for metric, total in totals.items()}
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
        counts.update(of_confusion(counts['confusion']))
    return {name: counts for name, counts in results.items() if counts}

  def _totals(self, function: Callable, weights) -> dict[str, dict[str, np.ndarray]]:
    """Name of the set -> `sums` of its examples."""
    weights = [tf.constant(w) for w in weights]
    return {name: sums(function, weights, examples, self._batch)
            for name, examples in self._held_out.items()}
