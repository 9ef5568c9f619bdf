"""Steps of silos that protect a record or a person, as a TFF process.

In a step every silo samples some of its own units in secret, clips the gradient of each,
and contributes to a sum (`aggregators.record_sum`); the server takes one step on it.
"""

from collections.abc import Callable, Sequence
import math
from typing import Any, NamedTuple

import numpy as np
from scipy import stats
import tensorflow as tf
import tensorflow_federated as tff

from aggregators import keys, structures
from aggregators.native import marks
from aggregators.record_sum import RecordSumFactory
from tasks.sources import partition, records
from tff_pipelines.fedavg import process as process_lib
from tff_pipelines.fedavg.server_optimizer import ServerConfig

# Numbers of the gradients of a block, and the units of one at most.
_MAX_NUMBERS, _MAX_UNITS = 2**24, 128
# Purposes of the keys of a silo in a step.
_SAMPLE, _VECTORS, _SHARE = range(3)


class Units(NamedTuple):
  """Units that a silo samples and clips, records or persons.

  Attributes:
    sampling_rate: Of a unit, in (0, 1].
    expected: Expected number of units of a step, of all silos: what sums are divided by.
    room: Units that every silo takes the time for in every step, whatever it sampled.
    most_records: Records of a person that are used; None if records are the units.
  """

  sampling_rate: float
  expected: float
  room: int
  most_records: int | None = None


class Turns:
  """Which examples of a silo have a turn in a step: in every `period`-th the same."""

  def __init__(self, period: int):
    self.period, self._of_silo = period, {}

  def of(self, silo: str, examples, step: int):
    """The examples that have a turn in a step, counted from 1."""
    if self.period == 1:
      return examples
    if silo not in self._of_silo:
      self._of_silo[silo] = partition.digests(examples) % self.period
    rows = self._of_silo[silo] == step % self.period
    return {name: array[rows] for name, array in examples.items()}


def unit_counts(source, most_records: int | None = None, held_out=None) -> list[int]:
  """Number of units of each silo of a source of clients.

  `most_records` as in `Units`; `held_out` are the silos' held-out records, if any.
  Raises ValueError if a silo has none; or if persons are told apart, and one is in
  several silos, or has several records where records are protected.
  """
  counts, persons = [], {}
  for part in filter(None, (source, held_out)):
    for silo in part.client_ids:
      examples = part.examples(silo)
      count = len(next(iter(examples.values())))
      if not count and part is source:
        raise ValueError(f'silo {silo!r} must have records, found none')
      if records.PERSON in examples:
        own = np.unique(examples[records.PERSON])
        if most_records is None and len(own) < count:
          raise ValueError(f'silo {silo!r} must have one record of each person, found '
                           'persons with several: give --protect=person')
        count = len(own)
        persons[silo] = np.union1d(persons.get(silo, own), own)
      counts += [count] * (part is source)
  every = np.concatenate([*persons.values(), np.zeros(0, np.int64)])
  if more := len(every) - len(np.unique(every)):
    raise ValueError(f'a person must be in one silo, found {more} in several: epsilon '
                     'would be that of the part in one')
  return counts


def room(most: int, sampling_rate: float, period: int, odds: float) -> int:
  """Units sampled in a step of `most`, with a turn in one of `period`, but for `odds`; 2^k."""
  in_turn = most if period == 1 else stats.binom.isf(odds / 2, most, 1 / period)
  found = int(stats.binom.isf(odds / 2, int(in_turn), sampling_rate))
  return 1 << max(found - 1, 0).bit_length()


