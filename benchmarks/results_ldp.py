"""Local distillation compared with its baselines: tables of docs/ldp_distillation.md.

  python -m benchmarks.results_ldp --data_dir=$DATA_DIR
  python -m benchmarks.results_ldp --quick

Every experiment is a run of `tff_pipelines.ldp` or of
`tff_pipelines.ldp_baselines`; --list prints their command lines. Here they run in one
process, one after the other, so that runs on the same owners prepare features and
teachers once. The summary of a run is added as one line to results.jsonl when it ends;
experiments that have a line are not run again, and a run that was stopped is resumed.
At the end the tables between the marks in --document are rewritten, and the figure of
active against random sampling is drawn.
"""

from collections.abc import Sequence
import contextlib
import pathlib
import time
from typing import Any

from benchmarks import documents, ldp_experiments as experiments_lib, results_flags
from benchmarks.ldp_experiments import Experiment
from tff_pipelines.experiment import cli


class Runner:
  """Runs experiments and keeps what was prepared last: features and teachers."""

  def __init__(self, data_dir: str | None):
    """Initializes the runner with the folder of the data files."""
    self._data_dir = data_dir
    self._key = self._prepared = None

  def run(self, experiment: Experiment, folder: pathlib.Path) -> dict[str, Any]:
    """Runs one experiment and returns the fields of its line."""
    # TensorFlow takes seconds to import, which --list need not pay.
    # pylint: disable=g-import-not-at-top
    from tff_pipelines.ldp import baselines
    from tff_pipelines.ldp import run
    start, cpu = time.monotonic(), time.process_time()
    settings = experiments_lib.SETTINGS[experiment.module](
        **experiment.values(folder, self._data_dir))
    with open(folder / 'logs' / f'{experiment.name}.log', 'a',
              encoding='utf-8') as file:
      with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        key = experiments_lib.preparation_key(settings)
        if key != self._key:
          self._key = self._prepared = None  # Room for the next.
          self._prepared = run.Prepared(settings)
          self._key = key
        program = run if experiment.module == experiments_lib.LDP else baselines
        summary = program.run(settings, self._prepared)
    line = {'seconds': round(time.monotonic() - start, 1),
            'cpu_seconds': round(time.process_time() - cpu, 1),
            **{key: summary[key] for key in experiments_lib.KEPT},
            **{key: value for key, value in summary['details'].items()
               if key in experiments_lib.KEPT_DETAILS}}
    if experiment.row.startswith(('curve', 'refined')):
      line['curve'] = experiments_lib.curve_of(folder / experiment.name)
    return line


def main(arguments: Sequence[str] | None = None) -> None:
  """Runs the script with these flags, those of the command line by default."""
  flags = results_flags.parse(
      __doc__, arguments, output_dir='out/results_ldp',
      document='docs/ldp_distillation.md', picture='docs/figures/ldp_sampling.png')
  cli.quiet()
  experiments = experiments_lib.QUICK if flags.quick else experiments_lib.experiments()
  results = results_flags.results(flags, experiments, Runner(flags.data_dir).run)
  if results is None:
    return
  contents = {task: experiments_lib.table(results, task)
              for task in experiments_lib.PRINTED}
  contents['sampling'] = experiments_lib.savings(results)
  contents['refined'] = experiments_lib.savings(results, 'refined')
  for name, content in contents.items():
    print(f'\n{name}\n{content}')
  documents.put(flags.document, {
      name: content for name, content in contents.items()
      if content.count('\n') > 1})  # Where there are results.
  if flags.picture and experiments_lib.mean_curve(results, 'active') is not None:
    experiments_lib.draw(results, flags.picture)


if __name__ == '__main__':
  main()
