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
    """Initializes the layout.

    Args:
      value_type: A tensor type or a structure of them in Python containers:
        floats of known shape.

    Raises:
      TypeError: For other structures or dtypes, or for shapes not known.
    """
    if not _in_python_containers(value_type):
      raise TypeError(
          f'values must be structures of Python containers, found {value_type!r}')
    tensor_types = tff.types.structure_from_tensor_type_tree(
        lambda tensor_type: tf.TensorSpec(tensor_type.shape, tensor_type.dtype),
        value_type)
    self._structure = tensor_types
    self._specs = tf.nest.flatten(tensor_types)
    for spec in self._specs:
      if not spec.dtype.is_floating:
        raise TypeError(f'values must be float tensors, found {value_type}')
      if not spec.shape.is_fully_defined():
        raise TypeError(
            f'values must be tensors of known shape, found {value_type}')
    self._sizes = [spec.shape.num_elements() for spec in self._specs]
    self.size = sum(self._sizes)

  def unflatten(self, vector: tf.Tensor):
    """The structure whose coordinates are `vector`, float32 [size]."""
    pieces = tf.split(vector, self._sizes)
    leaves = [
        tf.cast(tf.reshape(piece, spec.shape), spec.dtype)
        for piece, spec in zip(pieces, self._specs)
    ]
    return tf.nest.pack_sequence_as(self._structure, leaves)


def keyed_type(value_type: tff.Type) -> tff.StructType:
  """The type of values that bring the key of a seeded run."""
  return tff.StructWithPythonType(
      [('value', value_type), ('key', tff.TensorType(np.int64, [2]))],
      collections.OrderedDict)


def initial_key(simulation_seed: int | None, purpose: int) -> tf.Tensor:
  """A key for a server's state: from the system, or of a simulation seed."""
  if simulation_seed is None:
    return keys.fresh()
  return keys.derive(tf.constant(keys.from_seed(simulation_seed)), purpose)


def stored_key(simulation_seed: int | None, key: tf.Tensor) -> tf.Tensor:
  """What a server's state holds of a key: the key of a seeded run, else zero.

  Unseeded runs draw their keys when they need them; a key that is never used
  need not lie in checkpoints.
  """
  return tf.zeros([2], tf.int64) if simulation_seed is None else key


def independent_key(simulation_seed: int | None, key: tf.Tensor) -> tf.Tensor:
  """A key that becomes public, independent of secret keys beside `key`.

  Who knows one of a key's children and searches 2^64 Philox keys finds the
  others, so what clients are told is drawn anew. Seeded runs, which keep no
  secrets, take `key`.
  """
  return keys.fresh() if simulation_seed is None else key


def round_key(simulation_seed: int | None, state_key: tf.Tensor) -> tf.Tensor:
  """This round's key at the server: fresh, or the one that the state holds."""
  return keys.fresh() if simulation_seed is None else state_key
