"""The run report of a vote and its baselines, besides their guarantees.

All algorithms report the same fields. Vote counts and margins, as private as the votes,
are never among them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.voting.task import VotingTask
from tff_pipelines.common import caveats
from tff_pipelines.experiment import report
from tff_pipelines.fedavg import report as fedavg_report
from tff_pipelines.voting.settings import VoteSettings

# A caveat of every run: which classes an agent has is private.
_CLASSES = caveats.Caveat('classes taken as public', 'the classes are taken as public '
                          'knowledge, whichever of them agents have')
# Keys that only votes and their baselines report; None where an algorithm has none.
DETAILS = ('level', 'noise', 'bound', 'queries', 'answered', 'labels_right', 'neighbours',
           'threshold', 'features', 'student', 'student_model', 'test_examples',
           'epsilon_published', 'uplink_bytes_per_agent', 'uplink_of_federated_averaging',
           'parameters_of_federated_averaging')


def _bytes(count: float) -> str:
  unit, size = ('MB', 1e6) if count >= 1e6 else ('kB', 1e3)
  return f'{count / size:.4g} {unit}' if count >= size else f'{count:.4g} bytes'


def describe(task: VotingTask, lines: Sequence[tuple[str, str]]) -> report.Description:
  """The description of a run; `lines`, labels and texts, follow that of the task."""
  return report.Description(
      lines=[('task', f'{task.name}, {len(task.agents.client_ids)} agents, '
                      f'{len(task.public):,} public records, {task.num_classes} '
                      'classes'), *lines],
      caveats=[_CLASSES, *task.notes])


def outcome(task: VotingTask, settings: VoteSettings, metrics: Mapping[str, float], *,
            fields: Mapping[str, Any], labels: str = '', lines: Sequence[str] = (),
            **attributes: Any) -> report.Outcome:
  """The outcome of a run; `labels` and `lines` go to the result and the full report."""
  details, compared = fields['details'], ''
  sent = details['uplink_bytes_per_agent']
  if (other := details.get('uplink_of_federated_averaging')) is not None:
    compared = (
        f'; federated averaging of {details["parameters_of_federated_averaging"]:,} '
        f'parameters as floats: {_bytes(other)}, {other / sent:,.0f} times as much')
  return report.Outcome(
      result=fedavg_report.in_words('test', metrics) + labels,
      details=[f'{len(task.test["y"])} test examples', *lines,
               f'uplink of an agent: {_bytes(sent)} in all{compared}'],
      fields={
          'task': task.name, 'algorithm': settings.algorithm, 'headline_of': 'test',
          'headline': 'accuracy',
          'held_out': fedavg_report.finite_results({'test': metrics}),
          # Records of the other tasks are of people whom no epsilon protects.
          'outside_guarantee': [] if task.name == 'embedded' else ['test'],
          'population': len(task.agents.client_ids), **fields, 'details': {
              **dict.fromkeys(DETAILS), 'test_examples': len(task.test['y']),
              'level': (None if settings.algorithm == 'fedavg'
                        else settings.privacy_level), **details}}, **attributes)
