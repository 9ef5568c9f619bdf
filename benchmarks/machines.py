"""Speed of rounds in slices: worker processes against one, and against this process.

  python -m benchmarks.machines [--quick] [--json=FILE] [--repeats=N]

Rounds of `cnn_small` under distributed Skellam noise, whose clients are read from an
SQLite file where they train. At cohorts of 10 to 10,000: milliseconds a client, fixed
cost and bytes sent. At 1,000, alternately: two local workers, one local worker of one
thread, this process, and TFF's own federated averaging, without privacy, in TFF's
worker.
"""

import argparse
from collections.abc import Sequence
import contextlib
import os
import pathlib
import tempfile

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from aggregators.distributed_sum import DistributedSumFactory
from aggregators.params import DistributedSumParams
from benchmarks import keras_model, measure, sources, tff_worker
from tasks import task as task_lib
from tasks.models import classifiers
from tasks.sources import sqlite
from tff_pipelines.fedavg import local_training, loop, process as process_lib
from tff_pipelines.fedavg.server_optimizer import ServerConfig
from tff_pipelines.simulation import contexts, local_processes, slices

EXAMPLES, CLASSES, BATCH, LEARNING_RATE = 20, 10, 20, 0.05
COHORTS, COMPARED = (10, 100, 1000, 10_000), 1000
# Time of two workers over that of one, at most, and fixed cost of a round in ms.
TARGET, FIXED_TARGET = 0.75, 100


def write_clients(path: pathlib.Path, count: int) -> task_lib.Task:
  """A task of clients with random images, in an SQLite file."""
  sources.write(path, count, bytes_=count * EXAMPLES * 28 * 28)
  return task_lib.Task(
      name='images', model=classifiers.cnn_small((28, 28), CLASSES).as_model(),
      train=sqlite.SqliteSource(path, 'train'), held_out={}, privacy_unit='one client')


class Round:
  """A round of a cohort, as the trainer computes it, in a context."""

  def __init__(self, task: task_lib.Task, cohort: int, context):
    self._context, self._cohort = context, cohort
    initial = task.model.initial_weights(0)
    self._factory = DistributedSumFactory(DistributedSumParams(
        clip=0.1, noise_multiplier=0.5, bits=16, cohort_size=cohort,
        dimension=sum(w.size for w in initial)))
    self._process = process_lib.build_chunked(
        local_training.client_update(task.model.loss, local_training.LocalConfig(
            learning_rate=LEARNING_RATE, batch_size=BATCH, epochs=1)),
        task.train.element_spec, initial_weights=initial, sum_factory=self._factory,
        expected_cohort_size=cohort, server=ServerConfig(learning_rate=1.0),
        read_in_graph=loop.reader_in_graph(task))
    self._reader = loop.ClientReader(task, None, by_id=True)
    # The file has fewer clients than the largest cohort.
    self._clients = np.arange(cohort) % len(task.train.client_ids)
    with contexts.installed(context):
      self._state = self._process.initialize()

  def __call__(self) -> None:
    values = process_lib.grouped(
        [self._reader.read(int(client), 1) for client in self._clients],
        process_lib.clients_per_call(self._cohort))
    with contexts.installed(self._context):
      state = process_lib.set_cohort_size(self._state, self._cohort, self._factory)
      self._state = self._process.next(state, values)['state']


class TffRound:
  """A round of TFF's own federated averaging of the same network, without privacy."""

  def __init__(self, task: task_lib.Task, cohort: int, context):
    spec = (tf.TensorSpec([None, 28, 28, 1], tf.uint8), tf.TensorSpec([None], tf.int32))
    self._context = context
    self._process = tff.learning.algorithms.build_unweighted_fed_avg(
        lambda: tff.learning.models.from_keras_model(
            keras_model.build_cnn(), input_spec=spec,
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)),
        client_optimizer_fn=tff.learning.optimizers.build_sgdm(LEARNING_RATE))
    examples = map(task.train.examples, task.train.client_ids)
    clients = [tf.data.Dataset.from_tensor_slices(
        (c['x'][..., np.newaxis], c['y'])).batch(BATCH) for c in examples]
    self._clients = [clients[i % len(clients)] for i in range(cohort)]
    with contexts.installed(context):
      self._state = self._process.initialize()

  def __call__(self) -> None:
    with contexts.installed(self._context):
      self._state = self._process.next(self._state, self._clients).state


