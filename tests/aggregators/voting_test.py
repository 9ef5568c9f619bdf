"""Tests of aggregators.voting."""

import collections
import itertools

import numpy as np
import pytest
from scipy import stats
import tensorflow as tf
import tensorflow_federated as tff

from aggregators import keys, modular_sum, skellam, voting
from aggregators.voting import VotingFactory
from aggregators.voting_params import NO_LABEL, VotingParams
from tests import statistics_lib

Q, C = 300, 10
NOISES = ('skellam', 'gaussian', 'gaussian_central')
_params = VotingParams(queries=Q, classes=C, agents=5, noise_stddev=0.0).replace


def _type(params):
  return tff.TensorType(np.int32, [params.queries, params.classes])


def _one_hot(labels, classes=C):
  return np.eye(classes, dtype=np.int32)[np.asarray(labels)]


def _at_server(value_type):
  return tff.FederatedType(value_type, tff.SERVER)


def _key(*numbers):
  return tf.constant([7 * numbers[0] + 1, numbers[-1]], tf.int64)


def _run(params, votes):
  process = VotingFactory(params).create(_type(params))
  return process.next(process.initialize(), votes)


def _noisy_sum(params, votes, seed=0):
  """The sum of the ballots as secure aggregation opens it, int64 or float32."""
  ballots = tf.function(lambda v, k: voting.cast(v, k, params), autograph=False)
  total = sum(np.asarray(ballots(tf.constant(v), _key(seed, i)))
              for i, v in enumerate(votes))
  if not params.is_integer:
    return total
  wrapped = modular_sum.wrap(tf.constant(total), params.bits)
  return modular_sum.unwrap(wrapped, params.bits).numpy()


@pytest.mark.parametrize('noise', NOISES)
def test_without_noise_the_majority_wins(anywhere, noise):
  params = _params(noise=noise)
  rng = np.random.default_rng(0)
  truth = rng.integers(C, size=Q)
  votes = [_one_hot(truth) for _ in range(3)]
  votes += [_one_hot(rng.integers(C, size=Q)) for _ in range(2)]
  np.testing.assert_array_equal(_run(params, votes).result, truth)


@pytest.mark.parametrize('agents', [1, 7, 100])
def test_noise_of_the_sum_is_sigma_whatever_the_number_of_agents(agents):
  rng = np.random.default_rng(agents)
  votes = [_one_hot(rng.integers(C, size=Q)) for _ in range(agents)]
  for noise in ('skellam', 'gaussian'):
    params = _params(agents=agents, noise_stddev=25.0, noise=noise)
    drawn = _noisy_sum(params, votes, seed=agents) - sum(votes)
    statistics_lib.check_variance(drawn, 625.0)
    statistics_lib.check_mean(drawn, 0.0, 625.0)


def test_honest_agents_alone_carry_the_noise_of_the_guarantee():
  params = _params(agents=10, noise_stddev=12.0, min_honest_fraction=0.6)
  honest = _noisy_sum(params, [np.zeros((Q, C), np.int32)] * 6)
  statistics_lib.check_variance(honest, 144.0)


def test_noise_of_agents_is_skellam_and_not_only_of_its_variance():
  # One of 100 shares of sigma = 10: variance 1.
  params = _params(queries=20000, agents=100, noise_stddev=10.0)
  ballot = voting.cast(tf.zeros([20000, C], tf.int32), _key(3), params)
  drawn = modular_sum.unwrap(ballot, params.bits).numpy().ravel()
  values = np.arange(-8, 9)
  counts = [(drawn == v).sum() for v in values]
  assert sum(counts) == drawn.size
  assert statistics_lib.fits(counts, stats.skellam.pmf(values, 0.5, 0.5))
  assert not statistics_lib.fits(counts, stats.skellam.pmf(values, 0.55, 0.55))


@pytest.mark.parametrize('stddev, has_table', [(10.0, True), (3e4, False)])
def test_shares_too_large_for_a_table_have_their_variance_too(stddev, has_table):
  params = _params(queries=2000, agents=1, noise_stddev=stddev)
  assert params.has_table == has_table
  ballot = voting.cast(tf.zeros([2000, C], tf.int32), _key(4), params)
  drawn = modular_sum.unwrap(ballot, params.bits).numpy()
  statistics_lib.check_variance(drawn, stddev**2)
  # From a table or not: the Poisson sampler has other draws under the same key.
  noise_key = keys.derive(_key(4), voting._NOISE)  # pylint: disable=protected-access
  poisson = skellam.sample(noise_key, [2000, C], params.share_variance)
  assert np.array_equal(drawn, poisson) == (not has_table)


