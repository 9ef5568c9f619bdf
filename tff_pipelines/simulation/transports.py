"""Transports of a round's slices to workers: the interface, and its two ends.

`slices.SubroundContext` decides what runs where, in which order and how often; a
transport carries requests to a fixed number of workers, each of which has a `Runner`.
Values have the form that `values` defines.
"""

import abc
from collections.abc import Mapping
from concurrent import futures
import dataclasses
import os
from typing import Any

import numpy as np

from aggregators import tff_internals
from tff_pipelines.simulation import (
    failures, in_process, native_chunks, values as values_lib)

# Prefix of the digests of computations.
COMPUTATION = 'computation '


class WorkerLostError(OSError):
  """A worker ended or can't be reached: another may compute its slice."""


class SliceFailedError(failures.ComputationError):
  """A computation failed in a worker: computed again, it would fail again."""


@dataclasses.dataclass(frozen=True)
class ByContent:
  """Placeholder of an array that is sent once, with the digest of its content."""

  digest: str


@dataclasses.dataclass(frozen=True)
class Request:
  """A slice to be computed.

  Attributes:
    computation: Digest of a serialized computation.
    num_clients: Number of elements at clients in this slice.
    argument: Argument of the computation, in which large arrays of the server are
      `ByContent`.
    contents: Digest -> serialized computation or array: all that the request names.
  """

  computation: str
  num_clients: int
  argument: Any
  contents: Mapping[str, bytes | np.ndarray] = dataclasses.field(repr=False)

  def known(self, before: frozenset[str]) -> frozenset[str]:
    """Digests that a worker knows after this request if it knew `before`."""
    # It keeps all computations, and of arrays those of its latest request.
    return frozenset(self.contents) | {
        digest for digest in before if digest.startswith(COMPUTATION)}

  def lacking(self, known: frozenset[str]) -> 'Request':
    """The request with only those contents that a worker lacks if it knows `known`."""
    return dataclasses.replace(self, contents={
        digest: content for digest, content in self.contents.items()
        if digest not in known})


class Transport(abc.ABC):
  """Carries requests to a fixed number of workers, from 0; counts the `bytes_sent`."""

  num_workers: int
  bytes_sent: int = 0

  @abc.abstractmethod
  def submit(self, worker: int, request: Request) -> futures.Future:
    """Starts a request at a worker that has none; returns the future of its result.

    Its exception is a WorkerLostError if the worker is lost, and a SliceFailedError if
    the computation fails.
    """

  @abc.abstractmethod
  def replace(self, worker: int) -> None:
    """Ends a worker, busy or not, and starts another; WorkerLostError if none starts.

    The answer of the former to a request is dropped, or an error.
    """

  @abc.abstractmethod
  def close(self) -> None:
    """Ends all workers. Idempotent."""


# Answers after which a process has compiled and allocated what it needs.
WARM = 50


class Memory:
  """Watches whether a worker's memory has grown by a fifth since it had warmed up."""

  def __init__(self):
    self.has_grown = False
    self._answers = self._largest = 0

  def record(self, resident: int, encoders: frozenset[str] = frozenset()) -> None:
    """Records the `condition` of a worker at an answer."""
    native_chunks.encoders.update(encoders)
    self._answers += 1
    if self._answers <= WARM:
      self._largest = max(self._largest, resident)
    self.has_grown = resident > 1.2 * self._largest


def condition() -> tuple[int, frozenset[str]]:
  """Resident bytes and encoders of this process, which each answer carries."""
  with open('/proc/self/statm', encoding='ascii') as file:
    resident = int(file.read().split()[1]) * os.sysconf('SC_PAGE_SIZE')
  return resident, frozenset(native_chunks.encoders)


class Runner:
  """Computes requests in its process, and keeps contents that are sent once."""

  def __init__(self, num_threads: int = 1):
    """Starts nothing yet; `num_threads` >= 1 clients will be computed in parallel."""
    self._context = in_process.InProcessContext(num_threads)
    self._contents: dict[str, Any] = {}

  def run(self, request: Request, digests: frozenset[str]) -> Any:
    """The result of a request; SliceFailedError if the computation fails."""
    for digest, content in request.contents.items():
      if isinstance(content, bytes):
        content = tff_internals.computation_of(content)
      self._contents[digest] = content
    self._contents = {digest: content for digest, content in self._contents.items()
                      if digest in digests or not isinstance(content, np.ndarray)}
    try:
      function = self._context.function(
          self._contents[request.computation], request.num_clients)
      return function(values_lib.map_shared(
          lambda leaf: self._contents[leaf.digest] if isinstance(leaf, ByContent)
          else leaf, request.argument))
    except Exception as error:
      raise SliceFailedError.of(error) from None
