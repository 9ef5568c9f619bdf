"""Distils between parties that keep their records and their models (FedMD).

  python -m tff_pipelines.fedmd
  python -m tff_pipelines.fedmd --task=cifar --data_path=$DATA_DIR \\
      --knowledge=argmax --subset_size=60 --output_dir=run
  python -m tff_pipelines.fedmd --task=mnist_letters --data_path=$DATA_DIR \\
      --split=noniid --mode=np

Parties with models of different architectures exchange predictions on public
records, under secure aggregation, and learn from their mean. With mode=nfdp every
party trains on a random draw of its records, which is noise-free differential
privacy (arXiv 2009.05537); with mode=ldp it adds noise to its predictions.

The output folder gets checkpoints, a privacy ledger, metrics (CSV and TensorBoard), a
summary (JSON), a report and a figure. A run that was stopped, in whatever way,
continues with --resume.
"""

from tff_pipelines.experiment import cli
from tff_pipelines.fedmd.settings import FedMdSettings

main = cli.program(__name__, FedMdSettings, 'tff_pipelines.fedmd.run:experiment')
