"""A sweep of mean estimations: each setting is charged, then executed.

A setting is executed by the pure functions of the factory that a training run would
use, here with all clients in one graph. Each repeat is a round.
"""

from collections.abc import Callable, Iterable, Mapping
import dataclasses
import hashlib
import json
import pathlib
import time
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from aggregators import keys, structures
from tasks import mean_estimation
from tff_pipelines.accounting.events import base, kinds as events
from tff_pipelines.accounting.guarantees import ledger as ledger_lib
from tff_pipelines.common import files
from tff_pipelines.experiment import (
    charged_records, report as report_lib, rounds as rounds_lib, run as run_lib)
from tff_pipelines.fedavg import run as fedavg_run
from tff_pipelines.mean import plan as plan_lib, report
from tff_pipelines.mean.settings import KEY, MeanSettings

# A purpose of the simulation seed; the factory's is 0.
_CLIENT_KEYS = 1
_KEPT_AS = 'rows/{:06}.npz'
_ROW = 'row'


def _release(settings: MeanSettings, cell: plan_lib.Cell) -> tuple[Any, Callable]:
  """Builds one release of the mean of vectors, all clients in one graph.

  Returns the initial state of the sum; and a function from a state, vectors float32
  [n, d] and the index of the repeat to the next state and the estimate, float32 [d].
  """
  n, d, seed = cell.n, cell.d, settings.seed
  if seed is not None:
    # Each cell has its own seed, so that rows don't share noise.
    text = json.dumps([seed, *cell.key])
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], 'big')
  factory = fedavg_run.sum_factory(dataclasses.replace(cell.plan, seed=seed))
  layout = structures.FlatLayout(tff.TensorType(np.float32, [d]))

  @tf.function(autograph=False)
  def release(state, vectors, repeat):
    root = keys.fresh() if seed is None else keys.derive(
        structures.initial_key(seed, _CLIENT_KEYS), repeat)

    def step(i, total):
      contribution, _ = factory.contribute(vectors[i], keys.derive(root, i), state)
      return i + 1, factory.add(total, contribution)

    _, total = tf.while_loop(lambda i, _: i < n, step, (tf.constant(0), factory.zero(d)),
                             parallel_iterations=1)
    state, vector, _ = factory.server_step(state, total, tf.constant(n, tf.int32), layout)
    return state, vector / n

  state = factory.initial_state()
  # Each setting has its own graph, on purpose: TensorFlow warns of many.
  return state, release.get_concrete_function(
      state, tf.TensorSpec([n, d], tf.float32), tf.TensorSpec([], tf.int32))


def estimate(settings: MeanSettings, cell: plan_lib.Cell) -> report.Row:
  """Executes all repeats of a setting and measures its errors.

  Returns a row of results. Errors are of the mean, in model units: mse is per
  coordinate and squared, l2_error the norm of the whole error.
  """
  start, params = time.monotonic(), cell.plan.params
  state, release = _release(settings, cell)
  errors, norms, mean_squares = [], [], []
  for repeat in range(settings.repeats):
    vectors = mean_estimation.clients(
        num_clients=cell.n, dimension=cell.d, radius=settings.clip,
        seed=settings.data_seed, repeat=repeat, vectors=settings.vectors)
    state, mean = release(state, tf.constant(vectors), tf.constant(repeat, tf.int32))
    truth = vectors.mean(axis=0, dtype=np.float64)
    error = mean.numpy().astype(np.float64) - truth
    errors.append(float(np.mean(error**2)))
    norms.append(float(np.linalg.norm(error)))
    mean_squares.append(float(np.mean(truth**2)))
  mse, mse_low, mse_high = report.interval(errors)
  l2_error, l2_low, l2_high = report.interval(norms)
  return {
      **dict(zip(KEY, cell.key)), 'delta': settings.delta, 'accountant': cell.accountant,
      'noise_multiplier': cell.plan.mechanism.noise_multiplier,
      'scale': params and params.scale,
      'local_stddev_grid': params and params.local_stddev_grid,
      'dimension_padded': params and params.padded_dimension,
      'degenerate': params and params.degeneracy(), 'repeats': settings.repeats,
      'mse': mse, 'mse_low': mse_low, 'mse_high': mse_high, 'l2_error': l2_error,
      'l2_low': l2_low, 'l2_high': l2_high, 'noise_mse': cell.noise_mse,
      'predicted_mse': cell.predicted_mse(float(np.mean(mean_squares))),
      'gaussian_mse': cell.gaussian_mse, 'gaussian_rdp_mse': cell.gaussian_rdp_mse,
      'ratio_to_gaussian': mse / cell.gaussian_mse,
      'ratio_to_gaussian_rdp': mse / cell.gaussian_rdp_mse,
      'seconds': time.monotonic() - start, report.OF_REPEATS: errors}


