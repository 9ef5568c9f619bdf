"""A task of one's own with a model from Keras, as docs/models.md has it."""

import numpy as np
import tensorflow as tf

from tasks.sources.records import ArraysByClient
from tasks.task import Model, Task


def network() -> tf.keras.Model:
  return tf.keras.Sequential([
      tf.keras.Input([4]), tf.keras.layers.Dense(8, activation='relu'),
      tf.keras.layers.Dropout(0.25), tf.keras.layers.Dense(3)])


def examples(count: int, seed: int) -> dict[str, np.ndarray]:
  rng = np.random.default_rng(seed)
  y = rng.integers(3, size=count).astype(np.int32)
  x = rng.normal(size=(count, 4)) + 3 * np.eye(3, 4)[y]
  return {'x': x.astype(np.float32), 'y': y}


def build(*, num_clients: int = 8) -> Task:
  return Task(
      name='blobs', privacy_unit='one simulated person', model=Model.from_keras(
          network, tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
          class_names=('left', 'middle', 'right')),
      train=ArraysByClient(
          examples(5 * num_clients, seed=1), np.arange(5 * num_clients) // 5),
      held_out={'test_clients': examples(200, seed=2)})
