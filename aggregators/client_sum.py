"""Sums over clients, in pieces that compose in two ways.

A `ClientSumFactory` says what a client contributes and what the server releases of the
sum, as pure TensorFlow functions. `create` maps them over clients, one call each, as an
aggregation process. An engine that handles many clients in one call (`fedavg.chunked`)
uses the same functions and gets the same sums. `plain_sum` is the smallest example.
"""

import abc
import collections
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from aggregators import keys, modular_sum, structures, tff_internals
from aggregators.native import marks
from aggregators.params import DistributedSumParams


class ClientSumFactory(tff.aggregators.UnweightedAggregationFactory, abc.ABC):
  """A sum of tensors over clients; subclasses define what clients send.

  Class attributes:
    closed: Names of parts of the state that clients never receive.
    generator: The module that derives clients' and the server's keys from others.
    of_one_vector: Whether `native_params` are those of a whole contribution.

  Attributes:
    dimension: Length of the vectors that can be summed; None for any.
    seeded: Whether this is a seeded run, whose clients bring their keys: values
      then are OrderedDicts of `value` and `key` (`structures.keyed_type`).
  """

  closed: tuple[str, ...] = ()
  generator = keys
  of_one_vector = True
  dimension: int | None = None

  def __init__(self, *, bits: int | None = None, diagnostics: bool = False,
               simulation_seed: int | None = None):
    """Initializes the factory.

    Args:
      bits: Clients send integers modulo 2^bits, summed under secure aggregation; None
        for floats and a plain sum.
      diagnostics: Also measure what is computed from clients' raw values, and the
        number of reporting clients. These are outside the guarantee.
      simulation_seed: None for randomness from the operating system. An integer makes
        a run repeatable and void of any guarantee, as its noise is predictable.
    """
    self.bits = bits
    self.diagnostics = diagnostics
    self.simulation_seed = simulation_seed

  @property
  def seeded(self) -> bool:
    return self.simulation_seed is not None

  @property
  def native_params(self) -> DistributedSumParams | None:
    """Parameters with which kernels compute `contribute`; None if they can't."""
    return None

  @property
  def native_bare_params(self) -> DistributedSumParams | None:
    """The same of `bare`."""
    return None

  def initial_state(self) -> Any:
    """In graph: the state, an OrderedDict with a `server_key` (int64[2])."""
    seed = self.simulation_seed
    return collections.OrderedDict(
        server_key=structures.stored_key(seed, structures.initial_key(seed, 0)))

  @abc.abstractmethod
  def contribute(self, vector: tf.Tensor, key: tf.Tensor,
                 state) -> tuple[tf.Tensor, Any]:
    """In graph: a client's contribution, and int32 scalars computed from raw values.

    Args:
      vector: float32 or float64 [dimension], model units.
      key: int64[2], of this client and round alone.
      state: The state of the sum, as `shared`.
    """

  def bare(self, vector: tf.Tensor, key: tf.Tensor, state) -> tuple[tf.Tensor, Any]:
    """In graph: `contribute` without a share of the noise; here clients add none."""
    return self.contribute(vector, key, state)

  def bare_sum(self, vectors: tf.Tensor, own_keys: tf.Tensor,
               state) -> tuple[tf.Tensor, Any]:
    """In graph: the sums of `bare` over rows, float32 [n, dimension] and int64 [n, 2]."""
    def one(index):
      return self.bare(vectors[index], own_keys[index], state)

    nothing = tf.nest.map_structure(
        lambda spec: tf.zeros(spec.shape, spec.dtype),
        tf.function(one, autograph=False).get_concrete_function(
            tf.TensorSpec([], tf.int32)).structured_outputs)

    def step(index, total, measured):
      values, more = one(index)
      return (index + 1, self.add(total, values),
              tf.nest.map_structure(tf.add, measured, more))

    return tf.while_loop(
        lambda index, *_: index < tf.shape(vectors)[0], step, (tf.constant(0), *nothing),
        parallel_iterations=1)[1:]

  @abc.abstractmethod
  def release(self, state, total: tf.Tensor, num_reporting: tf.Tensor,
              key: tf.Tensor) -> tuple[Any, tf.Tensor, Any]:
    """In graph: new state (except for its key), result, public measurements.

    Args:
      state: The state of the sum.
      total: The sum of all contributions.
      num_reporting: int32, the number of contributions.
      key: int64[2], of this round at the server.
    """

  def shared(self, state):
    """In graph: the part of the state that clients receive."""
    return collections.OrderedDict(
        (name, part) for name, part in state.items() if name not in self.closed)

  def shared_type(self, state_type: tff.Type) -> tff.Type:
    """The type of `shared`."""
    return state_type if not self.closed else tff.tensorflow.computation(
        self.shared, state_type).type_signature.result

  def broadcast(self, state):
    """The federated broadcast of `shared`, of a state placed at the server."""
    if self.closed:
      state = tff.federated_map(tff.tensorflow.computation(
          self.shared, state.type_signature.member), state)
    return tff.federated_broadcast(state)

  def zero(self, dimension: int) -> tf.Tensor:
    """In graph: the contribution of no client, for vectors of this length."""
    return tf.zeros([dimension], tf.float32 if self.bits is None else tf.int32)

  def add(self, left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    """In graph: the sum of two contributions."""
    if self.bits is None:
      return left + right
    return modular_sum.add(left, right, self.bits)

  def federated_total(self, contributions):
    """The federated sum of contributions placed at clients."""
    if self.bits is None:
      return tff.federated_sum(contributions)
    return tff_internals.secure_modular_sum(contributions, 2**self.bits)

  def check_dimension(self, dimension: int) -> None:
    """Raises ValueError if vectors of this length can't be summed."""
    if self.dimension not in (None, dimension):
      raise ValueError(f'values must have dimension={self.dimension}, found '
                       f'{dimension} coordinates')

  def layout(self, value_type: tff.Type) -> structures.FlatLayout:
    """How values become vectors. Raises TypeError or ValueError for other types."""
    layout = structures.FlatLayout(value_type)
    self.check_dimension(layout.size)
    return layout

  def set_cohort_size(self, state, _: int):
    """The state for a round of this many selected clients."""
    return state

  def server_step(self, state, total, num_reporting, layout: structures.FlatLayout):
    """In graph: new state, released structure, public measurements."""
    root = state['server_key'] if self.seeded else keys.fresh()
    new_state, vector, measurements = self.release(
        state, total, num_reporting, self.generator.derive(root, 0))
    new_state = collections.OrderedDict(
        new_state, server_key=structures.stored_key(
            self.simulation_seed, self.generator.derive(root, 1)))
    return new_state, layout.unflatten(vector), measurements

  def measured(self, public, num_reporting, totals):
    """Federated measurements: the public ones, and diagnostics if asked for."""
    if not self.diagnostics:
      return public
    return tff.federated_zip(collections.OrderedDict(
        public=public, diagnostics=collections.OrderedDict(
            num_reporting=num_reporting, totals=totals)))

  def create(self, value_type) -> tff.templates.AggregationProcess:
    """Builds the process: `contribute` at clients, the sum, `release` at the server."""
    layout = self.layout(value_type['value'] if self.seeded else value_type)
    initial_state = tff.tensorflow.computation(self.initial_state)
    state_type = initial_state.type_signature.result

    @tff.tensorflow.computation(value_type, self.shared_type(state_type))
    def contribute(value, state):
      value, key = ((value['value'], value['key']) if self.seeded else
                    (value, keys.fresh()))
      vector = layout.flatten(value)
      sent = self.contribute(vector, key, state)[:1 + self.diagnostics]
      params = self.native_params
      if self.of_one_vector and params and vector.dtype == tf.float32:
        marked = marks.Marks(params, state, tf.constant(1), lambda *_: (
            vector[tf.newaxis], key[tf.newaxis]), at_once=1)
        sent = marked.results(*sent, *[()] * self.diagnostics)[:len(sent)]
      return tuple(sent)

    @tff.tensorflow.computation(
        state_type, contribute.type_signature.result[0], tf.int32)
    def server_step(state, total, num_reporting):
      return self.server_step(state, total, num_reporting, layout)

    @tff.federated_computation
    def initialize():
      return tff.federated_eval(initial_state, tff.SERVER)

    @tff.federated_computation(
        tff.FederatedType(state_type, tff.SERVER),
        tff.FederatedType(value_type, tff.CLIENTS))
    def next_fn(state, value):
      sent = tff.federated_map(contribute, (value, self.broadcast(state)))
      total = self.federated_total(sent[0])
      num_reporting = tff.federated_sum(tff.federated_value(1, tff.CLIENTS))
      state, result, public = tff.federated_map(
          server_step, (state, total, num_reporting))
      totals = tff.federated_sum(sent[1]) if self.diagnostics else None
      return tff.templates.MeasuredProcessOutput(
          state, result, self.measured(public, num_reporting, totals))

    return tff.templates.AggregationProcess(initialize, next_fn)
