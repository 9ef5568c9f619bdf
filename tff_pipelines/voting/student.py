"""The student: the server's model, trained on released labels.

It sees public records and released labels, so training it is post-processing. With
'spread' labels are spread over all public records along their features, and later in
the training the student's own labels of them take over.
"""

from collections.abc import Mapping
import dataclasses
import json
import pathlib

import numpy as np
from scipy import sparse
import tensorflow as tf

from aggregators import keys
from tasks.models import classifiers, layers
from tff_pipelines.common import files
from tff_pipelines.experiment import rounds as rounds_lib
from tff_pipelines.fedavg import adam
from tff_pipelines.voting import distortions, encoder

# Files of a run's folder.
STATE, CURVE = 'student.npz', 'student.csv'

_BLOCK = 1000
# Views of a record that the student's own labels are the mean over.
_VIEWS = 2
# Parameters of the graph along which labels are spread, and of the spreading.
_NEIGHBOURS, _TEMPERATURE, _ROUNDS = 10, 0.1, 60
_KEPT = 0.95  # Fraction of a record's label that comes from its neighbours.


def _graph(features: np.ndarray) -> sparse.csr_matrix:
  """Symmetric, normalised weights between each record and the most similar ones."""
  from sklearn import neighbors  # pylint: disable=g-import-not-at-top
  unit = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
  count = min(_NEIGHBOURS, len(features) - 1)
  one_way = neighbors.NearestNeighbors(n_neighbors=count, algorithm='brute').fit(
      unit).kneighbors_graph(mode='distance')
  # The cosine of unit vectors is 1 - distance^2 / 2.
  one_way.data = np.exp(-one_way.data**2 / 2 / _TEMPERATURE)
  one_way.sort_indices()
  both = one_way.maximum(one_way.T)
  degrees = np.asarray(both.sum(axis=1)).ravel()
  inverse = sparse.diags(1 / np.sqrt(np.maximum(degrees, 1e-12)))
  return inverse @ both @ inverse


