"""Distillation from locally private answers (arXiv 2202.02971).

Every data owner trains a teacher on its own records. A data user asks groups of owners
about public images; each answers with the soft labels of its teacher, perturbed before
they leave it. A student learns from the means and says what to ask next. All are linear
classifiers of public features, with closed forms.
"""

import collections
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from aggregators import local_dp
from aggregators.local_dp_mean import LocalAnswersFactory


def _normal_equations(features: np.ndarray, targets: np.ndarray):
  """Features, float64; the smaller of their two products; the right-hand side."""
  x, residual = features.astype(np.float64), targets - 1 / targets.shape[1]
  # The products in the features' own precision, which takes half the time.
  if len(x) <= x.shape[1]:
    return x, (features @ features.T).astype(np.float64), residual
  return x, (features.T @ features).astype(np.float64), x.T @ residual


def ridge(features: np.ndarray, targets: np.ndarray, strength: float) -> np.ndarray:
  """Weights of scores `features @ weights + 1 / classes` near the targets.

  float32 [dimension, classes]; `strength` > 0 penalises them.
  """
  x, gram, residual = _normal_equations(features, targets)
  inner = np.linalg.solve(gram + strength * np.eye(len(gram)), residual)
  return (x.T @ inner if len(inner) == len(x) else inner).astype(np.float32)


def ridge_path(features: np.ndarray, targets: np.ndarray,
               strengths: Sequence[float]) -> list[np.ndarray]:
  """`ridge` for several penalties, for little more than the cost of one."""
  x, gram, residual = _normal_equations(features, targets)
  values, vectors = np.linalg.eigh(gram)
  left = x.T @ vectors if len(vectors) == len(x) else vectors
  right = vectors.T @ residual
  return [
      (left @ (right / (np.maximum(values, 0) + strength)[:, np.newaxis])
      ).astype(np.float32) for strength in strengths]


def scores(features: np.ndarray, weights: np.ndarray) -> np.ndarray:
  """float32 [n, classes]: near 1 for the class that is meant, and 0 for others."""
  return features @ weights + np.float32(1 / weights.shape[1])


def soft_labels(features: tf.Tensor, weights: tf.Tensor, temperature: float) -> tf.Tensor:
  """In graph: a teacher's probabilities, float32 [n, classes]."""
  return tf.nn.softmax(tf.matmul(features, weights) / temperature, axis=-1)


def build_asking(mechanism: local_dp.LocalMechanism, *, num_queries: int, dimension: int,
                 temperature: float, seeded: bool = False) -> tff.Computation:
  """Builds a computation that asks owners about public images.

  It takes features of the queries at the server, float32 [num_queries, dimension], and
  at the clients owners: `weights` of the teacher, float32 [dimension, classes],
  `queries` that it answers, int32 [any], and `key`, int64 [2], if seeded. It returns
  `means`, float32 [num_queries, classes], unbiased, and `answers`, int32 [num_queries].
  """
  factory = LocalAnswersFactory(mechanism, num_queries, seeded=seeded)
  process = factory.create(factory.value_type)
  clients_type = tff.StructWithPythonType(
      [('weights', tff.TensorType(np.float32, [dimension, mechanism.dimension])),
       ('queries', tff.TensorType(np.int32, [None])),
       *([('key', tff.TensorType(np.int64, [2]))] if seeded else [])],
      collections.OrderedDict)
  features_type = tff.TensorType(np.float32, [num_queries, dimension])

  @tff.tensorflow.computation(clients_type, features_type)
  def prepare(owner, features):
    asked = tf.gather(features, owner['queries'])
    value = collections.OrderedDict(values=local_dp.scaled_probabilities(
        soft_labels(asked, owner['weights'], temperature)), queries=owner['queries'])
    if seeded:
      value['key'] = owner['key']
    return value

  @tff.tensorflow.computation(process.next.type_signature.result.result.member)
  def unscale(result):
    return collections.OrderedDict(
        means=local_dp.unscaled_probabilities(result['means']), answers=result['answers'])

  @tff.federated_computation(tff.FederatedType(features_type, tff.SERVER),
                             tff.FederatedType(clients_type, tff.CLIENTS))
  def ask(features, owners):
    values = tff.federated_map(prepare, (owners, tff.federated_broadcast(features)))
    return tff.federated_map(unscale, process.next(process.initialize(), values).result)

  return ask


def owners_of(query: int, *, groups: int, clients_per_query: int) -> range:
  """The owners that answer the query of this index in a run; groups alternate."""
  first = query % groups * clients_per_query
  return range(first, first + clients_per_query)


def margins(probabilities: np.ndarray) -> np.ndarray:
  """Margins, [n], of the largest of [n, k] over the others' mean, as in equation 5."""
  largest = probabilities.max(axis=1, keepdims=True)
  return (largest - probabilities).sum(axis=1) / (probabilities.shape[1] - 1)


def choose_queries(candidates: np.ndarray, count: int, *, sampling: str,
                   probabilities: np.ndarray | None,
                   random: np.random.Generator) -> np.ndarray:
  """Chooses `count` candidates: any if random, or if there are no probabilities."""
  if sampling == 'active' and probabilities is not None:
    return candidates[np.argsort(margins(probabilities), kind='stable')[:count]]
  return random.permutation(candidates)[:count]
