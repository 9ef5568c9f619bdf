"""NoisySGD: rounds of noisy gradients on Poisson-sampled records, and their plan.

DP-SGD of a curator and DP-FedSGD of clients have them in common. In a round of
DP-FedSGD every client samples some of its own records in secret, clips the gradient
of each, and adds a share of the noise to their sum; the server learns the sum over
clients and takes one step. The privacy unit is one record.
"""

import collections
import dataclasses
import math
from typing import Any, Callable

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from aggregators import keys, normal
from tasks.task import Model
from tff_pipelines.accounting.events import base, kinds as events
from tff_pipelines.accounting.guarantees import (
    calibration, guarantee as guarantee_lib, plan as guarantee)
from tff_pipelines.common import caveats, validate
from tff_pipelines.fedavg import process as fedavg
from tff_pipelines.fedavg.server_optimizer import ServerConfig

# No rounding leaves the sum of shares short.
_SHARE_EXCESS = 1.0 + 1e-9
# Number of records whose gradients are in memory at a time.
_BLOCK = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoisySgdPlan(guarantee.Plan):
  """A calibrated plan.

  Attributes:
    terms, delta, seed: As in `guarantee.Plan`.
    noise_multiplier: Standard deviation of the noise in a round's sum over the clip
      of a record.
    sampling_rate: Sampling rate of a record, in (0, 1].
    clip: L2 clip of a record's gradient.
    rounds: Number of rounds of the whole run.
    clients: That participate in every round.
    records: Number of records of all clients together; taken as public.
    neighbours: As of `events.NoisyGradients`.
  """

  terms: guarantee.Terms
  noise_multiplier: validate.Positive
  sampling_rate: float
  clip: validate.Positive
  rounds: validate.Count
  delta: validate.OpenUnitInterval
  clients: validate.Count
  records: validate.Count
  neighbours: str = base.RECORD_ZERO_OUT
  seed: int | None = None

  @classmethod
  def calibrate(cls, *, target_epsilon: float | None, noise_multiplier: float | None,
                **rest: Any) -> 'NoisySgdPlan':
    """Builds the plan for a target epsilon, or for a given noise multiplier."""
    if (target_epsilon is None) == (noise_multiplier is None):
      raise ValueError('one of epsilon and noise_multiplier must be given, found '
                       f'{target_epsilon!r} and {noise_multiplier!r}')
    if noise_multiplier is None:
      noise_multiplier = calibration.noise_multiplier(
          lambda z: cls(noise_multiplier=z, **rest).released(rest['rounds']),
          epsilon=target_epsilon, delta=rest['delta'])
    return cls(noise_multiplier=noise_multiplier, **rest)

  def __post_init__(self):
    validate.fields(self)
    self.event(1)  # Raises what is out of range.

  @property
  def expected_records(self) -> float:
    """Expected number of records of a round: the constant that sums are divided by."""
    return self.sampling_rate * self.records

  def event(self, index: int) -> base.Event:
    return events.NoisyGradients(
        noise_multiplier=self.noise_multiplier, sampling_rate=self.sampling_rate,
        neighbours=self.neighbours)

  def released(self, rounds: int) -> base.Event:
    return events.SelfComposed(event=self.event(1), count=rounds)

  def header(self, rounds, more=()) -> dict[str, Any]:
    return {**super().header(rounds, more),
            'population': self.clients if self.clients > 1 else None}

  def notes(self) -> list[caveats.Caveat]:
    return [
        caveats.Caveat(
            'number of records public', 'the number of all records, which sets the '
            'sampling rate and divides the sums, is taken as public'),
        guarantee_lib.FLOATING_POINT]

  def configuration(self) -> dict[str, Any]:
    return {'noise_multiplier': self.noise_multiplier, 'delta': self.delta,
            'records': self.records}


def sampled_rows(key: tf.Tensor, count: tf.Tensor, sampling_rate: float) -> tf.Tensor:
  """Samples the records of a round, each of `count` independently at the rate; int32.

  Exact to 2^-63, rounded down.
  """
  if sampling_rate == 1:
    return tf.range(count)
  bits = tf.bitwise.bitwise_and(keys.random_bits(key, [count], tf.int64), tf.int64.max)
  is_sampled = bits < min(math.floor(sampling_rate * 2.0**63), 2**63 - 1)
  return tf.cast(tf.where(is_sampled)[:, 0], tf.int32)


