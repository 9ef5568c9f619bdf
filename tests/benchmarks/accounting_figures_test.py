"""Figures of the accountant."""

import pytest

from benchmarks import accounting_figures


@pytest.mark.slow
def test_figures_are_one_png(tmp_path):
  path = tmp_path / 'figures.png'
  accounting_figures.draw(path)
  assert path.read_bytes().startswith(b'\x89PNG') and path.stat().st_size > 10_000
