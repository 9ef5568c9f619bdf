"""Marks in graphs, by which an executor encodes and decodes natively.

A chunk's graph trains clients and encodes their updates (`build_chunked`). In addition
it has, under a name scope of its own, the parameters of the encoding and a loop that
only trains some of the clients. An executor that finds these marks calls the loop and
the compiled kernels (`encoding`) instead, for the same integers. In any other nothing
uses the marks.

In the server's graph the decoding of a long sum is between marks: an executor fetches
its arguments and feeds the results of `native.decoding`.
"""

from collections.abc import Callable, Mapping
import dataclasses
import json
from typing import Any

import tensorflow as tf
import tree

from aggregators import branch, share_tables
from aggregators.params import DistributedSumParams

# Maximum number of coordinates of all updates that are trained in one call.
MAX_NUMBERS = 2**20

SCOPE = 'native_encoding'
# Names within the scope: the parameters as JSON; the index of the first client and
# the number of clients that the loop trains; updates, keys and training scalars of
# these clients; the number of clients in the chunk; results of the graph.
PARAMETERS, FIRST, SIZE = 'parameters', 'first', 'size'
VECTORS, KEYS, TRAINING, COUNT = 'vectors', 'keys', 'training', 'count'
STATE, TOTAL, AT_A_TIME = 'state', 'total', 'at_a_time'
DIAGNOSTICS, TRAINING_TOTALS = 'diagnostics', 'training_totals'

# Name scope of the server's graph, and names within it in addition to the parameters.
DECODING = 'native_decoding'
ARGUMENTS, RESULTS = 'arguments', 'results'
# Minimum number of coordinates of a sum that is marked: kernels need one more call of
# the graph, in which it decodes a shorter sum.
LEAST_DECODED = 2**14


def is_supported(params: DistributedSumParams) -> bool:
  """Whether kernels can encode clients' vectors in cohorts of the expected size."""
  return params.rotation != 'dft' and (
      params.noise_multiplier == 0 or not params.has_shares or
      params.noise.in_kernels and share_tables.table_draws(params) is not None)


def at_a_time(params: DistributedSumParams) -> int:
  """Number of clients that are trained before they are encoded: bounds the memory."""
  return max(1, MAX_NUMBERS // params.dimension)


def text(params: DistributedSumParams) -> str:
  """Serializes parameters to the JSON of a mark."""
  return json.dumps(dataclasses.asdict(params))


def parameters(mark: bytes) -> DistributedSumParams:
  """Parses the JSON of a mark. Raises TypeError or ValueError for any other."""
  return DistributedSumParams(**json.loads(mark))


def decoding(decode: Callable, params: DistributedSumParams, *arguments: tf.Tensor
             ) -> list[tf.Tensor]:
  """The results of `decode(*arguments)`, marked if kernels shall compute them.

  `decode` is `distributed_sum.in_model_units` without its argument `params`.
  """
  if params.rotation == 'dft' or params.padded_dimension < LEAST_DECODED:
    return decode(*arguments)
  with tf.name_scope(DECODING) as scope:
    tf.constant(text(params), name=PARAMETERS)
  results = decode(*_named(scope, _listed(ARGUMENTS, arguments)))
  return _named(scope, _listed(RESULTS, results))


class Marks:
  """The marks of one graph."""

  def __init__(self, params: DistributedSumParams, state: Mapping[str, Any],
               count: tf.Tensor, trained: Callable[..., Any], at_once: int | None = None):
    """Adds the loop to the graph.

    Args:
      params: Parameters of the encoding; see `is_supported`.
      state: State of the sum.
      count: int32, clients in the chunk.
      trained: Index of a client, int32 -> its update (float32 [dimension]), the key
        of its contribution (int64 [2]), and a structure of float32 scalars. With a
        `at_once`: indices of the first of so many and of the first after them -> their
        updates and keys, stacked.
      at_once: Number of vectors of a call; None for `at_a_time`, by one client each.
    """
    with tf.name_scope(SCOPE) as self._scope:
      tf.constant(text(params), name=PARAMETERS)
      if at_once is not None:
        tf.constant(at_once, name=AT_A_TIME)
      # By default the loop trains no client.
      first, size = (tf.compat.v1.placeholder_with_default(0, [], name)
                     for name in (FIRST, SIZE))
      end = tf.minimum(first + size, count)
    _named(self._scope, {COUNT: count, **{
        '/'.join((STATE, *path)): x for path, x in tree.flatten_with_path(state)}})
    if at_once is not None:
      vectors, keys, training = *trained(first, end), ()
    else:
      vectors, keys, training = (
          _one(trained, first, count) if at_a_time(params) == 1 else
          _several(trained, first, end))
    _named(self._scope, {VECTORS: vectors, KEYS: keys, **_listed(TRAINING, training)})

  def results(self, total: tf.Tensor, diagnostics=None, training=None):
    """Marks the results of the graph, and returns them.

    Args:
      total: int32 [D], the sum of the encoded vectors.
      diagnostics: Sums by the names of `encoding.DIAGNOSTICS`; None for none.
      training: Sums of the training scalars; None for none.
    """
    measured = [] if diagnostics is None else [
        tf.nest.pack_sequence_as(structure, _named(self._scope, _listed(name, structure)))
        for name, structure in ((DIAGNOSTICS, diagnostics), (TRAINING_TOTALS, training))]
    return [*_named(self._scope, {TOTAL: total}), *measured]


def _one(trained, index: tf.Tensor, count: tf.Tensor):
  """The result of `trained` for one client, each with a first axis of 1; no copies."""
  return tf.nest.map_structure(lambda x: x[tf.newaxis], branch.either(
      index < count, lambda: trained(index), lambda: tf.nest.map_structure(
          lambda spec: tf.zeros(spec.shape, spec.dtype), trained.structured_outputs)))


def _several(trained, first: tf.Tensor, end: tf.Tensor):
  """The results of `trained` for clients `first` to `end` - 1, stacked."""
  return tf.map_fn(
      trained, tf.range(first, end), parallel_iterations=1,
      fn_output_signature=tf.nest.map_structure(
          lambda x: tf.TensorSpec(x.shape, x.dtype), trained.structured_outputs))


def _listed(name: str, structure) -> dict[str, tf.Tensor]:
  """The tensors of a structure by names with their indices."""
  return {f'{name}/{i}': x for i, x in enumerate(tf.nest.flatten(structure))}


def _named(scope: str, tensors: Mapping[str, tf.Tensor]) -> list[tf.Tensor]:
  """Identities of the tensors, with these names in a scope."""
  with tf.name_scope(scope):
    return [tf.identity(tensor, name=name) for name, tensor in tensors.items()]
