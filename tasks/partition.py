"""Splits data that has no clients over simulated ones, by an explicit seed."""

import math
import numbers

import numpy as np


def dirichlet(labels: np.ndarray, *, num_clients: int, alpha: float,
              seed: int) -> np.ndarray:
  """Gives every client its own mixture of labels, drawn from Dirichlet(alpha).

  Clients have equally many examples (up to one), so each has at least one. A
  client draws its mixture, then its examples without replacement; a label that
  runs out is replaced by the client's others, or by what is left.

  Args:
    labels: [examples] integers.
    num_clients: In [1, examples].
    alpha: > 0. Small: few labels a client; large: each client like the whole.
    seed: >= 0. The same arguments give the same split on every machine.

  Returns:
    int64 [examples] in [0, num_clients), the client of each example.

  Raises:
    ValueError: If an argument is out of range.
  """
  if isinstance(num_clients, bool) or not isinstance(
      num_clients, numbers.Integral) or not 1 <= num_clients <= labels.size:
    raise ValueError(
        f'num_clients must be an integer from 1 to the {labels.size} examples, '
        f'found {num_clients!r}')
  if isinstance(alpha, bool) or not isinstance(
      alpha, numbers.Real) or not (math.isfinite(alpha) and alpha > 0):
    raise ValueError(
        f'dirichlet_alpha must be a finite number greater than 0, found '
        f'{alpha!r}')
  if isinstance(seed, bool) or not isinstance(
      seed, numbers.Integral) or seed < 0:
    raise ValueError(f'data_seed must be an integer from 0 on, found {seed!r}')
  rng = np.random.default_rng(seed)
  classes, label_indices = np.unique(labels, return_inverse=True)
  pools = [rng.permutation(np.flatnonzero(label_indices == c)).tolist()
           for c in range(classes.size)]
  left = np.array([len(pool) for pool in pools])
  clients = np.empty(labels.size, np.int64)
  mixtures = rng.dirichlet(np.full(classes.size, float(alpha)), num_clients)
  for client, mixture in enumerate(mixtures):
    # Sizes n // k and n // k + 1, summing to n.
    missing = (labels.size * (client + 1) // num_clients
               - labels.size * client // num_clients)
    while missing > 0:
      weights = np.where(left > 0, mixture, 0.0)
      if weights.sum() < 1e-12:
        weights = left.astype(float)
      taken = np.minimum(
          rng.multinomial(missing, weights / weights.sum()), left)
      for label in np.flatnonzero(taken):
        for _ in range(taken[label]):
          clients[pools[label].pop()] = client
      left -= taken
      missing -= int(taken.sum())
  return clients
