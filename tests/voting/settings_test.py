"""Flags of the vote binary become one frozen configuration."""

from absl import flags
import pytest

from tasks import voting
from tff_pipelines import vote_features
from tff_pipelines import vote_flags
from tff_pipelines.algorithms import student
from tff_pipelines.algorithms import voting_queries
from tasks import voting_models

FLAGS = flags.FLAGS


@pytest.fixture
def parse():
  """Defines the binary's flags; parses; removes them afterwards."""
  before = set(FLAGS)
  vote_flags.define()
  defined = set(FLAGS) - before

  def parsed(*arguments):
    FLAGS(['test', *arguments])
    return vote_flags.config()

  yield parsed
  FLAGS.unparse_flags()
  for name in defined:
    delattr(FLAGS, name)


def test_without_flags_agents_vote_on_embedded_digits(parse):
  config = parse()
  assert (config.task, config.algorithm) == ('embedded', 'ae')
  assert config.target_epsilon == vote_flags.DEFAULT_EPSILON
  assert config.privacy_level == 'agent' and config.task_options == {}
  assert config.is_vote and config.unused == ()


def test_given_noise_replaces_the_default_epsilon(parse):
  assert parse('--noise_stddev=7').target_epsilon is None
  assert parse('--noise_stddev=7', '--epsilon=3').target_epsilon == 3


@pytest.mark.parametrize('algorithm, level', [
    ('ae', 'agent'), ('knn', 'instance'), ('dp_fedavg', 'agent'),
    ('dp_fedsgd', 'instance')])
def test_the_level_suits_the_algorithm_if_none_is_given(parse, algorithm, level):
  assert parse(f'--algorithm={algorithm}', '--neighbours=5').privacy_level == level


def test_options_of_the_task_are_those_that_were_given(parse):
  config = parse('--task=mnist', '--data_dir=d', '--num_agents=7', '--data_seed=0')
  assert config.task_options == {
      'data_dir': 'd', 'num_agents': 7, 'data_seed': 0}
  # Where the data lie may change between a run and its resumption.
  assert config.configuration()['task_options'] == {
      'num_agents': 7, 'data_seed': 0}


def test_the_number_of_classes_is_an_option_of_the_task(parse):
  config = parse('--task=npz', '--data_path=f', '--num_classes=7')
  assert config.task_options['num_classes'] == 7
  assert config.configuration()['task_options'] == {'num_classes': 7}


@pytest.mark.parametrize('arguments, unused', [
    (['--algorithm=fedavg', '--epsilon=2', '--queries=9'], ('epsilon', 'queries')),
    (['--algorithm=dp_fedsgd', '--noise=gaussian'], ('noise',)),
    (['--algorithm=ae', '--neighbours=4', '--clip=2'], ('clip', 'neighbours')),
    (['--algorithm=knn', '--neighbours=4', '--agent_epochs=3'], ('agent_epochs',)),
    (['--algorithm=dp_fedavg', '--student=labels', '--bits=9'], ('student',))])
def test_flags_without_effect_are_named(parse, arguments, unused):
  assert parse(*arguments).unused == unused


@pytest.mark.parametrize('arguments, message', [
    (['--epsilon=0'], 'epsilon must be greater than 0'),
    (['--epsilon=nan'], 'epsilon must be a finite number'),
    (['--delta=1'], 'delta must be strictly between 0 and 1'),
    (['--queries=0'], 'queries must be at least 1, found 0'),
    (['--algorithm=knn'], 'neighbours must be given for algorithm=knn'),
    (['--algorithm=knn', '--neighbours=0'], 'neighbours must be at least 1'),
    (['--algorithm=dp_fedavg', '--level=instance'],
     "level must be agent for algorithm=dp_fedavg, found 'instance'"),
    (['--algorithm=dp_fedsgd', '--level=agent'], 'level must be instance'),
    (['--record_rate=2'], r'record_rate must be in \(0, 1\]'),
    (['--server_momentum=1'], r'server_momentum must be in \[0, 1\)'),
    (['--agent_shift=-1'], 'agent_shift must be at least 0'),
    (['--resume'], 'resume needs output_dir'),
    (['--output_dir='], 'output_dir must be a path')])
def test_values_out_of_range_are_refused(parse, arguments, message):
  with pytest.raises(ValueError, match=message):
    parse(*arguments)


def test_agents_see_features_unless_they_train_against_the_domain(parse):
  assert parse().agents_see_features
  assert not parse('--adversarial_strength=0.1').agents_see_features
  assert parse('--adversarial_strength=0.1',
               '--agents_see=features').agents_see_features
  assert parse('--algorithm=knn', '--neighbours=3',
               '--agents_see=records').agents_see_features


def test_what_flags_offer_is_what_there_is(parse):
  parse()
  assert FLAGS['task'].parser.enum_values == tuple(voting.TASKS)
  assert FLAGS['model'].parser.enum_values == tuple(voting_models.MODELS)
  assert FLAGS['features'].parser.enum_values == tuple(vote_features.KINDS)
  assert FLAGS['query_choice'].parser.enum_values == tuple(voting_queries.CHOICES)
  assert FLAGS['student'].parser.enum_values == tuple(student.METHODS)
  assert set(voting.ALL_OPTIONS) <= set(FLAGS)


def test_every_flag_is_used_by_some_algorithm_or_by_all(parse):
  parse()
  known = set(vote_flags.VoteConfig.__dataclass_fields__)
  assert frozenset().union(*vote_flags.USES.values()) <= known
  assert set(vote_flags.USES) == set(vote_flags.ALGORITHMS)
