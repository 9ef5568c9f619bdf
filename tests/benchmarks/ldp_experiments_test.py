"""The experiments of local distillation and the tables that they fill."""

import pathlib

from benchmarks import ldp_experiments


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


def _result(row, seed=0, **more):
  return {'name': f'{row}-{seed}', 'row': row, 'seed': seed, 'accuracy': 0.5,
          'epsilon': 5.0, 'delta': 0.0, 'population': 1000, **more}


def _results(*rows):
  return {row['name']: row for row in rows}


def test_tables_have_means_of_seeds_and_the_printed_numbers():
  table = ldp_experiments.table(_results(
      *(_result('mnist-ldp-total-5', seed, accuracy=accuracy)
        for seed, accuracy in enumerate((0.91, 0.92, 0.93))),
      _result('mnist-ldp-query-8', epsilon=8000.0),
      _result('mnist-dp_sgd-8', delta=1e-5)), 'mnist')
  lines = table.splitlines()[2:]
  assert len(lines) == 3
  assert lines[0].endswith('| 8 | 50.0 | 8,000 | 0 | 1,000 | 98.8 |')
  assert lines[1].endswith('| 5 | 92.0 ± 1.0 | 5 | 0 | 1,000 | 98.1 |')
  assert lines[2].endswith('| 8 | 50.0 | – | 1e-05 | 1,000 | 97.0 |')


def test_the_page_has_all_marks():
  page = pathlib.Path(ldp_experiments.__file__).parents[1] / (
      'docs/ldp_distillation.md')
  content = page.read_text(encoding='utf-8')
  for name in (*ldp_experiments.PRINTED, 'sampling', 'refined'):
    assert f'<!-- {name}: begin -->' in content
