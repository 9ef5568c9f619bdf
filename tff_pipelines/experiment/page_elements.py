"""Elements of an HTML page as a tree, which escapes all texts when it is written."""

from collections.abc import Iterable, Sequence
from typing import Union
import xml.etree.ElementTree as etree

Element = etree.Element
Child = Union[Element, str]


def element(tag: str, *children: Child, **attributes: str | float) -> Element:
  """An element.

  Args:
    tag: Its name.
    *children: Elements and texts, in order.
    **attributes: Its attributes; `class_` is class, and _ in a name stands for -.
  """
  # HTML allows < in an attribute, where it only looks like the start of a tag.
  result = etree.Element(tag, {
      name.rstrip('_').replace('_', '-'): _text(str(value)).replace('<', '‹')
      for name, value in attributes.items()})
  last = None
  for child in children:
    if isinstance(child, str):
      if last is None:
        result.text = (result.text or '') + _text(child)
      else:
        last.tail = (last.tail or '') + _text(child)
    else:
      result.append(child)
      last = child
  return result


def table(head: Sequence[Child], rows: Iterable[Sequence[Child]], *, caption: str,
          class_: str = 'list') -> Element:
  """A table in a box of its own, which scrolls where the page is narrow.

  Args:
    head: Headings of the columns.
    rows: Cells; the first of a row is its heading.
    caption: Name of the table.
    class_: Class of its style.
  """
  body = [element('tr', element('th', row[0], scope='row'),
                  *(element('td', cell) for cell in row[1:])) for row in rows]
  return element(
      'div', element(
          'table', element('caption', caption),
          element('thead', element('tr', *(
              element('th', cell, scope='col') for cell in head))),
          element('tbody', *body), class_=class_),
      class_='scroll', tabindex='0', role='region', aria_label=caption)


def folded(summary: str, *children: Child) -> Element:
  """Children that a click on the summary shows."""
  return element('details', element('summary', summary), *children)


def written(root: Element) -> str:
  """The text of a page with this root."""
  return '<!doctype html>\n' + etree.tostring(root, encoding='unicode', method='html')


def _text(value: str) -> str:
  """The text without what HTML can't hold: control characters and half characters."""
  kept = ''.join(c if c.isprintable() or c in '\n\t ' else '\N{REPLACEMENT CHARACTER}'
                 for c in value)
  return kept.encode('utf-8', 'replace').decode('utf-8')
