"""Branches of graphs that cost nothing where they are not taken."""

from typing import Any, Callable

import tensorflow as tf


def either(predicate: tf.Tensor, then: Callable[[], Any],
           otherwise: Callable[[], Any]) -> Any:
  """Returns `then()` if the predicate holds, and `otherwise()` if not.

  As `tf.cond`, except that in a graph the branches stay functions. TensorFlow puts the
  operations of both into the graph around them, and visits those of the branch that is
  not taken too, which takes as long as encoding thousands of coordinates.
  """
  if tf.executing_eagerly():
    return tf.cond(predicate, then, otherwise)
  graph = tf.compat.v1.get_default_graph()
  before = len(graph.get_operations())
  result = tf.cond(predicate, then, otherwise)
  for operation in graph.get_operations()[before:]:
    if operation.type in ('If', 'StatelessIf'):
      operation._set_attr(  # pylint: disable=protected-access
          '_lower_using_switch_merge', tf.compat.v1.AttrValue(b=False))
  return result
