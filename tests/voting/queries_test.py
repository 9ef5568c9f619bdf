"""Which public records agents are asked about."""

import numpy as np
import pytest

from tff_pipelines.voting import features


def _blobs():
  rng = np.random.default_rng(0)
  centres = 20 * rng.normal(size=(6, 3))
  return np.repeat(centres, 30, axis=0) + rng.normal(size=(180, 3))


@pytest.mark.parametrize('choice', ['random', 'spread'])
@pytest.mark.parametrize('count', [1, 6, 50, 180])
def test_queries_are_distinct_records(choice, count):
  rows = features.choose_queries(_blobs(), count, choice, 0)
  assert rows.shape == (count,) and len(set(rows)) == count
  assert rows.min() >= 0 and rows.max() < 180
  np.testing.assert_array_equal(rows, np.sort(rows))
  again = features.choose_queries(_blobs(), count, choice, 0)
  np.testing.assert_array_equal(rows, again)


def test_spread_queries_speak_for_every_cluster():
  rows = features.choose_queries(_blobs(), 6, 'spread', 0)
  np.testing.assert_array_equal(rows // 30, np.arange(6))


def test_random_queries_depend_on_the_seed():
  first, other = (features.choose_queries(_blobs(), 20, 'random', seed)
                  for seed in (0, 1))
  assert not np.array_equal(first, other)


@pytest.mark.filterwarnings('ignore:Number of distinct clusters')
def test_equal_records_are_still_as_many_queries_as_asked_for():
  rows = features.choose_queries(np.ones((10, 2)), 4, 'spread', 0)
  assert len(set(rows)) == 4
