"""Means over clients of values that each client perturbs independently.

Sums are plain: nothing needs to be hidden from the server any more.
"""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from aggregators import client_sum, keys, local_dp
from tff_pipelines.common import validate


class LocalMeanFactory(client_sum.ClientSumFactory):
  """The mean of clients' structures of floats in [-1, 1], locally private.

  A client's tensors are flattened and cut into rows of the mechanism's dimension; each
  row costs the mechanism's budget. Here a client sends one row of two coordinates and is
  2-DP (outside of a test, first `with contexts.simulation():`, see docs/noise.md):

      >>> mechanism = local_dp.build('laplace', epsilon=2.0, dimension=2)
      >>> process = LocalMeanFactory(mechanism).create(tff.TensorType(np.float32, [2]))
      >>> vectors = [np.array([0.5, -0.25], np.float32)] * 400
      >>> output = process.next(process.initialize(), vectors)
      >>> int(output.measurements['answers'])
      400
      >>> error = np.linalg.norm(output.result - vectors[0])
      >>> bool(error < 6 * (2 * mechanism.worst_variance / 400)**0.5)
      True

  Formal guarantees:

  * What a client sends is as private as the mechanism is for one row, times the
    number of rows, against any observer, for any two inputs.
  * That a client exists and that it answered is public, so the sum is divided by the
    number of reporting clients. The result is an unbiased estimate of their mean, 0 if
    there is none.
  * With `simulation_seed` there is no guarantee.
  """

  def __init__(self, mechanism: local_dp.LocalMechanism, *,
               diagnostics: bool = False, simulation_seed: int | None = None):
    """Initializes the factory; diagnostics count coordinates outside [-1, 1]."""
    super().__init__(diagnostics=diagnostics, simulation_seed=simulation_seed)
    self._mechanism = mechanism

  def check_dimension(self, dimension: int) -> None:
    if dimension % self._mechanism.dimension:
      raise ValueError(f'values must have a multiple of {self._mechanism.dimension} '
                       f'coordinates, found {dimension}')

  def contribute(self, vector, key, state):
    rows = tf.reshape(vector, [-1, self._mechanism.dimension])
    sent = tf.reshape(self._mechanism.perturb(rows, key), vector.shape)
    # NaN is outside too; of a negation TensorFlow would make a > that NaN fails.
    return sent, collections.OrderedDict(outside=tf.size(vector) - tf.math.count_nonzero(
        tf.abs(tf.cast(vector, tf.float64)) <= 1, dtype=tf.int32))

  def release(self, state, total, num_reporting, key):
    count = tf.cast(tf.maximum(num_reporting, 1), tf.float32)
    return state, total / count, collections.OrderedDict(answers=num_reporting)


class LocalAnswersFactory(tff.aggregators.UnweightedAggregationFactory):
  """The mean answer to each of many queries, over the clients that answered it.

  A client brings `values`, float32 [answers, dimension] in [-1, 1], and `queries`,
  int32 [answers], the index of the query that each row answers, and `key` if the
  run is seeded. The result is an OrderedDict of `means`, float32 [queries,
  dimension], 0 for a query without answers, and `answers`, int32 [queries].

  Formal guarantees:

  * Each row costs its client the mechanism's budget, and no row is released twice: a
    client that answers m rows in a round spends m budgets.
  * Which queries a client answers must not depend on its data.
  * With `seeded` there is no guarantee.
  """

  def __init__(self, mechanism: local_dp.LocalMechanism, num_queries: int, *,
               seeded: bool = False):
    """Initializes the factory; if `seeded`, clients bring keys of a seed."""
    validate.integer(num_queries=num_queries, low=1)
    self._mechanism = mechanism
    self._num_queries = num_queries
    self._seeded = seeded

  @property
  def value_type(self) -> tff.StructType:
    """The type of a client's value."""
    members = [('values', tff.TensorType(np.float32, [None, self._mechanism.dimension])),
               ('queries', tff.TensorType(np.int32, [None]))]
    if self._seeded:
      members.append(('key', tff.TensorType(np.int64, [2])))
    return tff.StructWithPythonType(members, collections.OrderedDict)

  def answer(self, value):
    """In graph: a client's perturbed rows and their counts, at their queries."""
    key = value['key'] if self._seeded else keys.fresh()
    sent = self._mechanism.perturb(value['values'], key)
    queries = value['queries'][:, tf.newaxis]
    return (tf.scatter_nd(queries, sent, [self._num_queries, self._mechanism.dimension]),
            tf.scatter_nd(queries, tf.ones_like(value['queries']), [self._num_queries]))

  def create(self, value_type) -> tff.templates.AggregationProcess:
    """Builds the process. Raises TypeError for values of another type."""
    if not self.value_type.is_assignable_from(value_type):
      raise TypeError(f'values must be of the type {self.value_type}, found {value_type}')
    answer = tff.tensorflow.computation(self.answer, value_type)

    @tff.tensorflow.computation(*answer.type_signature.result)
    def mean(totals, answers):
      count = tf.cast(tf.maximum(answers, 1), tf.float32)
      return collections.OrderedDict(means=totals / count[:, tf.newaxis], answers=answers)

    @tff.federated_computation
    def initialize():
      return tff.federated_value((), tff.SERVER)

    @tff.federated_computation(
        initialize.type_signature.result, tff.FederatedType(value_type, tff.CLIENTS))
    def next_fn(state, value):
      sent = tff.federated_map(answer, value)
      result = tff.federated_map(
          mean, (tff.federated_sum(sent[0]), tff.federated_sum(sent[1])))
      return tff.templates.MeasuredProcessOutput(
          state, result, tff.federated_value((), tff.SERVER))

    return tff.templates.AggregationProcess(initialize, next_fn)
