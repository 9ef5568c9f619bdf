"""Everything of TFF 0.87 that this project uses and TFF does not promise to keep.

Nothing else imports from `tensorflow_federated.python`, or names that begin with an
underscore. docs/tff_internals.md says for each what it is for and what breaks with
another TFF.
"""

from collections.abc import Collection
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.proto.v0 import computation_pb2
from tensorflow_federated.python.common_libs import structure
from tensorflow_federated.python.core.backends.mapreduce import intrinsics
from tensorflow_federated.python.core.backends.test import compiler as test_compiler
from tensorflow_federated.python.core.environments.tensorflow_backend import (
    compiled_computation_transformations, tensorflow_tree_transformations)
from tensorflow_federated.python.core.impl.compiler import array, building_blocks
from tensorflow_federated.python.core.impl.executors import value_serialization
from tensorflow_federated.python.core.impl.federated_context import value_impl
from tensorflow_federated.python.core.impl.types import type_conversions

# pylint: disable=protected-access

# Modules of the classes that values and building blocks are instances of.
BUILDING_BLOCKS = building_blocks
STRUCTURE = structure


def _explain_secure_sums() -> None:
  """Lets TFF's default context explain that it can't run secure sums.

  Its own error is about an executor's values. A context that a program sets is left
  as it is.
  """
  context = tff.framework.get_context_stack()._stack[0]
  if (not isinstance(context, tff.framework.SyncExecutionContext)
      or 'invoke' in vars(context)):
    return
  invoke = context.invoke

  def explained(comp: tff.Computation, arg: Any) -> Any:
    try:
      return invoke(comp, arg)
    except Exception as error:
      if 'Cannot embed a federated value' not in str(error):
        raise
      raise RuntimeError(
          'this execution context cannot run secure sums: run the process within '
          '`with tff_pipelines.simulation.contexts.simulation():`') from error

  context.invoke = explained


def forget_default_context() -> None:
  """Ends TFF's default context, to be called when Python ends.

  Left to Python's end, it fails there with a traceback, as its modules have gone.
  """
  del tff.framework.get_context_stack()._stack[:1]


def secure_modular_sum(values: Any, modulus: int) -> Any:
  """A federated secure modular sum of int32 tensors in [0, modulus).

  TFF's public function takes all values modulo the modulus first, a pass of divisions.
  """
  _explain_secure_sums()
  wanted = value_impl.to_value(np.int32(modulus), tff.TensorType(np.int32))
  call = intrinsics.create_federated_secure_modular_sum(
      values.comp, wanted.comp, preapply_modulus=False)
  return value_impl.Value(intrinsics._bind_comp_as_reference(call))


def reduced(computation: tff.Computation, kept: Collection[str]
            ) -> building_blocks.ComputationBuildingBlock:
  """A computation without the intrinsics that have a body, except for the URIs `kept`.

  Secure sums become the plain sums that they compute. In call-dominant form.
  """
  block = computation.to_building_block()
  for reductions in (test_compiler._get_secure_intrinsic_reductions(),
                     tensorflow_tree_transformations._get_intrinsic_reductions()):
    for uri, body in reductions.items():
      if uri not in kept:
        block, _ = tensorflow_tree_transformations.reduce_intrinsic(block, uri, body)
  return tff.framework.to_call_dominant(block)


def optimized(leaf: building_blocks.CompiledComputation
              ) -> building_blocks.CompiledComputation:
  """A TensorFlow leaf that is optimised, with its functions: sessions need not.

  What TensorFlow cannot optimise stays as it is.
  """
  leaf, _ = compiled_computation_transformations.optimize_tensorflow_graphs(
      leaf, tf.compat.v1.ConfigProto())
  return compiled_computation_transformations.transform_tf_call_ops_to_disable_grappler(
      leaf)[0]


def computation_bytes(computation: tff.Computation) -> bytes:
  """A computation, serialized; the same in each process."""
  return tff.framework.serialize_computation(computation).SerializeToString(
      deterministic=True)


def computation_of(serialized: bytes) -> tff.Computation:
  """The computation that `computation_bytes` serialized."""
  return tff.framework.deserialize_computation(
      computation_pb2.Computation.FromString(serialized))


def in_containers(value: Any, type_spec: tff.Type) -> Any:
  """A value of TFF's structures in the containers of Python that its type names."""
  return type_conversions.type_to_py_container(value, type_spec)


def is_compatible_dtype(value: Any, dtype: Any) -> bool:
  """Whether TFF takes a value for a tensor of this dtype."""
  return array.is_compatible_dtype(value, dtype)


def graph_of_sequence(value: Any, type_spec: tff.SequenceType) -> bytes:
  """A sequence as the serialized graph of a data set."""
  message, _ = value_serialization.serialize_value(value, type_spec)
  return message.sequence.serialized_graph_def


def dataset_of(graph: bytes, element_type: tff.Type) -> tf.data.Dataset:
  """The data set of a serialized graph."""
  return value_serialization._deserialize_dataset_from_graph_def(graph, element_type)
