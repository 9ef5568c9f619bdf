"""Parameters of the mean of predictions: grids, bounds, bytes."""

import math

import pytest

from aggregators.prediction_params import PredictionMeanParams

_params = PredictionMeanParams(
    knowledge='softmax', records=5000, classes=6, max_total_weight=10).replace


@pytest.mark.parametrize('knowledge', ['logits', 'softmax', 'argmax'])
@pytest.mark.parametrize('noise, scale', [
    ('none', 0.0), ('gaussian', 3.0), ('laplace', 700.0)])
@pytest.mark.parametrize('total, bits', [(1, 8), (10, 20), (999, 30), (65_535, 20)])
def test_largest_possible_sum_is_below_the_modulus(knowledge, noise, scale, total, bits):
  params = _params(knowledge=knowledge, noise=noise, noise_scale=scale,
                   max_total_weight=total, bits=bits)
  assert params.max_total_weight * params.levels < params.modulus <= 2**30


@pytest.mark.parametrize('total, bits', [(1, 1), (3, 2), (4, 3), (10, 4), (1000, 10)])
def test_votes_take_the_bits_of_a_count(total, bits):
  params = _params(knowledge='argmax', max_total_weight=total, bits=20)
  assert (params.wire_bits, params.levels, params.rounding_error) == (bits, 1, 0.0)


def test_noisy_votes_take_the_bits_of_numbers():
  params = _params(knowledge='argmax', noise='gaussian', noise_scale=1.0)
  assert params.wire_bits == 20 and params.levels == (2**20 - 1) // 10


@pytest.mark.parametrize('knowledge, l1, l2', [
    ('logits', 60.0, 60.0), ('softmax', 2.0, math.sqrt(2)),
    ('argmax', 2.0, math.sqrt(2))])
def test_sensitivities_have_room_for_float32(knowledge, l1, l2):
  params = _params(knowledge=knowledge, logit_bound=30.0)
  assert l1 < params.l1_sensitivity < l1 * 1.0001
  assert l2 < params.l2_sensitivity < l2 * 1.0001


def test_noise_widens_the_range_by_a_reach_that_is_hardly_ever_left():
  params = _params(noise='gaussian', noise_scale=2.0)
  assert (params.low, params.high) == (-16.0, 17.0)
  assert math.erfc(8 / math.sqrt(2)) < 2e-15
  params = _params(noise='laplace', noise_scale=2.0)
  assert (params.low, params.high) == (-72.0, 73.0)
  assert math.exp(-36) < 1e-15


def test_bytes_of_a_round():
  probabilities = _params()
  assert probabilities.sent_bytes == 5000 * 6 * 20 / 8
  assert probabilities.clear_bytes == 5000 * 6 * 4
  assert probabilities.received_bytes == probabilities.sent_bytes + 5000 * 4
  votes = _params(knowledge='argmax')
  assert votes.sent_bytes == 5000 * 6 * 4 / 8
  assert votes.clear_bytes == 5000 * 3 / 8


@pytest.mark.parametrize('changes, message', [
    (dict(knowledge='labels'), 'knowledge must be one of'),
    (dict(noise='skellam'), 'noise must be one of'),
    (dict(records=0), 'records must be at least 1'),
    (dict(classes=1), 'classes must be at least 2'),
    (dict(max_total_weight=0), 'max_total_weight must be at least 1'),
    (dict(bits=31), 'bits must be at most 30'),
    (dict(bits=7), 'bits must be at least 8 for max_total_weight=10, found 7'),
    (dict(logit_bound=0.0), 'logit_bound must be in'),
    (dict(logit_bound=1e7), 'logit_bound must be in'),
    (dict(noise_scale=float('nan')), 'noise_scale must be a finite number'),
    (dict(noise_scale=1.0), 'noise_scale must be greater than 0 with noise and 0'),
    (dict(noise='laplace'), 'noise_scale must be greater than 0 with noise and 0'),
    (dict(noise='laplace', noise_scale=1e13), 'noise_scale must be in .0, 1e.12.')])
def test_what_cannot_be_is_named(changes, message):
  with pytest.raises(ValueError, match=message):
    _params(**changes)
