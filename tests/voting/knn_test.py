"""Votes of nearest neighbours: exact, stable, as the guarantee for a record needs."""

import numpy as np
import pytest
import tensorflow as tf

from tff_pipelines.voting import features as vote_features

C = 5


def _data(n, d, queries=40, most=None, seed=0):
  rng = np.random.default_rng(seed)
  most = vote_features.largest_feature(d) if most is None else most
  x = rng.integers(-most, most + 1, size=(n, d)).astype(np.int8)
  q = rng.integers(-most, most + 1, size=(queries, d)).astype(np.int8)
  return x, rng.integers(C, size=n).astype(np.int32), q


def _votes(q, x, y, k):
  return vote_features.nearest_votes(k, C)(
      {'queries': tf.constant(q)}, {'x': tf.constant(x), 'y': tf.constant(y)},
      None).numpy()


def _oracle(q, x, y, k):
  """By integers of 64 bits, ties to the earlier record."""
  votes = np.zeros((len(q), C), int)
  for i, query in enumerate(q.astype(np.int64)):
    distances = ((x.astype(np.int64) - query)**2).sum(axis=1)
    for index in np.argsort(distances, kind='stable')[:k]:
      votes[i, y[index]] += 1
  return votes


@pytest.mark.parametrize('n, d, k, most', [
    (60, 800, 7, None), (200, 4096, 30, None), (50, 3, 5, None), (30, 2, 4, 1),
    (9, 16, 9, None), (40, 1, 13, 2)])
def test_votes_are_those_of_exact_distances(n, d, k, most):
  x, y, q = _data(n, d, most=most)
  np.testing.assert_array_equal(_votes(q, x, y, k), _oracle(q, x, y, k))


def test_features_at_their_limit_have_exact_distances():
  assert [vote_features.largest_feature(d) for d in (1, 2**24 - 1, 2**24)] == [127, 1, 0]
  # All products of one sign: the largest sums that occur.
  for d in (1, 129, 800, 1041, 20000):
    most = vote_features.largest_feature(d)
    assert most * most * d < 2**24
    x = np.full((3, d), most, np.int8)
    x[1:, 0] -= 1
    x[2, -1] -= 1
    q = np.full((1, d), most, np.int8)
    y = np.array([0, 1, 2], np.int32)
    for k in (1, 2, 3):
      np.testing.assert_array_equal(_votes(q, x, y, k), _oracle(q, x, y, k))


def test_more_queries_than_a_block_are_answered_alike():
  x, y, q = _data(20, 8, queries=2500)
  whole = _votes(q, x, y, 3)
  parts = np.concatenate([_votes(q[:700], x, y, 3), _votes(q[700:], x, y, 3)])
  np.testing.assert_array_equal(whole, parts)


def test_records_at_the_same_distance_count_in_their_order():
  x = np.zeros((6, 4), np.int8)
  y = np.array([3, 1, 1, 0, 2, 2], np.int32)
  q = np.ones((2, 4), np.int8)
  np.testing.assert_array_equal(_votes(q, x, y, 3), [[0, 2, 0, 1, 0]] * 2)


@pytest.mark.parametrize('d, most', [(64, None), (2, 2)])
def test_one_record_more_moves_one_vote_a_query_whatever_its_index(d, most):
  # Few values, so that ties abound, in the second case.
  k = 5
  x, y, q = _data(48, d, most=most, queries=300)
  before = _votes(q, x, y, k)
  extra, label = q[0:1], np.array([4], np.int32)
  moved = 0
  for index in (0, 1, 17, 47, 48):
    after = _votes(q, np.insert(x, index, extra, axis=0), np.insert(y, index, label), k)
    difference = after - before
    assert np.abs(difference).sum(axis=1).max() <= 2
    assert difference.max() <= 1 and difference.min() >= -1
    moved += (difference != 0).any(axis=1).sum()
  assert moved > 0


def test_a_replaced_record_moves_one_vote_a_query():
  k = 5
  x, y, q = _data(48, 32, queries=300)
  other, labels = x.copy(), y.copy()
  other[20], labels[20] = q[0], (y[20] + 1) % C
  difference = _votes(q, other, labels, k) - _votes(q, x, y, k)
  assert np.abs(difference).sum(axis=1).max() == 2


def test_an_agent_with_fewer_records_has_as_many_votes():
  x, y, q = _data(3, 4)
  votes = _votes(q, x, y, 8)
  np.testing.assert_array_equal(votes.sum(axis=1), 3)
  none = _votes(q, x[:0], y[:0], 8)
  np.testing.assert_array_equal(none, 0)
