"""Marked graphs, executed in part by compiled kernels: chunks, and the server's sum.

Marks in the graph of a chunk of clients (`aggregators.native.marks`) have the
parameters of its encoding. The graph trains its clients, some at a time, and
`aggregators.native.encoding` encodes them, to the same integers. A sum that the
server's graph marks is decoded by `aggregators.native.decoding`, to the same floats.
Without numba, or if it fails to compile, a warning says so, and graphs compute all.
"""

from collections.abc import Callable, Sequence
import re
import threading
from typing import Any
import warnings

import numpy as np
import tensorflow as tf

from aggregators import client_sum
from aggregators.native import kept, marks

# Serialized graphs without it have no marks.
MARKED = re.compile(f'{marks.SCOPE}|{marks.DECODING}'.encode())

_MARK = re.compile(rf'(^|/)({marks.SCOPE}|{marks.DECODING})(_\d+)?/{marks.PARAMETERS}$')

# Forms that have encoded marked chunks, 'native' or 'graph', in this process and in
# workers that have answered.
encoders: set[str] = set()

_lock = threading.Lock()
# The modules of the kernels, once they were tried; None where they can't be used.
_tried: list[Any] = []


def kernels() -> tuple[Any, Any]:
  """The modules `encoding` and `decoding`; None twice, and a warning, without them."""
  with _lock:
    if not _tried:
      try:
        kept.finished()
        from aggregators.native import decoding, encoding  # pylint: disable=g-import-not-at-top
        encoding.try_out()
        decoding.try_out()
      except Exception as error:  # pylint: disable=broad-exception-caught
        warnings.warn(
            'updates are encoded by TensorFlow, which takes several times as long: the '
            f'compiled kernels can\'t be used: {error!r}', RuntimeWarning, stacklevel=2)
        encoding = decoding = None
      _tried.extend((encoding, decoding))
    return tuple(_tried)


def encoder(sum_factory: client_sum.ClientSumFactory) -> str:
  """Forms that have encoded chunks: 'native', 'graph', or both: 'graph, native'.

  If no chunk was encoded since `encoders` was cleared, the form that this process would
  use. Both occur if workers differ, or if no table has the noise of some chunks.
  """
  return ('graph' if sum_factory.native_params is None else
          ', '.join(sorted(encoders)) or _name(kernels()[0]))


def _name(kernels_or_sum) -> str:
  return 'graph' if kernels_or_sum is None else 'native'


class _Marked:
  """A graph with marks of one scope; `calls` have names of more feeds, and of fetches."""

  calls: list[tuple[Sequence[str], Sequence[str]]]

  def __init__(self, graph: tf.Graph, scope: str, feeds: Sequence[str],
               fetches: Sequence[str]):
    """Reads the marks; TypeError or ValueError if they are not those of this version."""
    self._graph, self._scope, self._feeds = graph, scope, feeds
    # The operations of the scope, by their names in it.
    self._operations = {
        operation.name.removeprefix(scope): operation
        for operation in graph.get_operations() if operation.name.startswith(scope)}
    self._params = marks.parameters(tf.make_ndarray(
        self._operations[marks.PARAMETERS].get_attr('value')).item())
    self._plan(fetches)

  def _plan(self, fetches: Sequence[str]) -> None:
    """Plans the calls."""

  def _listed(self, mark: str) -> list[str]:
    """The tensors of a mark that is a list."""
    return [f'{self._scope}{mark}/{i}:0' for i in range(sum(
        name.startswith(f'{mark}/') for name in self._operations))]


class NativeSum(_Marked):
  """A server's graph with marks around the decoding of a sum."""

  def _plan(self, fetches: Sequence[str]) -> None:
    arguments, results = map(self._listed, (marks.ARGUMENTS, marks.RESULTS))
    if len(arguments) != 3 or len(results) != 2 or set(results) & set(fetches):
      raise ValueError(f'unknown arguments and results: {arguments}, {results}')
    self.calls = [((), arguments), (results, fetches)]

  def results(self, feeds: Sequence[Any], ask: Callable, finish: Callable
              ) -> Sequence[Any] | None:
    """The results of the graph; None if the graph must compute them.

    `ask` gives the arguments of the decoding; `finish` takes its results.
    """
    del feeds  # Unused.
    _, decoding = kernels()
    return decoding and finish(*decoding.decoded(self._params, *ask()))


