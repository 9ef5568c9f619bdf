"""Settings of local distillation and its baselines, from flags and as objects."""

import pytest

from tff_pipelines.experiment import cli
from tff_pipelines.ldp.settings import BaselineSettings, LdpSettings


def _parse(*arguments, kind=LdpSettings):
  return cli.parsed(kind, arguments)


def test_without_flags_digits_are_learned_by_subset_selection():
  settings = _parse()
  assert settings == LdpSettings(task='digits')
  assert (settings.task, settings.mechanism, settings.sampling) == (
      'digits', 'subset', 'active')
  assert settings.task_options == {'num_clients': 50} and settings.local_workers == 0


def test_a_target_sets_records_aside_to_measure_it_on():
  def of(*arguments):
    return _parse(*arguments, '--target_accuracy=0.5').task_options['validation_records']

  assert of() == 60 and of('--validation_records=7') == 7
  assert of('--task=mnist', '--data_path=m') == 1000
  assert 'validation_records' not in _parse().task_options


@pytest.mark.parametrize('arguments, message', [
    (['--task=npz'], 'task npz needs data_path'),
    (['--data_path=a.npz'], 'data_path is not used with task=digits'),
    (['--partition=size', '--dirichlet_alpha=1'],
     'dirichlet_alpha is not used with partition=size')])
def test_values_out_of_range_are_named(arguments, message):
  with pytest.raises(ValueError, match=message):
    _parse(*arguments)


def test_baselines_have_values_of_their_own():
  settings = _parse('--algorithm=dp_sgd', '--num_clients=9', kind=BaselineSettings)
  assert settings.rounds == 300 and settings.task_options == {'num_clients': 9}
  given = _parse('--algorithm=dp_fl', '--rounds=3', '--clip=0.5', kind=BaselineSettings)
  assert (given.rounds, given.clip, given.learning_rate) == (3, 0.5, 3.0)
  assert given == BaselineSettings(algorithm='dp_fl', rounds=3, clip=0.5)
  assert given.configuration()['clip'] == 0.5
  assert BaselineSettings().rounds is BaselineSettings().clip is None


@pytest.mark.parametrize('arguments, message', [
    (['--algorithm=pate', '--clip=1'], 'clip is not used with algorithm=pate'),
    (['--algorithm=dp_sgd', '--queries=5'],
     'queries is not used with algorithm=dp_sgd'),
    (['--algorithm=dp_fl', '--record_rate=0.5'], 'record_rate is not used'),
    (['--algorithm=dp_fl', '--threshold=0.5'], 'threshold is not used'),
    (['--algorithm=dp_sgd', '--teacher_strength=1'], 'teacher_strength is not used'),
    (['--algorithm=dp_sgd', '--local_workers=1'], 'local_workers is not used'),
    (['--stand_ins=3', '--records_per_client=5'], 'stand_ins')])
def test_mistakes_about_baselines_are_named(arguments, message):
  with pytest.raises(ValueError, match=message):
    _parse(*arguments, kind=BaselineSettings)