def clipped_gradient_sum(loss: Callable, weights, examples, rows: tf.Tensor,
                         clip: float) -> list[tf.Tensor]:
  """Sums the clipped gradients of single records: float32 tensors like the weights.

  Args:
    loss: (weights, batch, seed) -> float32 [batch].
    weights: List of float32 tensors.
    examples: Feature name -> tensor, the client's records.
    rows: int32, those that count.
    clip: L2, model units. Gradients with NaN or infinite values count as zero.
  """
  weights = [tf.convert_to_tensor(w) for w in weights]
  # A float32 rounding or two must not leave a gradient beyond the clip.
  bound = clip * (1.0 - 2.0**-20)

  def clipped_gradient(record_and_mask):
    record, counts = record_and_mask
    with tf.GradientTape() as tape:
      tape.watch(weights)
      batch = {name: value[tf.newaxis] for name, value in record.items()}
      value = loss(weights, batch, None)[0]
    gradients = tape.gradient(
        value, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    # Not tf.linalg.global_norm, which can't be vectorised.
    norm = tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(g)) for g in gradients]))
    good = tf.math.is_finite(norm) & counts
    factor = tf.where(good, bound / tf.maximum(norm, bound), 0.0)
    return [tf.where(good, g * factor, 0.0) for g in gradients]

  def block(start, totals):
    positions = start + tf.range(_BLOCK)
    chosen = tf.gather(rows, tf.minimum(positions, tf.size(rows) - 1))
    of_block = {name: tf.gather(x, chosen) for name, x in examples.items()}
    # Operations without a vectorised form, such as the gradient of a convolution's
    # kernel, run record by record; TensorFlow would warn of that.
    gradients = tf.vectorized_map(
        clipped_gradient, (of_block, positions < tf.size(rows)), warn=False)
    return start + _BLOCK, [
        total + tf.reduce_sum(g, axis=0) for total, g in zip(totals, gradients)]

  _, totals = tf.while_loop(
      lambda start, _: start < tf.size(rows), block,
      (tf.constant(0), [tf.zeros_like(w) for w in weights]), parallel_iterations=1)
  return totals


def contribution(loss: Callable, weights, examples, key: tf.Tensor,
                 plan: NoisySgdPlan) -> list[tf.Tensor]:
  """A client's contribution to a round: clipped gradients and its share of noise."""
  count = tf.shape(tf.nest.flatten(examples)[0])[0]
  rows = sampled_rows(keys.derive(key, 0), count, plan.sampling_rate)
  totals = clipped_gradient_sum(loss, weights, examples, rows, plan.clip)
  noise_key = keys.derive(key, 1)
  stddev = plan.clip * plan.noise_multiplier * math.sqrt(_SHARE_EXCESS / plan.clients)
  return [
      total + tf.cast(
          stddev * normal.sample(keys.derive(noise_key, i), total.shape), tf.float32)
      for i, total in enumerate(totals)]


def build(model: Model, element_spec, *, initial_weights: list[np.ndarray],
          plan: NoisySgdPlan, learning_rate: float, momentum: float
          ) -> tff.templates.IterativeProcess:
  """Builds the process.

  Formal guarantees:

  * One round is the `NoisyGradients` event of the plan against any observer who sees
    models and does not learn which records were sampled, the server included, as long
    as secure aggregation shows it sums only.
  * The noise is floating point, with the guarantee of ideal arithmetic; the sum of
    reals is taken as if secure aggregation had them.
  * A round that lacks a client is suppressed, as it would lack that client's noise:
    the state stays, and nothing is released.
  * With a seed there is no privacy guarantee (noise is predictable).

  Args:
    model: The model to train.
    element_spec: Feature name -> (dtype, shape), of the clients' source.
    initial_weights: List of float32 arrays.
    plan: With a seed, clients bring a key of it.
    learning_rate, momentum: Those of the server's SGD on the mean gradient.
  """
  server = fedavg.Server(initial_weights, ServerConfig(
      learning_rate=learning_rate, momentum=momentum))
  seeded = plan.seed is not None
  weights_type = server.weights_type
  clients_type = fedavg.client_type(element_spec, seeded=seeded)

  @tff.tensorflow.computation(clients_type, weights_type)
  def contribute(client, weights):
    key = client['key'] if seeded else keys.fresh()
    return contribution(model.loss, weights, client['examples'], key, plan)

  @tff.tensorflow.computation(
      weights_type, server.optimizer_type, weights_type, tf.int32)
  def step(weights, optimizer_state, total, num_reporting):
    mean_update = [-g / plan.expected_records for g in total]
    new_weights, new_state = server.step(weights, optimizer_state, mean_update)
    # Without all shares of the noise nothing may be released.
    complete = num_reporting >= plan.clients
    select = lambda new, old: tf.where(complete, new, old)
    return (list(map(select, new_weights, weights)),
            tf.nest.map_structure(select, new_state, optimizer_state),
            collections.OrderedDict(suppressed=~complete))

  @tff.tensorflow.computation
  def nothing():
    return collections.OrderedDict(unused=tf.zeros([], tf.int64))

  def run_round(state, clients):
    sent = tff.federated_map(
        contribute, (clients, tff.federated_broadcast(state['weights'])))
    total = tff.federated_sum(sent)
    num_reporting = tff.federated_sum(tff.federated_value(1, tff.CLIENTS))
    weights, optimizer_state, measured = tff.federated_map(
        step, (state['weights'], state['optimizer'], total, num_reporting))
    return weights, optimizer_state, state['aggregator'], collections.OrderedDict(
        aggregator=measured)

  return server.process(clients_type, nothing, run_round)
