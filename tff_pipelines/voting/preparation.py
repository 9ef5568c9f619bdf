"""The experiment that a vote and its baselines share."""

from collections.abc import Mapping
import dataclasses
import hashlib
import pathlib
from typing import Any

from tasks.models import classifiers
from tasks.voting import task as voting_tasks
from tasks.voting.task import VotingTask
from tff_pipelines.experiment import rounds as rounds_lib
from tff_pipelines.experiment import run as run_lib
from tff_pipelines.experiment import settings as settings_lib
from tff_pipelines.voting import encoder
from tff_pipelines.voting import features as features_lib
from tff_pipelines.voting.settings import VoteSettings

# Steps that the public feature map takes, unless its epochs are given.
_FEATURE_STEPS = 240


def number_of_epochs(given: int | None, count: int, batch_size: int, steps: int) -> int:
  """Epochs that were given, or those of about `steps` steps, from 20 to 60."""
  return given or min(60, max(20, -(-steps // -(-count // batch_size))))


class VotingExperiment(run_lib.Experiment):
  """A vote, or a baseline of one."""

  family = 'vote'
  settings: VoteSettings

  def folder_words(self) -> tuple[str, ...]:
    return 'vote', self.settings.task, self.settings.algorithm

  def build_task(self) -> VotingTask:
    """The task; ValueError for bad data, or settings that do not fit the task.

    Whether they fit is decided by public numbers alone: whether a run starts must not
    depend on a record of an agent. The number and the classes of an agent's records are
    not looked at.
    """
    settings = self.settings
    task = voting_tasks.build(settings.task, **settings.task_options)
    if settings.is_vote and settings.queries > len(task.public):
      raise ValueError(f'queries must be at most the {len(task.public)} public '
                       f'records, found {settings.queries}')
    if settings.client_shift and len(task.record_shape) != 2:
      raise ValueError('client_shift must be 0 for records that are no images, found '
                       f'{settings.client_shift}')
    return task

  def identity(self, task: VotingTask) -> dict[str, Any]:
    """SHA-256 of the agents, the shape of a record and the public records."""
    digest = hashlib.sha256(repr(sorted(
        (name, str(dtype), tuple(shape))
        for name, (dtype, shape) in task.agents.element_spec.items())).encode())
    for agent in task.agents.client_ids:
      digest.update(agent.encode() + b'\0')
    digest.update(task.public.tobytes())
    return {'data_fingerprint': digest.hexdigest()}

  def privacy_unit(self, task: VotingTask) -> str:
    """The difference of two neighbouring inputs, at the level of the run."""
    if self.settings.privacy_level == 'instance':
      return f'one record of an agent (an agent is {task.privacy_unit})'
    return task.privacy_unit

  def feature_config(self, task: VotingTask) -> features_lib.FeatureConfig:
    """Parameters of the feature map; its kind suits the records if none is given."""
    settings, training = self.settings, encoder.DEFAULT_TRAINING
    suitable = 'none'
    if len(task.record_shape) == 1:
      suitable = 'standard'
    elif settings.is_vote:
      height, width = task.record_shape
      suitable = 'contrastive' if height == width else 'pca'
    return features_lib.FeatureConfig(
        kind=settings.features or suitable, dimensions=settings.pca_dimensions,
        seed=settings.feature_seed, training=dataclasses.replace(
            training, learning_rate=settings.feature_learning_rate,
            epochs=number_of_epochs(settings.feature_epochs, len(task.public),
                                    training.batch_size, _FEATURE_STEPS)))

  def given_map(self, task: VotingTask) -> features_lib.PublicFeatures | None:
    """The map of the folder features_from; None if none is given."""
    folder = self.settings.features_from
    if folder is None:
      return None
    features = features_lib.read_map(pathlib.Path(folder), task.public)
    if features is None:
      raise ValueError(f'features_from={folder} holds no feature map')
    return features

  def seen_shape(self, task: VotingTask) -> tuple[int, ...]:
    """The shape of a record as models see it; the feature map need not be fitted yet.

    Raises:
      ValueError: If the map can't be fitted.
    """
    if not self.settings.clients_see_features:
      return task.record_shape
    given = self.given_map(task)
    if given is not None:
      return given(task.public[:1]).shape[1:]
    return features_lib.check(task.public, self.feature_config(task))

  def network(self, task: VotingTask) -> classifiers.Network:
    """The model that is trained, or that federated averaging would send instead.

    Where none is given, a baseline has one of few parameters.
    """
    shape, settings = self.seen_shape(task), self.settings
    if len(shape) == 2:
      suitable = 'cnn' if settings.is_vote else 'cnn_small'
    else:
      suitable = 'mlp' if settings.algorithm == 'knn' else 'softmax'
    return classifiers.build(settings.model or suitable, shape, task.num_classes)

  def public_map(self, task: VotingTask) -> features_lib.PublicFeatures:
    """The feature map: that of the folder, of another run's folder, or a new one."""
    features = features_lib.read_map(self.folder, task.public)
    if features is not None:
      return features
    features = self.given_map(task)
    if features is None:
      config = self.feature_config(task)
      if config.kind == 'contrastive':
        with rounds_lib.progress(config.training.epochs, 0, 'feature epoch') as bar:
          features = features_lib.fit(task.public, config, lambda _: bar.update())
      else:
        features = features_lib.fit(task.public, config)
    features_lib.write_map(self.folder, features, task.public)
    return features

  def upgraded(self, recorded: Mapping[str, Any]) -> dict[str, Any]:
    # None stood for the default.
    recorded = {name: value for name, value in recorded.items() if value is not None}
    plan = recorded['plan']
    if recorded['algorithm'] == 'dp_fedavg' and recorded['noise'] == 'gaussian':
      recorded['noise'] = 'gaussian_central'  # As it was.
    for name, value in self.settings.client_training('softmax').items():
      # Agents that vote and those of baselines had settings of their own.
      given, of_agent = f'client_{name}', recorded.pop(f'agent_{name}', None)
      if self.settings.algorithm == 'ae':
        recorded[given] = of_agent
      elif recorded[given] == value:
        recorded[given] = getattr(self.settings, given)
    return {'identity': {'data_fingerprint': recorded['data_fingerprint']},
            'settings': settings_lib.of_version_1(
                VoteSettings, {**recorded, **recorded['task_options']}),
            'plan': plan.get('params', plan)}
