"""Shares of the noise of a distributed sum, and the tables they are drawn from.

Numbers only, no TensorFlow: the graph draws by what stands here, and the
accountant bounds by it how far the draws are from the law.
"""

import collections
import math

import numpy as np

from aggregators import discrete_gaussian_table
from aggregators import skellam_table
from aggregators.params import DistributedSumParams

# A share is this much larger than 1/m of the noise, so that no rounding of a
# division leaves the sum of shares short of what the accountant counts on.
SHARE_EXCESS = 1.0 + 1e-9

# A table is made large enough for cohorts down to this part of the expected one;
# smaller cohorts have larger shares: see `draws_of_cohort`.
_SMALLEST_COHORT = 0.75
# Skellam draws of variance v/k add up to one of variance v, exactly, so that k
# draws from a table reach k times as far. A draw from a table costs a tenth of
# two Poisson draws.
MAX_DRAWS = 4


def is_discrete_gaussian(params: DistributedSumParams) -> bool:
  return params.mechanism == 'discrete_gaussian'


def is_cryptographic(params: DistributedSumParams) -> bool:
  """Whether all that hides clients is drawn from a cryptographic generator."""
  return params.noise_generator == 'chacha20'


def tables(params: DistributedSumParams):
  """The module that makes tables of the law."""
  if is_discrete_gaussian(params):
    return discrete_gaussian_table
  return skellam_table


def share_variance(params: DistributedSumParams, cohort_size: float) -> float:
  """Variance of one client's share of the noise, grid units squared.

  Shares of Skellam noise are cut for any cohort, as they add up to one law. The
  bound on discrete Gaussian shares is for shares of a least size: cohorts beyond
  `params.most_shares` have more noise in all.
  """
  cohort_size = max(float(cohort_size), 1.0)
  if is_discrete_gaussian(params):
    cohort_size = min(cohort_size, params.most_shares)
  return params.total_noise_variance * SHARE_EXCESS / cohort_size


def table_draws(params: DistributedSumParams) -> int | None:
  """How many draws from a table make a share; None if tables don't pay.

  Clients without noise have nothing to draw, and large variances would need
  tables beyond the cache.
  """
  if params.noise_multiplier == 0 or not params.has_shares:
    return None
  largest = share_variance(params, _SMALLEST_COHORT * params.cohort_size)
  # Discrete Gaussian draws do not add up to one of their law.
  most = 1 if is_discrete_gaussian(params) else MAX_DRAWS
  for draws in range(1, most + 1):
    if tables(params).fits(largest / draws):
      return draws
  return None


def table_log_size(params: DistributedSumParams) -> int | None:
  """log2 of the cells of a run's noise tables; None if tables don't pay."""
  draws = table_draws(params)
  if draws is None:
    return None
  largest = share_variance(params, _SMALLEST_COHORT * params.cohort_size)
  if is_cryptographic(params) and is_discrete_gaussian(params):
    largest = share_variance(params, 1)  # It must do for every cohort.
  return tables(params).log_size(largest / draws)


def draws_of_cohort(params: DistributedSumParams, cohort_size: int) -> int:
  """How many draws from a table make a share of a cohort of any size.

  Under a cryptographic generator nothing but tables draws noise, so that small
  cohorts, with their large shares, take as many draws as it needs.

  Args:
    params: Of a sum that `check_generator` accepts.
    cohort_size: Selected clients.
  """
  share = share_variance(params, cohort_size)
  log_size = table_log_size(params)

  def fits(draws):
    return (tables(params).fits(share / draws) and
            tables(params).log_size(share / draws) <= log_size)

  if is_discrete_gaussian(params):
    return 1  # What check_generator made sure of.
  largest = share_variance(params, _SMALLEST_COHORT * params.cohort_size)
  # So many draws fit: each has a variance that the table was sized for.
  high = max(1, math.ceil(share / (largest / table_draws(params))))
  while not fits(high):  # For the rounding of divisions.
    high += 1
  low = 0
  while high - low > 1:
    middle = (low + high) // 2
    low, high = (low, middle) if fits(middle) else (middle, high)
  return high


