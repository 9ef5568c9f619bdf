"""Splits data that has no clients over simulated ones, by an explicit seed."""

import math
import numbers
from typing import Any

import numpy as np

PARTITIONS = ('dirichlet', 'iid', 'labels', 'size')

# The option that each partition has, and what it is where it is not given.
_OPTIONS = {'dirichlet': ('dirichlet_alpha', 1.0), 'iid': (None, None),
            'labels': ('labels_per_client', 2), 'size': ('size_exponent', 1.0)}


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
  if partition not in _OPTIONS:
    raise ValueError(f'partition must be one of {", ".join(PARTITIONS)}, found '
                     f'{partition!r}')
  name, value = _OPTIONS[partition]
  for option, given in options.items():
    if given is not None and option != name:
      raise ValueError(f'partition {partition} does not use {option}')
  if options.get(name) is not None:
    value = options[name]
  if partition == 'dirichlet':
    return dirichlet(labels, num_clients=num_clients, alpha=value, seed=seed)
  if partition == 'labels':
    return by_labels(
        labels, num_clients=num_clients, labels_per_client=value, seed=seed)
  if partition == 'size':
    return by_size(labels, num_clients=num_clients, exponent=value, seed=seed)
  return iid(labels, num_clients=num_clients, seed=seed)


def label_counts(labels: np.ndarray, clients: np.ndarray) -> np.ndarray:
  """int64 [clients, classes]: how often each client has each label."""
  counts = np.zeros([int(clients.max()) + 1, int(labels.max()) + 1], np.int64)
  np.add.at(counts, (clients, labels), 1)
  return counts


def _check(labels: np.ndarray, num_clients: int, seed: int) -> None:
  if isinstance(num_clients, bool) or not isinstance(
      num_clients, numbers.Integral) or not 1 <= num_clients <= labels.size:
    raise ValueError(
        f'num_clients must be an integer from 1 to the {labels.size} examples, '
        f'found {num_clients!r}')
  if isinstance(seed, bool) or not isinstance(
      seed, numbers.Integral) or seed < 0:
    raise ValueError(f'data_seed must be an integer from 0 on, found {seed!r}')


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


def by_size(labels: np.ndarray, *, num_clients: int, exponent: float,
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
  if isinstance(exponent, bool) or not isinstance(
      exponent, numbers.Real) or not (math.isfinite(exponent) and exponent >= 0):
    raise ValueError('size_exponent must be a finite number that is not negative, '
                     f'found {exponent!r}')
  rng = np.random.default_rng(seed)
  ranks = np.arange(1, num_clients + 1, dtype=float)
  parts = np.cumsum(ranks ** -float(exponent))
  ends = np.rint((labels.size - num_clients) * parts / parts[-1]).astype(np.int64)
  return _deal(rng.permutation(1 + np.diff(ends, prepend=0)), rng)


def by_labels(labels: np.ndarray, *, num_clients: int, labels_per_client: int,
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
  if isinstance(labels_per_client, bool) or not isinstance(
      labels_per_client, numbers.Integral) or (
          not 1 <= labels_per_client <= classes.size):
    raise ValueError('labels_per_client must be an integer from 1 to the '
                     f'{classes.size} labels, found {labels_per_client!r}')
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
  _check(labels, num_clients, seed)
  if isinstance(alpha, bool) or not isinstance(
      alpha, numbers.Real) or not (math.isfinite(alpha) and alpha > 0):
    raise ValueError(
        f'dirichlet_alpha must be a finite number greater than 0, found '
        f'{alpha!r}')
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
