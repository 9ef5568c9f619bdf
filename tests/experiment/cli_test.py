"""Exit codes and the one line of an error, in interpreters of their own."""

import subprocess
import sys

import pytest

from tests.pipelines import launcher

PROGRAM = '''
from absl import flags
from tff_pipelines import cli
flags.DEFINE_integer('rounds', 1, 'Rounds in all.')
def main(argv):
  {body}
cli.run(main)
'''


def _run(body, *arguments):
  return subprocess.run(
      [sys.executable, '-c', PROGRAM.format(body=body), *arguments],
      cwd=launcher.ROOT, env=launcher.environment(''), capture_output=True,
      text=True, timeout=400, check=False)


@pytest.mark.parametrize('body, code', [
    ('return None', 0), ('return 0', 0), ('return 1', 1),
    ('raise KeyboardInterrupt', 130)])
def test_exit_code_is_that_of_main(body, code):
  done = _run(body)
  assert done.returncode == code
  assert (done.stdout, done.stderr) == ('', '')


@pytest.mark.parametrize('body, message', [
    (r'raise ValueError("clip is\n  wrong")', 'error: clip is wrong\n'),
    ('open("/proc/none")', "error: [Errno 2] No such file or directory: "
     "'/proc/none'\n")])
def test_mistake_of_the_user_is_one_line(body, message):
  done = _run(body)
  assert (done.returncode, done.stdout, done.stderr) == (2, '', message)


def test_fault_of_the_program_keeps_its_traceback():
  done = _run('return {}["missing"]')
  assert done.returncode == 1
  assert 'Traceback' in done.stderr and 'KeyError' in done.stderr


@pytest.mark.parametrize('argument, named', [
    ('--unknown', 'unknown'), ('--rounds=many', '--rounds=many'),
    ('rounds', "'rounds'"), ('--flagfile=none.flags', 'none.flags'),
    ('--norounds', 'norounds')])
def test_wrong_argument_is_named_in_one_line(argument, named):
  done = _run('return 0', argument)
  assert done.returncode == 2 and done.stdout == ''
  assert done.stderr.startswith('error: ') and done.stderr.count('\n') == 1
  assert named in done.stderr


def test_help_exits_with_zero():
  done = _run('return 1', '--help')
  assert done.returncode == 0
  assert '--rounds: Rounds in all.' in done.stdout
