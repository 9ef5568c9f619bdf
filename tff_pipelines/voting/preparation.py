"""Steps that the vote and its baselines have in common: data, features, folder."""

from collections.abc import Mapping
import dataclasses
import hashlib
import pathlib
from typing import Any

import numpy as np

from tasks.voting import task as voting_tasks
from tasks.voting.task import VotingTask
from tff_pipelines.experiment import rounds as rounds_lib
from tff_pipelines.experiment import run as run_lib
from tff_pipelines.experiment import settings as settings_lib
from tff_pipelines.voting import encoder
from tff_pipelines.voting import features as features_lib
from tff_pipelines.voting import records
from tff_pipelines.voting.settings import VoteSettings

# Steps that the public feature map takes, unless its epochs are given.
_FEATURE_STEPS = 240


def number_of_epochs(given: int | None, count: int, batch_size: int, steps: int) -> int:
  """Epochs that were given, or those of about `steps` steps, from 20 to 60."""
  if given is not None:
    return given
  return min(60, max(20, -(-steps // -(-count // batch_size))))


def feature_config(settings: VoteSettings,
                   task: VotingTask) -> features_lib.FeatureConfig:
  """How the feature map is fitted; its kind suits the records if none is given."""
  kind = settings.features
  if kind is None and len(task.record_shape) == 1:
    kind = 'standard'
  elif kind is None and not settings.is_vote:
    kind = 'none'
  elif kind is None:
    height, width = task.record_shape
    kind = 'contrastive' if height == width else 'pca'
  training = encoder.DEFAULT_TRAINING
  epochs = number_of_epochs(settings.feature_epochs, len(task.public),
                            training.batch_size, _FEATURE_STEPS)
  return features_lib.FeatureConfig(
      kind=kind, dimensions=settings.pca_dimensions, seed=settings.feature_seed,
      training=dataclasses.replace(
          training, epochs=epochs, learning_rate=settings.feature_learning_rate))


def given_map(task: VotingTask,
              settings: VoteSettings) -> features_lib.PublicFeatures | None:
  """The map of the folder features_from; None if none is given."""
  if settings.features_from is None:
    return None
  features = records.read_map(pathlib.Path(settings.features_from), task.public)
  if features is None:
    raise ValueError(f'features_from={settings.features_from} holds no feature map')
  return features


def seen_shape(task: VotingTask, settings: VoteSettings) -> tuple[int, ...]:
  """The shape of a record through the feature map, which need not be fitted yet.

  Raises:
    ValueError: If the map can't be fitted.
  """
  given = given_map(task, settings)
  if given is not None:
    return given(task.public[:1]).shape[1:]
  return features_lib.check(task.public, feature_config(settings, task))


def public_map(task: VotingTask, settings: VoteSettings,
               folder: pathlib.Path) -> features_lib.PublicFeatures:
  """The feature map: that of the folder, of another run's folder, or a new one."""
  features = records.read_map(folder, task.public)
  if features is not None:
    return features
  features = given_map(task, settings)
  if features is None:
    config = feature_config(settings, task)
    if config.kind == 'contrastive':
      with rounds_lib.progress(config.training.epochs, 0, 'feature epoch') as bar:
        features = features_lib.fit(task.public, config, lambda _: bar.update())
    else:
      features = features_lib.fit(task.public, config)
  records.write_map(folder, features, task.public)
  return features


def check_task(task: VotingTask, settings: VoteSettings) -> None:
  """Raises ValueError for settings that do not fit the task.

  It depends on public numbers alone: whether a run starts must not depend on a record
  of an agent. How many records an agent has, and of which classes, is not looked at.
  """
  if settings.is_vote and settings.queries > len(task.public):
    raise ValueError(f'queries must be at most the {len(task.public)} public '
                     f'records, found {settings.queries}')
  if settings.client_shift and len(task.record_shape) != 2:
    raise ValueError('client_shift must be 0 for records that are no images, found '
                     f'{settings.client_shift}')


def fingerprint(task: VotingTask) -> str:
  """SHA-256 of the agents, the shape of a record and the public records."""
  digest = hashlib.sha256(repr(sorted(
      (name, str(dtype), tuple(shape))
      for name, (dtype, shape) in task.agents.element_spec.items())).encode())
  for agent in task.agents.client_ids:
    digest.update(agent.encode() + b'\0')
  digest.update(np.ascontiguousarray(task.public).tobytes())
  return digest.hexdigest()


def privacy_unit(task: VotingTask, settings: VoteSettings) -> str:
  """What one of two neighbouring inputs lacks, at the level of the run."""
  if settings.privacy_level == 'instance':
    return f'one record of an agent (an agent is {task.privacy_unit})'
  return task.privacy_unit


class VotingExperiment(run_lib.Experiment):
  """A vote, or a baseline of one."""

  family = 'vote'
  settings: VoteSettings

  def folder_words(self) -> tuple[str, ...]:
    return 'vote', self.settings.task, self.settings.algorithm

  def build_task(self) -> VotingTask:
    task = voting_tasks.build(self.settings.task, **self.settings.task_options)
    check_task(task, self.settings)
    return task

  def identity(self, task: VotingTask) -> dict[str, Any]:
    return {'data_fingerprint': fingerprint(task)}

  def upgraded(self, recorded: Mapping[str, Any]) -> dict[str, Any]:
    recorded = dict(recorded)
    plan = recorded.pop('plan')
    if recorded['algorithm'] == 'dp_fedavg' and recorded['noise'] == 'gaussian':
      recorded['noise'] = 'gaussian_central'  # As it was.
    for name, default in self.settings.client_training('softmax').items():
      # Agents that vote and those of baselines had settings of their own.
      of_agent = recorded.pop(f'agent_{name}')
      if self.settings.algorithm == 'ae':
        recorded[f'client_{name}'] = of_agent
      elif getattr(self.settings, f'client_{name}') is None and (
          recorded[f'client_{name}'] == default):
        recorded[f'client_{name}'] = None
    if recorded['agent_weight_decay'] is None:
      del recorded['agent_weight_decay']
    settings = settings_lib.of_version_1(
        VoteSettings, {**recorded, **recorded['task_options']})
    for name, _ in self.settings.unused():  # Was recorded all the same.
      settings.pop(name, None)
    return {'identity': {'data_fingerprint': recorded['data_fingerprint']},
            'settings': settings, 'plan': plan.get('params', plan)}
