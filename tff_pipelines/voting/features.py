"""Public feature maps of a voting task, and the task seen through one.

A map follows from the server's public records alone, so it is public, and what
an agent computes of a record by it depends on that record alone.
"""

from collections.abc import Callable
import dataclasses
import math

import numpy as np

from aggregators import validate
from tasks.voting.task import AgentRecords
from tasks.voting.task import VotingTask
from tff_pipelines.learning import adam
from tff_pipelines.voting import encoder
from tff_pipelines.voting import knn

# none: records as they are. standard: each coordinate by the mean and standard
# deviation of the public records. pca: their principal components. contrastive:
# a network that was trained on them (`voting.encoder`).
KINDS = ('none', 'standard', 'pca', 'contrastive')
# Features of pca and contrastive have this length: a scale at which models train
# well by rates around 0.1.
_LENGTH = 8.0
# Beyond, counted in steps of the grid, features are cut off.
_OUTLIERS = 99.9


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureConfig:
  """Attributes: kind, one of KINDS; dimensions >= 1, of pca; training, of the
  encoder; seed >= 0."""

  kind: str
  dimensions: int = 50
  training: adam.AdamConfig = encoder.DEFAULT_TRAINING
  seed: int = 0

  def __post_init__(self):
    validate.one_of(KINDS, features=self.kind)
    validate.integer(pca_dimensions=self.dimensions, low=1)
    validate.integer(feature_seed=self.seed, low=0)


def flat(x: np.ndarray) -> np.ndarray:
  """Records as float32 [n, d], images in [0, 1]."""
  flat = x.reshape(len(x), math.prod(x.shape[1:])).astype(np.float32)
  return flat / 255 if x.dtype == np.uint8 else flat


class PublicFeatures:
  """A feature map.

  Attributes:
    kind: One of KINDS.
    arrays: All that the map is made of, by name; to be kept, and public.
  """

  def __init__(self, kind: str, arrays: dict[str, np.ndarray],
               public: np.ndarray):
    """Initializes the map from its arrays; `public` are the public records."""
    self.kind = kind
    self.arrays = arrays
    self._encoder = None
    if kind == 'contrastive':
      weights = [arrays[f'weight_{i:02}'] for i in range(len(arrays))]
      self._encoder = encoder.FeatureMap(weights, public)

  @property
  def encoder_weights(self) -> list[np.ndarray] | None:
    """Of a contrastive map; None for others."""
    if self._encoder is None:
      return None
    return [self.arrays[name] for name in sorted(self.arrays)]

  def __call__(self, x: np.ndarray, alone: bool = False) -> np.ndarray:
    """float32 [n, d]; for 'none' the records themselves.

    Args:
      x: [n, ...], records.
      alone: Whether each record goes through the map independently. Products of
        many rows round each of them by its index and by how many there are, so that
        one more record changes the last bits of the others.
    """
    if self.kind == 'none':
      return x
    if self._encoder is not None:
      return _LENGTH * self._encoder(x, alone)
    centred = (flat(x) - self.arrays['mean']) / self.arrays['scale']
    if self.kind == 'standard':
      return centred
    if not alone or not len(x):
      return self._projected(centred)
    # Always the same address in memory too.
    row, found = np.empty_like(centred[:1]), []
    for record in centred:
      row[0] = record
      found.append(self._projected(row))
    return np.concatenate(found)

  def _projected(self, centred: np.ndarray) -> np.ndarray:
    projected = centred @ self.arrays['components']
    lengths = np.linalg.norm(projected, axis=1, keepdims=True)
    return _LENGTH * projected / np.maximum(lengths, 1e-12)


def check(public: np.ndarray, config: FeatureConfig) -> tuple[int, ...]:
  """The shape of a record seen through a map, before the map is made.

  Raises:
    ValueError: If the map can't be made of these records.
  """
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
  most = min(size, len(public) - 1)
  if most < 1:
    raise ValueError('features=pca needs 2 public records or more, found '
                     f'{len(public)}')
  return (min(config.dimensions, most),)


def fit(public: np.ndarray, config: FeatureConfig,
        on_epoch: Callable[[int], object] | None = None) -> PublicFeatures:
  """The map that follows from public records.

  Args:
    public: [P, ...], of the server.
    config: Which map.
    on_epoch: Called with the number of epochs that are done, where there are any.

  Raises:
    ValueError: If the map can't be made of these records.
  """
  shape = check(public, config)
  if config.kind == 'none':
    return PublicFeatures('none', {}, public)
  if config.kind == 'contrastive':
    weights = encoder.train(
        public, seed=config.seed, config=config.training, on_epoch=on_epoch)
    return PublicFeatures('contrastive', {
        f'weight_{i:02}': w for i, w in enumerate(weights)}, public)
  records = flat(public)
  mean = records.mean(axis=0)
  if config.kind == 'standard':
    stddev = records.std(axis=0)
    # A coordinate that never varies in public tells nothing there.
    return PublicFeatures('standard', {
        'mean': mean, 'scale': np.where(stddev > 0, stddev, np.inf)}, public)
  from sklearn import decomposition  # pylint: disable=g-import-not-at-top
  found = decomposition.PCA(shape[0], svd_solver='full').fit(records)
  return PublicFeatures('pca', {
      'mean': mean, 'scale': np.ones_like(mean),
      'components': found.components_.T.astype(np.float32)}, public)


def _with_records(task: VotingTask, convert) -> VotingTask:
  """The task with all records converted, each independently."""
  converted = {}
  for agent in task.agents.client_ids:
    examples = task.agents.examples(agent)
    converted[agent] = {'x': convert(examples['x']), 'y': examples['y']}
  return dataclasses.replace(
      task, public=convert(task.public), agents=AgentRecords(converted),
      test={'x': convert(task.test['x']), 'y': task.test['y']})


def map_records(task: VotingTask, features: PublicFeatures,
                alone: bool = False) -> VotingTask:
  """The task with features as its records; `alone` as for `PublicFeatures`."""
  if features.kind == 'none':
    return task
  return _with_records(task, lambda x: features(x, alone))


def as_grid(task: VotingTask) -> VotingTask:
  """The task with vectors on a grid of small integers, for exact distances.

  The step is that of the public records: all but one in a thousand of their
  coordinates fit; the others, and agents', are cut off. int8.
  """
  public = flat(task.public)
  most = knn.largest_feature(public.shape[1])
  if most < 1:
    raise ValueError('features must have at most 2^24 coordinates for exact '
                     f'distances, found {public.shape[1]}')
  reach = float(np.percentile(np.abs(public), _OUTLIERS))
  step = (reach or 1.0) / most

  def convert(x):
    return np.clip(np.rint(flat(x) / step), -most, most).astype(np.int8)

  return _with_records(task, convert)
