"""Parts of an HTML page: elements, which escape all texts, line charts, and the style.

Charts are inline SVG, whose colours follow the page's light or dark scheme.
"""

from collections.abc import Callable, Iterable, Sequence
import dataclasses
import math
import pathlib
from typing import Union
import xml.etree.ElementTree as etree

# Units of the drawing, which is as wide as its box: text stays legible on a phone.
_WIDTH, _HEIGHT = 400, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 10, 10, 40
# Colours of the style sheet; further series repeat them, dashed.
COLOURS = 8
# Series of fewer points have a mark at each.
_MARKED = 25

# The style sheet.
CSS = pathlib.Path(__file__).with_name('page.css').read_text(encoding='utf-8')

Element = etree.Element
Child = Union[Element, str]


def element(tag: str, *children: Child, **attributes: str | float) -> Element:
  """An element; `class_` is the attribute class, and _ in a name stands for -."""
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
  """A table in a box of its own, which scrolls where the page is narrow."""
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
  return ''.join(c if c.isprintable() or c in '\n\t ' else '\N{REPLACEMENT CHARACTER}'
                 for c in value).encode('utf-8', 'replace').decode('utf-8')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curve:
  """A curve of a chart or a figure; the page alone uses the last four attributes.

  Attributes:
    label: Text of the legend, or of the axis on the right.
    x, y: Coordinates of its points, of equal length; of a chart finite, at least one.
    main: Whether it stands out; several runs are compared by such curves.
    metric: Name of the vertical axis; curves of one name share a chart.
    over: Name of the horizontal axis: 'round' or 'epsilon'.
    log: Whether the vertical axis is logarithmic.
    covered: Whether it is made of what was released and of held-out sets alone.
  """

  label: str
  x: Sequence[float]
  y: Sequence[float]
  main: bool = True
  metric: str = ''
  over: str = ''
  log: bool = False
  covered: bool = True


def chart(title: str, xlabel: str, curves: Sequence[tuple[int, str, Curve]], *,
          log: bool = False) -> Element:
  """A figure of lines with a legend.

  `curves` are a colour, from 0, a text of the legend and a curve, of at least one. If
  the vertical axis is logarithmic, its values are positive.
  """
  words = '; '.join(
      f'{label}: from {curve.y[0]:.4g} at {curve.x[0]:.4g} to {curve.y[-1]:.4g} at '
      f'{curve.x[-1]:.4g}' for _, label, curve in curves)
  drawing = element('svg', element('title', title), element('desc', words),
                    viewBox=f'0 0 {_WIDTH} {_HEIGHT}', role='img')
  right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
  across, ticks = _axis([x for *_, curve in curves for x in curve.x], _LEFT, right)
  for place, text in ticks:
    x = f'{place:.1f}'
    drawing.extend((element('line', x1=x, x2=x, y1=_TOP, y2=bottom, class_='grid'),
                    element('text', text, x=x, y=bottom + 15, text_anchor='middle')))
  up, ticks = _axis([y for *_, curve in curves for y in curve.y], bottom, _TOP, log=log,
                    whole=True)
  for place, text in ticks:
    y = f'{place:.1f}'
    drawing.extend((
        element('line', x1=_LEFT, x2=right, y1=y, y2=y, class_='grid'),
        element('text', text, x=_LEFT - 5, y=f'{place + 4:.1f}', text_anchor='end')))
  drawing.append(element('text', xlabel, x=(_LEFT + right) / 2, y=_HEIGHT - 6,
                         text_anchor='middle'))
  legend = element('ul', class_='legend')
  for colour, label, curve in curves:
    style = f's{colour % COLOURS}' + ' dashed' * (colour // COLOURS % 2)
    legend.append(element('li', element('span', class_=f'key {style}'), label))
    points = [(f'{across(x):.1f}', f'{up(y):.1f}') for x, y in zip(curve.x, curve.y)]
    drawing.append(element('polyline', points=' '.join(map(','.join, points)),
                           class_=f'line {style}'))
    if len(points) < _MARKED:
      drawing.extend(element('circle', cx=x, cy=y, r='2.5', class_=f'dot {style}')
                     for x, y in points)
  return element('figure', element('figcaption', element('b', title)), drawing, legend)


def _axis(values: Sequence[float], start: float, end: float, *, log: bool = False,
          whole: bool = False
          ) -> tuple[Callable[[float], float], list[tuple[float, str]]]:
  """An axis between coordinates, with ticks at round values, at its ends if `whole`.

  Returns value -> its coordinate, and coordinate and text of each tick.
  """
  scaled = math.log10 if log else float
  low, high = min(map(scaled, values)), max(map(scaled, values))
  if high - low < 1e-9 * max(abs(low), abs(high)) or low == high:
    low, high = (min(0.0, 2 * low), max(0.0, 2 * high)) if low else (-1.0, 1.0)
  step = 10.0 ** math.floor(math.log10(high - low))
  # At most 5 steps between the values.
  step *= next(factor for factor in (0.2, 0.5, 1.0, 2.0)
               if (high - low) / (step * factor) <= 5)
  if not log and all(float(value).is_integer() for value in values):
    step = max(1.0, step)
  first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
  if whole:
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    low, high = first * step, last * step
  place = lambda scale: start + (scale - low) / (high - low) * (end - start)
  return lambda value: place(scaled(value)), [
      (place(tick), f'{10.0**tick if log else tick:.3g}')
      for tick in (i * step for i in range(first, last + 1))]
