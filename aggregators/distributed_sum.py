"""The sum of clients' vectors as integers, with integer noise.

A client sends an integer vector with its share of the noise; the server learns the sum
modulo 2^bits from secure aggregation, and its release carries the same amount of noise
in every round. The noise is Skellam or discrete Gaussian, or Skellam noise that a
trusted server adds alone.
"""

import collections
from collections.abc import Callable
import functools

import numpy as np
import tensorflow as tf

from aggregators import (
    branch, chacha, client_sum, discrete_gaussian, keys, modular_sum, noisy_rounding,
    plain_sum, rotation, rounding, share_tables, skellam, structures)
from aggregators.native import marks
from aggregators.params import DistributedSumParams
from tff_pipelines.common import validate

# Purposes of the keys derived from the server's key of a round.
SUM_AT_SERVER, NEXT_ROTATION = 0, 1

_SAMPLERS = {'poisson': skellam, 'rejection': discrete_gaussian}

Encoded = collections.namedtuple('Encoded', ['values', 'diagnostics'])
Decoded = collections.namedtuple('Decoded', ['vector', 'measurements'])


def sample_noise(key: tf.Tensor, shape, variance,
                 params: DistributedSumParams) -> tf.Tensor:
  """Samples noise of a variance up to the total one; int64 of `shape`, grid units."""
  return _SAMPLERS[params.noise.sampler].sample(
      key, shape, variance,
      max_variance=params.total_noise_variance * share_tables.SHARE_EXCESS)


def num_shares(cohort_size, params: DistributedSumParams) -> tf.Tensor:
  """The number of shares that all of a cohort's noise consists of; float64."""
  return tf.clip_by_value(
      tf.cast(cohort_size, tf.float64), 1.0, share_tables.most_shares(params))


def is_believed(cohort_size, params: DistributedSumParams) -> tf.Tensor:
  """Whether a client sends its data to a server that tells it this cohort; bool."""
  if not params.has_shares:
    return tf.constant(True)  # The server adds the noise.
  return tf.cast(cohort_size, tf.float64) <= params.believed_cohort


def _share_in_graph(params: DistributedSumParams, cohort_size) -> tf.Tensor:
  """`share_tables.share_variance`, by the very same operations; float64."""
  return params.total_noise_variance * share_tables.SHARE_EXCESS / num_shares(
      cohort_size, params)


# XLA is worth a factor of two where there is XLA, and where a vector takes longer
# than the start of a compiled program. The transform is faster without. TFF's worker
# has no XLA: there all runs operation by operation, with the same results.
_MIN_COMPILED = 2**14


@functools.partial(tf.function, jit_compile=True, autograph=False)
def _pad_and_flip(vector: tf.Tensor, signs: tf.Tensor | None,
                  padded_dimension: int) -> tf.Tensor:
  padded = tf.pad(vector, [[0, padded_dimension - vector.shape[0]]])
  return padded if signs is None else rotation.flip(padded, signs)


def _rotated(clipped: tf.Tensor, key: tf.Tensor, params: DistributedSumParams,
             compiled: bool) -> tf.Tensor:
  """Pads and rotates a clipped vector; float32 [padded_dimension]."""
  pad = _pad_and_flip if compiled else _pad_and_flip.python_function
  dim = params.padded_dimension
  if params.rotation == 'hadamard':
    return rotation.rotate_flipped(pad(clipped, rotation.sign_bits(key, dim), dim))
  return rotation.rotate(pad(clipped, None, dim), key, params.rotation)


