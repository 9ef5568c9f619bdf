"""Recurrent models that predict the next token, as pure functions of weights.

An example is one row of tokens, 'tokens' [length + 1]: the model reads all but the
last and predicts all but the first. Rows are padded at their end, and since a
recurrent layer looks back only, what it makes of padding reaches no token that
counts: there is no mask inside.
"""

import dataclasses
from typing import Mapping, Sequence

import numpy as np
import tensorflow as tf

from tasks.models import layers
from tasks.models import lstm
from tasks import task
from tasks.text import tokens as text_tokens


@dataclasses.dataclass(frozen=True, kw_only=True)
class Network:
  """Embedding, LSTM layers, logits of every token.

  Attributes:
    tokens: Number of tokens, special ones included.
    embedding: Width of the embedding.
    units: Of each LSTM layer.
    projected: Whether each LSTM layer is followed by a dense layer as wide as the
      embedding, as in TFF's model of words.
    tied: Whether the logits are products with the embedding instead of a dense
      layer of their own; needs `projected`.
    he_normal: Whether input kernels start by He's distribution rather than Glorot's.
    embedding_limit: The embedding starts uniform in +- this; Keras' is 0.05. With
      1, a model learns in half as many rounds what comes after a few letters.
  """

  tokens: int
  embedding: int
  units: Sequence[int]
  projected: bool = False
  tied: bool = False
  he_normal: bool = False
  embedding_limit: float = 0.05

  def initial_weights(self, seed: int) -> list[np.ndarray]:
    """Initial weights as in Keras: embedding, layers from input to output, logits."""
    rng = np.random.default_rng(seed)
    kernel = layers.he_normal if self.he_normal else layers.glorot_uniform
    weights = [layers.uniform(
        rng, self.tokens, self.embedding, limit=self.embedding_limit)]
    width = self.embedding
    for units in self.units:
      weights += lstm.initial_weights(kernel(rng, width, 4 * units), rng)
      width = units
      if self.projected:
        width = self.embedding
        weights += layers.layer_weights(rng, (units, width))
    if not self.tied:
      weights.append(layers.glorot_uniform(rng, width, self.tokens))
    return [*weights, layers.zeros(self.tokens)]

  def logits(self, weights: task.Weights, tokens: tf.Tensor,
             positions: tf.Tensor) -> tf.Tensor:
    """Logits of the tokens that follow.

    Args:
      weights: As `initial_weights`.
      tokens: Integers [batch, steps]; steps is known.
      positions: Integers [positions] in [0, batch * steps): after which tokens logits
        are wanted. Those after padding would be most of the work.

    Returns:
      float32 [positions, self.tokens].
    """
    table, *rest = weights
    x = tf.gather(table, tokens)
    for _ in self.units:
      kernel, recurrent, bias, *rest = rest
      x = lstm.lstm(x, kernel, recurrent, bias)
      if self.projected:
        kernel, bias, *rest = rest
        x = layers.dense(_rows(x), kernel, bias)
        x = tf.reshape(x, [-1, tokens.shape[1], self.embedding])
    x = tf.gather(_rows(x), positions)
    if self.tied:
      bias, = rest
      return tf.matmul(x, table, transpose_b=True) + bias
    return layers.dense(x, *rest)


def _rows(x: tf.Tensor) -> tf.Tensor:
  """[batch, steps, width] to [batch * steps, width]: one matrix product."""
  return tf.reshape(x, [-1, x.shape[2]])


def next_token_model(name: str, network: Network, special: text_tokens.Special, *,
                     kind: str, names: Sequence[str], confusion: bool = False,
                     groups: Mapping[str, Sequence[int]] | None = None) -> task.Model:
  """Builds the Model of a network.

  The loss of an example is the sum over its tokens except padding, divided by the
  constant length of a row: every token weighs the same, in short rows and long ones.
  Of the metrics, 'accuracy' is over tokens of the vocabulary proper, and
  'accuracy_all_tokens' over all except padding; so is 'loss', per token.

  Args:
    name: As given to --model.
    network: The network.
    special: The tokens that are not in the vocabulary proper.
    kind: What a token is, for the report.
    names: Of the tokens, special ones included.
    confusion: Whether the report has the confusion matrix, of network.tokens^2
      entries.
    groups: See task.Breakdown.
  """

  def read(weights, batch):
    """Logits, targets and positions of all targets except padding."""
    tokens = tf.cast(batch['tokens'], tf.int32)
    targets = tf.reshape(tokens[:, 1:], [-1])
    positions = tf.where(tf.not_equal(targets, special.padding))[:, 0]
    return (network.logits(weights, tokens[:, :-1], positions),
            tf.gather(targets, positions), positions)

  def loss(weights, batch, seed):
    del seed
    logits, targets, positions = read(weights, batch)
    rows, length = tf.shape(batch['tokens'])[0], batch['tokens'].shape[1] - 1
    losses = tf.scatter_nd(
        positions[:, tf.newaxis], layers.softmax_cross_entropy(logits, targets),
        tf.cast([rows * length], tf.int64))
    return tf.reduce_mean(tf.reshape(losses, [rows, length]), axis=1)

  def masked(weights, batch, mask):
    """Logits, targets, and masks of all targets and of the vocabulary proper."""
    logits, targets, positions = read(weights, batch)
    every = tf.gather(tf.repeat(mask, batch['tokens'].shape[1] - 1), positions)
    proper = every * tf.cast(special.is_proper(targets), tf.float32)
    return logits, targets, every, proper

  def metrics(weights, batch, mask):
    logits, targets, every, proper = masked(weights, batch, mask)
    of_all = layers.classification_metrics(logits, targets, every)
    of_proper = layers.classification_metrics(logits, targets, proper)
    return {'accuracy': of_proper['accuracy'], 'loss': of_all['loss'],
            'accuracy_all_tokens': of_all['accuracy']}

  def count(weights, batch, mask):
    logits, targets, _, proper = masked(weights, batch, mask)
    return layers.class_counts(logits, targets, proper, confusion=confusion)

  return task.Model(
      name=name, initial_weights=network.initial_weights, loss=loss,
      metrics=metrics, evaluation_batch=128,
      breakdown=task.Breakdown(
          kind=kind, names=names, count=count, groups=groups or {}))
