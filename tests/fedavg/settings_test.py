"""Settings of training: defaults, options of tasks, refusals."""

import dataclasses
import math

from absl import flags
import pytest

from tasks import registry
from tff_pipelines.accounting.guarantees import accountant
from tff_pipelines.accounting.sampling import schemes
from tff_pipelines.experiment import cli, settings as settings_lib
from tff_pipelines.fedavg import plan as plan_lib, settings as train_settings
from tff_pipelines.fedavg.settings import TrainSettings


def _parse(*arguments):
  return cli.parsed(TrainSettings, arguments)


def test_without_argumentsthe_plan_is_skellam_at_epsilon_eight():
  settings = _parse()
  assert (settings.mechanism, settings.target_epsilon) == ('skellam', 8.0)
  assert settings.epsilon is settings.noise_multiplier is settings.delta is None
  assert (settings.sampling, settings.bits, settings.rounds) == ('turns', None, 50)
  assert settings.bands is None and settings.turn_rate == 1
  assert settings.given == frozenset()
  assert (settings.task, settings.task_options) == ('emnist', {})
  assert settings.seed is settings.output_dir is None
  assert not settings.diagnostics and not settings.resume
  assert settings == TrainSettings()


def test_given_noise_multiplier_replaces_the_default_epsilon():
  settings = _parse('--noise_multiplier=1.5')
  assert (settings.target_epsilon, settings.noise_multiplier) == (None, 1.5)
  assert settings.given == {'noise_multiplier'}
  assert _parse('--epsilon=2').target_epsilon == 2
  # Which then differs from the default in the configuration, though not in effect.
  assert _parse('--epsilon=8').target_epsilon == TrainSettings().target_epsilon
  with pytest.raises(ValueError, match='epsilon and noise_multiplier must not both be'):
    _parse('--noise_multiplier=1.5', '--epsilon=8')


def test_none_has_no_target_and_takes_no_noise():
  settings = TrainSettings(mechanism='none')
  assert settings.target_epsilon is settings.noise_multiplier is None


def test_options_that_were_not_given_are_left_to_the_task():
  settings = _parse('--model=cnn_1m', '--num_clients=7', '--data_seed=0')
  assert settings.task_options == {'model': 'cnn_1m', 'num_clients': 7, 'data_seed': 0}


def test_every_option_of_every_task_is_a_setting():
  names = set(settings_lib.declared(train_settings.DataSettings))
  assert set().union(*registry.OPTIONS.values()) == names - {'task'}


@pytest.mark.parametrize('task', registry.TASKS)
def test_task_brings_its_own_rates_which_are_recorded(task):
  settings, defaults = TrainSettings(task=task), registry.DEFAULTS[task]
  assert {name: settings.configuration()[name] for name in defaults} == defaults
  assert settings.given == {'task'}
  given = TrainSettings(task=task, clip=0.123, client_batch_size=17)
  assert (given.clip, given.client_batch_size) == (0.123, 17)
  assert given.server_learning_rate == defaults['server_learning_rate']


def test_help_shows_the_rates_of_all_tasks():
  lines = ' '.join(' '.join(settings_lib.help_lines(TrainSettings, full=True)).split())
  assert ('Default: 0.3; 1 for stackoverflow_tag, text_classification; 0.2 for '
          'tabular.' in lines)


@pytest.mark.parametrize('task', registry.TASKS)
def test_every_task_can_be_asked_for_with_each_of_its_models(task):
  assert TrainSettings(task=task).model is None
  for model in registry.MODELS[task]:
    assert TrainSettings(task=task, model=model).task_options == {'model': model}


@pytest.mark.slow
def test_every_setting_of_privacy_reaches_the_plan():
  settings = TrainSettings(
      noise_multiplier=1.7, delta=1e-4, clip=0.4, cohort_size=30.0, rounds=7,
      sampling='fixed', fixed_adjacency='zero-out', adaptive_clipping=True, target_quantile=0.7,
      clip_learning_rate=0.3, clip_count_stddev=4.0, rotation='dft', bits=20, beta=0.2,
      k_stddevs=3.0, min_honest_fraction=0.8, assumed_colluders=2,
      amplification='generic', accountant='rdp', allow_degenerate=True,
      noise_generator='philox', diagnostics=True, simulated_dropout_rate=0.1, seed=5,
      clients_per_person=3)
  plan = plan_lib.build(settings, dimension=100, population=200)
  mechanism = plan.mechanism
  reached = {**dataclasses.asdict(mechanism), **{
      name: getattr(plan, name) for name in (
          'delta', 'target_quantile', 'clip_learning_rate', 'amplification',
          'accountant', 'allow_degenerate', 'diagnostics', 'noise_generator',
          'clients_per_person')}}
  names = {name for name, field in settings_lib.declared(TrainSettings).items()
           if field.group == 'privacy'}
  assert len(names) > 20
  for name in names - {'epsilon', 'epsilon_server', 'vocabulary_epsilon',
                       'private_evaluation', 'bands'}:
    assert reached[name] == getattr(settings, name), name
  # Alone with turns: bands become the column.
  turns = plan_lib.build(
      TrainSettings(noise_multiplier=1.7, bands=3, turn_rate=0.5, cohort_size=30.0),
      dimension=100, population=200).mechanism
  assert len(turns.column) == 3 and turns.turn_rate == 0.5
  poisson = plan_lib.build(
      TrainSettings(noise_multiplier=1.7, sampling='poisson', max_participations=50,
                    min_cohort_size=5), dimension=100, population=200).mechanism
  assert (poisson.max_participations, poisson.min_cohort_size) == (50, 5)
  assert (mechanism.dropout_rate, plan.seed) == (0.1, 5)
  assert plan.target_epsilon is None
  with_target = plan_lib.build(
      TrainSettings(epsilon=3.0, noise_generator='chacha20', private_evaluation=0.5),
      dimension=100, population=200, metrics=1)
  assert with_target.target_epsilon == 3
  assert with_target.noise_generator == 'chacha20'
  assert accountant.epsilon(with_target.evaluation, with_target.delta) == pytest.approx(
      0.5, rel=1e-4)


