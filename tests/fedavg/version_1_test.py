"""Runs that version 1 started are resumed: their settings, numbers and states."""

import json
import shutil

import pytest

from tasks import registry
from tests import tiny_task
from tests.fedavg import tiny_run
from tff_pipelines.experiment import files
from tff_pipelines.experiment import records as records_lib
from tff_pipelines.fedavg import run as run_lib
from tff_pipelines.fedavg.settings import TrainSettings

pytestmark = pytest.mark.usefixtures('shared_context')

# What version 1 recorded of a run without flags; numbers of the accountant's other
# mechanisms among them.
DEFAULT = {
    'accountant': 'auto', 'adaptive_clipping': False, 'allow_degenerate': False,
    'amplification': 'tight', 'assumed_colluders': 0, 'beta': 0.60653066, 'bits': 18,
    'bound': 'tight', 'client_batch_size': 5, 'client_epochs': 1,
    'client_learning_rate': 0.2, 'clip': 0.3, 'clip_count_stddev': None,
    'clip_learning_rate': 0.2, 'cohort_size': 100.0,
    'data_fingerprint':
        '95ce1272a154758a9eb25c1e246214c8924e8edd983d070d314efc1f9a8561ec',
    'delta': 0.005, 'diagnostics': False, 'dimension': 7346, 'dropout_rate': 0.0,
    'epsilon': 8.0, 'initial_weights_seed': 0, 'k_stddevs': 4.0, 'level': 'agent',
    'mechanism': 'skellam', 'min_honest_fraction': 1.0, 'neighbours': None,
    'noise': None, 'noise_generator': 'philox', 'noise_multiplier': 1.8467062226175983,
    'noise_stddev': None, 'population': 200, 'queries': 1, 'query': 'epsilon',
    'records': None, 'replacement': True, 'rotation': 'hadamard', 'rounds': 50,
    'sampling': 'poisson', 'scale': None, 'seed': None, 'server_learning_rate': 0.7,
    'server_momentum': 0.9, 'simulated_dropout_rate': 0.0, 'simulation_seed': None,
    'subset_size': None, 'surviving_fraction': 1.0, 'target_quantile': 0.5,
    'task': 'emnist', 'task_options': {}}
CASES = {
    'nothing': ({}, {}),
    'its default epsilon': ({'epsilon': 8.0}, {}),
    'its default delta': ({'delta': 0.005}, {}),
    'epsilon and delta': (
        {'epsilon': 4.0, 'delta': 1e-3, 'rounds': 7, 'sampling': 'fixed',
         'cohort_size': 50.0, 'diagnostics': True, 'mechanism': 'gaussian'},
        {'epsilon': 4.0, 'delta': 1e-3, 'rounds': 7, 'sampling': 'fixed',
         'cohort_size': 50.0, 'diagnostics': True, 'mechanism': 'gaussian'}),
    'noise and an adaptive clip': (
        {'noise_multiplier': 1.5, 'adaptive_clipping': True, 'target_quantile': 0.7,
         'clip_learning_rate': 0.3, 'clip_count_stddev': 6.0, 'seed': 4},
        {'epsilon': None, 'noise_multiplier': 1.5, 'adaptive_clipping': True,
         'target_quantile': 0.7, 'clip_learning_rate': 0.3, 'clip_count_stddev': 6.0,
         'seed': 4, 'simulation_seed': 4}),
    'dropouts': (
        {'mechanism': 'discrete_gaussian', 'simulated_dropout_rate': 0.1,
         'min_honest_fraction': 0.8, 'rotation': 'dft'},
        {'mechanism': 'discrete_gaussian', 'simulated_dropout_rate': 0.1,
         'dropout_rate': 0.1, 'min_honest_fraction': 0.8, 'rotation': 'dft'}),
    # Version 1 only warned of what has no effect.
    'settings in vain': (
        {'mechanism': 'none'},
        {'mechanism': 'none', 'epsilon': None, 'noise_multiplier': None, 'clip': 0.1,
         'bits': 16}),
    'options of the task': (
        {'task': 'stackoverflow_tag', 'num_labels': 6, 'num_clients': 40,
         'vocabulary': 'kept.json'},
        {'task': 'stackoverflow_tag',
         'task_options': {'num_labels': 6, 'num_clients': 40}})}


def _upgraded(recorded, **settings):
  settings = TrainSettings(**settings)
  return settings, run_lib.TrainExperiment(settings).upgraded(recorded)


@pytest.mark.parametrize('name', CASES)
def test_settings_of_version_1_are_those_that_were_given(name):
  given, recorded = CASES[name]
  recorded = {**DEFAULT, **recorded}
  settings, result = _upgraded(recorded, **given)
  assert settings.differences(result['settings']) == []
  assert result['identity'] == {'data_fingerprint': recorded['data_fingerprint']}
  assert result['plan'] == {
      key: recorded[key]
      for key in ('noise_multiplier', 'delta', 'dimension', 'population')}


