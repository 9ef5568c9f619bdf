"""The installed package: console command, version, flag files and type information."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from tests import modules
import tff_pipelines
from tff_pipelines import __main__ as console
from tff_pipelines.deployment.engine import parties


def _run(*arguments, code=0, **options):
  run = subprocess.run(
      list(map(str, arguments)), capture_output=True, text=True, check=False,
      timeout=120, **options)
  assert run.returncode == code, run.stderr
  return run


@pytest.fixture(scope='module')
def installed(tmp_path_factory):
  """Folder with the installed package, and an empty one to work in."""
  base = tmp_path_factory.mktemp('installed')
  target = base / 'site'
  # From a copy: setuptools writes into the folder that it builds.
  source = base / 'source'
  source.mkdir()
  for name in ('aggregators', 'tasks', 'tff_pipelines', 'pyproject.toml', 'README.md',
               'requirements.txt'):
    _run('cp', '-r', modules.ROOT / name, source)
  _run(sys.executable, '-m', 'pip', 'install', '--quiet', '--no-deps',
       '--no-build-isolation', '--disable-pip-version-check', '--target', target, source)
  (base / 'work').mkdir()
  return target, base / 'work'


@pytest.mark.slow
def test_console_command_runs_anywhere(installed):
  target, work = installed
  environment = {**os.environ, 'PYTHONPATH': str(target)}
  command = target / 'bin' / 'tff-pipelines'
  for arguments in ([command], [sys.executable, '-m', 'tff_pipelines']):
    run = _run(*arguments, '--version', cwd=work, env=environment)
    assert run.stdout == f'tff-pipelines {tff_pipelines.__version__}\n'
  # A flag file that comes with the package; the wrong flag shows that it was read.
  run = _run(command, 'train', '--flagfile=shakespeare', '--rounds=0', code=2,
             cwd=work, env=environment)
  assert run.stderr == 'error: rounds must be at least 1, found 0\n'
  # As in the image.
  _run(command, 'train', '--task=tabular', '--rounds=1', cwd=work, env=environment)
  assert list(work.glob('out/*/report.html'))


@pytest.mark.slow
def test_data_of_the_packages_are_installed(installed):
  target, _ = installed
  for name in ('aggregators/py.typed', 'tasks/py.typed', 'tff_pipelines/py.typed',
               'tff_pipelines/requirements.txt',
               'tasks/text/embedded.txt', 'tff_pipelines/configs/emnist.flags',
               'tff_pipelines/experiment/page.css'):
    assert (target / name).is_file(), name
  assert not (target / 'tests').exists()
  # Sites that installed the package compute what those with a checkout do.
  run = _run(sys.executable, '-c', 'from tff_pipelines.deployment.engine import parties\n'
             'print(parties.program_digest({}))', cwd=target)
  assert run.stdout.strip() == parties.program_digest({})


def test_every_program_has_a_name_and_a_line_of_help(capsys):
  folder = pathlib.Path(tff_pipelines.__file__).parent
  assert console.main([]) == console.main(['--help']) == 0
  shown = capsys.readouterr().out
  for name, module in console.PROGRAMS.items():
    assert (folder / f'{module.replace(".", "/")}.py').is_file()
    assert f'  {name} ' in shown
  assert max(map(len, shown.splitlines())) <= 80


def test_arguments_go_to_the_program(capsys):
  assert console.main(['train', '--rounds=0']) == 2
  assert capsys.readouterr().err == 'error: rounds must be at least 1, found 0\n'
  assert console.main(['trian']) == 2
  assert "found 'trian'" in capsys.readouterr().err
  assert console.main(['account', '--version']) == 0
  assert capsys.readouterr().out == f'tff-pipelines {tff_pipelines.__version__}\n'


@pytest.mark.parametrize('arguments', [
    '-m tff_pipelines.train', '-m tff_pipelines', 'tff_pipelines/vote.py',
    'tff_pipelines', 'tff-pipelines train'])
def test_a_program_without_its_packages_says_how_to_install_them(tmp_path, arguments):
  shutil.copytree(modules.ROOT / 'tff_pipelines', tmp_path / 'tff_pipelines')
  (tmp_path / 'tff-pipelines').write_text('from tff_pipelines.__main__ import main')
  lock = tmp_path / 'tff_pipelines' / 'requirements.txt'
  assert 'tensorflow-federated==' in lock.read_text()
  for remedy in (f'{sys.executable} -m pip install --no-deps --require-hashes -r {lock}',
                 f'cd {tmp_path} && make setup && source .venv/bin/activate'):
    run = _run(sys.executable, '-S', *arguments.split(), code=2, cwd=tmp_path)
    assert run.stderr == ('error: packages must be those of requirements.txt, found no '
                          f'absl; set up by: {remedy}\n')
    (tmp_path / 'Makefile').touch()


@pytest.mark.parametrize('fake, found', [
    ('sys.version_info = (3, 10, 13)', 'Linux on x86_64, Python 3.10'),
    ('sys.version_info = (3, 12, 1)', 'Linux on x86_64, Python 3.12'),
    ('platform.machine = lambda: "aarch64"', 'Linux on aarch64, Python 3.11'),
    ('platform.system = lambda: "Windows"', 'Windows on x86_64, Python 3.11')])
def test_another_system_is_told_which_is_needed(fake, found, tmp_path):
  python = tmp_path / 'python'  # Its `-c` has another system.
  python.write_text(
      f'#!/bin/sh\nexec {sys.executable} -c \'import platform, sys; {fake}\n\'"$2"')
  python.chmod(0o700)
  for command in ([python, '-c', 'sys.argv = ["-m"]; import tff_pipelines'],
                  ['make', 'setup', f'PYTHON={python}', f'VENV={tmp_path}/new']):
    run = _run(*command, code=2, cwd=modules.ROOT)
    assert run.stderr.startswith(
        f'error: system must be Linux on x86_64, Python 3.11, found {found}; ')
  assert not (tmp_path / 'new').exists()


def test_a_program_is_started_by_its_path_too(tmp_path):
  run = _run(sys.executable, modules.ROOT / 'tff_pipelines' / 'train.py', '--rounds=0',
             code=2, cwd=tmp_path)
  assert run.stderr == 'error: rounds must be at least 1, found 0\n'
