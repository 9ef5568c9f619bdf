"""The project's modules and what they import, read from the source tree.

Imports inside functions count. So does a string that is exactly a module's dotted
name: that is how modules are run by `python -m` and imported by name. Names that are
relative, or are computed where they are imported, would hide: they are listed.
"""

import ast
from collections.abc import Iterator, Mapping
import dataclasses
import pathlib

ROOT = pathlib.Path(__file__).absolute().parents[1]
FOLDERS = ('aggregators', 'benchmarks', 'examples', 'tasks', 'tff_pipelines', 'tests')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Module:
  """One Python file, by its path from the root without .py.

  A name in `imports` that no module has means a broken import; `hidden` has arguments
  of `import_module` from which no module can be told.
  """

  name: str
  tree: ast.Module
  lines: int
  imports: frozenset[str]
  third_party: frozenset[str]
  hidden: tuple[str, ...]

  @property
  def is_test(self) -> bool:
    return self.name.startswith('tests/') and self.name.endswith('_test')

  @property
  def is_package(self) -> bool:
    return self.name.endswith('/__init__')

  @property
  def is_binary(self) -> bool:
    return not self.is_test and any(
        ast.unparse(node).startswith(
            ("if __name__ == '__main__':", 'main = cli.program('))
        for node in self.tree.body)


def _strings(tree: ast.Module) -> set[str]:
  return {node.value for node in ast.walk(tree)
          if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def _import_statements(name: str, tree: ast.Module) -> Iterator[tuple[str, str | None]]:
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


def _hidden_imports(tree: ast.Module) -> Iterator[str]:
  """Yields the arguments of `import_module` that are relative or put together."""
  for node in ast.walk(tree):
    if isinstance(node, ast.Call) and node.args and getattr(
        node.func, 'attr', getattr(node.func, 'id', None)) in (
            'import_module', '__import__'):
      name = node.args[0]
      if isinstance(name, (ast.JoinedStr, ast.BinOp, ast.Call)) or len(
          node.args) + len(node.keywords) > 1 or isinstance(
              name, ast.Constant) and str(name.value).startswith('.'):
        yield ast.unparse(node)


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

  result = {}
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
    result[name] = Module(
        name=name, tree=tree, lines=len(sources[name].splitlines()),
        imports=frozenset(first_party - {name}),
        third_party=frozenset(third_party), hidden=tuple(_hidden_imports(tree)))
  return result