@pytest.mark.parametrize('noise', NOISES)
def test_labels_follow_the_distribution_of_the_noisy_winner(in_process, noise):
  queries, gap, sigma = 20000, 3, 4.0
  params = _params(queries=queries, classes=2, agents=5, noise_stddev=sigma, noise=noise)
  votes = [_one_hot([0] * queries, 2)] * 4 + [_one_hot([1] * queries, 2)]
  labels = np.asarray(_run(params, votes).result)
  if noise == 'skellam':  # Ties are broken evenly.
    dist = stats.skellam(sigma**2, sigma**2)
    wrong = dist.sf(gap) + dist.pmf(gap) / 2
  else:
    wrong = stats.norm.sf(gap / (sigma * 2**0.5))
  statistics_lib.check_mean(labels, wrong, wrong * (1 - wrong))
  # Power: a third more noise would have been seen.
  other = stats.norm.sf(gap / (1.33 * sigma * 2**0.5))
  with pytest.raises(AssertionError):
    statistics_lib.check_mean(labels, other, other * (1 - other))


def test_ties_are_broken_evenly_among_the_tied_and_no_others(in_process):
  queries = 20000
  params = _params(queries=queries, classes=5, agents=3)
  votes = [_one_hot([label] * queries, 5) for label in (4, 1, 2)]
  labels = np.asarray(_run(params, votes).result)
  assert set(labels) == {1, 2, 4}
  for label in (1, 2, 4):
    statistics_lib.check_mean(labels == label, 1 / 3, 2 / 9)


def test_an_abstention_counts_for_no_label(in_process):
  params = _params(agents=3, threshold=1.0)
  votes = np.zeros((Q, C), np.int32)
  votes[:100, 4] = 1
  both = np.zeros((Q, C), np.int32)
  both[:50, 4] = 1
  labels = _run(params, [votes, both, np.zeros((Q, C), np.int32)]).result
  # More than one agent must agree.
  np.testing.assert_array_equal(labels, [4] * 50 + [NO_LABEL] * (Q - 50))


@pytest.mark.parametrize('votes, threshold, answered', [
    (1, 2.9, True), (1, 3.0, False), (20, 2.91, False), (20, 2.89, True)])
def test_a_query_is_answered_if_the_winner_exceeds_the_threshold(
    in_process, votes, threshold, answered):
  params = _params(agents=3, votes=votes, threshold=threshold)
  one = votes * _one_hot([2] * Q)
  if votes > 1:
    one[:, 2] -= 1
    one[:, 3] += 1
  labels = _run(params, [one, one, votes * _one_hot([2] * Q)]).result
  np.testing.assert_array_equal(labels, [2 if answered else NO_LABEL] * Q)


def test_a_threshold_refers_to_the_noisy_count(in_process):
  queries = 4000
  params = _params(queries=queries, classes=2, agents=1, noise_stddev=30.0,
                   threshold=40.0)
  labels = np.asarray(_run(params, [np.zeros((queries, 2), np.int32)]).result)
  missed = stats.skellam(450, 450).cdf(40)**2
  statistics_lib.check_mean(labels == NO_LABEL, missed, missed * (1 - missed))


def test_attributes_are_released_independently(in_process):
  params = _params(agents=5, attributes=4)
  votes = np.zeros((5, Q, C), np.int32)
  votes[:3, :, 1] = votes[:2, :, 2] = votes[:5, :, 7] = 1
  labels = np.asarray(_run(params, list(votes)).result)
  np.testing.assert_array_equal(labels, np.tile(_one_hot(1) + _one_hot(7), (Q, 1)))


def test_of_too_many_attributes_a_random_tau_are_kept():
  queries = 4000
  params = _params(queries=queries, attributes=3, agents=1)
  named = np.zeros((queries, C), np.int32)
  named[:, [0, 2, 5, 6, 9]] = 1
  kept = voting.cast(tf.constant(named), _key(5), params).numpy()
  assert (kept.sum(axis=1) == 3).all() and (kept <= named).all()
  for label in (0, 2, 5, 6, 9):
    statistics_lib.check_mean(kept[:, label], 0.6, 0.24)
  # All combinations occur, and another vote keeps others.
  assert len({tuple(row) for row in kept}) == 10
  again = voting.cast(tf.constant(named), _key(6), params).numpy()
  assert 0.7 < np.mean((kept != again).any(axis=1)) < 1


