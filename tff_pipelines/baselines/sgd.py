"""DP-FedSGD of agents as a baseline; with one of them, DP-SGD of a curator."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tasks.task import Task
from tff_pipelines.accounting.guarantees import mechanisms
from tff_pipelines.common import declarations
from tff_pipelines.fedavg import loop, run as fedavg_run
from tff_pipelines.fedavg.plan import FedAvgPlan
from tff_pipelines.fedavg.server_optimizer import ServerConfig


def build_plan(settings: Any, recorded: Mapping[str, Any] | None, *, agents: int,
               records: int, epsilon: float | None, delta: float, privacy_unit: str,
               **rest: Any) -> FedAvgPlan:
  """Builds the plan of a baseline from `record_rate`, `clip`, `rounds` and `seed`.

  `rest` are parameters of the mechanism; `records` are those of all agents.
  """
  return FedAvgPlan.calibrate(
      mechanisms.SumMechanism(**declarations.shared(
          mechanisms.SumMechanism, settings, sampling='records', population=records,
          silos=agents, cohort_size=settings.record_rate * records, **rest)),
      delta=delta, target_epsilon=epsilon, seed=settings.seed,
      recorded_noise=recorded and recorded['noise_multiplier'], privacy_unit=privacy_unit)


def build_rounds(task: Task, plan: FedAvgPlan, initial_weights: list[np.ndarray], *,
                 learning_rate: float, momentum: float = 0.0,
                 **config: Any) -> loop.FedAvgRounds:
  """Rounds of noisy gradients, in which every agent participates."""
  return fedavg_run.build_steps(
      task, plan, initial_weights, server=ServerConfig(
          learning_rate=learning_rate, momentum=momentum), **config)