@pytest.mark.parametrize('argument, message', [
    ('--client_learning_rate=nan', 'client_learning_rate must be a finite'),
    ('--server_learning_rate=inf', 'server_learning_rate must be a finite'),
    ('--server_momentum=1', 'server_momentum must be at least 0 and less than 1'),
    ('--server_optimizer=sgd', 'server_optimizer must be one of adagrad, adam, sgdm'),
    ('--server_optimizer=adam', 'server_learning_rate must be given with '
     'server_optimizer=adam'),
    ('--server_beta_2=0.9', 'server_beta_2 is not used with server_optimizer=sgdm'),
    ('--server_warmup_rounds=3', 'server_warmup_rounds is not used with '
     'server_schedule=constant'),
    ('--client_proximal=-1', 'client_proximal must be at least 0'),
    ('--client_batch_size=0', 'client_batch_size must be at least 1'),
    ('--client_epochs=-1', 'client_epochs must be at least 1'),
    ('--clients_per_call=0', 'clients_per_call must be at least 1'),
    ('--simulated_dropout_rate=1', 'simulated_dropout_rate must be at least 0 and'),
    ('--assumed_colluders=-1', 'assumed_colluders must be at least 0'),
    ('--rounds=0', 'rounds must be at least 1'),
    ('--epsilon=0', 'epsilon must be greater than 0'),
    ('--noise_multiplier=0', 'noise_multiplier must be greater than 0'),
    ('--delta=0', 'delta must be strictly between 0 and 1'),
    ('--clip=0', 'clip must be from 1e-20'),
    ('--bits=31', 'bits must be from 2 to 30'),
    ('--cohort_size=0.5', 'cohort_size must be at least 1'),
    ('--min_honest_fraction=0', 'min_honest_fraction must be greater than 0 and'),
    ('--beta=1', 'beta must be at least 0 and less than 1'),
    ('--mechanism=laplace', 'mechanism must be one of'),
    ('--sampling=some', f'sampling must be one of {", ".join(sorted(schemes.SCHEMES))}'),
    ('--task=cats', 'task must be one of emnist'),
    ('--amplification=loose', 'amplification must be one of'),
    ('--accountant=me', 'accountant must be one of')])
def test_value_out_of_range_is_refused_by_name(argument, message):
  with pytest.raises(ValueError, match=f'^{message}'):
    _parse(argument)


@pytest.mark.parametrize('mechanism', ['skellam', 'none'])
@pytest.mark.parametrize('value', [math.nan, math.inf])
@pytest.mark.parametrize('name', [
    'epsilon', 'noise_multiplier', 'delta', 'clip', 'beta', 'k_stddevs',
    'min_honest_fraction', 'cohort_size'])
def test_number_that_is_not_finite_is_refused_even_if_unused(mechanism, value, name):
  with pytest.raises(ValueError, match=f'{name} must be a finite number'):
    TrainSettings(mechanism=mechanism, **{name: value})


# Values that differ from the defaults.
VALUES = {
    'clip': 0.1, 'bits': 16, 'beta': 0.1, 'epsilon': 1.0, 'delta': 0.1,
    'noise_multiplier': 2.0, 'sampling': 'fixed', 'rounds': 2, 'cohort_size': 10.0,
    'k_stddevs': 3.0, 'min_honest_fraction': 0.5, 'assumed_colluders': 3,
    'rotation': 'dft', 'target_quantile': 0.7, 'clip_count_stddev': 3.0,
    'clip_learning_rate': 0.1, 'noise_generator': 'chacha20', 'adaptive_clipping': True,
    'allow_degenerate': True, 'amplification': 'generic', 'accountant': 'rdp',
    'simulated_dropout_rate': 0.5}
GRID = {'bits', 'beta', 'k_stddevs', 'rotation', 'adaptive_clipping',
        'allow_degenerate'}
SHARES = {'min_honest_fraction', 'assumed_colluders', 'noise_generator'}
NOISE = {'clip', 'epsilon', 'delta', 'noise_multiplier', 'amplification', 'accountant'}
ADAPTIVE = {'target_quantile', 'clip_count_stddev', 'clip_learning_rate'}


