"""Tables: federated training at epsilon 8 beside central training without privacy.

  python -m benchmarks.tabular --wage_panel=wage_panel.csv   # of linearmodels
  python -m benchmarks.tabular --rounds=30,50                # loss by round
  python -m benchmarks.tabular --quick                       # a smoke test

Central training is scikit-learn's, on the same encoded rows; the test rows are the same
too. Runs of ours have fresh randomness, so each has its stated guarantee.
"""

import argparse
from collections.abc import Mapping, Sequence
import contextlib
import dataclasses
import io
import itertools
import json
import os
import pathlib
import statistics
import sys
import tempfile
from typing import Any

import numpy as np

from tasks import registry
from tff_pipelines.experiment import cli
from tff_pipelines.fedavg.settings import TrainSettings

EPSILON = 8.0
# Public knowledge of the columns of the wage panel.
_BINARY = ['0', '1']
WAGE_BOUNDS = {
    'year': [1980, 1987], 'exper': [0, 20], 'expersq': [0, 400], 'educ': [0, 20],
    'hours': [0, 5000], 'black': _BINARY, 'hisp': _BINARY, 'married': _BINARY,
    'union': _BINARY, 'occupation': [str(code) for code in range(1, 10)],
    'lwage': [-4, 5]}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
  """One table and what is predicted.

  Attributes:
    name: Name in the table of results.
    metric: Metric of the results.
    options: Options of the task.
    training: Settings of the runs.
    clients: Number of clients, of which delta is the inverse.
  """

  name: str
  metric: str
  options: Mapping[str, Any]
  training: Mapping[str, Any]
  clients: int


def breast_cancer() -> Case:
  """The embedded table, dealt to clients of one or two rows."""
  return Case(
      name='breast_cancer, 200 clients, malignant or benign', metric='accuracy',
      options={}, training=dict(rounds=30), clients=200)


def wage_panel(path: str, folder: pathlib.Path) -> list[Case]:
  """The wage panel: 545 people with eight years each."""
  bounds = folder / 'bounds.json'
  bounds.write_text(json.dumps(WAGE_BOUNDS))
  common = dict(data_source='csv', data_path=path, client_field='nr',
                public_bounds=str(bounds), no_cache=True)
  features = tuple(name for name in WAGE_BOUNDS if name != 'lwage')
  return [
      Case(name='wage_panel, 491 people, log wage', metric='mae',
           options=dict(common, label_field='lwage', feature_fields=features),
           training=dict(rounds=40), clients=491),
      Case(name='wage_panel, 491 people, union member', metric='accuracy',
           options=dict(common, label_field='union', feature_fields=tuple(
               name for name in (*features, 'lwage') if name != 'union')),
           training=dict(rounds=40), clients=491)]


