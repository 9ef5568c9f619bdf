"""Rounds in slices: clients are divided among workers, their sums merged in order.

A computation with values at clients is split by TFF's mergeable form: `up_to_merge` is
computed for each slice of the clients by a worker, in any order; `merge` and
`after_merge` follow in this process. The number of slices follows from the number of
clients (or chunks of clients) alone and their results are merged in the order of the
slices, so results do not depend on the number of workers, nor on which of them failed.

A worker that is lost or passes the deadline is replaced and its slice computed again,
by whichever worker is free, without a seed with fresh keys of the clients' noise. Of
each slice one answer is merged, so the released sum has one noise share of each client,
as is accounted for. This needs that a computation is dropped independently of the noise
that it drew: the time of a draw varies by microseconds, where a deadline is seconds. An
observer who also sees partial sums, such as the operator of the workers, is outside the
guarantee in any case.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
import functools
import hashlib
import itertools
import time
from typing import Any

import numpy as np
import tensorflow_federated as tff

from aggregators import keys, tff_internals
from tff_pipelines.simulation import in_process, transports, values as values_lib

# Maximum number of times that a slice is computed again.
_REDONE = 3
# Seconds added to the deadline of a worker's first answer: it imports TensorFlow.
_START = 180.0
# Smaller arrays travel with each slice.
_BY_CONTENT = 4096  # Bytes.


class RoundAbandonedError(OSError):
  """Workers were lost repeatedly: nothing of the computation was used."""


class _Travelling:
  """A computation, its serialized form, and the digest by which workers know it."""

  def __init__(self, computation: tff.Computation):
    self.computation = computation
    self.serialized = tff_internals.computation_bytes(computation)
    self.digest = transports.COMPUTATION + hashlib.sha256(self.serialized).hexdigest()


class _Mergeable:
  """A computation in TFF's mergeable form."""

  def __init__(self, computation: tff.Computation):
    form = tff.backends.native.compile_to_mergeable_comp_form(
        tff.backends.test.replace_secure_intrinsics_with_bodies(computation))
    self.up_to_merge = _Travelling(form.up_to_merge)
    self.merge = form.merge
    self.after_merge = _Travelling(form.after_merge)
    self.is_at_clients = _is_at_clients(computation.type_signature.result)
    if _draws_at_server(form.up_to_merge) or (
        self.is_at_clients and _draws_at_server(form.after_merge)):
      raise NotImplementedError('a computation whose slices would each draw noise of '
                                'the server needs local_workers=0')


# Compiled again, they would be sent again.
_MERGEABLE: dict[int, _Mergeable] = {}


