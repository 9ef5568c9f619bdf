"""Tasks of voting: agents with labelled records, a server with unlabelled ones.

The server's records are public: agents vote on some of them, and a student is
trained on the answers. Their labels serve for measurements and nothing else.
"""

from collections.abc import Callable, Mapping
import dataclasses
import os
import types
from typing import Any

import numpy as np

from tasks import checks, task
from tasks.sources import (
    labelled, partition, records as records_lib)
from tasks.voting import data as voting_data
from tff_pipelines.common import validate

# The server's records are divided by this seed whatever the agents, so that
# accuracies of different agents are of the same examples.
_SPLIT_SEED = 20231117
# Records of the embedded digits that are for tests.
_EMBEDDED_TEST = 400
_SHARED = task.Note('records shared by agents', 'some agents have the same records, and '
                    'protecting an agent does not protect those')


class AgentRecords:
  """Records by agent, in memory; implements tasks.task.ClientSource.

  The agents are given, not inferred from the records: one may have none. The arrays
  that `examples` returns are read-only views.
  """

  def __init__(self, records: Mapping[str, Mapping[str, np.ndarray]]):
    """Initializes the source from agent -> feature name -> array.

    Those of an agent share their first dimension, which may be 0; features are the same
    for all agents. Raises ValueError if there is no agent, or records differ in
    features, types, shapes or lengths.
    """
    if not records:
      raise ValueError('there must be at least one agent, found none')
    self.client_ids = tuple(sorted(records))
    self._records = {}
    for agent in self.client_ids:
      views = {name: array.view() for name, array in records[agent].items()}
      for view in views.values():
        view.flags.writeable = False
      if not self._records:
        self.element_spec = types.MappingProxyType(
            {name: (view.dtype, view.shape[1:]) for name, view in views.items()})
      records_lib.check_examples(f'agent {agent}', views, self.element_spec)
      self._records[agent] = views

  def examples(self, client_id: str) -> dict[str, np.ndarray]:
    """All examples of an agent. Raises ValueError for an unknown agent."""
    if client_id not in self._records:
      raise ValueError(f'there is no agent {client_id!r}')
    return dict(self._records[client_id])


@dataclasses.dataclass(frozen=True, kw_only=True)
class VotingTask:
  """A task of voting.

  Attributes:
    agents: The agents' examples: 'x', uint8 images [height, width] or float32 vectors
      [d], and 'y', int32 in [0, num_classes). An agent may have none.
    public: The server's records, as 'x' of the agents.
    public_labels: int32, their true labels, for measurements alone.
    test: Labelled examples of the server's distribution.
    privacy_unit: What an agent is, for the report.
    notes: Notes about the data.
  """

  name: str
  num_classes: int
  agents: task.ClientSource
  public: np.ndarray
  public_labels: np.ndarray
  test: Mapping[str, np.ndarray]
  privacy_unit: str
  notes: tuple[task.Note, ...] = ()

  def __post_init__(self):
    if not len(self.public):
      raise ValueError(f'task {self.name} has no public queries')
    if not len(self.test['y']):
      raise ValueError(f'task {self.name} has no test examples')
    for agent in self.agents.client_ids:
      y = self.agents.examples(agent)['y']
      labelled.check_each(f'labels of agent {agent}', y, (y >= 0) & (
          y < self.num_classes), f'in [0, {self.num_classes})')

  @property
  def record_shape(self) -> tuple[int, ...]:
    """The shape of one record."""
    return self.public.shape[1:]


def _task(name: str, agents: Mapping[str, labelled.Labelled], server: labelled.Labelled,
          public: int, num_classes: int = 10, **rest: Any) -> VotingTask:
  """Builds the task; `public` of the server's records, the others for tests."""
  checks.integer('public_records', public, 0, len(server) - 1,
                 'records of the server, of which some are for tests')
  unlabelled, test = server.divided(public, _SPLIT_SEED)
  dtype = np.result_type(*{part.x.dtype for part in agents.values()})
  return VotingTask(
      name=name, num_classes=num_classes, agents=AgentRecords({
          agent: {'x': part.x.astype(dtype, copy=False), 'y': part.y}
          for agent, part in agents.items()}),
      public=unlabelled.x, public_labels=unlabelled.y,
      test={'x': test.x, 'y': test.y}, **rest)


def _dealt(records: labelled.Labelled, deal: list[np.ndarray],
           prefix: str = 'agent') -> dict[str, labelled.Labelled]:
  """Agent -> its records. The order of the names is that of their numbers."""
  width = len(str(len(deal) - 1))
  return {f'{prefix}{i:0{width}}': records.rows(rows) for i, rows in enumerate(deal)}


def _few_classes(train: labelled.Labelled, what: str, **deal: int) -> dict[str, Any]:
  """Arguments of `_task`: simulated agents, each with records of a few classes only."""
  shared = deal['num_clients'] * deal['records_per_client'] > len(train)
  return dict(agents=_dealt(train, partition.few_classes(train.y, **deal)),
              notes=(_SHARED,) if shared else (), privacy_unit='one of '
              f'{deal["num_clients"]} simulated agents, each with {what} of '
              f'{deal["labels_per_client"]} classes')


# Options of several tasks: num_clients >= 1; public_records, unlabelled ones of the
# server, whose others are for tests; data_seed, of the partition over simulated agents
# and not of the server's records; data_path, the folder of the files.


