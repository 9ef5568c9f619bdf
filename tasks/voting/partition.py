"""Deals labelled records to agents that hold some of the classes each."""

import numpy as np

from tasks import checks


def _pool(rows: np.ndarray, needed: int, rng: np.random.Generator) -> np.ndarray:
  """Samples `needed` of these records, some several times if they are too few."""
  rounds = [rng.permutation(rows) for _ in range(-(-needed // rows.size))]
  return np.concatenate(rounds)[:needed] if rounds else rows[:0]


def _holders(sizes: np.ndarray, num_clients: int, each: int) -> np.ndarray:
  """Number of agents that hold each class: in proportion, `each` classes an agent."""
  exact = sizes / sizes.sum() * num_clients * each
  counts = np.minimum(np.floor(exact).astype(int), num_clients)
  while (missing := num_clients * each - counts.sum()) > 0:
    room = np.flatnonzero(counts < num_clients)
    best = room[np.argsort(counts[room] - exact[room], kind='stable')]
    counts[best[:missing]] += 1
  return counts


def _classes_of_agents(holders: np.ndarray, num_clients: int, each: int,
                       rng: np.random.Generator) -> np.ndarray:
  """bool [agents, classes] with `each` classes a row, `holders` a column."""
  held = np.zeros((num_clients, holders.size), bool)
  left = holders.copy()
  for agent in rng.permutation(num_clients):
    # Those that still lack most holders, so that none is left over.
    order = np.lexsort((rng.random(holders.size), -left))[:each]
    held[agent, order] = True
    left[order] -= 1
  # Swaps between agents, as consecutive ones would hold complements.
  for _ in range(20 * num_clients):
    first, second = rng.integers(num_clients, size=2)
    gives = np.flatnonzero(held[first] & ~held[second])
    takes = np.flatnonzero(held[second] & ~held[first])
    if gives.size:
      out, back = rng.choice(gives), rng.choice(takes)
      held[first, [out, back]] = held[first, [back, out]]
      held[second, [out, back]] = held[second, [back, out]]
  return held


def _counts(held: np.ndarray, sizes: np.ndarray, each: int) -> np.ndarray:
  """Number of records that an agent gets of each class, `each` in all.

  Equally many of each of its classes, and where a class has too few records, some
  more of another class of the same agent.

  Args:
    held: bool [agents, classes].
    sizes: Number of records of each class.
    each: Number of records of an agent.

  Returns:
    int [agents, classes].
  """
  counts = np.zeros(held.shape, int)
  for agent, classes in enumerate(held):
    own = np.flatnonzero(classes)
    counts[agent, own] = np.diff(np.arange(own.size + 1) * each // own.size)
  while ((left := sizes - counts.sum(axis=0)) < 0).any():
    short = int(left.argmin())
    for other in np.argsort(-left, kind='stable'):
      both = np.flatnonzero(held[:, other] & (counts[:, short] > 1))
      if left[other] > 0 and both.size:
        agent = both[int((counts[both, short] - counts[both, other]).argmax())]
        counts[agent, [short, other]] += [-1, 1]
        break
    else:
      raise ValueError(
          f'records_per_client={each} cannot be dealt: the holders of some class '
          'hold no class with records to spare')
  return counts


def few_classes(labels: np.ndarray, *, num_clients: int, labels_per_client: int,
                records_per_client: int, seed: int) -> list[np.ndarray]:
  """Deals records so that every agent holds records of a few classes only.

  Args:
    labels: [records] integers.
    num_clients: >= 1.
    labels_per_client: From 1 to the number of classes.
    records_per_client: >= labels_per_client, the exact number of each agent. Where
      all agents together need more records than there are, some go to several.
    seed: >= 0. The same arguments give the same deal on every machine.

  Returns:
    For each agent the indices of its records, int64, in random order.

  Raises:
    ValueError: If an argument is out of range.
  """
  classes, indices = np.unique(labels, return_inverse=True)
  checks.integer('num_clients', num_clients, 1)
  checks.integer('labels_per_client', labels_per_client, 1, classes.size)
  checks.integer('records_per_client', records_per_client, labels_per_client)
  checks.integer('data_seed', seed, 0)
  rng = np.random.default_rng(seed)
  rows = [np.flatnonzero(indices == c) for c in range(classes.size)]
  sizes = np.array([pool.size for pool in rows])
  if num_clients * labels_per_client < classes.size:
    raise ValueError(
        f'num_clients={num_clients} with labels_per_client={labels_per_client} '
        f'leave some of the {classes.size} classes without an agent')
  held = _classes_of_agents(
      _holders(sizes, num_clients, labels_per_client), num_clients,
      labels_per_client, rng)
  if num_clients * records_per_client > labels.size:
    sizes = np.full(classes.size, np.iinfo(np.int64).max)
  counts = _counts(held, sizes, records_per_client)
  pools = [_pool(pool, needed, rng)
           for pool, needed in zip(rows, counts.sum(axis=0))]
  parts = [np.split(pool, np.cumsum(column)[:-1])
           for pool, column in zip(pools, counts.T)]
  return [rng.permutation(np.concatenate(own)) for own in zip(*parts)]


def evenly(count: int, *, num_clients: int, seed: int) -> list[np.ndarray]:
  """Deals `count` records at random, equally many to each agent (up to one).

  Raises:
    ValueError: If an argument is out of range.
  """
  checks.integer('data_seed', seed, 0)
  checks.integer('num_clients', num_clients, 1, count)
  return np.array_split(np.random.default_rng(seed).permutation(count), num_clients)
