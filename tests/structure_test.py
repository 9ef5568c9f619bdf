"""Tests that BUILD, imports and arrows between packages agree.

And of what else holds for every file of the project. See docs/architecture.md
for the arrows.
"""

import ast
import collections
import fnmatch
import graphlib
import re
import subprocess
import sys

import pytest

from tests import modules as modules_lib, size

MODULES = modules_lib.modules()
LIBRARY = size.LIBRARY
ACCOUNTING = 'tff_pipelines/accounting/'
TENSORFLOW = {'tensorflow', 'tensorflow_federated'}
# The most lines of a module of the library.
MAX_LINES = 500

# Folders that mean one machine. The pattern does not match its own text.
_MACHINE_PATH = re.compile(rb'(?<![\w.})-])/(?:(?:work|tmp|home)/|root\b)[^\s\'"`]*')
# In halves, so that this file contains none of them.
_REGISTRIES = tuple('.'.join(halves).encode() for halves in (
    ('pypi', 'org'), ('pypi', 'python'), ('pythonhosted', 'org'),
    ('npmjs', 'org'), ('npmjs', 'com'), ('yarnpkg', 'com'), ('crates', 'io'),
    ('rubygems', 'org'), ('anaconda', 'org'), ('anaconda', 'com'),
    ('proxy.golang', 'org'), ('repo.maven', 'apache'), ('docker', 'io')))


def _within(*prefixes):
  return [m for m in MODULES.values() if m.name.startswith(prefixes)]


def _files():
  """All files that may be checked in: those that .gitignore does not name."""
  lines = (modules_lib.ROOT / '.gitignore').read_text(encoding='utf-8').split()
  ignored = ['.git', *(line.strip('/') for line in lines)]

  def walk(folder):
    for path in sorted(folder.iterdir()):
      if any(fnmatch.fnmatchcase(path.name, pattern) for pattern in ignored):
        continue
      if path.is_dir():
        yield from walk(path)
      else:
        yield path

  return list(walk(modules_lib.ROOT))


def _targets():
  """Executes BUILD, which is Python too; returns {name: (rule, attributes)}."""
  targets = {}

  def rule(kind):
    def define(**attributes):
      assert attributes['name'] not in targets
      targets[attributes['name']] = (kind, attributes)
    return define

  def glob(patterns, exclude=(), allow_empty=False):
    root = modules_lib.ROOT
    matches = sorted({path.relative_to(root).as_posix()
                      for pattern in patterns for path in root.glob(pattern)
                      if path.is_file()} - set(glob(exclude) if exclude else ()))
    assert matches or allow_empty, patterns
    return matches

  kinds = ('py_library', 'py_binary', 'py_test', 'filegroup', 'genrule')
  code = (modules_lib.ROOT / 'BUILD').read_text(encoding='utf-8')
  exec(code, {  # pylint: disable=exec-used
      'package': lambda **_: None, 'glob': glob, **{kind: rule(kind) for kind in kinds}})
  return targets


def test_build_has_a_library_or_a_test_for_every_module_and_a_binary_for_every_program():
  kinds = collections.defaultdict(set)
  for kind, attributes in _targets().values():
    for source in attributes.get('srcs', ()):
      kinds[source].add(kind)
  for module in MODULES.values():
    program = module.is_binary and module.name.startswith('tff_pipelines/')
    assert kinds.pop(f'{module.name}.py') == (
        {'py_test'} if module.is_test else
        {'py_library', 'py_binary'} if program else {'py_library'}), module.name
  assert set(kinds) == {':pytest_main'}


