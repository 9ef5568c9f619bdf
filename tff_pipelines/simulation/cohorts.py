"""Keys of the clients of seeded runs.

Clients of a run without a seed take their keys from the operating system.
"""

import hashlib

import numpy as np


def client_key(simulation_seed: int, round_index: int, client: int) -> np.ndarray:
  """The key of a client in a round of a seeded run, int64 of shape [2]."""
  digest = hashlib.sha256(
      f'client {simulation_seed} {round_index} {client}'.encode()).digest()
  return np.frombuffer(digest[:16], np.int64).copy()
