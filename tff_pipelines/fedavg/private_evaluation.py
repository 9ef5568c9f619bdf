"""Metrics of training clients' held-out examples, released with noise after training.

Each client contributes its own metrics, means over its held-out examples, clipped to
[0, 1], on an integer grid, and whether it has any. A client is evaluated alone, so its
integers depend on its own examples and the released model only. The sums over all
clients of the population get exact discrete Gaussian noise; the quotients estimate the
mean over the clients that have held-out examples, each of the same weight however many
examples it has. Where records or persons of silos are protected, each of them
contributes instead. **The noise of that release is added here.**
"""

from collections.abc import Callable, Mapping, Sequence
import functools
import json
import math
from typing import Any

import numpy as np
import tensorflow as tf

from tasks import task as task_lib
from tasks.sources import records
from tff_pipelines.accounting.events import base, preliminary as preliminary_lib
from tff_pipelines.accounting.guarantees import release_noise
from tff_pipelines.fedavg import evaluation, preliminary
from tff_pipelines.simulation import failures

# The held-out set, and the file that keeps the noised sums.
SET, FILE = 'test_examples', 'private_evaluation.json'
# A purpose of the simulation seed.
_PURPOSE = 3
# The number of clients must be so many standard deviations of its noise at least.
_LEAST = 3.0
_UNITS = preliminary_lib.UNITS


def metric_names(task: task_lib.Task) -> tuple[str, ...]:
  """Names of the metrics to release, which follow from the model alone.

  Raises ValueError if the task does not know its clients' held-out examples, or its
  model has no metric in [0, 1].
  """
  if task.held_out_of_clients is None:
    raise ValueError('private_evaluation needs held-out examples by training client, '
                     f'task={task.name} has {", ".join(task.held_out) or "none"}')
  nothing = {name: tf.zeros((1, *shape), dtype)
             for name, (dtype, shape) in task.train.element_spec.items()}
  weights = [tf.constant(array) for array in task.model.initial_weights(0)]
  known = task.model.metrics(weights, nothing, tf.zeros([1]))
  names = tuple(name for name in task.model.fractions if name in known)
  if not names:
    raise ValueError('private_evaluation needs a metric in [0, 1] among the fractions '
                     f'of the model {task.model.name}, found {", ".join(known)}')
  return names


def contribution(values: np.ndarray) -> np.ndarray:
  """A client's integers, int64 [metrics + 1] within +-UNITS, the last one UNITS.

  Its metrics, float64, are clipped to [0, 1]. If one is not finite, as all are of a
  client without held-out examples, all integers are 0.
  """
  if not np.all(np.isfinite(values)):
    return np.zeros(len(values) + 1, np.int64)
  signed = 2 * np.clip(values, 0.0, 1.0) - 1
  return np.append(np.rint(_UNITS * signed), _UNITS).astype(np.int64)


def _by_unit(metrics: Callable, names: Sequence[str], unit: str) -> Callable:
  """(weights, examples) -> metric -> [sum, weight] of each unit, float64 [2, units].

  Records are evaluated one by one: in a batch others may move the last bits of one.
  """
  @tf.function(autograph=False, reduce_retracing=True)
  def of_each(weights, examples):
    def of_one(example):
      found = metrics(weights, {key: x[tf.newaxis] for key, x in example.items()},
                      tf.ones([1]))
      return {name: tf.stack([tf.cast(x, tf.float64) for x in found[name]])
              for name in names}

    return tf.map_fn(of_one, examples, fn_output_signature=dict.fromkeys(
        names, tf.TensorSpec([2], tf.float64)))

  def sums(weights, examples):
    count = len(next(iter(examples.values())))
    units = (np.unique(examples[records.PERSON], return_inverse=True)[1]
             if unit == 'person' else np.arange(count))
    result = {name: np.zeros([max(units, default=-1) + 1, 2]) for name in names}
    if count:
      for name, values in of_each(weights, examples).items():
        np.add.at(result[name], units, values.numpy())
    return {name: total.T for name, total in result.items()}

  return sums


