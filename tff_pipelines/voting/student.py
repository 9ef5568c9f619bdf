"""The student: the server's model, trained on released labels.

It sees public records and labels that agents' votes gave them, so training it costs
no further privacy, however long it takes. With 'spread' it learns from all public
records: labels are spread over them along their features, and later in the training
the student's own labels of them take over.
"""

from collections.abc import Callable, Mapping
import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from aggregators import keys
from aggregators import validate
from tasks.models import layers
from tasks.models.classifiers import Network
from tff_pipelines.learning import adam
from tff_pipelines.voting import distortions
from tff_pipelines.voting import encoder as encoder_lib
from tff_pipelines.voting import student_labels

# labels: on the answered queries alone. spread: on all public records.
METHODS = ('labels', 'spread')
_BLOCK = 1000
# Views of a record that the student's own labels are the mean over.
_VIEWS = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudentConfig:
  """How the student is trained.

  Attributes:
    method: One of METHODS.
    training: Adam's configuration.
    own_labels_after: In [0, 1], the fraction of the epochs after which the student's
      own labels take over, for method 'spread'; 1 for never.
    distort: Whether images are distorted at random.
  """

  method: str
  training: adam.AdamConfig
  own_labels_after: float = 1 / 3
  distort: bool = True

  def __post_init__(self):
    validate.one_of(METHODS, student=self.method)
    validate.finite(own_labels_after=self.own_labels_after)
    if not 0 <= self.own_labels_after <= 1:
      raise ValueError('own_labels_after must be in [0, 1], found '
                       f'{self.own_labels_after!r}')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Architecture:
  """A student's network, and how it is frozen for use after training.

  Attributes:
    name: For the report.
    initial_weights: List of arrays.
    training_logits: (weights, x) -> float32 [batch, C].
    frozen: (weights, public x) -> list of tensors, for `logits`.
    logits: (frozen, x) -> float32 [batch, C].
    prepare: Public or test records as arrays -> x, a tensor.
    distort: Whether x are images that can be distorted.
  """

  name: str
  initial_weights: list[np.ndarray]
  training_logits: Callable[[Any, tf.Tensor], tf.Tensor]
  frozen: Callable[[Any, tf.Tensor], list[tf.Tensor]]
  logits: Callable[[Any, tf.Tensor], tf.Tensor]
  prepare: Callable[[np.ndarray], tf.Tensor]
  distort: bool


def network_architecture(network: Network, seed: int) -> Architecture:
  """A network trained from its initial weights."""
  return Architecture(
      name=network.name, initial_weights=network.initial_weights(seed),
      training_logits=network.logits, frozen=lambda weights, x: list(weights),
      logits=network.logits,
      prepare=lambda x: tf.constant(x, tf.float32) / (
          255.0 if x.dtype == np.uint8 else 1.0),
      distort=False)


def image_architecture(network: Network, seed: int) -> Architecture:
  """A network of images, distorted while it is trained."""

  def without_channel(x):
    return x[..., 0] if x.shape.rank == 4 else x

  def logits(weights, x):
    return network.logits(weights, without_channel(x))

  return Architecture(
      name=network.name, initial_weights=network.initial_weights(seed),
      training_logits=logits, frozen=lambda weights, x: list(weights),
      logits=logits, prepare=encoder_lib.float_images, distort=True)


def encoder_architecture(weights: list[np.ndarray], size: int, num_classes: int,
                         seed: int) -> Architecture:
  """A public encoder, trained further, and a classifier on its features."""
  encoder = encoder_lib.Encoder(size)
  rng = np.random.default_rng([seed, 2])
  count = len(weights)

  def classify(weights, features):
    return layers.dense(tf.nn.relu(features), weights[count], weights[count + 1])

  def training_logits(weights, x):
    return classify(weights, encoder.apply(weights, x)[0])

  def frozen(weights, x):
    statistics = encoder.apply(weights, x)[1]
    return [*weights, *(part for pair in statistics for part in pair)]

  def logits(frozen_weights, x):
    rest = frozen_weights[count + 2:]
    statistics = list(zip(rest[0::2], rest[1::2]))
    return classify(
        frozen_weights, encoder.apply(frozen_weights, x, statistics)[0])

  return Architecture(
      name='encoder',
      initial_weights=[
          *weights, layers.glorot_uniform(
              rng, encoder_lib.FEATURES, num_classes),
          layers.zeros(num_classes)],
      training_logits=training_logits, frozen=frozen, logits=logits,
      prepare=encoder_lib.float_images, distort=True)


