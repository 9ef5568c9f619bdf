"""Runs of the baselines of local distillation.

All of them end in a linear classifier of the public features: they differ in who is
trusted and where the noise is added.
"""

import dataclasses
import functools
from typing import Any

import numpy as np
import tensorflow as tf

from aggregators import keys
from tasks import task as task_lib
from tasks.sources import records
from tff_pipelines.accounting import base
from tff_pipelines.accounting import caveats
from tff_pipelines.accounting import events
from tff_pipelines.accounting import mechanisms
from tff_pipelines.experiment import files
from tff_pipelines.experiment import guarantee
from tff_pipelines.experiment import report as report_lib
from tff_pipelines.experiment import rounds as rounds_lib
from tff_pipelines.experiment import run as run_lib
from tff_pipelines.fedavg import local_training
from tff_pipelines.fedavg import report as fedavg_report
from tff_pipelines.fedavg import run as fedavg_run
from tff_pipelines.fedavg.plan import FedAvgPlan
from tff_pipelines.ldp import pate
from tff_pipelines.ldp import prepare
from tff_pipelines.ldp import report
from tff_pipelines.ldp import student as student_lib
from tff_pipelines.ldp.settings import BaselineSettings
from tff_pipelines.ldp.settings import LdpSettings
from tff_pipelines.learning import noisy_sgd
from tff_pipelines.learning.noisy_sgd_plan import NoisySgdPlan

# A label of a vote is taken for nearly sure: the variance of an answer, to the student.
_LABEL_VARIANCE = 0.05
# Of a coordinate of a sum of updates.
_SUM_BITS = 18


def _key(seed: int | None) -> tf.Tensor:
  """A key of the operating system, or of the seed."""
  return keys.fresh() if seed is None else tf.constant(keys.from_seed(seed))


def _predicted(prepared: prepare.Prepared, weights) -> np.ndarray:
  """int64 [n], classes of the test records."""
  logits = prepared.network.logits(weights, tf.constant(prepared.examples[1]['x']))
  return logits.numpy().argmax(axis=1)


class _Baseline(prepare.PreparedExperiment):
  """A baseline; a base class in addition to one of `experiment.run`."""

  family = 'ldp_baselines'
  settings: BaselineSettings

  def folder_words(self) -> tuple[str, ...]:
    return self.settings.algorithm, self.settings.task

  def planned_rounds(self, plan) -> int:
    return self.settings.rounds or 1

  def _description(self, task: prepare.Prepared, plan: guarantee.Plan,
                   mechanism: str) -> report_lib.Description:
    """The run that is about to start; `mechanism` is one line of the report."""
    run = self.run_line(plan, self.planned_rounds(plan))
    return report.description(
        task.task, f'with {sum(map(len, task.task.holdings)):,} records',
        ('algorithm', f'{self.settings.algorithm}, {run}'), ('mechanism', mechanism))

  def _outcome(self, prepared: prepare.Prepared, predicted: np.ndarray,
               fields: dict[str, Any], **attributes: Any) -> report_lib.Outcome:
    """As `report.outcome_of`; with a figure where there are rounds."""
    task, algorithm = prepared.task, self.settings.algorithm
    if self.settings.rounds is not None:
      attributes.update(files=(files.METRICS,), figures={
          files.FIGURE: lambda path: fedavg_report.draw_metrics(
              path, 'test', f'{task.name}, {algorithm}')})
    return report.outcome_of(
        task, predicted, fields={'algorithm': algorithm, **fields}, **attributes)


