"""The mean of predictions: what is sent, what is learnt, what noise is added."""

import collections
import itertools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from aggregators import prediction_mean, structures
from aggregators.prediction_params import PredictionMeanParams
from tests import statistics_lib

RECORDS, CLASSES = 7, 4
KINDS = ('logits', 'softmax', 'argmax')
_params = PredictionMeanParams(
    knowledge='softmax', records=RECORDS, classes=CLASSES, max_total_weight=60,
    logit_bound=6.0).replace


def _logits(parties, seed=0):
  rng = np.random.default_rng(seed)
  return rng.normal(size=(parties, RECORDS, CLASSES), scale=4).astype(np.float32)


def _shared(logits, params):
  """What a party shares without noise, in float64, by NumPy."""
  logits = logits.astype(np.float64)
  if params.knowledge == 'logits':
    return np.clip(logits, -params.logit_bound, params.logit_bound)
  if params.knowledge == 'argmax':
    return np.eye(CLASSES)[logits.argmax(-1)]
  powers = np.exp(logits - logits.max(-1, keepdims=True))
  return powers / powers.sum(-1, keepdims=True)


def _consensus(all_logits, weights, params):
  """By the pure functions alone."""
  sent = [prediction_mean.encode(tf.constant(x), tf.constant(w), None, params)
          for x, w in zip(all_logits, weights)]
  total = sum(np.asarray(s.values, np.int64) for s in sent) % params.modulus
  return prediction_mean.decode(
      tf.constant(total, tf.int32), sum(s.weight for s in sent), params).numpy()


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('weights', [(1, 1, 1, 1), (3, 17, 1, 0), (60, 0, 0, 0)])
@pytest.mark.parametrize('bits', [12, 20, 30])
def test_mean_is_within_the_stated_error(kind, weights, bits):
  params = _params(knowledge=kind, bits=bits)
  logits = _logits(4)
  wanted = np.average([_shared(x, params) for x in logits], axis=0, weights=weights)
  result = _consensus(logits, weights, params)
  # float32 of the softmax comes on top.
  slack = 0.0 if kind == 'logits' else 1e-6
  assert np.abs(result - wanted).max() <= params.rounding_error + slack
  if kind == 'softmax' and bits == 12:
    assert np.abs(result - wanted).max() > params.rounding_error / 10


def test_votes_travel_as_whole_numbers_and_lose_nothing():
  params = _params(knowledge='argmax')
  logits = _logits(3)
  sent = prediction_mean.encode(logits[0], tf.constant(5), None, params)
  assert sent.values.dtype == tf.int32
  np.testing.assert_array_equal(sent.values, 5 * _shared(logits[0], params))
  votes = sum(w * _shared(x, params) for w, x in zip((5, 2, 1), logits))
  np.testing.assert_array_equal(
      _consensus(logits, (5, 2, 1), params), (votes / 8).astype(np.float32))


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('value', [1e30, -1e30])
def test_sum_of_extreme_predictions_does_not_wrap_around(kind, value):
  params = _params(knowledge=kind, bits=30)
  logits = np.zeros([3, RECORDS, CLASSES], np.float32)
  logits[..., 1] = value
  result = _consensus(logits, (20, 20, 20), params)
  np.testing.assert_allclose(result, _shared(logits[0], params), atol=1e-6)


def test_weights_that_sum_up_to_too_much_give_no_consensus():
  params = _params(max_total_weight=1000)
  assert np.all(np.isfinite(_consensus(_logits(2), (500, 500), params)))
  with pytest.raises(tf.errors.InvalidArgumentError, match='max_total_weight'):
    _consensus(_logits(2), (869, 869), params)


@pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf])
def test_predictions_of_nan_or_infinities_change_nothing_but_their_part(value):
  params = _params()
  logits = _logits(3)
  bad = logits.copy()
  bad[1, 3, 2] = value
  sent = prediction_mean.encode(bad[1], tf.constant(9), None, params)
  assert int(sent.rejected) == 1 and int(sent.weight) == 0
  assert not np.any(sent.values)
  np.testing.assert_array_equal(
      _consensus(bad, (2, 9, 3), params), _consensus(logits[[0, 2]], (2, 3), params))


def test_weights_beyond_their_range_are_cut():
  params = _params(max_total_weight=4)
  for weight, wanted in ((-3, 0), (4, 4), (99, 4)):
    sent = prediction_mean.encode(_logits(1)[0], tf.constant(weight), None, params)
    assert int(sent.weight) == wanted
    assert 0 <= np.min(sent.values) and np.max(sent.values) <= 4 * params.levels


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('noise', ['gaussian', 'laplace'])
def test_any_two_inputs_are_within_the_sensitivity(kind, noise):
  # As far apart as rows can be, and ordinary ones.
  rows = np.array(list(itertools.product(
      (-1e30, -40.0, 0.0, 40.0, 1e30), repeat=CLASSES)), np.float32)
  params = _params(knowledge=kind, noise=noise, noise_scale=1.0, records=len(rows))
  shared = prediction_mean.as_knowledge(rows, params).numpy().astype(np.float64)
  order, bound = ((2, params.l2_sensitivity) if noise == 'gaussian' else
                  (1, params.l1_sensitivity))
  distances = np.linalg.norm(
      shared[:, np.newaxis] - shared[np.newaxis], ord=order, axis=-1)
  assert bound * 0.9999 < distances.max() <= bound


