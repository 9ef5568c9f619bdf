"""Columns of correlated noise alongside those of peers: columns.md and a figure.

  python -m benchmarks.columns

The peers are jax_privacy, whose results benchmarks/columns_peer.py has written into
columns_peer.json, and tree aggregation of TFF, from its definition and against
simulated noise of tensorflow_privacy. All are compared at the same epsilon: clients
take k turns, any two b rounds apart, and errors are in units of the noise multiplier of
one turn.
"""

import json
import pathlib

import numpy as np
from scipy import linalg, signal
import tensorflow as tf
from tensorflow_privacy.privacy.analysis import tree_aggregation_accountant
from tensorflow_privacy.privacy.dp_query import tree_aggregation

from tff_pipelines.experiment import report
from tff_pipelines.experiment.page_elements import Curve
from tff_pipelines.fedavg import columns
from tff_pipelines.fedavg.columns import Workload
from tff_pipelines.fedavg.server_optimizer import ServerConfig
from tff_pipelines.fedavg.settings import SERVER_SCHEDULES

FOLDER = pathlib.Path(__file__).parent
FIGURE = FOLDER.parent / 'docs' / 'figures' / 'correlated_noise.png'
_BANDS = (1, 2, 3, 5, 10, 20, 34, 64)


def constant(rounds: int, momentum: float) -> Workload:
  """SGD with momentum at a constant learning rate."""
  return Workload(rates=(1.0,) * rounds, momentum=momentum)


def matrix(work: Workload) -> np.ndarray:
  """The workload at a constant learning rate as a dense matrix, [T, T]."""
  return linalg.toeplitz(np.cumsum(work.momentum**np.arange(work.rounds)),
                         np.zeros(work.rounds))


def row_errors(work: Workload, column) -> np.ndarray:
  """The error of the model after each round, at a constant learning rate, [T]."""
  impulse = np.eye(work.rounds)[0]
  response = signal.lfilter([1.0], column, impulse)
  response = np.cumsum(signal.lfilter([1.0], [1.0, -work.momentum], response))
  return np.sqrt(np.cumsum(response**2)) * np.linalg.norm(column)


def sensitivity(strategy: np.ndarray, separation: int, turns: int) -> float:
  """The sensitivity of a matrix >= 0 to k turns exactly b rounds apart."""
  rounds = strategy.shape[1]
  return max(np.linalg.norm(
      strategy[:, first::separation][:, :turns].sum(axis=1))
             for first in range(min(separation, rounds)))


def banded_error(work: Workload, column, separation: int, turns: int) -> float:
  """`columns.error` with the last turn's weights beyond the last round left out."""
  strategy = linalg.toeplitz(np.pad(column, (0, work.rounds - len(column))),
                             np.zeros(work.rounds))
  return (columns.error(work, column) / np.linalg.norm(column) / turns**0.5
          * sensitivity(strategy, separation, turns))


def tree(rounds: int, period: int, efficient: bool) -> tuple[np.ndarray, np.ndarray]:
  """Tree aggregation, which starts a new tree after `period` rounds.

  Args:
    efficient: Whether a node's estimate uses the nodes below it (Honaker 2015).

  Returns:
    Which rounds' sums a node holds, and the weights of nodes in the estimate of each
    prefix sum: [2 T, T] and [T, 2 T], 0 for nodes that there are not.
  """
  # The last round and length of a node -> its index, and the weights of its estimate
  # by index: its own value plus, of an efficient tree, half of its children's.
  nodes, estimates = {}, {}
  weights = np.zeros((rounds, 2 * rounds))
  for last in range(rounds):
    start = last - last % period
    count = last + 1 - start
    for height in range((count & -count).bit_length()):
      node, half = (last, 2**height), 2**height // 2
      nodes[node] = len(nodes)
      estimates[node] = np.zeros(2 * rounds)
      estimates[node][nodes[node]] = 1.0
      if efficient and half:
        estimates[node] += (
            estimates[last - half, half] + estimates[last, half]) / 2
    if start:
      weights[last] = weights[start - 1]
    end = start - 1
    for height in reversed(range(count.bit_length())):
      if count >> height & 1:
        end += 2**height
        scale = 2 - 0.5**height if efficient else 1.0
        weights[last] += estimates[end, 2**height] / scale
  strategy = np.zeros((2 * rounds, rounds))
  for (last, length), node in nodes.items():
    strategy[node, last + 1 - length:last + 1] = 1.0
  np.testing.assert_allclose(weights @ strategy, np.tri(rounds), atol=1e-9)
  return strategy, weights


