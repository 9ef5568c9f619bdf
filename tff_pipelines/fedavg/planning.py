"""The plan of a run without training: noise, epsilons, bits, error and time."""

from collections.abc import Sequence
import dataclasses
import math
import time
from typing import Any

from tasks.task import Task
from tff_pipelines.accounting.guarantees import bounds
from tff_pipelines.accounting.guarantees.guarantee import Guarantee
from tff_pipelines.common import decimals
from tff_pipelines.fedavg import account_compare, columns, plan as plan_lib
from tff_pipelines.simulation import contexts


@dataclasses.dataclass(frozen=True, kw_only=True)
class Planned:
  """A plan that was not run.

  Attributes:
    guarantee: All numbers of the guarantee of the whole run.
    noise_multiplier, bits, column: The calibrated numbers of the mechanism; None where
      it has none.
    error: Root mean square, over rounds and coordinates, of the noise in the model,
      model units; None without noise of this project, or where updates decide it.
    seconds: Seconds of a round on this machine, tracing excluded; None without data.
    lines: Lines of the plan as they are printed.
  """

  guarantee: Guarantee
  noise_multiplier: float | None
  bits: int | None
  column: tuple[int, ...]
  error: float | None
  seconds: float | None
  lines: Sequence[str]


def error(plan: plan_lib.FedAvgPlan, server: Any,
          work: columns.Workload) -> float | None:
  """The `error` of `Planned`; None for an optimizer of the server that is not linear.

  `server` is a `ServerConfig`, and `work` its workload.
  """
  mechanism = plan.mechanism
  if mechanism.family.knob is None or server.optimizer != 'sgdm':
    return None
  return (account_compare.model_error(mechanism, work) * server.learning_rate
          * mechanism.clip / mechanism.cohort_size)


def seconds_of_round(experiment: Any, task: Task, plan: plan_lib.FedAvgPlan) -> float:
  """Seconds of a round of an experiment, computed twice and not released."""
  settings = experiment.settings
  with contexts.simulation(**experiment.where, data=experiment.read_by_workers(task)):
    rounds = experiment.build_rounds(task, plan)
    state = rounds.initial_state(False)
    rounds.step(state, 1)  # Is traced.
    start = time.perf_counter()
    rounds.step(state, 1)
    return time.perf_counter() - start


def lines(plan: plan_lib.FedAvgPlan, noise: float | None,
          seconds: float | None) -> list[tuple[str, str]]:
  """Error and time, as lines of a plan."""
  error_line = '' if noise is None else (
      f'noise of {noise:.3g} in each parameter of the model, norm '
      f'{noise * math.sqrt(plan.mechanism.dimension):.3g}: root mean square over rounds')
  time_line = 'not known without data' if seconds is None else (
      f'{seconds:.2g} s a round here, {seconds * plan.mechanism.rounds:.2g} s in all')
  return [('error', error_line)] * bool(error_line) + [('time', time_line)]


def check_more_rounds(plan: plan_lib.FedAvgPlan, before: int) -> None:
  """Raises ValueError unless a plan may have more rounds than the number before.

  Rounds with the same event compose to any number. The noise stays as it was, so a
  target that was met by fewer rounds must be given anew.
  """
  rounds = plan.mechanism.rounds
  fixing = f'sampling={plan.mechanism.sampling}' if plan.evaluation is None else (
      'private_evaluation')
  if plan.evaluation is not None or not plan.scheme.same_every_round:
    raise ValueError(f'rounds={rounds} can\'t be more than the {before} that were '
                     f'planned: {fixing} fixes their number')
  for observer, target in plan.targets.items():
    name = 'epsilon' if observer == bounds.PARTICIPANT else bounds.KEYS[observer]
    spent = plan.bound(plan.released(rounds), plan.release_count(rounds),
                       observer=observer).epsilon
    if spent > target:
      raise ValueError(f'{name}={target:g} was met by {before} rounds; {rounds} with '
                       f'this noise cost {decimals.epsilon(spent)}: give --{name} anew')
