"""TFF computations executed in this process, by the TensorFlow that is installed.

TFF's worker is a binary of its own: it has no XLA, is spoken to by gRPC, takes
seconds to start, and keeps memory of past rounds. This executor runs the same
compiled computations with TensorFlow sessions in this process. Clients of a map
run in parallel on a pool of threads; TensorFlow releases Python's lock while it
computes.

Every leaf of a computation is a TensorFlow graph with sessions of its own, which
keep the optimised graph. Secure sums are plain sums here (see `contexts`).
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
import functools
import itertools
import threading
from typing import Any
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

# Summed as arrays: as TFF reduces them, each addition would be a graph call.
_SUMS = frozenset({'federated_sum', 'federated_secure_modular_sum'})


def _unsupported(what: str) -> NotImplementedError:
  return NotImplementedError(
      f'{what} cannot run in this process: use workers (num_workers of at least 1)')


class _Evaluator:
  """Evaluates the building blocks of a computation for a number of clients.

  A method with the name of an intrinsic maps its argument to its value.
  """

  def __init__(self, num_clients: int, compiled: '_Compiled',
               factory: 'InProcessExecutorFactory'):
    self._num_clients = num_clients
    self._compiled = compiled
    self._factory = factory

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
      function = self.evaluate(block.function, env)
      if block.argument is None:
        return function()
      return function(self.evaluate(block.argument, env))
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
    method = getattr(self, block.uri, None)
    if method is None:
      raise _unsupported(f'intrinsic {block.uri}')
    if block.uri in _SUMS:
      return functools.partial(method, block.type_signature.result.member)
    return method

  def _each(self, function: Callable, arguments: Sequence) -> AtClients:
    # Threads take slices: handing over single clients would cost as much as a
    # small client's work. Slices are small enough that threads end together.
    size = max(1, len(arguments) // (16 * self._factory.num_threads))
    slices = [arguments[i:i + size] for i in range(0, len(arguments), size)]
    run = map if len(slices) < 2 else self._factory.threads.map
    results = run(lambda part: list(map(function, part)), slices)
    return AtClients(list(itertools.chain.from_iterable(results)))

  def _values(self, placed) -> list:
    if isinstance(placed, AllEqual):
      return [placed.value] * self._num_clients
    return placed.values

  def federated_aggregate(self, argument):
    placed, zero, accumulate, _, report = argument
    total = zero
    for value in self._values(placed):
      total = accumulate((total, value))
    return AtServer(report(total))

  def federated_broadcast(self, argument):
    return AllEqual(argument.value)

  def federated_eval_at_clients(self, argument):
    return self._each(lambda _: argument(), range(self._num_clients))

  def federated_eval_at_server(self, argument):
    return AtServer(argument())

  def federated_apply(self, argument):
    function, placed = argument
    return AtServer(function(placed.value))

  def federated_map(self, argument):
    """At clients, and at the server too: TFF's own executor takes both."""
    function, placed = argument
    if isinstance(placed, AtServer):
      return self.federated_apply(argument)
    return self._each(function, self._values(placed))

  def federated_map_all_equal(self, argument):
    function, placed = argument
    if isinstance(placed, AllEqual):
      return AllEqual(function(placed.value))
    return self._each(function, placed.values)

  def federated_sum(self, member: tff.Type, argument):
    """Integers wrap around in their type, as in TensorFlow."""
    return AtServer(values_lib.total(member, self._values(argument)))

  def federated_secure_modular_sum(self, member: tff.Type, argument):
    """The result of a secure aggregation protocol, summed in the clear."""
    placed, modulus = argument
    return AtServer(values_lib.total(member, self._values(placed), modulus))

  def federated_value_at_clients(self, argument):
    return AllEqual(argument)

  def federated_value_at_server(self, argument):
    return AtServer(argument)

  def federated_zip_at_clients(self, argument):
    # `tree` would keep their classes, and so all of TFF, beyond the interpreter's end.
    leaves = []
    values_lib.map_leaves(leaves.append, argument)
    if all(isinstance(leaf, AllEqual) for leaf in leaves):
      return AllEqual(values_lib.map_leaves(lambda leaf: leaf.value, argument))
    rows = map(iter, zip(*map(self._values, leaves)))
    return AtClients([
        values_lib.map_leaves(lambda _, row=row: next(row), argument) for row in rows])

  def federated_zip_at_server(self, argument):
    return AtServer(values_lib.map_leaves(lambda leaf: leaf.value, argument))


class _Compiled:
  """A computation as building blocks, and the graphs of its leaves.

  Attributes:
    block: The whole computation.
  """

  def __init__(self, block: building_blocks.ComputationBuildingBlock):
    self.block = block
    # By the id of a leaf, which lives as long as `block`.
    self._graphs: dict[int, Graph] = {}
    self._lock = threading.Lock()

  def graph(self, leaf: building_blocks.CompiledComputation) -> Graph:
    """The graph of a leaf, built once."""
    with self._lock:
      if id(leaf) not in self._graphs:
        kind = leaf.proto.WhichOneof('computation')
        if kind != 'tensorflow':
          raise _unsupported(f'a {kind} computation')
        self._graphs[id(leaf)] = Graph(leaf.proto.tensorflow)
      return self._graphs[id(leaf)]

  def close(self) -> None:
    """Ends the sessions."""
    with self._lock:
      for graph in self._graphs.values():
        graph.close()


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

  def __init__(self, num_clients: int, factory: 'InProcessExecutorFactory'):
    self._num_clients = num_clients
    self._factory = factory

  def close(self):
    pass

  async def create_value(self, value, type_spec=None):
    if isinstance(type_spec, tff.FunctionType):
      compiled = self._factory.compiled(value)
      evaluator = _Evaluator(self._num_clients, compiled, self._factory)
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
  """Creates executors that share compiled computations and a pool of threads.

  Attributes:
    num_threads: Clients of a map that are computed in parallel.
    threads: The pool.
  """

  def __init__(self, num_threads: int):
    """Starts nothing yet.

    Args:
      num_threads: Clients of a map that are computed in parallel, >= 1.
    """
    self.num_threads = num_threads
    self.threads = futures.ThreadPoolExecutor(num_threads)
    self._compiled: dict[int, _Compiled] = {}
    self._closed = False

  def create_executor(self, cardinalities) -> tff_internals.Executor:
    if self._closed:
      raise RuntimeError('the context of this computation has ended')
    # Without an argument at clients there are no clients.
    return _Executor(cardinalities.get(tff.CLIENTS, 0), self)

  def clean_up_executor(self, cardinalities):
    pass

  def compiled(self, computation: tff.Computation) -> _Compiled:
    """The computation in its compiled form.

    Compiled once for as long as it lives: TFF's own cache would hash all of a
    computation at every call.
    """
    compiled = self._compiled.get(id(computation))
    if compiled is None:
      compiled = _Compiled(tff_internals.reduced(computation, _SUMS))
      self._compiled[id(computation)] = compiled
      # Another computation may get this id once this one is gone.
      weakref.finalize(computation, self._compiled.pop, id(computation), None)
    return compiled

  def close(self) -> None:
    """Ends threads, sessions and calls that are running. Idempotent."""
    self._closed = True
    self.threads.shutdown(wait=False, cancel_futures=True)
    for compiled in tuple(self._compiled.values()):
      compiled.close()
    self._compiled.clear()
    self.threads.shutdown()
