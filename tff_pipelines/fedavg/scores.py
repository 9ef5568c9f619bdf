"""Exact scores of a model's predictions on held-out examples, and the best constant's.

They are computed once, at the end of a run, from one label and one output of each
example. No epsilon covers them, as it covers no exact metrics.
"""

from collections.abc import Mapping
import math

import numpy as np
import tensorflow as tf

from tasks.task import Examples, Model, VALIDATION

# Bins of equal width of the probability of the predicted class.
CALIBRATION_BINS = 15
# Prefix of the score of the best constant prediction.
CONSTANT = 'constant_'
# Scores that the first line of a report leaves out.
FURTHER = ('balanced_accuracy', 'auc', 'f1', 'calibration_error', 'sensitivity',
           'specificity', 'threshold')
_ERRORS = ('mae', 'rmse')  # The smaller, the better.


def with_scores(results: Mapping[str, Mapping[str, float]], model: Model, weights,
                held_out: Mapping[str, Examples]) -> dict[str, dict[str, float]]:
  """The metrics of held-out sets, by set, with the scores of the model added.

  The threshold of two classes is the best on the public validation set, else 0.5.
  """
  of_public = scores_of(model, weights, held_out.get(VALIDATION, {}), threshold=None)
  threshold = of_public.get('threshold', 0.5)
  return {name: {**values, **scores_of(
      model, weights, held_out[name], threshold=threshold)}
          for name, values in results.items()}


def scores_of(model: Model, weights, examples: Examples, *,
              threshold: float | None = 0.5) -> dict[str, float]:
  """The scores of a model, in addition to its metrics.

  Args:
    model, weights: The model.
    examples: Held-out examples.
    threshold: Of two classes the second is predicted from this probability on, for
      `sensitivity` and `specificity`; None for that with the highest sum of both.

  Returns:
    For labels that are classes `balanced_accuracy`; `f1`, of the rarer of two classes,
    else the mean over classes; `auc`, of the second of two classes, else the mean over
    classes of each against the rest; `calibration_error`, the mean distance of accuracy
    and probability of the predicted class in bins of equal width, weighted by their
    examples; `sensitivity` and `specificity` of the second of two classes at
    `threshold`; and `constant_accuracy`, the most frequent class's. All but the latter
    and the error need examples of every class. For other numbers `mae`, `rmse`, `r2`,
    `constant_mae` of the median of the labels and `constant_rmse` of their mean, in the
    units of the label. NaN where outputs are NaN or infinite. Empty if labels or outputs
    are others, or there are none.
  """
  y = np.asarray(examples.get('y', ()))
  if model.predict is None or y.ndim != 1 or not len(y):
    return {}
  predict = tf.function(model.predict, autograph=False, reduce_retracing=True)
  weights, size = [tf.constant(w) for w in weights], model.evaluation_batch
  parts = [predict(weights, {
      name: tf.constant(array[start:start + size])
      for name, array in examples.items() if name != 'y'})
           for start in range(0, len(y), size)]
  outputs = {name: np.concatenate([part[name].numpy() for part in parts])
             for name in parts[0]}
  if 'probabilities' in outputs:
    chances = outputs['probabilities'].astype(np.float64)
    if chances.ndim == 1:
      chances = np.stack([1 - chances, chances], axis=1)
    return _of_classes(y.astype(int), outputs['class'], chances, threshold) if (
        chances.ndim == 2 and outputs['class'].shape == y.shape) else {}
  return _of_numbers(model.in_units(y), outputs['value'].reshape(-1)) if (
      y.dtype.kind == 'f' and outputs['value'].size == len(y)) else {}


def _of_classes(y: np.ndarray, predicted: np.ndarray,
                chances: np.ndarray, threshold: float | None) -> dict[str, float]:
  """Scores of labels int [n], predicted classes [n] and probabilities [n, classes]."""
  # Takes a second to import.
  from sklearn import metrics  # pylint: disable=g-import-not-at-top
  classes = chances.shape[1]
  occurred = np.bincount(y, minlength=classes)
  constant = {f'{CONSTANT}accuracy': float(occurred.max() / len(y))}
  if not np.all(np.isfinite(chances)):
    return {'calibration_error': math.nan, **constant}
  highest = chances.max(axis=1)
  bins = np.minimum((highest * CALIBRATION_BINS).astype(int), CALIBRATION_BINS - 1)
  gaps = np.bincount(bins, (predicted == y) - highest)
  scores = {'calibration_error': float(np.abs(gaps).sum() / len(y)), **constant}
  if np.all(occurred):
    # The order of the report's classes, the second where both are as frequent.
    rarer = int(np.argsort(-occurred, kind='stable')[-1])
    binary = {'average': 'binary', 'pos_label': rarer}
    scores |= {
        'balanced_accuracy': float(metrics.balanced_accuracy_score(y, predicted)),
        f'{CONSTANT}balanced_accuracy': 1 / classes,
        'auc': float(metrics.roc_auc_score(
            y, chances[:, 1] if classes == 2 else chances, multi_class='ovr')),
        'f1': float(metrics.f1_score(y, predicted, zero_division=0, **(
            binary if classes == 2 else {'average': 'macro'})))}
    if classes == 2:
      missed, found, at = metrics.roc_curve(y, chances[:, 1], drop_intermediate=False)
      best = 1 + np.argmax((found - missed)[1:]) if threshold is None else np.flatnonzero(
          at >= threshold)[-1]
      scores |= {'sensitivity': float(found[best]), 'specificity': float(1 - missed[best]),
                 'threshold': float(at[best]) if threshold is None else threshold}
  return scores


def _of_numbers(y: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
  """Scores of labels and predictions, [n], in the units of the label."""
  from sklearn import metrics  # pylint: disable=g-import-not-at-top
  y, predicted = y.astype(np.float64), predicted.astype(np.float64)
  finite = bool(np.all(np.isfinite(predicted)))
  functions = {'mae': metrics.mean_absolute_error,
               'rmse': metrics.root_mean_squared_error, 'r2': metrics.r2_score}
  return {**{name: float(function(y, predicted)) if finite else math.nan
             for name, function in functions.items() if len(y) > 1 or name != 'r2'},
          f'{CONSTANT}mae': float(np.mean(np.abs(y - np.median(y)))),
          f'{CONSTANT}rmse': float(np.std(y))}


def beats_constant(values: Mapping[str, float | None]) -> dict[str, bool]:
  """Metric -> whether it is better than the best constant's, where that is known."""
  result = {}
  for name, value in values.items():
    constant = values.get(CONSTANT + name)
    if constant is not None:
      result[name] = value is not None and (
          value < constant if name in _ERRORS else value > constant)
  return result
