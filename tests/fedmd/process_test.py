"""FedMD's process: the order of a round, parties that fail, several workers."""

import collections
import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from aggregators import keys, prediction_mean
from aggregators.prediction_params import PredictionMeanParams
from tasks.models import fedmd as fedmd_models
from tff_pipelines.fedmd import process as fedmd
from tff_pipelines.fedmd.process import FitConfig

SHAPE, CLASSES, RECORDS = (8, 8, 1), 3, 20
ARCHITECTURES = tuple(
    fedmd_models.build(name, SHAPE, CLASSES) for name in ('conv2', 'dense2'))
PRIVATE = FitConfig(learning_rate=0.01, batch_size=4)
DIGEST = FitConfig(learning_rate=0.02, batch_size=8)
INITIAL_EPOCHS, DIGEST_EPOCHS, REVISIT_EPOCHS = 2, 2, 1
# Of the learning rates after the first training.
RATE_FACTOR = 0.5


def _mean(**changes):
  return PredictionMeanParams(**{
      'knowledge': 'softmax', 'records': RECORDS, 'classes': CLASSES,
      'max_total_weight': 400, **changes})


def _build(mean=None, **changes):
  return fedmd.build(ARCHITECTURES, image_shape=SHAPE, mean=mean or _mean(), **{
      'initial_epochs': INITIAL_EPOCHS, 'private': PRIVATE, 'digest': DIGEST, **changes})


@pytest.fixture(scope='module', name='process')
def _process():
  return _build()


def _images(count, seed):
  return np.random.default_rng(seed).integers(0, 256, (count, *SHAPE), dtype=np.uint8)


def _parties(count):
  return [fedmd.new_party(i, i % 2, ARCHITECTURES[i % 2].initial_weights(i), [i, 100])
          for i in range(count)]


def _data(count, weight=1):
  rng = np.random.default_rng(9)
  return [collections.OrderedDict(
      images=_images(5 + i, i), labels=rng.integers(CLASSES, size=5 + i).astype(np.int32),
      weight=np.int32(weight)) for i in range(count)]


def _announced(number, *, share=True):
  """The server's announcement of a round: records of round n are those of seed n."""
  return collections.OrderedDict(
      digest_images=_images(RECORDS if number else 0, 1000 + number - 1),
      digest_epochs=np.int32(DIGEST_EPOCHS),
      revisit_epochs=np.int32(REVISIT_EPOCHS if number else 0),
      rate_factor=np.float32(RATE_FACTOR),
      predict_images=_images(RECORDS, 1000 + number), share=np.bool_(share))


def _weights(parties):
  return [np.asarray(party['weights']) for party in parties]


def _slowed(config):
  return dataclasses.replace(config, learning_rate=RATE_FACTOR * config.learning_rate)


def _by_hand(mean, rounds):
  """Weights and consensus of the same rounds by the pure functions."""
  parties, data = _parties(2), _data(2)
  models = [tf.constant(party['weights']) for party in parties]
  party_keys = [tf.constant(party['key']) for party in parties]
  consensus = None
  for number in range(rounds):
    sent = []
    for i, architecture in enumerate(ARCHITECTURES):
      key, party_keys[i] = keys.derive(party_keys[i], 0), keys.derive(party_keys[i], 1)

      def own(weights, epochs, purpose, config, i=i, key=key, architecture=architecture):
        return fedmd.fit(
            architecture, weights, tf.constant(data[i]['images']),
            tf.constant(data[i]['labels']), tf.constant(epochs),
            keys.derive(key, purpose), kind='labels', config=config)

      if number == 0:
        models[i] = own(models[i], INITIAL_EPOCHS, 0, PRIVATE)
      else:
        # The consensus is about the records that were predicted on a round ago.
        models[i] = fedmd.fit(
            architecture, models[i], tf.constant(_images(RECORDS, 1000 + number - 1)),
            consensus, tf.constant(DIGEST_EPOCHS), keys.derive(key, 1),
            kind=mean.knowledge, config=_slowed(DIGEST))
        models[i] = own(models[i], REVISIT_EPOCHS, 2, _slowed(PRIVATE))
      logits = architecture.logits(models[i], _images(RECORDS, 1000 + number))
      sent.append(prediction_mean.encode(logits, tf.constant(1), None, mean))
    consensus = prediction_mean.decode(
        sent[0].values + sent[1].values, tf.constant(2), mean)
  return [model.numpy() for model in models], consensus.numpy()


