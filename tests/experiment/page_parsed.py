"""Parses a page without a browser: its elements, its texts, and that they nest."""

import collections
import html.parser

_VOID = {'meta', 'br', 'hr', 'img', 'input', 'link'}


class Page(html.parser.HTMLParser):
  """Elements of a page by tag, their attributes, and all texts but the style sheet."""

  def __init__(self, page: str):
    super().__init__()
    self.count = collections.Counter()
    self.attributes = collections.defaultdict(list)
    self.texts: list[str] = []
    self._open: list[str] = []
    self.feed(page)
    self.close()
    assert not self._open, self._open
    self.text = ' '.join(self.texts)

  def handle_starttag(self, tag, attrs):
    self.count[tag] += 1
    self.attributes[tag].append(dict(attrs))
    if tag not in _VOID:
      self._open.append(tag)

  def handle_endtag(self, tag):
    assert self._open and self._open.pop() == tag, tag

  def handle_data(self, data):
    if 'style' not in self._open and data.strip():
      self.texts.append(data)
