"""Runs of the baselines of local distillation.

All of them end in a linear classifier of the public features: they differ in who is
trusted and where the noise is added.

PATE labels public images by a noisy vote of teachers, if they agree: the
Confident-GNMax aggregator (arXiv 1802.08908, Algorithm 1) of a curator who sees all
votes. Its noise is discrete Gaussian, drawn by integers, and so are the votes.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
from typing import Any

import numpy as np
import tensorflow as tf

from aggregators import alias_draw
from aggregators import alias_table
from aggregators import keys
from tff_pipelines.common import validate
from tasks.ldp import task as tasks_lib
from tasks import task as task_lib
from tasks.sources import records
from tff_pipelines.accounting.events import base
from tff_pipelines.accounting.guarantees import calibration
from tff_pipelines.common import caveats
from tff_pipelines.accounting.events import kinds as events
from tff_pipelines.accounting.guarantees import mechanisms
from tff_pipelines.common import files
from tff_pipelines.accounting.guarantees import plan as guarantee
from tff_pipelines.experiment import models
from tff_pipelines.experiment import report as report_lib
from tff_pipelines.experiment import rounds as rounds_lib
from tff_pipelines.experiment import run as run_lib
from tff_pipelines.fedavg import local_training
from tff_pipelines.fedavg import evaluation
from tff_pipelines.fedavg import report as fedavg_report
from tff_pipelines.fedavg import run as fedavg_run
from tff_pipelines.fedavg.plan import FedAvgPlan
from tff_pipelines.fedavg.server_optimizer import ServerConfig
from tff_pipelines.ldp import process
from tff_pipelines.ldp import report
from tff_pipelines.ldp import run as ldp_run
from tff_pipelines.ldp import serving
from tff_pipelines.ldp import student as student_lib
from tff_pipelines.ldp.settings import BaselineSettings
from tff_pipelines.ldp.settings import LdpSettings
from tff_pipelines.fedavg import noisy_sgd
from tff_pipelines.fedavg.noisy_sgd import NoisySgdPlan


def _key(seed: int | None) -> tf.Tensor:
  """A key of the operating system, or of the seed."""
  return keys.fresh() if seed is None else tf.constant(keys.from_seed(seed))


def _kept(prepared: ldp_run.Prepared, weights) -> dict[str, models.Trained]:
  """The model that was trained on the records' features."""
  return {'': serving.of_network(
      prepared.feature_map, prepared.task.public, prepared.network, weights,
      *prepared.normalisation)}


