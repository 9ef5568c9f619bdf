"""A run of AE-DPFL or kNN-DPFL: public features, the vote, the student."""

import collections
import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from aggregators.voting import VotingFactory
from aggregators.voting_params import VotingParams
from tasks.models import classifiers
from tasks.voting.task import VotingTask
from tff_pipelines.common import declarations, decimals, files
from tff_pipelines.experiment import report as report_lib, rounds as rounds_lib
from tff_pipelines.fedavg import adam, report as fedavg_report
from tff_pipelines.simulation import contexts
from tff_pipelines.voting import (
    agents, baselines, features as features_lib, knn, process, report, serving,
    student as student_lib)
from tff_pipelines.voting.plan import VotePlan
from tff_pipelines.voting.settings import VoteSettings

# File of a run's folder that keeps the queries.
QUERIES = 'queries.npz'


@dataclasses.dataclass(kw_only=True, eq=False)
class VoteRounds(rounds_lib.Rounds):
  """The one round of a vote; its state is the labels and no more.

  `public`, float32 [P, d], are records through the map; `rows`, int64 [Q], the queries.
  """

  task: VotingTask
  plan: VotePlan
  settings: VoteSettings
  network: classifiers.Network
  features: features_lib.PublicFeatures
  public: np.ndarray
  rows: np.ndarray

  count = 1
  unit = 'vote'

  def initial_state(self, resumed: bool) -> Any:
    # -2 stands for a label before the vote.
    return collections.OrderedDict(labels=np.full(len(self.rows), -2, np.int32))

  def step(self, state: Any, index: int) -> rounds_lib.Step:
    settings, seen, seed = self.settings, self.task, self.plan.seed
    if settings.clients_see_features:
      # One record more or less must not move the others' features, not by a bit.
      seen = features_lib.map_records(
          seen, self.features, alone=settings.algorithm == 'knn')
    if settings.algorithm == 'knn':
      seen = features_lib.as_grid(seen)
      answer = knn.nearest_votes(settings.neighbours, seen.num_classes)
    else:
      answer = agents.trained_votes(
          self.network, self.network.initial_weights(settings.initial_weights_seed),
          agents.AgentConfig(**declarations.shared(
              agents.AgentConfig, settings, 'client_',
              adversarial=settings.adversarial_strength, training=adam.AdamConfig(
                  weight_decay=settings.client_weight_decay,
                  **settings.client_training(self.network.name)))))
    voting = process.build(
        answer, VotingFactory(self.plan.params, simulation_seed=seed),
        seen.agents.element_spec)
    # Values of `fedavg.process.client_type`.
    values = [collections.OrderedDict(
        examples=collections.OrderedDict(sorted(seen.agents.examples(agent).items())),
        **({} if seed is None else {'key': contexts.client_key(seed, 1, number)}))
              for number, agent in enumerate(seen.agents.client_ids)]
    unlabelled = seen.public if settings.adversarial_strength > 0 else None
    output = voting.next(
        voting.initialize(), process.public_value(seen.public[self.rows], unlabelled),
        values)
    labels = np.asarray(output['labels'])
    return rounds_lib.Step(
        state=collections.OrderedDict(labels=labels),
        suppressed=bool(output['measurements']['suppressed']),
        metrics={'answered': float((labels >= 0).mean())})


def student_view(task: VotingTask, settings: VoteSettings,
                 features: features_lib.PublicFeatures, flat: np.ndarray
                 ) -> tuple[student_lib.Architecture, np.ndarray, dict]:
  """The student's network, its public records (`flat` if mapped), its test records."""
  public, test, seed = task.public, task.test, settings.student_seed
  images = len(task.record_shape) == 2
  name = settings.student_model or (
      'encoder' if features.encoder else 'cnn' if images else 'softmax')
  if name == 'encoder':
    return student_lib.of_encoder(
        features.encoder.weights, task.num_classes, seed), public, test
  if not images or name not in serving.OF_IMAGES:
    public, test = flat, {**test, 'x': features_lib.flat(features(test['x']))}
  return student_lib.of_network(
      classifiers.build(name, public.shape[1:], task.num_classes), seed), public, test


def build_student(rounds: VoteRounds, labels: np.ndarray) -> student_lib.Student:
  task, settings, answered = rounds.task, rounds.settings, labels >= 0
  architecture, public, test = student_view(
      task, settings, rounds.features, rounds.public)
  count = len(public) if settings.student == 'spread' else max(1, answered.sum())
  training = adam.AdamConfig(**declarations.shared(
      adam.AdamConfig, settings, 'student_', weight_decay=1e-3,
      epochs=baselines.number_of_epochs(
          settings.student_epochs, int(count), settings.student_batch_size, steps=180)))
  return student_lib.Student(
      architecture, public, rounds.public, rounds.rows[answered], labels[answered],
      task.num_classes, method=settings.student, seed=settings.student_seed, test=test,
      own_labels_after=settings.own_labels_after, training=training)


