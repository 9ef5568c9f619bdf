"""Accuracy and epsilon of voting and its baselines: the tables of docs/voting.md.

  python -m benchmarks.results_voting --data_dir=$DATA_DIR
  python -m benchmarks.results_voting --quick

Every experiment is a run of `tff_pipelines.vote` in a process of its own, so its
numbers are those of a user's run; --quick runs tiny ones in this process. The summary
goes as one line into results.jsonl as soon as it is written; experiments that have a
line are not run again, and a run that was stopped is resumed. At the end the tables
between the marks in --document are rewritten, and the figure of the ablations is drawn.
"""

from collections.abc import Sequence
import contextlib
import os
import pathlib
import subprocess
import time
from typing import Any

from benchmarks import (
    documents, measure, results_flags, voting_experiments, voting_letters,
    voting_tables)
from benchmarks.voting_experiments import Experiment
from tff_pipelines import vote
from tff_pipelines.common import files
from tff_pipelines.experiment import report

# Kept of a summary, or of its details.
_KEPT = ('accuracy', 'adjacency', 'epsilon', 'epsilon_published', 'epsilon_server', 'delta',
         'level', 'noise', 'noise_stddev', 'noise_multiplier', 'queries',
         'labels_right', 'answered', 'rounds', 'features', 'model', 'parameters',
         'student_model', 'neighbours', 'uplink_bytes_per_agent', 'warnings')


def _cpu_seconds() -> float:
  """Processor time of this process and of all experiments so far."""
  return sum(os.times()[:4])


def run(experiment: Experiment, folder: pathlib.Path, data_dir: str | None,
        in_process: bool = False) -> dict[str, Any]:
  """Runs one experiment and returns the fields of its line."""
  start, cpu = time.monotonic(), _cpu_seconds()
  log = folder / 'logs' / f'{experiment.name}.log'
  command = experiment.command(folder, data_dir)
  letters = folder / voting_experiments.LETTERS
  if f'--data_path={letters}' in command and not letters.exists():
    voting_letters.write(data_dir, letters)
  with open(log, 'a', encoding='utf-8') as file:
    if in_process:
      with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        code = vote.main(command[3:])
    else:
      code = subprocess.run(
          command, check=False, stdout=file, stderr=subprocess.STDOUT).returncode
  if code:
    last = log.read_text(encoding='utf-8').strip().splitlines()[-1:]
    raise RuntimeError(f'{experiment.name} failed: {" ".join(last)} (see {log})')
  summary = report.read_summary(folder / experiment.name / files.SUMMARY)
  summary = {**summary.pop('details'), **summary}
  return {'flags': experiment.flags, 'seconds': round(time.monotonic() - start, 1),
          'cpu_seconds': round(_cpu_seconds() - cpu, 1),
          **{key: summary[key] for key in _KEPT}, **measure.machine()}


def main(arguments: Sequence[str] | None = None) -> None:
  """Runs the script with these flags, those of the command line by default."""
  flags = results_flags.parse(
      __doc__, arguments, output_dir='out/results_voting', document='docs/voting.md',
      picture='docs/figures/voting_ablations.png')
  experiments = (voting_experiments.QUICK if flags.quick else
                 voting_experiments.experiments())
  results = results_flags.results(
      flags, experiments, lambda experiment, folder: run(
          experiment, folder, flags.data_dir, in_process=flags.quick))
  if results is None:
    return
  tables = {name: voting_tables.table(results, name)
            for name in voting_tables.shown(results)}
  for name, table in tables.items():
    print(f'\n{name}\n{table}')
  documents.put(flags.document, tables)
  if flags.picture and any(row['row'].startswith('ablation')
                           for row in results.values()):
    voting_tables.draw(results, flags.picture)


if __name__ == '__main__':
  main()
