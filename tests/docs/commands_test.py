"""Commands in the documents have flags that their programs know and accept."""

import importlib.util
import re

import pytest

from tests.docs import pages
from tff_pipelines.experiment import cli

COMMANDS = sorted({(path.name, *command) for path in pages.paths()
                   for command in pages.commands(path.read_text(encoding='utf-8'))})
_BENCHMARKS = '\n'.join(path.read_text(encoding='utf-8')
                        for path in (pages.ROOT / 'benchmarks').glob('*.py'))


def _check(module: str, arguments: list[str]) -> None:
  if module == 'tff_pipelines':
    name, *arguments = arguments
    program = importlib.import_module('tff_pipelines.__main__').PROGRAMS[name]
    module = f'tff_pipelines.{program}'
  assert importlib.util.find_spec(module) is not None
  flags = [argument.partition('=')[0] for argument in arguments]
  path = pages.ROOT / f'{module.replace(".", "/")}.py'
  text = path.read_text(encoding='utf-8') if path.exists() else ''
  if not module.startswith('tff_pipelines.') and 'main = cli.program(' not in text:
    # They have parsers of their own: their flags are at least known to one.
    parsers = _BENCHMARKS + text
    assert not [flag for flag in flags if f"'{flag}'" not in parsers]
  elif flags and not {'--help', '--helpfull', '--version'} & set(flags):
    program = importlib.import_module(module)
    if hasattr(program, '__path__'):
      program = importlib.import_module(f'{module}.__main__')
    # `cli.program` gives `main` its docstring and the class of its settings.
    cli.parsed(program.main.args[1], arguments)


@pytest.mark.parametrize('command', COMMANDS, ids=' '.join)
def test_a_command_is_accepted_by_its_program(command):
  _, module, *arguments = command
  _check(module, arguments)


def test_every_target_of_make_that_a_page_names_exists():
  targets = set(re.findall(
      r'^([\w -]+):(?!=)', (pages.ROOT / 'Makefile').read_text(encoding='utf-8'),
      re.MULTILINE))
  targets = {name for names in targets for name in names.split()}
  named = {match for path in pages.paths() for match in re.findall(
      r'(?:^|`)make ([a-z][\w-]*)', path.read_text(encoding='utf-8'), re.MULTILINE)}
  assert {'train', 'site'} <= targets
  assert not named - targets
