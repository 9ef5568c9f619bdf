"""Membership inference on real clients: how well losses tell who took part.

  python -m benchmarks.membership --data_path=mnist.npz --folder=out/membership
  python -m benchmarks.membership --quick --folder=out/membership

Each of several runs trains on a random half of the writers of MNIST. The loss of its final
model on a writer's examples tells members from others: by itself, or by the ratio of its
likelihoods under two normal distributions that fit the other runs with and without the
writer (arXiv 2112.03570). A figure for readers of what these attacks reach: it bounds
nothing. Finished runs are not run again.
"""

import argparse
from collections.abc import Sequence
import dataclasses
import pathlib
import sys

import numpy as np
from scipy import stats

from tasks import registry
from tasks.task import Task
from tff_pipelines.common import files
from tff_pipelines.experiment import models, page_elements, report
from tff_pipelines.fedavg import evaluation, run as run_lib, settings as settings_lib

# Name -> settings of its runs.
RUNS = {'no privacy': dict(mechanism='none'),
        'ε = 8': dict(mechanism='skellam', epsilon=8.0, clip=0.3),
        'ε = 1': dict(mechanism='skellam', epsilon=1.0, clip=0.3,
                      server_learning_rate=0.5)}
# False positive rate at which the true positive rate is printed.
_FALSE = 0.01


@dataclasses.dataclass(frozen=True)
class _Half:
  """The clients of a source that take part."""

  whole: object
  client_ids: tuple[str, ...]

  @property
  def element_spec(self):
    return self.whole.element_spec

  def examples(self, client_id: str) -> dict[str, np.ndarray]:
    return self.whole.examples(client_id)


def losses(task: Task, settings: dict, members: np.ndarray, seed: int, rounds: int,
           folder: pathlib.Path) -> np.ndarray:
  """Losses of the final model of a run on these members; float [clients] of all."""
  ids = task.train.client_ids
  if not (folder / files.SUMMARY).exists():
    half = _Half(task.train, tuple(np.array(ids)[members]))
    experiment = run_lib.TrainExperiment(settings_lib.TrainSettings(**{
        'task': dataclasses.replace(task, train=half, label_counts=None),
        'rounds': rounds, 'sampling': 'poisson', 'cohort_size': len(half.client_ids) // 5,
        'client_learning_rate': 0.3, 'client_batch_size': 20, 'server_momentum': 0.9,
        'rounds_per_evaluation': rounds, 'initial_weights_seed': seed,
        'output_dir': str(folder), 'resume': folder.exists(), **settings}))
    experiment.quiet = True
    experiment.run()
  weights = models.read(folder).weights
  found = evaluation.Evaluator(task.model, {
      client: task.train.examples(client) for client in ids}).evaluate(weights)
  return np.array([found[client]['loss'] for client in ids])


def ratios(of_runs: np.ndarray, members: np.ndarray, target: int) -> np.ndarray:
  """Log likelihood ratios of membership in a run, by all others; float [clients].

  Args:
    of_runs: float [runs, clients], logarithms of losses.
    members: bool [runs, clients].
    target: The run.
  """
  others = np.arange(len(of_runs)) != target
  result = []
  for one, is_in, own in zip(of_runs[others].T, members[others].T, of_runs[target]):
    law = [stats.norm.logpdf(own, part.mean(), part.std() + 1e-3)
           for part in (one[is_in], one[~is_in]) if len(part)]
    result.append(law[0] - law[-1])
  return np.array(result)


def roc(scores: np.ndarray, members: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """False and true positive rates of all thresholds, from 0 to 1."""
  order = np.argsort(-scores, kind='stable')
  hits = members[order]
  return tuple(np.concatenate([[0], np.cumsum(part) / max(1, part.sum())])
               for part in (~hits, hits))


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs the script with these flags, those of the command line by default."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--folder', required=True, help='folder of runs and of the figure')
  parser.add_argument('--data_path', help='MNIST by writer; embedded digits by default')
  parser.add_argument('--quick', action='store_true', help='few short runs')
  flags = parser.parse_args(arguments)
  folder, rounds, count = pathlib.Path(flags.folder), 50, 16
  if flags.quick:
    rounds, count = 4, 4
  data = dict(data_source='npz', data_path=flags.data_path) if flags.data_path else {}
  task = registry.build('emnist', model='cnn_small', **data)
  members = np.random.default_rng(1).random((count, len(task.train.client_ids))) < 0.5
  curves = []
  print(f'| run | attack | area under the ROC curve | detected at {_FALSE:.0%} false '
        'alarms |\n|---|---|---|---|')
  for name, settings in list(RUNS.items())[:2 if flags.quick else None]:
    found = np.log(np.stack([
        losses(task, settings, members[i], i, rounds, folder / f'{name[-1]}-{i}')
        for i in range(count)]) + 1e-6)
    for attack, scores in (
        ('loss', -found), ('likelihood ratio', np.stack([
            ratios(found, members, target) for target in range(count)]))):
      # A threshold of its own for each run, and rates over all runs.
      points = [roc(*pair) for pair in zip(scores, members)]
      areas = [float(np.trapz(true, false)) for false, true in points]
      at = [float(np.interp(_FALSE, false, true)) for false, true in points]
      print(f'| {name} | {attack} | {np.mean(areas):.3f} | {np.mean(at):.3f} |', flush=True)
      grid = np.linspace(0, 1, 101)
      curves.append(page_elements.Curve(
          label=f'{name}, {attack}', main=False, x=grid, y=np.mean(
              [np.interp(grid, *point) for point in points], axis=0)))
  report.draw(folder / 'membership.png', curves, title='who took part, by the loss',
              xlabel='false positive rate', ylabel='true positive rate')
  return 0


if __name__ == '__main__':
  sys.exit(main())
