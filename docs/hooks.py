"""Puts the pages that lie outside docs/ on the site, and leads links to them there."""

import pathlib
import re

from mkdocs.structure.files import File

# Path from the root -> page of the site.
OUTSIDE = {
    'CHANGELOG.md': 'changelog.md',
    'SECURITY.md': 'security.md',
    'benchmarks/README.md': 'benchmarks.md',
}


def on_files(files, config):
  """Adds the pages."""
  root = pathlib.Path(config.config_file_path).parent
  for path, page in OUTSIDE.items():
    text = (root / path).read_text(encoding='utf-8')
    # Their links are from where they lie.
    text = re.sub(r'\]\((?:\.\./)?docs/', '](', text)
    files.append(File.generated(config, page, content=text))
  return files


def on_page_markdown(markdown, **_):
  """Changes the links of the other pages."""
  for path, page in OUTSIDE.items():
    markdown = markdown.replace(f'](../{path}', f']({page}')
  return markdown
