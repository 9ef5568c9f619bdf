"""The experiment that a vote shares with its baselines: features, queries, student."""

import dataclasses
import hashlib
import pathlib
from typing import Any

import numpy as np
import tensorflow as tf

from tasks import task as task_lib
from tasks.models import classifiers
from tasks.voting import task as voting_tasks
from tasks.voting.task import VotingTask
from tff_pipelines.common import declarations, files
from tff_pipelines.experiment import (
    models, report as report_lib, rounds as rounds_lib, run as run_lib)
from tff_pipelines.fedavg import adam, report as fedavg_report
from tff_pipelines.voting import (
    encoder, features as features_lib, serving, student as student_lib)
from tff_pipelines.voting.settings import VoteSettings

# File of a run's folder that keeps the queries.
QUERIES = 'queries.npz'


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
    settings = self.settings
    # Whether a run starts must depend on public numbers alone, on no agent's records.
    task = voting_tasks.build(settings.task, **settings.task_options)
    if settings.has_student and settings.queries > len(task.public):
      raise ValueError(
          f'queries must be at most {len(task.public)}, found {settings.queries}')
    if settings.client_shift and len(task.record_shape) != 2:
      raise ValueError(
          f'client_shift must be 0 without images, found {settings.client_shift}')
    network = self.network(task)  # Raises what does not fit.
    if settings.adversarial_strength and len(network.shapes) == 1:
      raise ValueError(f'adversarial_strength={settings.adversarial_strength:g} needs a '
                       f'model that learns features, found model={network.name}')
    if settings.student_model == 'encoder':
      kind = (self.given_map(task) or self.feature_config(task)).kind
      if kind != 'contrastive':
        raise ValueError(
            f'student_model=encoder needs features=contrastive, found features={kind}')
    return task

  def identity(self, task: VotingTask) -> dict[str, Any]:
    """SHA-256 of the agents, the shape of a record and the public records."""
    spec = sorted((name, str(dtype), tuple(shape))
                  for name, (dtype, shape) in task.agents.element_spec.items())
    agents = ''.join(f'{agent}\0' for agent in task.agents.client_ids)
    return {'data_fingerprint': hashlib.sha256(
        f'{spec}{agents}'.encode() + task.public.tobytes()).hexdigest()}

  def privacy_unit(self, task: VotingTask) -> str:
    """The difference of two neighbouring inputs, at the level of the run."""
    return task.privacy_unit if self.settings.privacy_level == 'agent' else (
        f'one record of an agent (an agent is {task.privacy_unit})')

  def feature_config(self, task: VotingTask) -> features_lib.FeatureConfig:
    settings, training = self.settings, encoder.DEFAULT_TRAINING
    shape = task.record_shape
    suitable = ('standard' if len(shape) == 1 else 'none' if not settings.has_student else
                'contrastive' if shape[0] == shape[1] else 'pca')
    return features_lib.FeatureConfig(
        kind=settings.features or suitable, dimensions=settings.pca_dimensions,
        seed=settings.feature_seed, training=dataclasses.replace(
            training, learning_rate=settings.feature_learning_rate,
            epochs=number_of_epochs(settings.feature_epochs, len(task.public),
                                    training.batch_size, steps=240)))

  def given_map(self, task: VotingTask) -> features_lib.PublicFeatures | None:
    folder = self.settings.features_from
    if folder is None:
      return None
    features = features_lib.read_map(pathlib.Path(folder), task.public)
    if features is None:
      raise ValueError(f'features_from={folder} holds no feature map')
    return features

  def serving(self, trained: models.Trained) -> task_lib.Serving:
    return serving.serving(trained, self.settings.task)

  def network(self, task: VotingTask) -> classifiers.Network:
    """The model that is trained, or that federated averaging would send instead."""
    shape, settings = task.record_shape, self.settings
    if settings.clients_see_features:
      given = self.given_map(task)
      shape = given(task.public[:1]).shape[1:] if given else features_lib.check(
          task.public, self.feature_config(task))
    suitable = 'mlp' if settings.algorithm == 'knn' else 'softmax'
    if len(shape) == 2:
      suitable = 'cnn' if settings.is_vote else 'cnn_small'
    return classifiers.build(settings.model or suitable, shape, task.num_classes)

  def public_map(self, task: VotingTask) -> features_lib.PublicFeatures:
    """The feature map: that of the folder, of another run's folder, or a new one."""
    if (features := features_lib.read_map(self.folder, task.public)) is not None:
      return features
    if (features := self.given_map(task)) is None:
      config = self.feature_config(task)
      with rounds_lib.progress(config.training.epochs, 0, 'feature epoch',
                               quiet=config.kind != 'contrastive') as bar:
        features = features_lib.fit(task.public, config, lambda _: bar.update())
    features_lib.write_map(self.folder, features, task.public)
    return features

  def queries(self, public: np.ndarray) -> np.ndarray:
    """Rows of the queries, int64 [Q], chosen by public features [P, d] and kept."""
    kept = files.read_checked_arrays(self.folder, QUERIES)
    if kept is None:
      settings = self.settings
      kept = {'rows': features_lib.choose_queries(
          public, settings.queries, settings.query_choice, settings.feature_seed)}
      files.write_checked_arrays(self.folder, QUERIES, kept)
    return kept['rows']

  def student_view(self, task: VotingTask, features: features_lib.PublicFeatures,
                   flat: np.ndarray) -> tuple[student_lib.Architecture, np.ndarray, dict]:
    """The student's network, its public records (`flat` if mapped), its test records."""
    public, test, seed = task.public, task.test, self.settings.student_seed
    images = len(task.record_shape) == 2
    name = self.settings.student_model or (
        'encoder' if features.encoder else 'cnn' if images else 'softmax')
    if name == 'encoder':
      return student_lib.of_encoder(
          features.encoder.weights, task.num_classes, seed), public, test
    if not images or name not in serving.OF_IMAGES:
      public, test = flat, {**test, 'x': features_lib.flat(features(test['x']))}
    return student_lib.of_network(
        classifiers.build(name, public.shape[1:], task.num_classes), seed), public, test

  def taught(self, task: VotingTask, features: features_lib.PublicFeatures,
             flat: np.ndarray, rows: np.ndarray, labels: np.ndarray,
             title: str) -> dict[str, Any]:
    """Trains the student, or resumes that; returns what `report.outcome` says of it.

    `flat`, float32 [P, d], are public records through the map; `labels`, int [Q], those
    of the queries `rows`, below 0 where there is none.
    """
    settings, answered = self.settings, labels >= 0
    architecture, public, test = self.student_view(task, features, flat)
    method = settings.student_method
    count = len(public) if method == 'spread' else max(1, answered.sum())
    student = student_lib.Student(
        architecture, public, flat, rows[answered], labels[answered], task.num_classes,
        method=method, seed=settings.student_seed, test=test,
        own_labels_after=settings.own_labels_after, training=adam.AdamConfig(
            **declarations.shared(
                adam.AdamConfig, settings, 'student_', weight_decay=1e-3,
                epochs=number_of_epochs(settings.student_epochs, int(count),
                                        settings.student_batch_size, steps=180))))
    curve = student_lib.train(student, self.folder)
    # By the true labels, for measurements alone.
    right = float((labels == task.public_labels[rows])[answered].mean())
    return dict(
        metrics={name: curve[-1][name] for name in ('accuracy', 'loss')},
        trained={'': serving.trained(task, features, student.name, student.state[0])},
        labels=f'; {100 * right:.1f}% of {answered.sum()} labels right',
        lines=[f'released labels: {100 * answered.mean():.1f}% of {len(rows)} '
               f'queries answered, {100 * right:.1f}% of them right'],
        files=(files.METRICS, student_lib.CURVE),
        figures={files.FIGURE: lambda path: report_lib.draw(
            path, [report_lib.Curve(
                label='accuracy', x=[row['epoch'] for row in curve],
                y=[row['accuracy'] for row in curve])],
            title=title, xlabel='epoch of the student', ylabel='accuracy on test')},
        details={'queries': len(rows), 'answered': float(answered.mean()),
                 'labels_right': right, 'student': method, 'student_model': student.name})

  def evaluate(self, task, trained):
    features = self.public_map(task)
    architecture, public, test = self.student_view(
        task, features, features_lib.flat(features(task.public)))
    predicted = architecture.probabilities(serving.own_weights(trained), *(
        classifiers.to_float(tf.constant(x)) for x in (test['x'], public)))
    return fedavg_report.finite_results(
        {'test': student_lib.metrics(predicted, test['y'])})
