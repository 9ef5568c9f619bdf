"""Votes of agents on public queries; only the winning labels are released.

What an agent sends is its votes with its share of the noise. What the server
learns from secure aggregation is the noisy sum; what leaves its computation is
one label a query, and nothing else.
"""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from aggregators import alias_draw
from aggregators import keys
from aggregators import modular_sum
from aggregators import normal
from aggregators import skellam
from aggregators import skellam_table
from aggregators import structures
from aggregators.voting_params import NO_LABEL, VotingParams

# What an agent's, and the server's, key of a vote is derived for.
_NOISE, _OF_AGENT = 0, 1
_TIES, _CENTRAL_NOISE = 0, 1


def check_votes(votes: np.ndarray, params: VotingParams) -> None:
  """Raises ValueError unless votes are within what the guarantee is stated for.

  For drivers that see their agents' votes. In the graph such votes count as
  abstentions.

  Args:
    votes: [Q, C] of one agent.
    params: Of the vote.
  """
  votes = np.asarray(votes)
  shape = (params.queries, params.classes)
  if votes.shape != shape or not np.issubdtype(votes.dtype, np.integer):
    raise ValueError(
        f'votes must be integers [queries, classes] = {list(shape)}, found '
        f'{votes.dtype} {list(votes.shape)}')
  totals = votes.sum(axis=1, dtype=np.int64)
  bad = ((votes < 0) | (votes > params.most_counts)).any(axis=1) | (
      totals > params.most_counts_of_query)
  if bad.any():
    first = int(np.argmax(bad))
    raise ValueError(
        f'votes on a query must be at least 0, at most {params.most_counts} for '
        f'a label and {params.most_counts_of_query} in all (weighted votes need '
        f'the max_weight that the guarantee is stated for, here '
        f'{params.max_weight}), found {votes[first].tolist()} on query {first}')


def _within_sensitivity(votes: tf.Tensor, key: tf.Tensor,
                        params: VotingParams) -> tf.Tensor:
  """Votes that move the sum by no more than the sensitivity; int32 [Q, C].

  Rows beyond it become abstentions. Of too many attributes a random choice of
  tau is kept.
  """
  if params.attributes is not None:
    # Ranks of the attributes in a random order of those that were named.
    draws = keys.random_bits(key, votes.shape, tf.int32)
    draws = tf.where(votes > 0, tf.bitwise.right_shift(draws, 1), tf.int32.min)
    _, places = tf.math.top_k(draws, params.attributes)
    kept = tf.reduce_max(tf.one_hot(places, params.classes, dtype=tf.int32), axis=1)
    votes = votes * kept
  # In 64 bits, so that no sum of votes wraps around.
  total = tf.reduce_sum(tf.cast(votes, tf.int64), axis=1)
  good = tf.reduce_all((votes >= 0) & (votes <= params.most_counts), axis=1) & (
      total <= params.most_counts_of_query)
  return tf.where(good[:, tf.newaxis], votes, 0)


def _skellam_share(key: tf.Tensor, shape: tf.TensorShape,
                   params: VotingParams) -> tf.Tensor:
  """One agent's noise, int64; from a table unless it is too large for one."""
  variance = params.share_variance
  if not params.has_table:
    return skellam.sample(key, shape, variance)
  table = skellam_table.build(variance)
  words = tf.bitcast(
      keys.random_bits(keys.derive(key, 0), [shape.num_elements()], tf.int64), tf.int32)
  drawn = alias_draw.draw(
      words[:, 0], words[:, 1], keys.derive(key, 1), tf.constant(table.packed),
      tf.constant(table.tie))
  return tf.reshape(tf.cast(drawn, tf.int64), shape)