def by_cohort(task: task_lib.Task, cohorts: Sequence[int],
              repeats: int) -> list[measure.Row]:
  """Time, and bytes sent, of rounds by two local workers."""
  transport = local_processes.LocalProcesses(2, num_threads=1)
  context = slices.SubroundContext(transport, num_threads=os.cpu_count() or 1)
  rows, seconds = [], {}
  try:
    for cohort in cohorts:
      function = Round(task, cohort, context)
      for _ in range(2):
        function()
      sent = transport.bytes_sent
      times = measure.in_turns({'round': function}, repeats, warm_ups=0)['round']
      seconds[cohort] = times.medians()[0]
      rows += [
          measure.Row(name='two local workers', sizes=f'{cohort} clients',
                      ours=seconds[cohort] / cohort * 1e3, peer=None,
                      unit='ms/client'),
          measure.Row(name='sent to two local workers', sizes=f'{cohort} clients',
                      ours=(transport.bytes_sent - sent) / repeats / 1e6, peer=None,
                      unit='MB/round')]
  finally:
    context.close()
  # Time of a round without clients, by a line through two cohorts.
  few, many = cohorts[0], cohorts[min(2, len(cohorts) - 1)]
  slope = (seconds[many] - seconds[few]) / (many - few)
  fixed = (seconds[few] - few * slope) * 1e3
  rows.append(measure.Row(name='fixed cost', sizes=f'from {few} and {many} clients',
                          ours=fixed, peer=FIXED_TARGET, unit='ms/round', target=1.0))
  return rows


def compared(task: task_lib.Task, cohort: int, repeats: int) -> list[measure.Row]:
  """Two local workers against one, this process and TFF's own, alternately."""
  with contextlib.ExitStack() as stack:

    def sliced(workers):
      context = slices.SubroundContext(local_processes.LocalProcesses(
          workers, num_threads=1), num_threads=os.cpu_count() or 1)
      stack.callback(context.close)
      return context

    functions = {
        'two': Round(task, cohort, sliced(2)), 'one': Round(task, cohort, sliced(1)),
        'here': Round(task, cohort, stack.enter_context(contexts.started())),
        'tff': TffRound(task, cohort, stack.enter_context(tff_worker.started()))}
    times = measure.in_turns(functions, repeats)
  ms = {name: of.medians()[0] / cohort * 1e3 for name, of in times.items()}
  size, unit = f'{cohort} clients', 'ms/client'
  return [
      measure.Row(name='two local workers, over one', sizes=size, ours=ms['one'],
                  peer=ms['two'], unit=unit, target=TARGET, smaller_is_met=True),
      measure.Row(name='two local workers, over this process', sizes=size,
                  ours=ms['here'], peer=ms['two'], unit=unit),
      measure.Row(name='two local workers, TFF without privacy', sizes=size,
                  ours=ms['two'], peer=ms['tff'], unit=unit),
      measure.Row(name='this process, TFF without privacy', sizes=size,
                  ours=ms['here'], peer=ms['tff'], unit=unit)]


def main(arguments: Sequence[str] | None = None) -> None:
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--quick', action='store_true', help='a run of seconds')
  parser.add_argument('--json', help='file of the rows')
  parser.add_argument('--repeats', type=int, help='rounds of each; default: 9, 1')
  flags = parser.parse_args(arguments)
  repeats = flags.repeats or (1 if flags.quick else 9)
  measure.heading()
  with tempfile.TemporaryDirectory() as folder:
    task = write_clients(
        pathlib.Path(folder, 'clients.sqlite'), 20 if flags.quick else COMPARED)
    rows = by_cohort(task, (10, 20) if flags.quick else COHORTS, repeats)
    if not flags.quick:
      rows += compared(task, COMPARED, repeats)
  for row in rows:
    measure.show(row)
  measure.write(rows, flags.json)


if __name__ == '__main__':
  main()
