"""Runs from Python: results, callbacks, warm starts, and more rounds."""

import copy as copy_lib
import dataclasses
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

from tasks import registry
from tests import tiny_task
from tff_pipelines import api
from tff_pipelines.accounting.guarantees import ledger as ledger_lib, ledger_query
from tff_pipelines.experiment import pages, statement
from tff_pipelines.fedavg import run

TASK = tiny_task.task()

pytestmark = pytest.mark.usefixtures('shared_context')


def _settings(folder, **changes):
  values = dict(task=TASK, rounds=4, cohort_size=4.0, mechanism='gaussian', clip=0.5,
                noise_multiplier=1.0, delta=0.01, client_batch_size=3,
                output_dir=str(folder))
  values.update(changes)
  return api.TrainSettings(**values)


def _calibrated(folder, **changes):
  return _settings(folder, **{'noise_multiplier': None, 'epsilon': 5.0, **changes})


@pytest.fixture(scope='module', autouse=True)
def _traced_once():
  """Runs with the same settings share a process, since tracing one is slow."""
  traced, build = {}, run.TrainExperiment.build_rounds

  def shared(self, task, plan):
    settings = self.settings
    key = (plan.mechanism.replace(rounds=1), plan.seed, settings.warm_start,
           settings.rounds_per_evaluation)
    if key not in traced:
      traced[key] = build(self, task, plan)
    rounds = copy_lib.copy(traced[key])  # Which has no results yet.
    rounds.count = plan.mechanism.rounds
    return rounds

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(run.TrainExperiment, 'build_rounds', shared)
    yield


@pytest.fixture(name='finished', scope='module')
def _finished(shared_context, tmp_path_factory):
  """The folder of a run of two rounds that was calibrated to epsilon 5."""
  folder = tmp_path_factory.mktemp('finished') / 'run'
  return api.train(_calibrated(folder, rounds=2)).folder


@pytest.fixture(name='copy')
def _copy(finished, tmp_path):
  return pathlib.Path(shutil.copytree(finished, tmp_path / 'run'))


def test_importing_the_project_or_its_api_loads_no_tensorflow():
  code = ('import sys, tff_pipelines, tff_pipelines.api; '
          'print({"tensorflow", "pandas"} & set(sys.modules))')
  result = subprocess.run(
      [sys.executable, '-c', code], stdout=subprocess.PIPE, text=True, check=True,
      cwd=pathlib.Path(api.__file__).parents[1])
  assert result.stdout == 'set()\n'


def test_result_has_the_model_the_guarantee_and_the_metrics(tmp_path, capsys):
  result = api.train(_settings(tmp_path / 'run'))
  assert capsys.readouterr().out == ''
  assert result.folder == tmp_path / 'run'
  assert [array.shape for array in result.weights.values()] == [(4, 3), (3,)]
  assert list(result.metrics['round']) == [1, 2, 3, 4]
  assert result.metrics['epsilon'].iloc[-1] == result.summary['epsilon']
  assert result.guarantee.outsiders.epsilon == result.summary['epsilon']
  assert all(path.exists() for path in result.figures) and result.figures
  assert result.summary['task'] == 'tiny'
  first, headline, epsilon, *rest = repr(result).splitlines()
  assert str(result.folder) in first and 'accuracy 0.' in headline and len(rest) < 4
  others = dict(epsilon_participant=2.5, observers_participant='another')
  shown = repr(dataclasses.replace(result, summary={**result.summary, **others}))
  assert 'epsilon 2.5000 at delta 0.01 against another' in shown.splitlines()
  assert re.fullmatch(r'epsilon [\d.]+ at delta 0.01 against those who see .*', epsilon)
  assert float(epsilon.split()[1]) >= result.summary['epsilon']
  with pytest.raises(dataclasses.FrozenInstanceError):
    result.folder = None


def test_registered_task_is_known_by_its_name(tmp_path, monkeypatch):
  monkeypatch.setattr(registry, '_REGISTERED', {})
  registry.register('tiny_one', tiny_task.task)
  with pytest.raises(ValueError, match="there is a task 'tiny_one' already"):
    registry.register('tiny_one', tiny_task.examples)
  result = api.train(_settings(tmp_path / 'run', task='tiny_one', rounds=1))
  assert result.summary['task'] == 'tiny'


