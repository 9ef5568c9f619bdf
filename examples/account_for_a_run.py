"""Accounts for a run that was done elsewhere, by its parameters alone.

  python -m examples.account_for_a_run
"""

from tff_pipelines.accounting.guarantees import accountant
from tff_pipelines.accounting.guarantees import bounds
from tff_pipelines.accounting.guarantees.mechanisms import SumMechanism
from tff_pipelines.common import decimals

DELTA = 1e-5


def main() -> bounds.Bound:
  """Prints and returns the guarantee of the planned run."""
  run = SumMechanism(
      mechanism='skellam', noise_multiplier=1.0, clip=0.3, bits=18, dimension=7850,
      cohort_size=100, population=5000, sampling='poisson', rounds=200)
  guarantee = accountant.bound(run.event(), DELTA)
  # Rounded up: what is printed must not be below what is guaranteed.
  print(f'epsilon {decimals.epsilon(guarantee.epsilon)} at delta {DELTA:g}, '
        f'{guarantee.adjacency} neighbours')
  twice = accountant.epsilon(run.replace(rounds=400).event(), DELTA)
  print(f'epsilon of twice as many rounds: {decimals.epsilon(twice)}')
  return guarantee


if __name__ == '__main__':
  main()
