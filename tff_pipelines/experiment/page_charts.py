"""Line charts as inline SVG, whose colours follow the page's light or dark scheme."""

from collections.abc import Sequence
import dataclasses
import math

from tff_pipelines.experiment.page_elements import element
from tff_pipelines.experiment.page_elements import Element

# Units of the drawing, which is as wide as its box: text stays legible on a phone.
_WIDTH, _HEIGHT = 400, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 10, 10, 40
# Colours of the style sheet; further series repeat them, dashed.
COLOURS = 8
# Series of fewer points have a mark at each.
_MARKED = 25


@dataclasses.dataclass(frozen=True, kw_only=True)
class Series:
  """A line of a chart.

  Attributes:
    label: Its text in the legend.
    colour: Number of its colour, from 0.
    x, y: Finite coordinates of its points, of equal length, at least one.
  """

  label: str
  colour: int
  x: Sequence[float]
  y: Sequence[float]


def chart(title: str, xlabel: str, series: Sequence[Series], *,
          log: bool = False) -> Element:
  """A figure of lines with a legend.

  Args:
    title: Name of the chart, which says what the vertical axis is.
    xlabel: Label of the horizontal axis.
    series: At least one.
    log: Whether the vertical axis is logarithmic; its values are positive then.
  """
  across = _Axis([x for one in series for x in one.x], _LEFT, _WIDTH - _RIGHT)
  up = _Axis([y for one in series for y in one.y], _HEIGHT - _BOTTOM, _TOP, log=log,
             whole=True)
  drawing = element(
      'svg', element('title', title), element('desc', _in_words(series)),
      viewBox=f'0 0 {_WIDTH} {_HEIGHT}', role='img')
  for value, text in across.ticks:
    x = f'{across.place(value):.1f}'
    drawing.append(element('line', x1=x, x2=x, y1=_TOP, y2=_HEIGHT - _BOTTOM,
                           class_='grid'))
    drawing.append(element('text', text, x=x, y=_HEIGHT - _BOTTOM + 15,
                           text_anchor='middle'))
  for value, text in up.ticks:
    y = up.place(value)
    drawing.append(element('line', x1=_LEFT, x2=_WIDTH - _RIGHT, y1=f'{y:.1f}',
                           y2=f'{y:.1f}', class_='grid'))
    drawing.append(element('text', text, x=_LEFT - 5, y=f'{y + 4:.1f}',
                           text_anchor='end'))
  drawing.append(element('text', xlabel, x=(_LEFT + _WIDTH - _RIGHT) / 2,
                         y=_HEIGHT - 6, text_anchor='middle'))
  for one in series:
    points = [(f'{across.place(x):.1f}', f'{up.place(y):.1f}')
              for x, y in zip(one.x, one.y)]
    drawing.append(element('polyline', points=' '.join(map(','.join, points)),
                           class_=f'line {_style(one)}'))
    if len(points) < _MARKED:
      drawing.extend(
          element('circle', cx=x, cy=y, r='2.5', class_=f'dot {_style(one)}')
          for x, y in points)
  legend = [element('li', element('span', class_=f'key {_style(one)}'), one.label)
            for one in series]
  return element('figure', element('figcaption', element('b', title)), drawing,
                 element('ul', *legend, class_='legend'))


def _style(series: Series) -> str:
  return f's{series.colour % COLOURS}' + ' dashed' * (series.colour // COLOURS % 2)


def _in_words(series: Sequence[Series]) -> str:
  return '; '.join(
      f'{one.label}: from {one.y[0]:.4g} at {one.x[0]:.4g} to {one.y[-1]:.4g} at '
      f'{one.x[-1]:.4g}' for one in series)


class _Axis:
  """An axis with ticks at round values.

  Attributes:
    ticks: Value and text of each tick.
  """

  def __init__(self, values: Sequence[float], start: float, end: float, *,
               log: bool = False, whole: bool = False):
    """Initializes the axis.

    Args:
      values: Values that it must hold, at least one.
      start, end: Coordinates of its ends.
      log: Whether it is logarithmic.
      whole: Whether it ends at ticks, instead of at the outer values.
    """
    self._start, self._end, self._log = start, end, log
    places = [math.log10(value) for value in values] if log else values
    low, high = min(places), max(places)
    if high - low < 1e-9 * max(abs(low), abs(high)) or low == high:
      low, high = (min(0.0, 2 * low), max(0.0, 2 * high)) if low else (-1.0, 1.0)
    step = 10.0 ** math.floor(math.log10(high - low))
    # At most 5 steps between the values.
    step *= next(factor for factor in (0.2, 0.5, 1.0, 2.0)
                 if (high - low) / (step * factor) <= 5)
    if not log and all(float(value).is_integer() for value in values):
      step = max(1.0, step)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    self._low, self._high = low, high
    if whole:
      first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
      self._low, self._high = first * step, last * step
    self.ticks = [(10.0**tick if log else tick, f'{10.0**tick if log else tick:.3g}')
                  for tick in (i * step for i in range(first, last + 1))]

  def place(self, value: float) -> float:
    """The coordinate of a value."""
    value = math.log10(value) if self._log else value
    share = (value - self._low) / (self._high - self._low)
    return self._start + share * (self._end - self._start)
