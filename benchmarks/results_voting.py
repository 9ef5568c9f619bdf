"""Accuracy and epsilon of voting beside its baselines: the tables of docs/voting.md.

  python -m benchmarks.results_voting --data_dir=$DATA_DIR

Every experiment is a run of `tff_pipelines.vote` in a process of its own, so what
is reported is what a user gets. Its summary goes as one line into results.jsonl as
soon as it is there; what is there already is not run again, and a run that was
stopped goes on. At the end the tables between the marks in --document are
rewritten, and the picture of the ablations is drawn.
"""

import json
import os
import pathlib
import resource
import shlex
import subprocess
import time
from typing import Any, Sequence

from absl import app
from absl import flags

from benchmarks import measure
from benchmarks import voting_experiments
from benchmarks import voting_tables
from benchmarks.voting_experiments import Experiment

_DATA_DIR = flags.DEFINE_string(
    'data_dir', os.environ.get('DATA_DIR'), 'Folder of the data files.')
_OUTPUT_DIR = flags.DEFINE_string(
    'output_dir', 'out/results_voting', 'Folder of the runs and of results.jsonl.')
_DOCUMENT = flags.DEFINE_string(
    'document', 'docs/voting.md', 'Where the tables go; empty for nowhere.')
_PICTURE = flags.DEFINE_string(
    'picture', 'docs/pictures/voting_ablations.png', 'Of the ablations; empty for '
    'none.')
_ONLY = flags.DEFINE_list('only', [], 'Only experiments whose names start so.')
_LIST = flags.DEFINE_bool('list', False, 'Print the commands and run nothing.')

RESULTS = 'results.jsonl'
# What of a summary is kept.
_KEPT = ('accuracy', 'epsilon', 'epsilon_published', 'epsilon_server', 'delta',
         'level', 'noise', 'noise_stddev', 'noise_multiplier', 'queries',
         'labels_right', 'answered', 'rounds', 'features', 'model', 'parameters',
         'student_model', 'neighbours', 'uplink_bytes_per_agent', 'warnings')


def read(path: pathlib.Path) -> dict[str, dict[str, Any]]:
  """Name -> result, of the lines that are there."""
  if not path.exists():
    return {}
  lines = path.read_text(encoding='utf-8').splitlines()
  found = [json.loads(line) for line in lines if line.endswith('}')]
  return {row['name']: row for row in found}


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
  summary = json.loads(
      (folder / experiment.name / 'summary.json').read_text(encoding='utf-8'))
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
  if not _DATA_DIR.value:
    raise app.UsageError('--data_dir must name the folder of the data files')
  folder = pathlib.Path(_OUTPUT_DIR.value)
  wanted = [e for e in voting_experiments.experiments()
            if not _ONLY.value or e.name.startswith(tuple(_ONLY.value))]
  if _LIST.value:
    for experiment in wanted:
      print(shlex.join(experiment.command(folder, _DATA_DIR.value)))
    return
  folder.mkdir(parents=True, exist_ok=True)
  path = folder / RESULTS
  results = read(path)
  for number, experiment in enumerate(wanted, start=1):
    if results.get(experiment.name, {}).get('flags') == experiment.flags:
      continue
    line = run(experiment, folder, _DATA_DIR.value)
    with open(path, 'a', encoding='utf-8') as file:
      file.write(json.dumps(line) + '\n')
    results[experiment.name] = line
    print(f"{number}/{len(wanted)} {line['name']}: accuracy "
          f"{100 * line['accuracy']:.2f}, epsilon {line['epsilon']}, "
          f"{line['seconds']:.0f} s", flush=True)
  tables = {name: voting_tables.table(results, name)
            for name in voting_tables.shown(results)}
  for name, table in tables.items():
    print(f'\n{name}\n{table}')
  if _DOCUMENT.value:
    document = pathlib.Path(_DOCUMENT.value)
    text = document.read_text(encoding='utf-8')
    for name, table in tables.items():
      text = voting_tables.rewritten(text, name, table)
    document.write_text(text, encoding='utf-8')
  if _PICTURE.value and any(row['row'].startswith('ablation')
                            for row in results.values()):
    voting_tables.draw(results, _PICTURE.value)


if __name__ == '__main__':
  app.run(main)
