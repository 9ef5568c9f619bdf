"""Local training of a client: SGD on its examples from the server's weights.

Pure TensorFlow functions of explicit arguments. TFF maps them over clients, one
call each; the chunked form calls them for many clients in one graph. Same keys,
same update.
"""

import collections
from collections.abc import Callable
import dataclasses
import functools
from typing import Any

import tensorflow as tf

from aggregators import keys
from tff_pipelines.common import declarations
from tff_pipelines.common.declarations import REQUIRED
from tff_pipelines.fedavg.settings import like


@declarations.documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalConfig:
  """Parameters of local SGD; FedProx is of Li et al. 2020 (arXiv 1812.06127)."""

  learning_rate: float = like('client_learning_rate', REQUIRED)
  batch_size: int = like('client_batch_size', REQUIRED)
  epochs: int = like('client_epochs', REQUIRED)
  proximal: float = like('client_proximal')
  weight_decay: float = like('client_weight_decay')

  def __post_init__(self):
    declarations.check(self)


def update(loss_fn: Callable, weights, examples, key: tf.Tensor, config: LocalConfig):
  """The change of the weights by local training.

  Every step has a batch of the same shape: the last of an epoch is filled up
  with examples that carry no weight.

  Args:
    loss_fn: (weights, batch, seed) -> float32 [batch].
    weights: List of float32 tensors, as sent by the server.
    examples: Feature name -> tensor; all have the same number of examples, maybe 0.
    key: int64[2]; order of the examples and dropout derive from it.
    config: Parameters of the steps.

  Returns:
    List of float32 tensors, new weights minus old; and an OrderedDict of the float32
    scalars `loss` (summed over the examples seen) and `examples`.
  """
  weights = [tf.convert_to_tensor(w) for w in weights]
  count = tf.shape(tf.nest.flatten(examples)[0])[0]
  batch_size = config.batch_size
  steps_per_epoch = (count + batch_size - 1) // batch_size
  offsets = tf.range(batch_size)

  def train_epoch(epoch, current, total_loss):
    epoch_key = keys.derive(key, epoch)
    order = tf.argsort(keys.random_bits(keys.derive(epoch_key, 0), [count], tf.int64))
    dropout_key = keys.derive(epoch_key, 1)

    def train_step(step, current, total_loss):
      positions = step * batch_size + offsets
      mask = tf.cast(positions < count, tf.float32)
      rows = tf.gather(order, tf.minimum(positions, count - 1))
      batch = {name: tf.gather(x, rows) for name, x in examples.items()}
      with tf.GradientTape() as tape:
        tape.watch(current)
        losses = loss_fn(current, batch, keys.derive(dropout_key, step)) * mask
        summed = tf.reduce_sum(losses)
        # The rate is in the loss: a pass less over the weights.
        scaled_mean = summed * (config.learning_rate / tf.reduce_sum(mask))
      changes = tape.gradient(
          scaled_mean, current, unconnected_gradients=tf.UnconnectedGradients.ZERO)
      # The gradient of an embedding is sparse until it is converted.
      changes = list(map(tf.convert_to_tensor, changes))
      if config.proximal:
        pull = config.learning_rate * config.proximal
        changes = [change + pull * (w - start) for change, w, start in zip(
            changes, current, weights)]
      if config.weight_decay:
        pull = config.learning_rate * config.weight_decay
        changes = [change + pull * w for change, w in zip(changes, current)]
      current = [w - change for w, change in zip(current, changes)]
      return step + 1, current, total_loss + summed

    _, current, total_loss = tf.while_loop(
        lambda step, *_: step < steps_per_epoch, train_step,
        (tf.constant(0), current, total_loss), parallel_iterations=1)
    return epoch + 1, current, total_loss

  _, trained, total_loss = tf.while_loop(
      lambda epoch, *_: epoch < config.epochs, train_epoch,
      (tf.constant(0), weights, tf.constant(0.0)), parallel_iterations=1)
  delta = [new - old for new, old in zip(trained, weights)]
  return delta, collections.OrderedDict(
      loss=total_loss, examples=tf.cast(count * config.epochs, tf.float32))


# (weights, examples, key) -> the change of the weights, and float32 scalars that are
# summed over clients where diagnostics are measured; see `update`.
ClientUpdate = Callable[[Any, Any, tf.Tensor], tuple[list[tf.Tensor], Any]]


def client_update(loss_fn: Callable, config: LocalConfig) -> ClientUpdate:
  """Local training by `update` with this loss, for the process that runs it."""
  return functools.partial(update, loss_fn, config=config)
