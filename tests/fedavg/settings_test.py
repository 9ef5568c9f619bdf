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
  assert (settings.sampling, settings.turn_rate, settings.rounds) == ('turns', 1, 50)
  assert (settings.task, settings.task_options) == ('emnist', {})
  assert not [name for name in (
      'epsilon', 'noise_multiplier', 'delta', 'bits', 'bands', 'seed', 'output_dir')
              if getattr(settings, name) is not None]
  assert not (settings.diagnostics or settings.resume or settings.given)
  assert settings == TrainSettings()


def test_given_noise_multiplier_replaces_the_default_epsilon():
  settings = _parse('--noise_multiplier=1.5')
  assert (settings.target_epsilon, settings.noise_multiplier) == (None, 1.5)
  assert settings.given == {'noise_multiplier'}
  none = TrainSettings(mechanism='none')
  assert none.target_epsilon is none.noise_multiplier is None
  assert _parse('--epsilon=2').target_epsilon == 2
  # Which then differs from the default in the configuration, though not in effect.
  assert _parse('--epsilon=8').target_epsilon == TrainSettings().target_epsilon
  with pytest.raises(ValueError, match='epsilon and noise_multiplier must not both be'):
    _parse('--noise_multiplier=1.5', '--epsilon=8')


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
  assert ('Default: 0.3; 1 for stackoverflow_tag, text_classification; 0.6 for '
          'tabular.' in lines)


@pytest.mark.parametrize('task', registry.TASKS)
def test_every_task_can_be_asked_for_with_each_of_its_models(task):
  assert TrainSettings(task=task).model is None
  for model in registry.MODELS[task]:
    assert TrainSettings(task=task, model=model).task_options == {'model': model}


def test_what_protects_clients_is_refused_where_records_are_protected():
  for changes in (dict(mechanism='own', aggregation='a:b'),
                  dict(statistics_epsilon=1.0, task='tabular'),
                  dict(held_out_fraction=0.2), dict(partition='iid'), dict(
                      task='shakespeare', max_examples_per_client=5)):
    with pytest.raises(ValueError, match='is of clients.*protect=record'):
      TrainSettings(protect='record', **changes)


@pytest.mark.slow
def test_every_setting_of_privacy_reaches_the_plan():
  def build(metrics=0, silos=None, **changes):
    return plan_lib.build(TrainSettings(**changes), dimension=100, population=200,
                          metrics=metrics, silos=silos)

  given = dict(noise_multiplier=1.7, delta=1e-4, clip=0.4, cohort_size=30.0, rounds=7,
      sampling='fixed', fixed_adjacency='zero-out', adaptive_clipping=True,
      target_quantile=0.7, clip_learning_rate=0.3, clip_count_stddev=4.0, bits=20,
      rotation='dft', beta=0.2, k_stddevs=3.0, min_honest_fraction=0.8,
      assumed_colluders=2, amplification='generic', accountant='rdp', seed=5,
      allow_degenerate=True, diagnostics=True,
      simulated_dropout_rate=0.1, clients_per_person=3)
  settings, plan = TrainSettings(**given), build(**given)
  reached = {**vars(plan), **dataclasses.asdict(plan.mechanism)}
  names = {name for name, field in settings_lib.declared(TrainSettings).items()
           if field.group == 'privacy'}
  assert len(names) > 20
  for name in names - {'epsilon', 'epsilon_server', 'vocabulary_epsilon',
                       'private_evaluation', 'bands', 'protect', 'batch_size',
                       'records_per_person', 'canaries'}:
    assert reached[name] == getattr(settings, name), name
  # Alone with turns: bands become the column.
  turns = build(noise_multiplier=1.7, bands=3, turn_rate=0.5, cohort_size=30.0).mechanism
  assert len(turns.column) == 3 and turns.turn_rate == 0.5
  poisson = build(noise_multiplier=1.7, sampling='poisson', max_participations=50,
                  min_cohort_size=5).mechanism
  assert (poisson.max_participations, poisson.min_cohort_size) == (50, 5)
  records = build(noise_multiplier=1.7, protect='record', batch_size=40.0, silos=4).mechanism
  assert (records.sampling, records.cohort_size, records.silos) == ('records', 40.0, 4)
  assert (plan.mechanism.dropout_rate, plan.seed, plan.target_epsilon) == (0.1, 5, None)
  plan = build(1, epsilon=3.0, private_evaluation=0.5)
  assert plan.target_epsilon == 3
  assert accountant.epsilon(plan.evaluation, plan.delta) == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize('rule, arguments', [
    ('must be a finite', 'client_learning_rate=nan server_learning_rate=inf'),
    ('must be at least 0 and less than 1', 'server_momentum=1 beta=1'),
    ('must be at least 0 and', 'simulated_dropout_rate=1'),
    ('must be at least 0', 'client_proximal=-1 assumed_colluders=-1'),
    ('must be at least 1', 'client_batch_size=0 client_epochs=-1 clients_per_call=0 '
     'rounds=0 cohort_size=0.5'),
    ('must be greater than 0 and', 'min_honest_fraction=0'),
    ('must be greater than 0', 'epsilon=0 noise_multiplier=0'),
    ('must be strictly between 0 and 1', 'delta=0'),
    ('must be from 1e-20', 'clip=0'), ('must be from 2 to 30', 'bits=31'),
    ('must be from 1 to 1024, found 0', 'bands=0'),
    ("must be a number or auto, found 'x'", 'bands=x'),
    ('must be greater than 0 and at most 1', 'turn_rate=0'),
    ('must be one of adagrad, adam, sgdm', 'server_optimizer=sgd'),
    (f'must be one of {", ".join(sorted(schemes.SCHEMES))}', 'sampling=some'),
    ('must be one of emnist', 'task=cats'),
    ('must be one of', 'mechanism=laplace amplification=loose accountant=me')])
