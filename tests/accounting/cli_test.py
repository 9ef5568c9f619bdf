"""A binary's mistakes, interrupts and faults."""

import subprocess
import sys

import pytest

_BINARY = '''
from absl import flags
from tff_pipelines import cli
flags.DEFINE_integer('size', 1, 'How large.', lower_bound=1)
def main(argv):
  {body}
cli.run(main)
'''


def run(body, *arguments):
  return subprocess.run(
      [sys.executable, '-c', _BINARY.format(body=body), *arguments],
      capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize('body,arguments,code', [
    ('return None', [], 0), ('return 0', ['--size=3'], 0),
    ('return 1', [], 1), ('raise KeyboardInterrupt', [], 130),
    ('return None', ['--help'], 0)])
def test_exit_codes(body, arguments, code):
  assert run(body, *arguments).returncode == code


@pytest.mark.parametrize('body,arguments,words', [
    ('raise ValueError("delta must be\\nsmall")', [], 'delta must be small'),
    ('raise FileNotFoundError(2, "no such file", "x.json")', [], 'x.json'),
    ('return 0', ['--size=0'], 'size'), ('return 0', ['--size=much'], 'size'),
    ('return 0', ['--wise=1'], 'wise'), ('return 0', ['more'], 'more')])
def test_mistakes_are_one_line_and_exit_code_2(body, arguments, words):
  done = run(body, *arguments)
  assert done.returncode == 2
  (line,) = done.stderr.strip().splitlines()
  assert line.startswith('error: ') and words in line


def test_faults_of_the_program_keep_their_traceback():
  done = run('raise TypeError("a fault")')
  assert done.returncode == 1 and 'Traceback' in done.stderr
