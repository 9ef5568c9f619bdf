"""The training experiment keeps the contract of all experiments."""

import pytest

from tests.experiment import contract
from tests.fedavg import tiny_run
from tff_pipelines.fedavg.settings import TrainSettings

pytestmark = pytest.mark.usefixtures('shared_context')


class TestExperiment(contract.ExperimentContract):

  commits = 3
  in_vain = (
      ('clip', 0.1, {'mechanism': 'none'}), ('epsilon', 1.0, {'mechanism': 'none'}),
      ('bits', 16, {'mechanism': 'gaussian'}), ('clip_learning_rate', 0.1, {}),
      ('min_honest_fraction', 0.5, {'mechanism': 'skellam_central'}),
      ('vocabulary', 'words.json', {}), ('bands', 2, {'sampling': 'poisson'}))
  sampling = 'turns'

  def settings_class(self):
    return TrainSettings

  def experiment(self, folder, **changes):
    return tiny_run.experiment(
        folder, **{'seed': 8, 'sampling': self.sampling, **changes})


class TestPoisson(TestExperiment):
  """Of clients who are sampled independently, whose sums are opened each."""

  in_vain = (('bands', 2, {}), ('turn_rate', 0.5, {}))
  sampling = 'poisson'


def test_runs_of_the_contract_have_rows_or_a_limit(tmp_path):
  def plan(kind):
    experiment = kind().experiment(tmp_path / 'run')
    return experiment.build_plan(experiment.build_task(), None)

  assert plan(TestExperiment).has_closed_sums
  assert not plan(TestPoisson).has_closed_sums
