"""The sum of clients' vectors as integers, with integer noise.

What a client sends is an integer vector with its share of the noise; what the
server learns from secure aggregation is the sum modulo 2^bits; what leaves the
server carries the same amount of noise in every round. The noise is Skellam or
discrete Gaussian, or Skellam noise that a trusted server adds alone.
"""

import collections
import functools

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from aggregators import client_sum
from aggregators import discrete_gaussian
from aggregators import discrete_gaussian_table
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
SHARE_EXCESS = 1.0 + 1e-9
# What the server's key of a round is derived for.
SUM_AT_SERVER, NEXT_ROTATION = 0, 1
# No cohort is larger; shares of so many clients would be empty.
_MAX_COHORT = 2.0**31

# A table is made large enough for cohorts down to this part of the expected one;
# smaller cohorts have larger shares and draw them from the Poisson law.
_SMALLEST_COHORT = 0.75
# Skellam draws of variance v/k add up to one of variance v, exactly, so that k
# draws from a table reach k times as far. A draw from a table costs a tenth of
# two Poisson draws.
_MAX_DRAWS = 4

Encoded = collections.namedtuple('Encoded', ['values', 'diagnostics'])
Decoded = collections.namedtuple('Decoded', ['vector', 'measurements'])


def _is_discrete_gaussian(params: DistributedSumParams) -> bool:
  return params.mechanism == 'discrete_gaussian'


def _tables(params: DistributedSumParams):
  """The module that makes tables of the law."""
  if _is_discrete_gaussian(params):
    return discrete_gaussian_table
  return skellam_table


def sample_noise(key: tf.Tensor, shape, variance,
                 params: DistributedSumParams) -> tf.Tensor:
  """Noise of a variance up to the total one, by the law of the mechanism.

  Args:
    key: int64[2].
    shape: Static.
    variance: float64 scalar >= 0, grid units squared.
    params: Of the sum.

  Returns:
    int64 tensor of `shape`, grid units.
  """
  if _is_discrete_gaussian(params):
    return discrete_gaussian.sample(key, shape, variance)
  return skellam.sample(
      key, shape, variance,
      max_variance=params.total_noise_variance * SHARE_EXCESS)


def share_variance(params: DistributedSumParams, cohort_size: float) -> float:
  """Variance of one client's share of the noise, grid units squared.

  Shares of Skellam noise are cut for any cohort, as they add up to one law. The
  bound on discrete Gaussian shares is for shares of a least size: cohorts beyond
  `params.most_shares` have more noise in all.
  """
  cohort_size = max(float(cohort_size), 1.0)
  if _is_discrete_gaussian(params):
    cohort_size = min(cohort_size, params.most_shares)
  return params.total_noise_variance * SHARE_EXCESS / cohort_size


def _share_in_graph(params: DistributedSumParams, cohort_size) -> tf.Tensor:
  """`share_variance`, by the very same operations; float64."""
  cohort_size = tf.maximum(tf.cast(cohort_size, tf.float64), 1.0)
  if _is_discrete_gaussian(params):
    cohort_size = tf.minimum(cohort_size, params.most_shares)
  return params.total_noise_variance * SHARE_EXCESS / cohort_size


def _table_draws(params: DistributedSumParams) -> int | None:
  """How many draws from a table make a share; None if tables don't pay.

  Clients without noise have nothing to draw, and large variances would need
  tables beyond the cache.
  """
  if params.noise_multiplier == 0 or not params.has_shares:
    return None
  largest = share_variance(params, _SMALLEST_COHORT * params.cohort_size)
  # Discrete Gaussian draws do not add up to one of their law.
  most = 1 if _is_discrete_gaussian(params) else _MAX_DRAWS
  for draws in range(1, most + 1):
    if _tables(params).fits(largest / draws):
      return draws
  return None


def table_log_size(params: DistributedSumParams) -> int | None:
  """log2 of the cells of a run's noise tables; None if tables don't pay."""
  draws = _table_draws(params)
  if draws is None:
    return None
  largest = share_variance(params, _SMALLEST_COHORT * params.cohort_size)
  return _tables(params).log_size(largest / draws)


def noise_table(params: DistributedSumParams, cohort_size: int):
  """The table that a cohort's shares are drawn from, as it stands in the state.

  Args:
    params: Of a sum whose `table_log_size` is not None.
    cohort_size: Clients that are told to take part.

  Returns:
    OrderedDict of `variance` (float64), `packed` and `tie` (int64 [cells]). A
    cohort whose share does not fit gets the table of the expected cohort, whose
    variance is not that of its share, so that it is not used.
  """
  tables = _tables(params)
  log_size = table_log_size(params)
  draws = _table_draws(params)
  variance = share_variance(params, cohort_size) / draws
  if not tables.fits(variance) or tables.log_size(variance) > log_size:
    variance = share_variance(params, params.cohort_size) / draws
  table = tables.build(variance, log_size)
  return collections.OrderedDict(
      variance=np.float64(table.variance), packed=table.packed, tie=table.tie)


