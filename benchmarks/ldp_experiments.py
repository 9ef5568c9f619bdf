"""The experiments of local distillation, and the tables of their results."""

from collections.abc import Iterator, Mapping
import csv
import dataclasses
import os
import pathlib
from typing import Any

import matplotlib
import numpy as np

from benchmarks import documents
from benchmarks.documents import Results
from tff_pipelines.common import decimals
from tff_pipelines.ldp.settings import BaselineSettings, LdpSettings

LDP, BASELINE = 'tff_pipelines.ldp', 'tff_pipelines.ldp_baselines'
# Program -> its settings.
SETTINGS = {LDP: LdpSettings, BASELINE: BaselineSettings}
SEEDS = (0, 1, 2)
EPSILONS = (5, 8)
FILES = {'mnist': 'mnist.npz', 'fashion_mnist': 'fashion_mnist.npz',
         'cifar10': 'cifar10_subset.npz'}
# Keys of a summary, and of its details, that are kept.
KEPT = ('accuracy', 'epsilon', 'delta', 'population', 'cohort_size', 'adjacency',
        'rounds', 'noise_multiplier', 'mechanism', 'privacy_unit', 'trust_model',
        'warnings')
KEPT_DETAILS = ('epsilon_per_query', 'answers_of_a_client', 'queries', 'answered',
                'refined')


def preparation_key(settings: LdpSettings | BaselineSettings) -> str:
  """A text that is the same where features and teachers are."""
  return repr((settings.task, sorted(settings.task_options.items()),
               settings.feature_seed, settings.teacher_strength))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
  """One run.

  Attributes:
    row: Name that its repetitions share.
    seed: Seed of the partition of the records, the features and random queries; never
      of noise.
    module: The program.
    flags: Flags of the program, except for seeds and folders.
  """

  row: str
  seed: int
  module: str
  flags: Mapping[str, Any]

  @property
  def name(self) -> str:
    return f'{self.row}-{self.seed}'

  @property
  def task(self) -> str:
    return self.flags['task']

  def values(self, folder: pathlib.Path, data_dir: str | None) -> dict[str, Any]:
    """All flags; the run gets a folder of its own below `folder`."""
    values = dict(self.flags, data_seed=self.seed, feature_seed=self.seed, resume=True,
                  output_dir=os.fspath(folder / self.name))
    if self.module == LDP:
      values['sampling_seed'] = self.seed
    if self.task in FILES:
      values['data_path'] = os.path.join(data_dir, FILES[self.task])
    return values

  def command(self, folder: pathlib.Path, data_dir: str | None) -> list[str]:
    """The command line that does the same."""
    given = [f'--{name}' if value is True else f'--{name}={value}'
             for name, value in self.values(folder, data_dir).items()]
    return ['python', '-m', self.module, *given]


# Owners that are as good as a fair split can be, and a budget of all answers of an
# owner: each answers once.
HONEST = {'mnist': dict(num_clients=1000, clients_per_query=2, queries_per_step=250),
          'fashion_mnist': dict(num_clients=1000, clients_per_query=2,
                                queries_per_step=250),
          'cifar10': dict(num_clients=200, clients_per_query=2, queries_per_step=50)}
# Owners who answer every query, at the budget of a single answer.
PER_QUERY = dict(num_clients=50, clients_per_query=50, max_queries=1000,
                 answers_per_client=1000, queries_per_step=250)
# The same questions to the same owners, with the budget of one answer for all.
SPLIT = dict(num_clients=50, clients_per_query=50, answers_per_client=1000,
             queries_per_step=250)
# Enough owners for one answer of each, with enough records for a good teacher: more
# than there are, so sets of records stand in for them.
CROWD = dict(num_clients=10_000, clients_per_query=10, queries_per_step=250,
             stand_ins=12, records_per_client=4000)
# The budget of a single answer, step by step.
CURVE = dict(PER_QUERY, epsilon_per_query=5.0, queries_per_step=50, max_queries=600,
             refine='never')
# With the second student, in fewer steps.
REFINED = dict(CURVE, queries_per_step=100, refine='auto')


def _ldp(task: str, seed: int, kind: str, epsilon: float) -> Experiment:
  if kind == 'query':
    values = dict(task=task, **PER_QUERY, epsilon_per_query=float(epsilon))
  else:
    settings = {'total': HONEST[task], 'split': SPLIT, 'crowd': CROWD}[kind]
    values = dict(task=task, **settings, epsilon=float(epsilon))
  return Experiment(row=f'{task}-ldp-{kind}-{epsilon}', seed=seed, module=LDP,
                    flags=values)


