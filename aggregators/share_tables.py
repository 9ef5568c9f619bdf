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
  if not params.noise.is_divisible and has_all_noise(params):
    largest = share_variance(params, 1)
  return params.noise.tables.log_size(largest / draws)


def _fits(params: DistributedSumParams, cohort_size: float, draws: int) -> bool:
  """Whether a run's tables are large enough for shares of this many draws."""
  family, variance = params.noise.tables, _draw_variance(params, cohort_size, draws)
  return family.fits(variance) and family.log_size(variance) <= table_log_size(params)


def draws_of_cohort(params: DistributedSumParams, cohort_size: int) -> int:
  """The draws from a table that make a share of a cohort of any size.

  Small cohorts, with their large shares, take as many draws as it needs.
  """
  if not params.noise.is_divisible:
    return 1
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
  [cells]), and `draws` (int32) that make a share. A cohort whose share does not fit gets
  the expected cohort's table, not used.
  """
  draws = draws_of_cohort(params, cohort_size)
  if not _fits(params, cohort_size, draws):
    cohort_size = params.cohort_size
  table = params.noise.tables.build(
      _draw_variance(params, cohort_size, draws), table_log_size(params))
  return collections.OrderedDict(
      variance=np.float64(share_variance(params, cohort_size) / draws),
      packed=table.packed, tie=table.tie, draws=np.int32(draws))


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


def has_all_noise(params: DistributedSumParams) -> bool:
  """Whether tables have the shares of all cohorts, however small: `draws_of_cohort`."""
  return table_draws(params) is not None and (
      params.noise.is_divisible or params.noise.tables.fits(share_variance(params, 1)))


def most_draws(params: DistributedSumParams, most_clients: int) -> int | None:
  """The maximum number of draws in a coordinate of a released sum; None if unknown.

  Includes what the server adds for missing clients, where it is drawn as the clients'
  shares are. `most_clients`: no cohort is larger.
  """
  if not params.noise.is_divisible:
    return most_clients + 1  # Beyond tables one draw makes up for all missing shares.
  if (draws := table_draws(params)) is None:
    return None
  # A cohort of m below the smallest takes less than m draws more than those of
  # the smallest together.
  smallest = _SMALLEST_COHORT * params.cohort_size
  return max(most_clients * draws, math.ceil(smallest * (1 + draws)))


def total_variation(params: DistributedSumParams) -> float:
  """Bound on the total variation distance of a draw from its distribution."""
  if params.noise.is_divisible or has_all_noise(params):
    return alias_table.TOTAL_VARIATION
  return max(alias_table.TOTAL_VARIATION, params.noise.sampler_total_variation)
