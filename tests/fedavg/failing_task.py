"""The tiny task with clients whose examples are changed, of whom one fails to train."""

from collections.abc import Callable, Mapping
import dataclasses

import numpy as np

from tasks import task as task_lib
from tests import tiny_task

# Long enough not to be in a digest by chance.
CLIENT, LABEL = '3', 1038123457


class _Changed:
  """A source in which some clients have other examples."""

  def __init__(self, source, changes):
    self._source, self._changes = source, changes
    self.client_ids, self.element_spec = source.client_ids, source.element_spec

  def examples(self, client_id):
    examples = self._source.examples(client_id)
    if client_id in self._changes:
      return self._changes[client_id](examples)
    return examples


def out_of_range(examples):
  return {**examples, 'y': np.full_like(examples['y'], LABEL)}


def nothing(examples):
  return {name: value[:0] for name, value in examples.items()}


def task(changes: Mapping[str, Callable], num_clients: int = 8) -> task_lib.Task:
  """The task with these changes of clients' examples."""
  result = tiny_task.task(num_clients)
  return dataclasses.replace(result, train=_Changed(result.train, changes))


def build() -> task_lib.Task:
  return task({CLIENT: out_of_range})