def totals(task: task_lib.Task, weights: Sequence[np.ndarray], names: Sequence[str],
           on_bad: Callable[[str, Exception], None] = lambda client, error: None,
           unit: str = 'client') -> np.ndarray:
  """The sums of all units' integers, without noise: private; int64 [metrics + 1].

  Args:
    task: Task whose `held_out_of_clients` is not None.
    weights: The released model.
    names: Names of the metrics.
    on_bad: Called with each client whose held-out examples are bad, which contributes
      zeros: reading or evaluating them is an error.
    unit: Who contributes, 'client', 'record' or 'person'.

  Raises ComputationError if those of all of several clients are bad, or of one if
  records or persons contribute: one of them may have made all others' bad.
  """
  source, weights = task.held_out_of_clients, [tf.constant(a) for a in weights]
  result, known = np.zeros(len(names) + 1, np.int64), set(source.client_ids)
  clients, bad = [c for c in task.train.client_ids if c in known], {}
  metrics = evaluation.in_graph(task.model.metrics)
  if unit == 'client':
    # Few shapes, since each is traced.
    sums_of = lambda examples: {
        name: np.reshape(value, [2, 1]) for name, value in evaluation.sums(
            metrics, weights, examples, task.model.evaluation_batch,
            lambda rows: 1 << (rows - 1).bit_length()).items()}
  else:
    sums_of = functools.partial(_by_unit(task.model.metrics, names, unit), weights)
  for client in clients:
    try:
      sums = sums_of(source.examples(client))
      for row in zip(*(zip(*sums.get(name, [[0.0], [0.0]])) for name in names)):
        result += contribution(np.array([evaluation.quotient(*one) for one in row]))
    except Exception as error:  # pylint: disable=broad-exception-caught
      if unit != 'client':
        raise failures.ComputationError.of(error)
      bad[client] = error
      on_bad(client, error)
  if len(bad) == len(clients) > 1:
    raise failures.ComputationError.of(bad[clients[0]])
  return result


def draw(task: task_lib.Task, weights: Sequence[np.ndarray], event: base.Event,
         seed: int | None, unit: str = 'client', **reading: Any) -> str:
  """Draws the release, which was charged: the content of FILE.

  Arguments are as for `totals`; `event` is that of the release, ValueError for another.
  Without a simulation seed the operating system's randomness is used.
  """
  release, names = release_noise.release_of(event), metric_names(task)
  sums = totals(task, weights, names, unit=unit, **reading)
  if len(sums) != release.dimension or (
      release.l2_sensitivity < _UNITS * math.sqrt(len(sums)) * (1 - 1e-12)):
    raise ValueError('the release is not the one that was charged')
  noisy = sums + preliminary.noise(seed, _PURPOSE, len(sums), release.noise_variance)
  *noisy, clients = noisy.tolist()
  return json.dumps({'units': _UNITS, 'unit': unit, 'clients': clients,
                     'sums': dict(zip(names, noisy, strict=True))}, indent=2) + '\n'


def read(text: str, event: base.Event) -> dict[str, Any]:
  """Reads a release into the form of the summary.

  Returns:
    `of`, the held-out set; `clients` with held-out examples, or records or persons as
    `unit` says, and `metrics` by name, the mean over these: each `value` with the
    standard deviation `stddev` of its noise. Those of a quotient are to first order;
    both are None if the number of clients is too small for its noise.
  """
  release = json.loads(text)
  units, clients = release['units'], release['clients']
  stddev = math.sqrt(release_noise.release_of(event).noise_variance)
  return {'of': SET, 'unit': release['unit'],
          'clients': {'value': clients / units, 'stddev': stddev / units},
          'metrics': {name: _quotient(total, clients, stddev)
                      for name, total in release['sums'].items()}}


def _quotient(total: int, clients: int, stddev: float) -> dict[str, float | None]:
  """The metric of two noised sums, and the standard deviation of its noise."""
  if clients < _LEAST * stddev:
    return {'value': None, 'stddev': None}
  signed = min(1.0, max(-1.0, total / clients))
  return {'value': (1 + signed) / 2,
          'stddev': stddev / (2 * clients) * math.sqrt(1 + signed**2)}


def in_words(released: Mapping[str, Any]) -> str:
  """The release in one line."""
  clients = released['clients']
  return (f'{SET}: ' + ', '.join(
      f'{name} ' + ('hidden by the noise' if entry['value'] is None else
                    f'{entry["value"]:.4f} (noise {entry["stddev"]:.2g})')
      for name, entry in released['metrics'].items()) +
          f', mean over about {max(0.0, clients["value"]):.0f} {released["unit"]}s (noise '
          f'{clients["stddev"]:.2g})')
