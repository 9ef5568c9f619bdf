"""The benchmark of FedMD compares like with like."""

import numpy as np
import pytest

from benchmarks import fedmd
from tasks.models import fedmd as fedmd_models


@pytest.mark.parametrize('image', [(32, 32, 3), (28, 28, 1), (8, 8, 1)])
@pytest.mark.parametrize('name', fedmd.ARCHITECTURES)
def test_keras_models_are_the_same_networks(name, image):
  ours = fedmd_models.build(name, image, fedmd.CLASSES)
  theirs = fedmd.keras_model(name, image)
  weights = ours.initial_weights(0)
  parts, start = [], 0
  for shape in (w.shape for w in theirs.get_weights()):
    end = start + int(np.prod(shape))
    parts.append(weights[start:end].reshape(shape))
    start = end
  assert start == ours.size
  theirs.set_weights(parts)
  images = np.random.default_rng(1).integers(0, 256, (2, *image), dtype=np.uint8)
  np.testing.assert_allclose(
      theirs(images).numpy(), ours.logits(weights, images).numpy(), atol=1e-4)


def test_rounds_of_both_have_the_same_work():
  setting, = fedmd.QUICK_SETTINGS
  data = fedmd.Data(setting)
  assert [len(x) for x, _ in data.private] == [setting.records] * setting.parties
  assert data.subset().shape == (setting.public, *setting.image)
  # New ones for every round.
  assert np.any(data.subset() != data.subset())
