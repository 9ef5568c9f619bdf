"""Locally private distillation and its baselines: table 1 of arXiv 2202.02971."""

from collections.abc import Iterator
import pathlib
from typing import Any

from matplotlib import figure as figure_lib
import numpy as np

from benchmarks.results.pages import Comparison, Record, Table
from benchmarks.results.rows import Row, product
from tff_pipelines.common import decimals

TASKS = {'mnist': 'MNIST', 'fashion_mnist': 'Fashion-MNIST', 'cifar10': 'CIFAR-10'}
EPSILONS = (5, 8)
_OWNERS = {'mnist': 1000, 'fashion_mnist': 1000, 'cifar10': 200}
_STEP = {'mnist': 250, 'fashion_mnist': 250, 'cifar10': 50}
# Owners who answer every query, each answer with the whole epsilon, as in the paper.
_PER_ANSWER = dict(num_clients=50, clients_per_query=50, max_queries=1000,
                   answers_per_client=1000, queries_per_step=250)
# The same questions to the same owners, with the budget of one answer for all.
_SPLIT = dict(num_clients=50, clients_per_query=50, answers_per_client=1000,
              queries_per_step=250)
# Enough owners for one answer of each, with enough records for a good teacher: more
# than there are, so sets of records stand in for them.
_CROWD = dict(num_clients=10_000, clients_per_query=10, queries_per_step=250,
              stand_ins=12, records_per_client=4000)
_CURVE = dict(_PER_ANSWER, epsilon_per_query=5.0, queries_per_step=50, max_queries=600,
              refine='never', mechanism='piecewise')
_REFINED = dict(_CURVE, queries_per_step=100, refine='auto')
_SEEDS = ('data_seed', 'feature_seed')

_HONEST = product(clients_per_query=(1, 2), sharpness=(8.0, 16.0),
                  refine_strength=(0.1, 0.3))
_ANSWERS = product(sampling=('active', 'random'), sharpness=(8.0, 16.0),
                   refine_strength=(0.1, 0.3))
_SHARPNESS = product(sharpness=(4.0, 6.0, 8.0, 12.0, 16.0, 20.0, 24.0, 32.0))
_GRIDS = {
    'pate': product(answers=(250, 500), threshold=(0.3, 0.5), threshold_noise=(1.0, 2.0)),
    'dp_fl': product(rounds=(15, 40), learning_rate=(3.0, 15.0),
                     client_learning_rate=(1.0, 5.0)),
    'dp_sgd': product(rounds=(150, 300), learning_rate=(10.0, 20.0, 40.0, 80.0))}
_LABELS = {
    'krr': 'LDP-DL, k-ary randomized response', 'laplace': 'LDP-DL, Laplace by the simplex',
    'ldp-total': 'LDP-DL, piecewise', 'duchi': 'LDP-DL, Duchi',
    'pate': 'PATE, ε of an owner, trusted curator',
    'dp_fl': 'DP-FL, ε of an owner, secure aggregation',
    'dp_sgd': 'DP-SGD, ε of a record, trusted curator'}
_MECHANISMS = {'krr': 'subset', 'laplace': 'laplace', 'ldp-total': 'piecewise',
               'duchi': 'duchi'}


def _row(task: str, name: str, label: str, flags: dict[str, Any], **fields) -> Row:
  is_baseline = 'algorithm' in flags
  return Row(
      name=f'ldp/{name}', label=label, data=task,
      program='ldp_baselines' if is_baseline else 'ldp',
      flags=dict(flags, task=task),
      seeded=_SEEDS if is_baseline else (*_SEEDS, 'sampling_seed'), **fields)


def _rows(task: str) -> Iterator[Row]:
  one = dict(num_clients=_OWNERS[task], queries_per_step=_STEP[task])
  for key, label in _LABELS.items():
    for epsilon in EPSILONS:
      base = (dict(algorithm=key, num_clients=_OWNERS[task]) if key in _GRIDS else
              dict(one, mechanism=_MECHANISMS[key]))
      yield _row(task, f'{task}-{key}-{epsilon}',
                 label + ('' if key in _GRIDS else ', two answers' if (
                     key == 'krr' and epsilon == 8) else ', one answer'),
                 dict(base, epsilon=float(epsilon)),
                 grid=_GRIDS.get(key, _HONEST) if epsilon == 5 else (),
                 tuned_as='' if epsilon == 5 else f'ldp/{task}-{key}-5')
  for epsilon in EPSILONS:
    yield _row(task, f'{task}-ldp-query-{epsilon}',
               f'LDP-DL, piecewise, ε = {epsilon} of one of 1,000 answers',
               dict(_PER_ANSWER, mechanism='piecewise', epsilon_per_query=float(epsilon)),
               grid=_ANSWERS if epsilon == 5 else (),
               tuned_as='' if epsilon == 5 else f'ldp/{task}-ldp-query-5')


