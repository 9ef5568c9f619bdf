"""The flagfiles of the papers' experiments: parsed, and calibrated at full size."""

import pathlib

import pytest

from tasks import registry
from tff_pipelines import train
from tff_pipelines.accounting.guarantees import accountant
from tff_pipelines.experiment import cli
from tff_pipelines.fedavg import plan as plan_lib
from tff_pipelines.fedavg.settings import TrainSettings
from tff_pipelines.fedavg.sweep_settings import SweepSettings

FOLDER = pathlib.Path(train.__file__).parent / 'configs'
# Parameters of the model, and clients of TFF's data sets.
SIZES = {
    'emnist': (1_018_174, 3_400), 'shakespeare': (820_522, 715),
    'stackoverflow_tag': (5_000_500, 342_477), 'stackoverflow_word': (4_050_748, 342_477)}
SWEEPS = sorted(path.name for path in FOLDER.glob('sweep_*.flags'))


def test_every_task_of_a_paper_has_a_flagfile():
  assert {path.stem for path in FOLDER.glob('*.flags')} == set(SIZES) | {
      name.removesuffix('.flags') for name in SWEEPS}
  # The others have no data of TFF's, and no published settings.
  assert set(registry.TASKS) - set(SIZES) == {'images', 'tabular', 'text_classification'}
  assert SWEEPS


@pytest.mark.parametrize('name', [
    pytest.param(name, marks=[pytest.mark.slow] * name.startswith('stackoverflow'))
    for name in SIZES if name != 'stackoverflow_word'])
def test_published_settings_are_calibrated_below_their_epsilon(name, capsys):
  # A flag that the task or the mechanism does not use would be refused.
  settings = cli.parsed(TrainSettings, [f'--flagfile={FOLDER / name}.flags'])
  assert capsys.readouterr().err == ''  # Flags have their present names.
  assert settings.task == name and settings.task_options['data_source'] == 'official'
  dimension, population = SIZES[name]
  assert settings.sampling == 'poisson'  # As the papers account.
  plan = plan_lib.build(settings, dimension=dimension, population=population)
  assert 9.7 < plan.epsilon(settings.rounds) <= settings.epsilon == 10
  # Published, and larger than the default.
  assert 1 - 1e-8 < plan.delta * population < 1
  assert plan.delta > accountant.default_delta(population)


@pytest.mark.parametrize('argument', [
    '--flagfile=emnist', '-flagfile=emnist.flags',
    '--flagfile=tff_pipelines/configs/emnist.flags'])
def test_flagfiles_of_the_project_are_found_from_any_folder(
    argument, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  settings = cli.parsed(TrainSettings, [argument, '--rounds=3'])
  assert settings.cohort_size == cli.parsed(
      TrainSettings, [f'--flagfile={FOLDER / "emnist"}.flags']).cohort_size
  # The user's own file comes first.
  (tmp_path / 'emnist').write_text('--cohort_size=7\n')
  assert cli.parsed(TrainSettings, ['--flagfile=emnist']).cohort_size == 7
  with pytest.raises(ValueError, match='none.flags'):
    cli.parsed(TrainSettings, ['--flagfile=../configs/none.flags'])


@pytest.mark.parametrize('name', SWEEPS)
def test_settings_of_sweeps_are_flags_of_the_trainer(name, capsys):
  sweep = cli.parsed(SweepSettings, [
      f'--flagfile={FOLDER / name}', '--common=--data_path=file', '--output_dir=out'])
  assert capsys.readouterr().err == ''
  assert len(sweep.parsed) == len(sweep.setting) >= 4
  for setting in sweep.parsed:
    settings = cli.parsed(TrainSettings, setting.flags)
    assert name == f'sweep_{settings.task}.flags'
    assert settings.sampling == 'poisson'
    assert settings.data_path == 'file'
