"""Models that a vote or a baseline trained, together with the public feature map.

The arrays of the map stand before those of the network, so that `model.npz` is all that
a prediction takes: the map was fitted to public records, which are not needed again.
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

_OF_IMAGES = ('cnn', 'cnn_small')
_MAP, _OUTPUT = 'features', ('output/kernel', 'output/bias')
# Names of the arrays of an encoder: weights and statistics of each of its layers.
_ENCODER = [
    [f'{_MAP}/{layer}/{name}' for name in (
        'kernel', 'scale', 'offset', 'mean', 'variance')]
    for layer in ('convolution_0', 'convolution_1', 'convolution_2', 'dense_0')]
_ENCODER_WEIGHTS = [name for names in _ENCODER for name in names[:3]]


def _encoder_arrays(weights, public: np.ndarray) -> dict[str, np.ndarray]:
  """Weights of an encoder, and statistics of the public images to normalise by."""
  _, statistics = encoder.apply(weights, classifiers.to_float(tf.constant(public)))
  return {name: np.asarray(array) for i, names in enumerate(_ENCODER)
          for name, array in zip(names, (*weights[3 * i:3 * i + 3], *statistics[i]))}


def _encoded(arrays: Mapping[str, tf.Tensor], x: tf.Tensor) -> tf.Tensor:
  """Features of images, float32 [batch, encoder.FEATURES]."""
  return encoder.apply(
      [arrays[name] for name in _ENCODER_WEIGHTS], classifiers.to_float(x),
      [[arrays[name] for name in names[3:]] for names in _ENCODER])[0]


def _network(name: str, record_shape: tuple[int, ...], weights,
             num_classes: int) -> classifiers.Network:
  """The network of these weights, of images or of vectors through the map."""
  return classifiers.build(
      name, record_shape if name in _OF_IMAGES else weights[0].shape[:1], num_classes)


def trained(task: VotingTask, features: features_lib.PublicFeatures, name: str,
            weights) -> models.Trained:
  """The trained model of a network's name, or 'encoder', to be kept."""
  weights, arrays = [np.asarray(w) for w in weights], {}
  if name == 'encoder':
    arrays = _encoder_arrays(weights, task.public)
    names = _OUTPUT
  else:
    names = _network(
        name, task.record_shape, weights, task.num_classes).as_model().weight_names
    if name not in _OF_IMAGES:
      arrays = _map_arrays(features, task.public)
  return models.Trained(
      name=name, inputs={'x': (task.public.dtype, task.record_shape)},
      arrays={**arrays, **dict(zip(names, weights[-len(names):]))})


def _map_arrays(features: features_lib.PublicFeatures,
                public: np.ndarray) -> dict[str, np.ndarray]:
  if features.kind == 'contrastive':
    return _encoder_arrays(features.encoder_weights, public)
  arrays = dict(features.arrays)
  if 'scale' in arrays:
    # Finite, where a coordinate that never varies has an infinite scale.
    arrays['factor'] = (1 / arrays.pop('scale')).astype(np.float32)
  return {f'{_MAP}/{name}': array for name, array in arrays.items()}


def own_weights(kept: models.Trained) -> list[np.ndarray]:
  """Weights of the network alone, as they were trained."""
  if kept.name == 'encoder':
    return [kept.arrays[name] for name in (*_ENCODER_WEIGHTS, *_OUTPUT)]
  return [array for name, array in kept.arrays.items() if not name.startswith(_MAP)]


def _mapped(arrays: Mapping[str, tf.Tensor], x: tf.Tensor) -> tf.Tensor:
  """Records through the public map, float32 [batch, features]."""
  if _ENCODER_WEIGHTS[0] in arrays:
    return features_lib.LENGTH * tf.math.l2_normalize(_encoded(arrays, x), axis=1)
  flat = layers.flatten(tf.cast(x, tf.float32))
  flat = flat * (1.0 / 255.0) if x.dtype == tf.uint8 else flat
  if f'{_MAP}/mean' not in arrays:
    return flat
  x = (flat - arrays[f'{_MAP}/mean']) * arrays[f'{_MAP}/factor']
  if f'{_MAP}/components' not in arrays:
    return x
  return features_lib.LENGTH * tf.math.l2_normalize(
      tf.matmul(x, arrays[f'{_MAP}/components']), axis=1)


def serving(kept: models.Trained, task_name: str) -> Serving:
  """Everything that the use of a kept model takes; records of office are in files."""
  names, classes = list(kept.arrays), len(kept.weights[-1])
  dtype, shape = kept.inputs['x']
  network = None
  if kept.name != 'encoder':
    network = _network(kept.name, shape, own_weights(kept), classes)

  def logits(weights, x, seed=None):
    arrays = dict(zip(names, weights))
    if network is None:
      return layers.dense(
          tf.nn.relu(_encoded(arrays, x)), *(arrays[name] for name in _OUTPUT))
    own = [array for name, array in arrays.items() if not name.startswith(_MAP)]
    seen = x if kept.name in _OF_IMAGES else _mapped(arrays, x)
    return network.logits(own, seen, seed)

  model = classifiers.model_of_logits(
      kept.name, lambda seed: kept.weights, logits, weight_names=names,
      breakdown=classifiers.numbered(classes))
  return Serving(model=model, inputs=kept.inputs, reader=further.reader(
      shape, dtype, classes, voting_data.roots if task_name == 'office' else None))
