"""The baselines of a vote: FedAvg, DP-FedAvg and DP-FedSGD, maybe with its student."""

from typing import Any

import numpy as np
import tensorflow as tf

from tasks import task as task_lib
from tasks.voting.task import VotingTask
from tff_pipelines.accounting.guarantees import (
    mechanisms, noise_budget, plan as guarantee)
from tff_pipelines.baselines import sgd
from tff_pipelines.common import declarations, files
from tff_pipelines.experiment import report as report_lib
from tff_pipelines.fedavg import (
    local_training, loop, report as fedavg_report, run as fedavg_run)
from tff_pipelines.fedavg.noisy_sgd import NoisySgdPlan
from tff_pipelines.fedavg.plan import FedAvgPlan
from tff_pipelines.fedavg.server_optimizer import ServerConfig
from tff_pipelines.voting import agents, features as features_lib, report, serving
from tff_pipelines.voting.experiment import VotingExperiment

_ALL_SHARES = (
    '(the noise is that of all agents: one that subtracts its own share leaves less)')


class _BaselineExperiment(VotingExperiment):
  """Rounds on the agents' records, or on what the public map makes of them.

  With a student the released model labels the public queries, and the student learns
  from them as from the labels of a vote.
  """

  def planned_rounds(self, plan) -> int:
    return self.settings.rounds

  def describe(self, task, plan) -> report_lib.Description:
    model = self.model(task)
    return report.describe(task, [
        ('model', f'{model.name} with {model.parameter_count():,} parameters'),
        ('run', self.run_line(plan, self.settings.rounds)),
        ('mechanism', self.mechanism_line(plan))])

  def seen(self, task: VotingTask) -> VotingTask:
    """The task as the model sees it."""
    # No record may change the others' features, which one row of many does.
    return features_lib.map_records(task, self.public_map(task), alone=True) if (
        self.settings.clients_see_features) else task

  def model(self, task: VotingTask, seen: VotingTask | None = None) -> task_lib.Model:
    """The model that is averaged; its loss may need the public records as `seen`."""
    network, strength = self.network(task), self.settings.adversarial_strength
    return network.as_model() if not strength else agents.adversarial_model(
        network, seen and seen.public, strength)

  def federated(self, task: VotingTask) -> task_lib.Task:
    seen = self.seen(task)
    return task_lib.Task(
        name=task.name, model=self.model(task, seen), train=seen.agents,
        held_out={'test': seen.test}, privacy_unit=task.privacy_unit)

  def evaluate(self, task, trained):
    return super().evaluate(task, trained) if self.settings.has_student else (
        fedavg_report.evaluated(self.federated(task), serving.own_weights(trained)))

  def answers(self, task: VotingTask, weights: Any, rows: np.ndarray) -> np.ndarray:
    """Labels of the public records `rows` by the model; int [Q], -1 for none."""
    queries = task.public[rows]
    if self.settings.clients_see_features:
      queries = self.public_map(task)(queries, alone=True)
    best, is_sure = agents.opinions(tf.nn.softmax(
        self.network(task).logits(weights, queries)), self.settings.client_confidence)
    return tf.where(is_sure, best, -1).numpy()

  def _outcome(self, task: VotingTask, plan: guarantee.Plan, state: Any,
               results: fedavg_report.Results, details: dict[str, Any],
               **fields: Any) -> report_lib.Outcome:
    settings, metrics = self.settings, results['test']
    title = fedavg_report.title(
        plan, f'{task.name}, {settings.algorithm}', settings.rounds)
    features, network = self.public_map(task), self.network(task)
    # Without those of a discriminator.
    weights = state['process']['weights'][:len(network.weight_names)]
    if settings.has_student:
      flat = features_lib.flat(features(task.public))
      rows = self.queries(flat)
      own = self.taught(task, features, flat, rows, self.answers(task, weights, rows),
                        title)
      own['lines'].append(fedavg_report.in_words('model that labelled', metrics))
    else:
      own = dict(
          metrics=metrics, files=(files.METRICS,), details={},
          trained={'': serving.trained(task, features, network.name, weights)},
          figures={files.FIGURE: lambda path: fedavg_report.draw_metrics(
              path, 'test', title)})
    return report.outcome(
        task, settings, fields={
            **fields, 'model': network.name,
            'details': {**details, **own.pop('details'), 'features': features.kind}},
        **own)


