"""What distillation and its baselines work on: features, teachers, their experiment."""

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
    settings: Say how features and teachers are made.
  """

  task: tasks_lib.DistillationTask
  settings: DataSettings

  @functools.cached_property
  def feature_map(self) -> features.FeatureMap:
    """The public map, fitted on public images."""
    return features.fit(self.task.public, seed=self.settings.feature_seed)

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
  def centred(self) -> tuple[np.ndarray, np.ndarray]:
    """Features of all owners' records, owner by owner, and of the test records.

    Both float32 [n, dimension], centred and scaled by public constants. Gradient
    descent needs it: what all images share would hide what they do not.
    """
    records = self.feature_map.transform(
        np.concatenate([held.x for held in self.task.holdings]))
    mean = self.public.mean(axis=0)
    scale = np.float32(1 / np.sqrt(np.mean(np.sum(
        np.square(self.public - mean), axis=1))))
    return (records - mean) * scale, (self.test - mean) * scale

  @property
  def labels(self) -> np.ndarray:
    """int32 [n], labels of all owners' records, owner by owner."""
    return np.concatenate([held.y for held in self.task.holdings])

  @property
  def network(self) -> classifiers.Network:
    """A linear classifier of the features."""
    return classifiers.softmax(self.public.shape[1:], self.task.num_classes)

  @functools.cached_property
  def teachers(self) -> list[np.ndarray]:
    """The weights of a teacher of each holding."""
    return [
        process.teacher(self.feature_map.transform(held.x), held.y,
                        self.task.num_classes, self.settings.teacher_strength)
        for held in self.task.holdings]


def prepare(settings: DataSettings) -> Prepared:
  """The task of these settings."""
  return Prepared(tasks_lib.build(settings.task, **settings.task_options), settings)


def fingerprint(task: tasks_lib.DistillationTask) -> str:
  """SHA-256 of the public images and of who the owners are, in hexadecimal."""
  digest = hashlib.sha256(np.ascontiguousarray(task.public).tobytes())
  digest.update(
      repr((task.num_clients, len(task.holdings), task.num_classes)).encode())
  return digest.hexdigest()


class PreparedExperiment:
  """What experiments of this family share: their task and what identifies it.

  A base class besides one of `experiment.run`.
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
    return prepare(self.settings) if self._prepared is None else self._prepared

  def identity(self, task: Prepared) -> dict[str, Any]:
    return {'data_fingerprint': fingerprint(task.task)}

  def upgraded(self, recorded: Mapping[str, Any]) -> dict[str, Any]:
    if ('algorithm' in recorded) != (self.family == 'ldp_baselines'):
      raise ValueError(f'output_dir={self.folder} holds a run of another program')
    return {'identity': {'data_fingerprint': recorded['data_fingerprint']},
            'settings': self.settings.upgraded(recorded),
            'plan': recorded.get('plan', {})}
