"""The experiment that a vote shares with its baselines FedAvg, DP-FedAvg, DP-FedSGD.

It knows the public features, the queries, and the student that learns from their labels.
"""

import dataclasses
import pathlib
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tasks import task as task_lib
from tasks.models import classifiers
from tasks.sources import ids
from tasks.voting import task as voting_tasks
from tasks.voting.task import VotingTask
from tff_pipelines.accounting.guarantees import mechanisms, plan as guarantee
from tff_pipelines.baselines import sgd
from tff_pipelines.common import declarations, files
from tff_pipelines.experiment import (
    models, report as report_lib, rounds as rounds_lib, run as run_lib)
from tff_pipelines.fedavg import (
    adam, local_training, loop, report as fedavg_report, run as fedavg_run)
from tff_pipelines.fedavg.plan import FedAvgPlan
from tff_pipelines.fedavg.server_optimizer import ServerConfig
from tff_pipelines.voting import (
    agents, encoder, features as features_lib, report, serving, student as student_lib)
from tff_pipelines.voting.settings import VoteSettings

# File of a run's folder that keeps the queries.
QUERIES = 'queries.npz'


class Asked(NamedTuple):
  """The queries, and how the server sees public records.

  `flat`, float32 [P, d], are public records through the map; `rows`, int64 [Q], queries.
  """

  features: features_lib.PublicFeatures
  flat: np.ndarray
  rows: np.ndarray


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
    digest = ids.digest_of(task.agents)
    digest.update(task.public.tobytes())
    return {'data_fingerprint': digest.hexdigest()}

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
    if (folder := self.settings.features_from) is None:
      return None
    if (features := features_lib.read_map(pathlib.Path(folder), task.public)) is None:
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
      # Noise grows with the number of parameters.
      suitable = {'fedavg': 'cnn_small', 'dp_fedavg': 'softmax', 'dp_fedsgd': 'softmax'
                  }.get(settings.algorithm, 'cnn')
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

  def asked(self, task: VotingTask) -> Asked:
    """The queries, chosen unless they are kept, through the public map."""
    features, settings = self.public_map(task), self.settings
    flat = features_lib.flat(features(task.public))
    if (kept := files.read_checked_arrays(self.folder, QUERIES)) is None:
      kept = {'rows': features_lib.choose_queries(
          flat, settings.queries, settings.query_choice, settings.feature_seed)}
      files.write_checked_arrays(self.folder, QUERIES, kept)
    return Asked(features, flat, kept['rows'])

  def _student_view(self, task: VotingTask, asked: Asked
                    ) -> tuple[student_lib.Architecture, np.ndarray, dict]:
    """The student's network, its public records (mapped or not), its test records."""
    public, test, seed = task.public, task.test, self.settings.student_seed
    features, images = asked.features, len(task.record_shape) == 2
    name = self.settings.student_model or (
        'encoder' if features.encoder else 'cnn' if images else 'softmax')
    if name == 'encoder':
      return student_lib.of_encoder(
          features.encoder.weights, task.num_classes, seed), public, test
    if not images or name not in serving.OF_IMAGES:
      public, test = asked.flat, {**test, 'x': features_lib.flat(features(test['x']))}
    return student_lib.of_network(
        classifiers.build(name, public.shape[1:], task.num_classes), seed), public, test

  def taught(self, task: VotingTask, asked: Asked, labels: np.ndarray,
             title: str) -> dict[str, Any]:
    """Trains the student, or resumes that; returns what `report.outcome` says of it.

    `labels`, int [Q], are those of the queries, below 0 where there is none.
    """
    settings, answered, rows = self.settings, labels >= 0, asked.rows
    architecture, public, test = self._student_view(task, asked)
    method = settings.student or 'spread'
    count = len(public) if method == 'spread' else max(1, answered.sum())
    student = student_lib.Student(
        architecture, public, asked.flat, rows[answered], labels[answered],
        task.num_classes, method=method, seed=settings.student_seed, test=test,
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
        trained={'': serving.trained(
            task, asked.features, student.name, student.state[0])},
        labels=f'; {100 * right:.1f}% of {answered.sum()} labels right',
        lines=[f'released labels: {100 * answered.mean():.1f}% of {len(rows)} '
               f'queries answered, {100 * right:.1f}% of them right'],
        files=(files.METRICS, student_lib.CURVE),
        figures={files.FIGURE: lambda path: report_lib.draw(
            path, [report_lib.Curve(label='accuracy', x=[row['epoch'] for row in curve],
                                    y=[row['accuracy'] for row in curve])],
            title=title, xlabel='epoch of the student', ylabel='accuracy on test')},
        details={'queries': len(rows), 'answered': float(answered.mean()),
                 'labels_right': right, 'student': method, 'student_model': student.name})

  def evaluate(self, task, trained):
    architecture, public, test = self._student_view(task, self.asked(task))
    predicted = architecture.probabilities(serving.own_weights(trained), *(
        classifiers.to_float(tf.constant(x)) for x in (test['x'], public)))
    return fedavg_report.finite_results(
        {'test': student_lib.metrics(predicted, test['y'])})