def test_deps_of_build_reach_every_import():
  targets = _targets()
  sources, deps = {}, {}
  for name, (kind, attributes) in targets.items():
    deps[name] = [dep.removeprefix(':') for dep in attributes.get('deps', ())]
    if kind in ('py_library', 'py_test'):
      sources[name] = {source.removesuffix('.py') for source in attributes['srcs']
                       if not source.startswith(':')}
  order = list(graphlib.TopologicalSorter(deps).static_order())  # Has no cycles.
  assert set(order) == set(targets), 'a label without a target'
  reached = {}
  for name in order:
    reached[name] = sources.get(name, set()).union(*(reached[dep] for dep in deps[name]))
  missing = [
      f'{name}: {source} imports {imported}'
      for name in sources for source in sources[name]
      for imported in MODULES[source].imports - reached[name]
      if not imported.endswith('/__init__')]
  assert not missing


def test_every_first_party_import_exists():
  missing = {m.name: sorted(m.imports - set(MODULES)) for m in MODULES.values()}
  assert not {name: names for name, names in missing.items() if names}


def test_imports_have_no_cycles():
  sorter = graphlib.TopologicalSorter({m.name: m.imports for m in MODULES.values()})
  try:
    sorter.prepare()
  except graphlib.CycleError as error:
    pytest.fail(' -> '.join(error.args[1]), pytrace=False)


def test_folders_of_tasks_have_no_cycles():
  folders = {m.name: m.name.split('/')[1] for m in _within('tasks/')
             if m.name.count('/') == 2 and not m.is_package}
  arrows = collections.defaultdict(set)
  for name, folder in folders.items():
    arrows[folder] |= {folders[other] for other in MODULES[name].imports
                       if other in folders} - {folder}
  list(graphlib.TopologicalSorter(arrows).static_order())


def test_no_library_code_hides_its_imports():
  assert {m.name: m.hidden for m in _within(*LIBRARY) if m.hidden} == {
      # A program by its name, which nothing imports.
      'tff_pipelines/__main__': (
          "importlib.import_module(f'tff_pipelines.{PROGRAMS[name]}')",)}


_SHARED = ('accounting', 'audit', 'baselines', 'common', 'configs', 'deployment',
           'experiment', 'publish', 'simulation')
_FAMILIES = ('fedavg', *sorted({
    name.split('/')[1] for name in MODULES
    if name.startswith('tff_pipelines/') and name.count('/') == 2
} - {*_SHARED, 'fedavg'}))
COMMON, BASELINES = 'tff_pipelines/common/', 'tff_pipelines/baselines/'
ENGINE = 'tff_pipelines/deployment/engine/'
# What a folder's modules may import besides each other: folders, or modules.
_NUMBERS = ('aggregators/noises', 'aggregators/params', 'aggregators/prediction_params',
            'aggregators/share_tables', 'aggregators/voting_params')
_BELOW_EXPERIMENT = (COMMON, 'aggregators/', ACCOUNTING, 'tff_pipelines/simulation/')
_BELOW_FAMILIES = (*_BELOW_EXPERIMENT, 'tasks/', 'tff_pipelines/experiment/')
_DIVERGENCES, _EVENTS, _SAMPLING, _GUARANTEES = (
    f'{ACCOUNTING}{name}/' for name in (
        'divergences', 'events', 'sampling', 'guarantees'))
_ARROWS = {
    COMMON: (), 'aggregators/': (COMMON,), 'tasks/': (COMMON,), _DIVERGENCES: (COMMON,),
    _EVENTS: (COMMON, *_NUMBERS, _DIVERGENCES), _SAMPLING: (COMMON, *_NUMBERS, _EVENTS),
    _GUARANTEES: (COMMON, *_NUMBERS, _DIVERGENCES, _EVENTS, _SAMPLING),
    'tff_pipelines/simulation/': (COMMON, 'aggregators/'),
    'tff_pipelines/experiment/': _BELOW_EXPERIMENT,
    'tff_pipelines/fedavg/': (*_BELOW_FAMILIES, 'tff_pipelines/audit/'),
    BASELINES: (*_BELOW_FAMILIES, 'tff_pipelines/fedavg/'),
    ENGINE: (*_BELOW_FAMILIES, 'tff_pipelines/deployment/', 'tff_pipelines/fedavg/'),
    # State machines of the parties: no TFF, and no sockets.
    'tff_pipelines/deployment/': (COMMON, 'aggregators/', ACCOUNTING),
    'tff_pipelines/audit/': (*_BELOW_EXPERIMENT, 'tff_pipelines/experiment/'),
    **{f'tff_pipelines/{family}/': (
        *_BELOW_FAMILIES, 'tff_pipelines/fedavg/',
        *([BASELINES] if family in ('ldp', 'voting') else []))
       for family in _FAMILIES[1:]},
    # The families whose runs are opened.
    'tff_pipelines/publish/': (*_BELOW_FAMILIES, BASELINES, *(
        f'tff_pipelines/{family}/' for family in _FAMILIES)), 'tff_pipelines/': LIBRARY}


