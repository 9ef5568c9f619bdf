"""Tests of tff_pipelines.ldp.process: teachers, asking, choosing."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from aggregators import local_dp
from tests import statistics_lib
from tff_pipelines.ldp import process as algorithm

RNG = np.random.default_rng(20220)
_START = RNG.bit_generator.state
D, K = 6, 4
# Next to no noise, on a fine grid.
FAINT = local_dp.Gaussian(noise_multiplier=1e-3, dimension=K)


@pytest.fixture(autouse=True)
def _data_do_not_depend_on_the_tests_before():
  RNG.bit_generator.state = _START


def _features(count, dimension=D):
  return RNG.normal(size=[count, dimension]).astype(np.float32)


@pytest.mark.parametrize('count', [3, 40])  # Fewer and more than coordinates.
def test_ridge_minimises_the_penalised_error_and_a_path_is_ridge(count):
  x, targets = _features(count), RNG.normal(size=[count, K])
  weights = algorithm.ridge(x, targets, 0.5).astype(np.float64)
  gradient = x.T.astype(np.float64) @ (x @ weights + 1 / K - targets) + 0.5 * weights
  assert np.abs(gradient).max() < 1e-4
  strengths = (0.1, 1.0, 7.0)
  for strength, weights in zip(strengths, algorithm.ridge_path(x, targets, strengths)):
    np.testing.assert_allclose(weights, algorithm.ridge(x, targets, strength), atol=1e-5)


def test_a_teacher_knows_its_records_and_gives_soft_labels_of_them():
  labels = np.arange(40) % K
  x = np.eye(D, dtype=np.float32)[labels] + 0.1 * _features(40)
  weights = algorithm.ridge(x, np.eye(K)[labels], 0.01)
  scores = algorithm.scores(x, weights)
  np.testing.assert_array_equal(scores.argmax(axis=1), labels)
  soft = algorithm.soft_labels(tf.constant(x), tf.constant(weights), 0.2).numpy()
  np.testing.assert_allclose(soft.sum(axis=1), 1, rtol=1e-5)
  np.testing.assert_array_equal(soft.argmax(axis=1), labels)
  # The offset of the scores is the same for all classes.
  expected = np.exp(scores / 0.2)
  np.testing.assert_allclose(
      soft, expected / expected.sum(axis=1, keepdims=True), rtol=1e-3)


@pytest.mark.parametrize('groups, size', [(5, 1), (4, 3), (1, 6)])
def test_owners_alternate_and_none_answers_more_than_one_query_ahead(groups, size):
  counts = np.zeros(groups * size, int)
  for query in range(4 * groups + 2):
    answering = list(algorithm.owners_of(query, groups=groups, clients_per_query=size))
    assert len(set(answering)) == size
    counts[answering] += 1
    assert counts.max() == -(-(query + 1) // groups)
    assert counts.max() - counts.min() <= 1


def test_margins_are_equation_5_and_order_by_the_largest_probability():
  p = RNG.dirichlet(np.ones(K), size=30)
  expected = [sum(row.max() - x for x in row) / (K - 1) for row in p]
  np.testing.assert_allclose(algorithm.margins(p), expected)
  np.testing.assert_allclose(algorithm.margins(p), (K * p.max(axis=1) - 1) / (K - 1))


def test_active_choice_takes_the_least_sure_and_random_choice_any():
  candidates = np.arange(100, 130)
  p = RNG.dirichlet(np.ones(K), size=30)
  active = algorithm.choose_queries(
      candidates, 5, sampling='active', probabilities=p, random=np.random.default_rng(0))
  assert set(active) == set(candidates[np.argsort(p.max(axis=1))[:5]])
  one, again, other = (algorithm.choose_queries(
      candidates, 5, sampling='random', probabilities=p,
      random=np.random.default_rng(seed)) for seed in (0, 0, 1))
  np.testing.assert_array_equal(one, again)
  assert set(one) != set(other) and len(set(one)) == 5
  assert set(one) <= set(candidates)
  # Without a student there is nothing to go by.
  first = algorithm.choose_queries(
      candidates, 5, sampling='active', probabilities=None,
      random=np.random.default_rng(0))
  np.testing.assert_array_equal(first, one)


def _owner(weights, queries, **more):
  return collections.OrderedDict(
      weights=weights, queries=np.array(queries, np.int32), **more)


def _asking(mechanism, num_queries, **arguments):
  return algorithm.build_asking(
      mechanism, num_queries=num_queries, dimension=D, temperature=0.3, **arguments)


def test_answers_are_means_of_the_soft_labels_of_those_who_were_asked(in_process):
  x, weights = _features(3), [0.3 * _features(D, K) for _ in range(2)]
  asked = [[0, 2], [2]]
  output = _asking(FAINT, 3)(x, [_owner(w, rows) for w, rows in zip(weights, asked)])
  soft = [algorithm.soft_labels(tf.constant(x), tf.constant(w), 0.3).numpy()
          for w in weights]
  np.testing.assert_array_equal(output['answers'], [1, 0, 2])
  # Six standard deviations of the noise, which is of coordinates in [-1, 1].
  close = dict(atol=6 * FAINT.worst_variance**0.5 / 2)
  np.testing.assert_allclose(output['means'][0], soft[0][0], **close)
  np.testing.assert_allclose(output['means'][2], (soft[0][2] + soft[1][2]) / 2, **close)


@pytest.mark.parametrize('name', ['krr', 'subset', 'piecewise', 'duchi', 'laplace'])
def test_noisy_answers_are_unbiased_and_their_variance_is_what_students_are_told(
    in_process, name):
  mechanism = local_dp.build(
      name, dimension=K, epsilon=1.0 if name in ('krr', 'subset') else 4.0, simplex=True)
  queries, owners = 1500, 2
  x = np.tile(_features(1), [queries, 1])
  weights = 0.3 * _features(D, K)
  output = _asking(mechanism, queries, seeded=True)(x, [
      _owner(weights, range(queries), key=np.array([7, i], np.int64))
      for i in range(owners)])
  soft = algorithm.soft_labels(tf.constant(x[:1]), tf.constant(weights), 0.3).numpy()[0]
  if name in ('krr', 'subset'):  # They answer with the teacher's label.
    soft = np.eye(K)[soft.argmax()]
  errors = np.asarray(output['means'], np.float64) - soft
  for column, p in zip(errors.T, soft):
    variance = mechanism.variance(2 * float(p) - 1) / 4 / owners
    assert variance <= mechanism.worst_variance / 4 / owners * (1 + 1e-9)
    statistics_lib.check_mean(column, 0, variance)
    assert 0.75 < np.mean(column**2) / variance < 1.33


def test_every_call_and_every_owner_has_its_own_noise(in_process):
  mechanism = local_dp.Laplace(epsilon=4.0, dimension=K)
  x, weights = _features(8), _features(D, K)
  ask = _asking(mechanism, 8)
  one, other = (ask(x, [_owner(weights, range(8))])['means'] for _ in range(2))
  assert np.mean(one != other) > 0.5
  seeded = _asking(mechanism, 8, seeded=True)

  def answers(key):
    return seeded(x, [_owner(weights, range(8), key=np.array(key, np.int64))])['means']

  np.testing.assert_array_equal(answers([1, 2]), answers([1, 2]))
  assert np.mean(answers([1, 2]) != answers([1, 3])) > 0.5


def test_nothing_leaves_an_owner_but_what_the_mechanism_gave(in_process):
  # The output of Duchi's mechanism is +-B: a mean of two owners has three values,
  # whatever their teachers are.
  mechanism = local_dp.Duchi(epsilon=1.0, dimension=K)
  x = _features(50)
  output = _asking(mechanism, 50)(
      x, [_owner(_features(D, K), range(50)) for _ in range(2)])
  values = np.unique(np.round(2 * np.asarray(output['means']) - 1, 3))
  np.testing.assert_allclose(values, [-mechanism.bound, 0, mechanism.bound], atol=2e-3)
