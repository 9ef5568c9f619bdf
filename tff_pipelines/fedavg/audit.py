"""Canaries among the clients of a training run."""

from collections.abc import Callable, Sequence
import dataclasses
import pathlib
from typing import Any

import numpy as np

from tasks.task import Task
from tff_pipelines.audit import canaries as canaries_lib
from tff_pipelines.common import files
from tff_pipelines.experiment import checkpoints
from tff_pipelines.fedavg import plan as plan_lib


@dataclasses.dataclass(frozen=True)
class Audit:
  """The audit of a run by canaries behind its clients, of which there are `first`."""

  canaries: canaries_lib.Canaries
  plan: plan_lib.FedAvgPlan
  first: int

  @classmethod
  def of_run(cls, folder: pathlib.Path, plan: plan_lib.FedAvgPlan, first: int, *,
             is_planned: bool) -> 'Audit':
    """The audit of the run in a folder; draws its canaries at its first start."""
    if is_planned:  # The folder is left alone.
      return cls(canaries_lib.Canaries.draw(
          plan.population - first, plan.mechanism.dimension, plan.seed), plan, first)
    return cls(canaries_lib.Canaries.of_run(
        folder, count=plan.population - first, dimension=plan.mechanism.dimension,
        seed=plan.seed, resumed=bool(checkpoints.list_all(
            folder / files.PRIVATE / 'checkpoints'))), plan, first)

  def with_canaries(self, task: Task) -> Task:
    return dataclasses.replace(task, train=self.canaries.source(task.train))

  def client_update(self, train: Callable) -> Callable:
    return self.canaries.client_update(train, self.plan.mechanism.clip)

  def initial_state(self, weights: Sequence[np.ndarray]) -> dict[str, Any]:
    return self.canaries.initial_state(weights, len(self.plan.mechanism.column))

  def observed(self, state: dict[str, Any], result: Sequence[np.ndarray],
               reporting: np.ndarray) -> dict[str, Any]:
    """The state after a round of which `result` was released, by these clients."""
    mechanism = self.plan.mechanism
    return self.canaries.observed(
        state, list(result), clip=mechanism.clip, column=mechanism.column,
        is_there=np.isin(self.first + np.arange(self.canaries.count), reporting),
        rate=1.0 if self.plan.scheme.hides_nothing else (
            mechanism.cohort_size / self.plan.population))

