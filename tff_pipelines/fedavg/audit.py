"""Canaries among the clients of a training run."""

from collections.abc import Callable, Sequence
import dataclasses
import pathlib
from typing import Any

import numpy as np

from tasks.task import Task
from tff_pipelines.accounting.guarantees.guarantee import Guarantee
from tff_pipelines.audit import canaries as canaries_lib, guesses
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
  def of_run(cls, folder: pathlib.Path, plan: plan_lib.FedAvgPlan, first: int) -> 'Audit':
    """The audit of the run in a folder; draws its canaries at its first start."""
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

  def findings(self, state: dict[str, Any], guarantee: Guarantee) -> list[dict[str, Any]]:
    """The findings after the last round, as JSON."""
    mechanism = self.plan.mechanism
    return [found.to_json() for found in guesses.of_run(
        self.canaries, state['canaries'], state['process']['weights'], guarantee,
        rounds=mechanism.rounds,
        expected=mechanism.rounds * mechanism.cohort_size / self.plan.population)]
