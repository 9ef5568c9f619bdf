"""Trains with several settings, several times each, and draws all curves.

  python -m tff_pipelines.sweep    # three mechanisms on embedded digits
  python -m tff_pipelines.sweep --output_dir=out/mine --repeats=3 --seeded \\
      --common="--task=emnist --rounds=20" \\
      --setting="none: --mechanism=none" \\
      --setting="gaussian: --mechanism=gaussian" \\
      --setting="Skellam, 16 bits: --bits=16"
  python -m tff_pipelines.sweep --flagfile=sweep_shakespeare \\
      --common=--data_path=shakespeare_roles.jsonl.gz

Every run has its own process and its own folder. A sweep that was stopped, in
whatever way, resumes when it is started again with the same flags. Repeat i has the
initial weights of seed i. --seeded gives it the same cohorts with all settings too,
for comparisons, and then no run has a privacy guarantee. Without it each run has its
own epsilon; all together spend more, which is not computed.
"""

from tff_pipelines.experiment import cli
from tff_pipelines.fedavg.sweep_settings import SweepSettings

main = cli.program(__name__, SweepSettings, 'tff_pipelines.fedavg.sweep:sweep')
