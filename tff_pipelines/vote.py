"""Learns from agents' votes on public records, or by a baseline to compare with.

  python -m tff_pipelines.vote
  python -m tff_pipelines.vote --task=mnist --data_dir=data --epsilon=4.3 \\
      --bound=paper --features=contrastive --agent_confidence=0.9
  python -m tff_pipelines.vote --task=office --data_dir=data --algorithm=knn \\
      --neighbours=30 --target=webcam --queries=206 --epsilon=3.9
  python -m tff_pipelines.vote --task=mnist --data_dir=data --algorithm=dp_fedavg

Agents answer public queries, by a model of their own (AE-DPFL) or by their nearest
records (kNN-DPFL); only the winning labels are released, and a student is trained
on them. The noise is calibrated to --epsilon, never above it. The output folder
gets checkpoints, a privacy ledger, metrics, a summary (JSON) and a picture. A run
that was stopped, in whatever way, goes on with --resume.

Exit codes: 0; 2 for a wrong flag, bad data or a folder that can't be used.
"""

from absl import flags

from tff_pipelines import cli
from tff_pipelines import vote_flags

vote_flags.define()
flags.adopt_module_key_flags(vote_flags)  # So that --help shows them.


def main(argv: list[str]) -> int:
  del argv  # Unused.
  config = vote_flags.config()
  # TensorFlow takes seconds to import: --help and wrong flags need not wait.
  # pylint: disable=g-import-not-at-top
  if config.is_vote:
    from tff_pipelines import vote_run
    vote_run.run(config)
  else:
    from tff_pipelines import vote_baselines
    vote_baselines.run(config)
  return 0


if __name__ == '__main__':
  cli.run(main)
