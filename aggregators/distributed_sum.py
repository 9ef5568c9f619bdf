"""The sum of clients' vectors under the distributed Skellam mechanism.

What a client sends is an integer vector with its share of the noise; what the
server learns from secure aggregation is the sum modulo 2^bits; what leaves the
server carries the same amount of noise in every round.
"""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from aggregators import client_sum
from aggregators import keys
from aggregators import modular_sum
from aggregators import noisy_rounding
from aggregators import rotation
from aggregators import rounding
from aggregators import skellam
from aggregators import skellam_table
from aggregators import structures
from aggregators import validate
from aggregators.params import DistributedSumParams

# A share is this much larger than 1/m of the noise, so that no rounding of a
# division leaves the sum of shares short of what the accountant counts on.
_SHARE_EXCESS = 1.0 + 1e-9
# No cohort is larger; shares of so many clients would be empty.
_MAX_COHORT = 2.0**31

# A table is made large enough for cohorts down to this part of the expected one;
# smaller cohorts have larger shares and draw them from the Poisson law.
_SMALLEST_COHORT = 0.75

Encoded = collections.namedtuple('Encoded', ['values', 'diagnostics'])
Decoded = collections.namedtuple('Decoded', ['vector', 'measurements'])


def share_variance(params: DistributedSumParams, cohort_size: float) -> float:
  """Variance of one client's share of the noise, grid units squared."""
  return params.total_noise_variance * _SHARE_EXCESS / max(float(cohort_size), 1.0)


def table_log_size(params: DistributedSumParams) -> int | None:
  """log2 of the cells of a run's noise tables; None if tables don't pay.

  Without noise there is nothing to draw, and large variances would need tables
  beyond the cache.
  """
  if params.noise_multiplier == 0:
    return None
  largest = share_variance(params, _SMALLEST_COHORT * params.cohort_size)
  if not skellam_table.fits(largest):
    return None
  return skellam_table.log_size(largest)


def noise_table(params: DistributedSumParams, cohort_size: int):
  """The table of a cohort's shares, as it stands in the state of the sum.

  Args:
    params: Of a sum whose `table_log_size` is not None.
    cohort_size: Clients that are told to take part.

  Returns:
    OrderedDict of `variance` (float64), `packed` and `tie` (int64 [cells]). A
    cohort whose share does not fit gets the table of the expected cohort, whose
    variance is not that of the share, so that it is not used.
  """
  log_size = table_log_size(params)
  variance = share_variance(params, cohort_size)
  if not skellam_table.fits(variance) or skellam_table.log_size(variance) > log_size:
    variance = share_variance(params, params.cohort_size)
  table = skellam_table.build(variance, log_size)
  return collections.OrderedDict(
      variance=np.float64(table.variance), packed=table.packed, tie=table.tie)


def encode(vector: tf.Tensor, key: tf.Tensor, rotation_key: tf.Tensor,
           cohort_size, params: DistributedSumParams, table=None) -> Encoded:
  """What one client sends. Pure: the same arguments give the same integers.

  Args:
    vector: float32 or float64 [dimension], model units. If it is not finite,
      zero is sent in its place, with noise.
    key: int64[2], of this client and round alone.
    rotation_key: int64[2], shared by the round.
    cohort_size: Clients that were told to take part in the round, m; scalar.
    params: The parameters of the sum.
    table: As `noise_table` makes them. It is used if its variance is that of the
      share; otherwise the share is the difference of two Poisson draws.

  Returns:
    values: int32 [padded_dimension] in [0, 2^bits). diagnostics: int32 scalars
    computed from raw values; they are outside the guarantee.
  """
  clipped, was_clipped, is_finite = rounding.clip_by_norm(vector, params.clip)
  padding = params.padded_dimension - params.dimension
  padded = tf.pad(clipped, [[0, padding]])
  rotated = rotation.rotate(padded, rotation_key, params.rotation)
  grid = rounding.to_grid(rotated, params.scale, params.clip_grid)
  cohort_size = tf.maximum(tf.cast(cohort_size, tf.float64), 1.0)
  share = params.total_noise_variance * _SHARE_EXCESS / cohort_size
  bound = params.l2_sensitivity_squared

  def by_poisson():
    rounded = rounding.conditional_round(grid, keys.derive(key, 0), bound)
    values = rounded.values
    if params.noise_multiplier > 0:
      noise = skellam.sample(
          keys.derive(key, 1), values.shape, share,
          max_variance=params.total_noise_variance * _SHARE_EXCESS)
      values = tf.cast(values, tf.int64) + noise
    return (modular_sum.wrap(values, params.bits), rounded.retries,
            rounded.fell_back)

  def by_table():
    return noisy_rounding.compiled_noisy_round(
        grid, key, bound, table['packed'], table['tie'], params.bits)

  if table is None:
    values, retries, fell_back = by_poisson()
  else:
    values, retries, fell_back = tf.cond(
        tf.equal(table['variance'], share), by_table, by_poisson)
  diagnostics = collections.OrderedDict(
      clipped=tf.cast(was_clipped, tf.int32),
      not_finite=tf.cast(~is_finite, tf.int32),
      rounding_retries=retries,
      rounding_fallbacks=tf.cast(fell_back, tf.int32))
  return Encoded(tf.ensure_shape(values, [params.padded_dimension]), diagnostics)


