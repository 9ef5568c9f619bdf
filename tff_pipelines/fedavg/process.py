"""Federated averaging around a sum over clients, as a TFF process.

Composed by hand, because `tff.learning.algorithms.build_*` always sends
clients' training metrics to the server in the clear. Here nothing but the
aggregated update leaves a client unless diagnostics are on.
"""

import collections
from collections.abc import Callable, Sequence
import functools
import math

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from aggregators import chacha, expected_mean, keys
from aggregators.client_sum import ClientSumFactory
from aggregators.native import marks
from tff_pipelines.fedavg import local_training
from tff_pipelines.fedavg.server_optimizer import ServerConfig


def _examples_type(element_spec) -> dict[str, tff.Type]:
  """The type of examples: tensors by name, first dimension unknown."""
  return {'examples': tff.to_type(collections.OrderedDict(
      (name, tff.TensorType(np.str_ if dtype == object else dtype, [None, *shape]))
      for name, (dtype, shape) in sorted(element_spec.items())))}


def client_type(element_spec, *, seeded: bool) -> tff.StructType:
  """The type of a client's value: its examples, and its key if seeded."""
  return tff.to_type(collections.OrderedDict(
      **_examples_type(element_spec),
      **{'key': tff.TensorType(np.int64, [2])} if seeded else {}))


def _chunk_type(element_spec, *, seeded: bool, by_id: bool = False) -> tff.StructType:
  """The type of a chunk.

  Its examples, concatenated, and their number by client; or clients' ids. And keys if
  seeded.
  """
  data = {'client_ids': tff.TensorType(np.str_, [None])} if by_id else {
      **_examples_type(element_spec), 'lengths': tff.TensorType(np.int32, [None])}
  return tff.to_type(collections.OrderedDict(
      **data, **{'keys': tff.TensorType(np.int64, [None, 2])} if seeded else {}))


def clients_per_call(cohort_size: float) -> int:
  """Number of clients of a chunk, unless it is given: 2 to 64.

  Enough chunks to keep cores and workers busy, and bounded data in one. It is the same
  on every machine, because float sums depend on it.
  """
  return max(2, min(math.ceil(cohort_size / 8), 64))


def make_chunk(clients: Sequence):
  """One value of a chunk from those of clients, at least one.

  They are of `client_type`, or have a `client_id` in place of the examples.
  """
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


