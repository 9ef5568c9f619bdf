"""In how many rounds each client was selected; of those that were, not of all."""

import numpy as np


class Participations:
  """Counts of the rounds of clients.

  Attributes:
    population: Number of clients, >= 1.
    array: int64 [2, number of clients that were selected]: the clients, increasing,
      and the counts, >= 1.
  """

  def __init__(self, population: int):
    self.population = population
    self.array = np.zeros([2, 0], np.int64)

  def of_at_least(self, rounds: int) -> np.ndarray:
    """The clients that were selected in so many rounds, int64, increasing."""
    clients, counts = self.array
    return clients[counts >= rounds]

  def add(self, selected: np.ndarray) -> None:
    """Counts a round: different clients, increasing."""
    clients, counts = self.array
    new = np.setdiff1d(selected, clients, assume_unique=True)
    at = np.searchsorted(clients, new)
    clients, counts = np.insert(clients, at, new), np.insert(counts, at, 0)
    counts[np.searchsorted(clients, selected)] += 1
    self.array = np.stack([clients, counts])

  def restore(self, array: np.ndarray) -> bool:
    """Takes over an `array`; False, and nothing changes, if it can be none.

    Earlier folders have the counts of all clients, [population].
    """
    if array.shape == (self.population,):
      clients, = np.nonzero(array)
      array = np.stack([clients, array[clients]])
    if array.ndim != 2 or len(array) != 2:
      return False
    clients, counts = array = array.astype(np.int64)
    if not np.all(np.diff(clients, prepend=-1, append=self.population) > 0) or (
        not np.all(counts > 0)):
      return False
    self.array = array
    return True
