"""AE-DPFL and kNN-DPFL (Zhu et al. 2020) as a TFF process.

One call of `next` is the whole vote: agents answer the queries, ballots are summed in
secure aggregation, and labels are released. Nothing else leaves an agent.
"""

import collections
from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from aggregators import keys, structures
from aggregators.voting import VotingFactory
from tff_pipelines.fedavg import process as fedavg_process


def public_value(queries: np.ndarray, unlabelled: np.ndarray | None = None
                 ) -> collections.OrderedDict:
  """The value that the server broadcasts; without unlabelled records none are sent."""
  return collections.OrderedDict(
      queries=queries, unlabelled=queries[:0] if unlabelled is None else unlabelled)


def build(answer: Callable, factory: VotingFactory,
          element_spec) -> tff.templates.IterativeProcess:
  """Builds the process.

  `answer` is (public, examples, key) -> int32 [Q, C], an agent's votes; `public` has
  `queries` and `unlabelled`, `examples` 'x' and 'y'. `next` takes the factory's state,
  a `public_value`, and agents of `fedavg.process.client_type`; it returns `state`,
  `labels` as the factory releases them, and `measurements`.
  """
  params, seeded = factory.params, factory.seeded
  dtype, shape = element_spec['x']
  broadcast_type = tff.StructWithPythonType(
      [('queries', tff.TensorType(dtype, [params.queries, *shape])),
       ('unlabelled', tff.TensorType(dtype, [None, *shape]))],
      collections.OrderedDict)
  agents_type = fedavg_process.client_type(element_spec, seeded=seeded)
  votes_type = tff.TensorType(np.int32, [params.queries, params.classes])
  aggregator = factory.create(structures.keyed_type(votes_type) if seeded else votes_type)

  @tff.tensorflow.computation(broadcast_type, agents_type)
  def vote(public, agent):
    key = agent['key'] if seeded else keys.fresh()
    votes = tf.ensure_shape(
        answer(public, agent['examples'], keys.derive(key, 0)), votes_type.shape)
    if seeded:
      return collections.OrderedDict(value=votes, key=keys.derive(key, 1))
    return votes

  @tff.federated_computation(aggregator.initialize.type_signature.result,
                             tff.FederatedType(broadcast_type, tff.SERVER),
                             tff.FederatedType(agents_type, tff.CLIENTS))
  def next_fn(state, public, agents):
    votes = tff.federated_map(vote, (tff.federated_broadcast(public), agents))
    output = aggregator.next(state, votes)
    return collections.OrderedDict(
        state=output.state, labels=output.result, measurements=output.measurements)

  return tff.templates.IterativeProcess(aggregator.initialize, next_fn)
