"""Models from Keras, as pure functions of a list of weights.

The network is built twice: as Keras builds it, for the initial weights and the checks;
and in a graph whose variables are arguments (`template.py`), which is what clients
train. There, layers draw random numbers, such as the masks of dropout, from the key of
the client's step instead of Keras' own generators.
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import functools
import itertools
from typing import Any

from keras.src.engine import base_layer_utils
import numpy as np
import tensorflow as tf

from tasks.models import layers, outputs as outputs_lib, template, types

def attributes(build_fn: Callable[[], tf.keras.Model], loss: Any,
               metrics: Sequence[Any] = (), *, name: str = 'keras',
               **rest: Any) -> dict[str, Any]:
  """The attributes of a model; see `task.Model.from_keras`."""
  network = _Network(build_fn)
  return outputs_lib.attributes(
      network, network.shape, loss, metrics, name=name, to_keras=network.to_keras,
      initial_weights=network.initial_weights, weight_names=network.names,
      activation=network.activation, **rest)


class _Random:
  """The random numbers of a layer, drawn from the key of a step.

  It has the methods by which Keras' layers draw. A layer that draws otherwise has a
  generator that is state, and is refused for it.
  """

  def __init__(self, next_key: Callable[[], tf.Tensor]):
    self.make_seed_for_stateless_op = next_key

  def dropout(self, inputs, rate, noise_shape=None):
    key = self.make_seed_for_stateless_op()
    if noise_shape is None and inputs.dtype == tf.float32:
      return layers.dropout(inputs, rate, key)
    return tf.nn.experimental.stateless_dropout(
        inputs, rate, key, rng_alg='philox', noise_shape=noise_shape)

  def random_uniform(self, shape, minval=0.0, maxval=None, dtype=tf.float32, **_):
    return self._drawn(tf.random.stateless_uniform, shape, minval,
                       1.0 if maxval is None else maxval, dtype)

  def random_normal(self, shape, mean=0.0, stddev=1.0, dtype=tf.float32, **_):
    return self._drawn(tf.random.stateless_normal, shape, mean, stddev, dtype)

  def truncated_normal(self, shape, mean=0.0, stddev=1.0, dtype=tf.float32, **_):
    return self._drawn(tf.random.stateless_truncated_normal, shape, mean, stddev, dtype)

  def _drawn(self, function, shape, *parameters):
    return function(shape, self.make_seed_for_stateless_op(), *parameters, alg='philox')


class _Network:
  """A Keras model as a function of its trainable weights, of these names.

  Others are constants. `shape` is that of the outputs, the batch included.
  """

  def __init__(self, build_fn: Callable[[], tf.keras.Model]):
    if isinstance(build_fn, tf.keras.Model) or not callable(build_fn):
      raise ValueError('build_fn must be a function that builds a new model at each '
                       f'call, found {type(build_fn).__name__}: give lambda: '
                       'tf.keras.Sequential([...])')
    self._build_fn = build_fn
    self._initial = functools.lru_cache(maxsize=2)(self._weights_of_seed)
    model = self._built()
    for layer in _layers(model):
      if getattr(layer, 'stateful', False) and isinstance(layer, tf.keras.layers.RNN):
        raise ValueError(f'layer {layer.name!r} must have stateful=False')
    self._input_names = list(model.input_names)
    self.activation = getattr(
        getattr(model.layers[-1], 'activation', None), '__name__', None)
    trainable, self._frozen = self._initial(0)
    if (kinds := {str(weight.dtype) for weight in trainable}) != {'float32'}:
      raise ValueError('build_fn must build trainable weights, all float32, found '
                       f'{", ".join(sorted(kinds)) or "none"}')
    self._inference, self.names = self._traced(training=False)
    self.shape = self._inference.shapes['values']
    self._training, _ = self._traced(training=True)
    for name, *pair in zip(self.names, trainable, self._weights_of_seed(0)[0]):
      if not np.array_equal(*pair):
        raise ValueError(f'build_fn must give {name} the same initial values by the '
                         'same seed: give its initializer a seed')

  def __call__(self, weights: types.Weights, batch: types.Examples,
               seed: Any) -> outputs_lib.Outputs:
    """The outputs; `seed` is a key of a step, None for inference."""
    arguments = template.arguments(weights, batch, self._input_names)
    for name in self._input_names:
      arguments[f'input {name}'] = _conformed(
          name, arguments[f'input {name}'], self._specs[name])
    if seed is not None:
      arguments['seed'] = seed
    results = (self._inference if seed is None else self._training)(arguments)
    return outputs_lib.Outputs(**results)

  def initial_weights(self, seed: int) -> list[np.ndarray]:
    return [weight.copy() for weight in self._initial(seed)[0]]

  def to_keras(self, weights: types.Weights) -> tf.keras.Model:
    """A new model of `build_fn` with these weights."""
    with _seeded(0):
      model = self._built()
    for variable, weight in zip(model.trainable_weights, weights, strict=True):
      variable.assign(weight)
    for variable, weight in zip(model.non_trainable_weights, self._frozen):
      variable.assign(weight)
    return model

  def _built(self) -> tf.keras.Model:
    model = self._build_fn()
    if not isinstance(model, tf.keras.Model):
      raise ValueError(f'build_fn must return a tf.keras.Model, found {model!r}')
    inputs, outputs = len(model.inputs or ()), len(model.outputs or ())
    if not inputs or outputs != 1:
      raise ValueError('build_fn must return a model with tf.keras.Input and one '
                       f'output, found {inputs} inputs and {outputs} outputs')
    return model

  def _weights_of_seed(self, seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The trainable weights and the others, of a new model."""
    with tf.init_scope(), _seeded(seed):
      model = self._built()
    return ([weight.numpy() for weight in model.trainable_weights],
            [weight.numpy() for weight in model.non_trainable_weights])

  def _traced(self, *, training: bool) -> tuple[template.Template, tuple[str, ...]]:
    """The network in a graph of its own, and the names of its trainable weights."""
    with template.graph() as graph:
      slots, changes, seed = [], [], tf.compat.v1.placeholder(tf.int64, [2], 'step_key')
      numbers = itertools.count()

      def slot(_, **variable):
        slots.append(_slot(graph, changes, **variable))
        return slots[-1]

      with tf.variable_creator_scope(slot), _in_one_line(changes), _operations():
        model = self._built()
      for layer in _layers(model):
        if hasattr(layer, '_random_generator'):
          layer._random_generator = _Random(  # pylint: disable=protected-access
              lambda: layers.layer_seed(seed, next(numbers)))
        # pylint: disable-next=unidiomatic-typecheck
        if type(layer) is tf.keras.layers.MaxPooling2D and (
            layer.pool_size, layer.strides, layer.padding, layer.data_format) == (
                (2, 2), (2, 2), 'valid', 'channels_last'):
          layer.call = _max_of_tiles
      with tf.variable_creator_scope(slot), _in_one_line(changes):
        self._specs = dict(zip(self._input_names, model.inputs))
        inputs = {
            f'input {name}': tf.compat.v1.placeholder(spec.dtype, [
                None, *spec.shape[1:]]) for name, spec in self._specs.items()}
        given = list(inputs.values())
        outputs = model(given[0] if len(given) == 1 else dict(
            zip(self._input_names, given)), training=training)
        penalties = model.losses
      weights, frozen = model.trainable_weights, model.non_trainable_weights
      self._check_slots(slots, weights, frozen)
      results = {'values': outputs}
      if getattr(outputs, '_keras_mask', None) is not None:
        results['mask'] = tf.cast(outputs._keras_mask, tf.float32)
      arguments = {f'weight {i}': weight for i, weight in enumerate(weights)}
      constants = list(zip(frozen, self._frozen))
      if penalties and training:
        results['penalty'] = _penalty(penalties, arguments, constants)
      names = tuple(weight.op.name for weight in weights)
      called = template.Template({**arguments, **inputs, 'seed': seed}, results,
                                 watched=tuple(arguments), constants=constants)
      if 'seed' in called.uses and not training:
        raise ValueError('build_fn\'s model draws random numbers with training=False')
      return called, names

  def _check_slots(self, slots, weights, frozen) -> None:
    """Raises ValueError unless the weights are those of the model in Keras."""
    for kind, traced, known in (('trainable', weights, self._initial(0)[0]),
                                ('frozen', frozen, self._frozen)):
      shapes, wanted = ([tuple(weight.shape) for weight in each]
                        for each in (traced, known))
      if shapes != wanted or not all(
          any(weight is one for one in slots) for weight in traced):
        raise ValueError(
            'build_fn must build a new, equal model at each call, with weights of '
            f'add_weight; its {kind} ones have the shapes {wanted}, then {shapes}')


