"""Trains under several settings, several times each, and draws all curves.

  python -m tff_pipelines.sweep --output_dir=out/sweep --repeats=3 --seeded \\
      --common="--task=emnist --rounds=20" \\
      --setting="none: --mechanism=none" --setting="gaussian: --mechanism=gaussian" \\
      --setting="Skellam, 16 bits: --bits=16"
  python -m tff_pipelines.sweep --output_dir=out/sweep \\
      --flagfile=tff_pipelines/configs/sweep_shakespeare.flags \\
      --common=--data_path=shakespeare_roles.jsonl.gz

Every run is a process of its own in a folder of its own. A sweep that was stopped, in
whatever way, goes on where it ended when it is started again with the same flags.
Repeat i has the initial weights of seed i. --seeded gives it the same cohorts under
all settings too, for comparisons, and then no run has a guarantee. Without it each
run has an epsilon of its own; all together spend more, which is not computed.

Exit codes: 0; 2 for a wrong flag, a run that failed or a folder of other runs.
"""

import pathlib

from absl import flags

from tff_pipelines import cli
from tff_pipelines import sweep_report
from tff_pipelines import sweep_runs

FLAGS = flags.FLAGS

flags.DEFINE_multi_string(
    'setting', [], 'A name, a colon and flags of the trainer; once for each.')
flags.DEFINE_multi_string('common', [], 'Flags of the trainer for all settings.')
flags.DEFINE_integer('repeats', 1, 'Runs of each setting.')
flags.DEFINE_bool('seeded', False, 'Cohorts and noise follow from the number of the '
                  'repeat: the same clients under all settings, and no guarantee.')
flags.DEFINE_integer('at_once', 1, 'Runs at a time.')
flags.DEFINE_string('output_dir', None, 'Folder of all runs, the table and the '
                    'picture.')
flags.DEFINE_string('title', '', 'Of the picture.')


def main(argv: list[str]) -> int:
  del argv  # Unused.
  if not FLAGS.output_dir:
    raise ValueError('output_dir must be given')
  settings = sweep_runs.parse_settings(FLAGS.setting, FLAGS.common)
  runs = sweep_runs.make_runs(
      settings, FLAGS.output_dir, repeats=FLAGS.repeats, seeded=FLAGS.seeded)
  sweep_runs.run_all(runs, FLAGS.at_once)
  sweep_report.write(
      sweep_runs.results(runs), pathlib.Path(FLAGS.output_dir), FLAGS.title)
  return 0


if __name__ == '__main__':
  cli.run(main)