def test_value_out_of_range_is_refused_by_name(rule, arguments):
  for argument in arguments.split():
    with pytest.raises(ValueError, match=f'^{argument.split("=")[0]} {rule}'):
      _parse(f'--{argument}')


@pytest.mark.parametrize('mechanism', ['skellam', 'none'])
@pytest.mark.parametrize('value', [math.nan, math.inf])
@pytest.mark.parametrize('name', [
    'epsilon', 'noise_multiplier', 'delta', 'clip', 'beta', 'k_stddevs',
    'min_honest_fraction', 'cohort_size'])
def test_number_that_is_not_finite_is_refused_even_if_unused(mechanism, value, name):
  with pytest.raises(ValueError, match=f'{name} must be a finite number'):
    TrainSettings(mechanism=mechanism, **{name: value})


# Values that differ from the defaults.
VALUES = {'clip': 0.1, 'bits': 16, 'beta': 0.1, 'epsilon': 1.0, 'delta': 0.1,
    'noise_multiplier': 2.0, 'sampling': 'fixed', 'rounds': 2, 'cohort_size': 10.0,
    'k_stddevs': 3.0, 'min_honest_fraction': 0.5, 'assumed_colluders': 3,
    'rotation': 'dft', 'target_quantile': 0.7, 'clip_count_stddev': 3.0,
    'clip_learning_rate': 0.1, 'adaptive_clipping': True,
    'allow_degenerate': True, 'amplification': 'generic', 'accountant': 'rdp',
    'simulated_dropout_rate': 0.5}
GRID = {'bits', 'beta', 'k_stddevs', 'rotation', 'adaptive_clipping', 'allow_degenerate'}
SHARES = {'min_honest_fraction', 'assumed_colluders'}
NOISE = {'clip', 'epsilon', 'delta', 'noise_multiplier', 'amplification', 'accountant'}
ADAPTIVE = {'target_quantile', 'clip_count_stddev', 'clip_learning_rate'}


@pytest.mark.parametrize('others, unused', [({'mechanism': 'skellam'}, ADAPTIVE),
    ({'mechanism': 'discrete_gaussian'}, ADAPTIVE),
    ({'mechanism': 'skellam_central'}, SHARES | ADAPTIVE),
    ({'mechanism': 'gaussian'}, GRID | SHARES | ADAPTIVE),
    ({'mechanism': 'none'}, NOISE | GRID | SHARES | ADAPTIVE),
    ({'mechanism': 'skellam', 'adaptive_clipping': True}, set()),
    ({'mechanism': 'skellam_central', 'adaptive_clipping': True}, SHARES)])
