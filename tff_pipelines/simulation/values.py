"""Values of TFF inside the executor of `in_process` and between processes.

NumPy arrays for tensors, tuples for structures, serialized dataset graphs (bytes) for
sequences, Python functions for functions, and AtServer, AllEqual or AtClients for
federated values.
"""

from collections.abc import Callable, Iterable, Sequence
import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tree

from aggregators import tff_internals

structure = tff_internals.STRUCTURE


@dataclasses.dataclass(frozen=True)
class AtServer:
  """A value at the server."""

  value: Any


@dataclasses.dataclass(frozen=True)
class AllEqual:
  """A value at clients, equal at each."""

  value: Any


@dataclasses.dataclass(frozen=True)
class AtClients:
  """Values at clients, in their order."""

  values: list


@dataclasses.dataclass(frozen=True)
class Deferred:
  """A client's value that is made where it is used: in this process alone."""

  make: Callable[[], Any]


def made(value):
  """A value with what was deferred."""
  return map_leaves(lambda x: x.make() if isinstance(x, Deferred) else x, value)


def map_leaves(function: Callable[[Any], Any], value):
  """The structure of a value with its leaves mapped, in their order."""
  if isinstance(value, tuple):
    return tuple([map_leaves(function, element) for element in value])
  return function(value)


def leaves(value) -> list:
  """The leaves of a value, in their order."""
  # `tree` would keep their classes, and so all of TFF, beyond the interpreter's end.
  result = []
  map_leaves(result.append, value)
  return result


def num_clients(arguments: list) -> int:
  """Number of clients of arguments, 0 if none are there; ValueError if they differ."""
  counts = {len(leaf.values) for argument in arguments for leaf in leaves(argument)
            if isinstance(leaf, AtClients)}
  if len(counts) > 1:
    raise ValueError(f'arguments must be of equally many clients, found {counts}')
  return sum(counts)


def map_shared(function: Callable[[Any], Any], value):
  """Maps all arrays of a value, except for those of single clients."""
  if isinstance(value, AtClients):
    return value
  if isinstance(value, (AtServer, AllEqual)):
    return type(value)(map_leaves(function, value.value))
  if isinstance(value, tuple):
    return tuple([map_shared(function, element) for element in value])
  return function(value)


def ingested(value, type_spec):
  """Converts a user's value to the form inside.

  Raises TypeError if it is not of the type, by the rules of TFF: numbers are only
  widened, scalars of Python must fit. Names of elements must agree, too.
  """
  if isinstance(value, Deferred):
    return Deferred(lambda: ingested(value.make(), type_spec))
  if isinstance(type_spec, tff.FederatedType):
    if type_spec.all_equal:
      placed = AtServer if type_spec.placement is tff.SERVER else AllEqual
      return placed(ingested(value, type_spec.member))
    if not isinstance(value, (list, tuple)):
      raise TypeError(f'clients\' values must be a list, found {type(value).__name__}')
    return AtClients([ingested(v, type_spec.member) for v in value])
  if isinstance(type_spec, tff.StructType):
    value = structure.from_container(value)
    if len(value) != len(type_spec):
      raise TypeError(
          f'a structure must have {len(type_spec)} elements, found {len(value)}')
    elements = []
    for (name, element), (wanted, element_type) in zip(
        structure.iter_elements(value), structure.iter_elements(type_spec)):
      if name not in (wanted, None):
        raise TypeError(f'an element must be named {wanted!r}, found {name!r}')
      try:
        elements.append(ingested(element, element_type))
      except TypeError as error:
        raise TypeError(f'{wanted or len(elements)}: {error}') from error
    return tuple(elements)
  if isinstance(type_spec, tff.SequenceType):
    return tff_internals.graph_of_sequence(value, type_spec)
  return as_array(value, type_spec)


