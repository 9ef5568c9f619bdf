"""The experiments of local distillation keep the contract of all experiments.

Federated averaging among the baselines is in tests/programs/ldp_test: its rounds keep
the contract in tests/fedavg.
"""

import functools
import json

import pytest

from tests.experiment import contract
from tff_pipelines.experiment import files
from tff_pipelines.ldp import baselines
from tff_pipelines.ldp import run
from tff_pipelines.ldp.settings import BaselineSettings
from tff_pipelines.ldp.settings import LdpSettings


@functools.lru_cache(maxsize=None)
def _prepared(num_clients):
  return run.prepare(LdpSettings(num_clients=num_clients))


def _ldp(folder, **changes):
  # 8 groups of 5 owners, so 16 queries in 4 steps.
  return run.LdpExperiment(LdpSettings(**{
      'num_clients': 40, 'clients_per_query': 5, 'queries_per_step': 4,
      'epsilon': 12.0, 'answers_per_client': 2, 'mechanism': 'gaussian', 'seed': 8,
      'output_dir': str(folder), **changes}), _prepared(40))


def _baseline(folder, **changes):
  settings = BaselineSettings(**{
      'num_clients': 20, 'seed': 8, 'output_dir': str(folder), **changes})
  return baselines.EXPERIMENTS[settings.algorithm](settings, _prepared(20))


class TestLdp(contract.ExperimentContract):

  commits = 4
  in_vain = (
      ('refine_steps', 3, {'refine': 'never'}),
      ('trust', 0.5, {'refine': 'never'}),
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


class TestPate(contract.ExperimentContract):

  commits = 1
  accountant = 'rdp'
  in_vain = (('clip', 0.1, {}), ('rounds', 3, {}), ('client_epochs', 2, {}),
             ('num_workers', 1, {}))

  def lost_when(self, when):
    return when == 'before'

  def settings_class(self):
    return BaselineSettings

  def experiment(self, folder, **changes):
    return _baseline(folder, answers=40, **changes)


@pytest.mark.slow
class TestSgd(contract.ExperimentContract):

  in_vain = (('answers', 5, {}), ('teacher_strength', 0.1, {}),
             ('client_learning_rate', 0.1, {}))

  def settings_class(self):
    return BaselineSettings

  def experiment(self, folder, **changes):
    return _baseline(folder, algorithm='dp_sgd', rounds=2, **changes)


# What version 1 recorded, besides the task and seeds, for the runs below.
_LDP_1 = {
    'budget': {'answers_per_owner': 2, 'delta': None, 'epsilon_per_query': None,
               'epsilon_total': 12.0, 'mechanism': 'gaussian'},
    'feature_seed': 0, 'max_queries': None, 'owners_per_query': 5, 'plan': {
        'answers_per_owner': 2, 'delta': 1e-5, 'dimension': 10,
        'epsilon_per_query': None, 'holdings': 40, 'mechanism': 'gaussian',
        'noise_multiplier': 0.75, 'owners': 40, 'owners_per_query': 5,
        'simulation_seed': 8},
    'queries_per_step': 4, 'refine': 'auto', 'refine_steps': 40,
    'refine_strength': 0.3, 'sampling': 'active', 'sampling_seed': 0, 'seed': 8,
    'sharpness': 8.0, 'target_accuracy': None, 'task': 'digits',
    'task_options': {'owners': 40}, 'teacher_strength': 0.03, 'temperature': 0.05,
    'trust': 0.6}
_BASELINES_1 = {
    'delta': 1e-5, 'epsilon': 8.0, 'feature_seed': 0, 'seed': 8, 'task': 'digits',
    'task_options': {'owners': 20}, 'teacher_strength': 0.03}
_OWN_1 = {
    'pate': {'answers': 40, 'queries': 1000, 'threshold': 0.5, 'threshold_noise': 2.0},
    'dp_sgd': {'clip': 1.0, 'learning_rate': 8.0, 'record_rate': 0.2, 'rounds': 2},
    'dp_fl': {'client_batch_size': 20, 'client_epochs': 1, 'client_learning_rate': 0.2,
              'clip': 0.3, 'learning_rate': 15.0, 'rounds': 2}}


def _as_version_1(folder, configuration):
  """Rewrites the configuration of a run as version 1 wrote it."""
  path = folder / files.CONFIGURATION
  recorded = json.loads(path.read_text())
  path.write_text(json.dumps(
      {**configuration, 'data_fingerprint': recorded['identity']['data_fingerprint']}))
  return recorded


def test_distillation_of_version_1_continues_with_its_noise(tmp_path):
  folder = tmp_path / 'run'
  first = _ldp(folder).run()
  _as_version_1(folder, _LDP_1)
  resumed = _ldp(folder, resume=True).run()
  assert resumed['starts'] == 2 and resumed['accuracy'] == first['accuracy']
  assert resumed['noise_multiplier'] == 0.75 != first['noise_multiplier']
  with pytest.raises(ValueError, match="sampling .*'active' then, 'random' now"):
    _ldp(folder, sampling='random', resume=True).run()
  with pytest.raises(ValueError, match='clients_per_query .*5 then, 8 now.* differ'):
    _ldp(folder, clients_per_query=8, resume=True).run()


def test_a_target_of_version_1_has_its_validation_records():
  recorded = {**_LDP_1, 'target_accuracy': 0.5,
              'task_options': {'owners': 40, 'validation_records': 60}}
  for given in (None, 60):
    settings = LdpSettings(
        num_clients=40, clients_per_query=5, queries_per_step=4, epsilon=12.0,
        answers_per_client=2, mechanism='gaussian', seed=8, target_accuracy=0.5,
        validation_records=given)
    assert settings.differences(settings.upgraded(recorded)) == []


def test_what_version_1_was_given_in_vain_does_not_matter():
  settings = LdpSettings(
      num_clients=40, clients_per_query=5, queries_per_step=4, epsilon=12.0,
      answers_per_client=2, mechanism='gaussian', seed=8, refine='never')
  recorded = {**_LDP_1, 'refine': 'never', 'refine_steps': 5}
  assert settings.differences(settings.upgraded(recorded)) == []


@pytest.mark.parametrize('algorithm', ['pate', 'dp_sgd'])
@pytest.mark.slow
def test_baselines_of_version_1_continue(tmp_path, algorithm):
  folder = tmp_path / 'run'
  changes = {name: value for name, value in _OWN_1[algorithm].items()
             if name in ('answers', 'rounds')}
  first = _baseline(folder, algorithm=algorithm, **changes).run()
  _as_version_1(folder, {**_BASELINES_1, **_OWN_1[algorithm], 'algorithm': algorithm})
  resumed = _baseline(folder, algorithm=algorithm, **changes, resume=True).run()
  assert resumed['starts'] == 2
  assert {**resumed, 'starts': 1, 'configuration': first['configuration']} == first
  with pytest.raises(ValueError, match='epsilon .* differ'):
    _baseline(folder, algorithm=algorithm, **changes, resume=True, epsilon=3.0).run()


def test_averaging_of_version_1_is_recognised():
  settings = BaselineSettings(
      algorithm='dp_fl', rounds=2, num_clients=20, seed=8)
  recorded = {**_BASELINES_1, **_OWN_1['dp_fl'], 'algorithm': 'dp_fl'}
  assert settings.differences(settings.upgraded(recorded)) == []
  assert settings.differences(settings.upgraded({**recorded, 'clip': 0.2})) == ['clip']
