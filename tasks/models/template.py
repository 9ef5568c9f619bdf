"""Networks as templates: graphs without variables, put wherever they are called.

A template is traced once, with its gradient, in a graph of its own, and then imported
into the graph that calls it: one of TFF, of a client among many, of XLA. Weights,
examples and the key of all randomness are its arguments. Whatever would last from one
call to the next is refused when it is traced.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import contextlib
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from tasks.models import types

# Stateful by name only: they run functions, which are checked too.
_CONTROL_FLOW = frozenset({'While', 'If', 'Case', 'StatefulPartitionedCall', 'Assert'})


@contextlib.contextmanager
def graph() -> Iterator[tf.Graph]:
  """The graph in which a template is traced is the present one in the block."""
  graphs, eagerly = [], tf.config.functions_run_eagerly()
  with tf.Graph().as_default():
    # A function's graph: Keras' loops in others also return what each step computed.
    tf.function(lambda: graphs.append(tf.compat.v1.get_default_graph()),
                autograph=False).get_concrete_function()
    # Calls of functions become part of the graph.
    tf.config.run_functions_eagerly(True)
    try:
      with graphs[0].as_default():
        yield graphs[0]
    finally:
      tf.config.run_functions_eagerly(eagerly)


def arguments(weights: types.Weights, batch: types.Examples,
              names: Sequence[str]) -> dict[str, Any]:
  """Name -> value of the weights, 'weight 0' and so on, and inputs, 'input NAME'.

  Inputs are the features that are not 'y', by their names; a single one may have any.
  Raises ValueError if one is missing.
  """
  features = {name: x for name, x in batch.items() if name != 'y'}
  if len(names) == 1 and len(features) == 1:
    features = {names[0]: next(iter(features.values()))}
  if missing := [name for name in names if name not in features]:
    raise ValueError(f'examples have no feature {missing[0]!r}, an input of the model')
  return {**{f'weight {i}': weight for i, weight in enumerate(weights)},
          **{f'input {name}': features[name] for name in names}}


class Template:
  """A pure function of named tensors, differentiable once in some of them.

  Attributes:
    uses: Names of the arguments on which the results depend.
    shapes: Name of a result -> its shape, as far as it is known.
  """

  def __init__(self, arguments: Mapping[str, tf.Tensor],
               results: Mapping[str, tf.Tensor], *, watched: Sequence[str],
               constants: Sequence[tuple[tf.Tensor, Any]] = ()):
    """Keeps the part of a graph that leads to the results; within `graph`.

    Arguments are placeholders by name, those `watched` with a gradient; results float32
    tensors of the same graph by name; constants further placeholders, and the values
    that take their place. Raises ValueError if the results depend on state, whose
    operation it names, or on other placeholders.
    """
    self._names, self._watched = tuple(results), tuple(watched)
    tensors = list(results.values())
    self.shapes = {name: x.shape for name, x in results.items()}
    # TensorFlow drops functions, by name, with the graph that they were traced in.
    self._traced = tensors[0].graph
    upstream = [tf.compat.v1.placeholder(x.dtype, x.shape) for x in tensors]
    gradients = [tf.convert_to_tensor(x) for x in tf.gradients(
        tensors, [arguments[name] for name in watched], upstream,
        unconnected_gradients=tf.UnconnectedGradients.ZERO)]
    forward = _leading_to(tensors, ())
    backward = _leading_to(gradients, forward)
    # The results' own operations that the gradient needs.
    saved = {x.name: x for operation in backward for x in operation.inputs
             if x.op in forward}
    placeholders = {operation for operation in (*forward, *backward)
                    if operation.type.startswith('Placeholder')}
    self._forward = _part(self._traced, forward.keys() - placeholders)
    self._backward = _part(self._traced, backward.keys() - placeholders)
    self._fetches = [x.name for x in (*tensors, *(
        x for x in saved.values() if x.op not in placeholders))]
    self._upstream = [x.name for x in upstream if x.op in backward]
    self._used_upstream = [x.op in backward for x in upstream]
    self._gradients = [x.name for x in gradients]
    self._arguments = {name: x.name for name, x in arguments.items()
                       if x.op in placeholders}
    self.uses = frozenset(self._arguments)
    self._constants = {x.name: value for x, value in constants if x.op in placeholders}
    known = {*self._arguments.values(), *self._constants, *(x.name for x in upstream)}
    if unknown := [operation.name for operation in placeholders
                   if operation.outputs[0].name not in known]:
      raise ValueError(f'weight {unknown[0]} must be of a layer between the input and '
                       'the output of build_fn\'s model')
    self._call = tf.function(self._put, autograph=False)

  def __call__(self, arguments: Mapping[str, Any]) -> dict[str, tf.Tensor]:
    """The results by name.

    Args:
      arguments: Name -> value; those that the results do not depend on may be missing,
        unless they are watched.
    """
    given = {name: tf.convert_to_tensor(arguments[name])
             for name in sorted(self.uses.union(self._watched))}
    return (self._put(given) if not tf.executing_eagerly() else
            self._call.get_concrete_function(given)(given))

  def _put(self, given: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Imports the template into the present graph."""

    @tf.custom_gradient
    def call(*watched):
      values = {**given, **dict(zip(self._watched, watched))}
      # Tensors of this graph; they may be those of a graph around it.
      feeds = {name: tf.identity(values[argument])
               for argument, name in self._arguments.items()}
      feeds |= {name: tf.constant(value) for name, value in self._constants.items()}
      fetched = tf.graph_util.import_graph_def(
          self._forward, feeds, self._fetches, name='network')
      saved = {**feeds, **dict(zip(self._fetches, fetched))}

      def gradient(*upstream):
        used = (x for x, is_used in zip(upstream, self._used_upstream) if is_used)
        inputs = {name: tf.identity(x) for name, x in (
            *saved.items(), *zip(self._upstream, used))}
        needed = {name if ':' in name else f'{name}:0'
                  for node in self._backward.node for name in node.input}
        return tf.graph_util.import_graph_def(
            self._backward, {name: x for name, x in inputs.items() if name in needed},
            self._gradients, name='gradient')

      return fetched[:len(self._names)], gradient

    return dict(zip(self._names, call(*(given[name] for name in self._watched))))