def grouped(clients: Sequence, clients_per_call: int | None) -> list:
  """Values for a process: chunks of nearly equal size, or for None those of clients."""
  if clients_per_call is None:
    return list(clients)
  chunks = -(-len(clients) // clients_per_call)
  starts = [len(clients) * i // max(1, chunks) for i in range(chunks + 1)]
  return [make_chunk(clients[start:end]) for start, end in zip(starts, starts[1:])]


class Server:
  """The server's part: weights, and an optimizer's step on minus the mean update.

  Attributes:
    weights_type: Type of the weights, a list of tensors.
    optimizer_type: Type of the optimizer's state.
  """

  def __init__(self, initial_weights: list[np.ndarray], config: ServerConfig):
    self._optimizer = config.build()
    specs = [tf.TensorSpec(w.shape, w.dtype) for w in initial_weights]
    self._initial = tff.tensorflow.computation(lambda: (
        list(map(tf.constant, initial_weights)), self._optimizer.initialize(specs)))
    self.weights_type, self.optimizer_type = self._initial.type_signature.result

  def step(self, weights, optimizer_state, mean_update):
    """In graph: new weights and optimizer state."""
    optimizer_state, weights = self._optimizer.next(
        optimizer_state, list(weights), [-x for x in mean_update])
    return weights, optimizer_state

  def end_of_round(self, sum_factory: ClientSumFactory, layout, divisor: float, *,
                   sum_type: tff.Type, total_type: tff.Type,
                   shows_sum: bool) -> Callable:
    """How a round ends: its sum is released, and the optimizer takes a step.

    Args:
      sum_factory: It releases the sum.
      layout: The layout of the weights in the released vector.
      divisor: Divides the sum of updates; less than zero for a sum of gradients.
      sum_type: Type of the sum's state.
      total_type: Type of a contribution.
      shows_sum: Whether the metrics have the released sum, as `sum`.

    Returns a function for a federated computation: (state, contributions at clients,
    number of reporting clients, totals of diagnostics, more metrics by name) -> what
    `run_round` of `process` returns.
    """

    @tff.tensorflow.computation(sum_type, total_type, tf.int32)
    def release(sum_state, total, num_reporting):
      return sum_factory.server_step(sum_state, total, num_reporting, layout)

    @tff.tensorflow.computation(
        self.weights_type, self.optimizer_type, self.weights_type)
    def step(weights, optimizer_state, total):
      mean = expected_mean.divide(list(total), divisor)
      return self.step(weights, optimizer_state, mean)

    def end(state, contributions, num_reporting, totals=None, **more):
      sum_state, result, public = tff.federated_map(release, (
          state['aggregator'], sum_factory.federated_total(contributions),
          num_reporting))
      weights, optimizer_state = tff.federated_map(
          step, (state['weights'], state['optimizer'], result))
      measured = sum_factory.measured(public, num_reporting, totals)
      return weights, optimizer_state, sum_state, collections.OrderedDict(
          aggregator=measured, **more, **{'sum': result} if shows_sum else {})

    return end

  def process(self, clients_type: tff.Type, initial_aggregator: tff.Computation,
              run_round: Callable) -> tff.templates.IterativeProcess:
    """The process of these rounds.

    Args:
      clients_type: Type of a client's value.
      initial_aggregator: () -> the aggregator's initial state, at the server or not
        placed.
      run_round: In a federated computation: (state, clients) -> new weights, state
        of the optimizer, state of the aggregator, and an OrderedDict of metrics.

    Returns a process whose state is an OrderedDict of `weights`, `optimizer` and
    `aggregator`, and whose `next` returns an OrderedDict of `state` and `metrics`.
    """

    def zipped(weights, optimizer_state, aggregator_state):
      return tff.federated_zip(collections.OrderedDict(
          weights=weights, optimizer=optimizer_state, aggregator=aggregator_state))

    @tff.federated_computation
    def initialize():
      weights, optimizer_state = tff.federated_eval(self._initial, tff.SERVER)
      is_placed = isinstance(initial_aggregator.type_signature.result, tff.FederatedType)
      return zipped(weights, optimizer_state, (
          initial_aggregator() if is_placed else
          tff.federated_eval(initial_aggregator, tff.SERVER)))

    @tff.federated_computation(
        initialize.type_signature.result, tff.FederatedType(clients_type, tff.CLIENTS))
    def next_fn(state, clients):
      *parts, metrics = run_round(state, clients)
      return collections.OrderedDict(
          state=zipped(*parts), metrics=tff.federated_zip(metrics))

    return tff.templates.IterativeProcess(initialize, next_fn)


def build_chunked(
    client_update: local_training.ClientUpdate, element_spec, *,
    initial_weights: list[np.ndarray], sum_factory: ClientSumFactory,
    expected_cohort_size: float, server: ServerConfig,
    read_in_graph: Callable | None = None, convert: Callable = lambda examples: examples,
    shows_sum: bool = False) -> tff.templates.IterativeProcess:
  """Builds the process whose clients are chunks.

  A chunk is a list of clients whose data are concatenated. One call trains them one
  after another; each client's update is clipped, rotated, rounded and noised
  independently and added to one running sum, which is all that a call returns. So
  the fixed costs of TFF are paid once a chunk, and memory does not grow with the
  cohort. With the same keys the sums are the same integers as by `sum_factory.create`.

  Args:
    client_update: Maps weights, a client's examples and its key to its update.
    element_spec: Feature name -> (dtype, shape), of what `convert` takes.
    initial_weights: List of float32 arrays.
    sum_factory: Contribution of a client and sum of contributions. It also says
      whether the run is seeded and whether diagnostics are measured.
    expected_cohort_size: The constant that the sum is divided by.
    server: Parameters of the optimizer's step on minus the mean update.
    read_in_graph: See `tasks.task.reader_in_graph`. With it, chunks are of ids, and a
      call holds the examples of one client at a time.
    convert: In graph: a client's data in a chunk -> its examples.
    shows_sum: Whether the metrics have the released sum, as `sum`.
  """
  seeded, diagnostics = sum_factory.seeded, sum_factory.diagnostics
  server = Server(initial_weights, server)
  layout = sum_factory.layout(server.weights_type)
  initial_sum = tff.tensorflow.computation(sum_factory.initial_state)
  sum_type = initial_sum.type_signature.result
  by_id = read_in_graph is not None
  chunks_type = _chunk_type(element_spec, seeded=seeded, by_id=by_id)

  @tff.tensorflow.computation(
      chunks_type, server.weights_type, sum_factory.shared_type(sum_type))
  def train_chunk(chunk, weights, sum_state):
    count = tf.size(chunk['client_ids'] if by_id else chunk['lengths'])
    ends = None if by_id else tf.cumsum(chunk['lengths'])
    root = None if seeded else keys.fresh()
    # Clients share a root here: an observer of one key must not find the others.
    generator = keys if seeded else sum_factory.generator
    # Keys of a chunk cost little more than one client's, but each call derives them all.
    pairs = chacha.grandchildren(root, count, 2) if (
        generator is chacha and 16 * layout.size <= marks.MAX_NUMBERS) else None

    # Not inlined: TensorFlow does not fuse operations that are inlined into a branch.
    @functools.partial(tf.function, autograph=False,
                       experimental_attributes={'_noinline': True})
    def train_one(i):
      to_train, to_send = tf.unstack(pairs[i]) if pairs is not None else (
          generator.split(chunk['keys'][i] if seeded else generator.derive(root, i), 2))
      if by_id:
        examples = read_in_graph(chunk['client_ids'][i])
      else:
        rows = slice(ends[i] - chunk['lengths'][i], ends[i])
        examples = convert({name: x[rows] for name, x in chunk['examples'].items()})
      delta, training = client_update(weights, examples, to_train)
      return (layout.flatten(delta), to_send, training if diagnostics else ())

    # Traced once, for the loops here and for that of the marks.
    trained = train_one.get_concrete_function(tf.TensorSpec([], tf.int32))
    params = sum_factory.native_params
    if trained.structured_outputs[0].dtype != tf.float32:
      params = None
    marked = params and marks.Marks(params, sum_state, count, trained)

    def one_client(i):
      vector, key, training = trained(i)
      contribution, measured = sum_factory.contribute(vector, key, sum_state)
      return contribution, (measured, training)

    def step(i, total, measured):
      contribution, more = one_client(i)
      if diagnostics:
        measured = tf.nest.map_structure(tf.add, measured, more)
      return i + 1, sum_factory.add(total, contribution), measured

    # Only diagnostics need the structure of what is measured, which takes a trace.
    nothing = () if not diagnostics else tf.nest.map_structure(
        lambda spec: tf.zeros([], spec.dtype),
        tf.function(one_client, autograph=False).get_concrete_function(
            tf.TensorSpec([], tf.int32)).structured_outputs[1])
    _, total, measured = tf.while_loop(
        lambda i, *_: i < count, step,
        (tf.constant(0), sum_factory.zero(layout.size), nothing), parallel_iterations=1)
    if marked:
      total, *measured = marked.results(total, *measured)
    return (total, count, *measured)

  end = server.end_of_round(
      sum_factory, layout, expected_cohort_size, sum_type=sum_type,
      total_type=train_chunk.type_signature.result[0], shows_sum=shows_sum)

  def run_round(state, chunks):
    total, count, *measured = tff.federated_map(
        train_chunk,
        (chunks, tff.federated_broadcast(state['weights']),
         sum_factory.broadcast(state['aggregator'])))
    num_reporting = tff.federated_sum(count)
    if not diagnostics:
      return end(state, total, num_reporting)
    totals, training = map(tff.federated_sum, measured)
    return end(state, total, num_reporting, totals, training=training)

  return server.process(chunks_type, initial_sum, run_round)


def build_composed(
    client_update: local_training.ClientUpdate, element_spec, *,
    initial_weights: list[np.ndarray], factory, server: ServerConfig,
    seeded: bool = False, diagnostics: bool = False) -> tff.templates.IterativeProcess:
  """Builds the process around any factory of TFF, whose result is the mean update.

  Each client is a client of TFF. What the factory measures is recorded with diagnostics
  only: it may be computed from raw values.

  Args:
    client_update, element_spec, initial_weights, server: As for `build_chunked`.
    factory: Unweighted, or weighted: each client then has the weight 1.
    seeded: Whether clients bring their keys.
    diagnostics: Whether the loss of training and the measurements are recorded.
  """
  server = Server(initial_weights, server)
  clients_type = client_type(element_spec, seeded=seeded)
  is_weighted = isinstance(factory, tff.aggregators.WeightedAggregationFactory)
  aggregator = factory.create(
      server.weights_type, *[tff.TensorType(np.float32)] * is_weighted)

  @tff.tensorflow.computation(clients_type, server.weights_type)
  def train(client, weights):
    key = client['key'] if seeded else keys.fresh()
    delta, training = client_update(weights, client['examples'], keys.derive(key, 0))
    # As in this project's sums: an update that is not finite would end the run.
    is_finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(x)) for x in delta])
    return [tf.where(is_finite, x, tf.zeros_like(x)) for x in delta], training

  @tff.tensorflow.computation(
      server.weights_type, server.optimizer_type,
      aggregator.next.type_signature.result.result.member)
  def step_server(weights, optimizer_state, mean):
    return server.step(weights, optimizer_state, list(mean))

  def run_round(state, clients):
    sent = tff.federated_map(train, (clients, tff.federated_broadcast(state['weights'])))
    output = aggregator.next(
        state['aggregator'], sent[0],
        *[tff.federated_value(1.0, tff.CLIENTS)] * is_weighted)
    weights, optimizer_state = tff.federated_map(
        step_server, (state['weights'], state['optimizer'], output.result))
    metrics = collections.OrderedDict(aggregator=tff.federated_value(
        collections.OrderedDict(), tff.SERVER))
    if diagnostics:
      metrics['training'] = tff.federated_sum(sent[1])
      metrics['measured'] = output.measurements
    return weights, optimizer_state, output.state, metrics

  return server.process(clients_type, aggregator.initialize, run_round)


def set_cohort_size(state, cohort_size: int, factory):
  """The process's state for a round of this many selected clients.

  Mechanisms that split their noise over the cohort size their shares by it; for
  others nothing changes.
  """
  setter = getattr(factory, 'set_cohort_size', None)
  return state if setter is None else collections.OrderedDict(
      state, aggregator=setter(state['aggregator'], cohort_size))