@pytest.mark.parametrize('answer', [True, api.StopTraining()])
@pytest.mark.slow
def test_stopped_run_costs_what_all_planned_rounds_cost(tmp_path, answer):
  seen = []

  def stop_after_two(index, metrics):
    seen.append((index, metrics['epsilon']))
    if index < 2:
      return None
    if answer is True:
      return True
    raise answer

  settings = _settings(tmp_path / 'run', rounds_per_evaluation=4)
  result = api.train(settings, callbacks=[stop_after_two, lambda *_: 1])
  whole = api.train(_settings(tmp_path / 'whole', rounds_per_evaluation=4))
  assert [index for index, _ in seen] == [1, 2]
  assert result.summary['rounds'] == 2 and len(result.metrics) == 2
  for name in ('epsilon', 'epsilon_server', 'epsilon_server_any_cohorts'):
    assert result.summary[name] == whole.summary[name] > seen[-1][1]
  assert 'stopped early' in result.summary['caveats']
  # The function was given metrics of held-out clients.
  assert statement.statement(result.summary)['reasons'] == [statement.STOPPED]
  assert statement.statement(whole.summary)['private']
  assert pages.verdict_on(result.folder).proves(result.summary)
  assert any('after round 2 of 4' in text for text in result.summary['warnings'])
  ledger = tmp_path / 'run' / 'ledger.jsonl'
  assert [line['outcome'] for line in ledger_lib.Ledger(ledger).lines()] == [
      'released', 'released', 'unused', 'unused']
  answered = ledger_query.answer(ledger)
  assert answered.epsilon == pytest.approx(whole.summary['epsilon'])
  assert answered.epsilon_server == pytest.approx(whole.summary['epsilon_server'])
  # It stays stopped, and its metrics are those of the last round.
  again = api.train(settings.replace(resume=True))
  assert again.summary['rounds'] == 2
  assert again.summary['held_out'] == result.summary['held_out']
  with pytest.raises(ValueError, match='was stopped: no rounds can be added'):
    api.train(_settings(tmp_path / 'run', rounds=6, resume=True))


def test_stop_that_a_crash_interrupted_is_completed(tmp_path):
  api.train(_settings(tmp_path / 'run'), callbacks=[lambda *_: True])
  ledger = tmp_path / 'run' / 'ledger.jsonl'
  lines = ledger.read_bytes().splitlines(keepends=True)
  ledger.write_bytes(b''.join(lines[:-1]) + lines[-1][:30])
  api.train(_settings(tmp_path / 'run', resume=True))
  assert len(ledger_lib.Ledger(ledger).lines()) == 4


def test_errors_of_callbacks_leave_a_run_that_resumes(tmp_path):
  def fail(index, _):
    raise RuntimeError(f'after {index}')

  with pytest.raises(RuntimeError, match='after 1'):
    api.train(_settings(tmp_path / 'run'), callbacks=[fail])
  result = api.train(_settings(tmp_path / 'run', resume=True))
  assert result.summary['rounds'] == 4
  assert 'stopped early' not in result.summary['caveats']


@pytest.mark.slow
def test_rounds_are_added_at_the_noise_that_was_calibrated(copy, capsys):
  before = ledger_query.answer(copy / 'ledger.jsonl').epsilon
  with pytest.raises(ValueError, match=r'epsilon=5 was met by 2 rounds; 6 .* cost '
                     r'(\S+): give --epsilon') as raised:
    api.train(_calibrated(copy, rounds=6, resume=True))
  cost = float(str(raised.value).split(' cost ')[1].split(':')[0])
  assert 5 < cost < 15
  more = dict(rounds=6, resume=True, epsilon=cost)
  result = api.train(_calibrated(copy, **more, verbose=True))
  plan = ' '.join(capsys.readouterr().out.split('\n\n')[0].split())
  assert f'epsilon {cost:g}' in plan and 'rounds added' in plan
  assert result.summary['rounds'] == 6
  assert before < 5 < result.summary['epsilon'] <= cost
  assert ledger_query.answer(copy / 'ledger.jsonl').epsilon == pytest.approx(
      result.summary['epsilon'])
  assert 'rounds added' in result.summary['caveats']
  # Which it says when it is resumed, too.
  assert 'rounds added' in api.train(_calibrated(copy, **more)).summary['caveats']
  with pytest.raises(ValueError, match='rounds .6 then, 2 now. differ'):
    api.train(_calibrated(copy, rounds=2, resume=True))