@pytest.mark.parametrize('others, unused', [
    ({'mechanism': 'skellam'}, ADAPTIVE),
    ({'mechanism': 'discrete_gaussian'}, ADAPTIVE),
    ({'mechanism': 'skellam_central'}, SHARES | ADAPTIVE),
    ({'mechanism': 'gaussian'}, GRID | SHARES | ADAPTIVE),
    ({'mechanism': 'none'}, NOISE | GRID | SHARES | ADAPTIVE),
    ({'mechanism': 'skellam', 'adaptive_clipping': True}, set()),
    ({'mechanism': 'skellam_central', 'adaptive_clipping': True}, SHARES)])
def test_settings_without_effect_are_refused(others, unused):
  for name, value in VALUES.items():
    if name in others:
      continue
    if name not in unused:
      assert getattr(TrainSettings(**others, **{name: value}), name) == value
      continue
    with pytest.raises(ValueError, match=f'^{name} is not used with'):
      TrainSettings(**others, **{name: value})


@pytest.mark.parametrize('task, name, value', [
    ('emnist', 'vocabulary', 'words'), ('emnist', 'sequence_length', 5),
    ('shakespeare', 'vocabulary_size', 5), ('shakespeare', 'partition', 'iid'),
    ('stackoverflow_word', 'num_labels', 5), ('stackoverflow_tag', 'image_field', 'x')])
def test_options_of_another_task_are_refused(task, name, value):
  with pytest.raises(ValueError, match=f'^{name} is not used with task={task}'):
    TrainSettings(task=task, **{name: value})


def test_model_of_another_task_is_refused():
  with pytest.raises(ValueError, match="model must be one of .* for task=shakespeare, "
                     "found 'cnn_1m'"):
    TrainSettings(task='shakespeare', model='cnn_1m')


@pytest.mark.parametrize('mechanism', ['none', 'skellam'])
@pytest.mark.parametrize('sampling', ['fixed', 'epochs', 'turns'])
def test_cohort_of_fixed_size_is_an_integer(mechanism, sampling):
  with pytest.raises(ValueError, match=(
      f'^cohort_size must be an integer for sampling={sampling}, found 20.5: '
      'or give --sampling=poisson$')):
    TrainSettings(mechanism=mechanism, sampling=sampling, cohort_size=20.5)


def test_cohort_of_a_turn_rate_or_of_poisson_sampling_need_not_be_an_integer():
  for others in (dict(turn_rate=0.5), dict(sampling='poisson')):
    assert TrainSettings(cohort_size=20.5, **others).cohort_size == 20.5


@pytest.mark.parametrize('arguments, unused', [
    (['--max_participations=5'], 'max_participations is not used with sampling=turns: '),
    (['--min_cohort_size=5'], 'min_cohort_size is not used with sampling=turns: '),
    (['--bands=2', '--sampling=poisson'], 'bands is not used with sampling=poisson: '),
    (['--bands=2', '--sampling=fixed'], 'bands is not used with sampling=fixed: '),
    (['--bands=2', '--sampling=epochs'], 'bands is not used with sampling=epochs: '),
    (['--bands=2', '--mechanism=none'], 'bands is not used with mechanism=none: '),
    (['--turn_rate=0.5', '--sampling=none'], 'turn_rate is not used with sampling=none')])
def test_settings_of_another_sampling_are_refused(arguments, unused):
  with pytest.raises(ValueError, match=f'^{unused}'):
    _parse(*arguments)


@pytest.mark.parametrize('arguments, message', [
    (['--bands=60', '--rounds=50'], 'bands must be at most rounds=50, found 60'),
    (['--bands=2', '--adaptive_clipping'],
     'bands=2 can\'t be had with adaptive_clipping: a row'),
    (['--bands=x'], "bands must be a number or auto, found 'x'"),
    (['--bands=0'], 'bands must be from 1 to 1024, found 0'),
    (['--turn_rate=0'], 'turn_rate must be greater than 0 and at most 1')])
def test_bands_that_can_not_be_had_are_refused_by_name(arguments, message):
  with pytest.raises(ValueError, match=f'^{message}'):
    _parse(*arguments)


def test_bands_of_auto_are_those_without_the_flag():
  assert _parse('--bands=auto') == _parse() and _parse('--bands=3').bands == 3
  assert TrainSettings(adaptive_clipping=True, bands=1).bands == 1


def test_where_data_are_and_how_rounds_run_may_differ_between_starts():
  free = {name for name, field in settings_lib.declared(TrainSettings).items()
          if field.free}
  assert free == {
      'data_path', 'test_path', 'cache_dir', 'no_cache', 'vocabulary', 'public_bounds',
      'public_sample', 'output_dir', 'resume',
      'local_workers', 'engine', 'engine_address', 'slice_deadline',
      'verbose', 'rounds_per_evaluation', 'clients_per_call',
      'clients_by_id', 'warm_start'}


def test_no_flag_of_the_trainer_is_one_of_absl():
  assert not set(settings_lib.declared(TrainSettings)) & {'verbosity', 'flagfile'}
  assert 'rounds' not in flags.FLAGS  # Defining flags leaves the global ones alone.
