"""The smallest complete family: the noisy mean of clients' vectors, round after round.

Copy it to add a family. In a package, its four parts are modules of their own.
"""

import collections
import dataclasses
from typing import Any

import numpy as np
import tensorflow_federated as tff

from aggregators import structures
from aggregators.central_sum import CentralSumFactory
from tasks import mean_estimation
from tff_pipelines.accounting.events import kinds as events
from tff_pipelines.accounting.guarantees import plan as guarantee
from tff_pipelines.common.declarations import setting
from tff_pipelines.experiment import (
    cli, report, rounds as rounds_lib, run, settings as settings_lib)
from tff_pipelines.simulation import contexts

_CLIP = 1.0

# settings.py: flags, constructor, configuration and checks follow from the fields.


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeanSettings(settings_lib.RunSettings):
  """Everything that can be asked for."""

  num_clients: int = setting(8, 'Number of clients.', group='data', low=2, essential=True)
  dimension: int = setting(4, 'Coordinates of a vector.', group='data', low=1)
  noise: bool = setting(True, 'Add noise; without it, nothing is guaranteed.',
                        group='privacy', essential=True)
  noise_multiplier: float = setting(
      2.0, 'Noise standard deviation over the clip.', group='privacy', above=0,
      essential=True, when={'noise': (True,)})
  delta: float = setting(1e-3, 'Delta of the guarantee.', group='privacy', above=0,
                         below=1, essential=True)
  rounds: int = setting(3, 'Number of rounds.', group='privacy', low=1, essential=True)


# plan.py: what each round releases, and to whom.


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeanPlan(guarantee.Plan):
  """Gaussian noise on the sum of all clients' vectors."""

  settings: MeanSettings
  delta: float
  seed: int | None
  population: int
  terms: guarantee.Terms = guarantee.Terms(
      privacy_unit='one client', observers='those who see the means',
      against='observers of the means', trust_model='a server is trusted with vectors',
      source='arXiv 1702.07476, Corollary 3', sampler='floating point')

  @property
  def is_private(self) -> bool:
    return self.settings.noise

  def event(self, index: int):
    del index  # All rounds are alike.
    return (events.CentralGaussian(noise_multiplier=self.settings.noise_multiplier)
            if self.settings.noise else events.NoPrivacy())

  def configuration(self) -> dict[str, Any]:
    return {}  # Nothing was calibrated.


# run.py: the rounds, and the experiment that brings all together.


class MeanRounds(rounds_lib.Rounds):
  """Rounds of a TFF aggregation process."""

  def __init__(self, settings: MeanSettings):
    self.count, self._settings = settings.rounds, settings
    factory = CentralSumFactory(clip=_CLIP, simulation_seed=settings.seed,
        noise_multiplier=settings.noise_multiplier * settings.noise)
    vector = tff.TensorType(np.float32, [settings.dimension])
    self._process = factory.create(
        structures.keyed_type(vector) if factory.seeded else vector)

  def initial_state(self, resumed: bool):
    return {'sum': self._process.initialize(),
            'mean': np.zeros(self._settings.dimension, np.float32)}

  def step(self, state, index: int) -> rounds_lib.Step:
    settings = self._settings
    vectors = values = mean_estimation.clients(
        num_clients=settings.num_clients, dimension=settings.dimension, radius=_CLIP,
        seed=0, repeat=0, vectors='sphere')
    if settings.seed is not None:  # Then every client brings the key of its noise.
      values = [collections.OrderedDict(
          value=vector, key=contexts.client_key(settings.seed, index, client))
                for client, vector in enumerate(vectors)]
    output = self._process.next(state['sum'], list(values))
    mean = np.asarray(output.result, np.float32) / settings.num_clients
    error = float(np.linalg.norm(mean - vectors.mean(axis=0)))
    return rounds_lib.Step(
        state={'sum': output.state, 'mean': mean}, metrics={'clients/error': error})


class MeanExperiment(run.Experiment):
  """The means of all rounds; the last one is the result."""

  family = 'smallest'
  settings: MeanSettings

  def build_task(self):
    return None  # The vectors follow from the settings.

  def build_plan(self, task, recorded) -> MeanPlan:
    settings = self.settings
    return MeanPlan(settings=settings, delta=settings.delta, seed=settings.seed,
                    population=settings.num_clients)

  def planned_rounds(self, plan) -> int:
    return self.settings.rounds

  def build_rounds(self, task, plan) -> MeanRounds:
    return MeanRounds(self.settings)

  # report.py: the family's own lines and fields.

  def describe(self, task, plan) -> report.Description:
    return report.Description(lines=[
        ('task', f'mean of {self.settings.num_clients} vectors')])

  def outcome(self, task, plan, rounds, state) -> report.Outcome:
    mean = ', '.join(f'{value:.3f}' for value in state['mean'])
    return report.Outcome(result=f'mean: {mean}', fields={
        'task': 'vectors', 'algorithm': 'mean', 'clip': _CLIP,
        'mechanism': 'gaussian' if self.settings.noise else 'none',
        'details': {'mean': state['mean'].tolist()}})


# The program: tff_pipelines/NAME.py.


def release_means(settings: MeanSettings) -> dict[str, Any]:
  """Runs, or resumes, and reports; returns the summary."""
  return MeanExperiment(settings).run()


main = cli.program(
    __name__, MeanSettings, 'tests.experiment.smallest_family:release_means')