class Sweep(rounds_lib.ChargedRounds):
  """A charged step for each setting of this sweep that has no row yet.

  Attributes:
    cells, caveats: The settings of this sweep, by key, and their caveats.
    rows: Those that charges have kept, by key.
    steps: The events of the ledger, followed by those of the remaining settings.
  """

  unit = 'setting'

  def __init__(self, settings: MeanSettings, folder: pathlib.Path):
    cells, self.caveats = plan_lib.cells(settings)
    self.cells, self._settings = {cell.key: cell for cell in cells}, settings
    self.total = len(self.cells)
    self.rows: dict[tuple, report.Row] = {}
    ledger, charged = ledger_lib.Ledger(folder / files.LEDGER), []
    if ledger.path.exists():
      ledger.drop_torn()
      charged = [events.from_json(line['event']) for line in ledger.lines()]
      paths = sorted((folder / _KEPT_AS).parent.glob('[0-9]*.npz'))
      self._take_over(filter(None, map(charged_records.kept_arrays, paths)))
    self.steps = (*charged, *map(self._event, self._remaining()))

  def _take_over(self, kept: Iterable[Mapping[str, np.ndarray]]) -> None:
    rows = [json.loads(str(arrays[_ROW])) for arrays in kept]
    self.rows.update((report.key(row), row) for row in rows)

  def _remaining(self) -> list[tuple]:
    return [key for key in self.cells if key not in self.rows]

  def _event(self, key: tuple) -> base.Event:
    """Returns the event of all data sets of a setting."""
    return events.SelfComposed(
        event=self.cells[key].plan.event(1), count=self._settings.repeats)

  def restore(self, lines, kept) -> None:
    # Steps are kept one after another: the rows of the first are known.
    self._take_over(step.arrays for step in kept[len(self.rows):])

  def next_event(self) -> base.Event | None:
    return next(map(self._event, self._remaining()), None)

  def draw(self, line) -> dict[str, np.ndarray]:
    row = estimate(self._settings, self.cells[self._remaining()[0]])
    return {_ROW: np.array(json.dumps(row, allow_nan=False))}

  def done(self) -> int:
    return self.total - len(self._remaining())


class MeanExperiment(run_lib.Experiment):
  """A sweep of mean estimations; a folder can have the settings of several."""

  family = 'estimate_mean'
  kept_as = _KEPT_AS
  settings: MeanSettings

  def folder_words(self) -> tuple[str, ...]:
    return ('mean-estimation',)

  def targets(self) -> dict[str, float]:
    return {}  # Each setting has one of its own, and is calibrated at each start.

  def build_task(self) -> Sweep:
    return Sweep(self.settings, self.folder)

  def build_plan(self, task, recorded) -> plan_lib.MeanPlan:
    settings = self.settings
    return plan_lib.MeanPlan(
        steps=task.steps, cells=tuple(task.cells.values()),
        mechanisms=tuple(dict.fromkeys(key[0] for key in (*task.rows, *task.cells))),
        caveats=tuple(task.caveats),
        delta=settings.delta, seed=settings.seed, accountant=settings.accountant)

  def planned_rounds(self, plan) -> int:
    return len(plan.steps)

  def describe(self, task, plan) -> report_lib.Description:
    return report.describe(self.settings, plan)

  def run_line(self, plan, rounds: int) -> str:
    return (f'{rounds} settings of {self.settings.repeats} releases each, without '
            'sampling')

  def build_rounds(self, task, plan) -> Sweep:
    return task

  def outcome(self, task, plan, rounds, records) -> report_lib.Outcome:
    return report.outcome(self.folder, self.settings, plan, rounds.rows)