def test_settings_without_effect_are_refused(others, unused):
  for name in VALUES.keys() - others.keys() - unused:
    settings = TrainSettings(**others, **{name: VALUES[name]})
    assert getattr(settings, name) == VALUES[name]
  for name in unused:
    with pytest.raises(ValueError, match=f'^{name} is not used with'):
      TrainSettings(**others, **{name: VALUES[name]})


@pytest.mark.parametrize('task, name, value', [
    ('emnist', 'vocabulary', 'words'), ('emnist', 'sequence_length', 5),
    ('shakespeare', 'vocabulary_size', 5), ('shakespeare', 'partition', 'iid'),
    ('stackoverflow_word', 'num_labels', 5), ('stackoverflow_tag', 'image_field', 'x')])
def test_options_of_another_task_are_refused(task, name, value):
  with pytest.raises(ValueError, match=f'^{name} is not used with task={task}'):
    TrainSettings(task=task, **{name: value})


def test_model_of_another_task_is_refused():
  with pytest.raises(
      ValueError, match="model must be one of .* for task=shakespeare, found 'cnn_1m'"):
    TrainSettings(task='shakespeare', model='cnn_1m')


@pytest.mark.parametrize('mechanism', ['none', 'skellam'])
@pytest.mark.parametrize('sampling', ['fixed', 'epochs', 'turns'])
def test_cohort_of_fixed_size_alone_is_an_integer(mechanism, sampling):
  with pytest.raises(ValueError, match=(
      f'^cohort_size must be an integer for sampling={sampling}, found 20.5: '
      'or give --sampling=poisson$')):
    TrainSettings(mechanism=mechanism, sampling=sampling, cohort_size=20.5)
  for others in (dict(turn_rate=0.5), dict(sampling='poisson')):
    assert TrainSettings(cohort_size=20.5, **others).cohort_size == 20.5


@pytest.mark.parametrize('flags, message', [
    ('--max_participations=5', 'max_participations is not used with sampling=turns: '),
    ('--min_cohort_size=5', 'min_cohort_size is not used with sampling=turns: '),
    *((f'--bands=2 --{other}', f'bands is not used with {other}: ') for other in (
        'sampling=poisson', 'sampling=fixed', 'sampling=epochs', 'mechanism=none')),
    ('--turn_rate=0.5 --sampling=none', 'turn_rate is not used with sampling=none'),
    ('--server_beta_2=0.9', 'server_beta_2 is not used with server_optimizer=sgdm'),
    ('--server_warmup_rounds=3',
     'server_warmup_rounds is not used with server_schedule=constant'),
    ('--server_optimizer=adam',
     'server_learning_rate must be given with server_optimizer=adam'),
    ('--bands=60 --rounds=50', 'bands must be at most rounds=50, found 60'),
    ('--bands=2 --adaptive_clipping',
     "bands=2 can't be had with adaptive_clipping: a row")])
def test_settings_that_do_not_go_together_are_refused(flags, message):
  with pytest.raises(ValueError, match=f'^{message}'):
    _parse(*flags.split())


def test_bands_of_auto_are_those_without_the_flag():
  assert _parse('--bands=auto') == _parse() and _parse('--bands=3').bands == 3
  assert TrainSettings(adaptive_clipping=True, bands=1).bands == 1


def test_where_data_are_and_how_rounds_run_may_differ_between_starts():
  free = {name for name, field in settings_lib.declared(TrainSettings).items()
          if field.free}
  assert free == set((
      'data_path test_path cache_dir no_cache vocabulary public_bounds public_sample '
      'output_dir resume local_workers engine engine_address slice_deadline verbose '
      'rounds_per_evaluation clients_per_call clients_by_id warm_start plan '
      'population dimension unit_name data_description').split())


def test_no_flag_of_the_trainer_is_one_of_absl():
  assert not set(settings_lib.declared(TrainSettings)) & {'verbosity', 'flagfile'}
  assert 'rounds' not in flags.FLAGS  # Defining flags leaves the global ones alone.