def _of_mnist() -> Iterator[Row]:
  tuned = dict(tuned_as='ldp/mnist-ldp-query-5')
  for epsilon in EPSILONS:
    target = dict(mechanism='piecewise', epsilon=float(epsilon))
    yield _row('mnist', f'mnist-ldp-split-{epsilon}',
               'LDP-DL, piecewise, 1,000 answers', dict(_SPLIT, **target), **tuned)
    yield _row('mnist', f'mnist-ldp-crowd-{epsilon}',
               'LDP-DL, piecewise, one answer of 10,000 hypothetical owners',
               dict(_CROWD, **target), **tuned)
  for kind, values in (('curve', _CURVE), ('refined', _REFINED)):
    for sampling in ('active', 'random'):
      yield _row('mnist', f'{kind}-{sampling}', f'{kind}, {sampling} queries',
                 dict(values, sampling=sampling), curve=('queries', 'test/accuracy'),
                 # Random queries of the first student leave nothing to choose.
                 **(tuned if kind == 'refined' else dict(grid=_SHARPNESS) if (
                     sampling == 'active') else {}))


ROWS = (*_rows('mnist'), *_of_mnist(), *_rows('fashion_mnist'), *_rows('cifar10'))


def _of_owner(record: Record) -> str:
  if record['identity']['program'] != 'ldp':
    return '–'
  return f'{float(decimals.rounded_up(record["runs"][0]["epsilon"], 4)):,.4g}'


def _table(task: str) -> Table:
  def against(one, other, words):
    return Comparison(one=f'ldp/{task}-{one}', other=f'ldp/{task}-{other}', words=words)

  return Table(
      page='ldp_distillation.md', mark=task, columns={'ε of an owner in all': _of_owner},
      rows=[row.name for row in ROWS if row.name.startswith(f'ldp/{task}-')],
      comparisons=[
          against(f'krr-{epsilon}', f'{other}-{epsilon}',
                  f'Randomized response against {words}, ε = {epsilon}')
          for epsilon in EPSILONS for other, words in (
              ('ldp-total', 'piecewise'), ('laplace', 'Laplace'), ('duchi', 'Duchi'),
              ('dp_fl', 'DP-FL'), ('pate', 'PATE'))])


def _mean_curve(records, kind: str, sampling: str):
  """Queries, mean accuracy in per cent, standard deviation; None if missing."""
  record = records.get(f'ldp/{kind}-{sampling}')
  if record is None:
    return None
  curves = np.array([run['curve'] for run in record['runs']])
  values = 100 * curves[:, :, 1]
  return curves[0, :, 0], values.mean(axis=0), values.std(axis=0, ddof=1)


def queries_for(queries: np.ndarray, accuracy: np.ndarray,
                target: float) -> float | None:
  """The fewest queries from which on a curve is at the target; None for never."""
  below = np.flatnonzero(accuracy < target)
  first = below[-1] + 1 if below.size else 0
  return None if first == len(queries) else float(queries[first])


def _savings(kind: str):
  def render(records) -> str:
    """Queries, and so budget, that active queries save, as Markdown."""
    curves = [_mean_curve(records, kind, name) for name in ('active', 'random')]
    lines = ['| accuracy, % | active: queries | random: queries |', '|---|---|---|']
    if None in [curve and True for curve in curves]:
      return '\n'.join(lines)
    for percent in (90.0, 92.5, 95.0, 95.5, 96.0, 97.0, 97.5, 98.0):
      found = [queries_for(*curve[:2], percent) for curve in curves]
      lines.append(f'| {percent:g} | ' + ' | '.join(
          f'over {curve[0][-1]:,.0f}' if one is None else f'{one:,.0f}'
          for one, curve in zip(found, curves)) + ' |')
    return '\n'.join(lines)

  return render


TABLES = (*map(_table, TASKS), *(
    Table(page='ldp_distillation.md', mark=mark, render=_savings(kind),
          rows=[f'ldp/{kind}-active', f'ldp/{kind}-random'])
    for mark, kind in (('sampling', 'curve'), ('refined', 'refined'))))


def _draw(records, runs, path: pathlib.Path) -> None:
  """Draws accuracy over queries, by sampling."""
  del runs
  figure = figure_lib.Figure(figsize=(7.5, 4.4))
  axes = figure.subplots()
  for sampling, style in (('active', 'o-'), ('random', 's--')):
    if (curve := _mean_curve(records, 'curve', sampling)) is None:
      return
    queries, mean, spread = curve
    (line,) = axes.plot(queries, mean, style, markersize=4, label=sampling)
    axes.fill_between(queries, mean - spread, mean + spread, alpha=0.2,
                      color=line.get_color())
  axes.set(xlabel='queries, each answered by every owner (epsilon 5 an answer)',
           ylabel='accuracy on 10,000 test digits (%)')
  axes.set_title('MNIST, 50 owners, piecewise mechanism, mean and deviation of 3 seeds',
                 fontsize=10)
  axes.grid(alpha=0.3)
  axes.legend(title='sampling')
  figure.tight_layout()
  figure.savefig(path, dpi=110)


FIGURES = {'ldp_sampling.png': _draw}