def _slot(graph: tf.Graph, changes: list[str], **variable: Any) -> tf.Tensor:
  """A placeholder where Keras wants a variable; `changes` gets what would change it."""
  if (shape := variable.get('shape')) is None:
    value = variable['initial_value']
    shape = tf.convert_to_tensor(value() if callable(value) else value).shape
  name = variable.get('name') or 'weight'
  placeholder = tf.compat.v1.placeholder(variable.get('dtype'), shape, name)
  where = graph.get_name_scope() or 'the model'

  def refuse(*_, **__):
    changes.append(
        f'layer {where!r} changes its weight {name!r} when it is called; use a layer '
        'without state between batches, such as tf.keras.layers.GroupNormalization')
    raise ValueError(changes[-1])

  placeholder.assign = placeholder.assign_add = placeholder.assign_sub = refuse
  return placeholder


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
  """Initializers of Keras without a seed have one that follows from `seed`."""
  numbers = itertools.count()

  def create(next_creator, **variable):
    value = variable.get('initial_value')
    if isinstance(value, functools.partial) and isinstance(
        value.func, tf.keras.initializers.Initializer):
      config = value.func.get_config()
      if config.get('seed', 0) is None:
        state = np.random.SeedSequence([seed, next(numbers)]).generate_state(1)
        initializer = type(value.func).from_config({**config, 'seed': int(state[0] >> 1)})
        variable['initial_value'] = functools.partial(
            initializer, *value.args, **value.keywords)
    return next_creator(**variable)

  with tf.variable_creator_scope(create):
    yield