class _BaselineExperiment(VotingExperiment):
  """Rounds on the agents' records, or on what the public map makes of them.

  With a student the released model labels the public queries, and the student learns
  from them as from the labels of a vote.
  """

  mechanism_line = staticmethod(fedavg_report.mechanism_line)

  def planned_rounds(self, plan) -> int:
    return self.settings.rounds

  def run_line(self, plan: FedAvgPlan, rounds: int) -> str:
    return f'{self.settings.algorithm}: {fedavg_report.run_line(plan, rounds)}'

  def describe(self, task, plan) -> report_lib.Description:
    model = self.model(task)
    return report.describe(task, [
        ('model', f'{model.name} with {model.parameter_count():,} parameters'),
        ('run', self.run_line(plan, self.settings.rounds)),
        ('mechanism', self.mechanism_line(plan))])

  def model(self, task: VotingTask, public: np.ndarray | None = None) -> task_lib.Model:
    """The model that is averaged; its loss may need the public records as it sees them."""
    network, strength = self.network(task), self.settings.adversarial_strength
    return agents.adversarial_model(network, public, strength) if strength else (
        network.as_model())

  def federated(self, task: VotingTask) -> task_lib.Task:
    # No record may change the others' features, which one row of many does.
    seen = task if not self.settings.clients_see_features else (
        features_lib.map_records(task, self.public_map(task), alone=True))
    return task_lib.Task(
        name=task.name, model=self.model(task, seen.public), train=seen.agents,
        held_out={'test': seen.test}, privacy_unit=task.privacy_unit)

  def evaluate(self, task, trained):
    return super().evaluate(task, trained) if self.settings.has_student else (
        fedavg_report.evaluated(self.federated(task), serving.own_weights(trained)))

  def answers(self, task: VotingTask, weights: Any, asked: Asked) -> np.ndarray:
    """Labels of the queries by the model; int [Q], -1 for none."""
    queries = task.public[asked.rows]
    if self.settings.clients_see_features:
      queries = asked.features(queries, alone=True)
    best, is_sure = agents.opinions(tf.nn.softmax(
        self.network(task).logits(weights, queries)), self.settings.client_confidence)
    return tf.where(is_sure, best, -1).numpy()

  def _outcome(self, task: VotingTask, plan: guarantee.Plan, state: Any,
               results: fedavg_report.Results, details: dict[str, Any],
               **fields: Any) -> report_lib.Outcome:
    settings, metrics = self.settings, results['test']
    title = fedavg_report.title(
        plan, f'{task.name}, {settings.algorithm}', settings.rounds)
    network = self.network(task)
    # Without those of a discriminator.
    weights = state['process']['weights'][:len(network.weight_names)]
    if settings.has_student:
      asked = self.asked(task)
      own = self.taught(task, asked, self.answers(task, weights, asked), title)
      own['lines'].append(fedavg_report.in_words('model that labelled', metrics))
    else:
      own = dict(
          metrics=metrics, files=(files.METRICS,), details={},
          trained={'': serving.trained(
              task, self.public_map(task), network.name, weights)},
          figures={files.FIGURE: lambda path: fedavg_report.draw_metrics(
              path, 'test', title)})
    return report.outcome(
        task, settings, fields={
            **fields, 'model': network.name,
            'details': {**details, **own.pop('details'),
                        'features': self.public_map(task).kind}},
        **own)

  def outcome(self, task, plan, rounds, state) -> report_lib.Outcome:
    params, mechanism = plan.params, plan.mechanism
    sent = (mechanism.dimension * 4.0 if params is None else
            params.padded_dimension * params.bits / 8)
    return self._outcome(task, plan, state, rounds.results(state), {
        'noise': self.settings.noise if plan.is_private else None,
        'uplink_bytes_per_agent': (
            sent * mechanism.rounds * (1.0 if mechanism.silos else (
                mechanism.cohort_size / mechanism.population)))},
                         **fedavg_report.fields(plan))


