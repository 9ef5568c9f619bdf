"""Cohorts of Poisson sampling: their sizes, and when they tell of a client."""

import functools
import math

import numpy as np
from scipy import stats

from aggregators import params as params_lib
from tff_pipelines.common import validate


def upper_quantile(population: int, sampling_rate: float) -> int:
  """The cohort that Poisson sampling exceeds once in a thousand rounds.

  The modulus of a sum is sized for it. Wrap-around beyond it costs accuracy, never
  privacy.

  Returns the minimum m with P[Binomial(N, q) <= m] >= 0.999 for N >= 1 clients and the
  rate q in (0, 1], at least 1.
  """
  validate.integer(population=population, low=1)
  validate.fraction(sampling_rate=sampling_rate)
  return max(1, int(stats.binom.ppf(0.999, population, sampling_rate)))


@functools.lru_cache(maxsize=256)
def pivotal_probability(population: int, sampling_rate: float,
                        min_honest_fraction: float, assumed_colluders: int,
                        dropout_rate: float) -> float:
  """The probability that one client's participation decides that a round is opened.

  A round that is suppressed without a client and opened with it reveals that the client
  participates, and amplification by sampling is lost in it. Clients are selected, and
  drop out, independently of each other, of their data and of other rounds. With m other
  clients, m' of them in the sum, these are the rounds where
  `aggregators.params.has_enough` is false of (m', m) and true of (m' + 1, m + 1). A
  round that is opened without the client is opened with it too; if it drops out the
  round may be suppressed, but that is the same whatever its data are.

  Args:
    population: N >= 1 clients.
    sampling_rate: q in (0, 1].
    min_honest_fraction: h in (0, 1], the fraction of the shares that a round needs.
    assumed_colluders: c >= 0, clients of a round that are assumed to collude.
    dropout_rate: d in [0, 1), of each selected client: an upper bound.

  Returns the largest probability for any rates up to d, one for each of the other
  clients, in [0, 1], rounded up. Given the others that are selected it is linear in
  each of their rates, so some of them have the rate d and the rest 0; of all numbers of
  these the worst one counts, for every m. 0 for c = 0 if no client drops out, or if
  none may (h = 1): others alone then decide.
  """
  validate.integer(population=population, low=1)
  validate.fraction(sampling_rate=sampling_rate, min_honest_fraction=min_honest_fraction)
  if assumed_colluders == 0 and (min_honest_fraction == 1 or dropout_rate == 0):
    return 0.0
  others = stats.binom(population - 1, sampling_rate)
  reach = 15 * others.std() + 50
  selected = np.arange(max(0.0, np.floor(others.mean() - reach)),
                   min(population - 1.0, np.ceil(others.mean() + reach)) + 1)
  chances = others.pmf(selected)
  beyond = others.cdf(selected[0] - 1) + others.sf(selected[-1])
  # Pivotal values of m' lie in an interval shorter than 1.
  lowest = np.floor(min_honest_fraction * (selected + 1)) + assumed_colluders - 1
  worst = beyond
  for present in (lowest, lowest + 1):
    without, together = (
        params_lib.has_enough(present + one, selected + one, min_honest_fraction,
                              assumed_colluders) for one in (0, 1))
    at = together & ~without & (present >= 0) & (present <= selected)
    missing = (selected - present)[at]
    # So many may drop out, at the largest rate, for the most probable `missing`.
    worst += np.sum(chances[at] * stats.binom.pmf(missing, np.clip(
        missing / max(dropout_rate, 1e-300) // 1, missing, selected[at]), dropout_rate))
  return min(1.0, float(worst) * (1 + 1e-9))


def suggested_participations(sampling_rate: float, rounds: int) -> int | None:
  """A limit on participations that Poisson sampling rarely meets.

  Returns one standard deviation above the mean, ceil(q T + sqrt(q T)) for the rate q in
  (0, 1] and T >= 1 rounds: about a twelfth of a standard deviation of a client's
  participations is lost to it, on average. None if that is no limit.
  """
  validate.fraction(sampling_rate=sampling_rate)
  validate.integer(rounds=rounds, low=1)
  mean = sampling_rate * rounds
  limit = math.ceil(mean + math.sqrt(mean))
  return limit if limit < rounds else None


def redrawn_probability(population: int, sampling_rate: float, least: int, *,
                        rounds: int, max_participations: int | None,
                        suppresses: bool) -> float:
  """The fraction of the rounds in which drawing cohorts again may tell of a client.

  A cohort of fewer than `least` is drawn again until it has as many, before any client
  is told. Let M ~ Bin(N - 1, q) be the number of other clients in a draw. In the draw
  that is kept a client is selected with probability q if M >= least, and for certain if
  M = least - 1. So without a limit and suppression a round is one of Poisson sampling,
  except with probability q P[M = least - 1] / P[M + (client) >= least], whoever the
  others are. Otherwise count every round whose first draw may depend on the client: if
  the others alone are enough in the first draws of all rounds, nothing is drawn again,
  whatever the client does. Before round t another client was selected fewer than
  `max_participations` times with probability at least P[Bin(rounds - 1, q) < limit].

  Args:
    population: N >= 1 clients.
    sampling_rate: q in (0, 1].
    least: Minimum number of clients in a round, in 1..N.
    rounds: Number of rounds, >= 1.
    max_participations: Rounds after which a client is not selected; None for no limit.
    suppresses: Whether suppressed rounds may depend on single clients.

  Returns a probability in [0, 1], rounded up.
  """
  if max_participations is None and not suppresses:
    found = sampling_rate * stats.binom.pmf(
        least - 1, population - 1, sampling_rate) / stats.binom.sf(
            least - 1, population, sampling_rate)
  else:
    available = 1.0 if max_participations is None else stats.binom.cdf(
        max_participations - 1, rounds - 1, sampling_rate)
    found = stats.binom.cdf(least - 1, population - 1, sampling_rate * available)
    # So T leaks, composed as if they were independent, have at least the sum.
    found *= 1 + rounds * found
  # Not a number if such a cohort is never drawn.
  return min(1.0, float(found) * (1 + 1e-9)) if found <= 1 else 1.0