def _curve(seed: int, sampling: str, kind: str = 'curve') -> Experiment:
  values = CURVE if kind == 'curve' else REFINED
  return Experiment(
      row=f'{kind}-{sampling}', seed=seed, module=LDP,
      flags=dict(values, task='mnist', sampling=sampling))


def _baselines(task: str) -> Iterator[Experiment]:
  for algorithm, epsilons in (
      ('pate', EPSILONS), ('dp_fl', EPSILONS), ('dp_sgd', EPSILONS[1:])):
    for epsilon in epsilons:
      yield Experiment(
          row=f'{task}-{algorithm}-{epsilon}', seed=0, module=BASELINE,
          flags=dict(task=task, algorithm=algorithm, epsilon=float(epsilon),
                     num_clients=HONEST[task]['num_clients']))


def experiments() -> list[Experiment]:
  """All of them, those on the same owners one after the other."""
  runs = []
  for seed in SEEDS:
    runs += [_ldp('mnist', seed, 'total', epsilon) for epsilon in EPSILONS]
    runs += [_ldp('mnist', seed, 'query', epsilon) for epsilon in EPSILONS]
    runs += [_curve(seed, sampling) for sampling in ('active', 'random')]
    if seed == 0:
      runs += [_curve(seed, sampling, 'refined') for sampling in ('active', 'random')]
      runs += [_ldp('mnist', 0, 'split', epsilon) for epsilon in EPSILONS]
  runs += _baselines('mnist')
  runs += [_ldp('mnist', 0, 'crowd', epsilon) for epsilon in EPSILONS]
  for task in ('fashion_mnist', 'cifar10'):
    runs += [_ldp(task, 0, 'query', epsilon) for epsilon in EPSILONS]
    runs += [_ldp(task, 0, 'total', epsilon) for epsilon in EPSILONS]
    runs += _baselines(task)
  return runs


_TINY = dict(task='digits', num_clients=6, epsilon=40.0)
_TINY_LDP = dict(_TINY, clients_per_query=3, answers_per_client=5, refine='never',
                 queries_per_step=5)
# Tiny experiments that fill tables and a figure with numbers of no meaning.
QUICK = (
    Experiment(row='mnist-ldp-total-5', seed=0, module=LDP, flags=_TINY_LDP),
    *(Experiment(row=f'curve-{sampling}', seed=0, module=LDP,
                 flags=dict(_TINY_LDP, sampling=sampling))
      for sampling in ('active', 'random')),
    Experiment(row='mnist-dp_sgd-8', seed=0, module=BASELINE, flags=dict(
        _TINY, algorithm='dp_sgd', epsilon=8.0, rounds=2)))


def curve_of(folder: pathlib.Path) -> list[tuple[int, float]]:
  """Queries and accuracy after each step of a run."""
  with open(folder / 'metrics.csv', encoding='utf-8', newline='') as file:
    return [(int(float(row['queries'])), float(row['test/accuracy']))
            for row in csv.DictReader(file)]


# Task -> algorithm -> the printed accuracies at epsilon 5 and 8.
PRINTED = {
    'mnist': {'ldp': (98.1, 98.8), 'dp_sgd': (None, 97.0), 'pate': (97.7, 98.2),
              'dp_fl': (96.4, 97.2)},
    'fashion_mnist': {'ldp': (83.4, 85.7), 'pate': (81.5, 84.7),
                      'dp_fl': (82.6, 83.6)},
    'cifar10': {'ldp': (77.5, 79.7), 'dp_sgd': (None, 73.0), 'pate': (73.6, 76.0),
                'dp_fl': (75.9, 78.7)},
}
_ROWS = (
    ('ldp-query', 'ldp', 'LDP-DL, ε of one answer; 1,000 answers of an owner'),
    ('ldp-split', 'ldp', 'LDP-DL, ε of 1,000 answers of an owner'),
    ('ldp-total', 'ldp', 'LDP-DL, ε of the one answer of an owner'),
    ('ldp-crowd', 'ldp', 'LDP-DL, the same with supposed owners of 4,000 records'),
    ('pate', 'pate', 'PATE, ε of an owner'),
    ('dp_fl', 'dp_fl', 'DP-FL, ε of an owner'),
    ('dp_sgd', 'dp_sgd', 'DP-SGD, ε of a record'))


