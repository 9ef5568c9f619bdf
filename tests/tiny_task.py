"""A task so small that a round takes milliseconds: softmax on four features."""

import numpy as np
import tensorflow as tf

from tasks import task as task_lib
from tasks.models import layers
from tasks.sources import records

FEATURES, CLASSES = 4, 3
DIMENSION = FEATURES * CLASSES + CLASSES


def initial_weights(seed: int) -> list[np.ndarray]:
  rng = np.random.default_rng(seed)
  return [rng.normal(size=(FEATURES, CLASSES)).astype(np.float32),
          rng.normal(size=CLASSES).astype(np.float32)]


def _logits(weights, x):
  return tf.matmul(x, weights[0]) + weights[1]


def loss(weights, batch, seed):
  del seed
  return layers.softmax_cross_entropy(_logits(weights, batch['x']), batch['y'])


def metrics(weights, batch, mask):
  return layers.classification_metrics(_logits(weights, batch['x']), batch['y'], mask)


def predict(weights, batch):
  return layers.classification_outputs(_logits(weights, batch['x']))


MODEL = task_lib.Model(
    name='softmax', initial_weights=initial_weights, loss=loss, metrics=metrics,
    predict=predict, weight_names=('output/kernel', 'output/bias'))


def examples(count: int, seed: int) -> dict[str, np.ndarray]:
  """Examples of classes that the features tell apart."""
  rng = np.random.default_rng(seed)
  y = rng.integers(CLASSES, size=count).astype(np.int32)
  x = rng.normal(size=(count, FEATURES)) + 2 * np.eye(CLASSES, FEATURES)[y]
  return {'x': x.astype(np.float32), 'y': y}


def task(num_clients: int = 8, examples_per_client: int = 5) -> task_lib.Task:
  """The task; clients have equally many examples."""
  count = num_clients * examples_per_client
  return task_lib.Task(
      name='tiny', model=MODEL, train=records.ArraysByClient(
          examples(count, 1), np.repeat(np.arange(num_clients), examples_per_client)),
      held_out={'test_clients': examples(700, 2), 'test_examples': examples(9, 3)},
      privacy_unit='one client')