class AveragingExperiment(_BaselineExperiment):
  """FedAvg and DP-FedAvg."""

  mechanism_line = staticmethod(fedavg_report.mechanism_line)

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

  def run_line(self, plan: FedAvgPlan, rounds: int) -> str:
    return f'{self.settings.algorithm}: {fedavg_report.run_line(plan, rounds)}'

  def build_rounds(self, task, plan) -> loop.FedAvgRounds:
    settings, task = self.settings, self.federated(task)
    return fedavg_run.build_rounds(
        task, plan, task.model.initial_weights(settings.initial_weights_seed),
        local=local_training.LocalConfig(**settings.client_training(task.model.name)),
        server=ServerConfig(**declarations.shared(ServerConfig, settings, 'server_')),
        clients_per_call=settings.clients_per_call, on_bad=self.write_bad(),
        rounds_per_evaluation=settings.rounds_per_evaluation)

  def outcome(self, task, plan, rounds, state) -> report_lib.Outcome:
    params, mechanism = plan.params, plan.mechanism
    sent = (mechanism.dimension * 4.0 if params is None else
            params.padded_dimension * params.bits / 8)
    return self._outcome(task, plan, state, rounds.results(state), {
        'noise': self.settings.noise if plan.is_private else None,
        'uplink_bytes_per_agent': (
            sent * mechanism.rounds * mechanism.cohort_size / mechanism.population)},
                         **fedavg_report.fields(plan))


class FedSgdExperiment(_BaselineExperiment):
  """DP-FedSGD."""

  def build_plan(self, task, recorded) -> NoisySgdPlan:
    settings, agents = self.settings, task.agents.client_ids
    records = sum(len(task.agents.examples(agent)['y']) for agent in agents)
    return sgd.build_plan(
        settings, recorded, target_epsilon=settings.target_epsilon,
        noise_multiplier=settings.noise_multiplier,
        delta=settings.privacy_delta(records, recorded), clients=len(agents),
        records=records, neighbours=settings.adjacency, terms=dict(
            privacy_unit=self.privacy_unit(task),
            observers='everyone who does not learn which records were sampled, and '
                      f'holds no share of the noise {_ALL_SHARES}',
            against='observers of the released models',
            observers_server=f'the server, which sees noisy sums {_ALL_SHARES}',
            against_server='the server, which sees noisy sums',
            sampling=f'poisson, of records, rate {settings.record_rate:g}',
            trust_model='agents add shares of the noise that they do not subtract, and '
                        'sample records in secret; the server sees sums only',
            sampler=noise_budget.describe_sum(None, False), secure_aggregation=True))

  def run_line(self, plan: NoisySgdPlan, rounds: int) -> str:
    return (f'dp_fedsgd: {rounds} rounds of all {plan.clients:,} agents, '
            f'{plan.expected_records:.6g} of {plan.records:,} records expected')

  def mechanism_line(self, plan) -> str:
    return sgd.mechanism_line(
        'noisy_sgd', plan, given=self.settings.noise_multiplier is not None)

  def build_rounds(self, task, plan) -> loop.FedAvgRounds:
    settings, task = self.settings, self.federated(task)
    return sgd.build_rounds(
        task, plan, task.model.initial_weights(settings.initial_weights_seed),
        learning_rate=settings.server_learning_rate, momentum=settings.server_momentum,
        rounds_per_evaluation=settings.rounds_per_evaluation)

  def outcome(self, task, plan, rounds, state) -> report_lib.Outcome:
    size = self.network(task).as_model().parameter_count()
    return self._outcome(
        task, plan, state, rounds.results(state),
        {'noise': 'gaussian', 'uplink_bytes_per_agent': size * 4.0 * plan.rounds},
        mechanism='noisy_sgd', noise_multiplier=plan.noise_multiplier, clip=plan.clip,
        parameters=size, cohort_size=plan.clients)