class SgdRounds(rounds_lib.Rounds):
  """Steps of noisy gradients of all records; the state is a list of weights."""

  unit = 'step'

  def __init__(self, settings: BaselineSettings, prepared: prepare.Prepared,
               plan: NoisySgdPlan):
    """Initializes the rounds."""
    self.count, self._seed, self._prepared = plan.rounds, plan.seed, prepared
    noise = noisy_sgd.NoisySgdConfig(
        clip=plan.clip, noise_multiplier=plan.noise_multiplier,
        sampling_rate=plan.sampling_rate, agents=1,
        expected_records=plan.expected_records)
    scale = settings.learning_rate / noise.expected_records
    loss = prepared.network.as_model().loss

    @functools.partial(tf.function, autograph=False)
    def step(weights, key, examples):
      total = noisy_sgd.contribution(loss, weights, examples, key, noise)
      return [w - scale * g for w, g in zip(weights, total)]

    self._step = functools.partial(
        step, examples=tf.nest.map_structure(tf.constant, prepared.examples[0]))

  def initial_state(self, resumed: bool) -> list[np.ndarray]:
    return self._prepared.network.initial_weights(0)

  def step(self, state: list[np.ndarray], index: int) -> rounds_lib.Step:
    key = keys.derive(_key(self._seed), index)
    weights = [w.numpy() for w in self._step(list(map(tf.constant, state)), key)]
    right = _predicted(self._prepared, weights) == self._prepared.task.test.y
    return rounds_lib.Step(
        state=weights, metrics={'test/accuracy': float(np.mean(right))})


class SgdExperiment(_Baseline, run_lib.Experiment):
  """DP-SGD of a curator who has all records."""

  def build_plan(self, task, recorded) -> NoisySgdPlan:
    # Version 1 recorded none: it is calibrated again.
    settings, noise = self.settings, (recorded or {}).get('noise_multiplier')
    terms = guarantee.Terms(
        privacy_unit='one record', against='observers of the model',
        observers='those who see the model and do not learn which records were sampled',
        sampling='poisson, of records', source=events.NoisyGradients.source,
        trust_model='a curator is trusted with all records')
    return NoisySgdPlan.calibrate(
        terms=terms, target_epsilon=settings.epsilon if noise is None else None,
        noise_multiplier=noise, delta=settings.delta, clip=settings.clip,
        sampling_rate=settings.record_rate, rounds=settings.rounds, clients=1,
        records=sum(map(len, task.task.holdings)), seed=settings.seed)

  def run_line(self, plan, rounds: int) -> str:
    return (f'{rounds} steps of {plan.expected_records:,.0f} of {plan.records:,} '
            'records expected, poisson sampling')

  def describe(self, task, plan) -> report_lib.Description:
    noise = report_lib.noise_in_words(plan.noise_multiplier, given=False)
    return self._description(
        task, plan, f'gaussian, noise multiplier {noise}, clip {plan.clip:g}')

  def build_rounds(self, task, plan) -> SgdRounds:
    return SgdRounds(self.settings, task, plan)

  def outcome(self, task, plan, rounds, state) -> report_lib.Outcome:
    return self._outcome(task, _predicted(task, state), {
        'mechanism': 'gaussian', 'model': task.network.name, 'clip': plan.clip,
        'parameters': sum(w.size for w in state), 'details': {'records': plan.records},
        'noise_multiplier': plan.noise_multiplier})


class FlExperiment(_Baseline, run_lib.Experiment):
  """Federated averaging with distributed noise; all owners are in every round."""

  def build_plan(self, task, recorded) -> FedAvgPlan:
    settings, num_clients = self.settings, task.task.num_clients
    return FedAvgPlan.calibrate(
        mechanisms.SumMechanism(
            mechanism='skellam', clip=settings.clip, bits=_SUM_BITS,
            dimension=task.network.as_model().parameter_count(),
            cohort_size=float(num_clients), population=num_clients,
            rounds=settings.rounds),
        delta=settings.delta, target_epsilon=settings.epsilon,
        recorded_noise=(recorded or {}).get('noise_multiplier'), seed=settings.seed,
        privacy_unit=task.task.privacy_unit)

  def run_line(self, plan, rounds: int) -> str:
    return fedavg_report.run_line(plan, rounds)

  def describe(self, task, plan) -> report_lib.Description:
    return self._description(task, plan, fedavg_report.mechanism_line(plan))

  def build_rounds(self, task, plan) -> rounds_lib.Rounds:
    settings, holdings = self.settings, task.task.holdings
    records, test = task.examples
    # The owners' features as a task of federated averaging.
    federated = task_lib.Task(
        name=task.task.name, model=task.network.as_model(),
        train=records.ArraysByClient(records, np.repeat(
            np.arange(len(holdings)), [len(held) for held in holdings])),
        held_out={'test': test}, privacy_unit=task.task.privacy_unit)
    return fedavg_run.build_rounds(
        federated, plan, task.network.initial_weights(0),
        local=local_training.LocalConfig(
            learning_rate=settings.client_learning_rate,
            batch_size=settings.client_batch_size, epochs=settings.client_epochs),
        server_learning_rate=settings.learning_rate, server_momentum=0.0)

  def outcome(self, task, plan, rounds, state) -> report_lib.Outcome:
    return self._outcome(
        task, _predicted(task, state['process']['weights']),
        {**fedavg_report.fields(plan), 'model': task.network.name,
         'details': fedavg_report.details(plan)},
        results=fedavg_report.finite_results(rounds.results(state)))


