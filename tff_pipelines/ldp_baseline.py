"""Baselines of local distillation: DP-SGD, PATE and DP-FL on the same owners.

  python -m tff_pipelines.ldp_baseline --algorithm=pate
  python -m tff_pipelines.ldp_baseline --algorithm=dp_fl --task=mnist \\
      --data_path=mnist.npz --owners=1000 --epsilon=5 --output_dir=run

All three see images through the public feature map of `tff_pipelines.ldp_distill`,
train linear classifiers and are tested on the same records. They trust somebody, as
local distillation does not: dp_sgd and pate a curator, who holds all records or
counts all votes; dp_fl the secure sum. What epsilon is of is in each summary.

The output folder gets a privacy ledger and a summary (JSON); dp_sgd and dp_fl also
leave checkpoints, metrics and a picture. --resume goes on with a run.

Exit codes: 0; 2 for a wrong flag, bad data or a folder that can't be used.
"""

from absl import flags

from tff_pipelines import cli
from tff_pipelines import ldp_baseline_flags

ldp_baseline_flags.define()
flags.adopt_module_key_flags(ldp_baseline_flags)  # So that --help shows them.


def main(argv: list[str]) -> int:
  del argv  # Unused.
  config = ldp_baseline_flags.config()
  # TensorFlow takes seconds to import: --help and wrong flags need not wait.
  from tff_pipelines import ldp_baseline_run  # pylint: disable=g-import-not-at-top
  ldp_baseline_run.run(config)
  return 0


if __name__ == '__main__':
  cli.run(main)
