"""Trains a model on clients' data under differential privacy.

  python -m tff_pipelines.train
  python -m tff_pipelines.train --epsilon=4 --rounds=100 --output_dir=run
  python -m tff_pipelines.train --data_source=npz --data_path=mnist.npz \\
      --client_batch_size=20 --mechanism=gaussian

From --epsilon, --delta, --rounds, --cohort_size and --sampling the noise is
calibrated, never above the target. The output folder gets checkpoints, a privacy
ledger, metrics (CSV and TensorBoard), a summary (JSON) and a picture. A run that
was stopped, in whatever way, goes on with --resume.

Exit codes: 0; 2 for a wrong flag, bad data or a folder that can't be used.
"""

from absl import flags

from tff_pipelines import cli
from tff_pipelines import flags as flags_lib
from tff_pipelines import privacy_plan

flags_lib.define_privacy(privacy_plan.MECHANISMS)
flags_lib.define_training()
flags_lib.define_data()
flags_lib.define_run()
flags.adopt_module_key_flags(flags_lib)  # So that --help shows them.


def main(argv: list[str]) -> int:
  del argv  # Unused.
  request, given = flags_lib.privacy_request()
  config = flags_lib.train_config()
  privacy_plan.check(request)
  # TensorFlow takes seconds to import: --help and wrong flags need not wait.
  from tff_pipelines import training  # pylint: disable=g-import-not-at-top
  training.train(request, given, config)
  return 0


if __name__ == '__main__':
  cli.run(main)
