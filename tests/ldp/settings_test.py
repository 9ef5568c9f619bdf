"""Flags of local distillation and its baselines become frozen configurations."""

from absl import flags
import pytest

from tff_pipelines import ldp_baseline_flags
from tff_pipelines import ldp_flags
from tff_pipelines.algorithms import ldp_distillation
from tff_pipelines.algorithms import ldp_distillation_student

FLAGS = flags.FLAGS


def _parser(module):
  """Defines a binary's flags; parses; removes them afterwards."""
  before = set(FLAGS)
  module.define()
  defined = set(FLAGS) - before

  def parsed(*arguments):
    for name in defined:
      FLAGS[name].unparse()  # What was given before.
    FLAGS(['test', *arguments])
    return module.config()

  yield parsed
  FLAGS.unparse_flags()
  for name in defined:
    delattr(FLAGS, name)


@pytest.fixture
def parse():
  yield from _parser(ldp_flags)


@pytest.fixture
def parse_baseline():
  yield from _parser(ldp_baseline_flags)


def test_names_are_those_of_the_algorithms():
  assert ldp_flags.SAMPLINGS == ldp_distillation.SAMPLINGS
  assert ldp_flags.REFINEMENTS == ldp_distillation_student.REFINEMENTS
  student, config = ldp_distillation_student.StudentConfig(), ldp_flags.of({})
  assert (student.refine, student.steps, student.strength, student.sharpness,
          student.trust) == (config.refine, config.refine_steps,
                             config.refine_strength, config.sharpness, config.trust)


def test_without_flags_digits_are_learned_by_the_piecewise_mechanism(parse):
  config = parse()
  assert config == ldp_flags.of({})
  assert (config.task, config.budget.mechanism, config.sampling) == (
      'digits', 'piecewise', 'active')
  assert config.task_options == {} and config.num_workers == 0


def test_flags_and_values_give_the_same_configuration(parse):
  found = parse('--task=mnist', '--data_path=m.npz', '--owners=20', '--delta=1e-6',
                '--mechanism=duchi', '--epsilon_per_query=1', '--epsilon_total=4',
                '--owners_per_query=2', '--sampling=random', '--seed=3',
                '--output_dir=o', '--resume')
  assert found == ldp_flags.of(dict(
      task='mnist', data_path='m.npz', owners=20, delta=1e-6, mechanism='duchi',
      epsilon_per_query=1.0, epsilon_total=4.0, owners_per_query=2,
      sampling='random', seed=3, output_dir='o', resume=True))
  with pytest.raises(ValueError, match='no flag epsilon'):
    ldp_flags.of({'epsilon': 3.0})


def test_a_run_is_defined_by_all_but_where_things_lie(parse):
  config = parse('--task=mnist', '--data_path=m.npz', '--owners=20',
                 '--output_dir=o', '--num_workers=1')
  fields = config.configuration()
  assert fields['task_options'] == {'owners': 20}
  assert not {'output_dir', 'resume', 'num_workers'} & set(fields)
  assert fields['budget']['mechanism'] == 'piecewise'


def test_the_number_of_classes_is_an_option_of_the_data(parse):
  assert parse('--num_classes=5').data_options == {'num_classes': 5}
  assert parse().data_options == {}


def test_a_target_sets_records_aside_to_measure_it_on(parse):
  assert parse('--target_accuracy=0.5').data_options == {'validation_records': 60}
  assert parse('--target_accuracy=0.5', '--validation_records=7').data_options == {
      'validation_records': 7}
  assert parse('--task=mnist', '--data_path=m', '--target_accuracy=0.5'
               ).data_options['validation_records'] == 1000


@pytest.mark.parametrize('arguments, message', [
    (['--owners_per_query=0'], 'owners_per_query .*0'),
    (['--queries_per_step=0'], 'queries_per_step .*0'),
    (['--max_queries=0'], 'max_queries .*0'),
    (['--target_accuracy=0'], 'target_accuracy .*0'),
    (['--target_accuracy=nan'], 'target_accuracy .*nan'),
    (['--sampling_seed=-1'], 'sampling_seed .*-1'),
    (['--temperature=0'], 'temperature .*0'),
    (['--teacher_strength=inf'], 'teacher_strength .*inf'),
    (['--trust=1.1'], 'trust .*1.1'), (['--sharpness=-1'], 'sharpness .*-1'),
    (['--num_workers=65'], 'num_workers .*65'), (['--seed=-1'], 'seed .*-1'),
    (['--output_dir='], 'output_dir must be a path'),
    (['--resume'], 'resume needs output_dir')])
def test_values_out_of_range_are_named(parse, arguments, message):
  with pytest.raises(ValueError, match=message):
    parse(*arguments)


def test_baselines_have_values_of_their_own(parse_baseline):
  config = parse_baseline('--algorithm=dp_sgd', '--owners=9')
  assert config.of('rounds') == 60 and config.data_options == {'owners': 9}
  given = parse_baseline('--algorithm=dp_fl', '--rounds=3', '--clip=0.5')
  assert (given.of('rounds'), given.of('clip')) == (3, 0.5)
  assert given == ldp_baseline_flags.of(
      dict(algorithm='dp_fl', rounds=3, clip=0.5))
  fields = given.configuration()
  assert fields['client_epochs'] == given.of('client_epochs')
  assert 'record_rate' not in fields and 'output_dir' not in fields


@pytest.mark.parametrize('arguments, message', [
    (['--algorithm=pate', '--clip=1'], 'clip is not used by algorithm=pate'),
    (['--algorithm=dp_sgd', '--queries=5'], 'queries is not used'),
    (['--epsilon=nan'], 'epsilon .*nan'), (['--delta=0'], 'delta .*0'),
    (['--threshold=1.5'], 'threshold .*1.5'), (['--answers=0'], 'answers .*0'),
    (['--algorithm=dp_sgd', '--record_rate=0'], 'record_rate .*0'),
    (['--algorithm=dp_fl', '--clip=-1'], 'clip .*-1'),
    (['--stand_ins=3', '--records_per_owner=5'], 'stand_ins can.t be used'),
    (['--resume'], 'resume needs output_dir')])
def test_mistakes_about_baselines_are_named(parse_baseline, arguments, message):
  with pytest.raises(ValueError, match=message):
    parse_baseline(*arguments)
