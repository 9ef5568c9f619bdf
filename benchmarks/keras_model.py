"""Speed of a model from Keras, against the same network of ours.

  python -m benchmarks.keras_model [--quick] [--json=FILE] [--repeats=N]

Milliseconds a client of a round without privacy, whose time is that of local training:
`cnn_small` and the same network from `Model.from_keras`, alternately, with the same
initial weights and the same synthetic clients. The weights after a round agree up to
the order of float sums.
"""

import argparse
import collections
from collections.abc import Sequence
import os

import numpy as np
import tensorflow as tf

from aggregators.plain_sum import PlainSumFactory
from benchmarks import measure
from tasks import task as task_lib
from tasks.models import classifiers
from tff_pipelines.fedavg import local_training, process as process_lib
from tff_pipelines.fedavg.server_optimizer import ServerConfig
from tff_pipelines.simulation import contexts

CLASSES, BATCH, SEED = 10, 20, 0
# Largest ratio of the time with Keras' model to that with ours.
TARGET = 1.3


def build_cnn() -> tf.keras.Model:
  """The network of `classifiers.cnn_small` on 28 x 28 images."""
  keras = tf.keras.layers
  return tf.keras.Sequential([
      tf.keras.Input([28, 28, 1]), keras.Rescaling(1 / 255),
      keras.Conv2D(8, 7, activation='relu'), keras.MaxPooling2D(),
      keras.Conv2D(24, 4, activation='relu'), keras.MaxPooling2D(),
      keras.Flatten(), keras.Dense(CLASSES)])


def models() -> dict[str, task_lib.Model]:
  """Name -> model, of the same network."""
  return {
      'ours': classifiers.cnn_small((28, 28), CLASSES).as_model(),
      'keras': task_lib.Model.from_keras(
          build_cnn, tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))}


class Round:
  """Rounds of a model, all with the same clients."""

  def __init__(self, model: task_lib.Model, initial: list[np.ndarray], clients: int,
               examples: int):
    rng = np.random.default_rng(0)
    values = [
        collections.OrderedDict(examples=collections.OrderedDict(
            x=rng.integers(0, 256, [examples, 28, 28]).astype(np.uint8),
            y=rng.integers(0, CLASSES, [examples]).astype(np.int32)),
                                key=contexts.client_key(SEED, 1, client))
        for client in range(clients)]
    calls = min(clients, os.cpu_count() or 1)
    self._chunks = [process_lib.make_chunk(values[i::calls]) for i in range(calls)]
    self._process = process_lib.build_chunked(
        local_training.client_update(model.loss, local_training.LocalConfig(
            learning_rate=0.05, batch_size=BATCH, epochs=1)),
        {'x': (np.uint8, (28, 28)), 'y': (np.int32, ())}, initial_weights=initial,
        sum_factory=PlainSumFactory(simulation_seed=SEED), expected_cohort_size=clients,
        server=ServerConfig(learning_rate=1.0))
    self._initial = self._process.initialize()

  def __call__(self) -> list[np.ndarray]:
    """Weights after the first round."""
    return list(self._process.next(self._initial, self._chunks)['state']['weights'])


def measured(clients: int, examples: int, repeats: int) -> list[measure.Row]:
  """Rows of the comparison, in wall and in processor time."""
  with contexts.simulation():
    known = models()
    initial = known['ours'].initial_weights(0)
    rounds = {name: Round(model, initial, clients, examples)
              for name, model in known.items()}
    for one, other in zip(rounds['ours'](), rounds['keras']()):
      np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    times = measure.in_turns(rounds, repeats)
  # Inverted: the ratio is to be small.
  return [
      measure.Row(name='cnn_small, from Keras', sizes=f'{clients} x {examples}',
                  ours=times['ours'].medians()[i] / clients * 1e3,
                  peer=times['keras'].medians()[i] / clients * 1e3, unit=unit,
                  target=TARGET, smaller_is_met=True)
      for i, unit in enumerate(('ms/client', 'cpu-ms/client'))]


def main(arguments: Sequence[str] | None = None) -> None:
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--quick', action='store_true', help='a run of seconds')
  parser.add_argument('--json', help='file of the rows')
  parser.add_argument('--repeats', type=int, help='rounds of each; default: 15, 2')
  flags = parser.parse_args(arguments)
  measure.heading()
  rows = measured(*((4, 20) if flags.quick else (100, 100)),
                  flags.repeats or (2 if flags.quick else 15))
  for row in rows:
    measure.show(row)
  measure.write(rows, flags.json)


if __name__ == '__main__':
  main()
