"""Trains a Keras model of one's own on one's own clients, from Python.

  python -m examples.own_keras_model
"""

import pathlib
import tempfile

import numpy as np
from sklearn import datasets
import tensorflow as tf

from tasks.sources.records import ArraysByClient
from tasks.task import Model
from tasks.task import Task
from tff_pipelines import api

CLIENTS = 150


def network() -> tf.keras.Model:
  return tf.keras.Sequential([
      tf.keras.Input([8, 8, 1]),
      tf.keras.layers.Conv2D(8, 3, activation='relu'), tf.keras.layers.Flatten(),
      tf.keras.layers.Dropout(0.2), tf.keras.layers.Dense(10)])


def task() -> Task:
  """Digits of 8 x 8, ten of each client; the last 297 are held out."""
  digits = datasets.load_digits()
  x = (digits.images[..., np.newaxis] / 16).astype(np.float32)
  y = digits.target.astype(np.int32)
  rows = slice(0, 10 * CLIENTS)
  return Task(
      name='small_digits', privacy_unit='one simulated client with ten digits',
      model=Model.from_keras(
          network, tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)),
      train=ArraysByClient(
          {'x': x[rows], 'y': y[rows]}, np.arange(10 * CLIENTS) // 10),
      held_out={'test': {'x': x[10 * CLIENTS:], 'y': y[10 * CLIENTS:]}})


def main(rounds: int = 40) -> api.Result:
  """Trains, prints and returns the result."""
  with tempfile.TemporaryDirectory() as folder:
    result = api.train(api.TrainSettings(
        task=task(), epsilon=8, rounds=rounds, cohort_size=75, client_batch_size=10,
        output_dir=str(pathlib.Path(folder) / 'run')))
    print(result.guarantee.lines()[0])
    print(result.metrics[['round', 'epsilon', 'test/accuracy']].tail(3))
  return result


if __name__ == '__main__':
  main()
