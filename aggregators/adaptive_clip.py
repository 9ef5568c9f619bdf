"""A clip that follows a quantile of the clients' norms, privately.

Clients send one more coordinate, +1 if their norm is at most the clip and -1 if
it is above, with Skellam noise of its own and in the same secure sum. The noisy count
moves the clip for the next round (arXiv 1905.03871, Algorithm 1, geometric update).
"""

import collections

import numpy as np
import tensorflow as tf

from aggregators import (
    distributed_sum, modular_sum, params as params_lib, share_tables, skellam)
from aggregators.params import AdaptiveClipParams, DistributedSumParams

# The clip stays within these multiples of the initial one: a public rule that keeps
# scale and sums inside what float32 holds.
_MIN_FACTOR, _MAX_FACTOR = 1e-9, 1e9
# The count and this many standard deviations of its noise must fit the field.
_FIELD_STDDEVS = 8.0

# Purposes of derived keys: of a client, and of the server beyond the sum.
_VECTOR, _BIT = 0, 1
_COUNT_AT_SERVER = 2


def bit(diagnostics) -> tf.Tensor:
  """A client's part of the count: +1, or -1 if its vector had to be clipped.

  0 for a vector with NaN or infinities, and where the cohort that the server tells is
  not believed. Never beyond 1, the sensitivity that the accountant counts on.
  """
  return (1 - 2 * diagnostics['clipped']) * (1 - diagnostics['not_finite']) * (
      1 - diagnostics['cohort_disbelieved'])


class AdaptiveClipSumFactory(distributed_sum.DistributedSumFactory):
  """A distributed sum whose clip is a private quantile of the norms.

  `params.clip` is the initial clip. The clip in grid units stays, so that scale
  times clip, sensitivities and noise in grid units are those of `params` in every
  round, and a smaller clip means a finer grid and less noise in model units.

  Formal guarantees:

  * One call of `next` releases the sum, as `DistributedSumFactory` does, together with
    a count of sensitivity 1 (zero-out) and Skellam noise of variance
    `adaptive.noise_variance`: their Renyi curves add, before any amplification by
    sampling.
  * The count's noise is made up as the sum's is: of shares of the clients, topped up by
    the server, or by the server alone. A Poisson sampler draws it, by Philox.
  * The clip of a round is a function of earlier releases, hence public.

  The quantile is estimated with the expected cohort, a constant: clients that do not
  report count as half a client below the clip.

  The state is that of `DistributedSumFactory` and the `clip` (float64, model
  units) of the next round.
  """

  def __init__(self, params: DistributedSumParams, adaptive: AdaptiveClipParams,
               *, diagnostics: bool = False, simulation_seed: int | None = None):
    """Initializes the factory.

    Raises ValueError if the count and its noise do not fit the field of the sum.
    """
    super().__init__(params, diagnostics=diagnostics, simulation_seed=simulation_seed)
    self._adaptive = adaptive
    self._count_variance = adaptive.noise_variance / params.counted_on
    needed = params.most_shares + _FIELD_STDDEVS * self._count_variance**0.5
    if needed > params.modulus / 2:
      raise ValueError(
          f'bits={params.bits} are too few for the count of an adaptive clip: cohort '
          f'and count_stddev={adaptive.count_stddev:g} need {2 * needed:.4g} values')

  def initial_state(self):
    return collections.OrderedDict(
        super().initial_state(), clip=tf.constant(self._params.clip, tf.float64))

  def contribute(self, vector, key, state):
    values, diagnostics = super().contribute(
        vector, self.generator.derive(key, _VECTOR), state)
    own = tf.cast(bit(diagnostics)[tf.newaxis], tf.int64)
    if self._params.has_shares:
      shares = distributed_sum.num_shares(state['cohort_size'], self._params)
      own += self._noise(
          self.generator.derive(key, _BIT), self._count_variance / shares)
    return tf.concat([values, modular_sum.wrap(own, self.bits)], axis=0), diagnostics

  def zero(self, dimension: int) -> tf.Tensor:
    return tf.pad(super().zero(dimension), [[0, 1]])

  def release(self, state, total, num_reporting, key):
    new_state, vector, measurements = super().release(
        state, total[:-1], num_reporting, key)
    fraction = self._fraction_below(total[-1:], num_reporting, state['cohort_size'],
                                    self.generator.derive(key, _COUNT_AT_SERVER))
    adaptive, initial = self._adaptive, self._params.clip
    new_state['clip'] = tf.clip_by_value(
        state['clip'] * tf.exp(-adaptive.learning_rate * (
            fraction - adaptive.target_quantile)),
        np.float64(max(params_lib.MIN_CLIP, _MIN_FACTOR * initial)),
        np.float64(min(params_lib.MAX_CLIP, _MAX_FACTOR * initial)))
    measurements.update(clip=state['clip'], estimated_fraction_below_clip=fraction)
    return new_state, vector, measurements

  def _noise(self, key, variance) -> tf.Tensor:
    """Skellam noise of a fraction of the count's variance; int64 [1]."""
    return skellam.sample(key, [1], variance * share_tables.SHARE_EXCESS,
                          max_variance=self._count_variance * share_tables.SHARE_EXCESS)

  def _fraction_below(self, total, num_reporting, cohort_size, key) -> tf.Tensor:
    """The noisy fraction of the cohort at most the clip; about 1/2 if suppressed."""
    enough, present = distributed_sum.noise_present(
        num_reporting, cohort_size, self._params)
    total = tf.cast(tf.where(enough, total, tf.zeros_like(total)), tf.int64)
    total += self._noise(key, self._count_variance * (1.0 - present))
    count = modular_sum.unwrap(modular_sum.wrap(total, self.bits), self.bits)[0]
    return 0.5 + tf.cast(count, tf.float64) / (2 * self._params.cohort_size)
