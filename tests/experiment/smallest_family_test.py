"""The smallest family keeps the contract of all, and is a program."""

import json

from tests.experiment import contract, smallest_family
from tff_pipelines.common import files


class TestExperiment(contract.ExperimentContract):

  commits = 3
  trains = False
  in_vain = (('noise_multiplier', 3.0, {'noise': False}),)

  def settings_class(self):
    return smallest_family.MeanSettings

  def experiment(self, folder, **changes):
    return smallest_family.MeanExperiment(smallest_family.MeanSettings(
        **{'seed': 8, 'output_dir': str(folder), **changes}))


def test_its_mean_is_that_of_the_vectors_but_for_the_noise(tmp_path):
  assert smallest_family.main([
      '--noise_multiplier=0.001', '--num_clients=50', '--rounds=1',
      f'--output_dir={tmp_path / "run"}']) == 0
  rows = (tmp_path / 'run' / files.METRICS).read_text().splitlines()
  error = dict(zip(rows[0].split(','), rows[1].split(',')))['clients/error']
  assert 0 < float(error) < 0.001
  summary = json.loads((tmp_path / 'run' / files.SUMMARY).read_text())
  assert summary['epsilon'] is None or summary['epsilon'] > 1000
