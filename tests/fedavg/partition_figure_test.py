"""Tests of the figure of simulated clients' labels."""

import matplotlib.image
import numpy as np
import pytest

from tff_pipelines.experiment import report


def _colours(path):
  """The share of the figure that each colour has."""
  figure = (255 * matplotlib.image.imread(path)[:, :, :3]).astype(int)
  result, counts = np.unique(
      figure.reshape([-1, 3]), axis=0, return_counts=True)
  return {tuple(colour): count / counts.sum() for colour, count in zip(result, counts)}


def test_bars_are_as_long_as_the_counts_are_large(tmp_path):
  path = tmp_path / 'f.png'
  # Three quarters of the examples have label 0, drawn in matplotlib's first colour.
  report.draw_labels(np.array([[3, 0], [6, 3]]), path)
  colours = _colours(path)
  first, second = (colours[tuple(colour)] for colour in (
      [31, 119, 180], [255, 127, 14]))
  assert first > 0.2
  assert first / second == pytest.approx(3.0, rel=0.1)