def tree_error(work: Workload, period: int, efficient: bool, separation: int,
               turns: int) -> float:
  """The error of tree aggregation; the server's optimizer sees differences of sums."""
  strategy, weights = tree(work.rounds, period, efficient)
  noise = matrix(work) @ np.diff(weights, axis=0, prepend=0.0)
  return float(np.sqrt(np.sum(noise**2) / work.rounds / turns)
               * sensitivity(strategy, separation, turns))


def best_tree(work: Workload, separation: int, turns: int) -> tuple[float, int]:
  """The smallest error of efficient trees by their period, and that period."""
  periods = {separation, work.rounds, *(
      2**height for height in range(work.rounds.bit_length()))}
  return min((tree_error(work, period, True, separation, turns), period)
             for period in periods)


def check_trees(rounds: int = 50, separation: int = 5, turns: int = 10) -> list[str]:
  """Compares noise and sensitivity of a tree with those of tensorflow_privacy."""
  lines, generator = [], tf.random.Generator.from_seed(1)
  for aggregator, efficient in ((tree_aggregation.TreeAggregator, False),
                                (tree_aggregation.EfficientTreeAggregator, True)):
    simulation = aggregator(lambda: generator.normal([40_000]))
    state, ratios = simulation.init_state(), []
    for row in tree(rounds, rounds, efficient)[1]:
      noise, state = simulation.get_cumsum_and_update(state)
      ratios.append(float(tf.math.reduce_std(noise)) / np.linalg.norm(row))
    lines.append(f'{aggregator.__name__}, {rounds} rounds: simulated noise is '
                 f'{min(ratios):.3f} to {max(ratios):.3f} times that of our matrix')
  theirs = (2 * tree_aggregation_accountant.compute_zcdp_single_tree(
      1.0, rounds, turns, separation - 1))**0.5
  ours = sensitivity(tree(rounds, rounds, False)[0], separation, turns)
  lines.append(f'sensitivity of {turns} turns {separation} rounds apart: {ours:.3f}; '
               f'tensorflow_privacy, at least {separation} apart: {theirs:.3f}')
  return lines


def _table(head, rows) -> list[str]:
  lines = (head, ['---'] * len(head), *rows)
  return [f'| {" | ".join(map(str, line))} |' for line in lines]


def peers(results: list[dict]) -> list[str]:
  """The table of gains at the same epsilon, and the lines that check it."""
  settings = sorted({(r['rounds'], r['bands'], r['turns'], r['momentum'])
                     for r in results})
  theirs = {(r['name'], r['rounds'], r['momentum']): r for r in results}
  names = {'banded': 'jax_privacy, banded Toeplitz', 'blt': 'jax_privacy, BLT',
           'dense_banded': 'jax_privacy, optimum of banded matrices',
           'dense_turns': 'jax_privacy, optimum for turns exactly b apart'}
  cells, periods, differences = {}, [], []
  for setting in settings:
    rounds, bands, turns, momentum = setting
    work = constant(rounds, momentum)
    single = columns.error(work, (1,))
    errors = {
        'independent noise': single,
        'ours': banded_error(work, columns.best(work, bands), bands, turns)}
    for name, label in names.items():
      if (name, rounds, momentum) in theirs:
        errors[label] = theirs[name, rounds, momentum]['error']
    column = theirs['banded', rounds, momentum]['column']
    differences.append(abs(
        banded_error(work, column, bands, turns)
        / theirs['banded', rounds, momentum]['error'] - 1))
    errors['tree aggregation'] = tree_error(work, rounds, False, bands, turns)
    errors['efficient tree aggregation'] = tree_error(work, rounds, True, bands, turns)
    best, period = best_tree(work, bands, turns)
    errors['efficient trees of the best period'] = best
    periods.append(str(period))
    for label, value in errors.items():
      cells[label, setting] = f'{single / value:.3f}'
  labels = list(dict.fromkeys(label for label, _ in cells))
  return [
      *_table(['gain', *(f'T = {t:,}, b = {b}, k = {k}, momentum {m:g}'
                         for t, b, k, m in settings)],
              [[label, *(cells.get((label, setting), '-') for setting in settings)]
               for label in labels]), '',
      f'Best periods: {", ".join(periods)} rounds. Errors of jax_privacy\'s banded '
      f'columns by our program differ from its own by at most {max(differences):.1e}.']


