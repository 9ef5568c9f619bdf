"""Delta consumed by sampling error of the noise: one policy for every run.

Every epsilon is computed for ideal distributions. If all releases of a run together
are within a total variation distance t of the ideal ones, whatever the data, then
(epsilon, delta) of the ideal mechanism is (epsilon, delta + (1 + e^epsilon) t) of the
one that runs: one t for each of the two neighbours, the second times e^epsilon. So
epsilon is computed at the remaining delta:

* No number is known where no bound on t is proved (None); whatever prints it says so.
* The consumed delta is computed at an upper bound of epsilon, at half of delta or at
  the remaining delta, so it is never too small. Renyi divergences give it quickly; the
  accountant of the guarantee does where theirs is too large.
* It is at most half of delta. Beyond that epsilon is that of ideal distributions and
  says so, and a target is refused.

Random bits are assumed to be uniform.
"""

import math

from aggregators import params as params_lib, share_tables
from tff_pipelines.accounting.events import base
from tff_pipelines.accounting.guarantees import accountant as accountant_lib

_PHILOX = 'random bits by Philox, which is not a cryptographic generator'
_POISSON = 'TensorFlow\'s Poisson sampler in float64'
NO_BOUND = 'no bound on its deviation is proved, statistical tests find none'


def consumed(total_variation: float, epsilon: float) -> float:
  """(1 + e^epsilon) times a total variation distance, at most 1."""
  # exp of more than 700 is not a float.
  return min(1.0, total_variation * (1 + math.exp(min(epsilon, 700.0))))


def consumed_by(event: base.Event, total_variation: float | None, delta: float,
                amplification: str = 'tight', accountant: str = 'auto') -> float | None:
  """The part of delta that sampling error consumes.

  Args:
    event, delta, amplification, accountant: As for `accountant.epsilon`.
    total_variation: Distance of all releases together, above 1 as 1; None where no
      bound is proved, and then the part is None as well.
  """
  if not total_variation:
    return total_variation
  for used in dict.fromkeys(('rdp', accountant)):
    def at(part: float, used: str = used) -> float:
      """The consumed delta at the epsilon of what this part leaves."""
      return consumed(min(1.0, total_variation), accountant_lib.epsilon(
          event, delta - part, accountant=used, amplification=amplification))

    # If at least half of delta remains, epsilon is at most the one at half of it.
    if (part := at(delta / 2)) <= delta / 2:
      return part
    # Less may do: any part that covers the delta consumed at what it leaves.
    part = at(0.0)
    while part <= delta / 2:
      needed = at(part)
      if 1.01 * needed <= part:
        return part
      part = 1.02 * needed
  return part


def is_too_much(part: float | None, delta: float) -> bool:
  """Whether sampling error consumes more than half of delta."""
  return part is not None and part > delta / 2


def remaining(delta: float, part: float | None) -> float:
  """The remaining delta; all of it if too much is consumed, or nothing is known."""
  return delta if part is None or is_too_much(part, delta) else delta - part


def of_sum(params: params_lib.DistributedSumParams | None,
           largest_cohort: int) -> float | None:
  """Total variation distance between a released sum and the ideal one.

  A release is a vector of sums of draws, and total variation adds up over coordinates
  and draws: D * draws * 2^-86 with tables (2^-80 where the discrete Gaussian may be
  sampled by rejection). The ideal Skellam noise is the same for all cohorts, with a
  client and without: tables have exact fractions of its variance, so sums of m and of
  m + 1 shares are both this close to it, as amplification by sampling needs.

  Args:
    params: Parameters of the sum; None for Gaussian noise at the server.
    largest_cohort: Maximum number of clients in a cohort.

  Returns at most 1, without the count of an adaptive clip; None if no bound is proved.
  """
  if params is None or params.noise_multiplier == 0:
    return None
  draws = (share_tables.most_draws(params, largest_cohort) if params.has_shares else
           share_tables.server_draws(params))
  return None if draws is None else min(
      1.0, params.padded_dimension * draws * share_tables.total_variation(params))


def describe_sum(params: params_lib.DistributedSumParams | None, adaptive: bool) -> str:
  """The samplers of the noise in words, and of the count of an adaptive clip."""
  if params is None:
    return ('Gaussian numbers in floating point, cut off beyond 9.3 standard '
            f'deviations: {NO_BOUND}; {_PHILOX}')
  philox = f'; {_PHILOX}'
  if not params.has_shares and share_tables.server_draws(params) is not None:
    sampler = 'exact tables, at the server'
  elif share_tables.has_all_noise(params):
    sampler = 'exact tables alone, at clients and server; random bits by ChaCha20'
    philox *= adaptive
  elif params.noise.sampler_total_variation is None:
    sampler = f'{_POISSON}: {NO_BOUND}'
  elif share_tables.table_draws(params) is None:
    sampler = 'rejection in integers'
  else:
    sampler = ('exact tables by ChaCha20; for cohorts below three quarters of the '
               'expected one rejection in integers')
  if adaptive:
    sampler += f'; for the count of the adaptive clip {_POISSON}: {NO_BOUND}'
  return sampler + philox
