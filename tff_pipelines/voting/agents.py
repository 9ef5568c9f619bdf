"""An agent of AE-DPFL: it trains a model of its own and votes by it.

Training may be domain-adversarial (Ganin et al., arXiv 1505.07818): a discriminator
learns to tell the agent's records from the server's by their features, and the
reversed gradient makes these alike.
"""

from collections.abc import Callable
import dataclasses

import numpy as np
import tensorflow as tf

from aggregators import keys
from tasks.models import layers
from tasks.models.classifiers import Network
from tasks.task import Model
from tff_pipelines.fedavg import adam

# Logits of classes that an agent has no record of.
_NEVER = -1e9
# Number of queries that are answered in one call.
_BLOCK = 500
_BATCHES, _PUBLIC_BATCHES, _SHIFTS = 0, 1, 2
# Units of the discriminator, and how fast its strength grows, as in the paper.
_HIDDEN, _GROWTH = 64, 10.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class AgentConfig:
  """How an agent trains by Adam, and votes.

  It abstains where no class has more than `confidence`, in [0, 1). `adversarial` is the
  maximum strength of domain-adversarial training; images are shifted by up to `shift`.
  """

  training: adam.AdamConfig
  confidence: float = 0.0
  adversarial: float = 0.0
  shift: int = 0


def own_classes(labels: tf.Tensor, num_classes: int) -> tf.Tensor:
  """Which classes occur among labels; bool [classes]."""
  return tf.reduce_any(tf.one_hot(labels, num_classes, True, False), axis=0)


def shifted(images: tf.Tensor, key: tf.Tensor, most: int) -> tf.Tensor:
  """All images shifted by the same offset of up to `most` pixels, zeros move in."""
  if most == 0:
    return images
  offsets = tf.cast(keys.random_bits(key, [2], tf.int32) % (2 * most + 1), tf.int32)
  return tf.slice(tf.pad(images, [[0, 0], [most, most], [most, most]]),
                  [0, offsets[0], offsets[1]], [-1, images.shape[1], images.shape[2]])


def initial_discriminator(feature_size: int, seed: int) -> list[np.ndarray]:
  rng = np.random.default_rng([seed, feature_size])
  return layers.layer_weights(rng, (feature_size, _HIDDEN), (_HIDDEN, 1))


@tf.custom_gradient
def reverse_gradient(x: tf.Tensor, strength: tf.Tensor):
  """Returns x; the gradient that goes back through it is -strength times as large."""
  return tf.identity(x), lambda upstream: (-strength * upstream, tf.zeros_like(strength))


def adversarial_strength(progress: tf.Tensor, largest: float) -> tf.Tensor:
  """Strength of the reversed gradient: 0 at the start, `largest` at progress 1."""
  return largest * (2.0 / (1.0 + tf.exp(-_GROWTH * progress)) - 1.0)


def domain_loss(weights, own: tf.Tensor, public: tf.Tensor,
                strength: tf.Tensor) -> tf.Tensor:
  """Cross-entropy of both domains, which weigh the same; reversed for features.

  Returns float32 [own]: of each of the agent's records, with the public ones' mean.
  """
  features = reverse_gradient(tf.concat([own, public], axis=0), strength)
  hidden = tf.nn.relu(layers.dense(features, weights[0], weights[1]))
  logits = layers.dense(hidden, weights[2], weights[3])[:, 0]
  count = tf.shape(own)[0]
  is_public = tf.cast(tf.range(tf.shape(logits)[0]) >= count, tf.float32)
  losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=is_public, logits=logits)
  return (losses[:count] + tf.reduce_mean(losses[count:])) / 2


