"""Votes and their baselines keep the contract of all experiments."""

import json

import numpy as np
import pytest

from tasks.voting import task as voting_tasks
from tests.experiment import contract
from tff_pipelines.experiment import files
from tff_pipelines.voting import baselines
from tff_pipelines.voting import run
from tff_pipelines.voting import student
from tff_pipelines.voting.settings import VoteSettings

AGENTS, CLASSES, FEATURES = 5, 3, 4


def _examples(count, seed):
  """Records of classes that the features tell apart."""
  rng = np.random.default_rng(seed)
  y = rng.integers(CLASSES, size=count).astype(np.int32)
  x = rng.normal(size=(count, FEATURES)) + 3 * np.eye(CLASSES, FEATURES)[y]
  return {'x': x.astype(np.float32), 'y': y}


def _task():
  public = _examples(30, 90)
  return voting_tasks.VotingTask(
      name='tiny', num_classes=CLASSES, agents=voting_tasks.AgentRecords(
          {f'agent{i}': _examples(12, i) for i in range(AGENTS)}),
      public=public['x'], public_labels=public['y'], test=_examples(40, 91),
      privacy_unit='one agent')


class _TinyVote(run.VoteExperiment):

  def build_task(self):
    return _task()


class _TinyAveraging(baselines.AveragingExperiment):

  def build_task(self):
    return _task()


class _TinyFedSgd(baselines.FedSgdExperiment):

  def build_task(self):
    return _task()


def _vote(folder, **changes):
  return _TinyVote(VoteSettings(**{
      'queries': 10, 'features': 'standard', 'noise_stddev': 1.0, 'client_epochs': 2,
      'student_epochs': 2, 'student_model': 'softmax', 'seed': 8,
      'output_dir': str(folder), **changes}))


def _averaging(folder, **changes):
  return _TinyAveraging(VoteSettings(**{
      'algorithm': 'dp_fedavg', 'rounds': 2, 'noise_multiplier': 1.0,
      'noise': 'gaussian_central', 'cohort_size': 3.0, 'seed': 8,
      'output_dir': str(folder), **changes}))


def _sgd(folder, **changes):
  return _TinyFedSgd(VoteSettings(**{
      'algorithm': 'dp_fedsgd', 'rounds': 2, 'record_rate': 0.5, 'seed': 8,
      'output_dir': str(folder), **changes}))


class TestVote(contract.ExperimentContract):

  commits = 1
  in_vain = (
      ('clip', 0.1, {}),
      ('noise_multiplier', 1.0, {}),
      ('neighbours', 3, {}),
      ('target', 'dslr', {}),
      ('pca_dimensions', 3, {}),
      ('client_shift', 1, {}),
      ('assumed_colluders', 1, {'noise': 'gaussian_central'}))

  def settings_class(self):
    return VoteSettings

  def experiment(self, folder, **changes):
    return _vote(folder, **changes)


@pytest.mark.slow
class TestBaseline(contract.ExperimentContract):

  commits = 2
  in_vain = (
      ('queries', 5, {}),
      ('student', 'labels', {}),
      ('noise_stddev', 1.0, {}),
      ('client_confidence', 0.5, {}),
      ('bits', 16, {}))

  def settings_class(self):
    return VoteSettings

  def experiment(self, folder, **changes):
    return _averaging(folder, **changes)


# What version 1 recorded of the settings, all of which it had for all algorithms.
VERSION_1 = {
    'adversarial_strength': 0.0, 'agent_batch_size': None, 'agent_confidence': 0.0,
    'agent_epochs': None, 'agent_learning_rate': None, 'agent_shift': 0,
    'agent_weight_decay': None, 'agents_see': None, 'algorithm': 'ae',
    'allow_degenerate': False, 'assumed_colluders': 0, 'bits': 18, 'bound': 'tight',
    'client_batch_size': 20, 'client_epochs': 1, 'client_learning_rate': 0.1,
    'clip': 0.3, 'cohort_size': None, 'delta': None, 'epsilon': None,
    'feature_epochs': None, 'feature_learning_rate': 0.002, 'feature_seed': 0,
    'features': None, 'initial_weights_seed': 0, 'level': None,
    'min_honest_fraction': 1.0, 'model': None, 'neighbours': None, 'noise': 'skellam',
    'noise_multiplier': None, 'noise_stddev': None,
    'own_labels_after': 0.3333333333333333, 'pca_dimensions': 50, 'queries': 50,
    'query_choice': 'spread', 'record_rate': 0.05, 'rounds': 50, 'seed': None,
    'server_learning_rate': 1.0, 'server_momentum': 0.0, 'student': 'spread',
    'student_batch_size': 128, 'student_epochs': None, 'student_learning_rate': 0.001,
    'student_model': None, 'student_seed': 0, 'task': 'embedded', 'task_options': {},
    'threshold': None,
    'data_fingerprint':
        '5a61f13bed6aac359357345d3a74826d51fde040bdb7635a8a40dbc0c25bff49'}


