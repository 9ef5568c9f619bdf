"""Tests of aggregators.voting_params."""

import math

import pytest
from scipy import stats

from aggregators.voting_params import VotingParams

_params = VotingParams(queries=10, classes=10, agents=100, noise_stddev=25.0).replace


def test_noise_is_in_counts_and_grows_for_agents_that_are_not_counted_on():
  assert _params().noise_variance == 625
  knn = _params(votes=30, noise_stddev=15.0, min_honest_fraction=0.5)
  assert knn.noise_variance == 450**2
  assert knn.total_noise_variance == 2 * 450**2
  # A server that adds the noise misses none of it.
  assert knn.replace(noise='gaussian_central').total_noise_variance == 450**2


def test_threshold_is_in_agents():
  assert _params().threshold_counts is None
  assert _params(votes=30, threshold=60.5).threshold_counts == 60.5 * 30
  assert _params(attributes=4).threshold_counts == 50
  assert _params(attributes=4, threshold=20.0).threshold_counts == 20


@pytest.mark.parametrize('changes', [
    {}, {'agents': 1, 'noise_stddev': 0.0}, {'noise_stddev': 0.3, 'agents': 3},
    {'votes': 50, 'noise_stddev': 200.0}, {'max_weight': 9, 'agents': 2000},
    {'noise_stddev': 3.0, 'min_honest_fraction': 0.1}])
def test_bits_hold_all_votes_and_the_noise(changes):
  params = _params(**changes)
  room = params.modulus / 2 - params.agents * params.most_counts
  variance = params.total_noise_variance
  if variance:
    assert stats.skellam.sf(room - 1, variance / 2, variance / 2) < 1e-9
  # And are not generous: uplink is paid for each.
  assert params.modulus / 4 < params.agents * params.most_counts + 64 + (
      12 * math.sqrt(variance))


def test_deviation_of_noise_from_tables_is_that_of_all_its_draws():
  params = _params()
  assert params.has_table
  assert params.sampler_deviation == 100 * 10 * 10 * 2.0**-86
  assert 'exact tables' in params.sampler_in_words
  # Shares are sized for the agents that are counted on.
  assert _params(min_honest_fraction=0.5).share_variance == pytest.approx(12.5)
  for changes in ({'noise': 'gaussian'}, {'noise': 'gaussian_central'},
                  {'agents': 1, 'noise_stddev': 3e4}):
    other = _params(**changes)
    assert other.sampler_deviation is None
    assert 'no bound on its deviation is proved' in other.sampler_in_words


def test_uplink_is_queries_times_classes_times_bits():
  params = _params(queries=500)
  assert params.bits == 10
  assert params.uplink_bytes == 500 * 10 * 10 / 8
  assert params.replace(noise='gaussian').uplink_bytes == 500 * 10 * 4


@pytest.mark.parametrize('changes, message', [
    ({'queries': 0}, 'queries must be at least 1, found 0'),
    ({'classes': 1}, 'classes must be at least 2, found 1'),
    ({'agents': 0}, 'agents must be at least 1, found 0'),
    ({'agents': 2.0}, 'agents must be an integer, found 2.0'),
    ({'noise_stddev': -1.0}, 'noise_stddev must not be negative, found -1.0'),
    ({'noise_stddev': math.nan}, 'noise_stddev must be a finite number, found nan'),
    ({'votes': 0}, 'votes must be at least 1, found 0'),
    ({'max_weight': 1.5}, 'max_weight must be an integer, found 1.5'),
    ({'noise': 'laplace'}, "noise must be one of .*, found 'laplace'"),
    ({'threshold': math.inf}, 'threshold must be a finite number, found inf'),
    ({'attributes': 11}, 'attributes must be at most 10, found 11'),
    ({'attributes': 4, 'votes': 3}, 'votes must be 1 where .* found 3'),
    ({'min_honest_fraction': 0}, r'min_honest_fraction must be in \(0, 1\]'),
    ({'assumed_colluders': 1}, 'every sum would be suppressed'),
    ({'min_honest_fraction': 0.9, 'assumed_colluders': 11}, 'be suppressed'),
    ({'votes': 10**6, 'noise_stddev': 1e3}, 'need sums of 35 bits')])
def test_impossible_votes_are_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    _params(**changes)
