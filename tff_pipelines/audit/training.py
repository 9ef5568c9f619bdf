"""Canaries among the clients, or the records of silos, of a training run."""

from collections.abc import Callable, Sequence
import dataclasses
import pathlib
from typing import Any

import numpy as np
import tensorflow as tf

from tff_pipelines.audit import canaries as canaries_lib
from tff_pipelines.common import files
from tff_pipelines.experiment import checkpoints


@dataclasses.dataclass(frozen=True)
class Audit:
  """The audit of a run by canaries.

  Attributes:
    canaries: Behind the clients, or divided over silos, whose records they are then.
    plan: The run's `fedavg.plan.FedAvgPlan`.
    first: Number of clients.
  """

  canaries: canaries_lib.Canaries
  plan: Any
  first: int

  @classmethod
  def of_run(cls, folder: pathlib.Path, plan: Any, first: int, count: int, *,
             is_planned: bool) -> 'Audit':
    """The audit of the run in a folder; draws its canaries at its first start."""
    drawn = dict(count=count, dimension=plan.mechanism.dimension, seed=plan.seed)
    if is_planned:  # The folder is left alone.
      return cls(canaries_lib.Canaries.draw(**drawn), plan, first)
    return cls(canaries_lib.Canaries.of_run(
        folder, **drawn, resumed=bool(checkpoints.list_all(
            folder / files.PRIVATE / 'checkpoints'))), plan, first)

  @property
  def _is_of_records(self) -> bool:
    return self.plan.mechanism.silos is not None

  def with_canaries(self, task: Any) -> Any:
    """The task with canaries among its clients, or their records."""
    source = canaries_lib.OfRecords if self._is_of_records else canaries_lib.OfClients
    return dataclasses.replace(task, train=source(task.train, self.canaries.is_in))

  def client_update(self, train: Callable) -> Callable:
    """A `local_training.ClientUpdate` for clients and canaries."""
    return self.canaries.client_update(train, self.plan.mechanism.clip)

  def gradients(self, of_records: Callable) -> Callable:
    """`silos.gradients` for records and canaries."""
    clip = self.plan.mechanism.clip

    def gradients(loss, weights, batches, counts):
      batches = dict(batches)
      numbers = batches.pop(canaries_lib.FEATURE)[:, 0]
      own = of_records(loss, weights, batches, counts)
      # The number of a canary that is out is negative.
      canary = clip * tf.map_fn(
          self.canaries.direction, tf.maximum(numbers - 1, 0),
          fn_output_signature=tf.TensorSpec([self.canaries.dimension], tf.float32))
      counted = tf.reduce_any(counts > 0, axis=1)[:, tf.newaxis]
      number = numbers[:, tf.newaxis]
      return tf.where(number == 0, own, tf.where(
          (number > 0) & counted, canary, tf.zeros_like(canary)))

    return gradients

  def initial_state(self, weights: Sequence[np.ndarray]) -> dict[str, Any]:
    return self.canaries.initial_state(weights, len(self.plan.mechanism.column))

  def observed(self, state: dict[str, Any], result: Sequence[np.ndarray],
               reporting: np.ndarray) -> dict[str, Any]:
    """The state after a round of which `result` was released, by these clients.

    The server does not know which records a silo sampled: it guesses as observers do.
    """
    mechanism, count = self.plan.mechanism, self.canaries.count
    rate = mechanism.cohort_size / self.plan.population
    is_known = self.plan.scheme.hides_nothing and not self._is_of_records
    if self._is_of_records:
      reporting = np.zeros(0)
    after = self.canaries.observed(
        state, list(result), clip=mechanism.clip, column=mechanism.column,
        is_there=np.isin(self.first + np.arange(count), reporting),
        rate=1.0 if is_known else rate)
    return {**after, 'server': after['released']} if self._is_of_records else after
