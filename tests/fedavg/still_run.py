"""Training runs without clients' training: what is slow is to trace a process.

`main` is their program, on the tiny task: `--rounds=4 --seed=1 --output_dir=...`.
"""

from typing import Any

import numpy as np

from tests import tiny_task
from tests.fedavg import tiny_run
from tff_pipelines.experiment import cli
from tff_pipelines.fedavg import loop, run
from tff_pipelines.fedavg.settings import TrainSettings


class Still:
  """A process whose weights follow from the number of rounds, whoever participates."""

  def initialize(self):
    return {'weights': tiny_task.initial_weights(0), 'aggregator': {}}

  def next(self, state, values):
    del values
    weights = [np.float32(0.9) * weight + np.float32(0.1) for weight in state['weights']]
    return {'state': {**state, 'weights': weights}, 'metrics': {'aggregator': {}}}


class StillExperiment(run.TrainExperiment):
  """A run with all files and numbers of training."""

  def build_task(self):
    return tiny_task.task()

  def build_rounds(self, task, plan):
    return loop.FedAvgRounds(
        Still(), task=task, scheme=plan.scheme, rounds=plan.mechanism.rounds)


def experiment(folder, **changes) -> StillExperiment:
  """A small run in a folder."""
  return StillExperiment(tiny_run.settings(folder, **changes))


def train(settings: TrainSettings) -> dict[str, Any]:
  """Runs, or resumes, and reports."""
  return StillExperiment(settings).run()


main = cli.program(__name__, TrainSettings, 'tests.fedavg.still_run:train')
ARGUMENTS = ('--rounds=4', '--cohort_size=4', '--client_batch_size=3', '--seed=1',
             '--mechanism=none')
