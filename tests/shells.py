"""What a shell makes of printed commands, and names that could break them."""

import shlex
import subprocess

HOSTILE = ('my run; rm -rf x', "it's", 'a  b\tc', 'two\nlines', '-dash',
           '$(touch x)`y`', '"quoted" \\', '*?#!', 'é ' + 'long ' * 20)


def arguments(printed: str) -> list[str]:
  """The arguments of a printed command that was pasted into a shell.

  Raises:
    AssertionError: If Python's reading of the command differs from the shell's.
  """
  pasted = subprocess.run(
      ['sh', '-c', f'python() {{ printf "%s\\0" python "$@"; }}\n{printed}\n'],
      check=True, capture_output=True, text=True).stdout.split('\0')[:-1]
  assert pasted == shlex.split(printed.replace('\\\n', '\n'))
  return pasted


def width(lines: list[str]) -> int:
  """The width of a report, without its last command: a path in it may be wider."""
  command = next((i for i, line in enumerate(lines) if line.startswith('next ')),
                 len(lines))
  return max(map(len, lines[:command]))
