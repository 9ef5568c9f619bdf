"""Trains a model on clients' data under differential privacy.

  python -m tff_pipelines.train --epsilon=4 --rounds=100 --output_dir=run
  python -m tff_pipelines.train --data_source=npz --data_path=mnist.npz \\
      --client_batch_size=20 --mechanism=gaussian

From --epsilon, --delta, --rounds, --cohort_size and --sampling the noise is
calibrated, never above the target. The output folder gets checkpoints, a privacy
ledger, metrics (CSV and TensorBoard), a summary (JSON), a report and a figure. A run
that was stopped, in whatever way, continues with --resume.
"""

from tff_pipelines.experiment import cli  # First: the search path follows from it.
from tff_pipelines.deployment.engine.settings import AgreedSettings

main = cli.program(__name__, AgreedSettings, 'tff_pipelines.deployment.engine.train:train')