class AveragingExperiment(_BaselineExperiment):
  """FedAvg and DP-FedAvg."""

  def build_plan(self, task, recorded) -> FedAvgPlan:
    settings, agents = self.settings, len(task.agents.client_ids)
    mechanism, cohort = 'none', settings.cohort_size or float(agents)
    if settings.algorithm == 'dp_fedavg':
      mechanism = 'skellam' if settings.noise == 'skellam' else 'gaussian'
    return FedAvgPlan.calibrate(
        mechanisms.SumMechanism(**declarations.shared(
            mechanisms.SumMechanism, settings, mechanism=mechanism, population=agents,
            dimension=self.model(task).parameter_count(),
            cohort_size=cohort, sampling='none' if cohort == agents else 'poisson')),
        delta=settings.privacy_delta(agents, recorded),
        target_epsilon=settings.target_epsilon,
        recorded_noise=recorded and recorded['noise_multiplier'], seed=settings.seed,
        privacy_unit=self.privacy_unit(task))

  def build_rounds(self, task, plan) -> loop.FedAvgRounds:
    settings, task = self.settings, self.federated(task)
    return fedavg_run.build_rounds(
        task, plan, task.model.initial_weights(settings.initial_weights_seed),
        local=local_training.LocalConfig(**settings.client_training(task.model.name)),
        server=ServerConfig(**declarations.shared(ServerConfig, settings, 'server_')),
        clients_per_call=settings.clients_per_call, on_bad=self.write_bad(),
        rounds_per_evaluation=settings.rounds_per_evaluation)


class FedSgdExperiment(_BaselineExperiment):
  """DP-FedSGD."""

  def build_plan(self, task, recorded) -> FedAvgPlan:
    settings, agents = self.settings, task.agents.client_ids
    records = sum(len(task.agents.examples(agent)['y']) for agent in agents)
    return sgd.build_plan(
        settings, recorded, epsilon=settings.target_epsilon, agents=len(agents),
        delta=settings.privacy_delta(records, recorded), records=records,
        mechanism='skellam' if settings.noise == 'skellam' else 'gaussian',
        dimension=self.network(task).as_model().parameter_count(),
        record_adjacency=settings.adjacency, privacy_unit=self.privacy_unit(task))

  def build_rounds(self, task, plan) -> loop.FedAvgRounds:
    settings, task = self.settings, self.federated(task)
    return sgd.build_rounds(
        task, plan, task.model.initial_weights(settings.initial_weights_seed),
        learning_rate=settings.server_learning_rate, momentum=settings.server_momentum,
        rounds_per_evaluation=settings.rounds_per_evaluation)
