"""Failures in rounds: clients whose data make one fail, and the end of a run.

A run that ended because of one client's data would tell that it was sampled. So such a
client contributes what one without examples does; the operator alone is told of it.
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import json
import pathlib
import traceback
from typing import Any

import tensorflow as tf

from tff_pipelines.common import files
from tff_pipelines.simulation import failures

# Files of the operator: the clients whose data are bad, and the error that ended a run.
BAD_CLIENTS, ERROR = 'bad_clients.jsonl', 'error.txt'

# Called with the id of a client that is found bad, and what its data raised.
OnBad = Callable[[str, Exception], None]


class RunFailedError(ValueError):
  """A run ended by an error that is of no single client; the message has no values."""


def write_bad_clients(path: pathlib.Path) -> OnBad:
  """A function that appends a bad client to a file of the operator, JSON lines."""
  def write(client_id: str, error: Exception) -> None:
    files.make_folder(path.parent)
    detail = getattr(error, 'detail', '') or str(error) or type(error).__name__
    line = json.dumps({'client': client_id, 'error': detail}) + '\n'
    files.append(path, line.encode('utf-8'))

  return write


def without_bad(compute: Callable[[Sequence], Any], clients: Sequence, *,
                first: Callable[[], Sequence],
                mark: Callable[[Any, Exception], None]) -> Any:
  """The result of `compute(clients)`, in which failing clients have no examples.

  Clients are found by halves, each computed alone in the end, where and as the round
  is. Nothing of those computations is used or released, and without a seed each has
  fresh keys of its noise; the cohort stays the one that was sampled. A round with a
  bad client takes longer: times are outside the guarantee.

  Args:
    compute: Computes a round of some clients. Raises a ComputationError if it fails,
      and then has released nothing. Takes those that are marked without examples.
    clients: Clients of the round.
    first: () -> the first clients of the population that are not marked. An error that
      each of them raises alone is not one client's.
    mark: Marks a client as bad; called with it and its error.

  Raises ComputationError if the error is of no single client.
  """
  marked = set()
  while True:
    result, error = _tried(compute, clients)
    if error is None:
      return result
    bad = {} if all(_tried(compute, [client])[1] for client in first()) else _failing(
        compute, clients, error)
    if marked.issuperset(bad):
      raise error
    marked.update(bad)
    for client, error in bad.items():
      mark(client, error)


def _tried(compute, clients) -> tuple[Any, failures.ComputationError | None]:
  try:
    return compute(clients), None
  except failures.ComputationError as error:
    return None, error


def _failing(compute: Callable[[Sequence], Any], clients: Sequence, error: Exception
             ) -> dict[Any, Exception]:
  """Client -> error of those that fail alone, among some that fail together."""
  if len(clients) <= 1:
    return {client: error for client in clients}
  found, half = {}, len(clients) // 2
  for part in (clients[:half], clients[half:]):
    _, error = _tried(compute, part)
    if error is not None:
      found.update(_failing(compute, part, error))
  return found


@contextlib.contextmanager
def reported(folder: pathlib.Path) -> Iterator[None]:
  """Raises RunFailedError instead of errors of computations, graphs and memory.

  The error itself goes to a file of the operator. Before there is a run in the folder,
  where nothing depends on a sample, errors stay as they are.
  """
  try:
    yield
    return
  except (failures.ComputationError, tf.errors.OpError, MemoryError) as error:
    if not (folder / files.CONFIGURATION).exists():
      raise
    what = getattr(error, 'kind', None) or failures.kind(error)
    text = ''.join(traceback.format_exception(error))
    text += getattr(error, 'detail', '') + '\n'
  path = folder / files.PRIVATE / ERROR
  files.write_bytes(path, text.encode('utf-8', 'backslashreplace'))
  raise RunFailedError(
      f'the run failed: {what}; {path} says more, for the operator alone') from None
