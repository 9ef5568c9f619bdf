"""Shares of the noise of a distributed sum, and the tables they are drawn from.

Numbers only, no TensorFlow: the graph draws by these numbers, and the accountant
bounds by them the distance of the draws from their ideal distribution.
"""

import bisect
import collections
import fractions
import functools
import math

import numpy as np

from aggregators import alias_table
from aggregators.params import DistributedSumParams

# A share is this much larger than 1/m of the noise, so that neither rounding nor the
# tolerance of `params.has_enough`, which is half of it, leaves honest shares short of
# what the accountant counts on. More noise is a post-processing.
SHARE_EXCESS = 1.0 + 2e-9

# A table is large enough for cohorts down to this fraction of the expected one;
# smaller cohorts have larger shares: see `draws_of_cohort`.
_SMALLEST_COHORT = 0.75
# Skellam draws of variance v/k add up to one of variance v, exactly, so that k draws from
# a table reach k times as far. A draw from a table costs a tenth of two Poisson draws.
_MAX_DRAWS = 4
# The draws that a server makes in a coordinate: more take as long as two Poisson draws.
_MOST_SERVER_DRAWS = 32


def is_cryptographic(params: DistributedSumParams) -> bool:
  """Whether all that hides clients is drawn from a cryptographic generator."""
  return params.noise_generator == 'chacha20'


def _num_shares(params: DistributedSumParams, cohort_size: float) -> float:
  """The number of shares that all of a cohort's noise consists of."""
  return min(max(float(cohort_size), 1.0), most_shares(params))


def share_variance(params: DistributedSumParams, cohort_size: float) -> float:
  """Variance of one client's share of the noise, grid units squared, rounded.

  Skellam shares of any size add up to one distribution. The bound on discrete Gaussian
  shares is for a minimum size: cohorts beyond `params.most_shares` have more noise.
  """
  return params.total_noise_variance * SHARE_EXCESS / _num_shares(params, cohort_size)


def _draw_variance(params: DistributedSumParams, cohort_size: float,
                   draws: int) -> fractions.Fraction:
  """Variance of one of a share's draws from a table, not rounded.

  All draws of a cohort add up to the same variance, whatever the cohort. With rounded
  quotients sums of m and of m + 1 shares would differ, by which the noise would tell of
  cohorts, and so of who participates.
  """
  return fractions.Fraction(params.total_noise_variance * SHARE_EXCESS) / (
      fractions.Fraction(_num_shares(params, cohort_size)) * draws)


def most_shares(params: DistributedSumParams) -> float:
  """The largest number of shares that the noise is divided into, whatever is told."""
  return params.believed_cohort if params.noise.is_divisible else params.most_shares


def _largest_share(params: DistributedSumParams) -> float:
  """The variance of a share in the smallest cohort that tables are sized for."""
  return share_variance(params, _SMALLEST_COHORT * params.cohort_size)


def table_draws(params: DistributedSumParams) -> int | None:
  """The draws from a table that make a share; None if tables don't pay."""
  if params.noise_multiplier == 0 or not params.has_shares:
    return None
  most = _MAX_DRAWS if params.noise.is_divisible else 1
  return next((draws for draws in range(1, most + 1)
               if params.noise.tables.fits(_largest_share(params) / draws)), None)


@functools.lru_cache(maxsize=64)
def table_log_size(params: DistributedSumParams) -> int | None:
  """log2 of the cells of a run's noise tables; None if tables don't pay."""
  if (draws := table_draws(params)) is None:
    return None
  largest = _largest_share(params)
  if is_cryptographic(params) and not params.noise.is_divisible:
    largest = share_variance(params, 1)  # It must do for every cohort.
  return params.noise.tables.log_size(largest / draws)


def _fits(params: DistributedSumParams, cohort_size: float, draws: int) -> bool:
  """Whether a run's tables are large enough for shares of this many draws."""
  family, variance = params.noise.tables, _draw_variance(params, cohort_size, draws)
  return family.fits(variance) and family.log_size(variance) <= table_log_size(params)


def draws_of_cohort(params: DistributedSumParams, cohort_size: int) -> int:
  """The draws from a table that make a share of a cohort of any size.

  Under a cryptographic generator, which `check_generator` accepts, nothing but tables
  draws noise: small cohorts, with their large shares, take as many draws as it needs.
  """
  if not params.noise.is_divisible:
    return 1  # `check_generator` requires it.
  share = share_variance(params, cohort_size)
  # This many draws fit, up to rounding: the table was sized for their variance.
  enough = math.ceil(share / (_largest_share(params) / table_draws(params)))
  return 1 + bisect.bisect_left(
      range(1, enough + 1), True, key=lambda draws: _fits(params, cohort_size, draws))


