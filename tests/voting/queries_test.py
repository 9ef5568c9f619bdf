"""Which public records agents are asked about."""

import numpy as np
import pytest

from tff_pipelines.voting import queries as voting_queries


def _blobs():
  rng = np.random.default_rng(0)
  centres = 20 * rng.normal(size=(6, 3))
  return np.repeat(centres, 30, axis=0) + rng.normal(size=(180, 3))


@pytest.mark.parametrize('choice', voting_queries.CHOICES)
@pytest.mark.parametrize('count', [1, 6, 50, 180])
def test_queries_are_distinct_records(choice, count):
  found = voting_queries.choose(_blobs(), count, choice, 0)
  assert found.shape == (count,) and len(set(found)) == count
  assert found.min() >= 0 and found.max() < 180
  np.testing.assert_array_equal(found, np.sort(found))
  again = voting_queries.choose(_blobs(), count, choice, 0)
  np.testing.assert_array_equal(found, again)


def test_spread_queries_speak_for_every_cluster():
  found = voting_queries.choose(_blobs(), 6, 'spread', 0)
  np.testing.assert_array_equal(found // 30, np.arange(6))


def test_random_queries_depend_on_the_seed():
  first, other = (voting_queries.choose(_blobs(), 20, 'random', seed)
                  for seed in (0, 1))
  assert not np.array_equal(first, other)


@pytest.mark.filterwarnings('ignore:Number of distinct clusters')
def test_equal_records_are_still_as_many_queries_as_asked_for():
  found = voting_queries.choose(np.ones((10, 2)), 4, 'spread', 0)
  assert len(set(found)) == 4


@pytest.mark.parametrize('count, choice, message', [
    (0, 'random', 'queries must be from 1 to the 180 public records, found 0'),
    (181, 'spread', 'queries must be from 1 to the 180 public records, found 181'),
    (5, 'best', "query_choice must be one of random, spread, found 'best'")])
def test_what_cannot_be_asked_is_refused(count, choice, message):
  with pytest.raises(ValueError, match=message):
    voting_queries.choose(_blobs(), count, choice, 0)
