"""Signals end a run after its round; one process writes a folder."""

import os
import re
import signal
import subprocess
import sys

import pytest

from tests.experiment import smallest_family
from tff_pipelines.common import files

_HOLDS = ('import pathlib, sys, time\n'
          'from tff_pipelines.common import files\n'
          'with files.locked(pathlib.Path(sys.argv[1])):\n'
          '  print("held", flush=True)\n' '  time.sleep(60)\n')


def _arguments(folder):
  return ['--rounds=4', '--num_clients=6', '--seed=1', f'--output_dir={folder}']


@pytest.fixture(name='whole', scope='module')
def _whole(tmp_path_factory):
  folder = tmp_path_factory.mktemp('whole') / 'run'
  assert smallest_family.main(_arguments(folder)) == 0
  return folder


def _signal_in(patch, round_index, signum):
  """Lets a run get a signal in a round."""
  step = smallest_family.MeanRounds.step

  def signalled(self, state, index):
    if index == round_index:
      os.kill(os.getpid(), signum)
    return step(self, state, index)

  patch.setattr(smallest_family.MeanRounds, 'step', signalled)


@pytest.mark.parametrize('signum, code', [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_first_signal_lets_the_round_end_and_names_the_command_that_resumes(
    tmp_path, capsys, monkeypatch, whole, signum, code):
  folder, former = tmp_path / 'run', signal.getsignal(signum)
  _signal_in(monkeypatch, 2, signum)
  assert smallest_family.main(_arguments(folder)) == code
  assert signal.getsignal(signum) is former
  monkeypatch.undo()
  shown = capsys.readouterr().err
  assert f'{signal.Signals(signum).name}: ends after this round' in shown
  command = re.search(r'resume with:\n  (.*)', shown)[1].split()
  assert len((folder / files.METRICS).read_text().splitlines()) == 1 + 2
  assert not (folder / files.SUMMARY).exists()
  flags = [word for word in command if word.startswith('--')]
  assert flags == [*_arguments(folder), '--resume'] and command[0] == 'python'
  assert smallest_family.main(flags) == 0
  assert (folder / files.METRICS).read_bytes() == (whole / files.METRICS).read_bytes()


def test_signal_in_the_last_round_ends_nothing_early(tmp_path, monkeypatch, whole):
  folder = tmp_path / 'run'
  _signal_in(monkeypatch, 4, signal.SIGTERM)
  assert smallest_family.main(_arguments(folder)) == 0
  assert (folder / files.METRICS).read_bytes() == (whole / files.METRICS).read_bytes()


def test_second_signal_ends_at_once():
  code = ('import os, pathlib, signal\n'
          'from tff_pipelines.experiment import endings\n'
          'with endings.deferred(pathlib.Path("x")):\n'
          '  os.kill(os.getpid(), signal.SIGTERM)\n' '  print("still here", flush=True)\n'
          '  os.kill(os.getpid(), signal.SIGTERM)\n' '  print("never", flush=True)\n')
  done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True,
                        timeout=60, check=False)
  assert done.returncode == -signal.SIGTERM
  assert done.stdout == 'still here\n' and 'ends after this round' in done.stderr


@pytest.fixture(name='held')
def _held(tmp_path):
  """A folder that another process writes, and that process."""
  folder = tmp_path / 'run'
  process = subprocess.Popen([sys.executable, '-c', _HOLDS, folder],
                             stdout=subprocess.PIPE, text=True)
  try:
    assert process.stdout.readline() == 'held\n'
    yield folder, process
  finally:
    process.kill()
    process.communicate()


@pytest.mark.parametrize('more', [[], ['--resume']])
def test_second_process_is_refused_with_the_first(held, capsys, monkeypatch, more):
  folder, process = held
  monkeypatch.setattr(smallest_family.MeanExperiment, 'build_task',
                      lambda self: pytest.fail('data were read'))
  assert smallest_family.main([*_arguments(folder), *more]) == 2
  assert capsys.readouterr().err == (
      f'error: output_dir={folder} is being written by process {process.pid} on '
      f'{os.uname().nodename}\n')


def test_lock_of_a_dead_process_is_taken_over(held, whole):
  folder, process = held
  process.kill()
  process.wait()
  assert (folder / files.PRIVATE / files.LOCK).exists()
  assert smallest_family.main(_arguments(folder)) == 0
  assert (folder / files.METRICS).read_bytes() == (whole / files.METRICS).read_bytes()


def test_two_runs_of_one_process_cannot_write_one_folder(tmp_path):
  folder = tmp_path / 'run'
  with files.locked(folder):
    with pytest.raises(ValueError, match='is being written by process'):
      with files.locked(folder):
        pass
    assert (folder / files.PRIVATE).exists()
  assert not folder.exists()  # Nothing was recorded.
