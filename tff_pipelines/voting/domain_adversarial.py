"""Domain-adversarial training (Ganin et al., arXiv 1505.07818).

A discriminator learns to tell from the features whether a record is the agent's
or the server's, while the gradient that reaches the features is reversed, so
that they come to be the same in both domains. The server's records are public
and need no labels.
"""

import math

import numpy as np
import tensorflow as tf

from tasks.models import layers

_HIDDEN = 64
# How fast the adversarial part grows, as in the paper.
_GROWTH = 10.0


def initial_discriminator(feature_size: int, seed: int) -> list[np.ndarray]:
  """Weights of the discriminator: one hidden layer, one logit."""
  rng = np.random.default_rng([seed, feature_size])
  return [layers.glorot_uniform(rng, feature_size, _HIDDEN),
          layers.zeros(_HIDDEN), layers.glorot_uniform(rng, _HIDDEN, 1),
          layers.zeros(1)]


DISCRIMINATOR_WEIGHTS = 4


def reverse_gradient(x: tf.Tensor, strength: tf.Tensor) -> tf.Tensor:
  """x; the gradient that goes back through it is -strength times as large."""

  @tf.custom_gradient
  def reversed_(x, strength):
    return tf.identity(x), lambda upstream: (
        -strength * upstream, tf.zeros_like(strength))

  return reversed_(x, tf.cast(strength, x.dtype))


def strength(progress: tf.Tensor, largest: float) -> tf.Tensor:
  """How strong the reversed gradient is: 0 at the start, `largest` at the end.

  Args:
    progress: In [0, 1], the part of the training that is done.
    largest: >= 0.
  """
  return largest * (2.0 / (1.0 + tf.exp(-_GROWTH * progress)) - 1.0)


def domain_loss(weights, own: tf.Tensor, public: tf.Tensor,
                reversed_by: tf.Tensor) -> tf.Tensor:
  """Mean cross-entropy of the domains, seen by the features in reverse.

  Args:
    weights: Of the discriminator.
    own: float32 [n, feature_size], features of the agent's records.
    public: float32 [m, feature_size], of the server's.
    reversed_by: Strength of the reversed gradient.

  Returns:
    float32 scalar; both domains weigh the same.
  """
  features = reverse_gradient(tf.concat([own, public], axis=0), reversed_by)
  hidden = tf.nn.relu(layers.dense(features, weights[0], weights[1]))
  logits = layers.dense(hidden, weights[2], weights[3])[:, 0]
  count = tf.shape(own)[0]
  is_public = tf.cast(tf.range(tf.shape(logits)[0]) >= count, tf.float32)
  losses = tf.nn.sigmoid_cross_entropy_with_logits(
      labels=is_public, logits=logits)
  return (tf.reduce_mean(losses[:count]) + tf.reduce_mean(losses[count:])) / 2


def chance_loss() -> float:
  """The domain loss of a discriminator that can't tell: ln 2."""
  return math.log(2.0)
