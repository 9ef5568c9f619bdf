"""Models from TFF's FunctionalModel, as pure functions of a list of weights."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tasks.models import outputs as outputs_lib, template


def attributes(functional: tff.learning.models.FunctionalModel,
               metrics: Sequence[Any] = (), *, classes: bool = False,
               name: str = 'functional', headline: str | None = None,
               class_names: Sequence[str] = ()) -> dict[str, Any]:
  """The attributes of a model; see `task.Model.from_functional`."""
  trainable, frozen = ([np.asarray(weight) for weight in tf.nest.flatten(part)]
                       for part in functional.initial_weights)
  if not trainable or any(weight.dtype != np.float32 for weight in trainable):
    raise ValueError('the functional model must have trainable weights, of float32, '
                     f'found {[str(weight.dtype) for weight in trainable]}')
  networks = {training: _traced(functional, trainable, frozen, training)
              for training in (True, False)}

  def loss(labels, values):
    # Batches of one example, all at once.
    return tf.vectorized_map(
        lambda pair: tf.reshape(functional.loss(
            output=pair[1][tf.newaxis], label=pair[0][tf.newaxis]), []),
        (tf.convert_to_tensor(labels), values))

  def outputs(weights, batch, seed=None):
    features = {key: x for key, x in batch.items() if key != 'y'}
    if not isinstance(_features(functional), Mapping):
      if len(features) != 1:
        raise ValueError('the functional model has one input, but examples have the '
                         f'features {", ".join(sorted(features)) or "none"}')
      features = {'x': next(iter(features.values()))}
    return outputs_lib.Outputs(networks[seed is not None]({
        **{f'weight {i}': weight for i, weight in enumerate(weights)},
        **{f'input {key}': x for key, x in features.items()}})['outputs'])

  reading = outputs_lib.Reading(
      loss, metrics, headline, class_names,
      labels=outputs_lib.INDEX if classes else None)
  return reading.attributes(
      outputs, networks[False].shapes['outputs'], name=name,
      initial_weights=lambda seed: [weight.copy() for weight in trainable])


def _features(functional: tff.learning.models.FunctionalModel) -> Any:
  """The spec of the inputs, a tensor's or a mapping of them."""
  spec = functional.input_spec
  return spec['x'] if isinstance(spec, Mapping) else spec[0]


def _traced(functional: tff.learning.models.FunctionalModel,
            trainable: Sequence[np.ndarray], frozen: Sequence[np.ndarray],
            training: bool) -> template.Template:
  """The model's predictions in a graph of their own."""

  def placeholders(weights):
    return [tf.compat.v1.placeholder(weight.dtype, weight.shape) for weight in weights]

  with template.graph():
    weights, constants = placeholders(trainable), placeholders(frozen)
    structures = [
        tf.nest.pack_sequence_as(structure, given) for structure, given in zip(
            functional.initial_weights, (weights, constants))]
    specs = _features(functional)
    named = specs if isinstance(specs, Mapping) else {'x': specs}
    inputs = {name: tf.compat.v1.placeholder(spec.dtype, spec.shape)
              for name, spec in named.items()}
    outputs = functional.predict_on_batch(
        tuple(structures), inputs if isinstance(specs, Mapping) else inputs['x'],
        training)
    outputs = tf.nest.flatten(outputs)[0]
    named_weights = {f'weight {i}': weight for i, weight in enumerate(weights)}
    try:
      return template.Template(
          {**named_weights, **{f'input {name}': x for name, x in inputs.items()}},
          {'outputs': outputs}, watched=tuple(named_weights),
          constants=list(zip(constants, frozen)))
    except template.StateError as error:
      raise ValueError(
          f'the functional model keeps state or draws random numbers (operation '
          f'{error.kind}), which clients can\'t repeat: use Model.from_keras, whose '
          'dropout draws from the client\'s key') from None