@pytest.mark.parametrize('noise, kurtosis', [('gaussian', 0.0), ('laplace', 3.0)])
def test_noise_has_its_distribution(noise, kurtosis):
  params = _params(noise=noise, noise_scale=2.5)
  values = tf.fill([400, 100], 0.25)
  added = prediction_mean.add_noise(
      values, tf.constant([5, 6], tf.int64), params).numpy() - 0.25
  variance = 2.5**2 * (1 if noise == 'gaussian' else 2)
  statistics_lib.check_variance(added.ravel(), variance, kurtosis)
  statistics_lib.check_mean(added, 0.0, variance)
  # A Laplace distribution has more in the middle and in the tails than a Gaussian one.
  within = np.mean(np.abs(added) < 0.5 * np.sqrt(variance))
  assert within == pytest.approx(0.383 if noise == 'gaussian' else 0.507, abs=0.02)


@pytest.mark.parametrize('noise', ['gaussian', 'laplace'])
@pytest.mark.parametrize('kind', KINDS)
def test_under_noise_nan_and_infinities_look_like_any_other(kind, noise):
  params = _params(knowledge=kind, noise=noise, noise_scale=1.0, bits=24)
  key = tf.constant([1, 2], tf.int64)
  bad = np.full([RECORDS, CLASSES], np.nan, np.float32)
  sent = prediction_mean.encode(bad, tf.constant(3), key, params)
  silent = prediction_mean.encode(np.zeros_like(bad), tf.constant(3), key, params)
  assert int(sent.rejected) == 0 and int(sent.weight) == 3
  np.testing.assert_array_equal(sent.values, silent.values)
  assert np.std(sent.values) > 0


def test_nearest_probabilities_are_what_a_search_finds():
  rng = np.random.default_rng(4)
  rows = rng.normal(size=(30, 3), scale=2)
  result = prediction_mean.nearest_probabilities(tf.constant(rows)).numpy()
  np.testing.assert_allclose(result.sum(-1), 1, atol=1e-12)
  assert result.min() >= 0
  # All probabilities on a grid.
  steps = np.arange(0, 1.0001, 0.02)
  grid = np.array([(a, b, 1 - a - b) for a in steps for b in steps if a + b <= 1])
  best = np.linalg.norm(rows[:, np.newaxis] - grid, axis=-1).min(-1)
  distances = np.linalg.norm(rows - result, axis=-1)
  assert np.all(distances <= best + 1e-12)
  assert np.all(distances >= best - 0.03)


def _process(params, seed=None):
  value_type = tff.TensorType(np.float32, [RECORDS, CLASSES])
  if seed is not None and params.has_noise:
    value_type = structures.keyed_type(value_type)
  factory = prediction_mean.PredictionMeanFactory(params, simulation_seed=seed)
  return factory.create(value_type, tff.TensorType(np.int32))


def _run(process, values, weights):
  output = process.next(
      process.initialize(), list(values), [np.int32(w) for w in weights])
  return output.result, {k: int(v) for k, v in output.measurements.items()}


@pytest.mark.parametrize('kind', KINDS)
def test_process_gives_the_mean_of_the_pure_functions(one_worker, kind):
  params = _params(knowledge=kind)
  logits = _logits(4)
  logits[2, 0, 0] = np.nan
  result, measured = _run(_process(params), logits, (3, 1, 7, 2))
  np.testing.assert_array_equal(result, _consensus(logits[[0, 1, 3]], (3, 1, 2), params))
  assert measured == {'parties': 3, 'rejected': 1, 'total_weight': 6}


def test_seeded_noise_repeats_and_unseeded_noise_does_not(in_process):
  # Logits, as noisy probabilities are cut off at 0 and 1 and often meet there.
  params = _params(knowledge='logits', noise='laplace', noise_scale=1.0)
  keyed = [collections.OrderedDict(value=_logits(1)[0], key=np.array([i, 1]))
           for i in range(2)]
  process = _process(params, seed=3)
  first, second = (_run(process, keyed, (1, 1))[0] for _ in range(2))
  np.testing.assert_array_equal(first, second)
  process = _process(params)
  first, second = (_run(process, _logits(2), (1, 1))[0] for _ in range(2))
  assert np.mean(first == second) < 0.5


def test_predictions_leave_a_party_under_secure_aggregation_only():
  text = str(_process(_params()).next.to_building_block().compact_representation())
  assert 'federated_secure_modular_sum' in text
  collected = {'federated_collect', 'federated_aggregate', 'federated_reduce'}
  assert not [name for name in collected if name in text]
  measured = _process(_params()).next.type_signature.result.measurements.member
  assert [name for name, _ in tff.structure.iter_elements(measured)] == [
      'parties', 'rejected', 'total_weight']


@pytest.mark.parametrize('value_type, weight_type, message', [
    (tff.TensorType(np.float32, [RECORDS, CLASSES + 1]), tff.TensorType(np.int32),
     'values must be'),
    (tff.TensorType(np.float64, [RECORDS, CLASSES]), tff.TensorType(np.int32),
     'values must be'),
    (tff.TensorType(np.float32, [RECORDS, CLASSES]), tff.TensorType(np.float32),
     'weights must be int32')])
def test_other_types_are_refused(value_type, weight_type, message):
  factory = prediction_mean.PredictionMeanFactory(_params())
  with pytest.raises(TypeError, match=message):
    factory.create(value_type, weight_type)


def test_fresh_noise_of_many_parties_is_independent(in_process):
  params = _params(
      knowledge='logits', logit_bound=1e5, noise='gaussian', noise_scale=1000.0, bits=30)
  zeros = np.zeros([40, RECORDS, CLASSES], np.float32)
  result, _ = _run(_process(params), zeros, [1] * 40)
  # 28 draws of standard deviation 158; it would be 1000 if all had one key. False
  # alarm: 6e-8.
  assert 60 < np.std(result) < 300
