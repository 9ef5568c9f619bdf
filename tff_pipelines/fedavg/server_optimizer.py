"""Optimizers of the server: TFF's, on minus the mean update, with a learning rate by
round.

FedAvgM, FedAdam, FedAdagrad and FedYogi of Reddi et al. 2021 (arXiv 2003.00295). They
see nothing but what the mechanism released, so they cost no privacy.
"""

import dataclasses
import math

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pipelines.common import declarations, validate
from tff_pipelines.common.declarations import REQUIRED
from tff_pipelines.fedavg.settings import like


@declarations.documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerConfig:
  """Parameters of the server's optimizer.

  `adaptivity` is tau of Reddi et al.: added to the root of the second moment, which
  starts at tau squared (adam: at 0, and is corrected for that).
  """

  learning_rate: float = like('server_learning_rate', REQUIRED)
  momentum: float = like('server_momentum', 0.0)
  optimizer: str = like('server_optimizer')
  beta_1: float = like('server_beta_1')
  beta_2: float = like('server_beta_2')
  adaptivity: float = like('server_adaptivity')
  schedule: str = like('server_schedule')
  warmup_rounds: int = like('server_warmup_rounds', 0)
  rounds: int | None = declarations.setting(
      None, 'Rounds at whose end a decay is at 0; the constant schedule and '
      'linear_warmup need none.', low=1)

  def __post_init__(self):
    declarations.check(self)
    if self.schedule in ('linear_decay', 'cosine'):
      validate.integer(rounds=self.rounds, low=1)

  def build(self) -> tff.learning.optimizers.Optimizer:
    """Builds the optimizer; a schedule's round index is in its state."""
    optimizers, rate, tau = tff.learning.optimizers, self.learning_rate, self.adaptivity
    betas = rate, self.beta_1, self.beta_2, tau
    if self.optimizer == 'adam':
      optimizer = optimizers.build_adam(*betas)
    elif self.optimizer == 'yogi':
      optimizer = optimizers.build_yogi(*betas, initial_preconditioner_value=tau**2)
    elif self.optimizer == 'adagrad':
      # TFF adds its epsilon under the root.
      optimizer = optimizers.build_adagrad(
          rate, initial_preconditioner_value=tau**2, epsilon=0.0)
    else:
      optimizer = optimizers.build_sgdm(rate, self.momentum or None)
    if self.schedule == 'constant':
      return optimizer
    return optimizers.schedule_learning_rate(optimizer, self.rate)

  def rate(self, index: tf.Tensor | np.ndarray) -> tf.Tensor | np.ndarray:
    """Learning rates of rounds by index, from 0; arrays in NumPy, else in graph."""
    if isinstance(index, np.ndarray):
      lib = np
    else:
      lib, index = tf, tf.cast(index, tf.float32)
    factor = lib.minimum(1.0, (index + 1) / max(1, self.warmup_rounds))
    if self.schedule != 'linear_warmup':
      decaying = max(1, self.rounds - self.warmup_rounds)
      done = lib.minimum(1.0, lib.maximum(0.0, (index - self.warmup_rounds) / decaying))
      factor *= (1 - done if self.schedule == 'linear_decay' else
                 0.5 * (1 + lib.cos(math.pi * done)))
    return self.learning_rate * factor
