"""What the samplers of the noise cost: how far their draws are from the law.

Every guarantee is computed for exact laws; `accounting.deviation` says what of delta
a total variation between releases takes. A release is a vector of sums of draws, and
total variation adds up over coordinates, draws and rounds.

Random words are taken as uniform, which for a generator is an assumption.
"""

from aggregators import share_tables
from aggregators.params import DistributedSumParams
from tff_pipelines.accounting import deviation as deviation_lib

_POISSON = 'TensorFlow\'s Poisson sampler in float64'
_NO_BOUND = 'no bound on its deviation is proved, statistical tests find none'


def total_variation(params: DistributedSumParams | None, most_clients: int,
                    rounds: int, draws: int | None = None) -> float | None:
  """Bound on how far releases are from those of the exact law.

  Args:
    params: Of the sum; None for mechanisms without one.
    most_clients: No cohort is larger.
    rounds: Releases.
    draws: From a table for a share; None for as many as `params` need.

  Returns:
    D * draws * 2^-86 a round with tables (2^-80 where the discrete Gaussian may be
    drawn by rejection); None where no bound is proved. For Skellam noise under
    Philox it is that of all draws from tables, and `describe` says what else
    there is.
  """
  if params is None or params.noise_multiplier == 0 or not params.has_shares:
    return None
  of_coordinate = share_tables.most_draws(params, most_clients, draws)
  if of_coordinate is None:
    return None
  return (params.padded_dimension * of_coordinate * rounds *
          share_tables.total_variation(params))


def reserve(params: DistributedSumParams, most_clients: int, rounds: int,
            epsilon: float) -> float:
  """A part of delta that is enough whatever the noise multiplier; in [0, 1]."""
  deviation = total_variation(
      params, most_clients, rounds, draws=share_tables.MAX_DRAWS)
  return 0.0 if deviation is None else deviation_lib.taken(deviation, epsilon)


def describe(params: DistributedSumParams | None, adaptive: bool) -> str:
  """What draws the noise, and what of it no bound is known for, in words.

  Args:
    params: Of the sum; None for Gaussian noise at the server.
    adaptive: Whether a noisy count moves the clip.
  """
  if params is None:
    return ('Gaussian numbers in floating point, cut off beyond 9.3 standard '
            f'deviations: {_NO_BOUND}; words by Philox')
  if not params.has_shares:
    return f'{_POISSON}: {_NO_BOUND}'
  if share_tables.is_cryptographic(params):
    return 'exact tables alone, at clients and server; words by ChaCha20'
  if share_tables.is_discrete_gaussian(params):
    found = 'exact tables, and rejection in integers'
  elif share_tables.table_draws(params) is None:
    found = f'{_POISSON}: {_NO_BOUND}'
  else:
    found = ('exact tables; for cohorts below three quarters of the expected one, '
             f'and in place of clients that are missing, {_POISSON}: {_NO_BOUND}')
  if adaptive:
    found += f'; for the count of the adaptive clip {_POISSON}'
  return f'{found}; words by Philox'
