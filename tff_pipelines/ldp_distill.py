"""Learns from locally private answers of data owners to public queries (LDP-DL).

  python -m tff_pipelines.ldp_distill
  python -m tff_pipelines.ldp_distill --task=mnist --data_path=mnist.npz \\
      --owners=1000 --owners_per_query=2 --epsilon_total=5 --output_dir=run
  python -m tff_pipelines.ldp_distill --mechanism=duchi --epsilon_per_query=1 \\
      --epsilon_total=4 --sampling=random

Every owner trains a teacher on its own records. Groups of owners are asked, by
turns, about public images; each perturbs its soft labels before they leave it, so
that the guarantee holds for every owner against everybody. A student learns from
the answers and, with --sampling=active, says what to ask next. The run stops when the
budget, the images or --max_queries are used up, or at --target_accuracy.

The output folder gets the answers, a privacy ledger, metrics, a summary (JSON) and a
picture. A run that was stopped, in whatever way, goes on with --resume; answers are
charged before they are given, so those that a crash lost have been paid for.

Exit codes: 0; 2 for a wrong flag, bad data or a folder that can't be used.
"""

from absl import flags

from tff_pipelines import cli
from tff_pipelines import ldp_flags

ldp_flags.define()
flags.adopt_module_key_flags(ldp_flags)  # So that --help shows them.


def main(argv: list[str]) -> int:
  del argv  # Unused.
  config = ldp_flags.config()
  # TensorFlow takes seconds to import: --help and wrong flags need not wait.
  from tff_pipelines import ldp_run  # pylint: disable=g-import-not-at-top
  ldp_run.run(config)
  return 0


if __name__ == '__main__':
  cli.run(main)