class SubroundContext(in_process.InProcessContext):
  """A context that computes clients in slices, by the workers of a transport.

  Computations without values at clients run in this process. One computation may have
  one aggregation, or several that do not depend on each other. Results at clients are
  computed after the merge, for which the clients' part is repeated: its randomness
  must follow from keys in the clients' values. The server's part before the
  aggregation, and for results at clients also the one after it, is repeated for each
  slice: a computation that draws keys there is refused with a NotImplementedError.
  """

  def __init__(self, transport: transports.Transport, *, num_threads: int = 1,
               deadline: float = 600.0):
    """Takes over the transport; workers are lost after `deadline` > 0 seconds a slice."""
    super().__init__(num_threads)
    self._transport, self._deadline = transport, deadline
    # Workers that have not answered yet, and workers that compute something.
    self._fresh = set(range(transport.num_workers))
    self._busy: set[int] = set()

  def function(self, computation: tff.Computation, num_clients: int) -> Callable:
    if not _is_at_clients(computation.type_signature.parameter):
      return super().function(computation, num_clients)
    return lambda argument: self._in_slices(computation, argument, num_clients)

  def close(self) -> None:
    """Ends the workers. Idempotent."""
    self._transport.close()
    super().close()

  def _in_slices(self, computation: tff.Computation, argument: Any, num_clients: int):
    mergeable = in_process.built_once(_MERGEABLE, computation, _Mergeable)
    merge = super().function(mergeable.merge, 0)
    merged = functools.reduce(lambda *pair: merge(pair), (
        result.value for result in self._results(
            mergeable.up_to_merge, argument, num_clients)))
    argument = argument, values_lib.AtServer(merged)
    after_merge = mergeable.after_merge
    if not mergeable.is_at_clients:
      return super().function(after_merge.computation, num_clients)(argument)
    return _concatenated(list(self._results(after_merge, argument, num_clients)))

  def _results(self, computation: _Travelling, argument: Any, num_clients: int
               ) -> Iterator[Any]:
    """Computes all slices; their results in their order."""
    contents = {computation.digest: computation.serialized}
    argument = values_lib.map_shared(lambda leaf: _by_content(leaf, contents), argument)
    requests = [
        transports.Request(computation.digest, len(part), _part(argument, part), contents)
        for part in in_process.sliced(range(num_clients))]
    done, indices = {}, iter(range(len(requests)))
    index = next(indices)
    for answered, result in self._answers(requests):
      done[answered] = result
      while index in done:
        yield done.pop(index)
        index = next(indices, None)

  def _answers(self, requests: Sequence[transports.Request]) -> Iterator[tuple[int, Any]]:
    """Index and result of each request, as they come.

    Raises RoundAbandonedError if workers were lost too often, and
    transports.SliceFailedError if a computation failed.
    """
    for worker in tuple(self._busy):
      # It computes a slice of a round that was abandoned.
      self._replace(worker, 'its round was abandoned')
    waiting = list(reversed(range(len(requests))))
    losses = [0] * len(requests)
    running: dict[futures.Future, tuple[int, int, float]] = {}
    while waiting or running:
      while waiting and len(self._busy) < self._transport.num_workers:
        worker = next(
            i for i in range(self._transport.num_workers) if i not in self._busy)
        index = waiting.pop()
        limit = self._deadline + (_START if worker in self._fresh else 0.0)
        self._busy.add(worker)
        future = self._transport.submit(worker, requests[index])
        running[future] = worker, index, time.monotonic() + limit
      first = min(limit for *_, limit in running.values())
      futures.wait(running, max(0.0, first - time.monotonic()), futures.FIRST_COMPLETED)
      now = time.monotonic()
      for future, (worker, index, limit) in list(running.items()):
        if not future.done() and now < limit:
          continue
        del running[future]
        try:
          result = future.result(timeout=0)
        except transports.SliceFailedError:
          self._busy.discard(worker)
          self._let_end(running)
          raise
        except (transports.WorkerLostError, futures.TimeoutError) as error:
          reason = str(error) or (f'a worker did not answer within slice_deadline='
                                  f'{self._deadline:g} seconds')
        else:
          self._busy.discard(worker)
          self._fresh.discard(worker)
          yield index, result
          continue
        losses[index] += 1
        if losses[index] > _REDONE:
          raise RoundAbandonedError(f'the round was abandoned: a slice lost its worker '
                                    f'{losses[index]} times, lastly: {reason}')
        self._replace(worker, reason)
        waiting.append(index)

  def _let_end(self, running: dict[futures.Future, tuple[int, int, float]]) -> None:
    """Waits for workers whose slices are no longer needed; slow ones stay busy."""
    for future, (worker, _, limit) in running.items():
      futures.wait([future], max(0.0, limit - time.monotonic()))
      if future.done() and not isinstance(future.exception(), transports.WorkerLostError):
        self._busy.discard(worker)

  def _replace(self, worker: int, reason: str) -> None:
    try:
      self._transport.replace(worker)
    except transports.WorkerLostError as error:
      raise RoundAbandonedError(f'the round was abandoned: {reason}, and no other worker '
                                f'starts: {error}') from error
    self._busy.discard(worker)
    self._fresh.add(worker)


def _is_at_clients(type_spec: tff.Type | None) -> bool:
  """Whether values of a type have members of their own at each client."""
  if isinstance(type_spec, tff.StructType):
    return any(map(_is_at_clients, type_spec))
  return (isinstance(type_spec, tff.FederatedType)
          and type_spec.placement is tff.CLIENTS and not type_spec.all_equal)


def _draws_at_server(computation: tff.Computation) -> bool:
  """Whether the server's part of a computation reads `keys.fresh`."""
  block = tff_internals.reduced(computation, ())
  calls = [value for _, value in getattr(block.result, 'locals', ())]
  return any(
      keys.FRESH.encode() in call.argument.proto.SerializeToString() for call in calls
      if call.argument is not None and isinstance(call.type_signature, tff.FederatedType)
      and call.type_signature.placement is tff.SERVER)


def _by_content(leaf: Any, contents: dict[str, Any]) -> Any:
  """A leaf, or its placeholder; then its content is added to `contents`."""
  if (not isinstance(leaf, np.ndarray) or leaf.dtype.hasobject
      or leaf.nbytes < _BY_CONTENT):
    return leaf
  leaf = np.ascontiguousarray(leaf)
  digest = hashlib.sha256(f'{leaf.dtype.str} {leaf.shape} '.encode())
  digest.update(leaf.data.cast('B'))
  contents[digest.hexdigest()] = leaf
  return transports.ByContent(digest.hexdigest())


def _part(value: Any, clients: range) -> Any:
  """A value with the clients of a slice only."""
  return values_lib.map_leaves(
      lambda leaf: values_lib.AtClients(leaf.values[clients.start:clients.stop])
      if isinstance(leaf, values_lib.AtClients) else leaf, value)


def _concatenated(parts: Sequence[Any]) -> Any:
  """Joins the values at clients of slices; all else is that of the first slice."""
  first = parts[0]
  if isinstance(first, tuple):
    return tuple([_concatenated(elements) for elements in zip(*parts)])
  if isinstance(first, values_lib.AtClients):
    return values_lib.AtClients(
        list(itertools.chain.from_iterable(part.values for part in parts)))
  return first