def block_size(dimension: int) -> int:
  """Number of units whose gradients, of this length, are in memory at a time."""
  return max(1, min(_MAX_UNITS, _MAX_NUMBERS // dimension))


def sampled(key: tf.Tensor, count: tf.Tensor, sampling_rate: float) -> tf.Tensor:
  """Samples each of `count` units at a rate, to 2^-63 rounded down; int32 indices."""
  if sampling_rate == 1:
    return tf.range(count)
  bits = tf.bitwise.bitwise_and(keys.random_bits(key, [count], tf.int64), tf.int64.max)
  is_sampled = bits < min(math.floor(sampling_rate * 2.0**63), 2**63 - 1)
  return tf.cast(tf.where(is_sampled)[:, 0], tf.int32)


def _of_persons(persons: tf.Tensor, most: int):
  """Number of persons, and person -> indices of its records, and whether they count.

  The latter are int32 and float32 [persons, most], of the first records of each. Those
  that do not count are a person's own: NaN of another's would reach its gradient.
  """
  order = tf.argsort(persons, stable=True)
  _, _, numbers = tf.unique_with_counts(tf.gather(persons, order))
  first, places = tf.cumsum(numbers, exclusive=True), tf.range(most)

  def of(chosen):
    own = tf.gather(first, chosen)[:, tf.newaxis]
    counts = places < tf.gather(numbers, chosen)[:, tf.newaxis]
    return (tf.gather(order, tf.where(counts, own + places, own)),
            tf.cast(counts, tf.float32))

  return tf.size(numbers), of


def sample(examples, key: tf.Tensor, units: Units):
  """Samples units of a silo.

  Args:
    examples: Feature name -> tensor, of all its records; maybe none.
    key: int64[2], of this silo and step alone.
    units: What is sampled.

  Returns the examples of those that are sampled, [sampled, most_records or 1, ...]; and
  whether each counts, float32 [sampled, most_records or 1].
  """
  features = {name: x for name, x in examples.items() if name != records.PERSON}
  if units.most_records is None:
    chosen = sampled(key, tf.shape(next(iter(features.values())))[0], units.sampling_rate)
    indices, counts = chosen[:, tf.newaxis], tf.ones([tf.size(chosen), 1])
  else:
    count, of = _of_persons(examples[records.PERSON], units.most_records)
    indices, counts = of(sampled(key, count, units.sampling_rate))
  return {name: tf.gather(x, indices) for name, x in features.items()}, counts


def gradients(loss: Callable, weights, batches, counts: tf.Tensor) -> tf.Tensor:
  """Gradients of single units, in one vectorised call; float32 [units, dimension].

  Args:
    loss: (weights, batch, seed) -> float32 [batch].
    weights: List of float32 tensors.
    batches: Feature name -> tensor [units, records, ...].
    counts: float32 [units, records], 1 for records that count, else 0.

  Returns the gradients of the mean loss of a unit's records, 0 where none counts.
  """
  weights = [tf.convert_to_tensor(w) for w in weights]

  def gradient(arguments):
    batch, mask = arguments
    with tf.GradientTape() as tape:
      tape.watch(weights)
      losses = tf.where(mask > 0, loss(weights, batch, None), 0.0)
      value = tf.reduce_sum(losses) / tf.maximum(tf.reduce_sum(mask), 1.0)
    found = tape.gradient(
        value, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    flat = tf.concat([tf.reshape(tf.convert_to_tensor(g), [-1]) for g in found], axis=0)
    return tf.where(tf.reduce_any(mask > 0), flat, tf.zeros_like(flat))

  return tf.vectorized_map(gradient, (batches, counts), warn=False)  # Some run in a loop.


def build(loss: Callable, element_spec, *, initial_weights: list[np.ndarray],
          factory: RecordSumFactory, units: Units, server: ServerConfig,
          audit: Any = None) -> tff.templates.IterativeProcess:
  """Builds the process, whose clients are silos.

  Formal guarantees: a step is a `SampledRecords` event of the factory's sum. A silo takes
  the same number of blocks in every step, unless it sampled more than `units.room`.

  Args:
    loss: (weights, batch, seed) -> float32 [batch].
    element_spec: Feature name -> (dtype, shape), of the silos' source.
    initial_weights: List of float32 arrays.
    factory: Sum over silos of their units' gradients.
    units: What is sampled.
    server: Parameters of the optimizer's step on the mean gradient.
    audit: The audit of canaries among the records; None without canaries.
  """
  seeded, diagnostics = factory.seeded, factory.diagnostics
  of_units = gradients if audit is None else audit.gradients(gradients)
  server = process_lib.Server(initial_weights, server)
  row = structures.FlatLayout(server.weights_type)
  block, dimension = block_size(row.size), row.size
  room = -(-units.room // block)
  initial_sum = tff.tensorflow.computation(factory.initial_state)
  sum_type = initial_sum.type_signature.result
  shared_type = factory.shared_type(sum_type)
  clients_type = process_lib.client_type(element_spec, seeded=seeded)
  key_type = tff.TensorType(np.int64, [2])

  @tff.tensorflow.computation(clients_type, server.weights_type, shared_type)
  def train(silo, weights, sum_state):
    key = silo['key'] if seeded else keys.fresh()
    batches, counts = sample(
        silo['examples'], factory.generator.derive(key, _SAMPLE), units)
    blocks = tf.maximum(room, (tf.shape(counts)[0] + block - 1) // block)
    missing = blocks * block - tf.shape(counts)[0]
    batches, counts = tf.nest.map_structure(lambda x: tf.pad(
        x, [[0, missing], *[[0, 0]] * (x.shape.rank - 1)]), (dict(batches), counts))
    vectors_key = factory.generator.derive(key, _VECTORS)

    def several(first, end):
      end = tf.maximum(end, first + 1)  # Some models have no gradients of no unit.
      vectors = of_units(
          loss, weights, {name: x[first:end] for name, x in batches.items()},
          counts[first:end])
      return (tf.ensure_shape(vectors, [None, dimension]),
              factory.vector_keys(vectors_key, first, end))

    bare = factory.native_params
    mark = bare and marks.Marks(bare, sum_state, blocks * block, several, at_once=block)

    def of_block(index):
      return factory.bare_sum(*several(index * block, (index + 1) * block), sum_state)

    def step(index, total, measured):
      more_total, more = of_block(index)
      return (index + 1, factory.add(total, more_total),
              tf.nest.map_structure(tf.add, measured, more))

    nothing = tf.nest.map_structure(
        lambda spec: tf.zeros(spec.shape, spec.dtype),
        tf.function(of_block, autograph=False).get_concrete_function(
            tf.TensorSpec([], tf.int32)).structured_outputs)
    _, total, measured = tf.while_loop(
        lambda index, *_: index < blocks, step, (tf.constant(0), *nothing),
        parallel_iterations=1)
    if mark:
      total, measured, _ = mark.results(total, measured, ())
    return total, measured, factory.generator.derive(key, _SHARE)

  @tff.tensorflow.computation(train.type_signature.result[0], key_type, shared_type)
  def send(total, key, sum_state):
    return factory.with_share(total, key if seeded else keys.fresh(), sum_state)

  end = server.end_of_round(
      factory, row, -units.expected, sum_type=sum_type,
      total_type=send.type_signature.result, shows_sum=audit is not None)

  def run_round(state, silos):
    shared = factory.broadcast(state['aggregator'])
    total, measured, key = tff.federated_map(
        train, (silos, tff.federated_broadcast(state['weights']), shared))
    sent = tff.federated_map(send, (total, key, shared))
    num_reporting = tff.federated_sum(tff.federated_value(1, tff.CLIENTS))
    return end(state, sent, num_reporting,
               tff.federated_sum(measured) if diagnostics else None)

  return server.process(clients_type, initial_sum, run_round)
