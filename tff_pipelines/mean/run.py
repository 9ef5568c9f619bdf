"""Runs a sweep of mean estimations and keeps its results.

A setting is executed by the factory that a training run would use: what a
client contributes, how contributions add up and what the server releases are
its pure functions, here with all clients in one graph. Each repeat is a round.
"""

import csv
import datetime
import hashlib
import io
import json
import math
import os
import pathlib
import time
from typing import Any, Callable, Sequence

import numpy as np
from scipy import stats
import tensorflow as tf
import tensorflow_federated as tff

from aggregators import keys
from aggregators import structures
from aggregators.central_sum import CentralSumFactory
from aggregators.client_sum import ClientSumFactory
from aggregators.distributed_sum import DistributedSumFactory
from tasks import mean_estimation as vectors_lib
from tff_pipelines import mean_figure
from tff_pipelines import mean_plan
from tff_pipelines.accounting import base
from tff_pipelines.simulation import contexts
from tff_pipelines.simulation import records

RESULTS = 'results.json'
TABLE = 'results.csv'
PICTURE = 'mean_estimation.png'

# Of a simulation seed's purposes, 0 is the factory's.
_CLIENT_KEYS = 1
# Of the table; a row of the JSON has `mse_of_repeats` as well, a list.
COLUMNS = (
    'mechanism', 'n', 'd', 'bits', 'epsilon', 'delta', 'accountant',
    'noise_multiplier', 'scale', 'local_stddev_grid', 'dimension_padded',
    'degenerate', 'repeats', 'mse', 'mse_low', 'mse_high', 'l2_error', 'l2_low',
    'l2_high', 'noise_mse', 'predicted_mse', 'gaussian_mse', 'gaussian_rdp_mse',
    'ratio_to_gaussian', 'ratio_to_gaussian_rdp', 'seconds')

Row = dict[str, Any]


def _seed(config: mean_plan.MeanConfig, cell: mean_plan.Cell) -> int | None:
  """A simulation seed of this cell alone, so that rows don't share noise."""
  if config.seed is None:
    return None
  text = json.dumps([config.seed, *cell.key])
  return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], 'big')


def _factory(cell: mean_plan.Cell, seed: int | None) -> ClientSumFactory:
  if cell.params is not None:
    return DistributedSumFactory(cell.params, simulation_seed=seed)
  return CentralSumFactory(
      clip=cell.clip, noise_multiplier=cell.noise_multiplier,
      simulation_seed=seed)


def release_mean(factory: ClientSumFactory, *, n: int, d: int) -> Callable:
  """One release of the mean of n vectors, all clients in one graph.

  Args:
    factory: Of the sum.
    n: Clients.
    d: Dimension.

  Returns:
    A function from the state of the sum, vectors float32 [n, d] and the number
    of the repeat to the next state and the estimate, float32 [d].
  """
  layout = structures.FlatLayout(tff.TensorType(np.float32, [d]))
  factory.check_dimension(d)

  @tf.function(autograph=False)
  def released(state, vectors, repeat):
    if factory.seeded:
      root = keys.derive(
          structures.initial_key(factory.simulation_seed, _CLIENT_KEYS), repeat)
    else:
      root = keys.fresh()

    def step(i, total):
      contribution, _ = factory.contribute(
          vectors[i], keys.derive(root, i), state)
      return i + 1, factory.add(total, contribution)

    _, total = tf.while_loop(
        lambda i, _: i < n, step, (tf.constant(0), factory.zero(d)),
        parallel_iterations=1)
    state, vector, _ = factory.server_step(
        state, total, tf.constant(n, tf.int32), layout)
    return state, vector / n

  return released


def _interval(values: Sequence[float]) -> tuple[float, float]:
  """95% confidence interval of the mean, by Student's t."""
  values = np.asarray(values, np.float64)
  half = stats.t.ppf(0.975, values.size - 1) * math.sqrt(
      values.var(ddof=1) / values.size)
  return float(values.mean() - half), float(values.mean() + half)


