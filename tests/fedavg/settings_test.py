"""Flags become frozen configurations, once."""

from absl import flags
import pytest

from tff_pipelines import flags as flags_lib
from tff_pipelines import privacy_plan
from tff_pipelines.accounting import request as request_lib

FLAGS = flags.FLAGS


@pytest.fixture
def parse():
  """Defines the trainer's flags; parses; removes them afterwards."""
  before = set(FLAGS)
  flags_lib.define_privacy(privacy_plan.MECHANISMS)
  flags_lib.define_training()
  flags_lib.define_data()
  flags_lib.define_run()
  defined = set(FLAGS) - before

  def parsed(*arguments):
    FLAGS(['test', *arguments])
    return flags_lib.privacy_request(), flags_lib.train_config()

  yield parsed
  FLAGS.unparse_flags()
  for name in defined:
    delattr(FLAGS, name)


def test_without_flags_the_plan_is_skellam_at_epsilon_eight(parse):
  (request, given), config = parse()
  assert (request.mechanism, request.epsilon) == ('skellam', 8.0)
  assert request.noise_multiplier is request.delta is None
  assert request.dimension is request.population is None
  assert (request.sampling, request.bits, request.rounds) == ('poisson', 18, 50)
  assert given == frozenset()
  assert (config.task, config.task_options) == ('emnist', {})
  assert config.seed is config.output_dir is None
  assert not config.diagnostics and not config.resume
  privacy_plan.check(request)


def test_given_noise_multiplier_replaces_the_default_epsilon(parse):
  (request, given), _ = parse('--noise_multiplier=1.5')
  assert (request.epsilon, request.noise_multiplier) == (None, 1.5)
  assert given == {'noise_multiplier'}


def test_both_epsilon_and_noise_multiplier_reach_the_check(parse):
  (request, _), _ = parse('--noise_multiplier=1.5', '--epsilon=8')
  with pytest.raises(ValueError, match='must not both be given'):
    privacy_plan.check(request)


def test_none_takes_no_noise_but_remembers_what_was_given(parse):
  (request, given), _ = parse('--mechanism=none', '--epsilon=2')
  assert request.epsilon is request.noise_multiplier is None
  assert given == {'epsilon'}


def test_options_that_were_not_given_are_left_to_the_task(parse):
  _, config = parse('--model=cnn_1m', '--num_clients=7', '--data_seed=0')
  assert config.task_options == {
      'model': 'cnn_1m', 'num_clients': 7, 'data_seed': 0}


def test_every_privacy_flag_is_in_the_configuration(parse):
  (request, given), config = parse('--seed=3')
  plan = privacy_plan.PrivacyPlan.calibrate(
      request.replace(dimension=100, population=200), given=given,
      simulation_seed=config.seed, diagnostics=config.diagnostics)
  recorded = set(plan.configuration()) | {'seed'}
  module = FLAGS.find_module_defining_flag('clip')
  names = {flag.name for flag in FLAGS.flags_by_module_dict()[module]
           if 'privacy: ' in flag.help}
  assert len(names) > 15
  assert names <= recorded
  assert plan.configuration()['simulation_seed'] == 3


def test_configurations_are_frozen(parse):
  (request, _), config = parse()
  for frozen in (request, config):
    with pytest.raises(AttributeError):
      frozen.rounds_per_evaluation = 2


@pytest.mark.parametrize('argument, message', [
    ('--client_learning_rate=nan', 'client_learning_rate must be a finite'),
    ('--client_learning_rate=0', 'client_learning_rate must be greater'),
    ('--server_learning_rate=inf', 'server_learning_rate must be a finite'),
    ('--server_momentum=1', r'server_momentum must be in \[0, 1\)'),
    ('--server_momentum=nan', 'server_momentum must be a finite'),
    ('--client_batch_size=0', 'client_batch_size must be at least 1'),
    ('--client_epochs=-1', 'client_epochs must be at least 1'),
    ('--rounds_per_evaluation=0', 'rounds_per_evaluation must be at least 1'),
    ('--num_workers=-1', 'num_workers must be at least 0'),
    ('--simulated_dropout_rate=1', 'simulated_dropout_rate must be in'),
    ('--initial_weights_seed=-1', 'initial_weights_seed must be at least 0'),
    ('--seed=-1', 'seed must be at least 0'),
    ('--assumed_colluders=-1', 'assumed_colluders must be at least 0'),
    ('--rounds=0', 'rounds must be at least 1'),
    ('--resume', 'resume needs output_dir'),
    ('--output_dir=', 'output_dir must be a path')])
def test_value_out_of_range_is_refused_by_name(parse, argument, message):
  with pytest.raises(ValueError, match=message):
    parse(argument)


@pytest.mark.parametrize('argument', [
    '--mechanism=laplace', '--sampling=some', '--task=cats', '--rounds=1.5',
    '--clip=big', '--amplification=loose', '--accountant=me'])
def test_value_that_is_no_choice_is_refused_by_the_parser(parse, argument):
  name = argument.removeprefix('--').split('=')[0]
  with pytest.raises(flags.Error, match=name):
    parse(argument)


def test_trainer_offers_only_mechanisms_that_the_accountant_knows():
  assert set(privacy_plan.MECHANISMS) <= set(request_lib.MECHANISMS)
