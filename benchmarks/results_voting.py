"""Accuracy and epsilon of voting and its baselines: the tables of docs/voting.md.

  python -m benchmarks.results_voting --data_dir=$DATA_DIR

Every experiment is a run of `tff_pipelines.vote` in a process of its own, so what
is reported is what a user gets. Its summary goes as one line into results.jsonl as
soon as it is there; what is there already is not run again, and a run that was
stopped is resumed. At the end the tables between the marks in --document are
rewritten, and the figure of the ablations is drawn.
"""

import pathlib
import resource
import shlex
import subprocess
import time
from typing import Any, Sequence

from absl import app
from absl import flags

from benchmarks import documents
from benchmarks import measure
from benchmarks import results_flags
from benchmarks import voting_experiments
from benchmarks import voting_tables
from benchmarks.voting_experiments import Experiment
from tff_pipelines.experiment import files
from tff_pipelines.experiment import report

FLAGS = flags.FLAGS

# Kept of a summary, or of its details.
_KEPT = ('accuracy', 'epsilon', 'epsilon_published', 'epsilon_server', 'delta',
         'level', 'noise', 'noise_stddev', 'noise_multiplier', 'queries',
         'labels_right', 'answered', 'rounds', 'features', 'model', 'parameters',
         'student_model', 'neighbours', 'uplink_bytes_per_agent', 'warnings')


def run(experiment: Experiment, folder: pathlib.Path,
        data_dir: str) -> dict[str, Any]:
  """Runs one experiment and returns its line."""
  start, cpu = time.monotonic(), _cpu_of_children()
  logs = folder / 'logs'
  logs.mkdir(parents=True, exist_ok=True)
  log = logs / f'{experiment.name}.log'
  with open(log, 'a', encoding='utf-8') as file:
    done = subprocess.run(
        experiment.command(folder, data_dir), check=False, stdout=file,
        stderr=subprocess.STDOUT)
  if done.returncode:
    last = log.read_text(encoding='utf-8').strip().splitlines()[-1:]
    raise RuntimeError(f'{experiment.name} failed: {" ".join(last)} (see {log})')
  summary = report.read_summary(folder / experiment.name / files.SUMMARY)
  summary = {**summary.pop('details'), **summary}
  return {'name': experiment.name, 'row': experiment.row, 'seed': experiment.seed,
          'flags': experiment.flags, 'seconds': round(time.monotonic() - start, 1),
          'cpu_seconds': round(_cpu_of_children() - cpu, 1),
          **{key: summary[key] for key in _KEPT}, **measure.machine()}


def _cpu_of_children() -> float:
  """Processor time of all experiments so far, seconds."""
  used = resource.getrusage(resource.RUSAGE_CHILDREN)
  return used.ru_utime + used.ru_stime


def main(argv: Sequence[str]) -> None:
  del argv  # Unused.
  folder = pathlib.Path(FLAGS.output_dir)
  wanted = [e for e in voting_experiments.experiments()
            if not FLAGS.only or e.name.startswith(tuple(FLAGS.only))]
  if FLAGS.list:
    for experiment in wanted:
      print(shlex.join(experiment.command(folder, FLAGS.data_dir)))
    return
  folder.mkdir(parents=True, exist_ok=True)
  results = documents.read(folder)
  for number, experiment in enumerate(wanted, start=1):
    if results.get(experiment.name, {}).get('flags') == experiment.flags:
      continue
    line = run(experiment, folder, FLAGS.data_dir)
    documents.append(folder, line)
    results[experiment.name] = line
    print(f"{number}/{len(wanted)} {line['name']}: accuracy "
          f"{100 * line['accuracy']:.2f}, epsilon {line['epsilon']}, "
          f"{line['seconds']:.0f} s", flush=True)
  tables = {name: voting_tables.table(results, name)
            for name in voting_tables.shown(results)}
  for name, table in tables.items():
    print(f'\n{name}\n{table}')
  documents.put(FLAGS.document, tables)
  if FLAGS.picture and any(row['row'].startswith('ablation')
                           for row in results.values()):
    voting_tables.draw(results, FLAGS.picture)


if __name__ == '__main__':
  results_flags.define(
      'out/results_voting', 'docs/voting.md', 'docs/figures/voting_ablations.png',
      'the ablations')
  app.run(main)
