"""Linear classifiers that distillation trained, together with the public feature map.

The arrays of the map stand before those of the classifier: `model.npz` is all that a
prediction takes, without the public images.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tasks.ldp import features
from tasks.models import classifiers, layers
from tasks.sources import further
from tasks.task import Serving
from tff_pipelines.experiment import models

_MAP = 'features/'
# Logits of a student of answers are its scores times this.
_SCALE = 'output/scale'
# Features of a baseline that was trained by gradients are centred and scaled.
_CENTRE, _SPREAD = f'{_MAP}centre', f'{_MAP}spread'


def of_student(prepared: Any, student: Any) -> models.Trained:
  """The student of answers, a student.Student, to be kept."""
  return _trained(prepared, 'ridge', {
      'output/kernel': student.weights,
      _SCALE: np.float32(student.sharpness / student.spread)})


def of_network(prepared: Any, weights: Sequence[np.ndarray]) -> models.Trained:
  """The network of a baseline on centred and scaled features, to be kept."""
  centre, scale = prepared.normalisation
  return _trained(prepared, prepared.network.name, {
      _CENTRE: centre, _SPREAD: 1 / scale,
      **dict(zip(prepared.network.weight_names, weights))})


def _trained(prepared: Any, name: str, arrays: dict[str, np.ndarray]) -> models.Trained:
  of_map, public = prepared.feature_map.arrays, prepared.task.public
  return models.Trained(
      name=name, inputs={'x': (public.dtype, public.shape[1:])}, arrays={
          key: np.asarray(array, np.float32) for key, array in {
              **{f'{_MAP}{key}': array for key, array in of_map.items()},
              **arrays}.items()})


def own_weights(kept: models.Trained) -> list[np.ndarray]:
  """Weights of the classifier alone, as they were trained."""
  return [array for name, array in kept.arrays.items()
          if not name.startswith(_MAP) and name != _SCALE]


def serving(kept: models.Trained) -> Serving:
  """Everything that the use of a kept model takes."""
  names, classes = list(kept.arrays), kept.arrays['output/kernel'].shape[1]
  dtype, shape = kept.inputs['x']

  def logits(weights, x, seed=None):
    del seed
    arrays = dict(zip(names, weights))
    seen = features.mapped({key.removeprefix(_MAP): array for key, array in arrays.items()
                            if key.startswith(_MAP)}, x)
    if _SCALE in arrays:
      return arrays[_SCALE] * tf.matmul(seen, arrays['output/kernel'])
    return layers.dense((seen - arrays[_CENTRE]) / arrays[_SPREAD],
                        arrays['output/kernel'], arrays['output/bias'])

  return Serving(
      inputs=kept.inputs, reader=further.reader(shape, dtype, classes),
      model=classifiers.model_of_logits(
          kept.name, lambda seed: kept.weights, logits, weight_names=names,
          breakdown=classifiers.numbered(classes)))