def encode(vector: tf.Tensor, key: tf.Tensor, rotation_key: tf.Tensor, cohort_size,
           params: DistributedSumParams, table=None, clip=None) -> Encoded:
  """Encodes a client's vector. Pure: the same arguments give the same integers.

  At its peak a call holds 6 vectors of `padded_dimension` 32-bit numbers, the
  client's own included, in addition to the table and what a block of it takes.

  Args:
    vector: float32 or float64 [dimension], model units. If it has NaN or infinities,
      zero is sent in its place, with noise.
    key: int64[2], of this client and round alone.
    rotation_key: int64[2], shared by the round.
    cohort_size: Selected clients in the round, m; scalar. Beyond
      `params.believed_cohort` zero is sent in the place of the vector, with the
      smallest share. An error would let the server find out who participates.
    params: The parameters of the sum.
    table: See `share_tables.noise_table`; None for that of a `cohort_size` that is no
      tensor. If it is another, the call fails, or, where small cohorts have shares
      beyond tables, the share is drawn by `sample_noise`.
    clip: The clip of this round, model units, if not `params.clip`; as many grid units.

  Returns:
    values: int32 [sent_dimension] in [0, 2^bits): the integers with the share of the
    noise and, with several bands, those without it after them. diagnostics: int32
    scalars computed from raw values; they are outside the guarantee.
  """
  scale = params.scale if clip is None else params.clip_grid / clip
  compiled = params.padded_dimension >= _MIN_COMPILED
  clipped, diagnostics = plain_sum.clipped(vector, params.clip if clip is None else clip)
  rotated = _rotated(clipped, rotation_key, params, compiled)
  squared_norm = rounding.squared_norm(rotated)
  factor = rounding.grid_factor(squared_norm, scale, params.clip_grid)
  believed = is_believed(cohort_size, params)
  # Zero is rounded to zero for certain.
  factor = tf.where(believed, factor, tf.zeros_like(factor))
  share = _share_in_graph(params, cohort_size)

  def noised(noise):
    return noisy_rounding.noisy_round(
        rotated, key, params.l2_sensitivity_squared, noise, params.bits, factor=factor,
        squared_norm=squared_norm, closed=len(params.column) > 1, compiled=compiled)

  def by_sampler():
    sample = None
    if params.noise_multiplier > 0 and params.has_shares:
      sample = lambda own, dim: sample_noise(own, [dim], share, params)
    return noised(noisy_rounding.SampledNoise(sample=sample))

  def by_table(table):
    return noised(noisy_rounding.TableNoise(
        packed=table['packed'], tie=table['tie'], more_draws=table['draws'] - 1))

  values, retries, fell_back = _by_table_or_sampler(
      table, cohort_size, params, by_table, by_sampler)
  diagnostics.update(
      cohort_disbelieved=tf.cast(~believed, tf.int32), rounding_retries=retries,
      rounding_fallbacks=tf.cast(fell_back, tf.int32))
  return Encoded(tf.reshape(values, [params.sent_dimension]), diagnostics)


def _by_table_or_sampler(table, cohort_size, params: DistributedSumParams,
                         by_table: Callable, by_sampler: Callable):
  """`by_table(table)` if a cohort's shares come from it, as they do if any can."""
  if share_tables.table_draws(params) is None:
    return by_sampler()
  if table is None:
    table = share_tables.noise_table(params, int(cohort_size))
  wanted = _share_in_graph(params, cohort_size) / tf.cast(table['draws'], tf.float64)
  is_its_table = tf.equal(table['variance'], wanted)
  if not share_tables.has_all_noise(params):
    return branch.either(is_its_table, lambda: by_table(table), by_sampler)
  with tf.control_dependencies([tf.debugging.Assert(is_its_table, [
      'noise_table must be that of cohort_size, of variance', wanted, 'found',
      table['variance']])]):
    return by_table(table)


def noise_present(num_reporting, cohort_size, params: DistributedSumParams):
  """Whether a round may be released, and the fraction of the noise in its sum.

  bool, and float64 in [0, 1], 0 for a round that is suppressed. So is one whose cohort
  clients do not believe, as they send no data. A server that adds the noise itself
  suppresses no round.
  """
  if not params.has_shares:
    return tf.constant(True), tf.constant(0.0, tf.float64)
  num_reporting = tf.cast(num_reporting, tf.float64)
  enough = is_believed(cohort_size, params) & params.has_enough(
      num_reporting, tf.cast(cohort_size, tf.float64))
  present = tf.minimum(num_reporting / num_shares(cohort_size, params), 1.0)
  return enough, tf.where(enough, present, tf.zeros_like(present))


