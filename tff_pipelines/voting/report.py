"""Report of a vote, or of a baseline of one, besides its guarantee.

All algorithms report the same fields, so that they can be compared. Vote counts and
margins are never among them: they are as private as the votes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tasks.models import classifiers
from tasks.voting.task import VotingTask
from tff_pipelines.accounting import caveats
from tff_pipelines.accounting import decimals
from tff_pipelines.experiment import files
from tff_pipelines.experiment import report
from tff_pipelines.fedavg import report as fedavg_report
from tff_pipelines.voting import records
from tff_pipelines.voting.plan import VotePlan
from tff_pipelines.voting.settings import VoteSettings

# A caveat of every run: which classes an agent has is private.
_CLASSES = caveats.Caveat(
    'classes taken as public',
    'the classes are taken as public knowledge; whether any agent has records of each '
    'of them is not looked at')
_FLOAT_BYTES = 4
# Keys that only votes and their baselines report; None where an algorithm has none.
DETAILS = (
    'level', 'noise', 'bound', 'queries', 'answered', 'labels_right', 'neighbours',
    'threshold', 'features', 'student', 'student_model', 'test_examples',
    'epsilon_published', 'uplink_bytes_per_agent', 'uplink_of_federated_averaging',
    'parameters_of_federated_averaging')


def _bytes(count: float) -> str:
  """A number of bytes for people."""
  for unit, size in (('MB', 1e6), ('kB', 1e3)):
    if count >= size:
      return f'{count / size:.4g} {unit}'
  return f'{count:.4g} bytes'


def describe(task: VotingTask, lines: Sequence[tuple[str, str]]) -> report.Description:
  """The description of a run that is about to start.

  Args:
    task: Of the run.
    lines: Labels and texts that follow that of the task.
  """
  return report.Description(
      lines=[('task', f'{task.name}, {len(task.agents.client_ids)} agents, '
                      f'{len(task.public):,} public records, {task.num_classes} '
                      'classes'), *lines],
      caveats=[_CLASSES, *(caveats.Caveat(note.name, str(note))
                           for note in task.notes)])


def outcome(task: VotingTask, settings: VoteSettings, metrics: Mapping[str, float], *,
            labels: str = '', lines: Sequence[str] = (), details: Mapping[str, Any],
            **attributes: Any) -> report.Outcome:
  """The outcome of a run of any algorithm.

  Args:
    task: Of the run.
    settings: Of the run.
    metrics: On the test examples.
    labels: Further words of the result.
    lines: Further lines of the full report.
    details: Some of what only this family reports.
    **attributes: `fields` and `figures` of the outcome, and others.
  """
  uplink = _bytes(details['uplink_bytes_per_agent'])
  other = details.get('uplink_of_federated_averaging')
  compared = '' if other is None else (
      f'; federated averaging of {details["parameters_of_federated_averaging"]:,} '
      f'parameters as floats: {_bytes(other)}, '
      f'{other / details["uplink_bytes_per_agent"]:,.0f} times as much')
  level = None if settings.algorithm == 'fedavg' else settings.privacy_level
  results = {'test': metrics}
  fields = {
      'task': task.name, 'algorithm': settings.algorithm, 'headline_of': 'test',
      'accuracy': metrics['accuracy'], 'headline': 'accuracy',
      'held_out': fedavg_report.finite_results(results),
      # Those of the other tasks are of people whom no epsilon protects.
      'outside_guarantee': [] if task.name == 'embedded' else ['test'],
      'population': len(task.agents.client_ids), **attributes.pop('fields'),
      'details': {**dict.fromkeys(DETAILS), 'level': level,
                  'test_examples': len(task.test['y']), **details}}
  return report.Outcome(
      result=fedavg_report.in_words('test', metrics) + labels, fields=fields,
      details=[f'{len(task.test["y"])} test examples', *lines,
               f'uplink of an agent: {uplink} in all{compared}'], **attributes)


def vote_line(plan: VotePlan) -> str:
  """A vote in one line."""
  by = (f'their {plan.params.votes} nearest records' if plan.scheme == 'knn' else
        'models of their own')
  return f'{plan.params.agents} agents vote on {plan.params.queries} queries by {by}'


def vote_mechanism(plan: VotePlan) -> list[tuple[str, str]]:
  """The noise, and epsilon by the published formula."""
  params = plan.params
  stddev, counts = (decimals.rounded_up(value) for value in (
      params.noise_stddev, params.votes * params.noise_stddev))
  text = f'{params.noise}, standard deviation {stddev} agents'
  text += f' ({counts} counts)' if params.votes > 1 else ''
  text += f', sum modulo 2^{params.bits}' if params.is_integer else ''
  return [('mechanism', text),
          ('published', f'epsilon {decimals.epsilon(plan.epsilon_published)} by the '
                        'formula of the paper')]


def vote_outcome(plan: VotePlan, task: VotingTask, settings: VoteSettings, *,
                 labels: np.ndarray, truth: np.ndarray,
                 curve: Sequence[Mapping[str, float]], features: str, student: str,
                 network: classifiers.Network) -> report.Outcome:
  """The outcome of a vote.

  Args:
    plan: Of the vote.
    task: Of the run.
    settings: Of the run.
    labels: int32 [Q], as released, -1 where a query was not answered.
    truth: int32 [Q], true labels of the queries, for measurements alone.
    curve: The student's test metrics after each epoch.
    features: Kind of the public feature map.
    student: Name of the student's architecture.
    network: That federated averaging would train instead.
  """
  params, answered = plan.params, labels >= 0
  right = float((labels == truth)[answered].mean())
  parameters = network.as_model().parameter_count()
  is_ae = settings.algorithm == 'ae'
  metrics = {name: curve[-1][name] for name in ('accuracy', 'loss')}
  title = fedavg_report.title(plan, f'{task.name}, {settings.algorithm}', 1)
  return outcome(
      task, settings, metrics,
      labels=f'; {100 * right:.1f}% of {answered.sum()} labels right',
      lines=[f'released labels: {100 * answered.mean():.1f}% of {params.queries} '
             f'queries answered, {100 * right:.1f}% of them right'],
      files=(files.METRICS, records.CURVE),
      figures={files.FIGURE: lambda path: report.draw(
          path, [report.Curve(label='accuracy', x=[row['epoch'] for row in curve],
                              y=[row['accuracy'] for row in curve])],
          title=title, xlabel='epoch of the student', ylabel='accuracy on test')},
      fields={'mechanism': f'{plan.scheme}_vote', 'cohort_size': params.agents,
              'noise_stddev': params.noise_stddev,
              'bits': params.bits if params.is_integer else None,
              'model': network.name if is_ae else None,
              'parameters': parameters if is_ae else None},
      details={
          'noise': params.noise, 'bound': plan.calibrated_by,
          'queries': params.queries, 'answered': float(answered.mean()),
          'labels_right': right, 'threshold': params.threshold,
          'neighbours': params.votes if plan.scheme == 'knn' else None,
          'features': features, 'student': settings.student, 'student_model': student,
          'epsilon_published': files.finite(plan.epsilon_published),
          'uplink_bytes_per_agent': params.uplink_bytes,
          'uplink_of_federated_averaging': float(
              parameters * settings.rounds * _FLOAT_BYTES),
          'parameters_of_federated_averaging': parameters})