def synthetic(people: int, width: int, seed: int = 0
              ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
  """A table of people with 1 to 50 rows each, and public bounds of its columns.

  Half of the encoded columns are numbers between bounds that are 2 to 20 standard
  deviations wide, the others categories of four. 'charges' > 0 and 'ill', 8% of the
  rows, follow from 6 numbers and 3 categories, for six tenths.
  """
  rng = np.random.default_rng(seed)
  person = np.repeat(np.arange(people), rng.integers(1, 51, people))
  rows, categories = len(person), width // 8
  numbers = width - 4 * categories
  z = (0.6 * rng.normal(size=(people, numbers))[person]
       + 0.8 * rng.normal(size=(rows, numbers)))
  table, bounds, signal = {'person': person}, {}, np.zeros(rows)
  for i in range(numbers):
    low, high = rng.choice([1.0, 3.0, 10.0], 2)
    name = f'number_{i}'
    table[name] = z[:, i].clip(-low, high)
    bounds[name] = [-low, high]
    signal += rng.normal() * z[:, i] * (i < 6)
  for i in range(categories):
    codes = rng.choice(4, rows, p=rng.dirichlet(np.full(4, 2.0)))
    table[f'kind_{i}'] = np.array(list('abcd'), object)[codes]
    bounds[f'kind_{i}'] = list('abcd')
    signal += rng.normal(size=4)[codes] * (i < 3)
  signal = np.sqrt(0.6) * (signal - signal.mean()) / signal.std()
  signal += np.sqrt(0.4) * rng.normal(size=rows)
  table['charges'] = np.clip(5000 + 1500 * signal, 1, 40_000)
  is_ill = signal > np.quantile(signal, 0.92)
  table['ill'] = np.where(is_ill, 'yes', 'no').astype(object)
  return table, {**bounds, 'charges': {'bounds': [1, 40_000], 'target': True},
                 'ill': {'categories': ['no', 'yes'], 'target': True}}


def write_synthetic(folder: pathlib.Path, people: int, width: int) -> dict[str, str]:
  """Writes a synthetic table as pandas does; returns the options of its task."""
  import pandas  # pylint: disable=g-import-not-at-top
  table, bounds = synthetic(people, width)
  pandas.DataFrame(table).to_csv(folder / 'people.csv', index=False)
  (folder / 'bounds.json').write_text(json.dumps(bounds))
  return dict(data_source='csv', data_path=str(folder / 'people.csv'), no_cache=True,
              client_field='person', public_bounds=str(folder / 'bounds.json'))


def rise(losses: Sequence[float]) -> float:
  """The highest loss of the last ten rounds over the lowest of it and those before."""
  lowest = np.minimum.accumulate(losses)
  return float(np.max((losses / lowest)[-10:]))


def print_losses(rounds: Sequence[int], people: Sequence[int],
                 widths: Sequence[int]) -> None:
  """Prints the held-out loss of runs of synthetic tables with the default rates."""
  from tff_pipelines.experiment import metrics  # pylint: disable=g-import-not-at-top
  print_header('people', 'encoded columns', 'model', 'rounds', *(
      f'{name}: score, rise' for name, _ in _MECHANISMS))
  for count, width, (label, model), length in itertools.product(
      people, widths, (('charges', 'linear'), ('charges', 'mlp'), ('ill', 'logistic'),
                       ('ill', 'mlp')), rounds):
    cells = [str(count), str(width), f'{model} of {label}', str(length)]
    for _, settings in _MECHANISMS:
      with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        summary = _quiet_run(
            folder, **write_synthetic(folder, count, width), label_field=label,
            model=model, rounds=length, **settings)
        by_round = metrics.read(folder / 'run' / 'metrics.csv', 'round')
      losses = [float(row['test_clients/loss']) for row in by_round.values()]
      values = summary['held_out']['test_clients']
      score = (f'R² {values["r2"]:.2f}' if label == 'charges' else
               f'AUC {values["auc"]:.2f}')
      cells.append(f'{score}, {rise(losses):.3f}')
    print(f'| {" | ".join(cells)} |', flush=True)


def central(case: Case, model: str) -> dict[str, float]:
  """Metrics of scikit-learn's model, and of the best constant, on the held-out rows."""
  # Takes a second to import.
  from sklearn import linear_model  # pylint: disable=g-import-not-at-top
  from sklearn import neural_network  # pylint: disable=g-import-not-at-top
  task = registry.build('tabular', **case.options)
  clients = [task.train.examples(client) for client in task.train.client_ids]
  x, y = (np.concatenate([rows[name] for rows in clients]) for name in 'xy')
  test = next(iter(task.held_out.values()))
  if case.metric == 'accuracy':
    fitted = (linear_model.LogisticRegression(max_iter=5000) if model == 'logistic' else
              neural_network.MLPClassifier(
                  hidden_layer_sizes=[32], max_iter=5000, random_state=0)).fit(x, y)
    constant = np.mean(test['y'] == np.bincount(y).argmax())
    return {'central': float(fitted.score(test['x'], test['y'])),
            'constant': float(constant)}
  kept = json.loads(task.files['columns.json'])['label']
  fitted = (linear_model.LinearRegression() if model == 'linear' else
            neural_network.MLPRegressor(
                hidden_layer_sizes=[32], max_iter=5000, random_state=0)).fit(x, y)
  error = lambda predicted: float(
      kept['scale'] * np.mean(np.abs(predicted - test['y'])))
  return {'central': error(fitted.predict(test['x'])),
          'constant': error(np.median(y))}


def _quiet_run(folder: pathlib.Path, **settings: Any) -> dict[str, Any]:
  """The summary of a run of ours."""
  from tff_pipelines.fedavg import run  # pylint: disable=g-import-not-at-top
  with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(
      io.StringIO()):
    return run.train(TrainSettings(
        task='tabular', output_dir=str(folder / 'run'), **settings))


def federated(case: Case, **settings: Any) -> tuple[float, float | None]:
  """The metric of a run of ours, and its epsilon."""
  with tempfile.TemporaryDirectory() as folder:
    summary = _quiet_run(
        pathlib.Path(folder), **{**case.options, **case.training, **settings})
  return summary['held_out'][summary['headline_of']][case.metric], summary['epsilon']


def print_rows(cases: Sequence[Case], *, repeats: int, mlp: bool, quick: bool) -> None:
  """Prints the rows of the table of results, each when it is known."""
  for case in cases:
    models = ('logistic',) if case.metric == 'accuracy' else ('linear',)
    for model in (*models, 'mlp') if mlp else models:
      peers = central(case, model)
      cells = [case.name, model, case.metric, f'{peers["constant"]:.4f}',
               f'{peers["central"]:.4f}']
      for mechanism in ('none', 'gaussian', 'skellam'):
        settings = dict(mechanism=mechanism, model=model, sampling='poisson',
                        rounds_per_evaluation=1000)
        if mechanism != 'none':
          settings |= dict(epsilon=EPSILON, delta=1 / case.clients)
        if quick:
          settings |= dict(rounds=2, num_clients=30, cohort_size=10.0)
        values, epsilons = zip(*(federated(case, **settings) for _ in range(repeats)))
        if mechanism != 'none' and max(epsilons) > EPSILON:
          raise ValueError(f'epsilon must be at most {EPSILON}, found {max(epsilons)}')
        spread = f' ± {statistics.stdev(values):.4f}' if repeats > 1 else ''
        cells.append(f'{statistics.mean(values):.4f}{spread}')
      print(f'| {" | ".join(cells)} |', flush=True)


# Mechanisms of the losses by round, with their settings.
_MECHANISMS = (
    ('none', dict(mechanism='none')),
    *((f'{mechanism}, ε = {epsilon:g}', dict(mechanism=mechanism, epsilon=epsilon))
      for mechanism, epsilon in (
          ('gaussian', 8.0), ('skellam', 8.0), ('skellam', 2.0))))
HEADER = ('data', 'model', 'metric', 'best constant', 'central, no privacy',
          'federated, no privacy', 'gaussian, ε = 8', 'skellam, ε = 8')


def print_header(*names: str) -> None:
  print(f'| {" | ".join(names)} |\n|{"---|" * len(names)}')


def _integers(text: str) -> list[int]:
  return list(map(int, text.split(',')))


def main(arguments: Sequence[str] | None = None) -> int:
  """Prints the table of results."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--wage_panel', help='wage_panel.csv of linearmodels')
  parser.add_argument('--repeats', type=int, default=3, help='runs of each setting')
  parser.add_argument('--mlp', action='store_true', help='also the network')
  parser.add_argument('--quick', action='store_true', help='a smoke test')
  parser.add_argument('--rounds', type=_integers, help='print losses instead')
  parser.add_argument('--people', type=_integers, default=[300, 1500])
  parser.add_argument('--widths', type=_integers, default=[3, 12, 60, 200])
  options = parser.parse_args(arguments)
  cli.quiet()
  if options.rounds:
    print_losses(options.rounds, options.people, options.widths)
    return 0
  print_header(*HEADER)
  with tempfile.TemporaryDirectory() as folder:
    cases = [breast_cancer()]
    if options.wage_panel:
      cases += wage_panel(os.path.abspath(options.wage_panel), pathlib.Path(folder))
    print_rows(cases, repeats=1 if options.quick else options.repeats, mlp=options.mlp,
               quick=options.quick)
  return 0


if __name__ == '__main__':
  sys.exit(main())
