"""Recurrent models that predict the next token, as pure functions of weights.

An example is one row of tokens, 'tokens' [length + 1]: the model reads all but the
last and predicts all but the first. Rows are padded at their end, and since a
recurrent layer looks back only, what it makes of padding reaches no token that
counts: there is no mask inside.

The layer has its own gradient. TensorFlow's own of a loop over time adds a matrix as
large as the weights at every step; here the parts of all steps are one product after
the loop, and so is the input's projection before it. On a client's few rows those
additions take most of the time.
"""

import dataclasses
from typing import Any, Sequence

import numpy as np
import tensorflow as tf

from tasks import task
from tasks.models import layers

# Maximum number of steps in the body of a loop: enough that the loop and its reads and
# writes, once a body, cost little, and few enough that the graph is small and built fast.
_MAX_UNROLLED = 10


class Special:
  """The special tokens around a vocabulary proper of a size, with the numbers of TFF.

  0 pads, 1 to `size` are the vocabulary proper, and the next three stand for what is not
  in it, for the beginning and for the end of a sentence. `count` is the number of all.
  """

  padding = 0

  def __init__(self, size: int):
    self.size = size
    self.out_of_vocabulary, self.begin, self.end, self.count = range(size + 1, size + 5)

  def is_proper(self, tokens: Any) -> Any:
    """Mask of the tokens (an array or a tensor) of the vocabulary proper."""
    return (tokens >= 1) & (tokens <= self.size)

  def names(self, words: Sequence[str]) -> tuple[str, ...]:
    """Names of all tokens; `words` are those of the vocabulary proper."""
    return ('<padding>', *words, '<unknown>', '<begin>', '<end>')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Network:
  """Embedding, LSTM layers, logits of every token.

  Attributes:
    tokens: Number of tokens, special ones included.
    embedding: Width of the embedding.
    units: Number of units of each LSTM layer.
    projected: Whether each LSTM layer is followed by a dense layer as wide as the
      embedding, as in TFF's model of words.
    tied: Whether the logits are products with the embedding instead of a dense layer of
      their own; needs `projected`.
    he_normal: Whether input kernels start by He's distribution rather than Glorot's.
    embedding_limit: The embedding starts uniform in +- this; Keras' is 0.05. With 1, a
      model learns in half as many rounds what comes after a few letters.
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
      weights += lstm_weights(kernel(rng, width, 4 * units), rng)
      width = units
      if self.projected:
        width = self.embedding
        weights += layers.layer_weights(rng, (units, width))
    if not self.tied:
      weights.append(layers.glorot_uniform(rng, width, self.tokens))
    return [*weights, layers.zeros(self.tokens)]

  @property
  def weight_names(self) -> tuple[str, ...]:
    """Names of the weights, in the order of `initial_weights`."""
    names = ['embedding']
    for i in range(len(self.units)):
      names += [f'lstm_{i}/{array}' for array in ('kernel', 'recurrent', 'bias')]
      if self.projected:
        names += [f'projection_{i}/kernel', f'projection_{i}/bias']
    return (*names, *([] if self.tied else ['output/kernel']), 'output/bias')

  def logits(self, weights: task.Weights, tokens: tf.Tensor,
             positions: tf.Tensor) -> tf.Tensor:
    """Logits of the tokens that follow, float32 [positions, self.tokens].

    Tokens are integers [batch, steps], steps known. `positions` are integers in [0,
    batch * steps): after which tokens logits are wanted. Those after padding would be
    most of the work.
    """
    table, *rest = weights
    x = tf.gather(table, tokens)
    for _ in self.units:
      kernel, recurrent, bias, *rest = rest
      x = lstm(x, kernel, recurrent, bias)
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


def next_token_model(name: str, network: Network, special: Special, *,
                     confusion: bool = False, **breakdown: Any) -> task.Model:
  """Builds the Model of a network.

  The loss of an example is the sum over its tokens except padding, divided by the
  constant length of a row: every token weighs the same, in short rows and long ones. Of
  the metrics, 'accuracy' is over tokens of the vocabulary proper, and
  'accuracy_all_tokens' over all except padding; so is 'loss', per token.

  `predict` takes a row as the beginning of a text: it reads all its tokens and gives
  the distribution of the one that comes after the last which is not padding.

  `special` are the tokens that are not in the vocabulary proper. `breakdown` are
  attributes of task.Breakdown, names those of all tokens; with `confusion` it has the
  matrix, of network.tokens^2 entries.
  """

  def read(weights, batch, mask):
    """Logits, targets, positions and mask of all targets except padding."""
    tokens = tf.cast(batch['tokens'], tf.int32)
    targets = tf.reshape(tokens[:, 1:], [-1])
    positions = tf.where(tf.not_equal(targets, special.padding))[:, 0]
    targets = tf.gather(targets, positions)
    mask = tf.gather(tf.repeat(mask, tokens.shape[1] - 1), positions)
    return network.logits(weights, tokens[:, :-1], positions), targets, positions, mask

  def loss(weights, batch, seed):
    del seed
    rows, length = tf.shape(batch['tokens'])[0], batch['tokens'].shape[1] - 1
    logits, targets, positions, _ = read(weights, batch, tf.ones([rows]))
    return tf.reduce_mean(tf.reshape(tf.scatter_nd(
        positions[:, tf.newaxis], layers.softmax_cross_entropy(logits, targets),
        tf.cast([rows * length], tf.int64)), [rows, length]), axis=1)

  def proper(targets, mask):
    return mask * tf.cast(special.is_proper(targets), tf.float32)

  def metrics(weights, batch, mask):
    logits, targets, _, mask = read(weights, batch, mask)
    of_all = layers.classification_metrics(logits, targets, mask)
    of_proper = layers.classification_metrics(logits, targets, proper(targets, mask))
    return {'accuracy': of_proper['accuracy'], 'loss': of_all['loss'],
            'accuracy_all_tokens': of_all['accuracy']}

  def count(weights, batch, mask):
    logits, targets, _, mask = read(weights, batch, mask)
    return layers.class_counts(
        logits, targets, proper(targets, mask), confusion=confusion)

  def predict(weights, batch):
    tokens = tf.cast(batch['tokens'], tf.int32)
    rows, steps = tf.shape(tokens)[0], tokens.shape[1]
    length = tf.reduce_sum(tf.cast(tf.not_equal(tokens, special.padding), tf.int32), 1)
    # The first token of a row of padding alone.
    last = tf.range(rows) * steps + tf.maximum(length - 1, 0)
    return layers.classification_outputs(network.logits(weights, tokens, last))

  return task.Model(
      name=name, initial_weights=network.initial_weights, loss=loss, metrics=metrics,
      evaluation_batch=128, predict=predict, weight_names=network.weight_names,
      breakdown=task.Breakdown(count=count, **breakdown))


def lstm_weights(kernel: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
  """Initial weights of a layer as in Keras, from its input kernel [inputs, 4 * units].

  Returns the kernel, the recurrent kernel [units, 4 * units], which is orthogonal, by
  `rng`, and the bias [4 * units], which is 1 for the forget gate; in the order of
  Keras: input, forget, cell, output.
  """
  units = kernel.shape[1] // 4
  square, triangle = np.linalg.qr(rng.standard_normal([4 * units, units]))
  # With these signs the distribution does not depend on the library's choice of them.
  recurrent = (square * np.sign(np.diag(triangle))).T
  bias = np.repeat(np.array([0, 1, 0, 0], np.float32), units)
  return [kernel, recurrent.astype(np.float32), bias]


def lstm(x: tf.Tensor, kernel: Any, recurrent: Any, bias: Any) -> tf.Tensor:
  """Computes the outputs of an LSTM layer at all steps, from a state of zeros.

  Equal to tf.keras.layers.LSTM without a mask. From float32 x [batch, steps, inputs],
  steps and inputs known, with the weights of `lstm_weights`, to float32 [batch, steps,
  units]. Differentiable once, in all arguments.
  """
  steps, inputs = x.shape[1], x.shape[2]
  units = recurrent.shape[0]
  unrolled = max(n for n in range(1, _MAX_UNROLLED + 1) if steps % n == 0)
  blocks = steps // unrolled

  def in_blocks(x, width=units):
    """All steps to [blocks, unrolled, batch, width]."""
    return tf.reshape(x, [blocks, unrolled, -1, width])

  @tf.custom_gradient
  def layer(x, kernel, recurrent, bias):
    rows = tf.reshape(tf.transpose(x, [1, 0, 2]), [-1, inputs])
    projected = in_blocks(tf.matmul(rows, kernel) + bias, 4 * units)
    start = tf.zeros([tf.shape(x)[0], units])
    arrays = [tf.TensorArray(tf.float32, blocks) for _ in range(3)]

    def forward(t, h, c, gates, cells, outputs):
      zs, cs, hs = [], [], []
      for now in tf.unstack(projected[t]):
        z = now + tf.matmul(h, recurrent)
        i, f, g, o = tf.split(z, 4, axis=1)
        c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
        h = tf.sigmoid(o) * tf.tanh(c)
        zs, cs, hs = [*zs, z], [*cs, c], [*hs, h]
      return t + 1, h, c, gates.write(t, zs), cells.write(t, cs), outputs.write(t, hs)

    *_, gates, cells, outputs = tf.while_loop(
        lambda t, *_: t < blocks, forward, (tf.constant(0), start, start, *arrays),
        parallel_iterations=1)
    gates, cells, outputs = (tf.reshape(x.stack(), [steps, -1, width]) for x, width in (
        (gates, 4 * units), (cells, units), (outputs, units)))

    def gradient(upstream):
      upstream = tf.transpose(upstream, [1, 0, 2])
      before = lambda states: tf.concat([start[tf.newaxis], states[:-1]], axis=0)
      i, f, g, o = tf.split(gates, 4, axis=2)
      i, f, g, o = tf.sigmoid(i), tf.sigmoid(f), tf.tanh(g), tf.sigmoid(o)
      tanh_c = tf.tanh(cells)
      # Factors of the chain rule, for all steps at once.
      h_to_c = o * (1.0 - tanh_c * tanh_c)
      to_gates = tf.concat(
          [g * i * (1.0 - i), before(cells) * f * (1.0 - f), i * (1.0 - g * g),
           tanh_c * o * (1.0 - o)], axis=2)
      recurrent_transposed = tf.transpose(recurrent)
      factors = (in_blocks(upstream), in_blocks(h_to_c), in_blocks(to_gates, 4 * units),
                 in_blocks(f))

      def backward(t, dh, dc, d_gates):
        d_z = []
        for from_above, to_c, to_z, kept in reversed(
            list(zip(*(tf.unstack(factor[t]) for factor in factors)))):
          dh += from_above
          dc += dh * to_c
          d_z.insert(0, tf.concat([dc, dc, dc, dh], axis=1) * to_z)
          dh = tf.matmul(d_z[0], recurrent_transposed)
          dc *= kept
        return t - 1, dh, dc, d_gates.write(t, d_z)

      *_, d_gates = tf.while_loop(
          lambda t, *_: t >= 0, backward,
          (tf.constant(blocks - 1), start, start, tf.TensorArray(tf.float32, blocks)),
          parallel_iterations=1)
      dz = tf.reshape(d_gates.stack(), [-1, 4 * units])
      dx = tf.reshape(tf.matmul(dz, kernel, transpose_b=True), [steps, -1, inputs])
      return (tf.transpose(dx, [1, 0, 2]), tf.matmul(rows, dz, transpose_a=True),
              tf.matmul(tf.reshape(before(outputs), [-1, units]), dz, transpose_a=True),
              tf.reduce_sum(dz, axis=0))

    return tf.transpose(outputs, [1, 0, 2]), gradient

  return layer(*map(tf.convert_to_tensor, (x, kernel, recurrent, bias)))
