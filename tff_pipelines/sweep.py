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

import dataclasses
import json
import math
import os
import pathlib

from absl import flags

from tff_pipelines import cli
from tff_pipelines import privacy_plan
from tff_pipelines import sweep_runs
from tff_pipelines.accounting import decimals
from tff_pipelines.simulation import run_files

FLAGS = flags.FLAGS

TABLE, PICTURE = 'sweep.json', 'sweep.png'

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


def _epsilon(result: sweep_runs.Result) -> str:
  if result.epsilon is not None:
    return privacy_plan.describe_epsilon(result.epsilon)
  if result.epsilon_if_unseeded is not None:
    return f'({privacy_plan.describe_epsilon(result.epsilon_if_unseeded)})'
  return 'none'


def _print(results: list[sweep_runs.Result]) -> None:
  width = max(len(result.name) for result in results)
  print(f'\n{"setting":<{width}}  noise   epsilon   delta      '
        f'{results[0].metric}, %: mean, standard deviation, repeats')
  for result in results:
    noise, delta = (
        '-' if value is None else decimals.rounded_up(value)
        for value in (result.noise_multiplier, result.delta))
    repeats = ' '.join(f'{100 * value:.2f}' for value in result.values)
    spread = '' if math.isnan(result.stddev) else f' +- {100 * result.stddev:.2f}'
    print(f'{result.name:<{width}}  {noise:<7} {_epsilon(result):<9} {delta:<10} '
          f'{100 * result.mean:.2f}{spread}: {repeats}')
  if any(result.epsilon_if_unseeded is not None for result in results):
    print('(epsilon): what one run without a seed would guarantee, by itself; these '
          'have none')
  for warning in sweep_runs.warnings(results):
    print(f'warning: {warning}')


def _draw(results: list[sweep_runs.Result], path: pathlib.Path, title: str) -> None:
  """One line for each setting, the mean; and the range of the repeats."""
  import matplotlib  # pylint: disable=g-import-not-at-top
  import pandas  # pylint: disable=g-import-not-at-top
  matplotlib.use('Agg')
  from matplotlib import pyplot  # pylint: disable=g-import-not-at-top
  figure, axes = pyplot.subplots(figsize=(7, 4.2))
  for result in results:
    # A row for each round, a column for each repeat.
    table = 100 * pandas.DataFrame(map(dict, result.curves)).T.sort_index()
    line, = axes.plot(table.index, table.mean(axis=1), label=result.name)
    axes.fill_between(table.index, table.min(axis=1), table.max(axis=1),
                      color=line.get_color(), alpha=0.15, linewidth=0)
  axes.set_xlabel('round')
  held_out, metric = results[0].metric.split('/')
  axes.set_ylabel(f'{metric.replace("_", " ")} on {held_out} (%)')
  axes.grid(alpha=0.3)
  axes.legend(fontsize=9)
  axes.set_title(title, fontsize=10)
  figure.tight_layout()
  figure.savefig(path, dpi=120)
  pyplot.close(figure)


def main(argv: list[str]) -> int:
  del argv  # Unused.
  if not FLAGS.output_dir:
    raise ValueError('output_dir must be given')
  settings = sweep_runs.parse_settings(FLAGS.setting, FLAGS.common)
  runs = sweep_runs.make_runs(
      settings, FLAGS.output_dir, repeats=FLAGS.repeats, seeded=FLAGS.seeded)
  sweep_runs.run_all(runs, FLAGS.at_once)
  results = sweep_runs.results(runs)
  folder = pathlib.Path(FLAGS.output_dir)
  warnings = sweep_runs.warnings(results)
  run_files.write_atomically(folder / TABLE, json.dumps([
      {**dataclasses.asdict(result), 'mean': result.mean,
       'epsilon_is_of': None if result.delta is None else 'each run alone',
       'warnings': warnings} for result in results], indent=1) + '\n')
  _draw(results, folder / PICTURE, FLAGS.title)
  _print(results)
  print(f'written to {os.fspath(folder)}: {TABLE}, {PICTURE}')
  return 0


if __name__ == '__main__':
  cli.run(main)
