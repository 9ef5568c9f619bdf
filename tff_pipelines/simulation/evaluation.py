"""Metrics of released weights on held-out examples, computed in the driver."""

from typing import Mapping

import numpy as np
import tensorflow as tf

from tasks.task import Examples, Model

_BATCH = 512


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
    self._batch_metrics = tf.function(model.metrics, reduce_retracing=True)

  @property
  def sets(self) -> list[str]:
    return list(self._held_out)

  def evaluate(self, weights) -> dict[str, dict[str, float]]:
    """Name of the set -> metric -> value, a mean over its examples."""
    weights = [tf.constant(w) for w in weights]
    results = {}
    for name, examples in self._held_out.items():
      totals = {}
      count = len(next(iter(examples.values())))
      for start in range(0, count, _BATCH):
        batch = {
            key: _padded(value[start:start + _BATCH])
            for key, value in examples.items()
        }
        mask = np.arange(_BATCH) < min(_BATCH, count - start)
        found = self._batch_metrics(weights, batch, tf.constant(mask, tf.float32))
        for metric, (total, weight) in found.items():
          old_total, old_weight = totals.get(metric, (0.0, 0.0))
          totals[metric] = (old_total + float(total), old_weight + float(weight))
      results[name] = {
          metric: total / weight if weight > 0 else float('nan')
          for metric, (total, weight) in totals.items()
      }
    return results


def _padded(rows: np.ndarray) -> tf.Tensor:
  """Fills a batch up with zeros, so that all batches have one shape."""
  missing = _BATCH - len(rows)
  if missing:
    rows = np.concatenate([rows, np.zeros((missing, *rows.shape[1:]), rows.dtype)])
  return tf.constant(rows)