def estimate(config: mean_plan.MeanConfig, cell: mean_plan.Cell) -> Row:
  """Executes one setting, all repeats, and measures its errors.

  Args:
    config: Of the sweep.
    cell: The setting.

  Returns:
    A row of results. Errors are of the mean, in model units: mse is per
    coordinate and squared, l2_error the norm of the whole error.
  """
  start = time.monotonic()
  factory = _factory(cell, _seed(config, cell))
  released = release_mean(factory, n=cell.n, d=cell.d)
  state = factory.initial_state()
  errors, norms, mean_squares = [], [], []
  for repeat in range(config.repeats):
    vectors = vectors_lib.clients(
        num_clients=cell.n, dimension=cell.d, radius=cell.clip,
        seed=config.data_seed, repeat=repeat, vectors=config.vectors)
    state, found = released(
        state, tf.constant(vectors), tf.constant(repeat, tf.int32))
    truth = vectors.mean(axis=0, dtype=np.float64)
    error = found.numpy().astype(np.float64) - truth
    errors.append(float(np.mean(error**2)))
    norms.append(float(np.linalg.norm(error)))
    mean_squares.append(float(np.mean(truth**2)))
  mse, l2_error = float(np.mean(errors)), float(np.mean(norms))
  (mse_low, mse_high), (l2_low, l2_high) = _interval(errors), _interval(norms)
  params = cell.params
  return {
      'mechanism': cell.mechanism, 'n': cell.n, 'd': cell.d, 'bits': cell.bits,
      'epsilon': cell.epsilon, 'delta': config.delta,
      'accountant': cell.accountant, 'noise_multiplier': cell.noise_multiplier,
      'scale': None if params is None else params.scale,
      'local_stddev_grid': None if params is None else params.local_stddev_grid,
      'dimension_padded': None if params is None else params.padded_dimension,
      'degenerate': None if params is None else params.degeneracy(),
      'repeats': config.repeats, 'mse': mse, 'mse_low': mse_low,
      'mse_high': mse_high, 'l2_error': l2_error, 'l2_low': l2_low,
      'l2_high': l2_high,
      'noise_mse': cell.noise_mse,
      'predicted_mse': cell.predicted_mse(float(np.mean(mean_squares))),
      'gaussian_mse': cell.gaussian_mse,
      'gaussian_rdp_mse': cell.gaussian_rdp_mse,
      'ratio_to_gaussian': mse / cell.gaussian_mse,
      'ratio_to_gaussian_rdp': mse / cell.gaussian_rdp_mse,
      'seconds': time.monotonic() - start, 'mse_of_repeats': errors,
  }


def _key(row: Row) -> tuple:
  return tuple(row[name] for name in ('mechanism', 'n', 'd', 'bits', 'epsilon'))


def against_gaussian(rows: Sequence[Row]) -> list[Row]:
  """Error over the Gaussian's, accounted by RDP like Skellam, over all epsilon.

  The Gaussian's error is exact, that of the mechanism measured; pooling the
  repeats of all epsilon makes its interval small enough to see a few percent.
  """
  groups: dict[tuple, list[float]] = {}
  for row in rows:
    groups.setdefault(
        (row['mechanism'], row['n'], row['d'], row['bits']), []).extend(
            mse / row['gaussian_rdp_mse'] for mse in row['mse_of_repeats'])
  found = []
  for (mechanism, n, d, bits), ratios in groups.items():
    low, high = _interval(ratios)
    found.append({'mechanism': mechanism, 'n': n, 'd': d, 'bits': bits,
                  'ratio': float(np.mean(ratios)), 'ratio_low': low,
                  'ratio_high': high, 'releases': len(ratios)})
  return found


def _read(path: pathlib.Path, fixed: dict[str, Any]) -> dict[tuple, Row]:
  """The rows of an earlier run of this configuration, none if there was none."""
  if not path.exists():
    return {}
  try:
    found = json.loads(path.read_text(encoding='utf-8'))
    rows = {_key(row): row for row in found['rows']}
    for row in rows.values():
      if row.keys() != {*COLUMNS, 'mse_of_repeats'}:
        raise ValueError('its rows have other columns')
    earlier = found['configuration']
    differing = sorted(key for key in earlier.keys() | fixed.keys()
                       if earlier.get(key) != fixed.get(key))
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    raise ValueError(f'{path} is damaged: {error!r}') from error
  if differing:
    raise ValueError(
        f'output_dir={os.fspath(path.parent)} holds results of another '
        f'configuration: {", ".join(differing)} differ; choose another folder')
  return rows