@pytest.mark.parametrize('knowledge', ['softmax', 'logits'])
def test_rounds_are_those_of_the_algorithm(in_process, process, knowledge):
  mean = _mean(knowledge=knowledge)
  if knowledge != 'softmax':
    process = _build(mean)
  server, parties = process.initialize(), _parties(2)
  assert not server['known']
  for number in range(3):
    output = process.next(server, _announced(number), parties, _data(2))
    server, parties = output['state'], list(output['parties'])
    assert server['known']
  wanted, consensus = _by_hand(mean, 3)
  # Sums of float32 are taken in another order.
  np.testing.assert_allclose(server['consensus'], consensus, atol=2e-3)
  for weights, expected in zip(_weights(parties), wanted):
    np.testing.assert_allclose(weights, expected, atol=2e-3)
  start = _weights(_parties(2))
  assert all(np.abs(a - b).max() > 0.05 for a, b in zip(wanted, start))


def _in_order(parties):
  return sorted(parties, key=lambda party: int(party['number']))


def _after_first_round(process, count=3):
  output = process.next(
      process.initialize(), _announced(0), _parties(count), _data(count))
  return output['state'], _in_order(output['parties'])


def test_party_that_drops_out_keeps_its_state_and_returns(in_process, process):
  server, parties = _after_first_round(process)
  data = _data(3)
  away = parties[1]
  output = process.next(
      server, _announced(1), [parties[0], parties[2]], [data[0], data[2]])
  assert int(output['metrics']['parties']) == 2
  parties = [output['parties'][0], away, output['parties'][1]]
  output = process.next(output['state'], _announced(2), parties, data)
  assert int(output['metrics']['parties']) == 3
  assert [int(p['rounds']) for p in output['parties']] == [3, 2, 3]
  assert np.any(output['parties'][1]['weights'] != away['weights'])


def test_party_that_joins_late_first_fits_its_own_records(in_process, process):
  server, (first, second, _) = _after_first_round(process)
  late = _parties(3)[2]
  no_more = collections.OrderedDict(
      _announced(1), digest_epochs=np.int32(0), revisit_epochs=np.int32(0))
  output = process.next(server, no_more, [first, second, late], _data(3))
  # In time it would have fitted them in the first round, under the same key.
  in_time = _after_first_round(process)[1][2]
  np.testing.assert_array_equal(output['parties'][2]['weights'], in_time['weights'])
  np.testing.assert_array_equal(output['parties'][0]['weights'], first['weights'])
  assert [int(p['rounds']) for p in output['parties']] == [2, 2, 1]
  assert int(output['metrics']['parties']) == 3


@pytest.mark.parametrize('value', [np.nan, np.inf])
def test_party_with_nan_or_infinite_weights_is_left_out(in_process, process, value):
  server, parties = _after_first_round(process)
  broken = collections.OrderedDict(parties[1])
  broken['weights'] = np.array(broken['weights'])
  broken['weights'][4] = value
  output = process.next(server, _announced(1), [parties[0], broken, parties[2]], _data(3))
  assert {k: int(v) for k, v in output['metrics'].items()} == {
      'parties': 2, 'rejected': 1, 'total_weight': 2}
  data = _data(3)
  without = process.next(
      server, _announced(1), [parties[0], parties[2]], [data[0], data[2]])
  np.testing.assert_array_equal(
      output['state']['consensus'], without['state']['consensus'])
  assert np.all(np.isfinite(output['state']['consensus']))
  np.testing.assert_array_equal(output['parties'][1]['weights'], broken['weights'])
  assert [int(p['rounds']) for p in output['parties']] == [2, 1, 2]


