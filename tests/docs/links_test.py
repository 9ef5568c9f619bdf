"""Links of the documents resolve, commands are accepted, the site has every page."""

import importlib.util
import re

import pytest

from tests.docs import pages
from tff_pipelines.experiment import cli


def _problems(path):
  for target in pages.links(path.read_text(encoding='utf-8')):
    name, _, anchor = target.partition('#')
    other = (path.parent / name).resolve() if name else path
    if not other.exists():
      yield f'{target}: no such file'
    elif anchor and anchor not in pages.anchors(other.read_text(encoding='utf-8')):
      yield f'{target}: no such heading'


@pytest.mark.parametrize('path', pages.paths(), ids=lambda path: path.name)
def test_every_link_of_a_page_resolves(path):
  assert not list(_problems(path))


def test_the_site_has_every_page_once():
  here = [path.relative_to(pages.DOCS).as_posix() for path in pages.DOCS.rglob('*.md')]
  added = ['changelog.md', 'security.md', 'benchmarks.md', 'epsilons.md', 'columns.md',
           'ldp_defaults.md']
  assert sorted(pages.nav()) == sorted(here + added)
  # Other links out of docs/ would have no target on the site, which then is not built.
  linked = {target.partition('#')[0].removeprefix('../') for path in pages.DOCS.glob('*.md')
            for target in pages.links(path.read_text(encoding='utf-8'))
            if target.startswith('../')}
  assert not linked - {*pages.OUTSIDE, 'README.md'}


def test_every_page_starts_with_its_title():
  assert not [path.name for path in pages.DOCS.rglob('*.md')
              if not path.read_text(encoding='utf-8').startswith('# ')]


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
  if path.with_suffix('').is_dir():
    path = path.with_suffix('') / '__main__.py'
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
