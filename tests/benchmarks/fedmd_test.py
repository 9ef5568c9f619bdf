"""The benchmark of FedMD compares like with like."""

import numpy as np
import pytest

from benchmarks import fedmd
from benchmarks import measure
from tasks.models import fedmd as fedmd_models


@pytest.mark.parametrize('image', [(32, 32, 3), (28, 28, 1), (8, 8, 1)])
@pytest.mark.parametrize('name', fedmd.ARCHITECTURES)
def test_keras_models_are_the_same_networks(name, image):
  ours = fedmd_models.build(name, image, fedmd.CLASSES)
  theirs = fedmd.keras_model(name, image)
  weights = ours.initial_weights(0)
  shapes = [w.shape for w in theirs.get_weights()]
  ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
  assert ends[-1] == ours.size
  theirs.set_weights([part.reshape(shape) for part, shape in zip(
      np.split(weights, ends[:-1]), shapes)])
  images = np.random.default_rng(1).integers(0, 256, (2, *image), dtype=np.uint8)
  np.testing.assert_allclose(
      theirs(images).numpy(), ours.logits(weights, images).numpy(), atol=1e-4)


def test_rounds_of_both_have_the_same_work():
  setting, = fedmd.QUICK_SETTINGS
  data = fedmd.Data(setting)
  assert [len(x) for x, _ in data.private] == [setting.records] * setting.parties
  assert data.subset().shape == (setting.public, *setting.image)
  # Each round has new ones.
  assert np.any(data.subset() != data.subset())


@pytest.mark.slow
def test_quick_run_measures_both(tmp_path, shared_context, capsys):
  del shared_context
  path = str(tmp_path / 'rows.json')
  fedmd.main(['--quick', f'--json={path}'])
  rows = measure.read(path)
  assert [row.unit for row in rows] == ['s/round', 'cpu-s/round']
  assert all(row.ours > 0 and row.peer > 0 for row in rows)
  assert capsys.readouterr().out.count('FedMD, tiny') == 2
  fedmd.main(['--quick', '--only=CIFAR'])
  assert 'FedMD' not in capsys.readouterr().out