@pytest.mark.parametrize('importer', list(_ARROWS))
def test_imports_follow_the_arrows(importer):
  allowed = (importer, *_ARROWS[importer])
  wrong = [f'{m.name} imports {imported}' for m in _within(importer)
           # The engine, alone in a folder of another with arrows of its own.
           if importer == 'tff_pipelines/' or (
               m.name.startswith(ENGINE) == (importer == ENGINE))
           for imported in sorted(m.imports)
           if not imported.endswith('/__init__') and (
               (imported.startswith(ENGINE) and importer == 'tff_pipelines/deployment/')
               or not any(imported.startswith(a) if a.endswith('/') else imported == a
                          for a in allowed))]
  assert _within(importer)
  assert not wrong


def test_the_protocol_knows_no_transport():
  core = [m for m in _within('tff_pipelines/deployment/') if not m.name.startswith(ENGINE)]
  assert core and not any(
      m.third_party & {'tensorflow_federated', 'grpc'} for m in core)


def test_every_folder_of_the_library_has_its_arrows():
  folders = {m.name.rsplit('/', 1)[0] + '/' for m in _within('tff_pipelines/')}
  assert folders == {*_ARROWS, ACCOUNTING} - {'aggregators/', 'tasks/'}


def _calls(module, names):
  """Names of the attributes or functions among `names` that a module calls."""
  return {getattr(node.func, 'attr', getattr(node.func, 'id', None))
          for node in ast.walk(module.tree) if isinstance(node, ast.Call)} & names


def test_flags_are_defined_by_the_settings_alone():
  wrong = {m.name for m in _within(*LIBRARY) if any(
      isinstance(node, ast.Attribute) and node.attr.startswith('DEFINE_')
      for node in ast.walk(m.tree))}
  assert wrong == {'tff_pipelines/experiment/settings'}


def test_families_leave_flags_progress_and_commits_to_the_experiment():
  families = _within(*(f'tff_pipelines/{name}/' for name in _FAMILIES))
  assert len(families) > 40
  assert not [m.name for m in families if m.third_party & {'absl', 'tqdm'}]
  assert not [m.name for m in families if _calls(m, {'commit', 'append_line'})]


def test_flat_modules_are_thin_programs():
  flat = [m for m in _within('tff_pipelines/')
          if m.name.count('/') == 1 and not m.is_package]
  assert not [f'{m.name}: {m.lines}' for m in flat if m.lines > 130]
  assert [m.name for m in flat if not m.is_binary] == [
      'tff_pipelines/api', 'tff_pipelines/tff_pipelines']


def test_private_parts_of_tff_are_used_in_one_module():
  wrong = {m.name for m in _within(*LIBRARY) for node in ast.walk(m.tree)
           if isinstance(node, ast.ImportFrom) and (node.module or '').startswith(
               'tensorflow_federated.python')}
  assert wrong == {'aggregators/tff_internals'}