def _layers(model: tf.keras.Model) -> list[tf.keras.layers.Layer]:
  """All layers, those inside others included."""
  # pylint: disable-next=protected-access
  return list(model._flatten_layers(include_self=False))


@tf.autograph.experimental.do_not_convert
def _max_of_tiles(inputs: tf.Tensor) -> tf.Tensor:
  """The same values and gradients as Keras' layer, whose gradient takes far longer."""
  return layers.max_pool(inputs, 2)


@contextlib.contextmanager
def _operations() -> Iterator[None]:
  """Operations between layers (`x[:, 1:]`, `x + y`) take their constants as they are.

  Keras would compute them in a session, which a graph of a function has not.
  """
  before = base_layer_utils._UNSAFE_GRAPH_OP_LAYER_CREATION
  base_layer_utils._UNSAFE_GRAPH_OP_LAYER_CREATION = True
  try:
    yield
  finally:
    base_layer_utils._UNSAFE_GRAPH_OP_LAYER_CREATION = before


@contextlib.contextmanager
def _in_one_line(changes: list[str]) -> Iterator[None]:
  """Raises ValueError for what goes wrong in a layer; Keras adds pages to messages."""
  try:
    yield
  except (AttributeError, NotImplementedError, TypeError, ValueError) as error:
    if changes:
      raise ValueError(changes[0]) from None
    reason = str(error).strip().split('\n')[0]
    raise ValueError('build_fn\'s layers must be pure functions in a graph: '
                     f'{type(error).__name__}: {reason}') from error


def _conformed(name: str, x: Any, spec: Any) -> tf.Tensor:
  """A feature as the model's input, with a channel if only that is missing."""
  x, shape = tf.cast(x, spec.dtype), spec.shape
  if x.shape.rank == shape.rank - 1 and shape[-1] == 1:
    x = x[..., tf.newaxis]
  if not x.shape[1:].is_compatible_with(shape[1:]):
    raise ValueError(f'input {name} of the model must have the shape '
                     f'{list(shape[1:])} per example, found {list(x.shape[1:])}')
  return x


def _penalty(penalties, arguments, constants) -> tf.Tensor:
  """The sum of the regularizers of weights; ValueError if one is of activities."""
  total = tf.add_n(penalties)
  try:
    template.Template(arguments, {'penalty': total}, watched=(), constants=constants)
  except ValueError:
    raise ValueError('activity_regularizer and add_loss depend on the whole batch: use '
                     'kernel_regularizer') from None
  return total
