"""Prints how large the project is, and how its packages import each other.

  python -m tests.size
"""

import ast
from collections.abc import Iterable, Mapping
import functools
import io
import tokenize

from tests import modules as modules_lib

LIBRARY = ('aggregators/', 'tasks/', 'tff_pipelines/')
# Alongside the library: what looks at it from outside, and what carries it to sites.
AUDIT = 'tff_pipelines/audit/'
ALONGSIDE = (AUDIT, 'tff_pipelines/deployment/')
_NO_CODE = frozenset((
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER))


def code_lines(source: str, tree: ast.Module) -> int:
  """Number of lines that are no blanks, comments, docstrings or imports."""
  lines = set()
  for token in tokenize.generate_tokens(io.StringIO(source).readline):
    if token.type not in _NO_CODE:
      lines.update(range(token.start[0], token.end[0] + 1))
  for node in ast.walk(tree):
    if isinstance(node, (ast.Import, ast.ImportFrom)):
      lines.difference_update(range(node.lineno, node.end_lineno + 1))
    elif isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef,
                           ast.AsyncFunctionDef)):
      if ast.get_docstring(node) is not None:
        docstring = node.body[0]
        lines.difference_update(range(docstring.lineno, docstring.end_lineno + 1))
  return len(lines)


def _package(name: str) -> str:
  return name.rpartition('/')[0]


def arrows(modules: Iterable[modules_lib.Module]) -> set[tuple[str, str]]:
  """Pairs (importing package, imported package), those of the modules alone."""
  modules = list(modules)
  packages = {_package(module.name) for module in modules}
  pairs = {(_package(module.name), _package(name)) for module in modules
           for name in module.imports if not name.endswith('/__init__')}
  return {(one, other) for one, other in pairs if one != other and other in packages}


def longest_chain(modules: Mapping[str, modules_lib.Module]) -> int:
  """Number of modules on the longest path of imports, which have no cycles."""
  @functools.cache
  def chain(name):
    imported = (other for other in modules[name].imports if other in modules)
    return 1 + max(map(chain, imported), default=0)

  return max(map(chain, modules), default=0)


def sizes(every: Mapping[str, modules_lib.Module]) -> dict[str, int]:
  """Name -> number of all modules by name, in the order in which they are printed."""
  library = {name: m for name, m in every.items()
             if name.startswith(LIBRARY) and not name.startswith(ALONGSIDE)}
  return {
      'library: lines': sum(m.lines for m in library.values()),
      'library: lines of code': sum(
          code_lines((modules_lib.ROOT / f'{name}.py').read_text(encoding='utf-8'),
                     m.tree) for name, m in library.items()),
      'audit and deployment: lines': sum(
          m.lines for name, m in every.items() if name.startswith(ALONGSIDE)),
      'all but tests: lines': sum(
          m.lines for name, m in every.items() if name.startswith(LIBRARY)),
      'tests: lines': sum(
          m.lines for name, m in every.items() if name.startswith('tests/')),
      'library: modules': sum(not m.is_package for m in library.values()),
      'library: packages': len({_package(name) for name in library}),
      'library: arrows between packages': len(arrows(library.values())),
      'library: longest chain of imports': longest_chain(library)}


if __name__ == '__main__':
  for name, number in sizes(modules_lib.modules()).items():
    print(f'{number:7,} {name}')
