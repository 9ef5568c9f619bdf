"""TFF computations executed in this process, by the TensorFlow that is installed.

TFF's worker is a binary of its own: it has no XLA, is spoken to by gRPC, takes
seconds to start, and keeps memory of past rounds. This executor runs the same
compiled computations with TensorFlow sessions in this process. Clients of a map
run side by side on a pool of threads; TensorFlow lets go of Python's lock while
it computes.

Every leaf of a computation is a TensorFlow graph with sessions of its own, which
keep the optimised graph. Secure sums are plain sums here (see `contexts`).
"""

from concurrent import futures
import dataclasses
import threading
from typing import Any, Callable, Mapping, Sequence
import weakref

import tensorflow_federated as tff

from aggregators import tff_internals
from tff_pipelines.simulation import in_process_values as values_lib
from tff_pipelines.simulation.in_process_graph import Graph
from tff_pipelines.simulation.in_process_values import AllEqual
from tff_pipelines.simulation.in_process_values import AtClients
from tff_pipelines.simulation.in_process_values import AtServer

building_blocks = tff_internals.BUILDING_BLOCKS
structure = tff_internals.STRUCTURE

_Env = Mapping[str, Any]


# What is summed here, as arrays, and not by one graph call for each addition.
_SUMMED_HERE = frozenset({
    'federated_sum', 'federated_secure_modular_sum'})


