"""TFF computations executed in this process, by the TensorFlow that is installed.

TFF's own worker is a binary without XLA, takes seconds to start, and listens on every
interface. Here every leaf of a computation is a TensorFlow graph with sessions of its
own, which keep the optimised graph. Clients of a map run in parallel on a pool of
threads; TensorFlow releases Python's lock while it computes. Secure sums are plain sums
(see `contexts`); `values` has the form of values inside.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
import ctypes
import functools
import itertools
import os
import re
import threading
from typing import Any
import weakref

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
import tensorflow_federated as tff
import tree

from aggregators import keys, tff_internals
from tff_pipelines.simulation import forks, native_chunks, values as values_lib

# Lets each session say how many threads its operations have; it is read once, when
# TensorFlow first computes.
os.environ.setdefault('TF_OVERRIDE_GLOBAL_THREADPOOL', '1')

building_blocks = tff_internals.BUILDING_BLOCKS
structure = tff_internals.STRUCTURE

_ROUNDS_PER_TRIM = 10

# Summed as arrays: as TFF reduces them, each addition would be a graph call.
_SUMS = frozenset({'federated_sum', 'federated_secure_modular_sum'})

# The operation that gives a key of `keys.fresh`.
_FRESH_KEY = re.compile(rf'(^|/){keys.FRESH}(_\d+)?/key$')

# Such an operation instantiates its function again at each call, which sessions would
# optimise each time, with all that it calls.
_REDUCES = b'ReduceDataset'

# Operations that keep something from one call to the next, and that nothing
# initializes at the beginning of a call.
_KEEPS_STATE = re.compile(
    r'Mutable\w*HashTable|Queue|Barrier|Accumulator|'
    r'^(OneShotIterator|Iterator|IteratorV2|Stack|StackV2|\w*Stage)$')


def num_slices(elements: int) -> int:
  """Number of slices for `elements` clients, or chunks of clients: 1 to 64."""
  return max(1, min(elements, max(8, -(-elements // 8)), 64))


def sliced(values: Sequence[Any]) -> list[Sequence[Any]]:
  """The slices of values at clients, which workers would compute."""
  # Floats are summed in this order everywhere, so that workers change no last bit.
  count = num_slices(len(values))
  ends = [len(values) * i // count for i in range(count + 1)]
  return [values[start:end] for start, end in itertools.pairwise(ends)]


def _unsupported(what: str) -> NotImplementedError:
  return NotImplementedError(f'{what} cannot run in this process')


class Graph:
  """A graph that may be called from any thread.

  A graph with variables has a session for each thread and is initialized before each
  call; one that keeps state otherwise has a new session for each call. So no call sees
  what another left behind.
  """

  def __init__(self, leaf: building_blocks.CompiledComputation):
    serialized = leaf.proto.tensorflow.graph_def.value
    # Marks lead to nothing: they would be removed.
    self._optimized = _REDUCES in serialized and not native_chunks.MARKED.search(
        serialized)
    proto = (tff_internals.optimized(leaf) if self._optimized else leaf).proto.tensorflow
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
    # Inputs that the graph does not use have no name.
    self._used = [i for i, name in enumerate(self._feeds) if name]
    self._initialize = proto.initialize_op
    self._keeps_state = any(map(_KEEPS_STATE.search, types))
    self._sessions: set[tf.compat.v1.Session] = set()
    self._per_thread = threading.local()
    self._shared = self._native = None
    if not self._initialize and not self._keeps_state:
      session, self._shared, _ = self._start()
      self._native = native_chunks.find(self._graph, self._feeds, self._fetches)
      if self._native is not None:
        self._native_calls = [
            self._callable_of(session, feed=[*self._fed(), *feeds], fetch=fetches)
            for feeds, fetches in self._native.calls]

  def _plan_feeds(self, binding) -> None:
    if (which := binding.WhichOneof('binding')) == 'struct':
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
    """Tensors that are fed kernel entropy, which TensorFlow takes long to read."""
    # Within functions nothing can be fed, and `keys.fresh` reads. So it does where
    # there are loops of the old kind: their bodies are part of the graph, and one fed
    # key would serve all iterations.
    if types & {'Enter', 'RefEnter'}:
      return []
    return [
        operation.outputs[0].name for operation in self._graph.get_operations()
        if operation.type == 'Identity' and _FRESH_KEY.search(operation.name)
        and operation.outputs[0].dtype == tf.int64 and operation.outputs[0].shape == [2]]

  def _plan_result(self, binding):
    """Fills the list of fetches; the index of a fetch, or a tuple of plans."""
    if (which := binding.WhichOneof('binding')) == 'struct':
      return tuple(self._plan_result(element) for element in binding.struct.element)
    if which == 'tensor':
      name = binding.tensor.tensor_name
    elif name := binding.sequence.variant_tensor_name:
      dataset = (self._datasets[name] if name in self._datasets else
                 self._graph.get_tensor_by_name(name))
      name = tf.raw_ops.DatasetToGraphV2(input_dataset=dataset).name
    else:
      name = binding.sequence.graph_def_tensor_name
    if name in self._feeds or name in self._fresh_keys:
      # Sessions do not return what they are fed.
      name = tf.identity(self._graph.get_tensor_by_name(name)).name
    self._fetches.append(name)
    return len(self._fetches) - 1

  def _start(self):
    """A session, and callables of the graph and of its initialization, or None."""
    # Operations run in the thread that calls: clients are what runs in parallel,
    # and handing single operations from thread to thread doubles their cost. Nor do
    # they divide their work, or sums would depend on the number of the cores.
    config = tf.compat.v1.ConfigProto(
        inter_op_parallelism_threads=-1, intra_op_parallelism_threads=1)
    config.graph_options.rewrite_options.disable_meta_optimizer = self._optimized
    session = tf.compat.v1.Session(graph=self._graph, config=config)
    self._sessions.add(session)
    forks.ALIVE.add(session)
    call = self._callable_of(session, feed=self._fed(), fetch=self._fetches)
    return session, call, self._initialize and self._callable_of(
        session, target=[self._initialize])

  def _callable_of(self, session: tf.compat.v1.Session, **options):
    # A tenth of the cost of `Session.run`. Built at its first call, because TensorFlow
    # optimises the graph then: a graph with a native form is called either as a whole
    # or by its marks, and rarely both ways.
    @functools.cache
    def build():
      call = session._make_callable_from_options(  # pylint: disable=protected-access
          config_pb2.CallableOptions(**options))
      forks.ALIVE.add(call)
      return call

    lock = threading.Lock()

    def call(*arguments):
      with lock:  # Built once for all threads.
        built = build()
      return built(*arguments)

    return call

  def _fed(self) -> list[str]:
    """Names of the fed tensors: those of the argument that are used, and fresh keys."""
    return [self._feeds[i] for i in self._used] + self._fresh_keys

  def _initialized(self):
    """The callable of the graph, with nothing left from calls before."""
    started = getattr(self._per_thread, 'started', None)
    if started is not None and self._keeps_state:
      started[0].close()
      self._sessions.discard(started[0])
    if started is None or self._keeps_state:
      started = self._per_thread.started = self._start()
    _, call, initialize = started
    if initialize:
      initialize()
    return call

  def __call__(self, argument=None):
    call = self._shared or self._initialized()
    feeds = () if argument is None else tree.flatten(argument)
    # Bytes as a scalar of NumPy's own type would lose zeros at their end.
    feeds = [np.array(feed, object) if isinstance(feed, bytes) else feed
             for feed in feeds]
    fed = [feeds[i] for i in self._used] + [
        np.frombuffer(os.urandom(16), np.int64) for _ in self._fresh_keys]
    fetched = self._native and self._native.results(
        feeds, *(functools.partial(call, *fed) for call in self._native_calls))
    if fetched is None:
      fetched = call(*fed)
    return values_lib.map_leaves(fetched.__getitem__, self._result)

  def close(self) -> None:
    """Ends the sessions; calls that are running are cancelled."""
    for session in tuple(self._sessions):
      session.close()


class _Evaluator:
  """Evaluates building blocks for some clients; its methods are named as intrinsics."""

  federated_value_at_clients = values_lib.AllEqual
  federated_value_at_server = values_lib.AtServer

  def __init__(self, num_clients: int, compiled: '_Compiled',
               context: 'InProcessContext'):
    self._num_clients, self._compiled = num_clients, compiled
    self._context = context

  def evaluate(self, block, env: Mapping[str | None, Any]):
    """The value of a building block where `env` has the values of names."""
    if isinstance(block, building_blocks.CompiledComputation):
      return self._compiled.graph(block)
    if isinstance(block, building_blocks.Reference):
      return env[block.name]
    if isinstance(block, building_blocks.Selection):
      return self.evaluate(block.source, env)[block.as_index()]
    if isinstance(block, building_blocks.Struct):
      return tuple(self.evaluate(element, env) for element in block)
    if isinstance(block, building_blocks.Call):
      arguments = [] if block.argument is None else [block.argument]
      return self.evaluate(block.function, env)(
          *(self.evaluate(argument, env) for argument in arguments))
    if isinstance(block, building_blocks.Lambda):
      # The name of a parameter is None if there is no parameter.
      return lambda argument=None: self.evaluate(
          block.result, {**env, block.parameter_name: argument})
    if isinstance(block, building_blocks.Block):
      env = dict(env)
      for name, value in block.locals:
        env[name] = self.evaluate(value, env)
      return self.evaluate(block.result, env)
    if isinstance(block, building_blocks.Literal):
      return values_lib.as_array(block.value, block.type_signature)
    if not isinstance(block, building_blocks.Intrinsic):
      raise _unsupported(type(block).__name__)
    if (method := getattr(self, block.uri, None)) is None:
      raise _unsupported(f'intrinsic {block.uri}')
    if block.uri in _SUMS:
      return functools.partial(method, block.type_signature.result.member)
    return method

  def _each(self, function: Callable, arguments: Sequence) -> values_lib.AtClients:
    # Threads take slices: handing over single clients would cost as much as a
    # small client's work. Slices are small enough that threads end together.
    size = max(1, len(arguments) // (16 * self._context.num_threads))
    slices = [arguments[i:i + size] for i in range(0, len(arguments), size)]
    run = map if len(slices) < 2 else self._context.threads.map
    results = run(lambda part: [function(values_lib.made(x)) for x in part], slices)
    return values_lib.AtClients(list(itertools.chain.from_iterable(results)))

  def _values(self, placed) -> list:
    return [placed.value] * self._num_clients if isinstance(
        placed, values_lib.AllEqual) else placed.values

  def federated_aggregate(self, argument):
    placed, zero, accumulate, _, report = argument
    result = zero
    for value in self._values(placed):
      result = accumulate((result, value))
    return values_lib.AtServer(report(result))

  def federated_broadcast(self, argument):
    return values_lib.AllEqual(argument.value)

  def federated_eval_at_clients(self, argument):
    return self._each(lambda _: argument(), range(self._num_clients))

  def federated_eval_at_server(self, argument):
    return values_lib.AtServer(argument())

  def federated_apply(self, argument):
    function, placed = argument
    return values_lib.AtServer(function(placed.value))

  def federated_map(self, argument):
    """Maps at clients, and at the server too: TFF's own executor accepts both."""
    function, placed = argument
    return (self.federated_apply(argument) if isinstance(placed, values_lib.AtServer) else
            self._each(function, self._values(placed)))

  def federated_map_all_equal(self, argument):
    function, placed = argument
    if isinstance(placed, values_lib.AllEqual):
      return values_lib.AllEqual(function(placed.value))
    return self._each(function, placed.values)

  def federated_sum(self, member: tff.Type, argument):
    """Sums values; integers wrap around in their type, as in TensorFlow."""
    return values_lib.AtServer(values_lib.total(member, [
        values_lib.total(member, part) for part in sliced(self._values(argument))]))

  def federated_secure_modular_sum(self, member: tff.Type, argument):
    """The result of a secure aggregation protocol, summed in the clear."""
    placed, modulus = argument
    return values_lib.AtServer(values_lib.total(member, self._values(placed), modulus))

  def federated_zip_at_clients(self, argument):
    leaves = values_lib.leaves(argument)
    if all(isinstance(leaf, values_lib.AllEqual) for leaf in leaves):
      return values_lib.AllEqual(values_lib.map_leaves(lambda leaf: leaf.value, argument))
    rows = map(iter, zip(*map(self._values, leaves)))
    return values_lib.AtClients([
        values_lib.map_leaves(lambda _, row=row: next(row), argument) for row in rows])

  def federated_zip_at_server(self, argument):
    return values_lib.AtServer(values_lib.map_leaves(lambda leaf: leaf.value, argument))


