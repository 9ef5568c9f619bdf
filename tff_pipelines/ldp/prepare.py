"""Features and teachers of distillation and its baselines, and their experiment."""

from collections.abc import Mapping
import dataclasses
import functools
import hashlib
from typing import Any

import numpy as np

from tasks.ldp import features
from tasks.ldp import task as tasks_lib
from tasks.models import classifiers
from tff_pipelines.ldp import process
from tff_pipelines.ldp.settings import DataSettings


@dataclasses.dataclass(eq=False)
class Prepared:
  """A task and what is computed from it, each when it is first used.

  Attributes:
    task: Raw records.
    settings: Of features and teachers.
  """

  task: tasks_lib.DistillationTask
  settings: DataSettings

  @functools.cached_property
  def feature_map(self) -> features.FeatureMap:
    """The public map, fitted on public images."""
    return features.FeatureMap(self.task.public, seed=self.settings.feature_seed)

  @functools.cached_property
  def public(self) -> np.ndarray:
    """float32 [P, dimension], features of the pool."""
    return self.feature_map.transform(self.task.public)

  @functools.cached_property
  def validation(self) -> np.ndarray:
    """float32 [n, dimension], features."""
    return self.feature_map.transform(self.task.validation.x)

  @functools.cached_property
  def test(self) -> np.ndarray:
    """float32 [n, dimension], features."""
    return self.feature_map.transform(self.task.test.x)

  @functools.cached_property
  def examples(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """All owners' records, owner by owner, and the test records.

    `x`: float32 [n, dimension], features, centred and scaled by public constants.
    Gradient descent needs it: what all images share would hide what they do not. `y`:
    int32 [n], labels.
    """
    x, y = (np.concatenate([getattr(held, name) for held in self.task.holdings])
            for name in ('x', 'y'))
    mean = self.public.mean(axis=0)
    spread = np.mean(np.sum(np.square(self.public - mean), axis=1))
    scale = np.float32(1 / np.sqrt(spread))
    return ({'x': (self.feature_map.transform(x) - mean) * scale, 'y': y},
            {'x': (self.test - mean) * scale, 'y': self.task.test.y})

  @property
  def network(self) -> classifiers.Network:
    """A linear classifier of the features."""
    return classifiers.softmax(self.public.shape[1:], self.task.num_classes)

  @functools.cached_property
  def teachers(self) -> list[np.ndarray]:
    """The weights of a teacher of each holding, float32 [dimension, classes]."""
    classes = np.eye(self.task.num_classes)
    return [process.ridge(self.feature_map.transform(held.x), classes[held.y],
                          self.settings.teacher_strength)
            for held in self.task.holdings]


def prepare(settings: DataSettings) -> Prepared:
  """The task of these settings."""
  return Prepared(tasks_lib.build(settings.task, **settings.task_options), settings)


class PreparedExperiment:
  """The task of an experiment of this family, and what identifies it.

  A base class in addition to one of `experiment.run`.
  """

  def __init__(self, settings: DataSettings, prepared: Prepared | None = None):
    """Initializes the experiment.

    Args:
      settings: Of the run.
      prepared: As `prepare` returns it for settings of the same `preparation_key`, if
        it did already.
    """
    super().__init__(settings)
    self._prepared = prepared

  def build_task(self) -> Prepared:
    return self._prepared or prepare(self.settings)

  def identity(self, task: Prepared) -> dict[str, Any]:
    """SHA-256 of the public images and the number of owners, in hexadecimal."""
    data = task.task
    digest = hashlib.sha256(data.public.tobytes())
    digest.update(
        repr((data.num_clients, len(data.holdings), data.num_classes)).encode())
    return {'data_fingerprint': digest.hexdigest()}

  def upgraded(self, recorded: Mapping[str, Any]) -> dict[str, Any]:
    if ('algorithm' in recorded) != (self.family == 'ldp_baselines'):
      raise ValueError(f'output_dir={self.folder} holds a run of another program')
    return {'identity': {'data_fingerprint': recorded['data_fingerprint']},
            'settings': self.settings.upgraded(recorded),
            'plan': recorded.get('plan', {})}
