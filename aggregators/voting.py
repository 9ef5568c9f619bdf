"""Votes of agents on public queries; only the winning labels are released.

An agent sends its votes with its share of the noise. The server learns the noisy sum
from secure aggregation; only one label a query leaves its computation.
"""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from aggregators import (
    alias_draw, alias_table, client_sum, keys, modular_sum, normal, skellam, structures)
from aggregators.voting_params import NO_LABEL, VotingParams

# Purposes of the keys derived from an agent's, and the server's, key of a vote.
_NOISE, _CHOICE = 0, 1
_TIES, _CENTRAL_NOISE = 0, 1


def _within_sensitivity(votes: tf.Tensor, key: tf.Tensor,
                        params: VotingParams) -> tf.Tensor:
  """int32 [Q, C]: rows beyond the sensitivity abstain, tau attributes are kept."""
  if params.attributes is not None:
    # A random order of the attributes that were named, and the others after them.
    ranks = keys.random_bits(key, votes.shape, tf.int32)
    ranks = tf.where(votes > 0, tf.bitwise.right_shift(ranks, 1), tf.int32.min)
    _, chosen = tf.math.top_k(ranks, params.attributes)
    kept = tf.reduce_max(tf.one_hot(chosen, params.classes, dtype=tf.int32), axis=1)
    votes = votes * kept
  # In 64 bits, so that no sum of votes wraps around.
  total = tf.reduce_sum(tf.cast(votes, tf.int64), axis=1)
  good = tf.reduce_all((votes >= 0) & (votes <= params.most_counts), axis=1) & (
      total <= params.most_counts * (params.attributes or 1))
  return tf.where(good[:, tf.newaxis], votes, 0)


def _skellam_share(key: tf.Tensor, shape: tf.TensorShape,
                   params: VotingParams) -> tf.Tensor:
  """One agent's noise, int64; from a table unless it is too large for one."""
  if not params.has_table:
    return skellam.sample(key, shape, params.share_variance)
  table = alias_table.SKELLAM.build(params.share_variance)
  random_bits = tf.bitcast(
      keys.random_bits(keys.derive(key, 0), [shape.num_elements()], tf.int64), tf.int32)
  noise = alias_draw.draw(random_bits[:, 0], random_bits[:, 1], keys.derive(key, 1),
                          table.packed, table.tie)
  return tf.reshape(tf.cast(noise, tf.int64), shape)


def cast(votes: tf.Tensor, key: tf.Tensor, params: VotingParams) -> tf.Tensor:
  """The ballot that one agent sends. Pure: the same arguments give the same ballot.

  Args:
    votes: int32 [Q, C], from 0 on; a row of zeros abstains. Rows beyond the
      sensitivity of `params` count as abstentions.
    key: int64[2], of this agent and vote alone.

  Returns int32 [Q, C] in [0, 2^bits) for integer noise, else float32 [Q, C].
  """
  votes = _within_sensitivity(votes, keys.derive(key, _CHOICE), params)
  noise_key = keys.derive(key, _NOISE)
  if params.is_integer:
    noisy = tf.cast(votes, tf.int64) + _skellam_share(noise_key, votes.shape, params)
    return modular_sum.wrap(noisy, params.bits)
  votes = tf.cast(votes, tf.float32)
  return (votes if not params.has_shares else
          votes + _gaussian(noise_key, votes.shape, params.share_variance))


def _gaussian(key: tf.Tensor, shape, variance: float) -> tf.Tensor:
  return (tf.zeros(shape, tf.float32) if variance == 0 else
          tf.cast(variance**0.5 * normal.sample(key, shape), tf.float32))


def is_suppressed(num_reporting, params: VotingParams) -> tf.Tensor:
  """Whether fewer agents are reporting than the noise of the guarantee needs; bool."""
  return (tf.constant(False) if not params.has_shares else
          ~params.has_enough(tf.cast(num_reporting, tf.float64), params.agents))


