"""The student: learns from unbiased noisy answers and from unlabelled images.

The mean answer to a query is its mean soft label plus noise of known variance, so the
first student minimises the squared error. A second one continues by expectation
maximisation: a public image's new label is the student's opinion times what the noisy
answer says. It is rejected if held-out answers speak against it.
"""

from collections.abc import Iterator
import dataclasses
import functools
import math

import numpy as np
from scipy import special

from aggregators import local_dp, local_dp_distributions as distributions
from tff_pipelines.ldp import process
from tff_pipelines.ldp.settings import LdpSettings

# Penalties of the first student that held-out answers choose from.
_STRENGTHS, _FOLDS = (0.3, 1.0, 3.0, 10.0), 5
# Fewer answers are not divided: this penalty is taken.
_FEWEST_ANSWERS, _USUAL_STRENGTH = 50, 1.0
# Parameters of the trial that decides whether the student is refined.
_REFINE_FOLDS, _TRIAL_STEPS, _DOUBTS = 3, 20, 2.0
# The largest fraction of sets that are taken to hold the class that is meant.
_SUREST = 1 - 1e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Student:
  """A trained student, the second one if `refined`.

  `weights` are float32 [dimension, classes]; scores are divided by `spread`, the median
  of the largest on the pool; `strength` is the penalty of the first.
  """

  weights: np.ndarray
  spread: float
  sharpness: float
  refined: bool
  strength: float

  def scores(self, features: np.ndarray) -> np.ndarray:
    """float32 [n, classes], of features float32 [n, dimension]."""
    return process.scores(features, self.weights)

  def predict(self, features: np.ndarray) -> np.ndarray:
    """int64 [n], the classes with the largest scores."""
    return self.scores(features).argmax(axis=1)

  def probabilities(self, features: np.ndarray) -> np.ndarray:
    """float64 [n, classes]."""
    return _softmax(self.sharpness / self.spread * self.scores(features))


def _softmax(x: np.ndarray) -> np.ndarray:
  return special.softmax(x.astype(np.float64), axis=1)


