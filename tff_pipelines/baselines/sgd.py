"""DP-SGD of a curator and DP-FedSGD of clients as baselines."""

from collections.abc import Callable, Mapping
import functools
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from aggregators import keys
from tasks.models import classifiers
from tff_pipelines.accounting.events import kinds as events
from tff_pipelines.accounting.guarantees import plan as guarantee
from tff_pipelines.experiment import report as report_lib
from tff_pipelines.experiment import rounds as rounds_lib
from tff_pipelines.fedavg import noisy_sgd
from tff_pipelines.fedavg.noisy_sgd import NoisySgdPlan

_Plan = TypeVar('_Plan', bound=NoisySgdPlan)


def build_plan(plan_type: type[_Plan], settings: Any,
               recorded: Mapping[str, Any] | None, *,
               target_epsilon: float | None, noise_multiplier: float | None = None,
               terms: Mapping[str, Any], **rest: Any) -> _Plan:
  """Builds the plan of a baseline from `record_rate`, `clip`, `rounds` and `seed`.

  `terms` are fields of guarantee.Terms, except for the source; numbers of an earlier
  start are taken over.
  """
  if recorded is not None:
    target_epsilon, noise_multiplier = None, recorded['noise_multiplier']
  return plan_type.calibrate(
      terms=guarantee.Terms(source=events.NoisyGradients.source, **terms),
      target_epsilon=target_epsilon, noise_multiplier=noise_multiplier,
      sampling_rate=settings.record_rate, clip=settings.clip, rounds=settings.rounds,
      seed=settings.seed, **rest)


def mechanism_line(name: str, plan: NoisySgdPlan, *, given: bool = False) -> str:
  """The line on the mechanism in a report; `given` noise was not calibrated."""
  noise = report_lib.noise_in_words(plan.noise_multiplier, given=given)
  return f'{name}, noise multiplier {noise}, clip {plan.clip:g}'


class SgdRounds(rounds_lib.Rounds):
  """Steps of noisy gradients of all records; the state is a list of weights."""

  unit = 'step'

  def __init__(self, plan: NoisySgdPlan, network: classifiers.Network,
               examples: Mapping[str, np.ndarray], *, learning_rate: float,
               accuracy: Callable[[list[np.ndarray]], float]):
    """Initializes the rounds; `accuracy` is of weights on the test records."""
    self.count, self._seed = plan.rounds, plan.seed
    self._network, self._accuracy = network, accuracy
    scale = learning_rate / plan.expected_records
    loss = network.as_model().loss

    @functools.partial(tf.function, autograph=False)
    def step(weights, key, examples):
      total = noisy_sgd.contribution(loss, weights, examples, key, plan)
      return [w - scale * g for w, g in zip(weights, total)]

    self._step = functools.partial(
        step, examples=tf.nest.map_structure(tf.constant, examples))

  def initial_state(self, resumed: bool) -> list[np.ndarray]:
    return self._network.initial_weights(0)

  def step(self, state: list[np.ndarray], index: int) -> rounds_lib.Step:
    root = keys.fresh() if self._seed is None else tf.constant(
        keys.from_seed(self._seed))
    weights = [w.numpy() for w in self._step(
        list(map(tf.constant, state)), keys.derive(root, index))]
    return rounds_lib.Step(
        state=weights, metrics={'test/accuracy': self._accuracy(weights)})
