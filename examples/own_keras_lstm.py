"""Trains an LSTM from Keras on the tags of posts, which the project's task reads.

  python -m examples.own_keras_lstm  # on text that ships
  python -m tff_pipelines.train --task=examples.own_keras_lstm:build \\
      --data_source=jsonl --data_path=posts.jsonl --cohort_size=200
"""

import dataclasses
import tempfile

import tensorflow as tf

from tasks import task
from tasks.text import stackoverflow_tag
from tff_pipelines import api

WORDS, STEPS, TAGS = 1_000, 32, 50


def network() -> tf.keras.Model:
  """Logits of the tags, from the numbers of a post's first words, padded with 0."""
  keras, initial = tf.keras.layers, tf.keras.initializers
  words = tf.keras.Input([stackoverflow_tag.MAX_WORDS])
  x = keras.Embedding(WORDS + 1, 32, initial.RandomUniform(-1, 1), mask_zero=True)(
      words[:, :STEPS])
  x = keras.GlobalAveragePooling1D()(keras.LSTM(64, return_sequences=True)(x))
  return tf.keras.Model(
      words, keras.Dense(TAGS, bias_initializer=initial.Constant(-4))(x))


def loss(y: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
  """The sum of the tags' binary cross-entropies; y are their numbers from 1 on."""
  truth = tf.reduce_sum(tf.one_hot(y - 1, TAGS), axis=1)
  return tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(truth, logits), axis=1)


def recall_at_5(y: tf.Tensor, logits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """How many tags of each post are among the likeliest five, and how many it has."""
  found = y[..., tf.newaxis] == tf.math.top_k(logits, 5).indices[:, tf.newaxis] + 1
  return tf.math.count_nonzero(found, [1, 2]), tf.math.count_nonzero(y, 1)


def build(*, data_source: str | None = None, data_path: str | None = None) -> task.Task:
  return dataclasses.replace(
      stackoverflow_tag.build(
          data_source=data_source, data_path=data_path, vocabulary_size=WORDS,
          num_labels=TAGS, max_test_examples=1000, max_examples_per_client=8),
      name='tags_lstm', model=task.Model.from_keras(
          network, loss, [recall_at_5], name='lstm', headline='recall_at_5'))


def main(rounds: int = 20) -> api.Result:
  return api.train(api.TrainSettings(
      task=build(), rounds=rounds, cohort_size=50, client_batch_size=8,
      output_dir=tempfile.mkdtemp(), verbose=True))


if __name__ == '__main__':
  main()