def _predicted(prepared: ldp_run.Prepared, weights) -> np.ndarray:
  """int64 [n], classes of the test records."""
  logits = prepared.network.logits(weights, tf.constant(prepared.examples[1]['x']))
  return logits.numpy().argmax(axis=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PatePlan(guarantee.Plan):
  """A calibrated plan of Confident-GNMax, whose one round is the vote on all queries.

  Attributes:
    threshold: Votes of the winner, with noise, that an answer takes.
    threshold_noise: Noise of the check for agreement over that of a label's votes.
    stddev: Standard deviation of the noise on each label's votes, > 0.
    answers: Maximum number of queries that are answered, >= 1.
    queries: Number of public images that are asked about, >= 1.
    classes: Number of labels.
    delta: Delta of the guarantee.
    privacy_unit: What one owner is.
    seed: A simulation seed voids the guarantee.
  """

  threshold: float
  threshold_noise: float
  stddev: float
  answers: int
  queries: int
  classes: int
  delta: float = 1e-5
  privacy_unit: str = 'one owner'
  seed: int | None = None
  accountant: str = 'rdp'

  def __post_init__(self):
    validate.finite(threshold=self.threshold)
    validate.positive(threshold_noise=self.threshold_noise, stddev=self.stddev)
    validate.integer(answers=self.answers, queries=self.queries, low=1)

  @classmethod
  def calibrate(cls, settings: BaselineSettings, task: tasks_lib.DistillationTask,
                recorded: Mapping[str, Any] | None = None) -> 'PatePlan':
    """Builds the plan of a run.

    Args:
      settings: Settings of the run.
      task: Each of its owners has a vote.
      recorded: `configuration` of the plan of an earlier start; None for a new run.

    Raises:
      ValueError: If the target can't be met.
    """
    queries = min(settings.queries, len(task.public))
    plan = cls(
        threshold=settings.threshold * task.num_clients, stddev=1.0,
        threshold_noise=settings.threshold_noise, queries=queries,
        answers=min(settings.answers, queries), classes=task.num_classes,
        delta=settings.delta, privacy_unit=task.privacy_unit, seed=settings.seed)
    stddev = recorded and recorded['noise_stddev']
    if stddev is None:
      stddev = calibration.noise_multiplier(
          lambda z: dataclasses.replace(plan, stddev=z).event(1),
          epsilon=settings.epsilon, delta=settings.delta, accountant=cls.accountant,
          total_variation=lambda z: plan.total_variation)
    plan = dataclasses.replace(plan, stddev=stddev)
    for name in ('threshold_stddev', 'stddev'):
      if not alias_table.DISCRETE_GAUSSIAN.fits(_variance(getattr(plan, name))):
        raise ValueError(f'{name}={getattr(plan, name)!r} is too large: its table '
                         'of the noise would be')
    return plan

  @property
  def threshold_stddev(self) -> float:
    """Noise of the check for agreement, votes."""
    return self.threshold_noise * self.stddev

  def event(self, index: int) -> base.Event:
    """All that the vote releases, at most.

    Votes are charged as if one owner moved one of them, which covers any change of its
    records; the checks for agreement as well, which is more than they cost.
    """
    return events.Composed(events=tuple(
        events.SelfComposed(count=count, event=events.Vote(
            scheme='ae', level='instance', noise='discrete_gaussian',
            noise_stddev=stddev))
        for stddev, count in ((self.threshold_stddev, self.queries),
                              (self.stddev, self.answers))))

  @property
  def total_variation(self) -> float:
    """Distance of all draws of a vote from their ideal distributions.

    Noise is drawn for the labels of every query, answered or not. Random bits are
    taken as uniform.
    """
    return min(1.0, self.queries * (1 + self.classes) * alias_table.TOTAL_VARIATION)

  @property
  def terms(self) -> guarantee.Terms:
    return guarantee.Terms(
        privacy_unit=f'{self.privacy_unit}: whatever it may be replaced by',
        observers='all who see the labels or what is computed from them',
        against='observers of the labels', sampler='exact tables',
        trust_model='a curator is trusted with all votes',
        source='arXiv 1802.08908, Algorithm 1; arXiv 2004.00010, Proposition 5',
        adjacency='any change of one owner\'s records, which moves its vote')

  def notes(self) -> list[caveats.Caveat]:
    return [caveats.Caveat(
        'epsilon independent of the votes',
        'what is paid for does not depend on the votes; the data-dependent epsilon of '
        'publications is itself private')]

  def configuration(self) -> dict[str, Any]:
    return {'noise_stddev': self.stddev}


def _variance(stddev: float) -> float:
  """The variance of what is drawn: rounded up, as what is accounted for is not."""
  return stddev**2 * (1 + 2.0**-40)


def _noise(stddev: float, key: tf.Tensor, shape: Sequence[int]) -> np.ndarray:
  """int64 draws of the discrete Gaussian."""
  table = alias_table.DISCRETE_GAUSSIAN.build(_variance(stddev))
  return alias_draw.sample(key, shape, table).numpy()


def count_votes(features: np.ndarray, teachers: Sequence[np.ndarray]) -> np.ndarray:
  """int64 [n, classes]: number of teachers that name each class; private.

  Args:
    features: float32 [n, dimension].
    teachers: Weights, float32 [dimension, classes].
  """
  votes = np.zeros([len(features), teachers[0].shape[1]], np.int64)
  for weights in teachers:
    named = process.scores(features, weights).argmax(axis=1)
    votes[np.arange(len(features)), named] += 1
  return votes


def answer(votes: np.ndarray, plan: PatePlan, key: tf.Tensor) -> np.ndarray:
  """Answers queries, in their order.

  Formal guarantees:
    * One owner moves one vote of a query: the largest count by at most 1, the counts
      by sqrt(2) in L2.
    * So a query costs at most a Gaussian release of the sensitivity 1 and noise
      `threshold_stddev`, and, if it is answered, one of sqrt(2) and `stddev`.
    * What is not answered for lack of agreement or because the maximum number of
      answers is reached shows as -1.

  Args:
    votes: int64 [n, classes].
    plan: Noise, threshold and maximum number of answers.
    key: int64[2], of this call alone.

  Returns:
    int64 [n], labels, or -1.
  """
  check_key, label_key = keys.split(key, 2)
  agreed = votes.max(axis=1) + _noise(
      plan.threshold_stddev, check_key, [len(votes)]) >= plan.threshold
  named = np.argmax(votes + _noise(plan.stddev, label_key, votes.shape), axis=1)
  answered = agreed & (np.cumsum(agreed) <= plan.answers)
  return np.where(answered, named, -1)


class _Baseline(ldp_run.PreparedExperiment):
  """A baseline; a base class in addition to one of `experiment.run`.

  A subclass has a `mechanism_line` of the plan, for the report.
  """

  family = 'ldp_baselines'
  settings: BaselineSettings

  def folder_words(self) -> tuple[str, ...]:
    return self.settings.algorithm, self.settings.task

  def planned_rounds(self, plan) -> int:
    return self.settings.rounds or 1

  def population_words(self, task: ldp_run.Prepared) -> str:
    """What is said of the owners: the number of their records only where it is public.

    Where an owner is protected with all its records, their number is too.
    """
    if self.settings.algorithm != 'dp_sgd':
      return 'with all their records'
    return f'with {sum(map(len, task.task.holdings)):,} records'

  def describe(self, task, plan) -> report_lib.Description:
    run = self.run_line(plan, self.planned_rounds(plan))
    return report.description(
        task.task, self.population_words(task), ('algorithm', f'{self.settings.algorithm}, {run}'),
        ('mechanism', self.mechanism_line(plan)))

  def _outcome(self, prepared: ldp_run.Prepared, predicted: np.ndarray,
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

  def __init__(self, settings: BaselineSettings, prepared: ldp_run.Prepared,
               plan: NoisySgdPlan):
    """Initializes the rounds."""
    self.count, self._seed, self._prepared = plan.rounds, plan.seed, prepared
    scale = settings.learning_rate / plan.expected_records
    loss = prepared.network.as_model().loss

    @functools.partial(tf.function, autograph=False)
    def step(weights, key, examples):
      total = noisy_sgd.contribution(loss, weights, examples, key, plan)
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
    settings, noise = self.settings, recorded and recorded['noise_multiplier']
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

  def mechanism_line(self, plan) -> str:
    noise = report_lib.noise_in_words(plan.noise_multiplier, given=False)
    return f'gaussian, noise multiplier {noise}, clip {plan.clip:g}'

  def evaluate(self, task, trained):
    right = _predicted(task, serving.own_weights(trained)) == task.task.test.y
    return {'test': {'accuracy': float(np.mean(right))}}

  def build_rounds(self, task, plan) -> SgdRounds:
    return SgdRounds(self.settings, task, plan)

  def outcome(self, task, plan, rounds, state) -> report_lib.Outcome:
    return self._outcome(task, _predicted(task, state), {
        'mechanism': 'gaussian', 'model': task.network.name, 'clip': plan.clip,
        'parameters': sum(w.size for w in state), 'details': {'records': plan.records},
        'noise_multiplier': plan.noise_multiplier}, trained=_kept(task, state))


class FlExperiment(_Baseline, run_lib.Experiment):
  """Federated averaging with distributed noise; all owners are in every round."""

  run_line = staticmethod(fedavg_report.run_line)
  mechanism_line = staticmethod(fedavg_report.mechanism_line)

  def build_plan(self, task, recorded) -> FedAvgPlan:
    settings, num_clients = self.settings, task.task.num_clients
    return FedAvgPlan.calibrate(
        mechanisms.SumMechanism(
            mechanism='skellam', clip=settings.clip, bits=18,
            dimension=task.network.as_model().parameter_count(),
            cohort_size=float(num_clients), population=num_clients,
            rounds=settings.rounds),
        delta=settings.delta, target_epsilon=settings.epsilon,
        recorded_noise=(recorded or {}).get('noise_multiplier'), seed=settings.seed,
        privacy_unit=task.task.privacy_unit)

  def _federated(self, task: ldp_run.Prepared) -> task_lib.Task:
    """The owners' features as a task of federated averaging."""
    holdings, (examples, test) = task.task.holdings, task.examples
    return task_lib.Task(
        name=task.task.name, model=task.network.as_model(),
        train=records.ArraysByClient(examples, np.repeat(
            np.arange(len(holdings)), [len(held) for held in holdings])),
        held_out={'test': test}, privacy_unit=task.task.privacy_unit)

  def evaluate(self, task, trained):
    federated = self._federated(task)
    return fedavg_report.finite_results(
        evaluation.Evaluator(federated.model, federated.held_out).evaluate(
            serving.own_weights(trained)))

  def build_rounds(self, task, plan) -> rounds_lib.Rounds:
    settings, federated = self.settings, self._federated(task)
    return fedavg_run.build_rounds(
        federated, plan, task.network.initial_weights(0),
        local=local_training.LocalConfig(
            learning_rate=settings.client_learning_rate,
            batch_size=settings.client_batch_size, epochs=settings.client_epochs),
        server=ServerConfig(learning_rate=settings.learning_rate),
        on_bad=self.write_bad())

  def outcome(self, task, plan, rounds, state) -> report_lib.Outcome:
    return self._outcome(
        task, _predicted(task, state['process']['weights']),
        {**fedavg_report.fields(plan), 'model': task.network.name,
         'details': fedavg_report.details(plan)},
        results=fedavg_report.finite_results(rounds.results(state)),
        trained=_kept(task, state['process']['weights']))


@dataclasses.dataclass(eq=False)
class PateRounds(rounds_lib.ChargedRounds):
  """One vote on all queries; its labels are kept.

  Attributes:
    prepared: Features and teachers.
    plan: Plan of the run.
  """

  prepared: ldp_run.Prepared
  plan: PatePlan

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
      line: Line of the ledger, which charged the vote.

    Returns:
      `rows`: int64 [Q], the images in the pool; `labels`: int64 [Q], -1 where there
      was no answer.
    """
    prepared, plan = self.prepared, self.plan
    random = np.random.default_rng([prepared.settings.feature_seed, 2])
    rows = random.permutation(len(prepared.public))[:plan.queries]
    votes = count_votes(prepared.public[rows], prepared.teachers)
    return {'rows': rows, 'labels': answer(votes, plan, _key(plan.seed))}


class PateExperiment(_Baseline, run_lib.Experiment):
  """A noisy vote, and a student of its labels."""

  kept_as = 'labels.npz'
  build_rounds = staticmethod(PateRounds)

  def build_plan(self, task, recorded) -> PatePlan:
    return PatePlan.calibrate(self.settings, task.task, recorded)

  def run_line(self, plan, rounds: int) -> str:
    return f'{plan.queries:,} queries, at most {plan.answers:,} answered'

  def mechanism_line(self, plan) -> str:
    noise = report_lib.noise_in_words(plan.stddev, given=False)
    return f'discrete gaussian, noise of {noise} votes, threshold {plan.threshold:g}'

  def evaluate(self, task, trained):
    weights, = serving.own_weights(trained)
    return {'test': {'accuracy': ldp_run.accuracy(weights, task, 'test')}}

  def outcome(self, task, plan, rounds, records) -> report_lib.Outcome:
    kept, = records.kept
    rows, labels = kept.arrays['rows'], kept.arrays['labels']
    answered = labels >= 0
    if not answered.any():
      raise ValueError('no query was answered: lower --threshold or --answers, or '
                       'raise --epsilon')
    # A label of a vote is taken for nearly sure.
    student = student_lib.Trainer(task.public, LdpSettings()).train(
        rows[answered], np.eye(task.task.num_classes)[labels[answered]], variance=0.05)
    votes, number = len(records.run.ledger.lines()), int(answered.sum())
    return self._outcome(
        task, student.predict(task.test),
        {'mechanism': 'discrete_gaussian', 'noise_stddev': plan.stddev,
         'model': 'ridge', 'parameters': student.weights.size,
         'details': {'queries': len(rows), 'answered': number}},
        words=f', {number:,} of {len(rows):,} queries answered', files=(self.kept_as,),
        trained={'': serving.of_student(task.feature_map, task.task.public, student)},
        caveats=[caveats.Caveat(
            'vote repeated', f'the vote was interrupted and begun {votes} times; every '
            'time counts')] if votes > 1 else [],
        next=report_lib.account_command(
            self.folder, f'--accountant={plan.accountant}'))


EXPERIMENTS = {'dp_sgd': SgdExperiment, 'dp_fl': FlExperiment, 'pate': PateExperiment}


def experiment(settings: BaselineSettings,
               prepared: ldp_run.Prepared | None = None) -> _Baseline:
  """The experiment of a baseline; arguments are those of `run`."""
  return EXPERIMENTS[settings.algorithm](settings, prepared)


def run(settings: BaselineSettings,
        prepared: ldp_run.Prepared | None = None) -> dict[str, Any]:
  """Runs a baseline, or resumes it, and reports.

  Args:
    settings: Settings of the run.
    prepared: As `ldp_run.prepare` returns it for these settings, if it did already.

  Returns:
    The summary, as it is written to summary.json.
  """
  return experiment(settings, prepared).run()