class Student:
  """A training of a student, epoch by epoch.

  Attributes:
    name: Of the architecture.
    state: Of the training; see `learning.adam`.
    epochs_done: How many epochs are in it.
    epochs: How many there will be.
  """

  def __init__(self, architecture: Architecture, public: np.ndarray,
               features: np.ndarray, rows: np.ndarray, labels: np.ndarray,
               num_classes: int, config: StudentConfig, seed: int,
               test: Mapping[str, np.ndarray]):
    """Initializes the training.

    Args:
      architecture: What is trained.
      public: [P, ...] all public records.
      features: float [P, d], along which labels are spread.
      rows: int [q], the answered queries among them.
      labels: int [q] in [0, num_classes), what was released.
      num_classes: C.
      config: How.
      seed: >= 0, of the order and the distortions.
      test: Labelled examples 'x' and 'y', for `test_metrics`.

    Raises:
      ValueError: If no query was answered.
    """
    if not len(rows):
      raise ValueError('labels must be at least one to train a student, found '
                       'none: no query was answered')
    self.name = architecture.name
    self._architecture = architecture
    self._config = config
    self._test = test
    self.epochs = config.training.epochs
    self._distort = config.distort and architecture.distort
    self._public = architecture.prepare(public)
    self._key = tf.constant(keys.from_seed(seed))
    if config.method == 'labels':
      self._rows = np.asarray(rows, np.int32)
      self._given = np.eye(num_classes, dtype=np.float32)[labels]
    else:
      self._rows = np.arange(len(public), dtype=np.int32)
      self._given = student_labels.spread(features, rows, labels, num_classes)
    self._targets = np.eye(num_classes, dtype=np.float32)[
        self._given.argmax(axis=1)]
    self._records = tf.gather(self._public, self._rows)
    self.state = adam.initial_state(architecture.initial_weights)
    self.epochs_done = 0
    self._steps = self._build()

  @property
  def training_labels(self) -> tuple[np.ndarray, np.ndarray]:
    """The public records that training starts with, and their labels."""
    return self._rows, self._targets.argmax(axis=1)

  def _build(self):
    architecture, config = self._architecture, self._config
    training = dataclasses.replace(
        config.training,
        batch_size=min(config.training.batch_size, len(self._rows)))
    self._total = adam.steps_of(len(self._rows), training)
    records, key = self._records, self._key

    def loss(targets, weights, step):
      rows = adam.batch_rows(
          keys.derive(key, 0), step, len(self._rows), training.batch_size)
      batch = tf.ensure_shape(
          tf.gather(records, rows), [training.batch_size, *records.shape[1:]])
      if self._distort:
        batch = distortions.strong(
            batch, keys.derive(keys.derive(key, 1), step))
      return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(
          tf.gather(targets, rows),
          architecture.training_logits(weights, batch)))

    @tf.function(autograph=False)
    def steps(state, targets, first, last):
      return adam.run_steps(
          lambda weights, step: loss(targets, weights, step), state, first, last,
          self._total, training)

    return steps

  def _own_labels(self) -> np.ndarray:
    """The student's sharpened opinion of all training records."""
    weights = self.state[0]
    total = 0.0
    for view in range(_VIEWS):
      x = self._records
      if self._distort:
        x = distortions.weak(x, keys.derive(
            keys.derive(self._key, 2), self.epochs_done * _VIEWS + view))
      frozen = self._architecture.frozen(weights, x)
      total += self._probabilities(frozen, x)
    # Half of it stays what the released labels say: on their own, the student's
    # labels of few records drift.
    sharp = ((total / _VIEWS + self._given) / 2)**2
    return (sharp / sharp.sum(axis=1, keepdims=True)).astype(np.float32)

  def _probabilities(self, frozen, x: tf.Tensor) -> np.ndarray:
    return np.concatenate([
        tf.nn.softmax(self._architecture.logits(
            frozen, x[i:i + _BLOCK])).numpy()
        for i in range(0, x.shape[0], _BLOCK)])

  def run_epoch(self) -> None:
    """One more epoch. Raises ValueError if the weights stop being finite."""
    config = self._config
    targets = self._targets
    if config.method == 'spread' and (
        self.epochs_done >= config.own_labels_after * config.training.epochs):
      targets = self._own_labels()
    per_epoch = self._total // config.training.epochs
    first = self.epochs_done * per_epoch
    self.state = self._steps(
        self.state, tf.constant(targets), tf.constant(first),
        tf.constant(first + per_epoch))
    self.epochs_done += 1
    if not all(np.isfinite(w).all() for w in self.state[0]):
      raise ValueError('the student is not finite after epoch '
                       f'{self.epochs_done}: lower --student_learning_rate')

  def restore(self, arrays: list[np.ndarray], epochs_done: int) -> None:
    """Continues from what `adam.state_arrays` kept of a state."""
    self.state = adam.state_of_arrays(arrays)
    self.epochs_done = epochs_done

  def predict(self, x: np.ndarray) -> np.ndarray:
    """Probabilities, float32 [n, C], of records like the public ones."""
    frozen = self._architecture.frozen(self.state[0], self._public)
    return self._probabilities(frozen, self._architecture.prepare(x))

  def test_metrics(self) -> dict[str, float]:
    """'accuracy' and 'loss' on the test examples."""
    y = self._test['y']
    found = self.predict(self._test['x'])
    chances = found[np.arange(len(y)), y].astype(np.float64)
    return {'accuracy': float((found.argmax(axis=1) == y).mean()),
            'loss': float(-np.log(np.maximum(chances, 1e-12)).mean())}