def _folds(count: int, folds: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Yields indices of answers to train on, and of those held out; deterministic."""
  fold = np.arange(count) % folds
  for i in range(folds):
    yield np.flatnonzero(fold != i), np.flatnonzero(fold == i)


def _spread(scores: np.ndarray) -> float:
  return max(float(np.median(scores.max(axis=1))), 1e-3)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Noise:
  """Noise of the mean answer of `owners`, of a coordinate up to `variance`.

  `sets` is the distribution of the sets of classes that they send, if they do.
  """

  variance: float
  owners: int = 1
  sets: distributions.SubsetDistribution | None = None

  @classmethod
  def of(cls, mechanism: local_dp.LocalMechanism, owners: int) -> 'Noise':
    """The noise of means of answers, which a mechanism perturbed as 2 p - 1."""
    is_of_sets = isinstance(mechanism, distributions.SubsetDistribution)
    return cls(variance=mechanism.worst_variance / 4 / owners, owners=owners,
               sets=mechanism if is_of_sets else None)

  def weight(self, answers: np.ndarray, labels: np.ndarray) -> float:
    """The growth of log P[answers | class] with the answer's coordinate of the class."""
    # For sets that is a step of expectation maximisation, given probable labels [n,
    # classes], for a channel, teachers' mistakes included, that confuses all wrong
    # classes alike. Other noise is taken for Gaussian.
    if self.sets is None:
      return 1 / self.variance
    sets, gap = self.sets, self.sets.inside - self.sets.outside
    held = np.mean(np.sum(labels * (sets.outside + gap * answers), axis=1))
    held = min(max(held, sets.size / sets.dimension), sets.inside, _SUREST)
    return self.owners * gap * math.log(
        held * (sets.dimension - sets.size) / ((1 - held) * sets.size))


class Trainer:
  def __init__(self, features: np.ndarray, settings: LdpSettings):
    """`features` are those of all public images, [P, dimension]."""
    self._features, self._settings = features, settings

  @functools.cached_property
  def _axes(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features along the axes of their own spread, those axes, their spreads."""
    x = self._features
    values, vectors = np.linalg.eigh((x.T @ x).astype(np.float64))
    vectors = vectors.astype(np.float32)
    return x @ vectors, vectors, np.maximum(values, 0).astype(np.float32)

  def train(self, rows: np.ndarray, answers: np.ndarray, noise: Noise) -> Student:
    """Trains a student on answers to the images `rows`, each once.

    Answers, [Q, classes], are mean soft labels and unbiased noise.
    """
    answers, settings = answers.astype(np.float64), self._settings
    strength = self._strength(rows, answers)
    weights = process.ridge(self._features[rows], answers, strength)
    refined = settings.refine == 'always' or (
        settings.refine == 'auto' and self._helps(rows, answers, strength, noise))
    if refined:
      weights = self._refined(rows, answers, weights, noise, settings.refine_steps)
    return Student(
        weights=weights, spread=_spread(process.scores(self._features, weights)),
        sharpness=settings.sharpness, refined=refined, strength=strength)

  def _named(self, weights: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return (self._features[rows] @ weights).argmax(axis=1)

  def _strength(self, rows: np.ndarray, answers: np.ndarray) -> float:
    """The penalty whose student agrees best with held-out answers."""
    if len(rows) < _FEWEST_ANSWERS:
      return _USUAL_STRENGTH
    totals = np.zeros(len(_STRENGTHS))
    for kept, out in _folds(len(rows), _FOLDS):
      # Unbiased estimates of the number of answers that mean what the student names.
      path = process.ridge_path(self._features[rows[kept]], answers[kept], _STRENGTHS)
      totals += [answers[out, self._named(weights, rows[out])].sum() for weights in path]
    return _STRENGTHS[int(totals.argmax())]

  def _helps(self, rows: np.ndarray, answers: np.ndarray, strength: float,
             noise: Noise) -> bool:
    """Whether held-out answers do not speak against refinement."""
    # It takes `_DOUBTS` standard errors, of noise and of teachers that differ, to
    # reject what as a rule helps; answers that are too few to be divided do not.
    if len(rows) < _FEWEST_ANSWERS:
      return True
    steps = min(self._settings.refine_steps, _TRIAL_STEPS)
    gains = []
    for kept, out in _folds(len(rows), _REFINE_FOLDS):
      weights = process.ridge(self._features[rows[kept]], answers[kept], strength)
      refined = self._refined(rows[kept], answers[kept], weights, noise, steps)
      first, second = (self._named(w, rows[out]) for w in (weights, refined))
      gains.append(answers[out, second] - answers[out, first])
    gains = np.concatenate(gains)
    return bool(gains.sum() >= -_DOUBTS * np.linalg.norm(gains))

  def _refined(self, rows: np.ndarray, answers: np.ndarray, weights: np.ndarray,
               noise: Noise, steps: int) -> np.ndarray:
    """Trains further from `weights` with labels of all public images."""
    settings = self._settings
    along, axes, spreads = self._axes
    # log P[answer | class], up to a constant.
    evidence = np.zeros((len(along), answers.shape[1]))
    offset = np.float32(1 / answers.shape[1])
    scores = process.scores(self._features, weights)
    for _ in range(steps):
      opinion = settings.sharpness / _spread(scores) * scores
      labels = _softmax(opinion[rows] + evidence[rows])
      evidence[rows] = settings.trust * noise.weight(answers, labels) * answers
      labels = _softmax(opinion + evidence)
      inner = along.T @ (labels.astype(np.float32) - offset)
      inner /= (spreads + np.float32(settings.refine_strength))[:, np.newaxis]
      scores = along @ inner + offset
    return axes @ inner
