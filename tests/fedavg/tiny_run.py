"""Training runs of the tiny task that cost milliseconds a round.

What is slow is to trace a process, so runs with the same settings share one.
"""

import copy
import dataclasses
import json

from tests import tiny_task
from tff_pipelines.fedavg import run
from tff_pipelines.fedavg.settings import TrainSettings

_rounds = {}


def settings(folder, **changes) -> TrainSettings:
  """Small settings of a run in a folder; None takes a value back."""
  values = {'rounds': 3, 'cohort_size': 4.0, 'client_batch_size': 3,
            'output_dir': str(folder), **changes}
  if values.get('mechanism') != 'none':
    values = {'clip': 0.5, 'noise_multiplier': 1.0, **values}
  return TrainSettings(**values)


class TinyExperiment(run.TrainExperiment):
  """Training on `tiny_task`."""

  def build_task(self):
    return tiny_task.task(num_clients=self.settings.num_clients or 8)

  def serving(self, trained):
    return tiny_task.task().serving

  def build_rounds(self, task, plan):
    values = dataclasses.asdict(self.settings)
    for name in ('output_dir', 'resume', 'verbose', 'delta', 'epsilon'):
      del values[name]
    key = type(self), plan, json.dumps(values)
    if key not in _rounds:
      _rounds[key] = super().build_rounds(task, plan)
    rounds = copy.copy(_rounds[key])  # Which has no results yet.
    rounds.scheme = plan.scheme  # Of this run: its order, or its participations.
    return rounds


def experiment(folder, **changes) -> TinyExperiment:
  """A small run in a folder."""
  return TinyExperiment(settings(folder, **changes))
