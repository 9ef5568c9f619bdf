"""A run of distillation: steps of queries to the owners, and the student."""

import collections
from collections.abc import Mapping
import functools
from typing import Any

import numpy as np

from aggregators import local_dp
from tff_pipelines.accounting import base
from tff_pipelines.accounting import caveats
from tff_pipelines.accounting import decimals
from tff_pipelines.experiment import files
from tff_pipelines.experiment import report as report_lib
from tff_pipelines.experiment import rounds as rounds_lib
from tff_pipelines.experiment import run as run_lib
from tff_pipelines.fedavg import report as fedavg_report
from tff_pipelines.ldp import plan as plan_lib
from tff_pipelines.ldp import prepare
from tff_pipelines.ldp import process
from tff_pipelines.ldp import report
from tff_pipelines.ldp import student as student_lib
from tff_pipelines.ldp.settings import LdpSettings
from tff_pipelines.simulation import cohorts

STUDENT = 'student.npz'


def mechanism_of(plan: plan_lib.LdpPlan) -> local_dp.LocalMechanism:
  """The mechanism that executes a plan. Raises ValueError for what can't be drawn."""
  return local_dp.build(
      plan.mechanism, dimension=plan.dimension, epsilon=plan.epsilon_per_query,
      noise_multiplier=plan.noise_multiplier)