def topped_up(total: tf.Tensor, num_reporting, cohort_size, key: tf.Tensor,
              params: DistributedSumParams, table=None) -> tuple[tf.Tensor, tf.Tensor]:
  """The sum with all the noise, whatever clients are missing. Pure.

  The noise is topped up to its constant total, so that the distribution of the release
  does not reveal how many clients participated. In place of a sum of too few reporting
  clients, whose round is suppressed, there is noise alone.

  Args:
    total: int32 [padded_dimension], the sum of the clients' values mod 2^bits.
    num_reporting: Clients in the sum, m'; scalar.
    cohort_size: Selected clients, m; scalar.
    key: int64[2], of this round at the server.
    params: The parameters of the sum.
    table: As for `encode`: the server adds whole shares for clients that are missing.

  Returns int32 [padded_dimension] in [0, 2^bits); whether the sum is in it, bool.
  """
  enough, present = noise_present(num_reporting, cohort_size, params)
  kept = tf.where(enough, total, tf.zeros_like(total))
  if params.noise_multiplier == 0:
    return kept, enough

  def from_table(table, draws, generator):
    noise = noisy_rounding.TableNoise(
        packed=table['packed'], tie=table['tie'], more_draws=draws, generator=generator)
    return noisy_rounding.add_draws(kept, generator.derive(key, 0), noise, params.bits,
                                    params.padded_dimension >= _MIN_COMPILED)

  def whole_shares(table):
    shares = tf.where(enough, tf.cast(num_reporting, tf.float64), 0.0)
    missing = tf.cast(tf.math.ceil(
        tf.maximum(num_shares(cohort_size, params) - shares, 0.0)), tf.int32)
    return from_table(table, table['draws'] * missing, chacha)

  def sampled():
    noise = sample_noise(
        keys.derive(key, 0), total.shape, params.total_noise_variance * (
            1.0 - present) * share_tables.SHARE_EXCESS, params)
    return modular_sum.wrap(tf.cast(kept, tf.int64) + noise, params.bits)

  if (draws := share_tables.server_draws(params)) is not None:
    return from_table(share_tables.server_table(params), draws, keys), enough
  return _by_table_or_sampler(
      table, cohort_size, params, whole_shares,
      lambda: branch.either(present < 1.0, sampled, lambda: tf.identity(kept))), enough


def decode(total: tf.Tensor, num_reporting, cohort_size, key: tf.Tensor,
           rotation_key: tf.Tensor, params: DistributedSumParams,
           clip=None, table=None) -> Decoded:
  """Decodes the sum to what the server releases. Pure.

  A round with too few reporting clients is suppressed: its release is noise alone.

  Args:
    total, num_reporting, cohort_size, key, table: As for `topped_up`.
    rotation_key, clip: Those that the clients used.
    params: The parameters of the sum.

  Returns:
    vector: float32 [dimension], model units. measurements: `scale` and
    `estimated_wrapped_fraction`, from the parameters and the released vector
    alone, and `suppressed` (bool), which reveals dropouts but no data.
  """
  total, enough = topped_up(total, num_reporting, cohort_size, key, params, table)
  vector, squared_norm, scale = unscaled(total, rotation_key, params, clip)
  return Decoded(vector, measurements(scale, squared_norm, enough, params))


def unscaled(total: tf.Tensor, rotation_key: tf.Tensor, params: DistributedSumParams,
             clip=None) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
  """`in_model_units` at the scale of a clip, marked; and the scale, float64."""
  scale = tf.convert_to_tensor(
      params.scale if clip is None else params.clip_grid / clip, tf.float64)
  # One factor: TensorFlow's optimiser would merge two, or turn a division into a
  # product, with other last bits.
  length = params.padded_dimension**0.5 if params.rotation == 'hadamard' else 1.0
  vector, squared_norm = marks.decoding(
      lambda *arguments: in_model_units(*arguments, params), params, total,
      tf.cast(1.0 / (scale * length), tf.float32), tf.cast(rotation_key, tf.int64))
  return vector, squared_norm, scale


def measurements(scale: tf.Tensor, squared_norm: tf.Tensor, enough: tf.Tensor,
                 params: DistributedSumParams) -> collections.OrderedDict:
  """Public measurements, of the squared norm of what was opened, grid units."""
  return collections.OrderedDict(
      scale=tf.cast(scale, tf.float32),
      estimated_wrapped_fraction=_wrapped_fraction(squared_norm, params),
      suppressed=~enough)