class _Evaluator:
  """Evaluates building blocks for a number of clients."""

  def __init__(self, num_clients: int, graphs: '_Graphs',
               pool: '_Pool'):
    self._num_clients = num_clients
    self._graphs = graphs
    self._pool = pool

  def evaluate(self, block, env: _Env):
    """The value of a building block where `env` has the values of names."""
    if isinstance(block, building_blocks.CompiledComputation):
      return self._graphs.of(block)
    if isinstance(block, building_blocks.Reference):
      return env[block.name]
    if isinstance(block, building_blocks.Selection):
      return self.evaluate(block.source, env)[block.as_index()]
    if isinstance(block, building_blocks.Struct):
      return tuple(self.evaluate(element, env) for element in block)
    if isinstance(block, building_blocks.Call):
      function = self.evaluate(block.function, env)
      if block.argument is None:
        return function()
      return function(self.evaluate(block.argument, env))
    if isinstance(block, building_blocks.Lambda):
      def function(argument=None):
        if block.parameter_name is None:
          return self.evaluate(block.result, env)
        return self.evaluate(
            block.result, {**env, block.parameter_name: argument})
      return function
    if isinstance(block, building_blocks.Block):
      env = dict(env)
      for name, value in block.locals:
        env[name] = self.evaluate(value, env)
      return self.evaluate(block.result, env)
    if isinstance(block, building_blocks.Literal):
      return values_lib.as_array(block.value, block.type_signature)
    if isinstance(block, building_blocks.Intrinsic):
      return self._intrinsic(block)
    raise NotImplementedError(
        f'{type(block).__name__} cannot run in this process: use workers '
        '(num_workers of at least 1)')

  def _intrinsic(self, block) -> Callable:
    method = _INTRINSICS.get(block.uri)
    if method is None:
      raise NotImplementedError(
          f'intrinsic {block.uri} cannot run in this process: use workers '
          '(num_workers of at least 1)')
    return lambda argument=None: method(self, block.type_signature, argument)

  def _each(self, function: Callable, arguments: Sequence) -> AtClients:
    # Threads take slices: handing over single clients would cost as much as a
    # small client's work. Slices are small enough that threads end together.
    size = max(1, len(arguments) // (16 * self._pool.num_threads))
    slices = [arguments[i:i + size] for i in range(0, len(arguments), size)]

    def each_of(some):
      return [function(argument) for argument in some]

    if len(slices) < 2:
      return AtClients(each_of(arguments))
    results = []
    for part in self._pool.threads.map(each_of, slices):
      results.extend(part)
    return AtClients(results)

  def _values(self, placed) -> list:
    if isinstance(placed, AllEqual):
      return [placed.value] * self._num_clients
    return placed.values

  def aggregate(self, signature, argument):
    del signature  # Unused.
    placed, zero, accumulate, _, report = argument
    total = zero
    for value in self._values(placed):
      total = accumulate((total, value))
    return AtServer(report(total))

  def broadcast(self, signature, argument):
    del signature  # Unused.
    return AllEqual(argument.value)

  def eval_at_clients(self, signature, argument):
    del signature  # Unused.
    return self._each(lambda _: argument(), range(self._num_clients))

  def eval_at_server(self, signature, argument):
    del signature  # Unused.
    return AtServer(argument())

  def apply(self, signature, argument):
    del signature  # Unused.
    function, placed = argument
    return AtServer(function(placed.value))

  def map(self, signature, argument):
    """At clients, and at the server too: TFF's own executor takes both."""
    function, placed = argument
    if isinstance(placed, AtServer):
      return self.apply(signature, argument)
    return self._each(function, self._values(placed))

  def map_all_equal(self, signature, argument):
    del signature  # Unused.
    function, placed = argument
    if isinstance(placed, AllEqual):
      return AllEqual(function(placed.value))
    return self._each(function, placed.values)

  def sum(self, signature, argument):
    """Integers wrap around in their type, as in TensorFlow."""
    return AtServer(values_lib.total(signature.result.member, self._values(argument)))

  def secure_modular_sum(self, signature, argument):
    """What a protocol of secure aggregation would give, summed in the clear."""
    placed, modulus = argument
    return AtServer(
        values_lib.total(signature.result.member, self._values(placed), modulus))

  def value_at_clients(self, signature, argument):
    del signature  # Unused.
    return AllEqual(argument)

  def value_at_server(self, signature, argument):
    del signature  # Unused.
    return AtServer(argument)

  def zip_at_clients(self, signature, argument):
    del signature  # Unused.
    leaves = []
    _federated_leaves(argument, leaves)
    if all(isinstance(leaf, AllEqual) for leaf in leaves):
      return AllEqual(_unplaced(argument, lambda leaf: leaf.value))
    return AtClients([
        _unplaced(argument, lambda leaf: leaf.value  # pylint: disable=g-long-lambda
                  if isinstance(leaf, AllEqual) else leaf.values[i])  # pylint: disable=cell-var-from-loop
        for i in range(self._num_clients)])

  def zip_at_server(self, signature, argument):
    del signature  # Unused.
    return AtServer(_unplaced(argument, lambda leaf: leaf.value))


_INTRINSICS = {
    'federated_aggregate': _Evaluator.aggregate,
    'federated_apply': _Evaluator.apply,
    'federated_broadcast': _Evaluator.broadcast,
    'federated_eval_at_clients': _Evaluator.eval_at_clients,
    'federated_eval_at_server': _Evaluator.eval_at_server,
    'federated_map': _Evaluator.map,
    'federated_map_all_equal': _Evaluator.map_all_equal,
    'federated_secure_modular_sum': _Evaluator.secure_modular_sum,
    'federated_sum': _Evaluator.sum,
    'federated_value_at_clients': _Evaluator.value_at_clients,
    'federated_value_at_server': _Evaluator.value_at_server,
    'federated_zip_at_clients': _Evaluator.zip_at_clients,
    'federated_zip_at_server': _Evaluator.zip_at_server,
}


def _federated_leaves(value, found: list) -> None:
  if isinstance(value, tuple):
    for element in value:
      _federated_leaves(element, found)
  else:
    found.append(value)


def _unplaced(value, of_leaf: Callable):
  if isinstance(value, tuple):
    return tuple(_unplaced(element, of_leaf) for element in value)
  return of_leaf(value)


@dataclasses.dataclass(frozen=True)
class _Pool:
  threads: futures.ThreadPoolExecutor
  num_threads: int


class _Graphs:
  """The graphs of a computation's leaves; they live as long as it does."""

  def __init__(self):
    self._graphs: dict[int, tuple[Any, Graph]] = {}
    self._lock = threading.Lock()

  def of(self, block) -> Graph:
    with self._lock:
      kept = self._graphs.get(id(block))
      if kept is None:
        proto = block.proto
        if proto.WhichOneof('computation') != 'tensorflow':
          raise NotImplementedError(
              f'a {proto.WhichOneof("computation")} computation cannot run in '
              'this process: use workers (num_workers of at least 1)')
        # The block is kept too, so that no other gets its id.
        kept = block, Graph(proto.tensorflow)
        self._graphs[id(block)] = kept
    return kept[1]

  def close(self) -> None:
    """Ends the sessions."""
    with self._lock:
      for _, graph in self._graphs.values():
        graph.close()


@dataclasses.dataclass(frozen=True)
class _Compiled:
  """A computation as building blocks, and its graphs."""

  block: building_blocks.ComputationBuildingBlock
  graphs: _Graphs


class _Value(tff_internals.ExecutorValue):
  """A value embedded in the executor."""

  def __init__(self, value, type_spec):
    self._value = value
    self._type_spec = type_spec

  @property
  def type_signature(self):
    return self._type_spec

  @property
  def reference(self):
    return self._value

  async def compute(self):
    return values_lib.returned(self._value, self._type_spec)


class _Executor(tff_internals.Executor):
  """Executes computations for a fixed number of clients."""

  def __init__(self, num_clients: int, owner: 'InProcessExecutorFactory'):
    self._num_clients = num_clients
    self._owner = owner

  def close(self):
    pass

  async def create_value(self, value, type_spec=None):
    if isinstance(type_spec, tff.FunctionType):
      compiled = self._owner.compiled(value)
      evaluator = _Evaluator(
          self._num_clients, compiled.graphs, self._owner.pool)
      return _Value(evaluator.evaluate(compiled.block, {}), type_spec)
    return _Value(values_lib.ingested(value, tff.to_type(type_spec)), type_spec)

  async def create_call(self, comp, arg=None):
    result = comp.reference() if arg is None else comp.reference(arg.reference)
    return _Value(result, comp.type_signature.result)

  async def create_struct(self, elements):
    elements = structure.to_elements(structure.from_container(elements))
    return _Value(
        tuple(element.reference for _, element in elements),
        tff.StructType([(name, element.type_signature) if name
                        else element.type_signature for name, element in elements]))

  async def create_selection(self, source, index):
    return _Value(source.reference[index], source.type_signature[index])


class InProcessExecutorFactory(tff_internals.ExecutorFactory):
  """Makes executors that share compiled computations and a pool of threads."""

  def __init__(self, num_threads: int):
    """Starts nothing yet.

    Args:
      num_threads: Clients of a map that are computed side by side, >= 1.
    """
    self.pool = _Pool(futures.ThreadPoolExecutor(num_threads), num_threads)
    self._compiled: dict[int, _Compiled] = {}
    self._closed = False

  def create_executor(self, cardinalities) -> tff_internals.Executor:
    if self._closed:
      raise RuntimeError('the context of this computation has ended')
    # Without an argument at clients there is nobody.
    return _Executor(cardinalities.get(tff.CLIENTS, 0), self)

  def clean_up_executor(self, cardinalities):
    pass

  def compiled(self, computation: tff.Computation) -> _Compiled:
    """The computation in its compiled form.

    Compiled once for as long as it lives: TFF's own cache would hash all of a
    computation at every call.
    """
    kept = self._compiled.get(id(computation))
    if kept is None:
      kept = _Compiled(tff_internals.reduced(computation, _SUMMED_HERE), _Graphs())
      self._compiled[id(computation)] = kept
      # Another computation may get this id once this one is gone.
      weakref.finalize(computation, self._compiled.pop, id(computation), None)
    return kept

  def close(self) -> None:
    """Ends the threads and the sessions, and what they are at. Idempotent."""
    self._closed = True
    self.pool.threads.shutdown(wait=False, cancel_futures=True)
    for compiled in tuple(self._compiled.values()):
      compiled.graphs.close()
    self._compiled.clear()
    self.pool.threads.shutdown()