def by_bands() -> list[str]:
  """The table of gains by the number of bands."""
  rows = []
  for rounds in (20, 50, 200, 1500):
    for momentum in (0.0, 0.9):
      work = constant(rounds, momentum)
      found = {bands: columns.best(work, bands) for bands in _BANDS}
      plain = columns.prefix_sum(rounds)
      rows.append([
          f'{rounds:,}', f'{momentum:g}', *(
              f'{columns.gain(work, c):.2f}' + (
                  f' ({columns.gain(plain, c):.2f})' if momentum and b > 1 else '')
              if b <= rounds else '-' for b, c in found.items()),
          len(columns.auto(work, 64))])
  return _table(['rounds', 'momentum', *_BANDS, 'auto'], rows)


def by_schedule(rounds: int = 200, bands: int = 20) -> list[str]:
  """The table of schedules, each with its own column and with that of another."""
  rows, other = [], columns.best(constant(rounds, 0.9), bands)
  for schedule in SERVER_SCHEDULES:
    config = ServerConfig(
        learning_rate=1.0, momentum=0.9, schedule=schedule, rounds=rounds,
        warmup_rounds=rounds // 10)
    work = columns.workload(config, rounds)
    rows.append([schedule, *(f'{columns.gain(work, column):.3f}' for column in (
        columns.best(work, bands), other))])
  return _table(['schedule', 'its own column', 'column of the constant rate'], rows)


def draw(results: list[dict], rounds: int = 200, momentum: float = 0.9) -> None:
  """Draws errors by round of independent noise, some columns and the optimum."""
  work, index = constant(rounds, momentum), range(1, rounds + 1)
  curves = [Curve(label=f'{bands} bands' if bands > 1 else 'independent', x=index,
                  y=row_errors(work, columns.best(work, bands)), main=False)
            for bands in (1, 2, 5, 10, 20)]
  bound, = (r for r in results if (r['name'], r['rounds'], r['momentum']) == (
      'dense_turns', rounds, momentum))
  curves.append(Curve(
      label=f'optimum for turns exactly {bound["bands"]} rounds apart', x=index,
      y=bound['rows'], main=True))
  report.draw(
      FIGURE, curves, title=f'{rounds} rounds, momentum {momentum}, the same epsilon',
      xlabel='round', ylabel='noise of the model / (z · clip)')


def main() -> None:
  """Writes columns.md and the figure."""
  peer = json.loads((FOLDER / 'columns_peer.json').read_text(encoding='utf-8'))
  lines = [
      '# Columns of correlated noise (`python -m benchmarks.columns`)', '',
      'Gains: error of independent noise over that of the mechanism, at the same '
      'epsilon.', '', '## Peers', '', ', '.join(
          f'{name} {version}' for name, version in peer['versions'].items()) + '.', '',
      *peers(peer['results']), '', *(f'* {line}' for line in check_trees()), '',
      '## By the number of bands', '',
      'In brackets: the gain of the same column in plain prefix sums.', '',
      *by_bands(), '', '## By schedule', '', '200 rounds, 20 bands, momentum 0.9.', '',
      *by_schedule()]
  (FOLDER / 'columns.md').write_text('\n'.join(lines) + '\n', encoding='utf-8')
  draw(peer['results'])


if __name__ == '__main__':
  main()