def noise_table(params: DistributedSumParams, cohort_size: int):
  """The table that a cohort's shares are drawn from, as it stands in the state.

  Args:
    params: Of a sum whose `table_log_size` is not None.
    cohort_size: Selected clients.

  Returns:
    OrderedDict of `variance` (float64), `packed` and `tie` (int64 [cells]), and
    under a cryptographic generator `draws` (int32), how many of them make a
    share. Otherwise that is `table_draws`, and a cohort whose share does not fit
    gets the table of the expected cohort, whose variance is not that of its
    share, so that it is not used.
  """
  module = tables(params)
  log_size = table_log_size(params)
  if is_cryptographic(params):
    draws = draws_of_cohort(params, cohort_size)
    variance = share_variance(params, cohort_size) / draws
  else:
    draws = table_draws(params)
    variance = share_variance(params, cohort_size) / draws
    if not module.fits(variance) or module.log_size(variance) > log_size:
      variance = share_variance(params, params.cohort_size) / draws
  table = module.build(variance, log_size)
  found = collections.OrderedDict(
      variance=np.float64(table.variance), packed=table.packed, tie=table.tie)
  if is_cryptographic(params):
    found['draws'] = np.int32(draws)
  return found


def check_generator(params: DistributedSumParams) -> None:
  """Raises ValueError if the generator asked for can't draw all the noise.

  A cryptographic one draws from tables alone: TensorFlow's Poisson sampler has a
  generator of its own, and the rejection sampler of the discrete Gaussian is
  not made for another.
  """
  if not is_cryptographic(params):
    return
  where = f'noise_generator={params.noise_generator}'
  if not params.has_shares:
    raise ValueError(
        f'{where} needs a mechanism whose clients add the noise (skellam, '
        f'discrete_gaussian), found mechanism={params.mechanism}: the server '
        'draws its noise from TensorFlow\'s Poisson sampler')
  if params.noise_multiplier == 0:
    raise ValueError(f'{where} needs noise, found noise_multiplier=0')
  if table_draws(params) is None or (
      is_discrete_gaussian(params) and
      not tables(params).fits(share_variance(params, 1))):
    raise ValueError(
        f'{where} draws from tables, which are too small for the noise of '
        f'mechanism={params.mechanism} at bits={params.bits}: its standard '
        f'deviation is {math.sqrt(params.total_noise_variance):.4g} grid units '
        f'in all, shared by {params.cohort_size:g} clients; use fewer bits'
        + ('' if is_discrete_gaussian(params) else ' or more clients'))


def most_draws(params: DistributedSumParams, most_clients: int,
               draws: int | None = None) -> int | None:
  """The most draws that a coordinate of a released sum is made of.

  What the server adds for clients that are missing included, where it is drawn
  as the clients' shares are.

  Args:
    params: Of the sum.
    most_clients: No cohort is larger.
    draws: For a share; None for `table_draws`.

  Returns:
    A bound; None if not every law that is drawn from has a proved sampler.
  """
  if is_discrete_gaussian(params):
    return most_clients + 1  # What tops shares up is one draw.
  draws = table_draws(params) if draws is None else draws
  if draws is None:
    return None
  # A cohort of m below the smallest takes less than m draws more than those of
  # the smallest together.
  smallest = _SMALLEST_COHORT * params.cohort_size
  return max(most_clients * draws, math.ceil(smallest * (1 + draws)))


def total_variation(params: DistributedSumParams) -> float:
  """How far a draw is from its law at most, in total variation."""
  if is_discrete_gaussian(params) and not is_cryptographic(params):
    return discrete_gaussian_table.REJECTION_TOTAL_VARIATION
  return tables(params).TOTAL_VARIATION
