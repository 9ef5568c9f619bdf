"""Federated averaging as a baseline of runs that train otherwise."""

from collections.abc import Sequence

import numpy as np

from tasks.task import Task
from tff_pipelines.fedavg import evaluation
from tff_pipelines.fedavg import report


def evaluate(task: Task, weights: Sequence[np.ndarray]) -> report.Results:
  """Measures a trained model on the held-out sets of a task."""
  return report.finite_results(
      evaluation.Evaluator(task.model, task.held_out).evaluate(weights))