def decode(total: tf.Tensor, survivors, cohort_size, key: tf.Tensor,
           rotation_key: tf.Tensor, params: DistributedSumParams) -> Decoded:
  """What the server releases. Pure.

  The noise is topped up to its constant total, so that the law of the release
  does not tell how many clients took part. A round with too few survivors is
  withheld: its release is noise alone.

  Args:
    total: int32 [padded_dimension], the sum of the clients' values mod 2^bits.
    survivors: Clients in the sum, m'; scalar.
    cohort_size: Clients that were told to take part, m; scalar.
    key: int64[2], of this round at the server.
    rotation_key: The one that the clients used.
    params: The parameters of the sum.

  Returns:
    vector: float32 [dimension], model units. measurements: `scale` and
    `estimated_wrapped_fraction`, from the parameters and the released vector
    alone, and `withheld` (bool), which tells of dropouts but of no data.
  """
  survivors = tf.cast(survivors, tf.float64)
  told = tf.cast(cohort_size, tf.float64)
  honest = survivors - params.assumed_colluders
  # The tolerance is for h * m that is an integer but for rounding in float64;
  # _SHARE_EXCESS makes up for it.
  enough = honest >= params.min_honest_fraction * told * (1 - 1e-9)
  total = tf.where(enough, total, tf.zeros_like(total))
  if params.noise_multiplier > 0:
    present = tf.where(enough, tf.minimum(survivors / tf.maximum(told, 1.0), 1.0),
                       tf.zeros_like(told))
    missing = params.total_noise_variance * (1.0 - present)
    noise = tf.cond(
        missing > 0,
        lambda: skellam.sample(  # pylint: disable=g-long-lambda
            keys.derive(key, 0), total.shape, missing * _SHARE_EXCESS,
            max_variance=params.total_noise_variance * _SHARE_EXCESS),
        lambda: tf.zeros(total.shape, tf.int64))
    total = modular_sum.wrap(tf.cast(total, tf.int64) + noise, params.bits)
  grid = modular_sum.unwrap(total, params.bits)
  grid = tf.cast(grid, tf.float32)
  measurements = collections.OrderedDict(
      scale=tf.constant(params.scale, tf.float32),
      estimated_wrapped_fraction=_wrapped_fraction(grid, params.bits),
      withheld=~enough)
  rotated = grid / np.float32(params.scale)
  vector = rotation.unrotate(rotated, rotation_key, params.rotation)
  return Decoded(vector[:params.dimension], measurements)


def _wrapped_fraction(grid: tf.Tensor, bits: int) -> tf.Tensor:
  """Expected part of coordinates outside the field, from the noisy sum.

  Taken as Gaussian with the measured second moment; a sum that fills the field
  evenly gives 0.08, so anything above 0.01 says that the bits are too few.
  """
  stddev = tf.sqrt(tf.reduce_mean(tf.square(grid)))
  half_field = np.float32(2.0**(bits - 1))
  return tf.math.erfc(half_field / (tf.maximum(stddev, 1e-30) * np.float32(2**0.5)))


