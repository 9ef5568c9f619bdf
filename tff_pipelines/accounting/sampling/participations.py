"""Counts of the rounds of each selected client, in memory proportional to those."""

import numpy as np


class Participations:
  """Counts of the rounds in which clients were selected.

  Attributes:
    population: Number of clients, >= 1.
    array: int64 [2, number of clients that were selected]: the clients, increasing,
      and the counts, >= 1.
  """

  def __init__(self, population: int):
    self.population = population
    self.array = np.zeros([2, 0], np.int64)

  def of_at_least(self, rounds: int) -> np.ndarray:
    """The clients that were selected in `rounds` rounds or more, int64, increasing."""
    clients, counts = self.array
    return clients[counts >= rounds]

  def add(self, selected: np.ndarray) -> None:
    """Counts a round of these clients, distinct and increasing."""
    clients, counts = self.array
    new = np.setdiff1d(selected, clients, assume_unique=True)
    at = np.searchsorted(clients, new)
    clients, counts = np.insert(clients, at, new), np.insert(counts, at, 0)
    counts[np.searchsorted(clients, selected)] += 1
    self.array = np.stack([clients, counts])

  def restore(self, array: np.ndarray) -> bool:
    """Replaces `array`; returns False, and changes nothing, if the new one is invalid."""
    if array.ndim != 2 or len(array) != 2:
      return False
    clients, counts = array = array.astype(np.int64)
    if not np.all(np.diff(clients, prepend=-1, append=self.population) > 0) or (
        not np.all(counts > 0)):
      return False
    self.array = array
    return True
