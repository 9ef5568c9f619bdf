"""Splits data that has no clients over simulated ones, by an explicit seed.

`split` gives each example to one client; `few_classes` and `evenly` deal records to the
agents of a vote, of which several may have the same ones. `with_part` holds records out.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tasks import checks, task
from tasks.sources import records


def split(labels: np.ndarray, *, partition: str, num_clients: int, seed: int,
          **options: Any) -> np.ndarray:
  """Splits examples over simulated clients.

  Args:
    labels: [examples] integers.
    partition: One of PARTITIONS, the functions below.
    num_clients: In [1, examples].
    seed: >= 0. The same arguments give the same split on every machine.
    **options: Keywords of the partition's function; None counts as not given.

  Returns int64 [examples] in [0, num_clients), the client of each; all have at least
  one. Raises ValueError if an argument is out of range, or not one of this partition.
  """
  checks.choice('partition', partition, PARTITIONS)
  function = PARTITIONS[partition]
  given = checks.options(f'partition {partition}', options, checks.keywords(function)[0])
  checks.integer('num_clients', num_clients, 1, labels.size, 'examples')
  checks.integer('data_seed', seed, 0)
  return function(labels, num_clients, np.random.default_rng(seed), **given)


def label_counts(labels: np.ndarray, clients: np.ndarray) -> np.ndarray:
  """int64 [clients, classes]: how often each client has each label."""
  counts = np.zeros([int(clients.max()) + 1, int(labels.max()) + 1], np.int64)
  np.add.at(counts, (clients, labels), 1)
  return counts


def _assign(sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
  """Gives each client its number of examples, of all examples in random order."""
  clients = np.empty(int(sizes.sum()), np.int64)
  clients[rng.permutation(clients.size)] = np.repeat(np.arange(sizes.size), sizes)
  return clients


def _even_sizes(total: int, parts: int) -> np.ndarray:
  """int64 [parts]: total // parts or one more, summing to the total."""
  return np.diff(np.arange(parts + 1) * total // parts)


def _by_class(labels: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
  """The classes, sorted, and the indices of the records of each."""
  classes, indices = np.unique(labels, return_inverse=True)
  return classes, [np.flatnonzero(indices == c) for c in range(classes.size)]


def _check_each(num_clients: int, labels_per_client: int, classes: int) -> str:
  """The arguments in words; ValueError unless together clients can have every label."""
  checks.integer('labels_per_client', labels_per_client, 1, classes, 'labels')
  given = f'num_clients={num_clients} with labels_per_client={labels_per_client}'
  if num_clients * labels_per_client < classes:
    raise ValueError(f'{given} leave some of the {classes} labels to no client')
  return given


def _iid(labels: np.ndarray, num_clients: int, rng: np.random.Generator) -> np.ndarray:
  """Gives every client equally many examples (up to one), whatever their labels."""
  return _assign(_even_sizes(labels.size, num_clients), rng)


def _by_size(labels: np.ndarray, num_clients: int, rng: np.random.Generator, *,
             size_exponent: float = 1.0) -> np.ndarray:
  """Gives clients numbers of examples that follow a power law, whatever their labels.

  The client of rank r, from 1, has one example and a fraction of the rest in
  proportion to r ** -size_exponent, rounded; which client has which rank is random.
  """
  checks.finite('size_exponent', size_exponent, or_zero=True)
  ranks = np.arange(1, num_clients + 1, dtype=float)
  weights = np.cumsum(ranks ** -float(size_exponent))
  ends = np.rint((labels.size - num_clients) * weights / weights[-1]).astype(np.int64)
  return _assign(rng.permutation(1 + np.diff(ends, prepend=0)), rng)


def _by_labels(labels: np.ndarray, num_clients: int, rng: np.random.Generator, *,
               labels_per_client: int = 2) -> np.ndarray:
  """Gives every client examples of `labels_per_client` labels, and no others.

  Each label goes to equally many clients (up to one), and its examples are divided
  evenly among them. Raises ValueError if the clients together cannot have every label,
  or a label has fewer examples than clients that it goes to.
  """
  classes, rows_of = _by_class(labels)
  given = _check_each(num_clients, labels_per_client, classes.size)
  clients_of_label: list[list[int]] = [[] for _ in classes]
  for client in range(num_clients):
    # The labels with the fewest clients so far, at random among equals.
    order = np.lexsort((rng.random(classes.size), list(map(len, clients_of_label))))
    for label in order[:labels_per_client]:
      clients_of_label[label].append(client)
  clients = np.empty(labels.size, np.int64)
  for label, chosen in enumerate(clients_of_label):
    rows = rng.permutation(rows_of[label])
    if rows.size < len(chosen):
      raise ValueError(f'{given} need {len(chosen)} examples of label '
                       f'{classes[label]}, which has {rows.size}')
    clients[rows] = np.repeat(
        rng.permutation(chosen), _even_sizes(rows.size, len(chosen)))
  return clients


def _dirichlet(labels: np.ndarray, num_clients: int, rng: np.random.Generator, *,
               dirichlet_alpha: float = 1.0) -> np.ndarray:
  """Gives every client its own mixture of labels, drawn from Dirichlet(alpha).

  Clients have equally many examples (up to one), drawn without replacement; a label
  that runs out is replaced by the client's others, or by what is left. A small alpha
  gives a client few labels; with a large one each client is like the whole.
  """
  checks.finite('dirichlet_alpha', dirichlet_alpha)
  classes, rows_of = _by_class(labels)
  pools = [rng.permutation(rows).tolist() for rows in rows_of]
  left = np.array([len(pool) for pool in pools])
  clients = np.empty(labels.size, np.int64)
  mixtures = rng.dirichlet(np.full(classes.size, float(dirichlet_alpha)), num_clients)
  sizes = _even_sizes(labels.size, num_clients)
  for client, (mixture, missing) in enumerate(zip(mixtures, sizes)):
    while missing > 0:
      weights = np.where(left > 0, mixture, 0.0)
      if weights.sum() < 1e-12:
        weights = left.astype(float)
      counts = np.minimum(rng.multinomial(missing, weights / weights.sum()), left)
      for label in np.flatnonzero(counts):
        for _ in range(counts[label]):
          clients[pools[label].pop()] = client
      left -= counts
      missing -= counts.sum()
  return clients


PARTITIONS = {
    'dirichlet': _dirichlet, 'iid': _iid, 'labels': _by_labels, 'size': _by_size}
# The options of all partitions.
OPTIONS = tuple(name for function in PARTITIONS.values()
                for name in checks.keywords(function)[0])


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
    pair = rng.integers(num_clients, size=2)
    own, others = held[pair]
    if (gives := np.flatnonzero(own & ~others)).size:
      swapped = [rng.choice(gives), rng.choice(np.flatnonzero(others & ~own))]
      held[np.ix_(pair, swapped)] ^= True
  return held


def _counts(held: np.ndarray, sizes: np.ndarray, each: int) -> np.ndarray:
  """Number of records that an agent gets of each class, `each` in all.

  Equally many of each of its classes, and where a class has too few records, some
  more of another class of the same agent: int [agents, classes], as `held`, bool.
  """
  counts = np.zeros(held.shape, int)
  for agent, classes in enumerate(held):
    own = np.flatnonzero(classes)
    counts[agent, own] = _even_sizes(each, own.size)
  while ((left := sizes - counts.sum(axis=0)) < 0).any():
    short = int(left.argmin())
    for other in np.argsort(-left, kind='stable'):
      both = np.flatnonzero(held[:, other] & (counts[:, short] > 1))
      if left[other] > 0 and both.size:
        agent = both[int((counts[both, short] - counts[both, other]).argmax())]
        counts[agent, [short, other]] += [-1, 1]
        break
    else:
      raise ValueError(f'records_per_client={each} are too many: a class runs out')
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

  Returns for each agent the indices of its records, int64, in random order. Raises
  ValueError if an argument is out of range.
  """
  classes, rows = _by_class(labels)
  checks.integer('num_clients', num_clients, 1)
  _check_each(num_clients, labels_per_client, classes.size)
  checks.integer('records_per_client', records_per_client, labels_per_client)
  checks.integer('data_seed', seed, 0)
  rng = np.random.default_rng(seed)
  sizes = np.array([pool.size for pool in rows])
  held = _classes_of_agents(_holders(sizes, num_clients, labels_per_client), num_clients,
                            labels_per_client, rng)
  if num_clients * records_per_client > labels.size:
    sizes = np.full(classes.size, np.iinfo(np.int64).max)
  counts = _counts(held, sizes, records_per_client)
  # Where a class has too few records, some are there several times.
  pools = [np.concatenate([pool[:0], *(
      rng.permutation(pool) for _ in range(-(-needed // pool.size)))])[:needed]
           for pool, needed in zip(rows, counts.sum(axis=0))]
  parts = [np.split(pool, np.cumsum(column)[:-1])
           for pool, column in zip(pools, counts.T)]
  return [rng.permutation(np.concatenate(own)) for own in zip(*parts)]


def evenly(count: int, *, num_clients: int, seed: int) -> list[np.ndarray]:
  """Deals records at random, equally many to each (up to one). Raises ValueError."""
  checks.integer('data_seed', seed, 0)
  checks.integer('num_clients', num_clients, 1, count)
  return np.array_split(np.random.default_rng(seed).permutation(count), num_clients)


def digests(examples: Mapping[str, np.ndarray]) -> np.ndarray:
  """Digests of the person of each example, else of its contents; int64 [examples].

  A rule that looks at a digest alone depends on no other example.
  """
  deciding = [examples[records.PERSON]] if records.PERSON in examples else [
      examples[name] for name in sorted(examples)]
  # The type of a text or a number in an array of objects does not matter.
  return np.array([records.digest(b'\0'.join(
      str(x).encode('utf-8', 'replace') if array.dtype.hasobject else
      np.ascontiguousarray(x).tobytes() for array, x in zip(deciding, row)))
                   for row in zip(*deciding)], np.int64)


class PartOfRecords(records.Wrapping):
  """The records of each client that are held out, or all others.

  Those of a person go together. Where one goes depends on itself alone, by `digests`.
  """

  read_in_graph = None

  def __init__(self, source: task.ClientSource, fraction: float, *, held_out: bool):
    """Wraps a raw source; `fraction`, in (0, 1), is that held out on average."""
    super().__init__(source)
    if not 0 < fraction < 1:
      raise checks.wrong('held_out_records', 'in (0, 1)', fraction)
    self._limit, self._held_out = int((fraction - 0.5) * 2**64), held_out

  def examples(self, client_id: str) -> dict[str, np.ndarray]:
    raw = self._source.examples(client_id)
    rows = (digests(raw) < self._limit) == self._held_out
    return {name: array[rows] for name, array in raw.items()}


def with_part(
    train: task.ClientSource, test: task.ClientSource | None, fraction: float | None
) -> tuple[task.ClientSource, task.ClientSource | None]:
  """Both parts: a test part of that fraction of records where there is none."""
  return (train, test) if test is not None or fraction is None else tuple(
      PartOfRecords(train, fraction, held_out=held_out) for held_out in (False, True))