def as_array(value, type_spec: tff.TensorType) -> np.ndarray:
  """A tensor of a type; see `ingested`."""
  wanted = type_spec.dtype
  if not isinstance(value, (np.ndarray, np.generic)):
    value = tff.tensorflow.transform_args(value)  # Tensors become arrays.
  if isinstance(value, (np.ndarray, np.generic)) and value.dtype == wanted:
    array = np.asarray(value)
  else:
    for leaf in tree.flatten(value) if isinstance(value, (list, tuple)) else [value]:
      if not tff_internals.is_compatible_dtype(leaf, wanted.type):
        dtype = getattr(leaf, 'dtype', type(leaf).__name__)
        raise TypeError(f'a tensor must be {type_spec}, found {leaf!r} ({dtype})')
    array = np.asarray(value, object if wanted.kind == 'U' else wanted)
  if wanted.kind == 'U':
    array = _encoded(array, type_spec)
  if (shape := type_spec.shape) is not None and (len(shape) != array.ndim or any(
      size not in (None, actual) for size, actual in zip(shape, array.shape))):
    raise TypeError(f'a tensor must be {type_spec}, found the shape {list(array.shape)}')
  return array


def _encoded(strings: np.ndarray, type_spec) -> np.ndarray:
  """Strings as bytes, which keep their length as objects only."""
  encoded = np.empty(strings.shape, object)
  for i, string in enumerate(strings.flat):
    if not isinstance(string, (str, bytes)):
      raise TypeError(f'a tensor must be {type_spec}, found {string!r}')
    encoded.flat[i] = tf.compat.as_bytes(string)
  return encoded


def returned(value, type_spec):
  """Converts a value from the form inside to that of users; arrays are copies."""
  if isinstance(type_spec, tff.FederatedType):
    if isinstance(value, AtClients):
      return [returned(v, type_spec.member) for v in value.values]
    return returned(value.value, type_spec.member)
  if isinstance(type_spec, tff.StructType):
    return structure.Struct(
        (name, returned(element, element_type)) for element, (name, element_type) in zip(
            value, structure.iter_elements(type_spec)))
  if isinstance(type_spec, tff.SequenceType):
    return tff_internals.dataset_of(value, type_spec.element)
  if isinstance(value, np.ndarray):
    # TensorFlow's results may share memory with its feeds.
    return value.copy() if value.ndim else value[()]
  return value


def total(type_spec, values: Sequence, modulus=None):
  """The sum of values, modulo `modulus` if given; else integers wrap as in TensorFlow."""
  if isinstance(type_spec, tff.StructType):
    return tuple(
        total(element, [value[i] for value in values],
              modulus[i] if isinstance(modulus, tuple) else modulus)
        for i, (_, element) in enumerate(structure.iter_elements(type_spec)))
  shape = type_spec.shape if isinstance(type_spec, tff.TensorType) else None
  if shape is None or None in shape:
    raise TypeError(f'a federated sum needs tensors of known shapes, found {type_spec}')
  # Not `np.zeros`: the system maps pages twice that are read before they are written.
  zero = np.full(shape, 0, type_spec.dtype)
  if modulus is None:
    return _added(values, zero)
  modulus = int(modulus)
  if not 1 <= modulus < 2**63:
    raise ValueError(f'modulus must be in [1, 2^63), found {modulus}')
  modulus_of_type = zero.dtype.type(modulus)
  if modulus & (modulus - 1) == 0:
    # It divides the modulus at which the type overflows.
    return np.bitwise_and(_added(values, zero), zero.dtype.type(modulus - 1), out=zero)
  result = np.zeros(shape, np.uint64)
  # This many residues, and one more, fit 64 bits.
  count = (2**64 - 1) // modulus - 1
  for start in range(0, len(values), count):
    residues = (np.remainder(value, modulus_of_type).astype(np.uint64)
                for value in values[start:start + count])
    np.remainder(_added(residues, result), np.uint64(modulus), out=result)
  return result.astype(zero.dtype)


def _added(values: Iterable, start: np.ndarray) -> np.ndarray:
  """`start`, to which the values have been added in place."""
  for value in values:
    # NumPy turns arrays without dimensions into scalars, and warns of overflow.
    np.add(start, value, out=start)
  return start