def _recorded(folder, **changes):
  """Writes the configuration of a run that version 1 started."""
  folder.mkdir(exist_ok=True)
  files.write_json(folder / files.CONFIGURATION, {**VERSION_1, **changes})


_OF_VERSION_1 = {
    'vote': (_vote, dict(
        queries=10, features='standard', noise_stddev=1.0, agent_epochs=2,
        student_epochs=2, student_model='softmax', seed=8,
        # Of what other algorithms use version 1 warned only.
        clip=0.7, noise_multiplier=3.0,
        plan={'scheme': 'ae', 'level': 'agent', 'delta': 1e-3, 'bound': 'tight',
              'simulation_seed': 8, 'params': {'noise_stddev': 1.0, 'agents': 5}})),
    'averaging': (_averaging, dict(
        algorithm='dp_fedavg', rounds=2, noise_multiplier=1.0, noise='gaussian',
        cohort_size=3.0, seed=8, plan={'noise_multiplier': 1.0, 'mechanism': 'none'})),
    'sgd': (_sgd, dict(
        algorithm='dp_fedsgd', rounds=2, record_rate=0.5, seed=8, agent_epochs=3,
        plan={'noise_multiplier': 1.5, 'records': 60, 'delta': 1e-4}))}


@pytest.mark.parametrize('name', _OF_VERSION_1)
@pytest.mark.slow
def test_runs_of_version_1_are_resumed(tmp_path, name):
  experiment, changes = _OF_VERSION_1[name]
  if name == 'sgd':  # With the noise that version 1 had calibrated.
    summary = experiment(tmp_path / 'whole', noise_multiplier=1.5).run()
  else:
    summary = experiment(tmp_path / 'whole').run()
  _recorded(tmp_path / 'run', **changes)
  resumed = experiment(tmp_path / 'run', resume=True).run()
  for key in set(summary) - {'configuration'}:
    assert resumed[key] == summary[key], key
  recorded = json.loads((tmp_path / 'run' / files.CONFIGURATION).read_text())
  assert 'version' not in recorded
  with pytest.raises(ValueError, match='seed .* differ'):
    experiment(tmp_path / 'run', resume=True, seed=9).run()


def test_noise_that_was_calibrated_is_taken_over(tmp_path):
  _recorded(
      tmp_path / 'run', queries=10, features='standard', agent_epochs=2,
      student_epochs=2, student_model='softmax',
      plan={'bound': 'tight', 'params': {'noise_stddev': 3.0}})
  first = _vote(tmp_path / 'run', seed=None, noise_stddev=None, resume=True).run()
  assert first['noise_stddev'] == 3.0 and 0 < first['epsilon'] < 4


@pytest.mark.slow
def test_a_student_that_was_stopped_continues_where_it_was(tmp_path, monkeypatch):
  whole = _vote(tmp_path / 'whole', student_epochs=4).run()
  original, written = student.write, []

  def stops_at_the_second(*arguments):
    original(*arguments)
    written.append(1)
    if len(written) == 2:
      raise KeyboardInterrupt

  monkeypatch.setattr(student, 'write', stops_at_the_second)
  with pytest.raises(KeyboardInterrupt):
    _vote(tmp_path / 'run', student_epochs=4).run()
  resumed = _vote(tmp_path / 'run', student_epochs=4, resume=True).run()
  assert len(written) == 4 and resumed == {
      **whole, 'starts': 2, 'configuration': resumed['configuration']}
  states = [student.read(tmp_path / name) for name in ('whole', 'run')]
  assert states[0][1] == states[1][1]
  for left, right in zip(states[0][0], states[1][0]):
    np.testing.assert_array_equal(left, right)
