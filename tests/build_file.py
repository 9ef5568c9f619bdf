"""What BUILD must say, computed from the tree.

`python -m tests.build_file > BUILD` rewrites it. A target's deps are the
first-party imports of its module, those inside functions included. A string
that is exactly a module's dotted name counts as an import of it, since that is
how modules are run by `python -m` and imported by name.
"""

import ast
from collections.abc import Iterator, Mapping
import dataclasses
import pathlib
import sys

ROOT = pathlib.Path(__file__).absolute().parents[1]
COMMAND = 'python -m tests.build_file > BUILD'
FOLDERS = ('aggregators', 'benchmarks', 'tasks', 'tff_pipelines', 'tests')

_HEADER = f"""\
# Written by `{COMMAND}`: edit the modules, not this file.
# tests/structure_test.py compares the two. The rules are Bazel's native ones;
# python3 on the PATH must have requirements.txt installed. A binary's target is
# named like its module with _bin behind it.

package(default_visibility = ["//visibility:public"])

filegroup(
    name = "configs",
    srcs = glob(["tff_pipelines/configs/*.flags"], allow_empty = True),
)

# All that is checked in: what tests/build_file reads.
filegroup(
    name = "tree",
    srcs = glob(
        [
            "*",
            ".ci/**",
            "docs/**",
{''.join(f'            "{f}/**",' + chr(10) for f in FOLDERS)}        ],
        allow_empty = True,
        exclude = ["**/__pycache__/**"],
    ),
)

# A test file that is merely executed runs none of its tests, and so passes.
genrule(
    name = "pytest_main",
    outs = ["pytest_main.py"],
    cmd = "echo 'import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))' > $@",
)
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Module:
  """One Python file.

  Attributes:
    name: Its path from the root, without .py: the name of its target.
    tree: Its syntax tree.
    lines: How many lines it has.
    imports: The names of the first-party modules that it imports. A name that
      no module has means a broken import.
    third_party: The top-level names of all else that it imports.
  """

  name: str
  tree: ast.Module
  lines: int
  imports: frozenset[str]
  third_party: frozenset[str]

  @property
  def is_test(self) -> bool:
    return self.name.startswith('tests/') and self.name.endswith('_test')

  @property
  def is_package(self) -> bool:
    return self.name.endswith('/__init__')

  @property
  def is_binary(self) -> bool:
    return not self.is_test and any(
        isinstance(node, ast.If)
        and ast.unparse(node.test) == "__name__ == '__main__'"
        for node in self.tree.body)


def _strings(tree: ast.Module) -> set[str]:
  return {node.value for node in ast.walk(tree)
          if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def _import_statements(
    name: str, tree: ast.Module) -> Iterator[tuple[str, str | None]]:
  """Yields (path, None) for `import path`, (path, what) for `from path`."""
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      for alias in node.names:
        yield alias.name.replace('.', '/'), None
    elif isinstance(node, ast.ImportFrom):
      # One dot is the package of this module, each further one its parent.
      base = name.split('/')[:-node.level] if node.level else []
      path = '/'.join(base + (node.module.split('.') if node.module else []))
      for alias in node.names:
        yield path, None if alias.name == '*' else alias.name


def modules(root: pathlib.Path = ROOT) -> Mapping[str, Module]:
  """All modules of the project by name, sorted."""
  sources = {}
  for folder in FOLDERS:
    for path in (root / folder).rglob('*.py'):
      name = path.relative_to(root).with_suffix('').as_posix()
      sources[name] = path.read_text(encoding='utf-8')
  packages = {
      parent.as_posix() for name in sources
      for parent in pathlib.PurePosixPath(name).parents}
  dotted = {name.replace('/', '.'): name for name in sources}

  def target(path: str, what: str | None) -> str:
    if path in packages and what is not None:
      path = f'{path}/{what}'
    return f'{path}/__init__' if path in packages else path

  found = {}
  for name in sorted(sources):
    tree = ast.parse(sources[name], filename=name)
    first_party = {dotted[text] for text in _strings(tree) if text in dotted}
    third_party = set()
    for path, what in _import_statements(name, tree):
      top = path.split('/')[0]
      if top in FOLDERS:
        first_party.add(target(path, what))
      else:
        third_party.add(top)
    found[name] = Module(
        name=name, tree=tree, lines=len(sources[name].splitlines()),
        imports=frozenset(first_party - {name}),
        third_party=frozenset(third_party))
  return found


def _rule(kind: str, **attributes: str | list[str]) -> str:
  """One target in Bazel's own formatting; empty lists are left out."""
  lines = [f'{kind}(']
  for key, value in attributes.items():
    if isinstance(value, str):
      lines.append(f'    {key} = "{value}",')
    elif len(value) == 1:
      lines.append(f'    {key} = ["{value[0]}"],')
    elif value:
      lines += [f'    {key} = [', *(f'        "{v}",' for v in value), '    ],']
  return '\n'.join([*lines, ')\n'])


def _targets(module: Module, found: Mapping[str, Module]) -> Iterator[str]:
  """Yields the text of each of a module's targets."""
  name, file = module.name, f'{module.name}.py'
  imports = set(module.imports)
  data = set()
  if name == 'tests/build_file':
    data.add(':tree')
  if _strings(module.tree) & {'configs', 'tff_pipelines/configs'}:
    data.add(':configs')
  if module.is_test:
    # pytest imports the conftest of every folder above a test.
    imports |= {f'{parent}/conftest'
                for parent in pathlib.PurePosixPath(name).parents
                } & set(found)
  deps = [f':{dep}' for dep in sorted(imports)]
  if module.is_test:
    yield _rule(
        'py_test', name=name, srcs=[file, ':pytest_main'],
        args=['-p', 'no:cacheprovider', file],
        data=[*sorted(data), 'pyproject.toml'], main='pytest_main.py',
        deps=deps)
    return
  yield _rule(
      'py_library', name=name, srcs=[file], data=sorted(data), deps=deps)
  if module.is_binary:
    if name.startswith('tff_pipelines/'):
      data.add(':configs')  # A user may give any of them as --flagfile.
    yield _rule('py_binary', name=f'{name}_bin', srcs=[file], data=sorted(data),
                main=file, deps=deps)


def text(root: pathlib.Path = ROOT) -> str:
  """The whole of BUILD."""
  found = modules(root)
  return '\n'.join([_HEADER, *(
      target for module in found.values()
      for target in _targets(module, found))])


if __name__ == '__main__':
  sys.stdout.write(text())