def noise_table(params: DistributedSumParams, cohort_size: int):
  """The table that a cohort's shares are drawn from, as the state holds it.

  Args:
    params: Parameters of a sum whose `table_log_size` is not None.
    cohort_size: Selected clients.

  Returns an OrderedDict of `variance` (float64, of a draw: `share_variance` over the
  draws, by which clients and server recognise the table), `packed` and `tie` (int64
  [cells]), and under a cryptographic generator `draws` (int32) that make a share. Without
  one, a cohort whose share does not fit gets the expected cohort's table, not used.
  """
  cryptographic = is_cryptographic(params)
  draws = (draws_of_cohort(params, cohort_size) if cryptographic else table_draws(params))
  if not _fits(params, cohort_size, draws):
    cohort_size = params.cohort_size
  table = params.noise.tables.build(
      _draw_variance(params, cohort_size, draws), table_log_size(params))
  result = collections.OrderedDict(
      variance=np.float64(share_variance(params, cohort_size) / draws),
      packed=table.packed, tie=table.tie)
  if cryptographic:
    result['draws'] = np.int32(draws)
  return result


def server_draws(params: DistributedSumParams) -> int | None:
  """The draws of `server_table` that are the noise of a trusted server.

  None where clients add the noise, where there is none, and where it takes too many.
  """
  if params.has_shares or params.noise_multiplier == 0:
    return None
  variance = fractions.Fraction(params.total_noise_variance * SHARE_EXCESS)
  return next((draws for draws in range(1, _MOST_SERVER_DRAWS + 1)
               if params.noise.tables.fits(variance / draws)), None)


def server_table(params: DistributedSumParams) -> dict[str, np.ndarray]:
  """The table of a sum whose `server_draws` are known: `packed` and `tie`."""
  variance = fractions.Fraction(params.total_noise_variance * SHARE_EXCESS)
  table = params.noise.tables.build(variance / server_draws(params))
  return {'packed': table.packed, 'tie': table.tie}


def check_generator(params: DistributedSumParams) -> None:
  """Raises ValueError if the requested generator can't draw all the noise.

  A cryptographic one draws from tables alone: the samplers support Philox alone.
  """
  if is_cryptographic(params) and not _fits_all_cohorts(params):
    raise ValueError('noise_generator=chacha20 needs noise that clients draw from '
                     f'tables (of fewer bits), found mechanism={params.mechanism}, '
                     f'noise_multiplier={params.noise_multiplier:g}, bits={params.bits}')


def _fits_all_cohorts(params: DistributedSumParams) -> bool:
  """Whether tables have the shares of all cohorts: `draws_of_cohort`."""
  return table_draws(params) is not None and (
      params.noise.is_divisible or params.noise.tables.fits(share_variance(params, 1)))


def default_generator(params: DistributedSumParams) -> str:
  """The generator of a sum with a fixed clip for which none was asked.

  ChaCha20 where it can draw the noise, by one draw a share, and is about as fast.
  """
  return ('chacha20' if table_draws(params) == 1 and _fits_all_cohorts(params) else
          'philox')


def most_draws(params: DistributedSumParams, most_clients: int) -> int | None:
  """The maximum number of draws in a coordinate of a released sum; None if unknown.

  Includes what the server adds for missing clients, where it is drawn as the clients'
  shares are. `most_clients`: no cohort is larger.
  """
  if not params.noise.is_divisible:
    return most_clients + 1  # The server tops missing shares up by one draw.
  if (draws := table_draws(params)) is None:
    return None
  # A cohort of m below the smallest takes less than m draws more than those of
  # the smallest together.
  smallest = _SMALLEST_COHORT * params.cohort_size
  return max(most_clients * draws, math.ceil(smallest * (1 + draws)))


def total_variation(params: DistributedSumParams) -> float:
  """Bound on the total variation distance of a draw from its distribution."""
  if params.noise.is_divisible or is_cryptographic(params):
    return alias_table.TOTAL_VARIATION
  return max(alias_table.TOTAL_VARIATION, params.noise.sampler_total_variation)
