"""Baselines of local distillation: DP-SGD, PATE and DP-FL on the same owners.

  python -m tff_pipelines.ldp_baselines --algorithm=pate
  python -m tff_pipelines.ldp_baselines --algorithm=dp_fl --task=mnist \\
      --data_path=mnist.npz --num_clients=1000 --epsilon=5 --output_dir=run

All three see images through the public feature map of `tff_pipelines.ldp`, train
linear classifiers and are tested on the same records. Unlike local distillation they
trust someone: dp_sgd and pate a curator, who holds all records or counts all votes;
dp_fl the secure sum. What epsilon is of is in each summary.

The output folder gets a privacy ledger, a summary (JSON) and a report; dp_sgd and
dp_fl also leave checkpoints, metrics and a figure. --resume continues a run.
"""

from tff_pipelines.experiment import cli
from tff_pipelines.ldp.settings import BaselineSettings

main = cli.program(__name__, BaselineSettings, 'tff_pipelines.ldp.baselines:experiment')
