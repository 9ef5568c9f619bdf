"""Models that a vote or a baseline trained, together with the public feature map.

The arrays of the map stand before those of the network: `model.npz` is all that a
prediction takes, without the public records.
"""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from tasks.models import classifiers, layers
from tasks.sources import further
from tasks.task import Serving
from tasks.voting import data as voting_data
from tasks.voting.task import VotingTask
from tff_pipelines.experiment import models
from tff_pipelines.voting import encoder, features as features_lib

OF_IMAGES = ('cnn', 'cnn_small')
_MAP, _OUTPUT = 'features/', ('output/kernel', 'output/bias')


def _network(name: str, record_shape: tuple[int, ...], weights,
             num_classes: int) -> classifiers.Network:
  return classifiers.build(
      name, record_shape if name in OF_IMAGES else weights[0].shape[:1], num_classes)


def trained(task: VotingTask, features: features_lib.PublicFeatures, name: str,
            weights) -> models.Trained:
  """The trained model of a network's name, or 'encoder', to be kept."""
  weights, of_map, names = [np.asarray(w) for w in weights], {}, _OUTPUT
  if name == 'encoder':
    of_map = encoder.named(weights, task.public)
  else:
    names = _network(name, task.record_shape, weights, task.num_classes).weight_names
    if name not in OF_IMAGES:
      of_map = _map_arrays(features)
  return models.Trained(
      name=name, inputs={'x': (task.public.dtype, task.record_shape)}, arrays={
          **{f'{_MAP}{key}': array for key, array in of_map.items()},
          **dict(zip(names, weights[-len(names):]))})


def _map_arrays(features: features_lib.PublicFeatures) -> dict[str, np.ndarray]:
  if features.encoder:
    return features.encoder.arrays
  arrays = dict(features.arrays)
  if 'scale' in arrays:
    # Finite, where a coordinate that never varies has an infinite scale.
    arrays['factor'] = (1 / arrays.pop('scale')).astype(np.float32)
  return arrays


def own_weights(kept: models.Trained) -> list[np.ndarray]:
  """Weights of the network alone, as they were trained."""
  names = encoder.WEIGHTS if kept.name == 'encoder' else ()
  return [*(kept.arrays[f'{_MAP}{name}'] for name in names), *(
      array for name, array in kept.arrays.items() if not name.startswith(_MAP))]


def _mapped(arrays: Mapping[str, tf.Tensor], x: tf.Tensor) -> tf.Tensor:
  """Records through the public map, float32 [batch, features]."""
  if encoder.WEIGHTS[0] in arrays:
    mapped = encoder.encoded(arrays, x)
  else:
    mapped = layers.flatten(tf.cast(x, tf.float32))
    mapped = mapped * (1.0 / 255.0) if x.dtype == tf.uint8 else mapped
    if 'mean' in arrays:
      mapped = (mapped - arrays['mean']) * arrays['factor']
    if 'components' not in arrays:
      return mapped
    mapped = tf.matmul(mapped, arrays['components'])
  return features_lib.LENGTH * tf.math.l2_normalize(mapped, axis=1)


def serving(kept: models.Trained, task_name: str) -> Serving:
  """Everything that the use of a kept model takes; records of office are in files."""
  names, classes = list(kept.arrays), len(kept.weights[-1])
  of_map = [name.removeprefix(_MAP) for name in names if name.startswith(_MAP)]
  dtype, shape = kept.inputs['x']
  network = None if kept.name == 'encoder' else _network(
      kept.name, shape, own_weights(kept), classes)

  def logits(weights, x, seed=None):
    arrays, own = dict(zip(of_map, weights)), weights[len(of_map):]
    if network is None:
      return layers.dense(tf.nn.relu(encoder.encoded(arrays, x)), *own)
    return network.logits(own, x if kept.name in OF_IMAGES else _mapped(arrays, x), seed)

  model = classifiers.model_of_logits(
      kept.name, lambda seed: kept.weights, logits, weight_names=names,
      breakdown=classifiers.numbered(classes))
  return Serving(model=model, inputs=kept.inputs, reader=further.reader(
      shape, dtype, classes, voting_data.roots if task_name == 'office' else None))