class NativeChunk(_Marked):
  """A chunk's graph with marks."""

  def _plan(self, fetches: Sequence[str]) -> None:
    def name(mark):
      return f'{self._scope}{mark}:0'

    prefix = f'{marks.STATE}/'
    self._state = {
        mark.removeprefix(prefix): self._feeds.index(operation.inputs[0].name)
        for mark, operation in self._operations.items() if mark.startswith(prefix)}
    marked = [_source(self._graph, fetch, self._scope) for fetch in fetches]
    self._total = marked.index(name(marks.TOTAL))
    self._diagnostics, self._training = (
        list(map(marked.index, self._listed(mark)))
        for mark in (marks.DIAGNOSTICS, marks.TRAINING_TOTALS))
    self._others = [i for i in range(len(fetches))
                    if i not in (self._total, *self._diagnostics, *self._training)]
    at_once = self._operations.get(marks.AT_A_TIME)
    self._size = marks.at_a_time(self._params) if at_once is None else (
        tf.make_ndarray(at_once.get_attr('value')).item())
    self.calls = [([name(marks.FIRST), name(marks.SIZE)], [
        *map(name, (marks.VECTORS, marks.KEYS, marks.COUNT)),
        *self._listed(marks.TRAINING), *(fetches[i] for i in self._others)])]

  def results(self, feeds: Sequence[Any], train: Callable) -> list[Any] | None:
    """The results of the graph for its feeds; None if the graph must compute them.

    `train` takes the index of the first client and a number of clients, and returns
    updates, keys, number of clients in the chunk, training scalars, and other results.
    """
    encoding, _ = kernels()
    total = encoding and encoding.EncodedSum.of(
        self._params, {name: feeds[i] for name, i in self._state.items()})
    encoders.add(_name(total))
    if total is None:
      return None
    training = [np.float32(0)] * len(self._training)
    first, count = 0, 1
    while first < count:
      vectors, keys, count, *rest = train(np.int32(first), np.int32(self._size))
      # A call that trains one client returns one update, even of an empty chunk.
      total.add(vectors[:count - first], keys[:count - first])
      for i in range(len(training)):
        for value in rest[i][:count - first]:  # In the order of the graph.
          training[i] = training[i] + value
      first += self._size
    # TensorFlow flattens mappings in the order of their names.
    measured = [np.int32(value) for _, value in sorted(
        zip(encoding.DIAGNOSTICS, total.diagnostics))]
    results = {self._total: total.total, **dict(zip(self._diagnostics, measured)),
               **dict(zip(self._training, training)),
               **dict(zip(self._others, rest[len(training):]))}
    return [results[i] for i in sorted(results)]


def _source(graph: tf.Graph, name: str, scope: str) -> str:
  """Name of the marked tensor behind a result, which TFF renames by identities."""
  tensor = graph.get_tensor_by_name(name)
  while tensor.op.type == 'Identity' and not tensor.name.startswith(scope):
    tensor = tensor.op.inputs[0]
  return tensor.name


def find(graph: tf.Graph, feeds: Sequence[str], fetches: Sequence[str]
         ) -> NativeChunk | NativeSum | None:
  """The native form of a graph with marks; None for other graphs."""
  scopes = [operation.name.removesuffix(marks.PARAMETERS)
            for operation in graph.get_operations()
            if operation.type == 'Const' and _MARK.search(operation.name)]
  if len(scopes) != 1:
    return None
  form = NativeSum if marks.DECODING in scopes[0] else NativeChunk
  try:
    return form(graph, scopes[0], feeds, fetches)
  except (TypeError, ValueError):  # Of another version, or a part.
    return None
