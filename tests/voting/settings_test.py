"""Settings of a vote: one class, checked when it is made."""

import subprocess
import sys

import numpy as np
import pytest

from tasks.models import classifiers
from tasks.voting import task as voting_tasks
from tff_pipelines.experiment import cli, settings as settings_lib
from tff_pipelines.voting import features, settings as voting_settings
from tff_pipelines.voting.settings import VoteSettings

DECLARED = settings_lib.declared(VoteSettings)


def _parsed(*arguments):
  return cli.parsed(VoteSettings, arguments)


def test_without_flags_agents_vote_on_embedded_digits():
  settings = _parsed()
  assert settings == VoteSettings()
  assert (settings.task, settings.algorithm) == ('embedded', 'ae')
  assert settings.target_epsilon == voting_settings.DEFAULT_EPSILON
  assert settings.privacy_level == 'agent' and settings.task_options == {}
  assert settings.is_vote


def test_given_noise_replaces_the_default_epsilon():
  assert VoteSettings(noise_stddev=7.0).target_epsilon is None
  assert VoteSettings(noise_stddev=7.0, epsilon=3.0).target_epsilon == 3
  assert VoteSettings(algorithm='dp_fedsgd', noise_multiplier=1.0).target_epsilon is None
  assert VoteSettings(algorithm='fedavg').target_epsilon is None


@pytest.mark.parametrize('algorithm, level, delta', [
    ('ae', 'agent', 1e-3), ('knn', 'instance', 1e-4), ('dp_fedavg', 'agent', 1e-3),
    ('dp_fedsgd', 'instance', 1e-4)])
def test_the_level_suits_the_algorithm_if_none_is_given(algorithm, level, delta):
  settings = VoteSettings(algorithm=algorithm)
  assert (settings.privacy_level, settings.privacy_delta(100, None)) == (level, delta)
  assert settings.privacy_delta(10_000, None) == 1e-5
  # An earlier start keeps its delta.
  assert settings.privacy_delta(10_000, {'delta': 0.5}) == 0.5
  assert settings.privacy_delta(10_000, {}) == delta
  assert settings.replace(delta=0.01).privacy_delta(10_000, {'delta': 0.5}) == 0.01


def test_options_of_the_task_are_those_that_were_given():
  settings = _parsed('--task=mnist', '--data_path=d', '--num_clients=7', '--data_seed=0')
  assert settings.task_options == {'data_path': 'd', 'num_clients': 7, 'data_seed': 0}
  # Where the data lie may change between a run and its resumption.
  assert 'data_path' not in settings.configuration()
  assert settings.configuration()['num_clients'] == 7


@pytest.mark.parametrize('arguments, name, why', [
    (['--algorithm=fedavg', '--epsilon=2'], 'epsilon', 'algorithm=fedavg'),
    (['--algorithm=fedavg', '--level=agent'], 'level', 'algorithm=fedavg'),
    (['--algorithm=knn', '--neighbours=4', '--client_epochs=3'], 'client_epochs',
     'algorithm=knn'),
    (['--algorithm=dp_fedavg', '--noise=gaussian_central', '--bits=9'], 'bits',
     'noise=gaussian_central'),
    (['--features=pca', '--feature_epochs=3'], 'feature_epochs', 'features=pca'),
    (['--student=labels', '--own_labels_after=1'], 'own_labels_after',
     'student=labels'),
    *(([f'--algorithm={algorithm}', f'--{name}=1'], name,
       f'algorithm={algorithm} without student')
      for algorithm in ('fedavg', 'dp_fedavg', 'dp_fedsgd')
      for name in ('queries', 'student_epochs', 'student_seed')),
    (['--algorithm=dp_fedsgd', '--student=labels', '--adversarial_strength=1'],
     'adversarial_strength', 'algorithm=dp_fedsgd'),
    (['--task=npz', '--data_seed=3'], 'data_seed', 'task=npz without num_clients'),
    (['--task=office', '--num_clients=3'], 'num_clients', 'task=office')])
def test_settings_without_effect_are_refused(arguments, name, why):
  with pytest.raises(ValueError, match=f'^{name} is not used with {why}: leave it'):
    _parsed(*arguments)


@pytest.mark.parametrize('arguments, message', [
    (['--algorithm=dp_fedavg', '--level=instance'],
     "level must be agent for algorithm=dp_fedavg, found 'instance'"),
    (['--algorithm=dp_fedsgd', '--level=agent'], 'level must be instance'),
    (['--algorithm=dp_fedavg', '--noise=gaussian'],
     'noise must be skellam or gaussian_central for algorithm=dp_fedavg'),
    (['--algorithm=dp_fedsgd', '--epsilon=1', '--noise_multiplier=1'],
     'epsilon and noise_multiplier must not both be given')])
def test_values_out_of_range_are_refused(arguments, message):
  with pytest.raises(ValueError, match=message):
    _parsed(*arguments)


@pytest.mark.parametrize('task', ['mnist', 'digits', 'office', 'npz'])
def test_files_that_a_task_needs_are_asked_for_before_anything_runs(task):
  with pytest.raises(ValueError, match=f'data_path must be given for task={task}'):
    VoteSettings(task=task).check_paths()
  VoteSettings().check_paths()


def test_agents_see_features_unless_they_train_against_the_domain():
  assert VoteSettings().clients_see_features
  assert not VoteSettings(adversarial_strength=0.1).clients_see_features
  assert VoteSettings(
      adversarial_strength=0.1, clients_see='features').clients_see_features
  assert VoteSettings(algorithm='knn', neighbours=3).clients_see_features
  # A baseline without a student has no other use for features.
  fedavg = VoteSettings(algorithm='fedavg', adversarial_strength=0.1)
  assert fedavg.clients_see_features
  taught = fedavg.replace(student='spread', queries=7)
  assert taught.has_student and not taught.clients_see_features


def test_training_of_clients_suits_algorithm_and_model():
  assert VoteSettings().client_training('cnn') == dict(
      learning_rate=2e-3, batch_size=50, epochs=10)
  assert VoteSettings(client_epochs=3).client_training('softmax') == dict(
      learning_rate=0.1, batch_size=500, epochs=3)
  assert VoteSettings(algorithm='fedavg', client_learning_rate=0.5).client_training(
      'softmax') == dict(learning_rate=0.5, batch_size=5, epochs=5)
  assert '15 cnn_small' in DECLARED['client_epochs'].otherwise


def test_settings_offer_what_there_is():
  def choices(name):
    return DECLARED[name].choices

  assert choices('task') == voting_tasks.TASKS
  assert choices('model') == tuple(classifiers.MODELS)
  for kind in choices('features'):
    expected = {'none': (8, 8), 'standard': (64,), 'pca': (7,), 'contrastive': (64,)}
    assert features.check(np.zeros((8, 8, 8), np.uint8), features.FeatureConfig(
        kind=kind)) == expected[kind]
  assert set().union(*voting_tasks.OPTIONS.values()) <= DECLARED.keys()


def test_settings_and_plan_do_not_import_tensorflow():
  code = ('import sys, tff_pipelines.fedmd.plan, tff_pipelines.voting.plan\n'
          'print("tensorflow" in sys.modules)')
  assert subprocess.run([sys.executable, '-c', code], check=True, text=True,
                        stdout=subprocess.PIPE).stdout == 'False\n'