# XLA fuses the steps of the next two, which is worth a factor of two; it runs in
# TFF's worker. The transform between them is faster without.
@functools.partial(tf.function, jit_compile=True, autograph=False)
def _prepare(vector: tf.Tensor, signs: tf.Tensor | None, clip,
             padded_dimension: int):
  """Clips, pads and, if there are signs, flips; and what `clip_by_norm` returns."""
  clipped, was_clipped, is_finite = rounding.clip_by_norm(vector, clip)
  padded = tf.pad(clipped, [[0, padded_dimension - vector.shape[0]]])
  if signs is not None:
    padded = rotation.flip(padded, signs)
  return padded, was_clipped, is_finite


@functools.partial(tf.function, jit_compile=True, autograph=False)
def _finish(rotated: tf.Tensor, key: tf.Tensor, packed: tf.Tensor, tie: tf.Tensor,
            drawn: tf.Tensor, scale, clip_grid: float,
            l2_bound_squared: int, bits: int, draws: int):
  """From a rotated vector to what is sent; see `noisy_rounding.noisy_round`."""
  grid = rounding.to_grid(rotated, scale, clip_grid)
  return noisy_rounding.noisy_round(
      grid, key, l2_bound_squared, packed, tie, bits, draws, drawn)


def encode(vector: tf.Tensor, key: tf.Tensor, rotation_key: tf.Tensor,
           cohort_size, params: DistributedSumParams, table=None,
           clip=None) -> Encoded:
  """What one client sends. Pure: the same arguments give the same integers.

  Args:
    vector: float32 or float64 [dimension], model units. If it is not finite,
      zero is sent in its place, with noise.
    key: int64[2], of this client and round alone.
    rotation_key: int64[2], shared by the round.
    cohort_size: Clients that were told to take part in the round, m; scalar.
    params: The parameters of the sum.
    table: As `noise_table` makes them. It is used if its variance is that which
      the share needs; otherwise the share is drawn by `sample_noise`.
    clip: The clip of this round, model units, where it is not `params.clip`. It
      becomes as many grid units, so that nothing else changes.

  Returns:
    values: int32 [padded_dimension] in [0, 2^bits). diagnostics: int32 scalars
    computed from raw values; they are outside the guarantee.
  """
  scale = params.scale if clip is None else params.clip_grid / clip
  signs = None
  if params.rotation == 'hadamard':
    signs = rotation.sign_words(rotation_key, params.padded_dimension)
  prepared, was_clipped, is_finite = _prepare(
      vector, signs, params.clip if clip is None else clip,
      params.padded_dimension)
  if params.rotation == 'hadamard':
    rotated = rotation.rotate_flipped(prepared)
  else:
    rotated = rotation.rotate(prepared, rotation_key, params.rotation)
  share = _share_in_graph(params, cohort_size)
  bound = params.l2_sensitivity_squared
  draws = _table_draws(params)

  def by_sampler():
    grid = rounding.to_grid(rotated, scale, params.clip_grid)
    rounded = rounding.conditional_round(grid, keys.derive(key, 0), bound)
    values = rounded.values
    if params.noise_multiplier > 0 and params.has_shares:
      noise = sample_noise(keys.derive(key, 1), values.shape, share, params)
      values = tf.cast(values, tf.int64) + noise
    return (modular_sum.wrap(values, params.bits), rounded.retries,
            rounded.fell_back)

  def by_table():
    drawn = noisy_rounding.words(key, params.padded_dimension, draws)
    return _finish(
        rotated, key, table['packed'], table['tie'], drawn, scale,
        params.clip_grid, bound, params.bits, draws)

  if table is None:
    values, retries, fell_back = by_sampler()
  else:
    values, retries, fell_back = tf.cond(
        tf.equal(table['variance'], share / draws), by_table, by_sampler)
  diagnostics = collections.OrderedDict(
      clipped=tf.cast(was_clipped, tf.int32),
      not_finite=tf.cast(~is_finite, tf.int32),
      rounding_retries=retries,
      rounding_fallbacks=tf.cast(fell_back, tf.int32))
  return Encoded(tf.ensure_shape(values, [params.padded_dimension]), diagnostics)