def decide(total: tf.Tensor, num_reporting, key: tf.Tensor,
           params: VotingParams) -> tf.Tensor:
  """Decides the labels that the server releases. Pure.

  Ties are broken at random. The argmax, the threshold and the choice among ties
  depend on the noisy sum alone, so they cost no privacy beyond it.

  Args:
    total: [Q, C], the sum of ballots; modulo 2^bits for integer noise.
    num_reporting: Agents in the sum; int32 scalar.
    key: int64[2], of this vote at the server.

  Returns int32 [Q], NO_LABEL where a query is not answered; with `params.attributes`
  int32 [Q, C] of 0 and 1. All NO_LABEL if the vote is suppressed.
  """
  counts = modular_sum.unwrap(total, params.bits) if params.is_integer else total
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
    ranks = keys.random_bits(keys.derive(key, _TIES), counts.shape, tf.int64)
    ranks = tf.where(tf.equal(counts, best), ranks, tf.int64.min)
    labels = tf.argmax(ranks, axis=1, output_type=tf.int32)
    if exceeds is not None:
      labels = tf.where(tf.reduce_any(exceeds, axis=1), labels, NO_LABEL)
  return tf.where(is_suppressed(num_reporting, params), NO_LABEL, labels)


class _MatrixLayout:
  """Votes are summed as the matrices that they are."""

  flatten = unflatten = staticmethod(tf.identity)


class VotingFactory(client_sum.ClientSumFactory):
  """Counts votes under integer noise and releases the winners.

  Formal guarantees. Let sigma be `params.noise_stddev` and k `params.votes`.

  * The noisy sum of the votes, of which the result is post-processing, has at least
    noise of variance (k sigma)^2 per label, independent of the votes, from agents that
    neither dropped out nor collude; votes of too few agents are suppressed.
  * At agent level (zero-out) one agent moves at most max_weight * k counts in one
    label, or max_weight in each of `attributes` labels.
  * At instance level, if an agent's votes follow from its records by a rule that is
    public except for its own randomness, one record moves at most max_weight counts
    down in one label and up in another, times `attributes`, provided that for k > 1 it
    is among the neighbours of a query or it is not, and ties break in a fixed order.
    That is what `Vote` events state.
  * It holds against any observer of the results, and against the server for the sum that
    it is shown, as long as secure aggregation refuses to open a sum of fewer agents than
    is counted on plus the assumed colluders; that is the protocol's to enforce. An agent
    that subtracts its own share of the noise is a colluder of this count.
  * Noise from tables is within `params.sampler_deviation` of its ideal distribution, in
    total variation.
  * With 'gaussian' the noise is that of ideal arithmetic, and the sum of reals is taken
    as if secure aggregation had them; with 'gaussian_central' the server is trusted.
  * With `simulation_seed` there is no guarantee.

  The state is an OrderedDict of `server_key` (int64[2], used in seeded runs
  only). The one measurement, `suppressed`, reveals dropouts but no votes.
  """

  def __init__(self, params: VotingParams, *, simulation_seed: int | None = None):
    """Initializes the factory; `simulation_seed` as for `ClientSumFactory`."""
    if params.is_integer:
      skellam.check_variance(
          params.share_variance, params.bits, 'the noise share of an agent')
    super().__init__(bits=params.bits if params.is_integer else None,
                     simulation_seed=simulation_seed)
    self.params = params

  def layout(self, value_type) -> _MatrixLayout:
    return _MatrixLayout()  # `create` has checked the type.

  def contribute(self, vector, key, state):
    return cast(vector, key, self.params), ()

  def release(self, state, total, num_reporting, key):
    return state, decide(total, num_reporting, key, self.params), (
        collections.OrderedDict(suppressed=is_suppressed(num_reporting, self.params)))

  def create(self, value_type) -> tff.templates.AggregationProcess:
    """Builds the process. Raises TypeError unless votes are int32 [Q, C]."""
    expected = tff.TensorType(np.int32, [self.params.queries, self.params.classes])
    if self.seeded:
      expected = structures.keyed_type(expected)
    if value_type != expected:
      raise TypeError(f'votes must be {expected}, without weights, found {value_type}')
    return super().create(value_type)
