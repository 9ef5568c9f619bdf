"""Local distillation beside its baselines: the tables of docs/ldp_distillation.md.

  python -m benchmarks.results_ldp --data_dir=$DATA_DIR

Every experiment is a run of `tff_pipelines.ldp` or of
`tff_pipelines.ldp_baselines`; --list prints their command lines. Here they run in one
process, one after the other, so that runs on the same owners prepare features and
teachers once. The summary of a run is added as one line to results.jsonl when it
ends; what is there already is not run again, and a run that was stopped continues. At
the end the tables between the marks in --document are rewritten, and the figure of
active against random sampling is drawn.
"""

import contextlib
import pathlib
import sys
import time
from typing import Any, Callable, Sequence

from absl import app
from absl import flags

from benchmarks import documents
from benchmarks import ldp_experiments as experiments_lib
from benchmarks import results_flags
from benchmarks.ldp_experiments import Experiment
from tff_pipelines.experiment import cli

FLAGS = flags.FLAGS


class Preparation:
  """Keeps what was prepared last: features and teachers of one division."""

  def __init__(self):
    self._key, self._prepared = None, None

  def get(self, settings) -> Any:
    """What is prepared for these settings."""
    from tff_pipelines.ldp import prepare  # pylint: disable=g-import-not-at-top
    key = settings.preparation_key
    if key != self._key:
      self._key, self._prepared = None, None  # Room for the next.
      self._prepared = prepare.prepare(settings)
      self._key = key
    return self._prepared


def _runner(module: str, preparation: Preparation) -> Callable[[dict[str, Any]], Any]:
  """Values of flags -> summary, by the function that a program calls."""
  # TensorFlow takes seconds to import, which --list need not pay.
  # pylint: disable=g-import-not-at-top
  if module == experiments_lib.LDP:
    from tff_pipelines.ldp import run as run_lib
  else:
    from tff_pipelines.ldp import baselines as run_lib

  def run_one(values):
    settings = experiments_lib.SETTINGS[module](**values)
    return run_lib.run(settings, preparation.get(settings))

  return run_one


def run(experiment: Experiment, folder: pathlib.Path, data_dir: str,
        preparation: Preparation) -> dict[str, Any]:
  """Runs one experiment and returns its line."""
  start, cpu = time.monotonic(), time.process_time()
  logs = folder / 'logs'
  logs.mkdir(parents=True, exist_ok=True)
  with open(logs / f'{experiment.name}.log', 'a', encoding='utf-8') as file:
    with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
      summary = _runner(experiment.module, preparation)(
          experiment.values(folder, data_dir))
  line = {'name': experiment.name, 'row': experiment.row, 'seed': experiment.seed,
          'seconds': round(time.monotonic() - start, 1),
          'cpu_seconds': round(time.process_time() - cpu, 1),
          **{key: summary[key] for key in experiments_lib.KEPT},
          **{key: value for key, value in summary['details'].items()
             if key in experiments_lib.KEPT_DETAILS}}
  if experiment.row.startswith(('curve', 'refined')):
    line['curve'] = experiments_lib.curve_of(folder / experiment.name)
  return line


def main(argv: Sequence[str]) -> None:
  del argv  # Unused.
  folder = pathlib.Path(FLAGS.output_dir)
  wanted = [e for e in experiments_lib.experiments()
            if not FLAGS.only or e.name.startswith(tuple(FLAGS.only))]
  if FLAGS.list:
    for experiment in wanted:
      print(experiment.command(folder, FLAGS.data_dir))
    return
  cli.quiet()
  folder.mkdir(parents=True, exist_ok=True)
  results, preparation = documents.read(folder), Preparation()
  for number, experiment in enumerate(wanted, start=1):
    if experiment.name in results:
      continue
    line = run(experiment, folder, FLAGS.data_dir, preparation)
    documents.append(folder, line)
    results[experiment.name] = line
    print(f"{number}/{len(wanted)} {line['name']}: accuracy "
          f"{100 * line['accuracy']:.2f}, epsilon {line['epsilon']}, "
          f"{line['seconds']:.0f} s", flush=True)
  contents = {task: experiments_lib.table(results, task)
              for task in experiments_lib.PRINTED}
  contents['sampling'] = experiments_lib.savings(results)
  contents['refined'] = experiments_lib.savings(results, 'refined')
  for name, content in contents.items():
    print(f'\n{name}\n{content}')
  documents.put(FLAGS.document, {
      name: content for name, content in contents.items()
      if content.count('\n') > 1})  # Where there are results.
  if FLAGS.picture and experiments_lib.mean_curve(results, 'active') is not None:
    experiments_lib.draw(results, FLAGS.picture)


if __name__ == '__main__':
  results_flags.define(
      'out/results_ldp', 'docs/ldp_distillation.md', 'docs/figures/ldp_sampling.png',
      'active against random sampling')
  sys.exit(app.run(main))
