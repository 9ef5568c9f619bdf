"""The run report of distillation and its baselines, besides their guarantees."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tasks.ldp.task import DistillationTask
from tasks.models import classifiers
from tasks.task import Breakdown
from tff_pipelines.experiment import report
from tff_pipelines.fedavg import evaluation, report as fedavg_report


def outcome_of(task: DistillationTask, predicted: np.ndarray, *,
               fields: Mapping[str, Any], words: str = '',
               results: Mapping[str, Mapping[str, float]] | None = None,
               **attributes: Any) -> report.Outcome:
  """The outcome of a run whose classifier `predicted` classes of the test records."""
  results = results or {'test': {'accuracy': float(np.mean(predicted == task.test.y))}}
  # Records of the other tasks are of people whom no epsilon protects.
  outside = [] if task.name == 'digits' else list(results)
  confusion = np.zeros([task.num_classes] * 2, np.int64)
  np.add.at(confusion, (task.test.y, predicted), 1)
  breakdown = fedavg_report.describe_breakdown(
      Breakdown(count=None, **classifiers.numbered(task.num_classes)),
      evaluation.of_confusion(confusion), outside_guarantee=bool(outside))
  return report.Outcome(
      result=f"test: accuracy {results['test']['accuracy']:.4f}{words}",
      weakest=fedavg_report.weakest(breakdown),
      details=fedavg_report.breakdown_lines('test', breakdown), fields={
          'task': task.name, 'headline_of': 'test', 'headline': 'accuracy',
          'held_out': results, 'outside_guarantee': outside,
          'breakdown': {'test': breakdown}, 'population': task.num_clients, **fields,
          'details': {'test_examples': len(task.test), **fields['details']}},
      **attributes)


def description(task: DistillationTask, owners: str,
                *lines: tuple[str, str]) -> report.Description:
  return report.Description(
      lines=[('task', f'{task.name}, {task.num_clients:,} owners {owners}, '
              f'{task.num_classes} classes'), *lines],
      caveats=task.notes)
