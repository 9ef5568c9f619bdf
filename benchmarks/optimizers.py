"""FedAdam against FedAvgM under differential privacy: table of docs/optimizers.md.

  python -m benchmarks.optimizers --data_dir=$DATA_DIR
  python -m benchmarks.optimizers --quick

Every experiment is a run of `tff_pipelines.train` with a guarantee; --list prints the
command lines. For each task and optimizer, the same number of the server's learning
rates is tried, each once; the one with the best metric on test clients is repeated with
other initial weights, noise and cohorts, and only these repetitions are in the table. A
run's line is added to results.jsonl when it ends; experiments that have a line are not
run again, and a run that was stopped is resumed.
"""

from collections.abc import Mapping, Sequence
import contextlib
import dataclasses
import pathlib
import shlex
import sys
import time
from typing import Any

from benchmarks import documents, results_flags
from tff_pipelines.experiment import cli
from tff_pipelines.fedavg.settings import TrainSettings

TUNING_SEED = 0
_COMMON = ('--data_source=jsonl --max_test_examples=1000 --cohort_size=200 '
           '--sampling=poisson --rounds=30 --client_batch_size=4 --epsilon=8 '
           '--rounds_per_evaluation=10 ')
OPTIMIZERS = {'FedAvgM': '--server_optimizer=sgdm --server_momentum=0.9',
              'FedAdam': '--server_optimizer=adam'}
