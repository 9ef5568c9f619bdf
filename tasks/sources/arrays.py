"""Clients' examples from arrays in memory."""

import types
from typing import Mapping, Sequence

import numpy as np


class ArraysByClient:
  """Examples in memory, sorted once by client so that reading one is a slice.

  Implements tasks.task.ClientSource. The arrays that `examples` returns are
  read-only views.
  """

  def __init__(self, examples: Mapping[str, np.ndarray], clients: np.ndarray):
    """Sorts the examples by client; a client keeps the order of its examples.

    Args:
      examples: Feature name -> array; all share their first dimension.
      clients: [examples] integers or strings, the client of each example.

    Raises:
      ValueError: If there is no example, or lengths differ.
    """
    clients = np.asarray(clients)
    if clients.ndim != 1 or clients.dtype.kind not in 'iuU':
      raise ValueError(
          'clients must be one integer or string per example, found '
          f'{clients.dtype} {list(clients.shape)}')
    if clients.size == 0:
      raise ValueError('there must be at least one example, found none')
    for name, array in examples.items():
      if array.shape[:1] != clients.shape:
        raise ValueError(
            f'{name} has shape {list(array.shape)} but there are '
            f'{clients.size} clients: they must have the same length')
    order = np.argsort(clients, kind='stable')
    # Sorted data, as many files have, need no second copy.
    is_sorted = bool(np.all(order[1:] > order[:-1]))
    self._arrays = {name: array.view() if is_sorted else array[order]
                    for name, array in examples.items()}
    for array in self._arrays.values():
      array.flags.writeable = False
    ids, starts = np.unique(clients[order], return_index=True)
    self._slices = {
        str(client): slice(start, end) for client, start, end in zip(
            ids.tolist(), starts, [*starts[1:], clients.size])}
    self.client_ids: Sequence[str] = tuple(self._slices)
    self.element_spec = types.MappingProxyType(
        {name: (a.dtype, a.shape[1:]) for name, a in self._arrays.items()})

  def examples(self, client_id: str) -> dict[str, np.ndarray]:
    """All examples of a client. Raises ValueError for an unknown client."""
    if client_id not in self._slices:
      raise ValueError(f'there is no client {client_id!r}')
    rows = self._slices[client_id]
    return {name: array[rows] for name, array in self._arrays.items()}
