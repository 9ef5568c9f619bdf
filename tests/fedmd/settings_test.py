"""Settings of FedMD: checks, defaults of the task, former names of flags."""

import pytest

from tff_pipelines.experiment import cli
from tff_pipelines.fedmd.settings import FedMdSettings


def test_task_decides_public_records_and_mirrors_unless_they_are_given():
  digits, cifar = FedMdSettings(), FedMdSettings(task='cifar', data_path='x')
  assert (digits.public_records, digits.mirrors) == (200, False)
  assert (cifar.public_records, cifar.mirrors) == (5000, True)
  given = cifar.replace(public_per_round=7, mirror=False)
  assert (given.public_records, given.mirrors) == (7, False)


def test_learning_rates_fall_in_equal_steps():
  settings = FedMdSettings(rounds=5, final_rate_factor=0.2)
  assert [settings.rate_factor(number) for number in range(6)] == pytest.approx(
      [1.0, 1.0, 0.8, 0.6, 0.4, 0.2])
  assert FedMdSettings(rounds=1, final_rate_factor=0.2).rate_factor(1) == 1.0
  kept = FedMdSettings(final_rate_factor=1.0)
  assert {kept.rate_factor(number) for number in range(21)} == {1.0}


@pytest.mark.parametrize('name, value, others', [
    ('knowledge', 'argmax', dict(mode='centralized')),
    ('public_per_round', 40, dict(mode='centralized')),
    ('simulated_dropout_rate', 0.5, dict(mode='centralized')),
    ('replacement', False, dict(mode='np')),
    ('replacement', True, dict(mode='ldp', epsilon=8.0, delta=1e-5)),
    ('noise', 'laplace', dict(mode='nfdp')),
    ('delta', 0.1, {}),
    ('cache_dir', 'x', dict(task='cifar', data_path='x')),
    ('records_per_client', 3, dict(task='mnist_letters', data_path='x', split='noniid'))])
def test_setting_without_effect_is_refused(name, value, others):
  with pytest.raises(ValueError, match=f'^{name} is not used with'):
    FedMdSettings(**{name: value}, **others)
  FedMdSettings(**others)


@pytest.mark.parametrize('changes, message', [
    (dict(task='cats'), 'task must be one of'),
    (dict(mode='ldp', epsilon=1.0), 'epsilon and delta must be given together'),
    (dict(architectures=()), 'architectures must name at least one'),
    (dict(task='cifar'), 'task=cifar needs data_path')])
def test_impossible_settings_are_named(changes, message):
  with pytest.raises(ValueError, match=message):
    FedMdSettings(**changes)


def test_architectures_are_separated_by_commas():
  settings = cli.parsed(FedMdSettings, ['--architectures=dense2, conv3'])
  assert settings.architectures == ('dense2', 'conv3')
