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

Which flags matter:
  skellam, discrete_gaussian, skellam_central: clip, bits (or scale), dimension,
    cohort_size, and those of gaussian; noise_multiplier unless the query finds it;
    beta, k_stddevs, rotation, adaptive_clipping and clip_count_stddev
  skellam, discrete_gaussian: also min_honest_fraction, assumed_colluders,
    dropout_rate and surviving_fraction
  gaussian, skellam_count: noise_multiplier, rounds, delta, and to sample the
    clients: sampling, cohort_size, population
  --compare, with a sum: epsilon or noise_multiplier, and server_momentum; not sampling
  ae_vote, knn_vote: queries, noise_stddev, level, bound, noise, neighbours; with
    --query=data_dependent votes instead of queries, and to release the answer with
    noise: release_order, release_smoothness and release_noise
  piecewise, duchi, laplace: epsilon (of one query), queries, delta (or none)
  nfdp: records, subset_size, replacement

Exit code 1 if the chain of a ledger does not hold.
"""

from tff_pipelines.experiment import cli
from tff_pipelines.fedavg.account_settings import AccountSettings

main = cli.program(__name__, AccountSettings, 'tff_pipelines.fedavg.account:answer')