@pytest.mark.slow
@pytest.mark.parametrize('changes', [dict(bands=1), dict(sampling='poisson')])
def test_added_rounds_are_those_of_a_longer_run(tmp_path, changes):
  # With more bands a longer run has another column: see turns_test.
  for name, plans in (('added', (2, 4)), ('whole', (4,))):
    for index, rounds in enumerate(plans):
      result = api.train(_settings(
          tmp_path / name, rounds=rounds, seed=3, resume=index > 0, **changes))
    if name == 'added':
      added = result
  for array, other in zip(added.weights.values(), result.weights.values(), strict=True):
    np.testing.assert_array_equal(array, other)
  assert added.guarantee.outsiders == result.guarantee.outsiders


def test_only_rounds_and_the_target_may_change(copy):
  for change in (dict(clip=0.4), dict(noise_multiplier=2.0, epsilon=None)):
    with pytest.raises(ValueError, match='differ'):
      api.train(_calibrated(copy, rounds=6, resume=True, **change))
  with pytest.raises(ValueError, match='epsilon .5.0 then, 6.0 now. differ'):
    api.train(_calibrated(copy, rounds=2, resume=True, epsilon=6.0))


@pytest.mark.parametrize('arrays, message', [
    (None, 'must be a file, found none'),
    ([np.zeros((2, 3), np.float32)], r'of the shapes \[\[4, 3\], \[3\]\], found'),
    ([np.full((4, 3), np.nan, np.float32), np.zeros(3, np.float32)], 'have finite'),
    ([np.zeros((4, 3)), np.zeros(3)], 'must have finite weights of float32')])
def test_weights_that_do_not_fit_are_one_line(tmp_path, arrays, message):
  if arrays is not None:
    np.savez(tmp_path / 'w.npz', *arrays)
  with pytest.raises(ValueError, match=message):
    api.train(_settings(tmp_path / 'run', warm_start=str(tmp_path / 'w.npz')))
  assert not (tmp_path / 'run').exists()


@pytest.mark.slow
@pytest.mark.parametrize('public', [False, True])
def test_model_that_began_with_weights_is_private_only_if_they_are_stated_as_public(
    tmp_path, public):
  np.savez(tmp_path / 'w.npz', np.ones((4, 3), np.float32), np.ones(3, np.float32))
  result = api.train(_settings(
      tmp_path / 'run', rounds=1, warm_start=str(tmp_path / 'w.npz'),
      **{'warm_start_is_public': True} if public else {}))
  assert statement.statement(result.summary)['private'] == public
  assert ('warm start stated as public' in result.summary['caveats']) == public
  with pytest.raises(ValueError, match='warm_start_is_public is not used with'):
    _settings(tmp_path / 'other', warm_start_is_public=True)


def test_warm_start_begins_with_the_weights_of_a_file_and_says_so(tmp_path):
  path = tmp_path / 'model.npz'
  start = [np.full((4, 3), 0.5, np.float32), np.ones(3, np.float32)]
  np.savez(path, *start)
  settings = api.TrainSettings(
      task=TASK, mechanism='none', cohort_size=4.0, rounds=1, warm_start=str(path),
      client_learning_rate=1e-9, output_dir=str(tmp_path / 'run'))
  result = api.train(settings)
  for array, wanted in zip(result.weights.values(), start, strict=True):
    np.testing.assert_allclose(array, wanted, atol=1e-6)
  assert 'warm start outside the guarantee' in result.summary['caveats']
  np.savez(path, *[array + 1 for array in start])
  with pytest.raises(ValueError, match='warm_start differ'):
    api.train(settings.replace(resume=True))
  with pytest.raises(ValueError, match='initial_weights_seed is not used with warm_st'):
    settings.replace(initial_weights_seed=3)


def test_accountant_and_mean_estimation_answer_from_python(tmp_path):
  asked = dict(mechanism='gaussian', noise_multiplier=1.0, delta=1e-5, rounds=10)
  answer, = api.account(api.AccountSettings(**asked))
  assert answer.epsilon == pytest.approx(17.86, abs=0.01)
  result = api.estimate_mean(api.MeanSettings(
      num_clients=(20,), dimension=(16,), bits=(16,), epsilon=(4.0,), repeats=2,
      output_dir=str(tmp_path / 'mean')))
  ledger = f'{result.folder}/ledger.jsonl'
  of_ledger, = api.account(api.AccountSettings(ledger=(ledger,)))
  assert of_ledger.epsilon == result.summary['epsilon'] > 4
  assert len(api.account(api.AccountSettings(**asked, query='table'))) > 1
