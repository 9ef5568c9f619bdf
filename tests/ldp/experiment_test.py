"""Local distillation keeps the contract of all experiments; dp_fl in tests/fedavg."""

import functools

import pytest

from tests.experiment import contract
from tff_pipelines.ldp import baselines, run
from tff_pipelines.ldp.settings import BaselineSettings, LdpSettings


@functools.lru_cache(maxsize=None)
def _prepared(num_clients):
  return run.Prepared(LdpSettings(num_clients=num_clients))


def _ldp(folder, **changes):
  # 8 groups of 5 owners, so 16 queries in 4 steps.
  return run.LdpExperiment(LdpSettings(**{
      'num_clients': 40, 'clients_per_query': 5, 'queries_per_step': 4,
      'epsilon': 12.0, 'answers_per_client': 2, 'mechanism': 'gaussian', 'seed': 8,
      'output_dir': str(folder), **changes}), _prepared(40))


class TestLdp(contract.ExperimentContract):

  commits = 4
  in_vain = (
      ('refine_steps', 3, {'refine': 'never'}), ('trust', 0.5, {'refine': 'never'}),
      ('sharpness', 2.0, {'refine': 'never', 'sampling': 'random'}),
      ('num_classes', 10, {}), ('data_path', 'digits.npz', {}),
      ('records_per_client', 5, {}), ('size_exponent', 2.0, {'partition': 'labels'}),
      ('partition', 'labels', {'stand_ins': 2, 'records_per_client': 9}))

  def lost_when(self, when):
    return when == 'before'

  def settings_class(self):
    return LdpSettings

  def experiment(self, folder, **changes):
    return _ldp(folder, **changes)


class _Baseline(contract.ExperimentContract):

  given = {}

  def settings_class(self):
    return BaselineSettings

  def experiment(self, folder, **changes):
    settings = BaselineSettings(**{'num_clients': 20, 'seed': 8, **self.given,
                                   'output_dir': str(folder), **changes})
    return baselines.EXPERIMENTS[settings.algorithm](settings, _prepared(20))


class TestPate(_Baseline):

  commits = 1
  given = {'answers': 40}
  accountant = 'rdp'
  in_vain = (('clip', 0.1, {}), ('rounds', 3, {}), ('client_epochs', 2, {}),
             ('local_workers', 1, {}))

  def lost_when(self, when):
    return when == 'before'


@pytest.mark.slow
class TestSgd(_Baseline):

  given = {'algorithm': 'dp_sgd', 'rounds': 2}
  in_vain = (('answers', 5, {}), ('teacher_strength', 0.1, {}),
             ('client_learning_rate', 0.1, {}))
