"""A sweep of mean estimations meets the contract of all experiments."""

import types

import pytest

from tests.experiment import contract
from tff_pipelines.mean import run
from tff_pipelines.mean.settings import MeanSettings


@pytest.fixture(scope='module', autouse=True)
def _stopped_clock():
  """Rows contain the seconds that they took."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(run, 'time', types.SimpleNamespace(monotonic=lambda: 0.0))
    yield


class TestExperiment(contract.ExperimentContract):

  commits = 3
  trains = False
  in_vain = (
      ('bits', (12,), {'mechanisms': ('gaussian',)}),
      ('beta', 0.5, {'mechanisms': ('gaussian', 'gaussian_rdp')}),
      ('allow_degenerate', True, {'mechanisms': ('gaussian',)}))

  def settings_class(self):
    return MeanSettings

  def lost_when(self, when):
    return when == 'before'

  def experiment(self, folder, **changes):
    # The program resumes by default.
    return run.MeanExperiment(MeanSettings(**{
        'num_clients': (6,), 'dimension': (4,), 'epsilon': (8.0,),
        'mechanisms': ('skellam', 'gaussian', 'gaussian_rdp'), 'repeats': 2, 'seed': 8,
        'resume': False, 'output_dir': str(folder), **(
            {'bits': (16,)} if 'mechanisms' not in changes else {}), **changes}))
