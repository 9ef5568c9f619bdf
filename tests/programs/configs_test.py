"""The flagfiles of the papers' experiments: parsed, and calibrated at full size."""

import pathlib

from absl import flags
import pytest

from tasks import registry
from tff_pipelines import flags as flags_lib
from tff_pipelines import privacy_plan
from tff_pipelines import sweep_runs

FLAGS = flags.FLAGS
FOLDER = pathlib.Path(flags_lib.__file__).parent / 'configs'
# Parameters of the model, and clients of TFF's data sets.
SIZES = {
    'emnist': (1_018_174, 3_400),
    'shakespeare': (820_522, 715),
    'stackoverflow_tag': (5_000_500, 342_477),
    'stackoverflow_word': (4_050_748, 342_477),
}
SWEEPS = sorted(path.name for path in FOLDER.glob('sweep_*.flags'))


@pytest.fixture(name='parse')
def _parse():
  before = set(FLAGS)
  flags_lib.define_privacy(privacy_plan.MECHANISMS)
  flags_lib.define_training()
  flags_lib.define_data()
  flags_lib.define_run()
  defined = set(FLAGS) - before
  yield lambda *arguments: FLAGS(['test', *map(str, arguments)])
  FLAGS.unparse_flags()
  for name in defined:
    delattr(FLAGS, name)


def test_every_task_has_a_flagfile():
  assert {path.stem for path in FOLDER.glob('*.flags')} == set(SIZES) | {
      name.removesuffix('.flags') for name in SWEEPS}
  assert set(SIZES) == set(registry.TASKS)


@pytest.mark.parametrize('name', SIZES)
def test_published_settings_are_calibrated_below_their_epsilon(parse, name):
  parse(f'--flagfile={FOLDER / name}.flags')
  request, given = flags_lib.privacy_request()
  config = flags_lib.train_config()
  assert config.task == name and config.task_options['data_source'] == 'official'
  # A flag of another task's would be dropped without a word.
  told = {option for option in set().union(*registry.OPTIONS.values())
          if FLAGS[option].present}
  assert told == set(config.task_options)
  dimension, population = SIZES[name]
  plan = privacy_plan.PrivacyPlan.calibrate(
      request.replace(dimension=dimension, population=population), given=given)
  assert 9.7 < plan.epsilon(request.rounds) <= request.epsilon == 10
  assert plan.request.delta == 1 / population
  assert not [text for text in plan.warnings(request.rounds) if 'not used' in text]


@pytest.mark.parametrize('name', SWEEPS)
def test_settings_of_sweeps_are_flags_of_the_trainer(parse, name):
  lines = (FOLDER / name).read_text(encoding='utf-8').splitlines()
  flag = lambda which: [line.removeprefix(f'--{which}=') for line in lines
                        if line.startswith(f'--{which}=')]
  for setting in sweep_runs.parse_settings(flag('setting'), flag('common')):
    FLAGS.unparse_flags()
    parse(*setting.flags)
    request, _ = flags_lib.privacy_request()
    config = flags_lib.train_config()
    privacy_plan.check(request)
    assert config.task in registry.TASKS
