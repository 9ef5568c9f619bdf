"""Runs of the baselines of local distillation, which end in linear classifiers too."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tasks import task as task_lib
from tasks.sources import records
from tff_pipelines.accounting.guarantees import mechanisms
from tff_pipelines.baselines import pate, sgd
from tff_pipelines.common import caveats, declarations, files
from tff_pipelines.experiment import report as report_lib, rounds as rounds_lib
from tff_pipelines.fedavg import (
    local_training, report as fedavg_report, run as fedavg_run)
from tff_pipelines.fedavg.plan import FedAvgPlan
from tff_pipelines.fedavg.server_optimizer import ServerConfig
from tff_pipelines.ldp import (
    process, report, run as ldp_run, serving, student as student_lib)
from tff_pipelines.ldp.settings import BaselineSettings, LdpSettings


def count_votes(features: np.ndarray, teachers: Sequence[np.ndarray]) -> np.ndarray:
  """int64 [n, classes]: number of teachers that name each class; private."""
  one_hot = np.eye(teachers[0].shape[1], dtype=np.int64)
  return sum(one_hot[process.scores(features, weights).argmax(axis=1)]
             for weights in teachers)


class _Baseline(ldp_run.PreparedExperiment):
  family = 'ldp_baselines'
  settings: BaselineSettings

  def folder_words(self) -> tuple[str, ...]:
    return self.settings.algorithm, self.settings.task

  def planned_rounds(self, plan) -> int:
    return self.settings.rounds or 1

  def describe(self, task, plan) -> report_lib.Description:
    # Where an owner is protected with all its records, their number is private too.
    count = f'{plan.population:,}' if self.settings.algorithm == 'dp_sgd' else 'all their'
    run = self.run_line(plan, self.planned_rounds(plan))
    return report.description(task.task, f'with {count} records',
                              ('algorithm', f'{self.settings.algorithm}, {run}'),
                              ('mechanism', self.mechanism_line(plan)))

  def _outcome(self, prepared: ldp_run.Prepared, predicted: np.ndarray,
               fields: dict[str, Any], **attributes: Any) -> report_lib.Outcome:
    task, algorithm = prepared.task, self.settings.algorithm
    if self.settings.rounds is not None:
      attributes.update(files=(files.METRICS,), figures={
          files.FIGURE: lambda path: fedavg_report.draw_metrics(
              path, 'test', f'{task.name}, {algorithm}')})
    return report.outcome_of(
        task, predicted, fields={'algorithm': algorithm, **fields}, **attributes)


class _TrainedBaseline(_Baseline):

  run_line = staticmethod(fedavg_report.run_line)
  mechanism_line = staticmethod(fedavg_report.mechanism_line)

  def federated(self, task: ldp_run.Prepared) -> task_lib.Task:
    (examples, test), holdings = task.examples, task.task.holdings
    clients = np.repeat(np.arange(len(holdings)), list(map(len, holdings)))
    if self.settings.algorithm == 'dp_sgd':
      clients[:] = 0  # The curator is the one client and has all records.
    return task_lib.Task(name=task.task.name, model=task.network.as_model(),
                         train=records.ArraysByClient(examples, clients),
                         held_out={'test': test}, privacy_unit=task.task.privacy_unit)

  def evaluate(self, task, trained):
    return fedavg_report.evaluated(self.federated(task), serving.own_weights(trained))

  def outcome(self, task, plan, rounds, state) -> report_lib.Outcome:
    weights = state['process']['weights']
    logits = task.network.logits(weights, tf.constant(task.examples[1]['x']))
    return self._outcome(
        task, logits.numpy().argmax(axis=1),
        {**fedavg_report.fields(plan), 'model': task.network.name,
         'details': fedavg_report.details(plan)},
        results=fedavg_report.finite_results(rounds.results(state)),
        trained={'': serving.of_network(task, weights)})


class SgdExperiment(_TrainedBaseline):
  """DP-SGD of a curator."""

  def build_plan(self, task, recorded) -> FedAvgPlan:
    return sgd.build_plan(
        self.settings, recorded, epsilon=self.settings.epsilon, mechanism='gaussian',
        delta=self.settings.delta, agents=1, records=sum(map(len, task.task.holdings)),
        dimension=task.network.as_model().parameter_count(), privacy_unit='one record')

  def build_rounds(self, task, plan) -> rounds_lib.Rounds:
    return sgd.build_rounds(self.federated(task), plan, task.network.initial_weights(0),
                            learning_rate=self.settings.learning_rate)


class FlExperiment(_TrainedBaseline):
  """Federated averaging with distributed noise; all owners are in every round."""

  def build_plan(self, task, recorded) -> FedAvgPlan:
    settings, num_clients = self.settings, task.task.num_clients
    return FedAvgPlan.calibrate(
        mechanisms.SumMechanism(
            mechanism='skellam', clip=settings.clip, bits=18, rounds=settings.rounds,
            dimension=task.network.as_model().parameter_count(),
            cohort_size=float(num_clients), population=num_clients),
        delta=settings.delta, target_epsilon=settings.epsilon,
        recorded_noise=(recorded or {}).get('noise_multiplier'), seed=settings.seed,
        privacy_unit=task.task.privacy_unit)

  def build_rounds(self, task, plan) -> rounds_lib.Rounds:
    return fedavg_run.build_rounds(
        self.federated(task), plan, task.network.initial_weights(0),
        local=local_training.LocalConfig(**declarations.shared(
            local_training.LocalConfig, self.settings, 'client_')),
        server=ServerConfig(learning_rate=self.settings.learning_rate),
        on_bad=self.write_bad())


class PateExperiment(_Baseline):
  kept_as = 'labels.npz'

  def build_plan(self, task, recorded) -> pate.PatePlan:
    settings, task = self.settings, task.task
    return pate.PatePlan.calibrate(epsilon=settings.epsilon, **declarations.shared(
        pate.PatePlan, settings, stddev=recorded and recorded['noise_stddev'],
        threshold=settings.threshold * task.num_clients,
        queries=min(settings.queries, len(task.public)), classes=task.num_classes,
        privacy_unit=task.privacy_unit))

  def build_rounds(self, task, plan) -> pate.PateRounds:
    random = np.random.default_rng([self.settings.feature_seed, 2])
    rows = random.permutation(len(task.task.public))[:plan.queries]
    return pate.PateRounds(
        rows, lambda: count_votes(task.public[rows], task.teachers), plan)

  def run_line(self, plan, rounds: int) -> str:
    return f'{plan.queries:,} queries, at most {plan.answers:,} answered'

  def mechanism_line(self, plan) -> str:
    noise = report_lib.noise_in_words(plan.stddev, given=False)
    return f'discrete gaussian, noise of {noise} votes, threshold {plan.threshold:g}'

  def evaluate(self, task, trained):
    return {'test': task.accuracies(*serving.own_weights(trained))['test']}

  def outcome(self, task, plan, rounds, records) -> report_lib.Outcome:
    kept, = records.kept
    rows, labels = kept.arrays['rows'], kept.arrays['labels']
    answered = labels >= 0
    if not answered.any():
      raise ValueError('no query was answered: lower --threshold or raise --epsilon')
    # A label of a vote is taken for nearly sure.
    student = student_lib.Trainer(task.public, LdpSettings()).train(
        rows[answered], np.eye(task.task.num_classes)[labels[answered]],
        student_lib.Noise(variance=0.05))
    votes, number = len(records.run.ledger.lines()), int(answered.sum())
    return self._outcome(
        task, student.predict(task.test),
        {'mechanism': 'discrete_gaussian', 'noise_stddev': plan.stddev, 'model': 'ridge',
         'parameters': student.weights.size,
         'details': {'queries': len(rows), 'answered': number}},
        words=f', {number:,} of {len(rows):,} queries answered', files=(self.kept_as,),
        trained={'': serving.of_student(task, student)},
        caveats=[caveats.Caveat(
            'vote repeated', f'the vote was begun {votes} times; every time counts'
            )] if votes > 1 else [],
        next=report_lib.account_command(self.folder, f'--accountant={plan.accountant}'))


EXPERIMENTS = {'dp_sgd': SgdExperiment, 'dp_fl': FlExperiment, 'pate': PateExperiment}


def experiment(settings: BaselineSettings,
               prepared: ldp_run.Prepared | None = None) -> _Baseline:
  return EXPERIMENTS[settings.algorithm](settings, prepared)
