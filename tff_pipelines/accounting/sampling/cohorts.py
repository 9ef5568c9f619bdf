"""Probability that a minimum cohort of Poisson sampling tells of a client."""

from scipy import stats


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

  Returns:
    A probability in [0, 1], rounded up.
  """
  if max_participations is None and not suppresses:
    found = sampling_rate * stats.binom.pmf(
        least - 1, population - 1, sampling_rate) / stats.binom.sf(
            least - 1, population, sampling_rate)
  else:
    available = 1.0 if max_participations is None else stats.binom.cdf(
        max_participations - 1, rounds - 1, sampling_rate)
    found = stats.binom.cdf(least - 1, population - 1, sampling_rate * available)
  # Not a number if such a cohort is never drawn.
  return min(1.0, float(found) * (1 + 1e-9)) if found <= 1 else 1.0
