"""DP-FedSGD of clients as a baseline; with one client, DP-SGD of a curator."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tasks.task import Task
from tff_pipelines.accounting.events import kinds as events
from tff_pipelines.accounting.guarantees import plan as guarantee
from tff_pipelines.accounting.sampling import schemes
from tff_pipelines.experiment import report as report_lib
from tff_pipelines.fedavg import loop, noisy_sgd
from tff_pipelines.fedavg.noisy_sgd import NoisySgdPlan


def build_plan(settings: Any, recorded: Mapping[str, Any] | None, *,
               target_epsilon: float | None, noise_multiplier: float | None = None,
               terms: Mapping[str, Any], **rest: Any) -> NoisySgdPlan:
  """Builds the plan of a baseline from `record_rate`, `clip`, `rounds` and `seed`.

  `terms` are fields of guarantee.Terms, except for the source.
  """
  if recorded is not None:
    target_epsilon, noise_multiplier = None, recorded['noise_multiplier']
  return NoisySgdPlan.calibrate(
      terms=guarantee.Terms(source=events.NoisyGradients.source, **terms),
      target_epsilon=target_epsilon, noise_multiplier=noise_multiplier,
      sampling_rate=settings.record_rate, clip=settings.clip, rounds=settings.rounds,
      seed=settings.seed, **rest)


def mechanism_line(name: str, plan: NoisySgdPlan, *, given: bool = False) -> str:
  """The line on the mechanism in a report; `given` noise was not calibrated."""
  noise = report_lib.noise_in_words(plan.noise_multiplier, given=given)
  return f'{name}, noise multiplier {noise}, clip {plan.clip:g}'


def build_rounds(task: Task, plan: NoisySgdPlan, initial_weights: list[np.ndarray], *,
                 learning_rate: float, momentum: float = 0.0,
                 rounds_per_evaluation: int = 1) -> loop.FedAvgRounds:
  """Rounds of noisy gradients, in which every client participates."""
  process = noisy_sgd.build(
      task.model, task.train.element_spec, initial_weights=initial_weights, plan=plan,
      learning_rate=learning_rate, momentum=momentum)
  return loop.FedAvgRounds(
      process, task=task, scheme=schemes.Everyone(
          population=plan.clients, cohort_size=plan.clients, simulation_seed=plan.seed),
      unit_is_client=False, rounds=plan.rounds,
      rounds_per_evaluation=rounds_per_evaluation)
