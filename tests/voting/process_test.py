"""AE-DPFL and kNN-DPFL as TFF processes."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from aggregators.voting import VotingFactory
from aggregators.voting_params import NO_LABEL, VotingParams
from tasks.models import classifiers as voting_models
from tff_pipelines.fedavg import adam as voting_training
from tff_pipelines.voting import (
    agents as voting_agents, features as vote_features, process as voting)

C, D, Q, AGENTS = 4, 6, 50, 5
FLOATS = {'x': (np.dtype(np.float32), (D,)), 'y': (np.dtype(np.int32), ())}
GRID = {'x': (np.dtype(np.int8), (D,)), 'y': (np.dtype(np.int32), ())}
NETWORK = voting_models.softmax((D,), C)
AGENT = voting_agents.AgentConfig(training=voting_training.AdamConfig(
    learning_rate=0.1, batch_size=16, epochs=10))


def _examples(count, seed, grid=False):
  rng = np.random.default_rng(seed)
  y = rng.integers(C, size=count).astype(np.int32)
  x = rng.normal(size=(count, D)) + 4 * np.eye(C, D)[y]
  if grid:
    return {'x': np.clip(np.rint(20 * x), -127, 127).astype(np.int8), 'y': y}
  return {'x': x.astype(np.float32), 'y': y}


def _agents(grid=False, keyed=False):
  values = []
  for i in range(AGENTS):
    value = collections.OrderedDict(examples=collections.OrderedDict(
        _examples(30, i, grid)))
    if keyed:
      value['key'] = np.array([i, 9], np.int64)
    values.append(value)
  return values


def _params(**changes):
  return VotingParams(**{**dict(
      queries=Q, classes=C, agents=AGENTS, noise_stddev=0.0), **changes})


def _process(kind, params, seed=None):
  if kind == 'knn':
    answer = vote_features.nearest_votes(params.votes, C)
  else:
    answer = voting_agents.trained_votes(NETWORK, NETWORK.initial_weights(0), AGENT)
  return voting.build(
      answer, VotingFactory(params, simulation_seed=seed),
      GRID if kind == 'knn' else FLOATS)


@pytest.mark.parametrize('context, kind, votes', [
    ('one_worker', 'ae', 1), ('one_worker', 'knn', 7), ('two_workers', 'knn', 7)])
def test_agents_label_the_servers_queries(request, context, kind, votes):
  request.getfixturevalue(context)
  grid = kind == 'knn'
  queries = _examples(Q, 99, grid)
  process = _process(kind, _params(votes=votes, noise_stddev=0.3))
  output = process.next(process.initialize(), voting.public_value(queries['x']),
                        _agents(grid))
  assert np.mean(np.asarray(output['labels']) == queries['y']) > 0.9
  assert not output['measurements']['suppressed']


def test_a_dropout_suppresses_the_vote(in_process):
  queries = _examples(Q, 99, grid=True)
  process = _process('knn', _params(votes=7))
  output = process.next(process.initialize(), voting.public_value(queries['x']),
                        _agents(grid=True)[:-1])
  assert output['measurements']['suppressed']
  np.testing.assert_array_equal(output['labels'], [NO_LABEL] * Q)


def test_seeded_votes_repeat(in_process):
  queries = voting.public_value(_examples(Q, 99)['x'])
  process = _process('ae', _params(noise_stddev=8.0), seed=3)
  state = process.initialize()
  first, again = (process.next(state, queries, _agents(keyed=True)) for _ in range(2))
  np.testing.assert_array_equal(first['labels'], again['labels'])
  other = process.next(first['state'], queries, _agents(keyed=True))
  assert np.any(np.asarray(other['labels']) != np.asarray(first['labels']))


@pytest.mark.parametrize('kind', ['ae', 'knn'])
def test_nothing_but_labels_reaches_the_server(kind):
  process = _process(kind, _params(votes=1 if kind == 'ae' else 7))
  result = process.next.type_signature.result
  assert result['labels'] == tff.FederatedType(tff.TensorType(np.int32, [Q]), tff.SERVER)
  assert [name for name, _ in tff.structure.iter_elements(
      result['measurements'].member)] == ['suppressed']
  assert [name for name, _ in tff.structure.iter_elements(
      result['state'].member)] == ['server_key']
  # Two sums and no more: ballots under secure aggregation, and the agents' count.
  text = process.next.to_building_block().compact_representation()
  assert text.count('federated_secure_modular_sum') == 1
  assert text.count('federated_sum(') == 1
  for word in ('federated_collect', 'federated_aggregate', 'federated_mean',
               'federated_select', 'federated_secure_sum'):
    assert word not in text


def test_unlabelled_records_reach_agents_that_ask_for_them(in_process):
  def answer(public, examples, key):
    del examples, key
    # Votes for the class that is the number of unlabelled records.
    return tf.one_hot(tf.fill([Q], tf.shape(public['unlabelled'])[0]), C, dtype=tf.int32)

  process = voting.build(answer, VotingFactory(_params()), FLOATS)
  queries = _examples(Q, 99)['x']
  for count in (0, 3):
    output = process.next(
        process.initialize(), voting.public_value(queries, queries[:count]), _agents())
    np.testing.assert_array_equal(output['labels'], [count] * Q)