@pytest.mark.parametrize('weight, votes, other, row, is_counted', [
    *((1, 1, [0, 0, 1], row, False) for row in (
        [2, 0, 0], [1, 1, 0], [0, -1, 1], [-1, 0, 0], [2**31 - 1, 2, 2**31 - 1],
        [-2**31, 1, 0])),
    (4, 2, [4, 0, 4], [8, 0, 0], True), (4, 2, [4, 0, 4], [8, 1, 0], False)])
def test_votes_beyond_the_sensitivity_count_as_abstentions(
    weight, votes, other, row, is_counted):
  params = _params(queries=2, classes=3, max_weight=weight, votes=votes)
  np.testing.assert_array_equal(voting.cast(tf.constant([row, other]), _key(1), params),
      [row if is_counted else [0, 0, 0], other])


@pytest.mark.parametrize('num_selected, num_reporting, fraction, colluders, suppressed', [
    (5, 5, 1.0, 0, False), (5, 4, 1.0, 0, True), (10, 9, 0.9, 0, False),
    (10, 8, 0.9, 0, True), (10, 9, 0.8, 1, False), (10, 9, 0.9, 1, True),
    (9, 3, 1 / 3, 0, False)])
def test_a_vote_of_too_few_agents_is_suppressed(
    in_process, num_selected, num_reporting, fraction, colluders, suppressed):
  params = _params(agents=num_selected, min_honest_fraction=fraction,
                   assumed_colluders=colluders)
  output = _run(params, [_one_hot([3] * Q)] * num_reporting)
  assert bool(output.measurements['suppressed']) == suppressed
  np.testing.assert_array_equal(output.result, [NO_LABEL if suppressed else 3] * Q)


def test_only_labels_leave_the_server(in_process):
  for params in (_params(), _params(attributes=2), _params(noise='gaussian'),
                 _params(noise='gaussian_central', threshold=3.0)):
    process = VotingFactory(params).create(_type(params))
    types = process.next.type_signature.result
    shape = [Q, C] if params.attributes else [Q]
    assert types.result == _at_server(tff.TensorType(np.int32, shape))
    # Nor is there anything of the votes in what is measured or kept.
    assert types.measurements == _at_server(
        tff.StructWithPythonType([('suppressed', np.bool_)], collections.OrderedDict))
    assert types.state == _at_server(tff.StructWithPythonType(
            [('server_key', tff.TensorType(np.int64, [2]))], collections.OrderedDict))
    state = process.next(process.initialize(), [_one_hot([3] * Q)] * params.agents).state
    assert not np.any(state['server_key'])


def test_sums_are_secure_for_integer_noise():
  params = _params()
  text = VotingFactory(params).create(_type(params)).next.to_building_block(
      ).compact_representation()
  assert text.count('federated_secure_modular_sum') == 1
  # The one plain sum counts the agents.
  assert text.count('federated_sum(') == 1


def test_unseeded_votes_differ(in_process):
  params = _params(noise_stddev=30.0)
  votes = [np.zeros((Q, C), np.int32)] * 5
  first, again = (np.asarray(_run(params, votes).result) for _ in range(2))
  assert np.mean(first != again) > 0.8


@pytest.mark.parametrize('value_type', [
    tff.TensorType(np.float32, [Q, C]), tff.TensorType(np.int32, [Q]),
    tff.TensorType(np.int32, [Q, C + 1]), tff.TensorType(np.int64, [Q, C]),
    # Weighted votes.
    tff.StructType([('value', tff.TensorType(np.int32, [Q, C])),
                    ('weight', tff.TensorType(np.float32))])])
def test_values_that_are_not_unweighted_votes_are_refused(value_type):
  with pytest.raises(TypeError, match='votes must be .*int32'):
    VotingFactory(_params()).create(value_type)
  with pytest.raises(TypeError, match='votes must be .*key=int64'):
    VotingFactory(_params(), simulation_seed=1).create(value_type)


def test_noise_beyond_the_sampler_is_refused():
  with pytest.raises(ValueError, match='the noise share of an agent'):
    VotingFactory(_params(agents=1, noise_stddev=1e7))


def test_every_pair_of_ballots_differs_by_no_more_than_the_sensitivity():
  params = _params(queries=1, classes=3, votes=2)
  rows = [row for row in itertools.product(range(-1, 4), repeat=3)]
  cast = tf.function(lambda v: voting.cast(v, _key(0), params), autograph=False)
  sent = {tuple(cast(tf.constant([row], tf.int32)).numpy()[0]) for row in rows}
  assert max(sum(row) for row in sent) == 2 and (0, 0, 2) in sent
  assert max(np.linalg.norm(row) for row in sent) == 2
