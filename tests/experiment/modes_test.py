"""Modes of a run's folder and files: for its owner alone, whatever the umask."""

import contextlib
import os
import pathlib
import shutil
import stat

import pytest

from tests.experiment import fuzz_folder, smallest_family
from tests.fedavg import still_run
from tff_pipelines.common import files

pytestmark = pytest.mark.usefixtures('shared_context')


@contextlib.contextmanager
def _umask(mask):
  before = os.umask(mask)
  try:
    yield
  finally:
    os.umask(before)


def _check_modes(folder, folders=0o700, others=0o600):
  found = [folder, *folder.rglob('*')]
  assert len(found) > 5
  for path in found:
    mode = stat.S_IMODE(path.stat().st_mode)
    assert mode == (folders if path.is_dir() else others), f'{path}: {mode:o}'


@pytest.mark.parametrize('mask', [0o000, 0o022, 0o777])
def test_files_of_a_run_are_the_operators_alone(tmp_path, mask):
  arguments = ['--rounds=2', '--seed=1', '--cohort_size=4', '--client_batch_size=3']
  folder = tmp_path / 'below' / 'run'
  with _umask(mask):
    assert still_run.main([*arguments, f'--output_dir={folder}']) == 0
    _check_modes(folder)
    assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    assert still_run.main([*arguments, f'--output_dir={folder}', '--resume']) == 0
  _check_modes(folder)


def test_answers_that_are_charged_first_are_the_operators_alone(tmp_path):
  with _umask(0):
    fuzz_folder.Ldp().experiment(tmp_path / 'run', resume=False).run()
  _check_modes(tmp_path / 'run')


def test_folder_that_others_can_read_is_tightened(tmp_path):
  folder = tmp_path / 'run'
  folder.mkdir(mode=0o755)
  arguments = ['--rounds=2', '--seed=1', f'--output_dir={folder}']
  assert smallest_family.main(arguments) == 0
  _check_modes(folder)
  target = tmp_path / 'elsewhere'
  target.write_text('not of the run')
  target.chmod(0o644)
  (folder / 'link').symlink_to(target)
  files.publish(folder)
  assert stat.S_IMODE(folder.stat().st_mode) != 0o700
  assert smallest_family.main([*arguments, '--resume']) == 0
  (folder / 'link').unlink()
  _check_modes(folder)
  assert stat.S_IMODE(target.stat().st_mode) == 0o644


def test_folder_of_another_user_is_refused_in_one_line(tmp_path, monkeypatch, capsys):
  folder = tmp_path / 'run'
  folder.mkdir(mode=0o755)
  # As the system answers who is neither the owner nor root.
  chmod = pathlib.Path.chmod

  def refused(self, mode, **named):
    if self == folder:
      raise PermissionError(1, 'Operation not permitted', os.fspath(self))
    chmod(self, mode, **named)

  monkeypatch.setattr(pathlib.Path, 'chmod', refused)
  assert smallest_family.main(['--rounds=2', f'--output_dir={folder}']) == 2
  line, = capsys.readouterr().err.splitlines()
  assert line.startswith('error: ') and 'belongs to another user' in line
  assert not list(folder.iterdir())


@pytest.mark.parametrize('mask', [0o000, 0o027, 0o077])
def test_what_is_published_has_the_modes_of_the_umask(tmp_path, mask):
  folder = tmp_path / 'export'
  files.make_folder(folder / 'model')
  for number in range(3):
    files.write_atomically(folder / f'model/{number}.json', '{}')
  files.write_atomically(folder / 'PRIVACY.md', 'text')
  with _umask(mask):
    files.publish(folder)
  _check_modes(folder, 0o777 & ~mask, 0o666 & ~mask)
  shutil.rmtree(folder)
