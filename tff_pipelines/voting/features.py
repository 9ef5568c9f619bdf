"""Public feature maps of a voting task, the task seen through one, and its queries.

A map and the choice of queries follow from the server's public records alone, so they
are public; what an agent computes of a record by a map depends on that record alone.
"""

from collections.abc import Callable
import dataclasses
import hashlib
import math
import pathlib

import numpy as np
import tensorflow as tf

from tasks.voting.task import AgentRecords, VotingTask
from tff_pipelines.common import files
from tff_pipelines.fedavg import adam
from tff_pipelines.voting import encoder

# File of a run's folder that keeps its map.
MAP = 'features.npz'

# Length of features of pca and contrastive, for learning rates around 0.1.
LENGTH = 8.0
# Number of queries that are answered in one call.
_BLOCK = 1024


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureConfig:
  """'none': records as they are. 'standard': coordinates are scaled as in public.

  'pca': principal components, as many as `dimensions`. 'contrastive': `voting.encoder`.
  """

  kind: str
  dimensions: int = 50
  training: adam.AdamConfig = encoder.DEFAULT_TRAINING
  seed: int = 0


def flat(x: np.ndarray) -> np.ndarray:
  """Records as float32 [n, d], images in [0, 1]."""
  rows = x.reshape(len(x), math.prod(x.shape[1:])).astype(np.float32)
  return rows / 255 if x.dtype == np.uint8 else rows


class PublicFeatures:
  """A feature map: its kind, its public parameters by name, and its encoder if any."""

  def __init__(self, kind: str, arrays: dict[str, np.ndarray], public: np.ndarray):
    self.kind, self.arrays = kind, arrays
    self.encoder = kind == 'contrastive' and encoder.FeatureMap(
        [arrays[name] for name in sorted(arrays)], public)

  def __call__(self, x: np.ndarray, alone: bool = False) -> np.ndarray:
    """Features, float32 [n, d]; for 'none' the records themselves.

    With `alone` each by itself: products of many rows round each by its index.
    """
    if self.kind == 'none':
      return x
    if self.kind == 'contrastive':
      return LENGTH * self.encoder(x, alone)
    centred = (flat(x) - self.arrays['mean']) / self.arrays['scale']
    if self.kind == 'standard':
      return centred
    if not alone or not len(x):
      return self._projected(centred)
    # Always the same address in memory too.
    row, projected = np.empty_like(centred[:1]), []
    for record in centred:
      row[0] = record
      projected.append(self._projected(row))
    return np.concatenate(projected)

  def _projected(self, centred: np.ndarray) -> np.ndarray:
    projected = centred @ self.arrays['components']
    lengths = np.linalg.norm(projected, axis=1, keepdims=True)
    return LENGTH * projected / np.maximum(lengths, 1e-12)


def check(public: np.ndarray, config: FeatureConfig) -> tuple[int, ...]:
  """The shape of a record through a map that is not fitted; ValueError if it can't be."""
  if config.kind == 'none':
    return public.shape[1:]
  if config.kind == 'contrastive':
    if public.ndim != 3 or public.shape[1] != public.shape[2]:
      raise ValueError('features=contrastive is for square images, found records '
                       f'of shape {list(public.shape[1:])}')
    return (encoder.FEATURES,)
  size = math.prod(public.shape[1:])
  if config.kind == 'standard':
    return (size,)
  if len(public) < 2:
    raise ValueError(f'features=pca needs 2 public records or more, found {len(public)}')
  return (min(config.dimensions, size, len(public) - 1),)


def fit(public: np.ndarray, config: FeatureConfig,
        on_epoch: Callable[[int], object] = lambda done: None) -> PublicFeatures:
  """The map that follows from public records; raises ValueError as `check`."""
  shape, arrays = check(public, config), {}
  if config.kind == 'contrastive':
    weights = encoder.train(
        public, seed=config.seed, config=config.training, on_epoch=on_epoch)
    arrays = {f'weight_{i:02}': w for i, w in enumerate(weights)}
  elif config.kind != 'none':
    records = flat(public)
    arrays['mean'] = records.mean(axis=0)
  if config.kind == 'standard':
    stddev = records.std(axis=0)
    # A coordinate that never varies in public says nothing there.
    arrays['scale'] = np.where(stddev > 0, stddev, np.inf)
  elif config.kind == 'pca':
    from sklearn import decomposition  # pylint: disable=g-import-not-at-top
    pca = decomposition.PCA(shape[0], svd_solver='full').fit(records)
    arrays.update(scale=np.ones_like(arrays['mean']),
                  components=pca.components_.T.astype(np.float32))
  return PublicFeatures(config.kind, arrays, public)


def _digest(public: np.ndarray) -> str:
  return hashlib.sha256(
      f'{public.dtype} {public.shape}'.encode() + public.tobytes()).hexdigest()


