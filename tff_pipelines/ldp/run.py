"""A run of distillation: features, teachers, steps of queries, and the student."""

import collections
from collections.abc import Callable, Mapping
import functools
import hashlib
import math
from typing import Any

import numpy as np

from aggregators import local_dp
from tasks.ldp import features, task as tasks_lib
from tasks.models import classifiers
from tasks.task import Serving
from tff_pipelines.accounting.events import base
from tff_pipelines.common import caveats, decimals, files
from tff_pipelines.experiment import (
    models, report as report_lib, rounds as rounds_lib, run as run_lib)
from tff_pipelines.fedavg import report as fedavg_report
from tff_pipelines.ldp import (
    plan as plan_lib, process, report, serving, student as student_lib)
from tff_pipelines.ldp.settings import DataSettings, LdpSettings
from tff_pipelines.simulation import contexts

# File of a run's folder that keeps the student.
STUDENT = 'student.npz'


def _features(images: Callable) -> functools.cached_property:
  """Features, float32 [n, dimension], of images of the task."""
  return functools.cached_property(
      lambda self: self.feature_map.transform(images(self.task)))


class Prepared:
  """A task of raw records, and what is computed from it when it is first used."""

  public = _features(lambda task: task.public)
  validation = _features(lambda task: task.validation.x)
  test = _features(lambda task: task.test.x)

  def __init__(self, settings: DataSettings):
    self.settings = settings
    self.task = tasks_lib.build(settings.task, **settings.task_options)

  @functools.cached_property
  def feature_map(self) -> features.FeatureMap:
    """The public map, fitted on public images."""
    return features.FeatureMap(self.task.public, seed=self.settings.feature_seed)

  @functools.cached_property
  def normalisation(self) -> tuple[np.ndarray, np.float32]:
    """Public constants: the mean of the features, and what they are scaled by."""
    mean = self.public.mean(axis=0)
    spread = np.mean(np.sum(np.square(self.public - mean), axis=1))
    return mean, np.float32(1 / np.sqrt(spread))

  @functools.cached_property
  def examples(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """All owners' records, owner by owner, and the test records.

    `x`, float32 [n, dimension], are features of each record alone, centred and scaled
    by public constants, as gradient descent needs; `y`, int32 [n].
    """
    x, y = (np.concatenate([getattr(held, name) for held in self.task.holdings])
            for name in ('x', 'y'))
    mean, scale = self.normalisation
    return ({'x': (self.feature_map.transform(x, alone=True) - mean) * scale, 'y': y},
            {'x': (self.test - mean) * scale, 'y': self.task.test.y})

  @property
  def network(self) -> classifiers.Network:
    return classifiers.softmax(self.public.shape[1:], self.task.num_classes)

  @functools.cached_property
  def teachers(self) -> list[np.ndarray]:
    """The weights of a teacher of each holding, float32 [dimension, classes]."""
    classes = np.eye(self.task.num_classes)
    return [process.ridge(self.feature_map.transform(held.x), classes[held.y],
                          self.settings.teacher_strength)
            for held in self.task.holdings]

  def accuracies(self, weights: np.ndarray) -> dict[str, dict[str, float]]:
    """Accuracy of a student on each held-out set that has records."""
    return {name: {'accuracy': float(np.mean(
        process.scores(getattr(self, name), weights).argmax(axis=1) == held_out.y))}
            for name, held_out in (
                ('test', self.task.test), ('validation', self.task.validation))
            if len(held_out)}


class PreparedExperiment(run_lib.Experiment):
  def __init__(self, settings: DataSettings, prepared: Prepared | None = None):
    """`prepared` is of settings of the same data, features and teachers."""
    super().__init__(settings)
    self._prepared = prepared

  def build_task(self) -> Prepared:
    return self._prepared or Prepared(self.settings)

  def serving(self, trained: models.Trained) -> Serving:
    return serving.serving(trained)

  def identity(self, task: Prepared) -> dict[str, Any]:
    """SHA-256 of the public images and the number of owners, in hexadecimal."""
    data = task.task
    return {'data_fingerprint': hashlib.sha256(data.public.tobytes() + repr(
        (data.num_clients, len(data.holdings), data.num_classes)).encode()).hexdigest()}


def mechanism_of(plan: plan_lib.LdpPlan) -> local_dp.LocalMechanism:
  """The mechanism that executes a plan. Raises ValueError for what can't be drawn."""
  return local_dp.build(
      plan.settings.mechanism, dimension=plan.dimension, simplex=True,
      epsilon=plan.epsilon_per_query, noise_multiplier=plan.noise_multiplier)


class LdpRounds(rounds_lib.ChargedRounds):
  """Steps of queries; all except the answers follows from them and from public data.

  `student`, None without answers, is that of all that are kept; `accuracies` are its.
  """

  unit = 'query'

  def __init__(self, prepared: Prepared, plan: plan_lib.LdpPlan):
    self._prepared, self._plan = prepared, plan
    self._settings = settings = plan.settings
    self.total = plan.queries
    self._mechanism = mechanism_of(plan)
    self._trainer = student_lib.Trainer(prepared.public, settings)
    self._asking = functools.cache(functools.partial(
        process.build_asking, self._mechanism, dimension=prepared.public.shape[1],
        temperature=settings.temperature, seeded=plan.seed is not None))

  def restore(self, lines, kept) -> None:
    self._charged = plan_lib.charged_queries(lines)
    # Indices of the images that were asked about.
    self._rows, self.student, self.accuracies = np.zeros(0, np.int64), None, {}
    if kept:
      self._rows, means = (np.concatenate([k.arrays[name] for k in kept])
                           for name in ('rows', 'means'))
      self.student = self._trainer.train(self._rows, means, student_lib.Noise.of(
          self._mechanism, self._settings.clients_per_query))
      self.accuracies = self._prepared.accuracies(self.student.weights)

  def done(self) -> int:
    return self._charged

  def metrics(self, kept) -> Mapping[str, float]:
    charged = kept[-1].line['event']['queries_after']
    return {
        'queries': float(len(self._rows)), 'queries_charged': float(charged),
        self._plan.epsilon_name: self._plan.epsilon(self._plan.most_answers(charged)),
        'test/accuracy': self.accuracies['test']['accuracy'],
        'refined': float(self.student.refined),
        **{f'{name}/accuracy': values['accuracy']
           for name, values in self.accuracies.items()}}

  def shown(self) -> Mapping[str, str]:
    return {'accuracy': f"{self.accuracies['test']['accuracy']:.4f}"}

  def _left(self) -> dict[str, int]:
    """Reason to stop, in words -> number of queries that are left until then."""
    most, target = self._settings.max_queries, self._settings.target_accuracy
    asked, public = len(self._rows), len(self._prepared.public)
    left = {'every public image has been asked about': public - asked}
    if most is not None:
      left[f'max_queries={most} have been answered'] = most - asked
    accuracy = self.accuracies.get('validation', {}).get('accuracy', -math.inf)
    if target is not None and accuracy >= target:
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
    """Chooses queries and asks the owners, when a line has charged the step.

    Returns `first_query`, which decides who answers; `rows` of the pool, int64 [Q];
    `means`, float32 [Q, classes]; `answers`, int32 [Q], numbers of owners.
    """
    settings, public = self._settings, self._prepared.public
    first, seed = line['event']['queries_before'], settings.seed
    count = line['event']['queries_after'] - first
    candidates = np.setdiff1d(np.arange(len(public)), self._rows)
    rows = process.choose_queries(
        candidates, count, sampling=settings.sampling,
        probabilities=self.student and self.student.probabilities(public[candidates]),
        random=np.random.default_rng([settings.sampling_seed, first]))
    teachers, groups = self._prepared.teachers, self._plan.groups
    # A group answers every query whose index leaves the same remainder.
    owners = [collections.OrderedDict(
        weights=teachers[owner % len(teachers)],
        queries=np.arange(query, count, groups, dtype=np.int32),
        **({} if seed is None else {'key': contexts.client_key(seed, first, owner)}))
              for query in range(min(count, groups)) for owner in process.owners_of(
                  first + query, groups=groups,
                  clients_per_query=settings.clients_per_query)]
    output = self._asking(num_queries=count)(public[rows], owners)
    return {'first_query': np.array(first), 'rows': rows,
            **{name: np.asarray(output[name]) for name in ('means', 'answers')}}


class LdpExperiment(PreparedExperiment):
  family = 'ldp'
  settings: LdpSettings
  build_rounds = staticmethod(LdpRounds)

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
    settings = self.settings
    answer = (f'noise multiplier {decimals.rounded_up(plan.noise_multiplier)}'
              if plan.is_gaussian else
              f'epsilon {decimals.rounded_up(plan.epsilon_per_query, 6)}')
    return report.description(
        task.task, f'in {plan.groups:,} groups',
        ('queries', f'{settings.sampling}, {settings.queries_per_step} a step, of '
         f'{len(task.public):,} public images; budget for {plan.queries:,}'),
        ('mechanism', f'{settings.mechanism}, {answer} an answer, at most '
         f'{plan.answers_per_client:,} an owner'))

  def run_line(self, plan: plan_lib.LdpPlan, rounds: int) -> str:
    return (f'{rounds} steps of up to {self.settings.queries_per_step} queries, '
            f'{plan.groups} groups of {self.settings.clients_per_query} owners')

  def outcome(self, task, plan, rounds, records) -> report_lib.Outcome:
    settings, student, stopped = self.settings, rounds.student, rounds.reason_to_stop()
    answered = sum(len(kept.arrays['rows']) for kept in records.kept)
    charged, lost = rounds.done(), rounds.done() - answered
    common = dict(
        # The ledger of a pure guarantee states no delta.
        next=None if plan.delta else report_lib.account_command(
            self.folder, '--delta=0'),
        caveats=[caveats.Caveat(
            'answers lost', f'answers to {lost} queries were lost; they count as given'
            )] if lost else [],
        fields={
            'task': task.task.name, 'algorithm': 'ldp_distillation', 'model': 'ridge',
            'mechanism': settings.mechanism, 'noise_multiplier': plan.noise_multiplier,
            'parameters': student and student.weights.size,
            'population': settings.num_clients,
            'cohort_size': settings.clients_per_query, 'details': {
                'epsilon_per_query': plan.epsilon_per_query, 'stopped': stopped,
                'groups': plan.groups, 'queries': answered, 'queries_charged': charged,
                'queries_lost': lost, 'queries_of_budget': plan.queries,
                'query_choice': settings.sampling, 'public_records': len(task.public),
                'test_examples': len(task.test), 'steps': len(records.kept),
                'refined': student and student.refined}})
    if student is None:
      return report_lib.Outcome(result='no answer was kept', **common)
    files.write_arrays(self.folder / STUDENT, {'weights': student.weights})
    title = fedavg_report.title(
        plan, f'{task.task.name}, {settings.mechanism}, {settings.sampling} queries',
        plan.most_answers(charged))
    return report.outcome_of(
        task.task, student.predict(task.test), results=rounds.accuracies,
        words=f' after {answered:,} queries of {plan.queries:,}; {stopped}',
        files=(files.METRICS, STUDENT), trained={'': serving.of_student(task, student)},
        figures={files.FIGURE: lambda path: fedavg_report.draw_metrics(
            path, 'test', title, key='queries', xlabel='queries answered',
            of=' of an owner')}, **common)

  def evaluate(self, task: Prepared, trained: models.Trained):
    return task.accuracies(*serving.own_weights(trained))


experiment = LdpExperiment
