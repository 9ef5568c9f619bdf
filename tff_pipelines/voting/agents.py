"""An agent of AE-DPFL: it trains a model of its own and votes by it.

Pure TensorFlow functions of explicit arguments; TFF maps them over agents.
"""

import dataclasses

import tensorflow as tf

from aggregators import keys
from aggregators import validate
from tasks.models import layers
from tasks.models.classifiers import Network
from tff_pipelines.learning import adam
from tff_pipelines.voting import domain_adversarial

# Logits of classes that an agent has no record of.
_NEVER = -1e9
# Number of queries that are answered in one call.
_BLOCK = 500
_BATCHES, _PUBLIC_BATCHES, _SHIFTS = 0, 1, 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class AgentConfig:
  """How an agent trains and votes.

  Attributes:
    training: Adam's configuration.
    confidence: In [0, 1). An agent abstains where its model gives no class more
      than this probability.
    adversarial: Maximum strength of domain-adversarial training, >= 0; 0 trains on
      the agent's records alone.
    shift: Pixels >= 0 by which images are shifted at random in training.
  """

  training: adam.AdamConfig
  confidence: float = 0.0
  adversarial: float = 0.0
  shift: int = 0

  def __post_init__(self):
    validate.finite(client_confidence=self.confidence)
    if not 0 <= self.confidence < 1:
      raise ValueError(
          f'client_confidence must be in [0, 1), found {self.confidence!r}')
    validate.non_negative(adversarial_strength=self.adversarial)
    validate.integer(client_shift=self.shift, low=0)


def own_classes(labels: tf.Tensor, num_classes: int) -> tf.Tensor:
  """Which classes occur among labels; bool [classes]."""
  return tf.reduce_any(tf.one_hot(labels, num_classes, on_value=True,
                                  off_value=False, dtype=tf.bool), axis=0)


def shifted(images: tf.Tensor, key: tf.Tensor, most: int) -> tf.Tensor:
  """All images shifted by the same offset of up to `most` pixels, zeros move in."""
  if most == 0:
    return images
  offsets = tf.cast(keys.random_bits(key, [2], tf.int32) % (2 * most + 1), tf.int32)
  padded = tf.pad(images, [[0, 0], [most, most], [most, most]])
  return tf.slice(
      padded, [0, offsets[0], offsets[1]],
      [-1, images.shape[1], images.shape[2]])


def train(network: Network, initial_weights, examples, unlabelled,
          key: tf.Tensor, config: AgentConfig) -> list[tf.Tensor]:
  """Trains an agent's model on its records, with logits of its own classes only.

  Args:
    network: The model.
    initial_weights: Public, the same for all agents.
    examples: 'x' and 'y' of the agent, any number of records.
    unlabelled: [m, ...] public records, for domain-adversarial training.
    key: int64[2]; the order of the records and all else derives from it.
    config: How.

  Returns:
    The weights, a list of float32 tensors.
  """
  x, y = examples['x'], examples['y']
  count = tf.shape(y)[0]
  batch_size = config.training.batch_size
  total = adam.steps_of(count, config.training)
  own = own_classes(y, network.num_classes)
  weights = [tf.convert_to_tensor(w) for w in initial_weights]
  network_weights = len(weights)
  if config.adversarial > 0:
    weights += [tf.convert_to_tensor(w) for w in
                domain_adversarial.initial_discriminator(
                    network.feature_size, 0)]

  def batch_of(records, which, step, of):
    rows = adam.batch_rows(
        keys.derive(key, which), step, of, batch_size)
    shift_key = keys.derive(keys.derive(key, _SHIFTS + which), step)
    batch = tf.ensure_shape(
        tf.gather(records, rows), [batch_size, *records.shape[1:]])
    return rows, shifted(batch, shift_key, config.shift)

  def loss(weights, step):
    rows, batch = batch_of(x, _BATCHES, step, count)
    features = network.features(weights[:network_weights], batch)
    logits = network.classify(weights[:network_weights], features)
    value = tf.reduce_mean(layers.softmax_cross_entropy(
        tf.where(own, logits, _NEVER), tf.gather(y, rows)))
    if config.adversarial > 0:
      _, public = batch_of(
          unlabelled, _PUBLIC_BATCHES, step, tf.shape(unlabelled)[0])
      value += domain_adversarial.domain_loss(
          weights[network_weights:], features,
          network.features(weights[:network_weights], public),
          domain_adversarial.strength(
              tf.cast(step, tf.float32) / tf.cast(total, tf.float32),
              config.adversarial))
    return value

  trained = adam.run_steps(
      loss, adam.initial_state(weights), 0, total, total,
      config.training)
  return trained[0][:network_weights]


def votes(network: Network, weights, queries: tf.Tensor, labels: tf.Tensor,
          confidence: float) -> tf.Tensor:
  """One vote a query for the model's label, or none.

  Args:
    network: The model.
    weights: Of the agent.
    queries: [Q, ...] public records, Q static.
    labels: int32, of all the agent's records: it votes for no other class.
    confidence: See AgentConfig.

  Returns:
    int32 [Q, C]. An agent without records abstains from all.
  """
  own = own_classes(labels, network.num_classes)
  found = []
  for start in range(0, queries.shape[0], _BLOCK):
    logits = network.logits(weights, queries[start:start + _BLOCK])
    found.append(tf.nn.softmax(tf.where(own, logits, _NEVER)))
  probabilities = tf.concat(found, axis=0)
  best = tf.argmax(probabilities, axis=1)
  # A model that is not finite has no opinion.
  sure = (tf.reduce_max(probabilities, axis=1) > confidence) & tf.reduce_all(
      tf.math.is_finite(probabilities), axis=1) & tf.reduce_any(own)
  ballot = tf.one_hot(best, network.num_classes, dtype=tf.int32)
  return ballot * tf.cast(sure, tf.int32)[:, tf.newaxis]


def trained_votes(network: Network, initial_weights, config: AgentConfig):
  """An agent's answer, as `process.build` takes it."""

  def answer(public, examples, key):
    weights = train(network, initial_weights, examples, public['unlabelled'],
                    key, config)
    return votes(network, weights, public['queries'], examples['y'],
                 config.confidence)

  return answer