def cast(votes: tf.Tensor, key: tf.Tensor, params: VotingParams) -> tf.Tensor:
  """What one agent sends. Pure: the same arguments give the same ballot.

  Args:
    votes: int32 [Q, C], from 0 on; a row of zeros abstains. Rows beyond the
      sensitivity of `params` count as abstentions.
    key: int64[2], of this agent and vote alone.
    params: The parameters of the vote.

  Returns:
    int32 [Q, C] in [0, 2^bits) for integer noise, else float32 [Q, C].
  """
  votes = _within_sensitivity(votes, keys.derive(key, _OF_AGENT), params)
  noise_key = keys.derive(key, _NOISE)
  if params.is_integer:
    noisy = tf.cast(votes, tf.int64) + _skellam_share(
        noise_key, votes.shape, params)
    return modular_sum.wrap(noisy, params.bits)
  if not params.has_shares:
    return tf.cast(votes, tf.float32)
  return tf.cast(votes, tf.float32) + _gaussian(
      noise_key, votes.shape, params.share_variance)


def _gaussian(key: tf.Tensor, shape, variance: float) -> tf.Tensor:
  if variance == 0:
    return tf.zeros(shape, tf.float32)
  return tf.cast(variance**0.5 * normal.sample(key, shape), tf.float32)


def is_suppressed(num_reporting, params: VotingParams) -> tf.Tensor:
  """Whether too few agents answered for the noise that is counted on; bool."""
  if not params.has_shares:
    return tf.constant(False)
  honest = tf.cast(num_reporting - params.assumed_colluders, tf.float64)
  # For h * N that is an integer but for rounding; _SHARE_EXCESS makes up for it.
  return honest < params.least_honest * (1 - 1e-9)


def decide(total: tf.Tensor, num_reporting, key: tf.Tensor,
           params: VotingParams) -> tf.Tensor:
  """The labels that the server releases. Pure.

  Ties are broken at random. The argmax, the threshold and the choice among ties
  depend on the noisy sum alone, so they cost no privacy beyond it.

  Args:
    total: [Q, C], the sum of ballots; modulo 2^bits for integer noise.
    num_reporting: Agents in the sum; int32 scalar.
    key: int64[2], of this vote at the server.
    params: The parameters of the vote.

  Returns:
    int32 [Q], NO_LABEL where a query is not answered; with `params.attributes`
    int32 [Q, C] of 0 and 1, or NO_LABEL. All NO_LABEL if the vote is suppressed.
  """
  if params.is_integer:
    counts = modular_sum.unwrap(total, params.bits)
  else:
    counts = total
  if not params.has_shares:
    counts += _gaussian(keys.derive(key, _CENTRAL_NOISE), total.shape,
                        params.total_noise_variance)
  threshold = params.threshold_counts
  # In float64, which has every count exactly.
  exceeds = None if threshold is None else tf.cast(counts, tf.float64) > threshold
  if params.attributes is not None:
    labels = tf.cast(exceeds, tf.int32)
  else:
    best = tf.reduce_max(counts, axis=1, keepdims=True)
    draws = keys.random_bits(keys.derive(key, _TIES), counts.shape, tf.int64)
    draws = tf.where(tf.equal(counts, best), draws, tf.int64.min)
    labels = tf.argmax(draws, axis=1, output_type=tf.int32)
    if exceeds is not None:
      labels = tf.where(tf.reduce_any(exceeds, axis=1), labels, NO_LABEL)
  return tf.where(is_suppressed(num_reporting, params), NO_LABEL, labels)


