"""Plans of runs that are not started."""

import dataclasses
import math

import pytest

from tests import tiny_task
from tff_pipelines import api

TASK = tiny_task.task()

pytestmark = pytest.mark.usefixtures('shared_context')


def _settings(folder, **changes):
  return api.TrainSettings(**{**dict(
      task=TASK, rounds=3, cohort_size=4.0, epsilon=4.0, delta=0.01, clip=0.5,
      client_batch_size=3, output_dir=str(folder / 'run')), **changes})


@pytest.mark.parametrize('changes', [
    {}, {'mechanism': 'gaussian', 'sampling': 'poisson'}, {'bits': 16, 'bands': 1}])
def test_plan_of_counts_alone_is_that_of_the_later_run(tmp_path, changes):
  settings = _settings(tmp_path, **changes)
  planned = api.plan(settings.replace(
      plan=True, population=8, dimension=tiny_task.DIMENSION))
  assert planned.seconds is None and 'not known without data' in '\n'.join(planned.lines)
  with_data = api.plan(settings)
  assert with_data.seconds > 0 and not list(tmp_path.iterdir())
  result = api.train(settings)
  assert planned.noise_multiplier == result.summary['noise_multiplier']
  for one in (planned, with_data):
    assert one.bits == result.summary['bits']
    for observer in ('outsiders', 'server', 'participant'):
      assert getattr(one.guarantee, observer) == getattr(result.guarantee, observer)


def test_error_is_the_noise_of_sums_of_independent_rounds(tmp_path):
  planned = api.plan(_settings(
      tmp_path, mechanism='gaussian', epsilon=None, noise_multiplier=2.0, bands=1,
      server_momentum=0.0, server_learning_rate=0.25, rounds=9))
  # The model after round t has t draws; the mean of 1..9 is 5.
  assert planned.error == pytest.approx(0.25 * 2.0 * 0.5 / 4 * math.sqrt(5))
  assert dataclasses.asdict(planned)['column'] == (1,)


@pytest.mark.parametrize('changes, message', [
    ({'plan': True, 'population': 8}, 'population and dimension must both be given'),
    ({'population': 8, 'dimension': 9}, 'population is not used with plan=false'),
    ({'plan': True, 'population': 0, 'dimension': 9}, 'population must be at least 1'),
    ({'plan': True, 'population': 3, 'dimension': 9},
     'cohort_size=4 is larger than the population of 3')])
def test_mistakes_in_counts_are_one_line(tmp_path, changes, message):
  with pytest.raises(ValueError, match=message):
    api.plan(_settings(tmp_path, **changes))
