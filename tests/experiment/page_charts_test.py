"""Charts: every point is inside, on flat lines and logarithmic axes too."""

import math

import hypothesis
from hypothesis import strategies
import pytest

from tff_pipelines.experiment import page_elements as charts

_NUMBERS = strategies.floats(
    min_value=-1e9, max_value=1e9, allow_nan=False, allow_subnormal=False)
_POSITIVE = strategies.floats(min_value=1e-9, max_value=1e9)


def _chart(*lines, log=False):
  return charts.chart('loss over rounds', 'rounds', [
      (i, f'run {i}', charts.Curve(label='', x=x, y=y))
      for i, (x, y) in enumerate(lines)], log=log)


def _points(figure):
  return [tuple(map(float, point.split(',')))
          for line in figure.iter('polyline') for point in line.get('points').split()]


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(
    points=strategies.lists(strategies.tuples(_NUMBERS, _NUMBERS), min_size=1),
    heights=strategies.lists(_POSITIVE, min_size=1))
def test_points_lie_inside_between_a_few_ticks(points, heights):
  for figure in (_chart(tuple(zip(*points))),
                 _chart((range(len(heights)), heights), log=True)):
    assert len(_points(figure)) == len(points) or len(_points(figure)) == len(heights)
    assert all(52 <= x <= 390 and 10 <= y <= 220 for x, y in _points(figure))
    across = [line for line in figure.iter('line') if line.get('x1') == line.get('x2')]
    up = [line for line in figure.iter('line') if line.get('y1') == line.get('y2')]
    assert len(across) <= 6 and 2 <= len(up) <= 7


def test_logarithmic_axis_has_powers_of_ten():
  figure = _chart(([1, 2, 3], [1e-4, 1e-3, 1e-1]), log=True)
  texts = [text.text for text in figure.iter('text')]
  assert {'0.0001', '0.001', '0.01', '0.1'} <= set(texts)
  heights = [y for _, y in _points(figure)]
  assert heights[0] - heights[1] == pytest.approx(
      (heights[1] - heights[2]) / 2, abs=0.2)


def test_figure_is_described_in_words():
  figure = _chart(([1, 50], [2.5, 0.5]))
  assert figure.find('svg/title').text == 'loss over rounds'
  assert figure.find('svg/desc').text == 'run 0: from 2.5 at 1 to 0.5 at 50'


def test_equal_values_make_a_flat_line():
  heights = {y for _, y in _points(_chart(([1, 2, 3], [4.0, 4.0, 4.0])))}
  assert len(heights) == 1 and math.isfinite(heights.pop())
