"""Models from TFF's FunctionalModel, as pure functions of a list of weights."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tasks.models import outputs as outputs_lib, template


def attributes(functional: tff.learning.models.FunctionalModel,
               metrics: Sequence[Any] = (), *, classes: bool = False,
               name: str = 'functional', **rest: Any) -> dict[str, Any]:
  """The attributes of a model; see `task.Model.from_functional`."""
  if not isinstance(functional, tff.learning.models.FunctionalModel):
    raise ValueError(
        'functional must be a tff.learning.models.FunctionalModel, found '
        f'{type(functional).__name__}: tff.learning.models.functional_model_from_keras '
        'makes one of a Keras model, and Model.from_keras takes that itself')
  trainable, frozen = ([np.asarray(weight) for weight in tf.nest.flatten(part)]
                       for part in functional.initial_weights)
  if not trainable or any(weight.dtype != np.float32 for weight in trainable):
    raise ValueError('the functional model must have trainable weights, of float32, '
                     f'found {[str(weight.dtype) for weight in trainable]}')
  spec = functional.input_spec
  spec = spec['x'] if isinstance(spec, Mapping) else spec[0]
  specs = spec if isinstance(spec, Mapping) else {'x': spec}

  def traced(training: bool) -> template.Template:
    """The model's predictions in a graph of their own."""
    with template.graph():
      weights = [tf.compat.v1.placeholder(x.dtype, x.shape) for x in trainable]
      inputs = {name: tf.compat.v1.placeholder(x.dtype, x.shape)
                for name, x in specs.items()}
      outputs = functional.predict_on_batch(
          tuple(map(tf.nest.pack_sequence_as, functional.initial_weights,
                    (weights, list(map(tf.constant, frozen))))),
          inputs if isinstance(spec, Mapping) else inputs['x'], training)
      return template.Template(template.arguments(weights, inputs, list(specs)),
                               {'outputs': tf.nest.flatten(outputs)[0]},
                               watched=[f'weight {i}' for i in range(len(trainable))])

  networks = {training: traced(training) for training in (True, False)}

  def loss(labels, values):
    # Batches of one example, all at once.
    return tf.vectorized_map(
        lambda pair: tf.reshape(functional.loss(
            output=pair[1][tf.newaxis], label=pair[0][tf.newaxis]), []),
        (tf.convert_to_tensor(labels), values))

  def outputs(weights, batch, seed):
    return outputs_lib.Outputs(networks[seed is not None](
        template.arguments(weights, batch, list(specs)))['outputs'])

  return outputs_lib.attributes(
      outputs, networks[False].shapes['outputs'], loss, metrics,
      labels=outputs_lib.INDEX if classes else None, name=name,
      initial_weights=lambda seed: [weight.copy() for weight in trainable], **rest)
