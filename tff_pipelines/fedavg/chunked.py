"""Federated averaging with many clients in one graph call.

A chunk is a list of clients whose data are concatenated. One call trains them one
after another; each client's update is clipped, rotated, rounded and noised
independently and added to one running sum, which is all that a call returns. So
the fixed costs of TFF are paid once a chunk, and memory does not grow with the
cohort. The functions are those of the plain form (`fedavg.process`), and with
the same keys the sums are the same integers.
"""

import collections
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from aggregators import expected_mean
from aggregators import keys
from aggregators.client_sum import ClientSumFactory
from tff_pipelines.fedavg import process as fedavg
from tff_pipelines.fedavg import local_training


def chunk_type(element_spec, *, seeded: bool, by_id: bool = False) -> tff.StructType:
  """The type of a chunk.

  Its examples, concatenated, and their number by client; or clients' ids. And keys if
  seeded.
  """
  members = [('client_ids', tff.TensorType(np.str_, [None]))] if by_id else [
      ('examples', fedavg.examples_type(element_spec)),
      ('lengths', tff.TensorType(np.int32, [None]))]
  if seeded:
    members.append(('keys', tff.TensorType(np.int64, [None, 2])))
  return tff.StructWithPythonType(members, collections.OrderedDict)


def make_chunk(clients: Sequence):
  """One value of `chunk_type` from values of `fedavg.client_type`, at least one."""
  if 'client_id' in clients[0]:
    chunk = collections.OrderedDict(
        client_ids=np.array([c['client_id'] for c in clients], object))
  else:
    chunk = collections.OrderedDict(
        examples=collections.OrderedDict(
            (name, np.concatenate([c['examples'][name] for c in clients]))
            for name in clients[0]['examples']),
        lengths=np.array(
            [len(next(iter(c['examples'].values()))) for c in clients], np.int32))
  if 'key' in clients[0]:
    chunk['keys'] = np.stack([c['key'] for c in clients])
  return chunk


def build(client_update: local_training.ClientUpdate, element_spec, *,
          initial_weights: list[np.ndarray], sum_factory: ClientSumFactory,
          expected_cohort_size: float, server_learning_rate: float,
          server_momentum: float,
          read_in_graph: Callable | None = None) -> tff.templates.IterativeProcess:
  """Builds the process; its clients are chunks.

  Args:
    client_update: Maps weights, a client's examples and its key to its update.
    element_spec: Feature name -> (dtype, shape), of the clients' source.
    initial_weights: List of float32 arrays.
    sum_factory: Contribution of a client and sum of contributions. It also says
      whether the run is seeded and whether diagnostics are measured.
    expected_cohort_size: The constant that the sum is divided by.
    server_learning_rate: As in `fedavg.build`.
    server_momentum: As in `fedavg.build`.
    read_in_graph: As in `fedavg.build`. With it, chunks are of ids, and a call
      holds the examples of one client at a time.

  Returns:
    A process with the state and the results of `fedavg.build`.
  """
  seeded, diagnostics = sum_factory.seeded, sum_factory.diagnostics
  server = fedavg.Server(initial_weights, server_learning_rate, server_momentum)
  layout = sum_factory.layout(server.weights_type)
  initial_sum = tff.tensorflow.computation(sum_factory.initial_state)
  sum_type = initial_sum.type_signature.result
  by_id = read_in_graph is not None
  chunks_type = chunk_type(element_spec, seeded=seeded, by_id=by_id)

  @tff.tensorflow.computation(chunks_type, server.weights_type, sum_type)
  def train_chunk(chunk, weights, sum_state):
    count = tf.size(chunk['client_ids'] if by_id else chunk['lengths'])
    ends = None if by_id else tf.cumsum(chunk['lengths'])
    root = None if seeded else keys.fresh()
    # Clients share a root here: an observer of one key must not find the others.
    derive = keys.derive if seeded else sum_factory.generator.derive

    def one_client(i):
      key = chunk['keys'][i] if seeded else derive(root, i)
      if by_id:
        examples = read_in_graph(chunk['client_ids'][i])
      else:
        rows = slice(ends[i] - chunk['lengths'][i], ends[i])
        examples = {name: x[rows] for name, x in chunk['examples'].items()}
      delta, training = client_update(weights, examples, derive(key, 0))
      contribution, measured = sum_factory.contribute(
          layout.flatten(delta), derive(key, 1), sum_state)
      return contribution, (measured, training)

    def step(i, total, measured):
      contribution, more = one_client(i)
      measured = tf.nest.map_structure(tf.add, measured, more)
      return i + 1, sum_factory.add(total, contribution), measured

    nothing = tf.nest.map_structure(
        lambda spec: tf.zeros([], spec.dtype),
        tf.function(one_client).get_concrete_function(
            tf.TensorSpec([], tf.int32)).structured_outputs[1])
    _, total, measured = tf.while_loop(
        lambda i, *_: i < count, step,
        (tf.constant(0), sum_factory.zero(layout.size), nothing),
        parallel_iterations=1)
    return (total, count, *(measured if diagnostics else ()))

  @tff.tensorflow.computation(
      sum_type, train_chunk.type_signature.result[0], tf.int32)
  def release(sum_state, total, num_reporting):
    return sum_factory.server_step(sum_state, total, num_reporting, layout)

  @tff.tensorflow.computation(server.weights_type, server.optimizer_type,
                              server.weights_type)
  def step_server(weights, optimizer_state, total):
    # As the plain form divides, to the last bit.
    mean = expected_mean.divide(list(total), expected_cohort_size)
    return server.step(weights, optimizer_state, mean)

  def run_round(state, chunks):
    sum_state = state['aggregator']
    sent = tff.federated_map(
        train_chunk,
        (chunks, tff.federated_broadcast(state['weights']),
         tff.federated_broadcast(sum_state)))
    num_reporting = tff.federated_sum(sent[1])
    sum_state, result, public = tff.federated_map(
        release, (sum_state, sum_factory.federated_total(sent[0]), num_reporting))
    weights, optimizer_state = tff.federated_map(
        step_server, (state['weights'], state['optimizer'], result))
    totals = tff.federated_sum(sent[2]) if diagnostics else None
    metrics = collections.OrderedDict(
        aggregator=sum_factory.measured(public, num_reporting, totals))
    if diagnostics:
      metrics['training'] = tff.federated_sum(sent[3])
    return weights, optimizer_state, sum_state, metrics

  return server.process(
      chunks_type, lambda: tff.federated_eval(initial_sum, tff.SERVER), run_round)
