"""Federated averaging around any aggregation factory, as a TFF process.

Composed by hand, because `tff.learning.algorithms.build_*` always sends
clients' training metrics to the server in the clear. Here nothing but the
aggregated update leaves a client unless diagnostics are asked for.
"""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from aggregators import keys
from aggregators import structures
from tasks.task import Model
from tff_pipelines.algorithms import local_training


def client_type(element_spec, *, seeded: bool) -> tff.StructType:
  """The type of what a client brings: its examples, and its key if seeded."""
  examples = tff.StructWithPythonType(
      [(name, tff.TensorType(dtype, [None, *shape]))
       for name, (dtype, shape) in sorted(element_spec.items())],
      collections.OrderedDict)
  members = [('examples', examples)]
  if seeded:
    members.append(('key', tff.TensorType(np.int64, [2])))
  return tff.StructWithPythonType(members, collections.OrderedDict)


def build(model: Model, element_spec, *, initial_weights: list[np.ndarray],
          mean_factory: tff.aggregators.UnweightedAggregationFactory,
          local: local_training.LocalConfig, server_learning_rate: float,
          server_momentum: float, seeded: bool = False,
          diagnostics: bool = False) -> tff.templates.IterativeProcess:
  """Builds the process.

  Args:
    model: The model to train.
    element_spec: Feature name -> (dtype, shape), of the clients' source.
    initial_weights: List of float32 arrays.
    mean_factory: Aggregates the list of clients' updates to their mean. Seeded
      runs wrap it for values that bring their key.
    local: What clients do.
    server_learning_rate: The server applies SGD to minus the mean update.
    server_momentum: Of that SGD, in [0, 1).
    seeded: Clients bring a key of a simulation seed; otherwise they draw one
      from the operating system.
    diagnostics: Also sum the clients' training losses; outside the guarantee.

  Returns:
    A process whose state is an OrderedDict of `weights`, `optimizer` and
    `aggregator`, and whose `next` returns an OrderedDict of `state` and
    `metrics` (the aggregator's measurements, and diagnostics if asked for).
  """
  optimizer = tff.learning.optimizers.build_sgdm(
      learning_rate=server_learning_rate,
      momentum=server_momentum if server_momentum > 0 else None)
  weights_type = tff.to_type([(w.dtype, w.shape) for w in initial_weights])
  clients_type = client_type(element_spec, seeded=seeded)
  value_type = (
      structures.keyed_type(weights_type) if seeded else weights_type)
  aggregator = mean_factory.create(value_type)
  specs = [tf.TensorSpec(w.shape, w.dtype) for w in initial_weights]

  @tff.tensorflow.computation
  def initial_model():
    return (list(map(tf.constant, initial_weights)), optimizer.initialize(specs))

  @tff.tensorflow.computation(clients_type, weights_type)
  def train_client(client, weights):
    key = client['key'] if seeded else keys.fresh()
    delta, training = local_training.update(
        model.loss, weights, client['examples'], keys.derive(key, 0), local)
    value = delta
    if seeded:
      value = collections.OrderedDict(value=delta, key=keys.derive(key, 1))
    if diagnostics:
      return value, training
    return value

  optimizer_type = initial_model.type_signature.result[1]

  @tff.tensorflow.computation(weights_type, optimizer_type, weights_type)
  def step_server(weights, optimizer_state, mean_update):
    gradients = [-x for x in mean_update]
    optimizer_state, weights = optimizer.next(
        optimizer_state, list(weights), gradients)
    return weights, optimizer_state

  @tff.federated_computation
  def initialize():
    weights, optimizer_state = tff.federated_eval(initial_model, tff.SERVER)
    return tff.federated_zip(
        collections.OrderedDict(
            weights=weights, optimizer=optimizer_state,
            aggregator=aggregator.initialize()))

  state_type = initialize.type_signature.result

  @tff.federated_computation(
      state_type, tff.FederatedType(clients_type, tff.CLIENTS))
  def next_fn(state, clients):
    trained = tff.federated_map(
        train_client, (clients, tff.federated_broadcast(state['weights'])))
    value = trained[0] if diagnostics else trained
    aggregated = aggregator.next(state['aggregator'], value)
    weights, optimizer_state = tff.federated_map(
        step_server, (state['weights'], state['optimizer'], aggregated.result))
    metrics = collections.OrderedDict(aggregator=aggregated.measurements)
    if diagnostics:
      metrics['training'] = tff.federated_sum(trained[1])
    return collections.OrderedDict(
        state=tff.federated_zip(
            collections.OrderedDict(
                weights=weights, optimizer=optimizer_state,
                aggregator=aggregated.state)),
        metrics=tff.federated_zip(metrics))

  return tff.templates.IterativeProcess(initialize, next_fn)


def tell_cohort_size(state, cohort_size: int, mean_factory):
  """The process's state for a round of so many clients that are told to take part.

  Mechanisms that split their noise over the cohort size their shares by it; for
  others nothing changes.
  """
  tell = getattr(mean_factory, 'tell_cohort_size', None)
  if tell is None:
    return state
  return collections.OrderedDict(
      state, aggregator=tell(state['aggregator'], cohort_size))