def table(results: Results, task: str) -> str:
  """A table as Markdown; rows without results are left out."""
  lines = ['| | ε | accuracy | ε of an owner in all | δ | owners | printed |',
           '|---|---|---|---|---|---|---|']
  for name, printed, what in _ROWS:
    for i, epsilon in enumerate(EPSILONS):
      runs = documents.of_row(results, f'{task}-{name}-{epsilon}')
      if not runs:
        continue
      first = runs[0]
      of_owner = '–' if name == 'dp_sgd' else f"{float(decimals.rounded_up(first['epsilon'], 4)):,.4g}"
      theirs = PRINTED[task].get(printed, (None, None))[i]
      accuracy = documents.percent([run['accuracy'] for run in runs])
      lines.append(
          f'| {what} | {epsilon} | {accuracy} | {of_owner} | '
          f"{first['delta'] or 0:g} | {first['population']:,} | "
          f"{'–' if theirs is None else theirs} |")
  return '\n'.join(lines)


def mean_curve(results: Results, sampling: str,
               kind: str = 'curve') -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
  """Queries, mean accuracy, standard deviation, over the seeds; None if missing."""
  curves = [row['curve'] for row in documents.of_row(results, f'{kind}-{sampling}')]
  if not curves:
    return None
  queries = np.array([point[0] for point in curves[0]])
  values = np.array([[point[1] for point in curve] for curve in curves])
  spread = values.std(axis=0, ddof=1) if len(curves) > 1 else np.zeros(len(queries))
  return queries, values.mean(axis=0), spread


def queries_for(queries: np.ndarray, accuracy: np.ndarray,
                target: float) -> float | None:
  """The fewest queries from which on a curve is at the target; None for never."""
  below = np.flatnonzero(accuracy < target)
  first = below[-1] + 1 if below.size else 0
  return None if first == len(queries) else float(queries[first])


def savings(results: Results, kind: str = 'curve') -> str:
  """Queries, and so budget, that active sampling saves, as Markdown."""
  curves = {name: mean_curve(results, name, kind) for name in ('active', 'random')}
  lines = ['| accuracy | active: queries | random: queries | '
           'saved | ε of an owner, active | random |', '|---|---|---|---|---|---|']
  if None in curves.values():
    return '\n'.join(lines)
  for percent in (90.0, 92.5, 95.0, 95.5, 96.0, 97.0, 97.5, 98.0):
    active, random = (queries_for(*curves[name][:2], percent / 100)
                      for name in ('active', 'random'))
    if active is None and random is None:
      continue
    most = float(curves['random'][0][-1])

    def shown(count, scale=1):
      return f'over {scale * most:,.0f}' if count is None else f'{scale * count:,.0f}'

    saved = '–'
    if active is not None:
      share = 1 - active / (most if random is None else random)
      saved = f"{'over ' if random is None else ''}{100 * share:.0f}%"
    each = CURVE['epsilon_per_query']
    lines.append(f'| {percent:g}% | {shown(active)} | {shown(random)} | {saved} | '
                 f'{shown(active, each)} | {shown(random, each)} |')
  return '\n'.join(lines)


def draw(results: Results, path: str) -> None:
  """Draws accuracy over queries, by sampling."""
  matplotlib.use('Agg')
  from matplotlib import pyplot  # pylint: disable=g-import-not-at-top
  figure, axes = pyplot.subplots(figsize=(7.5, 4.4))
  for sampling, style in (('active', 'o-'), ('random', 's--')):
    curve = mean_curve(results, sampling)
    if curve is None:
      continue
    queries, mean, spread = curve
    (line,) = axes.plot(queries, 100 * mean, style, markersize=4, label=sampling)
    axes.fill_between(queries, 100 * (mean - spread), 100 * (mean + spread),
                      alpha=0.2, color=line.get_color())
  axes.set(xlabel='queries, each answered by every owner (epsilon 5 an answer)',
           ylabel='accuracy on 10,000 test digits (%)',
           title='MNIST, 50 owners, subset selection, mean and deviation of '
                 f'{len(SEEDS)} seeds')
  axes.title.set_fontsize(10)
  axes.grid(alpha=0.3)
  axes.legend(title='sampling')
  figure.tight_layout()
  figure.savefig(path, dpi=110)
  pyplot.close(figure)