@pytest.mark.slow
def test_training_that_explodes_leaves_the_weights_as_they_were(in_process):
  process = _build(
      initial_epochs=3, private=dataclasses.replace(PRIVATE, learning_rate=1e38))
  output = process.next(process.initialize(), _announced(0), _parties(2), _data(2))
  assert int(output['metrics']['rejected']) == 2
  assert not output['state']['known']
  for party, start in zip(output['parties'], _parties(2)):
    np.testing.assert_array_equal(party['weights'], start['weights'])
    assert int(party['rounds']) == 0
    # But no key is ever used twice.
    assert np.any(party['key'] != start['key'])


def test_round_without_a_consensus_has_nothing_to_digest(in_process, process):
  server, parties = _after_first_round(process)
  broken = [collections.OrderedDict(
      party, weights=np.full_like(party['weights'], np.nan)) for party in parties]
  output = process.next(server, _announced(1), broken, _data(3))
  assert not output['state']['known']
  assert int(output['metrics']['rejected']) == 3
  after = process.next(output['state'], collections.OrderedDict(
      _announced(2), revisit_epochs=np.int32(0)), parties, _data(3))
  for weights, start in zip(_weights(after['parties']), _weights(parties)):
    np.testing.assert_array_equal(weights, start)
  assert after['state']['known']


def test_last_round_shares_nothing(in_process, process):
  server, parties = _after_first_round(process)
  output = process.next(server, _announced(1, share=False), parties, _data(3))
  assert not output['state']['known']
  # All parties sent the same, whatever their models say.
  np.testing.assert_allclose(output['state']['consensus'], 1 / CLASSES, atol=1e-3)
  shared = process.next(server, _announced(1), parties, _data(3))
  for weights, wanted in zip(_weights(output['parties']), _weights(shared['parties'])):
    np.testing.assert_array_equal(weights, wanted)


@pytest.mark.slow
def test_workers_compute_the_same_as_this_process(
    _in_process_context, _one_worker_context, _two_worker_context, process):
  # pylint: disable=g-import-not-at-top
  from tff_pipelines.simulation import contexts
  results = []
  for context in (_in_process_context, _one_worker_context, _two_worker_context):
    with contexts.installed(context):
      server, parties = _after_first_round(process)
      output = process.next(server, _announced(1), parties, _data(3))
      # Their state fits the predictions that were sent: both parts of a client
      # that several workers run twice drew the same.
      parties = _in_order(output['parties'])
      assert [int(party['number']) for party in parties] == [0, 1, 2]
      assert int(output['metrics']['parties']) == 3
      results.append((np.asarray(output['state']['consensus']), _weights(parties),
                      [np.asarray(party['key']) for party in parties]))
  consensus, weights, party_keys = results[0]
  for other, other_weights, other_keys in results[1:]:
    # Sums of float32 are taken in another order.
    np.testing.assert_allclose(other, consensus, atol=1e-3)
    for a, b in zip(other_weights, weights):
      np.testing.assert_allclose(a, b, atol=1e-3)
    np.testing.assert_array_equal(other_keys, party_keys)


def test_consensus_is_the_mean_by_the_weights_of_parties(in_process, process):
  consensus = []
  for weights in ((1, 0), (0, 1), (3, 1)):
    data = _data(2)
    for values, weight in zip(data, weights):
      values['weight'] = np.int32(weight)
    output = process.next(process.initialize(), _announced(0), _parties(2), data)
    consensus.append(np.asarray(output['state']['consensus']))
  np.testing.assert_allclose(
      consensus[2], 0.75 * consensus[0] + 0.25 * consensus[1], atol=3e-3)
  assert np.abs(consensus[0] - consensus[1]).max() > 0.05


def test_seeded_noise_comes_from_the_parties_keys(in_process):
  mean = _mean(noise='gaussian', noise_scale=1.0)
  process = _build(mean, simulation_seed=5)
  first, second = (
      process.next(process.initialize(), _announced(0), _parties(2), _data(2))
      for _ in range(2))
  np.testing.assert_array_equal(first['state']['consensus'], second['state']['consensus'])
  # With noise no party is seen to fail.
  parties = _parties(2)
  parties[0]['weights'] = parties[0]['weights'] * np.float32(np.nan)
  output = process.next(process.initialize(), _announced(0), parties, _data(2))
  assert int(output['metrics']['rejected']) == 0
  assert np.all(np.isfinite(output['state']['consensus']))
