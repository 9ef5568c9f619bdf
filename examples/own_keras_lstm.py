"""Trains an LSTM from Keras on the tags of posts, whose reader is the project's.

  python -m examples.own_keras_lstm      # speeches that ship
  python -m tff_pipelines.train --task=examples.own_keras_lstm:build \\
      --data_source=jsonl --data_path=posts.jsonl --cohort_size=200
"""

import dataclasses
import pathlib
import tempfile

import tensorflow as tf

from tasks.task import Model
from tasks.task import Task
from tasks.text import stackoverflow_tag
from tff_pipelines import api

WORDS, STEPS, TAGS = 1_000, 32, 50


def network() -> tf.keras.Model:
  """Logits of the tags, from the numbers of a post's first words, padded with 0."""
  keras = tf.keras.layers
  words = tf.keras.Input([stackoverflow_tag.MAX_WORDS])
  x = keras.Embedding(
      WORDS + 1, 32, tf.keras.initializers.RandomUniform(-1, 1),
      mask_zero=True)(words[:, :STEPS])
  x = keras.GlobalAveragePooling1D()(keras.LSTM(64, return_sequences=True)(x))
  return tf.keras.Model(
      words, keras.Dense(TAGS, bias_initializer=tf.constant_initializer(-4))(x))


def loss(y: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
  """The sum of the tags' binary cross-entropies; y are their numbers from 1 on."""
  truth = tf.reduce_sum(tf.one_hot(y - 1, TAGS), axis=1)
  return tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(truth, logits), axis=1)


def recall_at_5(y: tf.Tensor, logits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """How many tags of each post are among the likeliest five, and how many it has."""
  first = tf.math.top_k(logits, 5).indices[:, tf.newaxis] + 1
  found = tf.equal(y[..., tf.newaxis], first)
  return tf.math.count_nonzero(found, [1, 2]), tf.math.count_nonzero(y, 1)


def build(*, data_source: str | None = None, data_path: str | None = None,
          max_examples_per_client: int | None = None,
          max_test_examples: int = 1000) -> Task:
  """The task of the project with another model; data and readers are the same."""
  of_files = {'data_path': data_path} if data_path else {}
  return dataclasses.replace(
      stackoverflow_tag.build(
          vocabulary_size=WORDS, num_labels=TAGS, data_source=data_source,
          max_examples_per_client=max_examples_per_client,
          max_test_examples=max_test_examples, **of_files),
      name='tags_lstm', model=Model.from_keras(
          network, loss, [recall_at_5], name='lstm', headline='recall_at_5'))


def main(rounds: int = 20) -> api.Result:
  """Trains, prints and returns the result."""
  with tempfile.TemporaryDirectory() as folder:
    result = api.train(api.TrainSettings(
        task=build(), epsilon=8, rounds=rounds, cohort_size=50, clip=1.0,
        output_dir=str(pathlib.Path(folder) / 'run')))
    print(result.guarantee.lines()[0])
    print(result.metrics[['round', 'epsilon', 'test/recall_at_5']].tail(3))
  return result


if __name__ == '__main__':
  main()
