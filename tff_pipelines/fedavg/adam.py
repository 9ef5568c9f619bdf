"""Training by Adam as pure functions: agents, students and public networks.

The same steps run inside TFF at a client and in plain TensorFlow at the server.
The examples of a step follow from its index and a key, so a training that is
interrupted between steps resumes with the same results.
"""

import dataclasses
from typing import Callable, Sequence

import numpy as np
import tensorflow as tf

from aggregators import keys
from tff_pipelines.common import validate

_FIRST_DECAY, _SECOND_DECAY = 0.9, 0.99
_SMALL = 1e-8


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdamConfig:
  """Adam with decoupled weight decay; the rate falls to 0 by half a cosine.

  A step subtracts `weight_decay` times the rate times the weights.
  """

  learning_rate: validate.Positive
  batch_size: validate.Count
  epochs: validate.Count
  weight_decay: validate.NonNegative = 0.0

  def __post_init__(self):
    validate.fields(self)


def initial_state(weights: Sequence) -> list[list[tf.Tensor]]:
  """The state of a training: weights, first and second moments."""
  weights = [tf.convert_to_tensor(w, tf.float32) for w in weights]
  return [weights, *([tf.zeros_like(w) for w in weights] for _ in range(2))]


def adam_step(weights: Sequence, gradients: Sequence, moments: Sequence,
          squares: Sequence, rate, *, first_decay: float, second_decay: float,
          first_power, second_power, small: float) -> tuple[list, list, list]:
  """Computes one step of Adam (arXiv 1412.6980).

  `weights`, `gradients`, `moments` and `squares` are lists of float32 tensors. The
  powers are the decays, in [0, 1), to the number of steps, this one included: both
  moments start at zero, which the length of the step makes up for. `small` is added to
  the root of the second moments. Returns new weights, first and second moments.
  """
  length = rate * tf.sqrt(1.0 - second_power) / (1.0 - first_power)
  moments = [m + (1 - first_decay) * (g - m) for m, g in zip(moments, gradients)]
  squares = [s + (1 - second_decay) * (g * g - s) for s, g in zip(squares, gradients)]
  weights = [w - length * m / (tf.sqrt(s) + small)
             for w, m, s in zip(weights, moments, squares)]
  return weights, moments, squares


def run_steps(loss: Callable, state, first, last, total, config: AdamConfig):
  """Runs steps first .. last - 1 of a training of `total` steps, int32 scalars.

  `loss`: (weights, step) -> float32 scalar. Returns the new state, as `initial_state`.
  """
  def step(i, weights, moments, squares):
    with tf.GradientTape() as tape:
      tape.watch(weights)
      value = loss(weights, i)
    gradients = tape.gradient(
        value, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    done = tf.cast(i, tf.float32)
    rate = config.learning_rate * 0.5 * (
        1.0 + tf.cos(np.float32(np.pi) * done / tf.cast(total, tf.float32)))
    new, moments, squares = adam_step(
        weights, gradients, moments, squares, rate, first_decay=_FIRST_DECAY,
        second_decay=_SECOND_DECAY, first_power=tf.pow(_FIRST_DECAY, done + 1.0),
        second_power=tf.pow(_SECOND_DECAY, done + 1.0), small=_SMALL)
    new = [stepped - rate * config.weight_decay * w for stepped, w in zip(new, weights)]
    return i + 1, new, moments, squares

  first, last = tf.cast(first, tf.int32), tf.cast(last, tf.int32)
  return tf.while_loop(lambda i, *_: i < last, step, (first, *map(list, state)),
                       parallel_iterations=1)[1:]


def steps_of(count: tf.Tensor, config: AdamConfig) -> tf.Tensor:
  """Number of steps of a whole training on `count` examples, 0 if there are none."""
  return config.epochs * (-(-count // config.batch_size))


def batch_rows(key: tf.Tensor, step: tf.Tensor, count: tf.Tensor,
               batch_size: int) -> tf.Tensor:
  """Rows of the examples of a step: int32 [batch_size] in [0, count).

  Every epoch has all of them in another order; its last batch is filled up with the
  first ones of the order.
  """
  count = tf.cast(count, tf.int32)
  steps = -(-count // batch_size)
  order = tf.argsort(keys.random_bits(keys.derive(key, step // steps), [count], tf.int64))
  positions = (step % steps) * batch_size + tf.range(batch_size)
  return tf.gather(order, positions % count)


def epoch_function(loss: Callable, key: tf.Tensor, count: int,
                   config: AdamConfig) -> Callable:
  """Builds the function (state, index of the epoch from 0, *more) -> the new state.

  It trains one of `config.epochs`, as one graph. `loss`: (weights, rows, step, *more)
  -> float32 scalar, where `rows` are the indices of the step's examples, a batch or, if
  they are fewer, all of `count` >= 1; `key`, int64[2], is that of their order.
  """
  batch_size = min(config.batch_size, count)
  steps = -(-count // batch_size)

  @tf.function(autograph=False)
  def run(state, epoch, *more):
    return run_steps(
        lambda weights, step: loss(
            weights, batch_rows(key, step, count, batch_size), step, *more),
        state, epoch * steps, (epoch + 1) * steps, config.epochs * steps, config)

  return run