@pytest.mark.parametrize('name, given, expected', [
    ('nothing', {'epsilon': 4.0}, ['epsilon']),
    ('nothing', {'noise_multiplier': 1.8467062226175983},
     ['epsilon', 'noise_multiplier']),
    ('nothing', {'delta': 0.001}, ['delta']),
    ('nothing', {'rounds': 51, 'client_epochs': 2}, ['client_epochs', 'rounds']),
    ('nothing', {'seed': 0}, ['seed']),
    ('nothing', {'num_clients': 100}, ['num_clients']),
    ('epsilon and delta', {**CASES['epsilon and delta'][0], 'delta': None}, ['delta']),
    ('noise and an adaptive clip', {'seed': 4}, [
        'adaptive_clipping', 'noise_multiplier']),
    ('options of the task', {'task': 'stackoverflow_tag', 'num_labels': 6},
     ['num_clients'])])
def test_other_settings_than_those_of_version_1_are_named(name, given, expected):
  settings, result = _upgraded({**DEFAULT, **CASES[name][1]}, **given)
  assert settings.differences(result['settings']) == expected


def test_data_of_version_1_are_recognised():
  task = registry.build('emnist')
  assert run_lib.fingerprint(task) == DEFAULT['data_fingerprint']
  assert task.model.parameter_count() == DEFAULT['dimension']


class _Killed(BaseException):
  """Ends a run after a commit."""


def _as_version_1(folder, **changes):
  """Writes the configuration of a tiny run as version 1 did, without a key."""
  (folder / files.PRIVATE / files.KEY).unlink(missing_ok=True)
  (folder / files.CONFIGURATION).write_text(json.dumps({
      **DEFAULT, 'rounds': 3, 'cohort_size': 4.0, 'client_batch_size': 3, 'clip': 0.5,
      'dimension': tiny_task.DIMENSION, 'population': 8, 'delta': 1 / 8,
      'data_fingerprint': run_lib.fingerprint(tiny_task.task()), **changes}))


@pytest.fixture(name='started', scope='module')
def _started(shared_context, tmp_path_factory):
  """The folder of a run that ended after its first round."""
  del shared_context
  folder = tmp_path_factory.mktemp('version_1') / 'run'
  commit = records_lib.RunRecords.commit

  def killing(*arguments, **named):
    commit(*arguments, **named)
    raise _Killed

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(records_lib.RunRecords, 'commit', killing)
    with pytest.raises(_Killed):
      tiny_run.experiment(folder, seed=8, delta=1 / 8).run()
  return folder


def _copy(started, folder, **changes):
  shutil.copytree(started, folder)
  _as_version_1(folder, **changes)
  return folder


NOISE_GIVEN = dict(epsilon=None, noise_multiplier=1.0, seed=8, simulation_seed=8)


@pytest.mark.slow
def test_run_of_version_1_ends_as_if_it_had_never_stopped(started, tmp_path):
  whole = tiny_run.experiment(tmp_path / 'whole', seed=8, delta=1 / 8).run()
  folder = _copy(started, tmp_path / 'run', **NOISE_GIVEN)
  before = (folder / files.CONFIGURATION).read_bytes()
  result = tiny_run.experiment(folder, seed=8, resume=True).run()
  assert result['starts'] == 2 and result['rounds'] == 3
  assert result['held_out'] == whole['held_out']
  assert (folder / files.METRICS).read_bytes() == (
      tmp_path / 'whole' / files.METRICS).read_bytes()
  # What was recorded stays as it is, and so does what lines of the ledger refer to.
  assert (folder / files.CONFIGURATION).read_bytes() == before
  assert result['configuration'] == files.configuration_hash(json.loads(before))


@pytest.mark.slow
def test_calibrated_noise_of_version_1_is_taken_over(started, tmp_path):
  # Another number than the present calibration gives for epsilon 8.
  folder = _copy(started, tmp_path / 'run', noise_multiplier=1.0, seed=8,
                 simulation_seed=8)
  result = tiny_run.experiment(
      folder, seed=8, resume=True, noise_multiplier=None).run()
  assert result['noise_multiplier'] == 1.0
  assert result['epsilon_if_unseeded'] < 7


@pytest.mark.parametrize('recorded, settings, message', [
    ({}, {'seed': 9}, r'seed \(8 then, 9 now\) differ'),
    ({}, {'clip': 0.4}, r'clip \(0.5 then, 0.4 now\) differ'),
    ({'data_fingerprint': 'other'}, {}, 'data_fingerprint differ'),
    ({'sampling': 'fixed'}, {}, r"sampling \('fixed' then, 'poisson' now\) differ")])
def test_run_of_version_1_with_other_settings_or_data_is_left_alone(
    started, tmp_path, recorded, settings, message):
  folder = _copy(started, tmp_path / 'run', **{**NOISE_GIVEN, **recorded})
  starts = (folder / 'starts.log').read_bytes()
  with pytest.raises(ValueError, match=f'of another configuration: {message}'):
    tiny_run.experiment(folder, **{'seed': 8, 'resume': True, **settings}).run()
  assert (folder / 'starts.log').read_bytes() == starts


def test_run_of_another_program_of_version_1_is_refused(tmp_path):
  folder = tmp_path / 'run'
  folder.mkdir()
  (folder / files.CONFIGURATION).write_text('{"agents": 250, "seed": 1}')
  with pytest.raises(ValueError, match='holds a run of another program'):
    tiny_run.experiment(folder, resume=True).run()