class DistributedSumFactory(client_sum.ClientSumFactory):
  """Sums structures of float tensors under the distributed Skellam mechanism.

  Formal guarantees. Let Delta_1, Delta_2 and mu be `params.l1_sensitivity`,
  `params.l2_sensitivity` and `params.noise_variance`. For neighbouring cohorts
  under zero-out adjacency, and as long as rounds below
  `params.min_honest_fraction` are withheld (this factory does so), the result
  of one call of `next` satisfies (alpha, epsilon(alpha))-Renyi DP with the
  curve of arXiv 2110.04995, Corollary 3.6, against the server, against the
  participants that are not assumed to collude, and against everyone who sees
  results. Amplification by sampling is the caller's: it holds if clients are
  sampled as accounted for, if the number that came stays secret, and if the
  sum is divided by nothing that depends on it (see `ExpectedMeanFactory`).
  With `simulation_seed` there is no guarantee.

  The state is an OrderedDict of `rotation_key` (int64[2]), `server_key`
  (int64[2], used in seeded runs only) and `cohort_size` (int32), which the
  driver sets to the number of clients that it tells to take part; its value
  sizes each client's share of the noise. Where tables pay there is also the
  `noise_table` of that cohort; `tell_cohort_size` sets both. A state whose
  cohort size was changed alone is as private, only slower.
  """

  def __init__(self, params: DistributedSumParams, *, diagnostics: bool = False,
               simulation_seed: int | None = None):
    """Initializes the factory.

    Args:
      params: All parameters of the sum.
      diagnostics: Also measure what is computed from clients' raw values
        (survivors, fraction clipped, rounding retries and fallbacks, updates
        that were not finite). These are outside the guarantee.
      simulation_seed: None for randomness from the operating system. An integer
        makes a run repeatable and void of any guarantee; clients then bring
        their keys: values are OrderedDicts of `value` and `key` (int64[2], see
        `structures.keyed_type`), and the result is the sum of `value`.
    """
    if params.noise_multiplier > 0:
      skellam.check_variance(
          params.total_noise_variance * _SHARE_EXCESS, params.bits,
          'the noise of the sum')
    if params.cohort_size >= _MAX_COHORT:
      raise ValueError(
          f'cohort_size must be below 2^31, found {params.cohort_size!r}')
    super().__init__(diagnostics=diagnostics, simulation_seed=simulation_seed)
    self._params = params

  def tell_cohort_size(self, state, cohort_size: int):
    """The state for a round of so many clients that are told to take part."""
    validate.integer(cohort_size=cohort_size, low=0)
    state = collections.OrderedDict(state, cohort_size=np.int32(cohort_size))
    if 'noise_table' in state:
      state['noise_table'] = noise_table(self._params, cohort_size)
    return state

  def check_dimension(self, dimension: int) -> None:
    if dimension != self._params.dimension:
      raise ValueError(
          f'dimension={self._params.dimension} in the parameters, but the values '
          f'have {dimension} coordinates')

  def initial_state(self):
    root = structures.initial_key(self.simulation_seed, 0)
    cohort_size = round(self._params.cohort_size)
    state = collections.OrderedDict(
        rotation_key=keys.derive(root, 0),
        server_key=keys.derive(root, 1),
        cohort_size=tf.constant(cohort_size, tf.int32))
    if table_log_size(self._params) is not None:
      state['noise_table'] = tf.nest.map_structure(
          tf.constant, noise_table(self._params, cohort_size))
    return state

  def contribute(self, vector, key, state):
    return encode(vector, key, state['rotation_key'], state['cohort_size'],
                  self._params, state.get('noise_table'))

  def zero(self, dimension: int) -> tf.Tensor:
    del dimension  # What is sent is padded.
    return tf.zeros([self._params.padded_dimension], tf.int32)

  def add(self, left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    return modular_sum.add(left, right, self._params.bits)

  def federated_total(self, contributions):
    return tff.backends.mapreduce.federated_secure_modular_sum(
        contributions, self._params.modulus)

  def release(self, state, total, survivors, key):
    vector, measurements = decode(
        total, survivors, state['cohort_size'], keys.derive(key, 0),
        state['rotation_key'], self._params)
    new_state = collections.OrderedDict(
        state, rotation_key=keys.derive(key, 1))
    return new_state, vector, measurements