def spread_labels(features: np.ndarray, rows: np.ndarray, labels: np.ndarray,
                  num_classes: int) -> np.ndarray:
  """Spreads labels along a graph of nearest neighbours (Zhou et al. 2004).

  Of features [n, d] those in `rows`, int [q], have `labels`, int [q]; classes weigh the
  same. Returns float32 [n, C], rows of sum 1, equal where no label reaches.
  """
  if len(features) < 2:
    raise ValueError(
        f'public records must be 2 or more to spread labels, found {len(features)}')
  graph = _graph(np.asarray(features, np.float64))
  start = np.zeros((len(features), num_classes))
  np.add.at(start, (rows, labels), 1.0)
  start /= np.maximum(start.sum(axis=0, keepdims=True), 1.0)
  masses = start
  for _ in range(_ROUNDS):
    masses = _KEPT * (graph @ masses) + (1 - _KEPT) * start
  totals = masses.sum(axis=1, keepdims=True)
  return np.where(totals > 0, masses / np.maximum(totals, 1e-300),
                  1 / num_classes).astype(np.float32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Architecture:
  """A student's network; without one, an encoder and a classifier on its features."""

  initial_weights: list[np.ndarray]
  network: classifiers.Network | None = None

  @property
  def name(self) -> str:
    return self.network.name if self.network else 'encoder'

  def logits(self, weights, x: tf.Tensor,
             statistics: encoder.Statistics | None = None) -> tf.Tensor:
    """float32 [batch, C]; without statistics, an encoder normalises x by its own."""
    if self.network:
      return self.network.logits(weights, x[..., 0] if x.shape.rank == 4 else x)
    features, _ = encoder.apply(weights, x, statistics)
    return layers.dense(tf.nn.relu(features), *weights[-2:])

  def probabilities(self, weights, x: tf.Tensor, normalised_by: tf.Tensor) -> np.ndarray:
    """float32 [n, C]; both arguments are as from `classifiers.to_float`."""
    statistics = None if self.network else encoder.apply(weights, normalised_by)[1]
    return np.concatenate([
        tf.nn.softmax(self.logits(weights, x[i:i + _BLOCK], statistics)).numpy()
        for i in range(0, x.shape[0], _BLOCK)])


def of_network(network: classifiers.Network, seed: int) -> Architecture:
  return Architecture(network=network, initial_weights=network.initial_weights(seed))


def of_encoder(weights: list[np.ndarray], num_classes: int, seed: int) -> Architecture:
  """A public encoder, trained further, and a classifier on its features."""
  kernel = layers.glorot_uniform(
      np.random.default_rng([seed, 2]), encoder.FEATURES, num_classes)
  return Architecture(initial_weights=[*weights, kernel, layers.zeros(num_classes)])


def metrics(predicted: np.ndarray, y: np.ndarray) -> dict[str, float]:
  """'accuracy' and 'loss' of probabilities [n, C] of labels [n]."""
  chances = predicted[np.arange(len(y)), y].astype(np.float64)
  return {'accuracy': float((predicted.argmax(axis=1) == y).mean()),
          'loss': float(-np.log(np.maximum(chances, 1e-12)).mean())}


class Student:
  """A training of a student, epoch by epoch; `state` is that of `adam`."""

  def __init__(self, architecture: Architecture, public: np.ndarray, features: np.ndarray,
               rows: np.ndarray, labels: np.ndarray, num_classes: int, *, method: str,
               training: adam.AdamConfig, test: Mapping[str, np.ndarray], seed: int = 0,
               own_labels_after: float = 1 / 3):
    """Initializes the training; raises ValueError if no query was answered.

    Method 'labels' trains on the answered queries, `rows` and `labels`, int [q], alone;
    'spread' on all public records, [P, ...], with labels spread along `features`,
    float [P, d], and its own after the fraction `own_labels_after` of the epochs.
    """
    if not len(rows):
      raise ValueError('no query was answered: a student needs at least one label')
    self.name, self.epochs, self.epochs_done = architecture.name, training.epochs, 0
    self._architecture, self._test = architecture, test
    self._public = classifiers.to_float(tf.constant(public))
    self._is_image = self._public.shape.rank == 4
    # The order of records; how they are distorted; and for the student's own labels.
    order, self._strong_key, self._weak_key = (
        keys.derive(tf.constant(keys.from_seed(seed)), i) for i in range(3))
    if method == 'labels':
      rows = np.asarray(rows, np.int32)
      self._given = np.eye(num_classes, dtype=np.float32)[labels]
      self._own_labels_from = self.epochs
    else:
      self._given = spread_labels(features, rows, labels, num_classes)
      rows = np.arange(len(public), dtype=np.int32)
      self._own_labels_from = own_labels_after * self.epochs
    self._targets = np.eye(num_classes, dtype=np.float32)[self._given.argmax(axis=1)]
    self._records = tf.gather(self._public, rows)
    self.state = adam.initial_state(architecture.initial_weights)
    self._train = adam.epoch_function(self._loss, order, len(rows), training)

  def _loss(self, weights, rows: tf.Tensor, step: tf.Tensor, targets) -> tf.Tensor:
    batch = tf.gather(self._records, rows)
    if self._is_image:
      batch = distortions.strong(batch, keys.derive(self._strong_key, step))
    return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(
        tf.gather(targets, rows), self._architecture.logits(weights, batch)))

  def _own_labels(self) -> np.ndarray:
    """The student's sharpened opinion of all training records."""
    total = 0.0
    for view in range(_VIEWS):
      x = self._records
      if self._is_image:
        x = distortions.weak(x, keys.derive(
            self._weak_key, self.epochs_done * _VIEWS + view))
      total += self._architecture.probabilities(self.state[0], x, x)
    # Half are the released labels: the student's own of few records drift.
    sharp = ((total / _VIEWS + self._given) / 2)**2
    return (sharp / sharp.sum(axis=1, keepdims=True)).astype(np.float32)

  def run_epoch(self) -> None:
    """Trains one more epoch. Raises ValueError if a weight becomes NaN or infinite."""
    targets = self._targets
    if self.epochs_done >= self._own_labels_from:
      targets = self._own_labels()
    self.state = self._train(
        self.state, tf.constant(self.epochs_done), tf.constant(targets))
    self.epochs_done += 1
    if not all(np.isfinite(w).all() for w in self.state[0]):
      raise ValueError(f'the student is not finite after epoch {self.epochs_done}: '
                       'lower --student_learning_rate')

  def restore(self, arrays: list[np.ndarray], epochs_done: int) -> None:
    self.state = tf.nest.pack_sequence_as(self.state, list(map(tf.constant, arrays)))
    self.epochs_done = epochs_done

  def predict(self, x: np.ndarray) -> np.ndarray:
    """Probabilities, float32 [n, C], of records like the public ones."""
    return self._architecture.probabilities(
        self.state[0], classifiers.to_float(tf.constant(x)), self._public)

  def test_metrics(self) -> dict[str, float]:
    return metrics(self.predict(self._test['x']), self._test['y'])


def write(folder: pathlib.Path, state: list[np.ndarray],
          curve: list[dict[str, float]]) -> None:
  """Keeps the student after an epoch, and its metrics of all epochs so far."""
  files.write_checked_arrays(folder, STATE, {
      'curve': np.array(json.dumps(curve)),
      **{f'state_{i:03}': array for i, array in enumerate(state)}})
  files.write_table(folder / CURVE, curve)


def read(folder: pathlib.Path) -> tuple[list[np.ndarray], list[dict[str, float]]]:
  """State and metrics that `write` kept; both empty before the first epoch."""
  arrays = files.read_checked_arrays(folder, STATE) or {'curve': '[]'}
  state = [arrays[name] for name in sorted(arrays) if name.startswith('state_')]
  return state, json.loads(str(arrays['curve']))


def train(student: Student, folder: pathlib.Path) -> list[dict[str, float]]:
  """Trains a student, or resumes its training; test metrics after each epoch."""
  state, curve = read(folder)
  if curve:
    student.restore(state, len(curve))
  with rounds_lib.progress(student.epochs, len(curve), 'epoch') as bar:
    while student.epochs_done < student.epochs:
      student.run_epoch()
      curve.append({'epoch': student.epochs_done, **student.test_metrics()})
      write(folder, list(map(np.asarray, tf.nest.flatten(student.state))), curve)
      bar.set_postfix(accuracy=f"{curve[-1]['accuracy']:.4f}", refresh=False)
      bar.update()
  return curve