def noise_present(survivors, cohort_size, params: DistributedSumParams):
  """Whether a round may be released, and how much of the noise is in its sum.

  Args:
    survivors: Clients in the sum, m'; scalar.
    cohort_size: Clients that were told to take part, m; scalar.
    params: The parameters of the sum.

  Returns:
    bool, and float64 in [0, 1], 0 for a round that is withheld. A server that
    adds the noise itself withholds no round.
  """
  if not params.has_shares:
    return tf.constant(True), tf.constant(0.0, tf.float64)
  survivors = tf.cast(survivors, tf.float64)
  told = tf.cast(cohort_size, tf.float64)
  honest = survivors - params.assumed_colluders
  # The tolerance is for h * m that is an integer but for rounding in float64;
  # SHARE_EXCESS makes up for it.
  enough = honest >= params.min_honest_fraction * told * (1 - 1e-9)
  shares = tf.maximum(told, 1.0)
  if _is_discrete_gaussian(params):
    shares = tf.minimum(shares, params.most_shares)
  present = tf.minimum(survivors / shares, 1.0)
  return enough, tf.where(enough, present, tf.zeros_like(present))


def decode(total: tf.Tensor, survivors, cohort_size, key: tf.Tensor,
           rotation_key: tf.Tensor, params: DistributedSumParams,
           clip=None) -> Decoded:
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
    clip: As the clients were told.

  Returns:
    vector: float32 [dimension], model units. measurements: `scale` and
    `estimated_wrapped_fraction`, from the parameters and the released vector
    alone, and `withheld` (bool), which tells of dropouts but of no data.
  """
  enough, present = noise_present(survivors, cohort_size, params)
  total = tf.where(enough, total, tf.zeros_like(total))
  if params.noise_multiplier > 0:
    missing = params.total_noise_variance * (1.0 - present)
    noise = tf.cond(
        missing > 0,
        lambda: sample_noise(  # pylint: disable=g-long-lambda
            keys.derive(key, 0), total.shape, missing * SHARE_EXCESS, params),
        lambda: tf.zeros(total.shape, tf.int64))
    total = modular_sum.wrap(tf.cast(total, tf.int64) + noise, params.bits)
  grid = modular_sum.unwrap(total, params.bits)
  grid = tf.cast(grid, tf.float32)
  scale = tf.constant(params.scale, tf.float32)
  if clip is not None:
    scale = tf.cast(params.clip_grid / clip, tf.float32)
  measurements = collections.OrderedDict(
      scale=scale,
      estimated_wrapped_fraction=_wrapped_fraction(grid, params.bits),
      withheld=~enough)
  rotated = grid / scale
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
  """Sums structures of float tensors under a mechanism of integer noise.

  Formal guarantees. Let Delta_1, Delta_2 and mu be `params.l1_sensitivity`,
  `params.l2_sensitivity` and `params.noise_variance`. For neighbouring cohorts
  under zero-out adjacency the result of one call of `next` satisfies (alpha,
  epsilon(alpha))-Renyi DP with the curve of arXiv 2110.04995, Corollary 3.6,
  against everyone who sees results: too small rounds are withheld. Against the
  server the same holds for the sum that it is shown, as long as it tells
  clients the true size of the cohort, and secure aggregation refuses to open a
  sum of fewer than `params.min_honest_fraction` of it plus the assumed
  colluders; that is the protocol's to enforce, since withholding comes after
  it. A participant who subtracts its own share of the noise is a colluder of
  this count. That is for 'skellam'. With 'discrete_gaussian' the curve is that of
  arXiv 2102.06387, Theorem 1 and Proposition 14, and as shares of different
  cohorts add up to slightly different laws, amplification by Poisson sampling
  holds approximately only; what tops missing shares up is one discrete Gaussian
  draw of their variance. With 'skellam_central' the curve is that of 'skellam',
  against those who see results; the server is trusted, with the sum before the
  noise too. Amplification by sampling is the caller's: it holds if clients are
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
      law = discrete_gaussian if _is_discrete_gaussian(params) else skellam
      law.check_variance(
          params.total_noise_variance * SHARE_EXCESS, params.bits,
          'the noise of the sum')
      params.check_shares()
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
        server_key=structures.stored_key(
            self.simulation_seed, keys.derive(root, 1)),
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
        total, survivors, state['cohort_size'], keys.derive(key, SUM_AT_SERVER),
        state['rotation_key'], self._params)
    new_state = collections.OrderedDict(
        state, rotation_key=structures.independent_key(
            self.simulation_seed, keys.derive(key, NEXT_ROTATION)))
    return new_state, vector, measurements