def in_model_units(total: tf.Tensor, factor: tf.Tensor, rotation_key: tf.Tensor,
                   params: DistributedSumParams) -> tuple[tf.Tensor, tf.Tensor]:
  """Decodes a sum to a vector in model units. Pure.

  Args:
    total: int32 [padded_dimension] in [0, 2^bits); or float32, grid units.
    factor: float32, model units per grid unit; for the Hadamard rotation divided by
      sqrt(padded_dimension).
    rotation_key: int64[2].
    params: The parameters of the sum.

  Returns:
    float32 [dimension]; and float64, the squared norm of the whole sum, grid units.
  """
  grid = total
  if total.dtype != tf.float32:
    grid = tf.cast(modular_sum.unwrap(total, params.bits), tf.float32)
  vector = grid * factor
  if params.rotation == 'hadamard':
    vector = rotation.flip(
        rotation.transformed(vector),
        rotation.sign_bits(rotation_key, params.padded_dimension))
  else:
    vector = rotation.unrotate(vector, rotation_key, params.rotation)
  return vector[:params.dimension], rounding.squared_norm(grid)


def _wrapped_fraction(squared_norm: tf.Tensor, params: DistributedSumParams
                      ) -> tf.Tensor:
  """The expected fraction of coordinates outside the field, from the noisy sum.

  Taken as Gaussian with the measured second moment; a sum that fills the field
  evenly gives 0.08, so anything above 0.01 says that the bits are too few.
  """
  stddev = tf.sqrt(tf.cast(squared_norm / params.padded_dimension, tf.float32))
  half_field = np.float32(2.0**(params.bits - 1))
  return tf.math.erfc(half_field / (tf.maximum(stddev, 1e-30) * np.float32(2**0.5)))


