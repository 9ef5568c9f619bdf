"""Links between the documents resolve, and the site has every page."""

import pytest

from tests.docs import pages


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
  added = ['changelog.md', 'security.md', 'benchmarks.md', 'epsilons.md', 'columns.md']
  assert sorted(pages.nav()) == sorted(here + added)


def test_every_page_starts_with_its_title():
  assert not [path.name for path in pages.DOCS.rglob('*.md')
              if not path.read_text(encoding='utf-8').startswith('# ')]
