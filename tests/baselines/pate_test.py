"""Tests of PATE's aggregator: what is answered, by which noise."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tests import statistics_lib
from tff_pipelines.baselines import pate

KEY = tf.constant([2018, 2], tf.int64)


def _plan(**changes):
  return pate.PatePlan(**{
      'threshold': 60.0, 'threshold_noise': 1.6, 'stddev': 5.0, 'answers': 10**6,
      'queries': 50, 'classes': 3, **changes})


def test_noise_is_the_discrete_gaussian():
  drawn = pate._noise(7.0, KEY, [40_000, 2]).ravel()
  assert drawn.dtype == np.int64
  statistics_lib.check_mean(drawn, 0, 49.0)
  statistics_lib.check_variance(drawn, 49.0)
  values = np.arange(-40, 41)
  weights = np.exp(-values**2 / 98)
  counts = [np.sum(drawn == v) for v in values]
  assert statistics_lib.fits(counts, weights / weights.sum())


def test_a_query_is_answered_as_often_as_noise_lets_its_winner_pass():
  count = 20_000
  # The winner has 10 votes less than it takes, at a noise of 8.
  votes = np.tile([50, 20, 10], [count, 1])
  answered = np.mean(pate.answer(votes, _plan(), KEY) >= 0)
  # 60 is passed by 60 itself.
  expected = 0.5 * math.erfc(9.5 / 8 / math.sqrt(2))
  error = statistics_lib.Z * math.sqrt(expected / count)
  assert answered == pytest.approx(expected, abs=error + 1e-3)


def test_labels_are_wrong_as_often_as_noise_turns_two_counts():
  count = 20_000
  votes = np.tile([70, 64, 0], [count, 1])
  labels = pate.answer(votes, _plan(threshold=0.0), KEY)
  wrong = np.mean(labels == 1)
  # A tie, one time in 36 that matter, goes to the first.
  expected = 0.5 * math.erfc(6.5 / (5 * math.sqrt(2)) / math.sqrt(2))
  error = statistics_lib.Z * math.sqrt(expected / count)
  assert wrong == pytest.approx(expected, abs=error + 3e-3)
  assert not np.any(labels == 2)


def test_no_more_is_answered_than_was_planned_for():
  votes = np.tile([100, 0], [50, 1])
  labels = pate.answer(votes, _plan(answers=7), KEY)
  np.testing.assert_array_equal(labels, [0] * 7 + [-1] * 43)


def test_what_the_draws_deviate_is_that_of_every_draw():
  # A check and three labels of each of 50 queries, answered or not.
  assert _plan().total_variation == 200 * 2.0**-86


def test_another_key_gives_other_noise_and_the_same_key_the_same():
  votes = np.tile([70, 68, 66], [200, 1])
  one, again, other = (
      pate.answer(votes, _plan(threshold=0.0), key) for key in (KEY, KEY, KEY + 1))
  np.testing.assert_array_equal(one, again)
  assert np.mean(one != other) > 0.2


@pytest.mark.parametrize('changes, message', [
    (dict(stddev=0.0), 'stddev .*0'), (dict(threshold=math.nan), 'threshold .*nan'),
    (dict(answers=0), 'answers .*0'),
    (dict(threshold_noise=-1.0), 'threshold_noise .*-1')])
def test_bad_settings_are_named(changes, message):
  with pytest.raises(ValueError, match=message):
    _plan(**changes)
