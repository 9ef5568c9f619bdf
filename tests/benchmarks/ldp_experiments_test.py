"""The experiments of local distillation and the tables that they fill."""

import pathlib

from benchmarks import ldp_experiments
from tff_pipelines.ldp.settings import BaselineSettings, LdpSettings


def _settings(experiment):
  return ldp_experiments.SETTINGS[experiment.module](
      **experiment.values(pathlib.Path('out'), 'data'))


def test_every_experiment_is_a_run_of_a_program():
  experiments = ldp_experiments.experiments()
  assert len({experiment.name for experiment in experiments}) == len(experiments)
  for experiment in experiments:
    settings = _settings(experiment)
    assert settings.resume and settings.seed is None  # Noise is never seeded.
    assert settings.task_options['data_seed'] == experiment.seed
    assert experiment.command(pathlib.Path('out'), 'data')[1:3] == [
        '-m', experiment.module]


def test_settings_prepare_the_same_for_the_same_data():
  values = dict(num_clients=40, clients_per_query=5)
  key_of = ldp_experiments.preparation_key
  key = key_of(LdpSettings(**values))
  assert key_of(LdpSettings(**values, sampling='random', epsilon=3.0)) == key
  assert key_of(BaselineSettings(num_clients=40)) == key
  for changes in ({'data_seed': 1}, {'feature_seed': 1}, {'teacher_strength': 1.0},
                  {'num_clients': 45}, {'target_accuracy': 0.5}):
    assert key_of(LdpSettings(**{**values, **changes})) != key


def test_the_page_has_all_marks():
  page = pathlib.Path(ldp_experiments.__file__).parents[1] / (
      'docs/ldp_distillation.md')
  content = page.read_text(encoding='utf-8')
  for name in (*ldp_experiments.PRINTED, 'sampling', 'refined'):
    assert f'<!-- {name}: begin -->' in content