class VotingFactory(tff.aggregators.UnweightedAggregationFactory):
  """Counts votes under integer noise and releases the winners.

  Formal guarantees. Let sigma be `params.noise_stddev` and k `params.votes`. The
  noisy sum of the votes, of which the result is post-processing, has at least
  the noise of variance (k sigma)^2 per label, independent of the votes, from
  agents that neither dropped out nor collude; too small votes are suppressed. At
  agent level (zero-out) one agent moves at most max_weight * k counts in one
  label, or max_weight in each of `attributes` labels. At instance level, if an
  agent's votes follow from its records by a rule that is public but for its own
  randomness, one record moves at most max_weight counts down in one label and
  up in another, times `attributes`, provided that for k > 1 it is among the
  neighbours of a query or it is not, and ties break in a fixed order. That is
  what `Vote` events state. It holds against everyone who sees results, and
  against the server for the sum that it is shown, as long as secure aggregation
  refuses to open a sum of fewer agents than is counted on plus the assumed
  colluders; that is the protocol's to enforce. An agent that subtracts its own
  share of the noise is a colluder of this count. Noise from tables is as near to
  its law as `params.sampler_deviation` says. With 'gaussian' the noise is that of
  ideal arithmetic, and the sum of reals is taken as if secure aggregation had
  them; with 'gaussian_central' the server is trusted. With `simulation_seed` there
  is no guarantee.

  The state is an OrderedDict of `server_key` (int64[2], used in seeded runs
  only). The one measurement, `suppressed`, tells of dropouts but of no votes.
  """

  def __init__(self, params: VotingParams, *, simulation_seed: int | None = None):
    """Initializes the factory.

    Args:
      params: All parameters of the vote.
      simulation_seed: None for randomness from the operating system. An integer
        makes a run repeatable and void of any guarantee; agents then bring
        their keys: values are OrderedDicts of `value` and `key` (int64[2], see
        `structures.keyed_type`).
    """
    if params.is_integer:
      skellam.check_variance(
          params.share_variance, params.bits, 'the noise share of an agent')
    self._params = params
    self.simulation_seed = simulation_seed

  @property
  def params(self) -> VotingParams:
    return self._params

  @property
  def seeded(self) -> bool:
    return self.simulation_seed is not None

  def _check_type(self, value_type) -> None:
    shape = [self._params.queries, self._params.classes]
    expected = tff.TensorType(np.int32, shape)
    if self.seeded:
      expected = structures.keyed_type(expected)
    if value_type != expected:
      raise TypeError(
          f'votes must be an int32 tensor [queries, classes] = {shape}, without '
          f'weights{" and with a key" if self.seeded else ""}, found {value_type}')

  def create(self, value_type) -> tff.templates.AggregationProcess:
    """Builds the process. Raises TypeError unless votes are int32 [Q, C]."""
    self._check_type(value_type)
    params = self._params

    @tff.tensorflow.computation(value_type)
    def cast_ballot(value):
      if self.seeded:
        return cast(value['value'], value['key'], params)
      return cast(value, keys.fresh(), params)

    ballots_type = cast_ballot.type_signature.result

    @tff.tensorflow.computation
    def initial_state():
      return collections.OrderedDict(
          server_key=structures.stored_key(
              self.simulation_seed,
              structures.initial_key(self.simulation_seed, 0)))

    state_type = initial_state.type_signature.result

    @tff.tensorflow.computation(state_type, ballots_type, tf.int32)
    def close(state, total, num_reporting):
      root = structures.round_key(self.simulation_seed, state['server_key'])
      labels = decide(total, num_reporting, keys.derive(root, 0), params)
      new_state = collections.OrderedDict(
          server_key=structures.stored_key(
              self.simulation_seed, keys.derive(root, 1)))
      measurements = collections.OrderedDict(
          suppressed=is_suppressed(num_reporting, params))
      return new_state, labels, measurements

    @tff.federated_computation
    def initialize():
      return tff.federated_eval(initial_state, tff.SERVER)

    @tff.federated_computation(
        tff.FederatedType(state_type, tff.SERVER),
        tff.FederatedType(value_type, tff.CLIENTS))
    def next_fn(state, value):
      ballots = tff.federated_map(cast_ballot, value)
      if params.is_integer:
        total = tff.backends.mapreduce.federated_secure_modular_sum(
            ballots, params.modulus)
      else:
        total = tff.federated_sum(ballots)
      num_reporting = tff.federated_sum(tff.federated_value(1, tff.CLIENTS))
      state, labels, measurements = tff.federated_map(
          close, (state, total, num_reporting))
      return tff.templates.MeasuredProcessOutput(
          state, labels, measurements)

    return tff.templates.AggregationProcess(initialize, next_fn)
