"""Puts the pages that lie outside docs/ on the site, and the fields of settings."""

import html
import json
import pathlib
import re
import subprocess

import griffe
from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).parent.parent
# Path from the root -> page of the site.
OUTSIDE = {
    'CHANGELOG.md': 'changelog.md',
    'SECURITY.md': 'security.md',
    'benchmarks/README.md': 'benchmarks.md',
    'benchmarks/epsilons.md': 'epsilons.md',
    'benchmarks/columns.md': 'columns.md',
    'benchmarks/ldp_defaults.md': 'ldp_defaults.md',
}


def on_files(files, config):
  """Adds the pages."""
  for path, page in OUTSIDE.items():
    text = (ROOT / path).read_text(encoding='utf-8')
    # Their links are from where they lie.
    text = re.sub(r'\]\((?:\.\./)?docs/', '](', text)
    text = text.replace('](README.md)', '](index.md)')
    files.append(File.generated(config, page, content=text))
  return files


def on_page_markdown(markdown, **_):
  """Changes the links of the other pages."""
  for path, page in OUTSIDE.items():
    markdown = markdown.replace(f'](../{path}', f']({page}')
  return markdown


class Declared(griffe.Extension):
  """Shows the declared fields of a class as its parameters.

  Source has only the calls that declare them: what those give, the project says.
  """

  def __init__(self):
    super().__init__()
    self._classes = json.loads(subprocess.run(
        [ROOT / '.venv' / 'bin' / 'python', 'docs/declared.py'], cwd=ROOT, check=True,
        stdout=subprocess.PIPE).stdout)

  def on_package(self, *, pkg, **_):
    for path, sections in self._classes.items():
      package, _, name = path.partition('.')
      if package == pkg.name:
        _show(pkg[name], sections)


def _show(cls, sections):
  """Puts a class's fields into its docstring, in place of constructor and attributes."""
  names = {name for fields in sections.values() for name, *_ in fields}
  for name in names & cls.members.keys():
    cls.del_member(name)
  if '__init__' in cls.members:
    cls.del_member('__init__')
  cls.docstring = cls.docstring or griffe.Docstring('', parent=cls)
  cls.docstring.parsed = [
      griffe.DocstringSectionText(cls.docstring.value), *(
          griffe.DocstringSectionParameters([
              griffe.DocstringParameter(
                  name, annotation=annotation, value=default,
                  # As text, except for code.
                  description=re.sub(r'([\\*\[\]])', r'\\\1', html.escape(meaning)))
              for name, annotation, default, meaning in fields],
              title=f'{(heading or "parameters").capitalize()}:')
          for heading, fields in sections.items())]
