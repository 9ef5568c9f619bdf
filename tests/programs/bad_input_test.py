"""Mistakes of the user: one line that names them, exit code 2, nothing written."""

import json
import shutil

import numpy as np
import pytest

from tests.programs import in_process, launcher as launcher_lib
from tff_pipelines.common import files
from tff_pipelines.experiment import configurations

TRAIN = 'tff_pipelines.train'
TINY = ('--rounds=1', '--num_clients=20', '--cohort_size=5')

pytestmark = pytest.mark.usefixtures('shared_context')

# One mistake for each place that finds it. Single settings: fedavg/settings_test.py;
# plans: fedavg/plan_test.py; flags: experiment/cli_test.py; data: tests/tasks.
WRONG = [
    (['--clip=1e-30'], 'clip must be from'),
    (['--bits=3'], 'bits=3 are too few for a cohort of'),
    (['--accountant=pld', '--mechanism=discrete_gaussian'],
     'accountant=pld needs an event whose worst pair is known'),
    (['--num_clients=100000'], 'num_clients must be an integer from 1'),
    (['--vocabulary=words.txt'], 'vocabulary is not used with task=emnist'),
    (['--data_source=official'], 'data_source official does not use num_clients'),
    (['--data_source=npz', '--data_path=x.npz', '--partition=iid'],
     'x.npz does not exist')]


@pytest.mark.parametrize('arguments, message', WRONG)
def test_wrong_flag_is_named_and_nothing_is_written(arguments, message, tmp_path):
  run = in_process.run(TRAIN, *TINY, *arguments, '--output_dir=run', folder=tmp_path)
  in_process.check_refused(run, message)
  assert not list(tmp_path.iterdir())


def _arrays():
  rng = np.random.default_rng(0)
  return {'x_train': rng.integers(0, 256, (30, 28, 28), dtype=np.uint8),
          'y_train': np.arange(30) % 3, 'writer_train': np.arange(30) // 3,
          'x_test': rng.integers(0, 256, (6, 28, 28), dtype=np.uint8),
          'y_test': np.arange(6) % 3}


def _flipped(path):
  np.savez_compressed(path, **_arrays())
  data = bytearray(path.read_bytes())
  data[len(data) // 2] ^= 0xff
  path.write_bytes(data)


def _nan(path):
  np.savez(path, **{**_arrays(), 'x_train': np.full([30, 28, 28], np.nan, np.float32)})


# Other damage: tests/tasks/sources.
@pytest.mark.parametrize('make, message', [
    (_flipped, 'is not an npz file, or corrupted'), (_nan, 'x_train must be finite')])
def test_bad_data_file_is_named_and_nothing_is_written(make, message, tmp_path):
  path = tmp_path / 'digits.npz'
  make(path)
  run = in_process.run(
      TRAIN, '--data_source=npz', f'--data_path={path}', '--cohort_size=5',
      '--output_dir=run', folder=tmp_path)
  in_process.check_refused(run, message)
  assert str(path) in run.stderr
  assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize('name', ['file', 'file/deep/run', '/proc/run'])
def test_folder_that_cannot_be_is_named(tmp_path, name):
  (tmp_path / 'file').write_text('mine')
  run = in_process.run(TRAIN, *TINY, f'--output_dir={tmp_path / name}', folder=tmp_path)
  in_process.check_refused(run, name if name.startswith('/') else str(tmp_path / 'file'))
  assert (tmp_path / 'file').read_text() == 'mine'


def test_runs_that_start_in_the_same_second_get_folders_of_their_own():
  assert len({files.new_folder('run') for _ in range(3)}) == 3


def _train(*arguments, folder):
  return in_process.run(
      TRAIN, *TINY, *arguments, f'--output_dir={folder}', folder=folder.parent)


@pytest.fixture(scope='module')
def finished(shared_context, tmp_path_factory):
  """The folder of a finished run of one round."""
  folder = tmp_path_factory.mktemp('finished') / 'run'
  run = _train('--mechanism=none', folder=folder)
  assert run.code == 0, run.stderr
  return folder


def _snapshot(folder):
  # The lock is taken and left, empty.
  return {path: (path.name != files.LOCK and path.stat().st_mtime_ns,
                 path.is_file() and path.read_bytes()) for path in folder.rglob('*')}


@pytest.mark.parametrize('arguments, message', [
    ([], 'holds a run already: pass --resume'),
    (['--resume', '--mechanism=gaussian'], 'another configuration: '),
    (['--resume', '--seed=1', '--rounds=2'],
     'another configuration: rounds (1 then, 2 now), seed (None then, 1 now) differ')])
def test_folder_of_another_run_is_left_as_it_was(finished, arguments, message):
  before = _snapshot(finished)
  run = _train('--mechanism=none', *arguments, folder=finished)
  in_process.check_refused(run, message)
  assert _snapshot(finished) == before


def test_run_of_another_program_is_not_resumed(finished, tmp_path):
  folder = shutil.copytree(finished, tmp_path / 'run')
  recorded = {**configurations.read(folder), 'family': 'vote'}
  configurations.write(folder, {**recorded, 'hash': configurations.hash_of(recorded)})
  run = _train('--mechanism=none', '--resume', folder=folder)
  in_process.check_refused(run, 'holds a run of another program, vote')


def test_finished_run_can_be_resumed_and_stays_the_same(finished, tmp_path):
  folder = shutil.copytree(finished, tmp_path / 'run')
  run = _train('--mechanism=none', '--resume', folder=folder)
  assert run.code == 0, run.stderr
  for name in ('metrics.csv', 'ledger.jsonl', 'configuration.json'):
    assert (folder / name).read_bytes() == (finished / name).read_bytes()
  old, new = (json.loads((f / 'summary.json').read_text()) for f in (finished, folder))
  assert {**old, 'starts': 2} == new


@pytest.mark.slow
def test_interpreter_of_its_own_prints_the_same_one_line(tmp_path):
  _flipped(tmp_path / 'digits.npz')
  process = launcher_lib.python(
      TRAIN, f'--output_dir={tmp_path / "run"}', '--data_source=npz',
      f'--data_path={tmp_path / "digits.npz"}')
  stdout, stderr = process.communicate(timeout=400)
  assert (process.returncode, stdout) == (2, '')
  assert stderr.startswith('error: ') and stderr.count('\n') == 1, stderr
  assert 'corrupted' in stderr
  assert not (tmp_path / 'run').exists()
