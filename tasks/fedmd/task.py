"""The FedMD tasks: public images, parties with private images, and their models.

Models have an output for every private class. They start from networks that
were trained on the labels of the public images, with another last layer.
"""

from collections.abc import Sequence
import dataclasses
import functools
import hashlib
import itertools
from typing import Any

import numpy as np

from tasks import checks
from tasks.fedmd import data as fedmd_data
from tasks.models import fedmd as fedmd_models
from tasks.sources import labelled


@dataclasses.dataclass(frozen=True, kw_only=True)
class Party:
  """Attributes: private, its records; architecture, its index in the task's list."""

  private: fedmd_data.Labelled
  architecture: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class FedMdTask(fedmd_data.Data):
  """A FedMD task: data, named by data and split, and the parties' networks.

  `public_architectures` have an output for every public class, `architectures`
  `classes` outputs.
  """

  name: str
  parties: tuple[Party, ...]
  public_architectures: tuple[fedmd_models.Architecture, ...]
  architectures: tuple[fedmd_models.Architecture, ...]

  def pooled(self) -> 'FedMdTask':
    """The same task with one party of each architecture, which has all records."""
    everything = labelled.concatenated([party.private for party in self.parties])
    used = sorted({party.architecture for party in self.parties})
    return dataclasses.replace(self, parties=tuple(
        Party(private=everything, architecture=number) for number in used))

  @functools.cached_property
  def fingerprint(self) -> str:
    """SHA-256 of the public and the test records, and of the architectures.

    It is published with a run, so it must not depend on private records: an observer
    who knows all except one of them could try values for that one.
    """
    digest = hashlib.sha256(repr([
        [(a.name, a.size) for a in self.architectures],
        [party.architecture for party in self.parties]]).encode())
    for part in (self.public, self.test):
      for array in (part.x, part.y):
        digest.update(repr((array.shape, array.dtype)).encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def build(task: str, *, split: str, num_clients: int, architectures: Sequence[str],
          records_per_client: int | None = None, data_seed: int = 0,
          **options: Any) -> FedMdTask:
  """Builds a task.

  One of fedmd_data.TASKS by its own options, of which None counts as not given, divided
  as fedmd_data.Choice says with `data_seed`. Architectures are names of registered
  ones, which the parties have alternately. Raises ValueError on an unknown name or
  option, one that is missing, and bad data.
  """
  checks.choice('split', split, fedmd_data.SPLITS)
  data = checks.call('task', task, fedmd_data.TASKS, options, fedmd_data.Choice(
      split=split, num_clients=num_clients, records_per_client=records_per_client,
      seed=data_seed))
  shape = data.public.x.shape[1:]
  if data.test.x.shape[1:] != shape:
    raise ValueError('public and private images must have one shape, found '
                     f'{list(shape)} and {list(data.test.x.shape[1:])}')
  names = tuple(dict.fromkeys(architectures))
  of_public, of_private = (
      tuple(fedmd_models.build(name, shape, classes) for name in names)
      for classes in (data.public_classes, data.classes))
  parties = tuple(Party(private=records, architecture=names.index(name))
                  for records, name in zip(data.parties, itertools.cycle(architectures)))
  return FedMdTask(**{**vars(data), 'name': f'{task} {split}', 'parties': parties,
                      'public_architectures': of_public, 'architectures': of_private})