_SGDM = (1.0, 3.0, 10.0, 30.0)
_ADAM = (0.03, 0.1, 0.3, 1.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
  """A task of the comparison.

  Attributes:
    name: Name of the task.
    flags: Flags of its runs.
    file: Name of the file of its data; None for those that ship.
    rates: Optimizer -> learning rates of the server that are tried.
    seeds: Seeds of the repetitions of the best rate.
  """

  name: str
  flags: str
  file: str | None = None
  rates: Mapping[str, Sequence[float]]
  seeds: Sequence[int] = (1, 2, 3)


CASES = (
    Case(name='shakespeare', file='shakespeare_roles.jsonl.gz',
         flags=f'--task=shakespeare {_COMMON}--max_examples_per_client=8 --clip=0.3 '
               '--client_learning_rate=2.0 --delta=0.000829187396',
         rates={'FedAvgM': _SGDM, 'FedAdam': _ADAM}),
    Case(name='tags', file='stackoverflow_users.jsonl.gz',
         flags=f'--task=stackoverflow_tag {_COMMON}--max_examples_per_client=16 '
               '--clip=1.0 --client_learning_rate=0.5 --delta=0.000181851245',
         rates={'FedAvgM': _SGDM, 'FedAdam': _ADAM}))
QUICK = (
    Case(name='tags', rates={'FedAvgM': (1.0,), 'FedAdam': (0.1,)}, seeds=(1,),
         flags='--task=stackoverflow_tag --num_clients=40 --vocabulary_size=30 '
               '--num_labels=6 --cohort_size=4 --sampling=poisson --rounds=1 '
               '--mechanism=gaussian'),)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
  """One run.

  Attributes:
    case: Its task.
    optimizer: Name of the server's optimizer.
    rate: Learning rate of the server.
    seed: Seed of the initial weights; never of noise.
  """

  case: Case
  optimizer: str
  rate: float
  seed: int

  @property
  def row(self) -> str:
    return f'{self.case.name}-{self.optimizer}-{self.rate:g}'

  @property
  def name(self) -> str:
    return f'{self.row}-{self.seed}'

  @property
  def flags(self) -> str:
    return (f'{self.case.flags} {OPTIMIZERS[self.optimizer]} '
            f'--server_learning_rate={self.rate:g} --initial_weights_seed={self.seed}')

  def arguments(self, folder: pathlib.Path, data_dir: str | None) -> list[str]:
    """Arguments of the program; the run gets a folder of its own below `folder`."""
    result = [*shlex.split(self.flags), '--resume',
              f'--output_dir={folder / self.name}']
    if self.case.file is not None:
      result.append(f'--data_path={pathlib.Path(data_dir or ".") / self.case.file}')
    return result

  def command(self, folder: pathlib.Path, data_dir: str | None) -> list[str]:
    """The command line."""
    return [sys.executable, '-m', 'tff_pipelines.train',
            *self.arguments(folder, data_dir)]


def tried(case: Case) -> list[Experiment]:
  """The runs among which the learning rates are chosen."""
  return [Experiment(case=case, optimizer=optimizer, rate=rate, seed=TUNING_SEED)
          for optimizer, rates in case.rates.items() for rate in rates]


def repeated(case: Case, results: documents.Results) -> list[Experiment]:
  """The repetitions of the best rate of each optimizer that has been tried."""
  best = {}
  for run in tried(case):
    line = results.get(run.name)
    if line is not None and line['value'] > best.get(run.optimizer, (-1.0,))[0]:
      best[run.optimizer] = line['value'], run
  return [dataclasses.replace(run, seed=seed)
          for _, run in best.values() for seed in run.case.seeds]


def table(cases: Sequence[Case], results: documents.Results) -> str:
  """The table of all cases in Markdown."""
  lines = ['| task | optimizer | rates tried: metric in per cent | rate taken | '
           'three repetitions | noise multiplier |', '|---|---|---|---|---|---|']
  for case in cases:
    for optimizer in case.rates:
      attempts = [run for run in tried(case) if run.optimizer == optimizer]
      again = [run for run in repeated(case, results) if run.optimizer == optimizer]
      rows = [results[run.name] for run in again if run.name in results]
      if not rows:
        continue
      values = [row['value'] for row in rows]
      each = ' '.join(f'{100 * value:.1f}' for value in values)
      attempted = ', '.join(
          f'{run.rate:g}: {100 * results[run.name]["value"]:.1f}' for run in attempts)
      lines.append(
          f'| {case.name}, {rows[0]["headline"].replace("_", " ")} | {optimizer} | '
          f'{attempted} | {again[0].rate:g} | **{documents.percent(values)}** ({each}) '
          f'| {rows[0]["noise_multiplier"]:.4f} |')
  return '\n'.join(lines)


def _run(experiment: Experiment, folder: pathlib.Path,
         data_dir: str | None) -> dict[str, Any]:
  """Runs one experiment and returns the fields of its line."""
  # TensorFlow takes seconds to import, which --list need not pay.
  from tff_pipelines.fedavg import run  # pylint: disable=g-import-not-at-top
  start = time.monotonic()
  settings = cli.parsed(TrainSettings, experiment.arguments(folder, data_dir))
  with open(folder / 'logs' / f'{experiment.name}.log', 'a', encoding='utf-8') as file:
    with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
      summary = run.train(settings)
  return {'flags': experiment.flags, 'seconds': round(time.monotonic() - start, 1),
          **{key: summary[key] for key in (
              'value', 'headline', 'accuracy', 'epsilon', 'epsilon_server', 'delta',
              'noise_multiplier')}}


def main(arguments: Sequence[str] | None = None) -> None:
  """Runs the script with these flags, those of the command line by default."""
  flags = results_flags.parse(
      __doc__, arguments, output_dir='out/optimizers', document='docs/optimizers.md')
  cli.quiet()
  cases = QUICK if flags.quick else CASES
  run = lambda experiment, folder: _run(experiment, folder, flags.data_dir)
  results = results_flags.results(
      flags, [one for case in cases for one in tried(case)], run)
  if results is None:
    results = documents.read(pathlib.Path(flags.output_dir))
  final = results_flags.results(
      flags, [one for case in cases for one in repeated(case, results)], run)
  if final is None:
    return
  content = table(cases, final)
  print(f'\n{content}')
  documents.put(flags.document, {'optimizers': content})


if __name__ == '__main__':
  main()