@dataclasses.dataclass(eq=False)
class PateRounds(rounds_lib.ChargedRounds):
  """One vote on all queries; its labels are kept.

  Attributes:
    prepared: Features and teachers.
    plan: Of the run.
  """

  prepared: prepare.Prepared
  plan: pate.PatePlan

  unit = 'vote'
  total = 1

  def restore(self, lines, kept) -> None:
    self._kept = kept

  def done(self) -> int:
    return len(self._kept)

  def next_event(self) -> base.Event | None:
    return None if self._kept else self.plan.event(1)

  def draw(self, line) -> dict[str, np.ndarray]:
    """Asks the teachers.

    Args:
      line: Of the ledger, which charged the vote.

    Returns:
      `rows`: int64 [Q], the images in the pool; `labels`: int64 [Q], -1 where there
      was no answer.
    """
    prepared, plan = self.prepared, self.plan
    random = np.random.default_rng([prepared.settings.feature_seed, 2])
    rows = random.permutation(len(prepared.public))[:plan.queries]
    votes = pate.count_votes(prepared.public[rows], prepared.teachers)
    return {'rows': rows, 'labels': pate.answer(votes, plan, _key(plan.seed))}


class PateExperiment(_Baseline, run_lib.Experiment):
  """A noisy vote, and a student of its labels."""

  kept_as = 'labels.npz'

  def build_plan(self, task, recorded) -> pate.PatePlan:
    return pate.PatePlan.calibrate(self.settings, task.task, recorded)

  def run_line(self, plan, rounds: int) -> str:
    return f'{plan.queries:,} queries, at most {plan.answers:,} answered'

  def describe(self, task, plan) -> report_lib.Description:
    noise = report_lib.noise_in_words(plan.stddev, given=False)
    return self._description(
        task, plan, f'discrete gaussian, noise of {noise} votes, threshold '
        f'{plan.threshold:g}')

  def build_rounds(self, task, plan) -> PateRounds:
    return PateRounds(task, plan)

  def outcome(self, task, plan, rounds, records) -> report_lib.Outcome:
    kept, = records.kept
    rows, labels = kept.arrays['rows'], kept.arrays['labels']
    answered = labels >= 0
    if not answered.any():
      raise ValueError('no query was answered: lower --threshold or --answers, or '
                       'raise --epsilon')
    student = student_lib.Trainer(task.public, LdpSettings()).train(
        rows[answered], np.eye(task.task.num_classes)[labels[answered]],
        _LABEL_VARIANCE)
    votes, number = len(records.run.ledger.lines()), int(answered.sum())
    return self._outcome(
        task, student.predict(task.test),
        {'mechanism': 'discrete_gaussian', 'noise_stddev': plan.stddev,
         'model': 'ridge', 'parameters': student.weights.size,
         'details': {'queries': len(rows), 'answered': number}},
        words=f', {number:,} of {len(rows):,} queries answered', files=(self.kept_as,),
        caveats=[caveats.Caveat(
            'vote repeated', f'the vote was interrupted and begun {votes} times; every '
            'time counts')] if votes > 1 else [],
        next=report.account_command(self.folder, f'--accountant={plan.accountant}'))


EXPERIMENTS = {'dp_sgd': SgdExperiment, 'dp_fl': FlExperiment, 'pate': PateExperiment}


def run(settings: BaselineSettings,
        prepared: prepare.Prepared | None = None) -> dict[str, Any]:
  """Runs a baseline, or resumes it, and reports.

  Args:
    settings: Of the run.
    prepared: As `prepare.prepare` returns it for these settings, if it did already.

  Returns:
    The summary, as it is written to summary.json.
  """
  return EXPERIMENTS[settings.algorithm](settings, prepared).run()
