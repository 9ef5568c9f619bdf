"""Figures are drawn of all finished runs."""

import matplotlib.image
import pytest

from benchmarks import fedmd_figures


def _result(run, parties):
  case, seed = run.rsplit('-', 1)
  return dict(run=run, case=case, seed=int(seed), accuracy=0.7,
              records=[300] * parties, history=[[0.5] * parties, [0.7] * parties])


@pytest.mark.slow
def test_every_figure_is_an_image(tmp_path, monkeypatch):
  monkeypatch.setattr(fedmd_figures, 'PARTIES', (10,))  # Noise takes seconds.
  results = {run: _result(run, parties) for run, parties in (
      ('cifar-k16-softmax-10-0', 10), ('cifar-k16-softmax-5-0', 5),
      ('cifar-kall-0', 10))}
  fedmd_figures.draw(tmp_path, results)
  for name in fedmd_figures.FIGURES.values():
    image = matplotlib.image.imread(tmp_path / name)
    assert min(image.shape[:2]) > 250 and image.std() > 0.05
    # They are checked in.
    assert (tmp_path / name).stat().st_size < 150_000


def test_figure_of_rounds_needs_finished_runs(tmp_path, capsys):
  fedmd_figures.draw_rounds(tmp_path / 'x.png', {})
  assert not (tmp_path / 'x.png').exists()
  assert 'there are none' in capsys.readouterr().out
