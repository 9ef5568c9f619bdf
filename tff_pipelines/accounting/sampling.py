"""How many clients a random cohort has, at most and on average."""

from scipy import stats

from aggregators import validate

COHORT_QUANTILE = 0.999


def cohort_upper_quantile(population: int, sampling_rate: float,
                          quantile: float = COHORT_QUANTILE) -> int:
  """The cohort that Poisson sampling exceeds once in a thousand rounds.

  The modulus of a sum is sized for it. Wrap-around beyond costs accuracy, never
  privacy.

  Args:
    population: N >= 1 clients.
    sampling_rate: q in (0, 1].
    quantile: Strictly between 0 and 1.

  Returns:
    The least m with P[Binomial(N, q) <= m] >= quantile, at least 1.
  """
  validate.integer(population=population, low=1)
  validate.fraction(sampling_rate=sampling_rate)
  validate.open_unit_interval(quantile=quantile)
  return max(1, int(stats.binom.ppf(quantile, population, sampling_rate)))