class DistributedSumFactory(client_sum.ClientSumFactory):
  """Sums structures of float tensors under a mechanism of integer noise.

  Formal guarantees. Let Delta_1, Delta_2 and mu be `params.l1_sensitivity`,
  `params.l2_sensitivity` and `params.noise_variance`. For neighbouring cohorts under
  zero-out adjacency the result of one call of `next` satisfies (alpha,
  epsilon(alpha))-Renyi DP:

  * With 'skellam' the curve is that of arXiv 2110.04995, Corollary 3.6, against any
    observer of the results: rounds of too few clients are suppressed.
  * Against the server the same holds for the sum that it is shown, as long as it
    tells clients the true size of the cohort (of a larger one clients believe at most
    `params.believed_cohort`, and beyond send zero: m clients then have at least
    m / believed_cohort of the noise), and secure aggregation refuses to open a sum
    of fewer than `params.min_honest_fraction` of it plus the assumed colluders;
    that is the protocol's to enforce, since suppression comes after it. A participant
    who subtracts its own share of the noise is a colluder of this count.
  * With 'discrete_gaussian' the curve is that of arXiv 2102.06387, Theorem 1 and
    Proposition 14. As shares of different cohorts add up to slightly different
    distributions, amplification by Poisson sampling holds approximately only; missing
    shares beyond tables are topped up by one discrete Gaussian draw of their variance.
  * With 'skellam_central' the curve is that of 'skellam', against those who see
    results; the server is trusted, with the sum before the noise too.
  * Amplification by sampling is the caller's. It needs noise of the same distribution
    in every cohort, as Skellam draws from tables add up to. It holds if clients are
    sampled as accounted for, if how many report stays secret (times tell, too), if the
    sum is divided by nothing that depends on it (`ExpectedMeanFactory`), and if what
    suppressed rounds reveal of a client's participation is accounted for, as
    `accounting.sampling.cohorts.pivotal_probability` says: with colluders, or with dropouts
    below a `min_honest_fraction` of 1, it is not nothing.
  * With `simulation_seed` there is no guarantee.

  All random bits that decide rounding and noise are drawn by counter, under a key of
  the client and round alone, from the operating system. With noise from tables
  everything between such a key and a share is ChaCha20, as is what the server adds for
  missing clients: whole shares. The only Philox block is the one in which `keys.fresh`
  spreads the random bits of a key; the key is its only output, and never shown. Samplers
  and a server that adds all the noise draw by Philox, which is not cryptographic.

  The state is an OrderedDict of `rotation_key` (int64[2]), `server_key`
  (int64[2], used in seeded runs only) and `cohort_size` (int32), the number of selected
  clients, which sizes their shares of the noise. Where tables pay there is also the
  `noise_table` of that cohort; `set_cohort_size` sets both, and a cohort size that was
  changed alone is an error where tables have all noise.

  Class attributes:
    has_bands: Whether rows of several sums are opened, and not each sum.
  """

  has_bands = False
  generator = chacha

  def __init__(self, params: DistributedSumParams, *, diagnostics: bool = False,
               simulation_seed: int | None = None):
    """Initializes the factory; the arguments are as for `ClientSumFactory`.

    Raises ValueError if the noise can't be drawn, or the state can't hold the cohort.
    """
    if params.noise_multiplier > 0:
      _SAMPLERS[params.noise.sampler].check_variance(
          params.total_noise_variance * share_tables.SHARE_EXCESS, params.bits,
          'the noise of the sum')
      params.check_shares()
    if params.cohort_size >= 2**31:  # The state holds it as int32.
      raise ValueError(f'cohort_size must be below 2^31, found {params.cohort_size!r}')
    if len(params.column) > 1 and not self.has_bands:
      raise ValueError(f'column must be (1,) for {type(self).__name__}, found '
                       f'{params.column!r}: BandedSumFactory opens rows of sums')
    super().__init__(bits=params.bits, diagnostics=diagnostics,
                     simulation_seed=simulation_seed)
    self._params, self.dimension = params, params.dimension

  @property
  def native_params(self) -> DistributedSumParams | None:
    return self._if_native(self._params)

  @property
  def native_bare_params(self) -> DistributedSumParams | None:
    return self._if_native(self.bare_params)

  def _if_native(self, params: DistributedSumParams) -> DistributedSumParams | None:
    # Subclasses may have another `contribute`, which kernels don't compute.
    is_ours = type(self).contribute is DistributedSumFactory.contribute
    return params if is_ours and marks.is_supported(params) else None

  def set_cohort_size(self, state, cohort_size: int):
    """The state for a round of this many selected clients."""
    validate.integer(cohort_size=cohort_size, low=0)
    state = collections.OrderedDict(state, cohort_size=np.int32(cohort_size))
    if 'noise_table' in state:
      state['noise_table'] = share_tables.noise_table(self._params, cohort_size)
    return state

  def initial_state(self):
    root = structures.initial_key(self.simulation_seed, 0)
    cohort_size = round(self._params.cohort_size)
    state = collections.OrderedDict(
        rotation_key=keys.derive(root, 0),
        server_key=structures.stored_key(
            self.simulation_seed, keys.derive(root, 1)),
        cohort_size=tf.constant(cohort_size, tf.int32))
    if share_tables.table_log_size(self._params) is not None:
      state['noise_table'] = tf.nest.map_structure(
          tf.constant, share_tables.noise_table(self._params, cohort_size))
    return state

  def contribute(self, vector, key, state):
    return encode(vector, key, state['rotation_key'], state['cohort_size'],
                  self._params, state.get('noise_table'), state.get('clip'))

  @functools.cached_property
  def bare_params(self) -> DistributedSumParams:
    """Parameters of an encoding without noise, on the same grid."""
    return self._params.replace(
        noise_multiplier=0.0, column=(1,), fixed_scale=self._params.scale)

  def bare(self, vector, key, state):
    return encode(vector, key, state['rotation_key'], state['cohort_size'],
                  self.bare_params, clip=state.get('clip'))

  def zero(self, dimension: int) -> tf.Tensor:
    return super().zero(self._params.sent_dimension)

  def release(self, state, total, num_reporting, key):
    vector, measurements = decode(
        total, num_reporting, state['cohort_size'],
        self.generator.derive(key, SUM_AT_SERVER), state['rotation_key'],
        self._params, state.get('clip'), state.get('noise_table'))
    # It becomes public, so it must have no secret siblings: see `keys.derive`.
    rotation_key = keys.derive(key, NEXT_ROTATION) if self.seeded else keys.fresh()
    state = collections.OrderedDict(state, rotation_key=rotation_key)
    return state, vector, measurements
