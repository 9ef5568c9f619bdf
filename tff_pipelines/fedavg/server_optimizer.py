"""Optimizers of the server: TFF's, on minus the mean update, with a learning rate by
round.

FedAvgM, FedAdam, FedAdagrad and FedYogi of Reddi et al. 2021 (arXiv 2003.00295). They
see nothing but what the mechanism released, so they cost no privacy.
"""

import dataclasses
import math

import tensorflow as tf
import tensorflow_federated as tff

from tff_pipelines.common import validate
from tff_pipelines.fedavg import settings


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerConfig:
  """Parameters of the server's optimizer.

  Attributes:
    learning_rate: > 0; the highest of a schedule.
    momentum: Momentum of sgdm, in [0, 1).
    optimizer: One of settings.SERVER_OPTIMIZERS.
    beta_1: Decay of the mean of updates, of adam and yogi, in [0, 1).
    beta_2: Decay of the mean of their squares, of adam and yogi, in [0, 1).
    adaptivity: tau of Reddi et al., > 0: added to the root of the second moment, which
      starts at tau squared (adam: at 0, and is corrected for that).
    schedule: One of settings.SERVER_SCHEDULES.
    warmup_rounds: Rounds of a schedule's linear rise, >= 0.
    rounds: Number of rounds at whose end a decay is at 0, >= 1; the constant schedule
      and linear_warmup need none.
  """

  learning_rate: float
  momentum: float = 0.0
  optimizer: str = 'sgdm'
  beta_1: float = 0.9
  beta_2: float = 0.99
  adaptivity: float = 1e-3
  schedule: str = 'constant'
  warmup_rounds: int = 0
  rounds: int | None = None

  def __post_init__(self):
    validate.positive(
        server_learning_rate=self.learning_rate, server_adaptivity=self.adaptivity)
    validate.one_of(settings.SERVER_OPTIMIZERS, server_optimizer=self.optimizer)
    validate.one_of(settings.SERVER_SCHEDULES, server_schedule=self.schedule)
    validate.below_one(server_momentum=self.momentum, server_beta_1=self.beta_1,
                       server_beta_2=self.beta_2)
    validate.integer(server_warmup_rounds=self.warmup_rounds, low=0)
    if self.schedule in ('linear_decay', 'cosine'):
      validate.integer(rounds=self.rounds, low=1)

  def build(self) -> tff.learning.optimizers.Optimizer:
    """Builds the optimizer; a schedule's round index is in its state."""
    optimizer = self._unscheduled()
    if self.schedule == 'constant':
      return optimizer
    return tff.learning.optimizers.schedule_learning_rate(optimizer, self.rate)

  def _unscheduled(self) -> tff.learning.optimizers.Optimizer:
    rate, tau = self.learning_rate, self.adaptivity
    if self.optimizer == 'adam':
      return tff.learning.optimizers.build_adam(rate, self.beta_1, self.beta_2, tau)
    if self.optimizer == 'yogi':
      return tff.learning.optimizers.build_yogi(
          rate, self.beta_1, self.beta_2, tau, initial_preconditioner_value=tau**2)
    if self.optimizer == 'adagrad':
      # TFF adds its epsilon under the root.
      return tff.learning.optimizers.build_adagrad(
          rate, initial_preconditioner_value=tau**2, epsilon=0.0)
    return tff.learning.optimizers.build_sgdm(
        learning_rate=rate, momentum=self.momentum if self.momentum > 0 else None)

  def rate(self, index: tf.Tensor) -> tf.Tensor:
    """In graph: the learning rate of the round of this index, from 0."""
    index = tf.cast(index, tf.float32)
    factor = tf.minimum(1.0, (index + 1) / max(1, self.warmup_rounds))
    if self.schedule != 'linear_warmup':
      decaying = max(1, self.rounds - self.warmup_rounds)
      done = tf.clip_by_value((index - self.warmup_rounds) / decaying, 0.0, 1.0)
      factor *= (1 - done if self.schedule == 'linear_decay' else
                 0.5 * (1 + tf.cos(math.pi * done)))
    return self.learning_rate * factor