def write_map(folder: pathlib.Path, features: PublicFeatures, public: np.ndarray) -> None:
  files.write_checked_arrays(folder, MAP, {
      'kind': np.array(features.kind), 'public': np.array(_digest(public)),
      **{f'map_{name}': array for name, array in features.arrays.items()}})


def read_map(folder: pathlib.Path, public: np.ndarray) -> PublicFeatures | None:
  """The map that `write_map` kept, if any; ValueError if it is of other records."""
  if (arrays := files.read_checked_arrays(folder, MAP)) is None:
    return None
  if str(arrays['public']) != _digest(public):
    raise ValueError(f'{folder / MAP} is of other public records than these')
  return PublicFeatures(str(arrays['kind']), {
      name.removeprefix('map_'): array for name, array in arrays.items()
      if name.startswith('map_')}, public)


def _with_records(task: VotingTask, convert: Callable) -> VotingTask:
  converted = {}
  with np.errstate(all='ignore'):  # Warnings would tell of an agent's records.
    for agent in task.agents.client_ids:
      examples = task.agents.examples(agent)
      converted[agent] = {'x': convert(examples['x']), 'y': examples['y']}
  return dataclasses.replace(
      task, public=convert(task.public), agents=AgentRecords(converted),
      test={'x': convert(task.test['x']), 'y': task.test['y']})


def map_records(task: VotingTask, features: PublicFeatures,
                alone: bool = False) -> VotingTask:
  """The task with features as its records; `alone` as for `PublicFeatures`."""
  return (task if features.kind == 'none' else
          _with_records(task, lambda x: features(x, alone)))


def as_grid(task: VotingTask) -> VotingTask:
  """The task with vectors on a grid of small integers, for exact distances; int8."""
  # All but one in a thousand of the public coordinates fit; others are cut off.
  public = flat(task.public)
  if (most := largest_feature(public.shape[1])) < 1:
    raise ValueError(
        f'features must have fewer than 2^24 coordinates, found {public.shape[1]}')
  step = (float(np.percentile(np.abs(public), 99.9)) or 1.0) / most
  return _with_records(task, lambda x: np.clip(
      np.rint(flat(x) / step), -most, most).astype(np.int8))


def choose_queries(features: np.ndarray, count: int, choice: str,
                   seed: int) -> np.ndarray:
  """Chooses queries: int64 [count], sorted.

  With 'spread' the nearest to the centres of as many clusters of features [n, d].
  """
  if choice == 'random' or count == len(features):
    return np.sort(np.random.default_rng(seed).permutation(len(features))[:count])
  # scikit-learn takes a second to import.
  from sklearn import cluster  # pylint: disable=g-import-not-at-top
  clusters = cluster.KMeans(count, n_init=4, random_state=seed).fit(features)
  labels = clusters.labels_
  distances = ((features - clusters.cluster_centers_[labels])**2).sum(axis=1)
  # The first of each cluster in the order of distances is its medoid.
  order = np.argsort(distances, kind='stable')
  chosen = order[np.unique(labels[order], return_index=True)[1]]
  # Clusters stay empty where records are repeated.
  others = np.setdiff1d(np.arange(len(features)), chosen)
  return np.sort(np.concatenate([chosen, others[:count - chosen.size]]))


def largest_feature(dimension: int) -> int:
  """The maximum absolute feature for which squared norms are below 2^24."""
  return min(127, math.isqrt((2**24 - 1) // dimension))


def nearest_votes(neighbours: int, num_classes: int) -> Callable:
  """An agent's answer in kNN-DPFL, as `process.build` takes it: labels of nearest records.

  Features are small integers, so that every distance is exact in float32 whatever the
  order of summation: another record changes no other distance by a bit, and at most one
  neighbour of a query, as the guarantee for one record needs. Queries and records are int8, |x| <= largest_feature(d). An agent with fewer records
  has as many votes; at the same distance the earlier record is nearer.
  """
  def answer(public, examples, key):
    del key  # Nothing is random.
    queries, x, y = public['queries'], examples['x'], examples['y']
    k = tf.minimum(neighbours, tf.shape(x)[0])
    records = tf.cast(x, tf.float32)
    squares = tf.cast(tf.reduce_sum(tf.square(records), axis=1), tf.int32)
    one_hot = tf.one_hot(y, num_classes, dtype=tf.int32)
    counts = []
    for start in range(0, queries.shape[0], _BLOCK):
      block = tf.cast(queries[start:start + _BLOCK], tf.float32)
      products = tf.cast(tf.matmul(block, records, transpose_b=True), tf.int32)
      # Without the term that all records of a query share; at most 3 * 2^24.
      _, nearest = tf.math.top_k(2 * products - squares, k)
      counts.append(tf.reduce_sum(tf.gather(one_hot, nearest), axis=1))
    return tf.concat(counts, axis=0)

  return answer
