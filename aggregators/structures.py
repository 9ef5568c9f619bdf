"""Structures of float tensors as one vector, for factories that work on vectors."""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from aggregators import keys


def _in_python_containers(value_type: tff.Type) -> bool:
  if isinstance(value_type, tff.StructType) and not isinstance(
      value_type, tff.StructWithPythonType):
    return False
  return all(map(_in_python_containers, value_type.children()))


class FlatLayout:
  """How the tensors of a TFF type lie in one vector.

  Attributes:
    size: Number of coordinates.
  """

  def __init__(self, value_type: tff.Type):
    """Initializes the layout of a tensor type, or a structure in Python containers.

    Raises TypeError for other structures, for other dtypes than floats, or for shapes
    not known.
    """
    if not _in_python_containers(value_type):
      raise TypeError(
          f'values must be structures of Python containers, found {value_type!r}')
    self._structure = tff.types.structure_from_tensor_type_tree(
        lambda tensor_type: tf.TensorSpec(tensor_type.shape, tensor_type.dtype),
        value_type)
    self._specs = tf.nest.flatten(self._structure)
    for spec in self._specs:
      if not (spec.dtype.is_floating and spec.shape.is_fully_defined()):
        raise TypeError(
            f'values must be float tensors of known shape, found {value_type}')
    self._sizes = [spec.shape.num_elements() for spec in self._specs]
    self.size = sum(self._sizes)

  def flatten(self, value) -> tf.Tensor:
    """Concatenates a structure of float tensors to one vector.

    float32, but float64 if any tensor is: clipping brings one beyond float32 in range.
    """
    leaves = tf.nest.flatten(value)
    dtype = tf.float64 if any(leaf.dtype == tf.float64 for leaf in leaves) else tf.float32
    return tf.concat([tf.reshape(tf.cast(x, dtype), [-1]) for x in leaves], axis=0)

  def unflatten(self, vector: tf.Tensor):
    """The structure whose coordinates are `vector`, float32 [size]."""
    return tf.nest.pack_sequence_as(self._structure, [
        tf.cast(tf.reshape(piece, spec.shape), spec.dtype)
        for piece, spec in zip(tf.split(vector, self._sizes), self._specs)])


def keyed_type(value_type: tff.Type) -> tff.StructType:
  """The type of values with their client's key, for a seeded run."""
  return tff.StructWithPythonType(
      [('value', value_type), ('key', tff.TensorType(np.int64, [2]))],
      collections.OrderedDict)


def initial_key(simulation_seed: int | None, purpose: int) -> tf.Tensor:
  """A key for a server's state: from the system, or of a simulation seed."""
  return (keys.fresh() if simulation_seed is None else
          keys.derive(tf.constant(keys.from_seed(simulation_seed)), purpose))


def stored_key(simulation_seed: int | None, key: tf.Tensor) -> tf.Tensor:
  """The key as a server's state holds it: that of a seeded run, else zero.

  A key that is never used need not lie in checkpoints.
  """
  return tf.zeros([2], tf.int64) if simulation_seed is None else key