def test_document_of_the_summary_has_every_key():
  from tff_pipelines.experiment import report  # pylint: disable=g-import-not-at-top
  page = (modules_lib.ROOT / 'docs' / 'summary.md').read_text(encoding='utf-8')
  rows = re.findall(r'^\| `(\w+)` \| ([^|]+) \| .+\. \|$', page, re.MULTILINE)
  assert rows == [(name, kind.replace('?', ' or null'))
                  for name, kind in report.SCHEMA.items()]


def test_nothing_that_accounting_reaches_imports_tensorflow():
  reached, waiting = set(), [m.name for m in _within(ACCOUNTING)]
  while waiting:
    name = waiting.pop()
    if name not in reached:
      reached.add(name)
      waiting += MODULES[name].imports
  assert 'aggregators/params' in reached
  assert not [name for name in sorted(reached) if MODULES[name].third_party & TENSORFLOW]


def test_importing_all_of_accounting_does_not_load_tensorflow():
  names = [m.name.replace('/', '.') for m in _within(ACCOUNTING) if not m.is_package]
  code = (f'import sys, {", ".join(names)}\n'
          f'print({TENSORFLOW!r} & sys.modules.keys() or "none")')
  assert 'tff_pipelines.accounting.guarantees.accountant' in names
  found = subprocess.run(
      [sys.executable, '-c', code], cwd=modules_lib.ROOT, check=True,
      stdout=subprocess.PIPE, text=True)
  assert found.stdout == 'none\n'


def test_packages_import_nothing():
  for module in MODULES.values():
    if module.name == 'tff_pipelines/__init__':  # Looks for what programs need.
      assert not module.imports and module.third_party <= sys.stdlib_module_names
    elif module.is_package:
      # A docstring, and the version of the project.
      assert all(
          isinstance(node, ast.Expr) or isinstance(node, ast.Assign) and
          ast.unparse(node.targets[0]) == '__version__' for node in module.tree.body
      ), module.name


def test_every_module_has_a_docstring():
  assert not [m.name for m in MODULES.values()
              if not m.is_package and not ast.get_docstring(m.tree)]


def test_no_module_is_a_book():
  assert not [f'{m.name}: {m.lines}' for m in _within(*LIBRARY) if m.lines > MAX_LINES]


def test_docstrings_and_comments_begin_with_what_they_are_about():
  begins = re.compile(r'\s*("""|#\s?)(Of|Those of|What|Likewise|As \w+ of)\b')
  lines = [f'{m.name}.py: {line.strip()}' for m in _within(*LIBRARY)
           for line in (modules_lib.ROOT / f'{m.name}.py').read_text(
               encoding='utf-8').splitlines() if begins.match(line)]
  assert not lines


def test_a_flag_is_in_as_many_files_as_its_recipe_says():
  # The worked example of docs/architecture.md; the third file is its test.
  names = {m.name for m in _within(*LIBRARY) if 'server_beta_1' in (
      modules_lib.ROOT / f'{m.name}.py').read_text(encoding='utf-8')}
  assert names == {
      'tff_pipelines/fedavg/settings', 'tff_pipelines/fedavg/server_optimizer'}


def test_the_project_does_not_outgrow_its_readers():
  found = size.sizes(MODULES)
  assert found['library: lines'] <= 44_000
  assert found['library: lines of code'] <= 25_600
  assert found['audit and deployment: lines'] <= 5000
  assert found['tests: lines'] <= found['all but tests: lines']


def test_no_library_code_validates_by_assert():
  assert not [f'{m.name}.py:{node.lineno}' for m in _within(*LIBRARY)
              for node in ast.walk(m.tree) if isinstance(node, ast.Assert)]


def test_no_file_names_a_path_of_one_machine():
  assert not [f'{path}: {match.group().decode(errors="replace")}'
              for path in _files() for match in _MACHINE_PATH.finditer(path.read_bytes())]


def test_no_file_names_a_package_registry():
  assert not [f'{path}: {host.decode()}' for path in _files()
              for host in _REGISTRIES if host in path.read_bytes().lower()]