def embedded(*, num_clients: int = 100, public_records: int = 300,
             data_seed: int = 0) -> VotingTask:
  """Builds the task of the digits that ship with scikit-learn; 400 are for tests."""
  records = labelled.resized_digits()
  most = len(records) - _EMBEDDED_TEST
  checks.integer('public_records', public_records, 0, most - 1)
  server, rest = records.divided(public_records + _EMBEDDED_TEST, _SPLIT_SEED)
  deal = partition.evenly(len(rest), num_clients=num_clients, seed=data_seed)
  return _task('embedded', _dealt(rest, deal), server, public_records,
               privacy_unit=f'one of {num_clients} simulated agents, not people')


def mnist(*, data_path: str | os.PathLike[str], num_clients: int = 100,
          records_per_client: int = 600, labels_per_client: int = 6,
          public_records: int = 3000, data_seed: int = 0) -> VotingTask:
  """Builds the task of mnist.npz, each agent with records of a few digits only.

  `labels_per_client` is the number of an agent's digits. Where all agents need more
  records than there are, some go to several of them.
  """
  train, server = voting_data.digits_domain(data_path, 'mnist', 28)
  return _task('mnist', server=server, public=public_records, **_few_classes(
      train, 'digits', num_clients=num_clients, labels_per_client=labels_per_client,
      records_per_client=records_per_client, seed=data_seed))


def digits(*, data_path: str | os.PathLike[str], num_clients: int = 200,
           svhn_clients: int = 10, public_records: int = 3000, image_size: int = 16,
           data_seed: int = 0) -> VotingTask:
  """Builds the task of agents with MNIST or SVHN digits, a server with those of USPS.

  Files are mnist.npz, svhn_1000.npz and usps.npz; images are resized to `image_size`
  pixels a side, and MNIST's come without their frame, so that all digits fill theirs.
  `svhn_clients` of the `num_clients` have SVHN.
  """
  checks.integer('svhn_clients', svhn_clients, 0, num_clients - 1)
  agents, of_mnist = {}, num_clients - svhn_clients
  # The frame of MNIST's digits, 4 pixels wide, is empty.
  for domain, count, frame in (('mnist', of_mnist, 4), ('svhn', svhn_clients, 0)):
    if count:
      # All of a domain that no test uses.
      whole = labelled.concatenated(
          voting_data.digits_domain(data_path, domain, image_size, frame))
      agents |= _dealt(whole, partition.evenly(
          len(whole), num_clients=count, seed=data_seed), f'{domain}-')
  return _task(
      'digits', agents, labelled.concatenated(
          voting_data.digits_domain(data_path, 'usps', image_size)), public_records,
      privacy_unit='one simulated agent with digits of one domain',
      notes=(task.Note('a part of SVHN', 'SVHN is a part of 1,000 images: '
                       f'{svhn_clients} agents have it, {of_mnist} have MNIST'),))


def office(*, data_path: str | os.PathLike[str], target: str = 'webcam') -> VotingTask:
  """Builds Office-Caltech-10 by SURF features: a domain the server, three the agents.

  The file is office_caltech10_surf.npz. 70% of the server's domain, `target`, one of
  OFFICE_DOMAINS, is public.
  """
  checks.choice('target', target, voting_data.OFFICE_DOMAINS)
  domains = voting_data.office_caltech(
      os.path.join(data_path, 'office_caltech10_surf.npz'))
  server = domains.pop(target)
  return _task('office', domains, server, round(0.7 * len(server)),
               privacy_unit='one domain')


def npz(*, data_path: str | os.PathLike[str], num_classes: int | None = None,
        public_fraction: float = 0.3, num_clients: int | None = None,
        records_per_client: int = 600, labels_per_client: int = 6,
        data_seed: int = 0) -> VotingTask:
  """Builds the task of a file by agent, as voting_data.npz reads it.

  `public_fraction`, in [0, 1), of its test records are the server's. With `num_clients`
  agents are simulated, as those of `mnist`.
  """
  validate.below_one(public_fraction=public_fraction)
  parts, agents = voting_data.npz(data_path, num_classes)
  train, test, notes = parts.train, parts.test, parts.notes
  if num_clients is None:
    own = dict(
        agents={str(agent): train.rows(train.clients == agent) for agent in agents},
        privacy_unit='one agent of the file', notes=notes)
  else:
    own = _few_classes(
        train, 'records', num_clients=num_clients, labels_per_client=labels_per_client,
        records_per_client=records_per_client, seed=data_seed)
    own['notes'] += tuple(note for note in notes if note != voting_data.UNLISTED)
  return _task('npz', server=test, public=int(public_fraction * len(test)),
               num_classes=parts.num_classes, **own)


_BUILDERS: Mapping[str, Callable[..., VotingTask]] = {
    builder.__name__: builder for builder in (embedded, mnist, digits, office, npz)}

TASKS = tuple(_BUILDERS)
# Task -> the names of its options, and of those that have no default.
OPTIONS, REQUIRED = (
    {name: checks.keywords(builder)[i] for name, builder in _BUILDERS.items()}
    for i in (0, 1))


def build(name: str, **given: Any) -> VotingTask:
  """Builds one of TASKS; an option that is None counts as not given.

  Raises ValueError on an unknown task or option, one that is missing, or bad data.
  """
  return checks.call('task', name, _BUILDERS, given)