class LdpRounds(rounds_lib.ChargedRounds):
  """Steps of queries; all but the answers follows from them and from public data."""

  unit = 'query'

  def __init__(self, settings: LdpSettings, prepared: prepare.Prepared,
               plan: plan_lib.LdpPlan):
    """Initializes the rounds.

    Args:
      settings: Of the run.
      prepared: Features and teachers.
      plan: Says who answers which query, and how it is perturbed.
    """
    self.total = plan.queries
    self._settings = settings
    self._prepared = prepared
    self._plan = plan
    self._mechanism = mechanism_of(plan)
    self._trainer = student_lib.Trainer(prepared.public, student_lib.StudentConfig(
        refine=settings.refine, steps=settings.refine_steps,
        strength=settings.refine_strength, sharpness=settings.sharpness,
        trust=settings.trust))
    self._asking = functools.cache(functools.partial(
        process.build_asking, self._mechanism, dimension=prepared.public.shape[1],
        temperature=settings.temperature, seeded=plan.seed is not None))
    self.restore([], [])

  def restore(self, lines, kept) -> None:
    self._charged = plan_lib.charged_queries(lines)
    self._kept = kept
    # The images that were asked about.
    self._rows = np.concatenate(
        [np.zeros(0, np.int64), *(k.arrays['rows'] for k in kept)])
    self._student = None

  def done(self) -> int:
    return self._charged

  def student(self) -> student_lib.Student | None:
    """The student of all answers that are kept; None if there are none."""
    if self._student is None and self._kept:
      self._student = self._trainer.train(
          self._rows, np.concatenate([k.arrays['means'] for k in self._kept]),
          self._mechanism.worst_variance / 4 / self._plan.clients_per_query)
    return self._student

  def accuracy(self, name: str) -> float:
    """The student's accuracy on 'test' or 'validation'."""
    predicted = self.student().predict(getattr(self._prepared, name))
    return float(np.mean(predicted == getattr(self._prepared.task, name).y))

  def metrics(self, kept) -> Mapping[str, float]:
    charged = kept[-1].line['event']['queries_after']
    metrics = {
        'queries': float(len(self._rows)), 'queries_charged': float(charged),
        self._plan.epsilon_name: self._plan.epsilon(self._plan.most_answers(charged)),
        'test/accuracy': self.accuracy('test'),
        'refined': float(self.student().refined)}
    if len(self._prepared.task.validation):
      metrics['validation/accuracy'] = self.accuracy('validation')
    return metrics

  def shown(self) -> Mapping[str, str]:
    return {'accuracy': f"{self.accuracy('test'):.4f}"}

  def _left(self) -> dict[str, int]:
    """Reason to stop, in words -> queries that it leaves to be asked."""
    settings, answered = self._settings, len(self._rows)
    left = {'every public image has been asked about':
            len(self._prepared.public) - answered}
    if settings.max_queries is not None:
      left[f'max_queries={settings.max_queries} have been answered'] = (
          settings.max_queries - answered)
    if settings.target_accuracy is not None and self._kept:
      accuracy = self.accuracy('validation')
      if accuracy >= settings.target_accuracy:
        left[f'the student has an accuracy of {accuracy:.4f} on the '
             f'{len(self._prepared.validation)} validation records'] = 0
    return {**left, 'the budget is used up': self.total - self._charged}

  def reason_to_stop(self) -> str | None:
    """In words; None if there is more to ask."""
    return next((why for why, left in self._left().items() if left <= 0), None)

  def next_event(self) -> base.Event | None:
    count = min(self._settings.queries_per_step, *self._left().values())
    return None if count <= 0 else self._plan.step_event(
        self._charged, self._charged + count)

  def draw(self, line) -> dict[str, np.ndarray]:
    """Chooses queries and asks the owners.

    Args:
      line: Of the ledger, which charged the step.

    Returns:
      `first_query`: number of the first query in the run, from which follows who
      answers; `rows`: int64 [Q], the images in the pool; `means`: float32 [Q,
      classes], mean answers; `answers`: int32 [Q], how many owners answered.
    """
    first = line['event']['queries_before']
    rows = self._choose(first, line['event']['queries_after'] - first)
    means, answers = self.ask(first, rows)
    return {'first_query': np.array(first), 'rows': rows, 'means': means,
            'answers': answers}

  def _choose(self, first: int, count: int) -> np.ndarray:
    """The images that the queries from number `first` on are about."""
    settings, public = self._settings, self._prepared.public
    candidates = np.setdiff1d(np.arange(len(public)), self._rows)
    probabilities = None
    if self._kept and settings.sampling == 'active':
      probabilities = self.student().probabilities(public[candidates])
    return process.choose_queries(
        candidates, count, sampling=settings.sampling, probabilities=probabilities,
        random=np.random.default_rng([settings.sampling_seed, first]))

  def ask(self, first_query: int, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Asks owners about images.

    Args:
      first_query: Number of the first query in the run; decides who answers.
      rows: int64 [Q], the images.

    Returns:
      float32 [Q, classes], mean answers, and int32 [Q], numbers of answers.
    """
    plan, asked = self._plan, collections.defaultdict(list)
    for index in range(len(rows)):
      for owner in process.owners_of(
          first_query + index, groups=plan.groups,
          clients_per_query=plan.clients_per_query):
        asked[owner].append(index)
    teachers = self._prepared.teachers
    owners = [collections.OrderedDict(
        weights=teachers[owner % len(teachers)], queries=np.array(queries, np.int32),
        **({} if plan.seed is None else
           {'key': cohorts.client_key(plan.seed, first_query, owner)}))
              for owner, queries in asked.items()]
    output = self._asking(num_queries=len(rows))(self._prepared.public[rows], owners)
    return np.asarray(output['means']), np.asarray(output['answers'])


class LdpExperiment(prepare.PreparedExperiment, run_lib.ChargedExperiment):
  """Distillation from locally private answers."""

  family = 'ldp'
  settings: LdpSettings

  def folder_words(self) -> tuple[str, ...]:
    return self.family, self.settings.task, self.settings.mechanism

  def build_plan(self, task, recorded) -> plan_lib.LdpPlan:
    plan = plan_lib.build(
        self.settings, dimension=task.task.num_classes, recorded=recorded,
        holdings=len(task.task.holdings), privacy_unit=task.task.privacy_unit)
    mechanism_of(plan)  # Raises what can't be drawn.
    return plan

  def planned_rounds(self, plan: plan_lib.LdpPlan) -> int:
    return plan.answers_per_client

  def describe(self, task, plan) -> report_lib.Description:
    answer = (f'noise multiplier {decimals.rounded_up(plan.noise_multiplier)}'
              if plan.mechanism == 'gaussian' else
              f'epsilon {decimals.rounded_up(plan.epsilon_per_query, 6)}')
    return report.description(
        task.task, f'in {plan.groups:,} groups',
        ('queries', f'{self.settings.sampling}, {plan.queries_per_step} a step, of '
         f'{len(task.public):,} public images; budget for {plan.queries:,}'),
        ('mechanism', f'{plan.mechanism}, {answer} an answer, at most '
         f'{plan.answers_per_client:,} an owner'))

  def run_line(self, plan: plan_lib.LdpPlan, rounds: int) -> str:
    return (f'{rounds} steps of up to {plan.queries_per_step} queries, {plan.groups} '
            f'groups of {plan.clients_per_query} owners')

  def build_rounds(self, task, plan) -> LdpRounds:
    return LdpRounds(self.settings, task, plan)

  def outcome(self, task, plan, rounds, records) -> report_lib.Outcome:
    student, stopped = rounds.student(), rounds.reason_to_stop()
    charged = plan_lib.charged_queries(records.run.ledger.lines())
    answered = sum(len(kept.arrays['rows']) for kept in records.kept)
    lost, sampling = charged - answered, self.settings.sampling
    common = dict(
        # The ledger of a pure guarantee states no delta.
        next=None if plan.delta else report.account_command(self.folder, '--delta=0'),
        caveats=[caveats.Caveat(
            'answers lost',
            f'answers to {lost} queries were lost when the run was interrupted; they '
            'count as given')] if lost else [],
        fields={
            'task': task.task.name, 'algorithm': 'ldp_distillation', 'model': 'ridge',
            'mechanism': plan.mechanism, 'noise_multiplier': plan.noise_multiplier,
            'parameters': None if student is None else student.weights.size,
            'population': plan.num_clients, 'cohort_size': plan.clients_per_query,
            'details': {
                'epsilon_per_query': plan.epsilon_per_query, 'stopped': stopped,
                'groups': plan.groups, 'queries': answered, 'queries_charged': charged,
                'queries_lost': lost, 'queries_of_budget': plan.queries,
                'query_choice': sampling, 'public_records': len(task.public),
                'test_examples': len(task.test), 'steps': len(records.kept),
                'refined': None if student is None else student.refined}})
    if student is None:
      return report_lib.Outcome(result='no answer was kept', **common)
    files.write_arrays(self.folder / STUDENT, {'weights': student.weights})
    title = f'{task.task.name}, {plan.mechanism}, {sampling} queries'
    if plan.seed is None:
      delta = f'delta {decimals.rounded_up(plan.delta, 3)}' if plan.delta else 'pure'
      spent = plan.epsilon(plan.most_answers(charged))
      title += f', epsilon {decimals.epsilon(spent)}, {delta}'
    metrics = records.metrics[records.kept[-1].line['round']]
    return report.outcome_of(
        task.task, student.predict(task.test),
        words=f' after {answered:,} queries of {plan.queries:,}; {stopped}',
        results={name: {'accuracy': metrics[f'{name}/accuracy']}
                 for name in ('test', 'validation') if f'{name}/accuracy' in metrics},
        files=(files.METRICS, STUDENT), figures={
            files.FIGURE: lambda path: fedavg_report.draw_metrics(
                path, 'test', title, key='queries', xlabel='queries answered',
                of=' of an owner')}, **common)

  def upgraded(self, recorded: Mapping[str, Any]) -> dict[str, Any]:
    plan = recorded['plan']
    return {**super().upgraded(recorded),
            'plan': {**plan, 'answers_per_client': plan['answers_per_owner']}}


def run(settings: LdpSettings,
        prepared: prepare.Prepared | None = None) -> dict[str, Any]:
  """Asks and learns, or resumes, and reports.

  Args:
    settings: Of the run.
    prepared: As `prepare.prepare` returns it for these settings, if it did already.

  Returns:
    The summary, as it is written to summary.json.
  """
  return LdpExperiment(settings, prepared).run()
