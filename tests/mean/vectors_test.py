"""The vectors whose mean is estimated."""

import math

import numpy as np
import pytest

from tasks import mean_estimation as vectors_lib
from tests import statistics_lib


@pytest.mark.parametrize('vectors', vectors_lib.VECTORS)
def test_vectors_have_the_norm_and_follow_from_the_seed(vectors):
  def build(**changes):
    return vectors_lib.clients(**{**dict(
        num_clients=50, dimension=20, radius=3.0, seed=7, vectors=vectors), **changes})

  built = build()
  assert built.shape == (50, 20) and built.dtype == np.float32
  np.testing.assert_allclose(np.linalg.norm(built, axis=1), 3.0, rtol=1e-6)
  np.testing.assert_array_equal(built, build())
  assert np.any(built != build(repeat=1))
  assert np.any(built != build(seed=8))
  assert (len(np.unique(built, axis=0)) == 1) == (vectors == 'identical')


def test_vectors_are_uniform_on_the_sphere():
  vectors = vectors_lib.clients(num_clients=40_000, dimension=4, radius=2.0, seed=0)
  # A coordinate has mean 0 and variance radius^2 / d, and E[x^4] that of the
  # sphere, 3 radius^4 / (d (d + 2)).
  statistics_lib.check_mean(vectors[:, 1], 0.0, 1.0)
  assert np.mean(vectors[:, 2]**2) == pytest.approx(1.0, abs=0.03)
  assert np.mean(vectors[:, 3]**4) == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize('changes, message', [
    (dict(num_clients=0), 'n must'), (dict(dimension=True), 'd must'),
    (dict(radius=math.inf), 'radius'), (dict(seed=-1), 'data_seed'),
    (dict(vectors='cube'), 'vectors must be one of')])
def test_vectors_refuse(changes, message):
  with pytest.raises(ValueError, match=message):
    vectors_lib.clients(**{**dict(
        num_clients=2, dimension=2, radius=1.0, seed=0), **changes})