def built_once(built: dict[int, Any], computation: tff.Computation,
               build: Callable[[tff.Computation], Any]) -> Any:
  """`build(computation)`, once in its lifetime; TFF's cache would hash all at a call."""
  if id(computation) not in built:
    built[id(computation)] = build(computation)
    # Another computation may get this id once this one is gone.
    weakref.finalize(computation, built.pop, id(computation), None)
  return built[id(computation)]


class _Compiled:
  """A computation as building blocks, and the graphs of its leaves."""

  def __init__(self, computation: tff.Computation):
    self.block = tff_internals.reduced(computation, _SUMS)
    # By the id of a leaf, which lives as long as `block`.
    self._graphs: dict[int, Graph] = {}
    self._lock = threading.Lock()

  def graph(self, leaf: building_blocks.CompiledComputation) -> Graph:
    """The graph of a leaf, built once."""
    with self._lock:
      if id(leaf) not in self._graphs:
        if (kind := leaf.proto.WhichOneof('computation')) != 'tensorflow':
          raise _unsupported(f'a {kind} computation')
        self._graphs[id(leaf)] = Graph(leaf)
      return self._graphs[id(leaf)]

  def close(self) -> None:
    with self._lock:
      for graph in self._graphs.values():
        graph.close()


class InProcessContext(tff.framework.SyncContext):
  """Executes computations; calls share compiled forms, and the pool `threads`."""

  def __init__(self, num_threads: int):
    """Starts nothing yet; `num_threads` >= 1 clients are computed in parallel."""
    self.num_threads = num_threads
    self.threads = futures.ThreadPoolExecutor(num_threads)
    # TensorFlow does not heed interrupts: the caller's thread must not compute.
    self._caller = futures.ThreadPoolExecutor(1)
    self._compiled: dict[int, _Compiled] = {}
    self._closed = False
    self._rounds = 0

  def invoke(self, comp: tff.Computation, arg: Any) -> Any:
    """The result of a computation, in containers of Python."""
    if self._closed:
      raise RuntimeError('the context of this computation has ended')
    return self._caller.submit(self._invoke, comp, arg).result()

  def _invoke(self, computation: tff.Computation, argument: Any) -> Any:
    types = computation.type_signature
    arguments = [] if types.parameter is None else [
        values_lib.ingested(argument, types.parameter)]
    num_clients = values_lib.num_clients(arguments)
    result = self.function(computation, num_clients)(*arguments)
    if num_clients:
      self.give_back_memory()
    return tff_internals.in_containers(
        values_lib.returned(result, types.result), types.result)

  def give_back_memory(self) -> None:
    """Trims the heaps, in which threads that end leave holes, once in several rounds."""
    self._rounds += 1
    if self._rounds % _ROUNDS_PER_TRIM == 0:
      ctypes.CDLL(None).malloc_trim(0)

  def function(self, computation: tff.Computation, num_clients: int) -> Callable:
    """A computation as a function of values, for a number of clients."""
    compiled = self.compiled(computation)
    return _Evaluator(num_clients, compiled, self).evaluate(compiled.block, {})

  def compiled(self, computation: tff.Computation) -> _Compiled:
    """The computation in its compiled form."""
    return built_once(self._compiled, computation, _Compiled)

  def close(self) -> None:
    """Ends threads, sessions and calls that are running. Idempotent."""
    self._closed = True
    self.threads.shutdown(wait=False, cancel_futures=True)
    for compiled in tuple(self._compiled.values()):
      compiled.close()
    self._compiled.clear()
    self.threads.shutdown()
    self._caller.shutdown()