def _leading_to(results: Iterable[tf.Tensor], known: Iterable[tf.Operation]
                ) -> dict[tf.Operation, None]:
  """The operations that results depend on, except known ones."""
  waiting, needed, known = [x.op for x in results], {}, set(known)
  while waiting:
    if (operation := waiting.pop()) not in needed and operation not in known:
      needed[operation] = None
      waiting += [x.op for x in operation.inputs]
      waiting += operation.control_inputs
  return needed


def _part(traced: tf.Graph, operations: Iterable[tf.Operation]) -> tf.compat.v1.GraphDef:
  """The graph of these operations. Raises ValueError if one has state."""
  whole, names = traced.as_graph_def(), {operation.name for operation in operations}
  part = tf.compat.v1.GraphDef(versions=whole.versions)
  for node in whole.node:
    if node.name in names:
      kept = part.node.add()
      kept.CopyFrom(node)
      # Operations of the other part have run by then.
      kept.input[:] = [name for name in node.input
                       if not name.startswith('^') or name[1:] in names]
      # Gradients are part of the template; what was together may be apart.
      kept.attr.pop('_gradient_op_type', None)
      kept.attr.pop('_class', None)
  library = {function.signature.name: function for function in whole.library.function}
  nodes, called = list(part.node), set()
  for node in nodes:  # Which grows by the nodes of the functions that are called.
    calls = {node.op, *(function.name for value in node.attr.values()
                        for function in (value.func, *value.list.func))}
    for name in calls & library.keys() - called:
      called.add(name)
      part.library.function.append(library[name])
      nodes += library[name].node_def
    if node.op not in _CONTROL_FLOW and node.op not in library:
      if (definition := op_def_registry.get(node.op)) is None or definition.is_stateful:
        raise ValueError(
            f'operation {node.name} ({node.op}) keeps state or draws from its own '
            'generator: use Model.from_keras and a layer of Keras, such as Dropout')
  return part