def train(network: Network, initial_weights, examples, unlabelled,
          key: tf.Tensor, config: AgentConfig) -> list[tf.Tensor]:
  """The weights of an agent's model, trained with logits of its own classes only.

  `examples` has 'x' and 'y'; all randomness derives from `key`.
  """
  x, y = examples['x'], examples['y']
  count = tf.shape(y)[0]
  batch_size, total = config.training.batch_size, adam.steps_of(count, config.training)
  own = own_classes(y, network.num_classes)
  size, weights = len(initial_weights), list(initial_weights)
  if config.adversarial > 0:
    weights += initial_discriminator(network.feature_size, 0)

  def batch_of(records, which, step, of):
    rows = adam.batch_rows(keys.derive(key, which), step, of, batch_size)
    shift_key = keys.derive(keys.derive(key, _SHIFTS + which), step)
    return rows, shifted(tf.gather(records, rows), shift_key, config.shift)

  def loss(weights, step):
    rows, batch = batch_of(x, _BATCHES, step, count)
    features = network.features(weights[:size], batch)
    logits = network.classify(weights[:size], features)
    value = tf.reduce_mean(layers.softmax_cross_entropy(
        tf.where(own, logits, _NEVER), tf.gather(y, rows)))
    if config.adversarial > 0:
      _, public = batch_of(unlabelled, _PUBLIC_BATCHES, step, tf.shape(unlabelled)[0])
      value += tf.reduce_mean(domain_loss(
          weights[size:], features, network.features(weights[:size], public),
          adversarial_strength(tf.cast(step, tf.float32) / tf.cast(total, tf.float32),
                               config.adversarial)))
    return value

  return adam.run_steps(loss, adam.initial_state(weights), 0, total, total,
                        config.training)[0][:size]


def adversarial_model(network: Network, public: np.ndarray | None,
                      strength: float) -> Model:
  """The model of clients of federated averaging that train domain-adversarially.

  Its weights are the network's, followed by a discriminator's, which is averaged like
  them; metrics and outputs need the network's alone. The reversed gradient has the same
  `strength` in all rounds. `public` are the server's records, which all clients have;
  None if nothing is trained.
  """
  model, size = network.as_model(), len(network.weight_names)

  def loss(weights, batch, seed):
    x, y = batch['x'], batch['y']
    rows = keys.random_bits(seed, [tf.shape(y)[0]], tf.int64) % len(public)
    features, others = (network.features(weights[:size], records)
                        for records in (x, tf.gather(public, rows)))
    return layers.softmax_cross_entropy(
        network.classify(weights[:size], features), y) + domain_loss(
            weights[size:], features, others, tf.constant(strength))

  return dataclasses.replace(
      model, loss=loss, metrics=lambda weights, *rest: model.metrics(
          weights[:size], *rest), initial_weights=lambda seed: [
              *model.initial_weights(seed),
              *initial_discriminator(network.feature_size, seed)])


def opinions(probabilities: tf.Tensor, confidence: float) -> tuple[tf.Tensor, tf.Tensor]:
  """The best class, int64 [Q], and whether it has more than a confidence, bool [Q]."""
  # A model with NaN or infinite outputs has no opinion.
  return tf.argmax(probabilities, axis=1), (
      tf.reduce_max(probabilities, axis=1) > confidence) & tf.reduce_all(
          tf.math.is_finite(probabilities), axis=1)


def trained_votes(network: Network, initial_weights, config: AgentConfig) -> Callable:
  """An agent's answer, as `process.build` takes it: one vote a query, or none.

  The vote is that of a model of its own, among the classes that it has records of.
  """
  def answer(public, examples, key):
    queries = public['queries']
    weights = train(network, initial_weights, examples, public['unlabelled'], key, config)
    own = own_classes(examples['y'], network.num_classes)
    probabilities = tf.concat([
        tf.nn.softmax(tf.where(
            own, network.logits(weights, queries[start:start + _BLOCK]), _NEVER))
        for start in range(0, queries.shape[0], _BLOCK)], axis=0)
    best, is_sure = opinions(probabilities, config.confidence)
    ballot = tf.one_hot(best, network.num_classes, dtype=tf.int32)
    return ballot * tf.cast(is_sure & tf.reduce_any(own), tf.int32)[:, tf.newaxis]

  return answer
