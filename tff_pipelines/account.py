"""Computes what a release costs in privacy, or what keeps the cost in bounds.

  python -m tff_pipelines.account --mechanism=gaussian --noise_multiplier=1 \\
      --delta=1e-5 --rounds=100
  python -m tff_pipelines.account --query=noise_multiplier --mechanism=skellam \\
      --epsilon=10 --delta=0.000294117647 --clip=0.03 --bits=18 \\
      --dimension=1018174 --cohort_size=100 --population=3400 --rounds=1500 \\
      --sampling=poisson --format=json
  python -m tff_pipelines.account --ledger=run/ledger.jsonl --explain

Numbers only: no model is built and no data are read, except for vote counts with
--query=data_dependent. A flag that the mechanism does not use, or that the query finds,
is an error.

Exit code 1 if the chain of a ledger does not hold.
"""

from tff_pipelines.experiment import cli
from tff_pipelines.fedavg.account_settings import AccountSettings

main = cli.program(__name__, AccountSettings, 'tff_pipelines.fedavg.account:answer')
