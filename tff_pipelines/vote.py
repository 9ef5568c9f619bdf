"""Learns from agents' votes on public records, or by a baseline to compare with.

  python -m tff_pipelines.vote --epsilon=4 --queries=100 --output_dir=run
  python -m tff_pipelines.vote --task=mnist --data_path=data --algorithm=knn \\
      --neighbours=30
  python -m tff_pipelines.vote --algorithm=dp_fedavg --rounds=20

Agents answer public queries, by a model of their own (AE-DPFL) or by their nearest
records (kNN-DPFL); only the winning labels are released, and a student is trained
on them. The noise is calibrated to --epsilon, never above it. The output folder
gets checkpoints, a privacy ledger, metrics, a summary (JSON), a report and a figure.
A run that was stopped, in whatever way, continues with --resume.
"""

from tff_pipelines.experiment import cli
from tff_pipelines.voting.settings import VoteSettings

main = cli.program(__name__, VoteSettings, 'tff_pipelines.voting.run:experiment')
