"""Splits data that has no clients over simulated ones, by an explicit seed."""

from typing import Any

import numpy as np

from tasks import checks


def split(labels: np.ndarray, *, partition: str, num_clients: int, seed: int,
          **options: Any) -> np.ndarray:
  """Splits by the partition of a name.

  Args:
    labels: [examples] integers.
    partition: One of PARTITIONS, the functions below.
    num_clients: In [1, examples].
    seed: >= 0. The same arguments give the same split on every machine.
    **options: dirichlet_alpha, labels_per_client or size_exponent; an option of
      another partition must be None.

  Returns:
    int64 [examples] in [0, num_clients), the client of each example. Every client
    has at least one.

  Raises:
    ValueError: If an argument is out of range, or not one of this partition.
  """
  checks.choice('partition', partition, PARTITIONS)
  function, option, argument = _FUNCTIONS[partition]
  given = checks.options(f'partition {partition}', options, [option] if option else [])
  return function(labels, num_clients=num_clients, seed=seed,
                  **{argument: value for value in given.values()})


def label_counts(labels: np.ndarray, clients: np.ndarray) -> np.ndarray:
  """int64 [clients, classes]: how often each client has each label."""
  counts = np.zeros([int(clients.max()) + 1, int(labels.max()) + 1], np.int64)
  np.add.at(counts, (clients, labels), 1)
  return counts


def _check(labels: np.ndarray, num_clients: int, seed: int) -> None:
  checks.integer('num_clients', num_clients, 1, labels.size, 'examples')
  checks.integer('data_seed', seed, 0)


def _deal(sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
  """Gives clients so many examples each, of all examples in random order."""
  clients = np.empty(int(sizes.sum()), np.int64)
  clients[rng.permutation(clients.size)] = np.repeat(np.arange(sizes.size), sizes)
  return clients


def _even_sizes(total: int, parts: int) -> np.ndarray:
  """int64 [parts]: total // parts or one more, summing to the total."""
  return np.diff(np.arange(parts + 1) * total // parts)


def iid(labels: np.ndarray, *, num_clients: int, seed: int) -> np.ndarray:
  """Gives every client equally many examples (up to one), whatever their labels.

  Arguments, result and errors are those of `split`.
  """
  _check(labels, num_clients, seed)
  return _deal(_even_sizes(labels.size, num_clients), np.random.default_rng(seed))


def by_size(labels: np.ndarray, *, num_clients: int, exponent: float = 1.0,
            seed: int) -> np.ndarray:
  """Gives clients numbers of examples that follow a power law.

  The client of rank r, from 1, has one example and its part of the rest in
  proportion to r ** -exponent, rounded; which client has which rank is random, and
  labels do not matter.

  Args:
    labels: [examples] integers.
    num_clients: In [1, examples].
    exponent: >= 0, finite. 0: all have equally many; large: one has nearly all.
    seed: >= 0.

  Returns:
    See split.

  Raises:
    ValueError: If an argument is out of range.
  """
  _check(labels, num_clients, seed)
  checks.finite('size_exponent', exponent, or_zero=True)
  rng = np.random.default_rng(seed)
  ranks = np.arange(1, num_clients + 1, dtype=float)
  parts = np.cumsum(ranks ** -float(exponent))
  ends = np.rint((labels.size - num_clients) * parts / parts[-1]).astype(np.int64)
  return _deal(rng.permutation(1 + np.diff(ends, prepend=0)), rng)


def by_labels(labels: np.ndarray, *, num_clients: int, labels_per_client: int = 2,
              seed: int) -> np.ndarray:
  """Gives every client examples of so many labels, and no others.

  Labels are dealt so that each goes to equally many clients (up to one), and its
  examples are divided evenly among them.

  Args:
    labels: [examples] integers.
    num_clients: In [1, examples].
    labels_per_client: From 1 to the number of labels; together the clients must
      have every label.
    seed: >= 0.

  Returns:
    See split.

  Raises:
    ValueError: If an argument is out of range, or a label has fewer examples than
      clients that it goes to.
  """
  _check(labels, num_clients, seed)
  classes, indices = np.unique(labels, return_inverse=True)
  checks.integer('labels_per_client', labels_per_client, 1, classes.size, 'labels')
  if num_clients * labels_per_client < classes.size:
    raise ValueError(
        f'num_clients={num_clients} with labels_per_client={labels_per_client} leave '
        f'some of the {classes.size} labels to nobody')
  rng = np.random.default_rng(seed)
  holders: list[list[int]] = [[] for _ in classes]
  for client in range(num_clients):
    # Those that the fewest have so far, at random among equals.
    order = np.lexsort((rng.random(classes.size), [len(h) for h in holders]))
    for label in order[:labels_per_client]:
      holders[label].append(client)
  clients = np.empty(labels.size, np.int64)
  for label, those in enumerate(holders):
    rows = rng.permutation(np.flatnonzero(indices == label))
    if rows.size < len(those):
      raise ValueError(
          f'num_clients={num_clients} with labels_per_client={labels_per_client} need '
          f'{len(those)} examples of label {classes[label]}, which has {rows.size}')
    clients[rows] = np.repeat(
        rng.permutation(those), _even_sizes(rows.size, len(those)))
  return clients


def dirichlet(labels: np.ndarray, *, num_clients: int, alpha: float = 1.0,
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
  _check(labels, num_clients, seed)
  checks.finite('dirichlet_alpha', alpha)
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


# Partition -> its function, its option, and what the function calls that.
_FUNCTIONS = {
    'dirichlet': (dirichlet, 'dirichlet_alpha', 'alpha'), 'iid': (iid, None, None),
    'labels': (by_labels, 'labels_per_client', 'labels_per_client'),
    'size': (by_size, 'size_exponent', 'exponent')}
PARTITIONS = tuple(_FUNCTIONS)
# Those of all partitions.
OPTIONS = ('dirichlet_alpha', 'labels_per_client', 'size_exponent')