class VoteExperiment(baselines.VotingExperiment):
  def build_task(self) -> VotingTask:
    task = super().build_task()
    self.network(task)  # Raises what does not fit.
    if self.settings.student_model == 'encoder':
      kind = (self.given_map(task) or self.feature_config(task)).kind
      if kind != 'contrastive':
        raise ValueError(
            f'student_model=encoder needs features=contrastive, found features={kind}')
    return task

  def targets(self) -> dict[str, float]:
    # The published formula is no bound.
    return {} if self.settings.bound == 'paper' else super().targets()

  def build_plan(self, task, recorded) -> VotePlan:
    settings = self.settings
    agents = len(task.agents.client_ids)
    # How many records there are is no one's to know: one may be added or removed.
    units = agents if settings.privacy_level == 'agent' else None
    return VotePlan.calibrate(
        VotingParams(**declarations.shared(
            VotingParams, settings, classes=task.num_classes, noise_stddev=1.0,
            agents=agents, votes=settings.neighbours or 1)),
        target_epsilon=None if recorded else settings.target_epsilon,
        noise_stddev=settings.noise_stddev or (recorded and recorded['noise_stddev']),
        allow_degenerate=settings.allow_degenerate, scheme=settings.algorithm,
        level=settings.privacy_level, delta=settings.privacy_delta(units, recorded),
        calibrated_by=settings.bound, seed=settings.seed,
        privacy_unit=self.privacy_unit(task))

  def describe(self, task, plan) -> report_lib.Description:
    params = plan.params
    stddev, counts = (decimals.rounded_up(value) for value in (
        params.noise_stddev, params.votes * params.noise_stddev))
    return report.describe(task, [
        ('run', self.run_line(plan, 1)), ('mechanism', (
            f'{params.noise}, standard deviation {stddev} agents'
            + f' ({counts} counts)' * (params.votes > 1)
            + f', sum modulo 2^{params.bits}' * params.is_integer)),
        ('published', f'epsilon {decimals.epsilon(plan.epsilon_published)} by the '
                      'formula of the paper')])

  def run_line(self, plan: VotePlan, rounds: int) -> str:
    params = plan.params
    by = ('models of their own' if plan.scheme == 'ae' else
          f'their {params.votes} nearest records')
    return f'{params.agents} agents vote on {params.queries} queries by {by}'

  def build_rounds(self, task, plan) -> VoteRounds:
    settings, features = self.settings, self.public_map(task)
    public = features_lib.flat(features(task.public))
    queries = files.read_checked_arrays(self.folder, QUERIES)
    if queries is None:
      queries = {'rows': features_lib.choose_queries(
          public, settings.queries, settings.query_choice, settings.feature_seed)}
      files.write_checked_arrays(self.folder, QUERIES, queries)
    return VoteRounds(
        task=task, plan=plan, settings=settings, network=self.network(task),
        features=features, public=public, rows=queries['rows'])

  def outcome(self, task, plan, rounds, state) -> report_lib.Outcome:
    settings, params, labels = self.settings, plan.params, np.asarray(state['labels'])
    student = build_student(rounds, labels)
    curve = student_lib.train(student, self.folder)
    answered, is_ae = labels >= 0, plan.scheme == 'ae'
    # By the true labels, for measurements alone.
    right = float((labels == task.public_labels[rounds.rows])[answered].mean())
    parameters = rounds.network.as_model().parameter_count()
    title = fedavg_report.title(plan, f'{task.name}, {plan.scheme}', 1)
    return report.outcome(
        task, settings, {name: curve[-1][name] for name in ('accuracy', 'loss')},
        trained={'': serving.trained(
            task, rounds.features, student.name, student.state[0])},
        labels=f'; {100 * right:.1f}% of {answered.sum()} labels right',
        lines=[f'released labels: {100 * answered.mean():.1f}% of {params.queries} '
               f'queries answered, {100 * right:.1f}% of them right'],
        files=(files.METRICS, student_lib.CURVE),
        figures={files.FIGURE: lambda path: report_lib.draw(
            path, [report_lib.Curve(
                label='accuracy', x=[row['epoch'] for row in curve],
                y=[row['accuracy'] for row in curve])],
            title=title, xlabel='epoch of the student', ylabel='accuracy on test')},
        fields={
            'mechanism': f'{plan.scheme}_vote', 'cohort_size': params.agents,
            'noise_stddev': params.noise_stddev,
            'bits': params.bits if params.is_integer else None,
            'model': rounds.network.name if is_ae else None,
            'parameters': parameters if is_ae else None,
            'details': {
                **{name: getattr(settings, name) for name in (
                    'noise', 'bound', 'queries', 'threshold', 'neighbours', 'student')},
                'answered': float(answered.mean()), 'labels_right': right,
                'features': rounds.features.kind, 'student_model': student.name,
                'epsilon_published': files.finite(plan.epsilon_published),
                'uplink_bytes_per_agent': params.uplink_bytes,
                'uplink_of_federated_averaging': 4.0 * parameters * settings.rounds,
                'parameters_of_federated_averaging': parameters}})

  def evaluate(self, task, trained):
    features = self.public_map(task)
    architecture, public, test = student_view(
        task, self.settings, features, features_lib.flat(features(task.public)))
    predicted = architecture.probabilities(serving.own_weights(trained), *(
        classifiers.to_float(tf.constant(x)) for x in (test['x'], public)))
    return fedavg_report.finite_results(
        {'test': student_lib.metrics(predicted, test['y'])})


def experiment(settings: VoteSettings) -> baselines.VotingExperiment:
  """The vote, or the baseline, of these settings."""
  return {'ae': VoteExperiment, 'knn': VoteExperiment,
          'dp_fedsgd': baselines.FedSgdExperiment}.get(
              settings.algorithm, baselines.AveragingExperiment)(settings)


def vote(settings: VoteSettings) -> dict[str, Any]:
  """Votes and trains the student, or runs a baseline; returns the summary."""
  return experiment(settings).run()