def _write(folder: pathlib.Path, config: mean_plan.MeanConfig,
           rows: Sequence[Row], warnings: list[str]) -> None:
  """Writes all rows, as JSON and as CSV."""
  text = io.StringIO()
  writer = csv.DictWriter(text, COLUMNS, extrasaction='ignore',
                          lineterminator='\n')
  writer.writeheader()
  writer.writerows(rows)
  records.write_atomically(folder / TABLE, text.getvalue())
  found = {
      'configuration': config.fixed(),
      'epsilon_is_of': 'one release of one data set, without sampling',
      'adjacency': base.ZERO_OUT,
      'adjacency_in_words': base.ADJACENCY_IN_WORDS[base.ZERO_OUT],
      'secure_aggregation': contexts.SECURE_AGGREGATION,
      'warnings': warnings,
      'against_gaussian': against_gaussian(rows),
      'rows': list(rows),
  }
  records.write_atomically(
      folder / RESULTS, json.dumps(found, indent=1, allow_nan=False) + '\n')


def _line(cell: mean_plan.Cell, row: Row) -> str:
  return (f'{cell.name}: mse {row["mse"]:.4g} [{row["mse_low"]:.4g}, '
          f'{row["mse_high"]:.4g}], predicted {row["predicted_mse"]:.4g}, '
          f'{row["ratio_to_gaussian_rdp"]:.3f} of the Gaussian by RDP, '
          f'{row["ratio_to_gaussian"]:.3f} of the analytic')


def _default_folder() -> pathlib.Path:
  now = datetime.datetime.now().strftime('%Y%m%d-%H%M%S')
  return pathlib.Path('out') / f'mean-estimation-{now}'


def run(config: mean_plan.MeanConfig, cells: Sequence[mean_plan.Cell],
        warnings: list[str], output_dir: str | None) -> list[Row]:
  """Executes what is not there yet, writes and prints the results, draws.

  Args:
    config: The sweep.
    cells: Its settings, calibrated.
    warnings: In words.
    output_dir: Folder of the results; None for a new one.

  Returns:
    The rows of the cells, in their order.

  Raises:
    OSError: If the folder can't be written.
    ValueError: If it holds results of another configuration.
  """
  folder = pathlib.Path(output_dir) if output_dir else _default_folder()
  folder.mkdir(parents=True, exist_ok=True)
  rows = _read(folder / RESULTS, config.fixed())
  print(f'{len(cells)} settings of {config.repeats} repeats, delta '
        f'{config.delta:g}, secure aggregation: {contexts.SECURE_AGGREGATION}\n'
        f'epsilon is of one release; neighbours: '
        f'{base.ADJACENCY_IN_WORDS[base.ZERO_OUT]}', flush=True)
  for cell in cells:
    there = cell.key in rows
    if not there:
      rows[cell.key] = estimate(config, cell)
      _write(folder, config, list(rows.values()), warnings)
    print(_line(cell, rows[cell.key]) + (' (was there)' if there else ''),
          flush=True)
  # Once more, as the warnings may be others even if no row is new.
  _write(folder, config, list(rows.values()), warnings)
  asked = [rows[cell.key] for cell in cells]
  mean_figure.draw(folder / PICTURE, asked, delta=config.delta)
  for group in against_gaussian(asked):
    bits = '' if group['bits'] is None else f' at {group["bits"]} bits'
    print(f'{group["mechanism"]}{bits}, n={group["n"]} d={group["d"]}: '
          f'{group["ratio"]:.4f} [{group["ratio_low"]:.4f}, '
          f'{group["ratio_high"]:.4f}] of the Gaussian by RDP, over all epsilon')
  for warning in warnings:
    print(f'warning: {warning}')
  print(f'written to {os.fspath(folder)}: {RESULTS}, {TABLE}, {PICTURE}')
  return asked
