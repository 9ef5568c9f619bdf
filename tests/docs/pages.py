"""Reads the documents: their links, headings, snippets and commands."""

from collections.abc import Iterator
import dataclasses
import pathlib
import re
import shlex

from tests import modules

ROOT = modules.ROOT
DOCS = ROOT / 'docs'
# Pages outside docs/ that the site has too; docs/hooks.py puts them there.
OUTSIDE = ('CHANGELOG.md', 'SECURITY.md', 'benchmarks/README.md',
           'benchmarks/epsilons.md', 'benchmarks/columns.md',
           'benchmarks/ldp_defaults.md')

_FENCE = re.compile(r'^```(\w*)\n(.*?)^```', re.MULTILINE | re.DOTALL)
_LINK = re.compile(r'\]\(([^)\s]+)\)')
_HEADING = re.compile(r'^#+ (.+)$', re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Block:
  """Attributes: language of a fenced block, '' for commands; its text."""

  language: str
  text: str


def paths() -> list[pathlib.Path]:
  """All pages."""
  return [*sorted(DOCS.rglob('*.md')), *(ROOT / name for name in ('README.md', *OUTSIDE))]


def nav() -> list[str]:
  """Pages that mkdocs.yml names, in its order, relative to docs/."""
  text = (ROOT / 'mkdocs.yml').read_text(encoding='utf-8').partition('\nnav:\n')[2]
  return re.findall(r'[\w/]+\.md', text)


def blocks(text: str) -> list[Block]:
  """The fenced blocks of a page, in order."""
  return [Block(*match) for match in _FENCE.findall(text)]


def links(text: str) -> list[str]:
  """Targets of the links of a page, except for addresses on the web."""
  prose = re.sub(r'`[^`\n]*`', 'code', _FENCE.sub('', text))
  return [target for target in _LINK.findall(prose) if not re.match(r'\w+:', target)]


def anchors(text: str) -> set[str]:
  """Anchors of the headings of a page, as the site and the repository name them."""
  result = set()
  for heading in _HEADING.findall(_FENCE.sub('', text)):
    words = re.sub(r'[^\w\- ]', '', re.sub(r'\[(.*?)\]\(.*?\)', r'\1', heading).lower())
    result.add(words.strip().replace(' ', '-'))
  return result


def commands(text: str) -> Iterator[list[str]]:
  """The words of each command of a page that starts with `python -m`, from there on.

  Variables of a loop in the shell have its first value, others their own names; dots
  that stand for flags named elsewhere are left out.
  """
  spans = [block.text for block in blocks(text) if not block.language]
  spans += re.findall(r'`(python -m [^`\n]+)`', _FENCE.sub('', text))
  for span in spans:
    values = dict(re.findall(r'\bfor (\w+) in ([^\s;]+)', span))
    for line in re.sub(r'\\\n', ' ', span).splitlines():
      _, start, rest = line.partition('python -m ')
      if start:
        rest = re.sub(r'\$\{?(\w+)\}?', lambda m: values.get(m[1], m[1]), rest)
        words = shlex.split(re.split(r'; |;$| && | \| | > ', rest)[0], comments=True)
        yield [word for word in words if word not in ('...', '…', '$@')]
