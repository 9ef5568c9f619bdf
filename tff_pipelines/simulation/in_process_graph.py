"""A TensorFlow graph of a TFF computation, called by sessions in this process."""

import os
import re
import threading

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
import tree

from aggregators import keys
from tff_pipelines.simulation import in_process_values

# The operation that gives a key of `keys.fresh`.
_FRESH_KEY = re.compile(rf'(^|/){keys.FRESH}(_\d+)?/key$')

# Operations that keep something from one call to the next, and that nothing
# initializes at the beginning of a call.
_KEEPS_STATE = re.compile(
    r'Mutable\w*HashTable|Queue|Barrier|Accumulator|'
    r'^(OneShotIterator|Iterator|IteratorV2|Stack|StackV2|\w*Stage)$')


class Graph:
  """A graph that may be called from any thread.

  Values are those of `in_process_values`. A graph with variables has a session for
  each thread and is initialized before each call; one that keeps state otherwise
  has a new session for each call. So no call sees what another left behind.
  """

  def __init__(self, proto):
    """Imports the graph.

    Args:
      proto: A Computation.TensorFlow of TFF.
    """
    graph_def = tf.compat.v1.GraphDef()
    proto.graph_def.Unpack(graph_def)
    functions = graph_def.library.function
    types = {node.op for nodes in (graph_def.node, *(f.node_def for f in functions))
             for node in nodes}
    self._graph = tf.Graph()
    self._feeds: list[str] = []
    self._fetches: list[str] = []
    # Datasets travel serialized: graphs take and give them as variants.
    self._datasets: dict[str, tf.Tensor] = {}
    with self._graph.as_default():
      if proto.HasField('parameter'):
        self._plan_feeds(proto.parameter)
      tf.import_graph_def(graph_def, input_map=self._datasets, name='')
      self._fresh_keys = self._find_fresh_keys(types)
      self._result = self._plan_result(proto.result)
    # What the graph does not use has no name.
    self._used = [i for i, name in enumerate(self._feeds) if name]
    self._initialize = proto.initialize_op
    self._keeps_state = any(map(_KEEPS_STATE.search, types))
    self._sessions: set[tf.compat.v1.Session] = set()
    self._per_thread = threading.local()
    self._shared = None
    if not self._initialize and not self._keeps_state:
      _, self._shared, _ = self._start()

  def _plan_feeds(self, binding) -> None:
    which = binding.WhichOneof('binding')
    if which == 'struct':
      for element in binding.struct.element:
        self._plan_feeds(element)
    elif which == 'tensor':
      self._feeds.append(binding.tensor.tensor_name)
    elif binding.sequence.variant_tensor_name:
      serialized = tf.compat.v1.placeholder(tf.string, [], 'in_process/dataset')
      self._datasets[binding.sequence.variant_tensor_name] = (
          tf.raw_ops.DatasetFromGraph(graph_def=serialized))
      self._feeds.append(serialized.name)
    else:
      self._feeds.append(binding.sequence.graph_def_tensor_name)

  def _find_fresh_keys(self, types: set[str]) -> list[str]:
    """Tensors that are fed kernel entropy, which TensorFlow takes long to read.

    Within functions nothing can be fed, and `keys.fresh` reads. So it does where
    there are loops of the old kind: their bodies are part of the graph, and one fed
    key would serve all iterations.
    """
    if types & {'Enter', 'RefEnter'}:
      return []
    return [
        operation.outputs[0].name for operation in self._graph.get_operations()
        if operation.type == 'Identity' and _FRESH_KEY.search(operation.name)
        and operation.outputs[0].dtype == tf.int64
        and operation.outputs[0].shape == [2]]

  def _plan_result(self, binding):
    """Fills the list of fetches; the index of a fetch, or a tuple of plans."""
    which = binding.WhichOneof('binding')
    if which == 'struct':
      return tuple(self._plan_result(element) for element in binding.struct.element)
    if which == 'tensor':
      name = binding.tensor.tensor_name
    elif name := binding.sequence.variant_tensor_name:
      dataset = self._datasets.get(name)
      if dataset is None:
        dataset = self._graph.get_tensor_by_name(name)
      name = tf.raw_ops.DatasetToGraphV2(input_dataset=dataset).name
    else:
      name = binding.sequence.graph_def_tensor_name
    if name in self._feeds or name in self._fresh_keys:
      # Sessions do not return what they are fed.
      name = tf.identity(self._graph.get_tensor_by_name(name)).name
    self._fetches.append(name)
    return len(self._fetches) - 1

  def _start(self):
    """A session, and what calls the graph and its initialization, or None."""
    # Operations run in the thread that calls: clients are what runs in parallel,
    # and handing single operations from thread to thread doubles their cost.
    session = tf.compat.v1.Session(
        graph=self._graph,
        config=tf.compat.v1.ConfigProto(inter_op_parallelism_threads=-1))
    self._sessions.add(session)

    def callable_of(**options):
      # A tenth of the cost of `Session.run`.
      return session._make_callable_from_options(  # pylint: disable=protected-access
          config_pb2.CallableOptions(**options))

    feeds = [self._feeds[i] for i in self._used] + self._fresh_keys
    return (session, callable_of(feed=feeds, fetch=self._fetches),
            callable_of(target=[self._initialize]) if self._initialize else None)

  def _initialized(self):
    """The callable of the graph, with nothing left from calls before."""
    started = getattr(self._per_thread, 'started', None)
    if started is not None and self._keeps_state:
      started[0].close()
      self._sessions.discard(started[0])
    if started is None or self._keeps_state:
      started = self._per_thread.started = self._start()
    _, call, initialize = started
    if initialize is not None:
      initialize()
    return call

  def __call__(self, argument=None):
    call = self._shared or self._initialized()
    feeds = () if argument is None else tree.flatten(argument)
    # As a scalar of NumPy's own type bytes would lose zeros at their end.
    feeds = [np.array(feed, object) if isinstance(feed, bytes) else feed
             for feed in feeds]
    fresh = (np.frombuffer(os.urandom(16), np.int64) for _ in self._fresh_keys)
    fetched = call(*(feeds[i] for i in self._used), *fresh)
    return in_process_values.map_leaves(fetched.__getitem__, self._result)

  def close(self) -> None:
    """Ends the sessions; calls that are running are cancelled."""
    for session in tuple(self._sessions):
      session.close()
