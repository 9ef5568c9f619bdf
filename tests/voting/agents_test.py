"""Agents of AE-DPFL: training, own classes, abstaining, voting."""

import numpy as np
import pytest
import tensorflow as tf

from tasks.models import classifiers as voting_models
from tff_pipelines.fedavg import adam as voting_training, local_training
from tff_pipelines.voting import agents as voting_agents

C, D = 4, 6
KEY = tf.constant([1, 2], tf.int64)
NETWORK = voting_models.softmax((D,), C)


def _config(**changes):
  return voting_agents.AgentConfig(**{**dict(
      training=voting_training.AdamConfig(
          learning_rate=0.1, batch_size=16, epochs=20)), **changes})


def _examples(count, classes=range(C), seed=0, shift=0.0):
  rng = np.random.default_rng(seed)
  y = rng.choice(list(classes), size=count).astype(np.int32)
  x = rng.normal(size=(count, D)) + 4 * np.eye(C, D)[y] + shift * np.eye(D)[D - 1]
  return {'x': x.astype(np.float32), 'y': y}


def _ballot(examples, queries, config=_config(), network=NETWORK, key=KEY,
            unlabelled=None):
  public = {'queries': tf.constant(queries), 'unlabelled': tf.constant(
      queries[:0] if unlabelled is None else unlabelled)}
  answer = voting_agents.trained_votes(network, network.initial_weights(0), config)
  return tf.function(answer, autograph=False)(public, examples, key).numpy()


def test_an_agent_votes_once_a_query_and_mostly_right():
  queries = _examples(700, seed=1)
  ballot = _ballot(_examples(60), queries['x'])
  np.testing.assert_array_equal(ballot.sum(axis=1), 1)
  assert np.mean(ballot.argmax(axis=1) == queries['y']) > 0.95


def test_an_agent_never_votes_for_a_class_it_has_no_record_of():
  queries = _examples(300, seed=1)
  ballot = _ballot(_examples(60, classes=(1, 3)), queries['x'])
  assert ballot[:, [0, 2]].sum() == 0 and ballot.sum() == 300
  own = np.isin(queries['y'], (1, 3))
  assert np.mean(ballot.argmax(axis=1) == queries['y'], where=own) > 0.95


def test_an_agent_abstains_where_it_is_not_sure():
  queries = _examples(300, seed=1)
  # Far from all classes.
  queries['x'][:100] = 0.0
  ballot = _ballot(_examples(200), queries['x'], _config(confidence=0.9))
  assert ballot[:100].sum() <= 5 and ballot[100:].sum() > 180
  none = _ballot(_examples(200), queries['x'], _config(confidence=0.999999999))
  assert none.sum() < ballot.sum()


def test_an_agent_without_records_or_with_a_model_that_is_not_finite_abstains():
  queries, damaged = _examples(20, seed=1)['x'], _examples(30)
  damaged['x'][3] = np.nan
  empty = {name: value[:0] for name, value in damaged.items()}
  for examples in (empty, damaged):
    np.testing.assert_array_equal(_ballot(examples, queries), 0)


def test_the_same_key_gives_the_same_ballot_and_model():
  examples, config = _examples(40), _config()
  weights = [tf.function(lambda k: voting_agents.train(
      NETWORK, NETWORK.initial_weights(0), examples, examples['x'][:0], k,
      config), autograph=False)(tf.constant(key, tf.int64))
             for key in ([5, 6], [5, 6], [5, 7])]
  for first, again, other in zip(*weights):
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)


def test_domain_adversarial_training_brings_the_domains_together():
  network = voting_models.mlp((D,), C, hidden=16)
  examples = _examples(200)
  public = _examples(200, seed=3, shift=6.0)['x']
  gaps = []
  for strength in (0.0, 1.0):
    config = _config(
        adversarial=strength, training=voting_training.AdamConfig(
            learning_rate=5e-3, batch_size=32, epochs=60))
    weights = tf.function(lambda: voting_agents.train(
        network, network.initial_weights(0), examples, tf.constant(public), KEY,
        config), autograph=False)()
    assert len(weights) == 4
    own, other = (network.features(weights, tf.constant(x)).numpy()
                  for x in (examples['x'], public))
    spread = np.sqrt((own.var(axis=0) + other.var(axis=0)) / 2).mean()
    gaps.append(np.abs(own.mean(axis=0) - other.mean(axis=0)).mean() / spread)
  assert gaps[1] < 0.5 * gaps[0]


def test_clients_of_federated_averaging_bring_the_domains_together():
  network = voting_models.mlp((D,), C, hidden=16)
  examples, public = _examples(200), _examples(200, seed=3, shift=6.0)['x']
  gaps = []
  for strength in (0.0, 1.0):
    model = voting_agents.adversarial_model(network, public, strength)
    weights, plain = model.initial_weights(0), network.initial_weights(0)
    for left, right in zip(weights, plain, strict=False):
      np.testing.assert_array_equal(left, right)
    update = tf.function(local_training.client_update(
        model.loss, local_training.LocalConfig(
            learning_rate=0.05, batch_size=32, epochs=10)), autograph=False)
    for i in range(20):
      delta, _ = update(weights, examples, tf.constant([i, 1], tf.int64))
      assert len(delta) == len(weights) == 4 + 4  # The discriminator's too.
      weights = [w + d for w, d in zip(weights, delta)]
    own, other = (network.features(weights[:4], x).numpy()
                  for x in (examples['x'], public))
    spread = np.sqrt((own.var(axis=0) + other.var(axis=0)) / 2).mean()
    gaps.append(np.abs(own.mean(axis=0) - other.mean(axis=0)).mean() / spread)
  assert gaps[1] < 0.5 * gaps[0]
  # Metrics are those of the network, with or without a discriminator.
  mask = tf.ones([200])
  assert [[float(x) for x in model.metrics(w, examples, mask)['accuracy']]
          for w in (weights, weights[:4])] == [[
              float(x) for x in network.as_model().metrics(
                  weights[:4], examples, mask)['accuracy']]] * 2


@pytest.mark.parametrize('most', [0, 2])
def test_shifted_images_move_as_a_whole(most):
  images = np.zeros((2, 9, 9), np.uint8)
  images[:, 4, 4] = 7
  seen = set()
  for i in range(30):
    moved = voting_agents.shifted(
        tf.constant(images), tf.constant([i, 3], tf.int64), most).numpy()
    np.testing.assert_array_equal(moved[0], moved[1])
    position = np.argwhere(moved[0] == 7)
    assert len(position) == 1 and moved.sum() == 14
    seen.add(tuple(position[0] - 4))
  reach = set(range(-most, most + 1))
  assert {a for a, _ in seen} == reach and {b for _, b in seen} == reach


def test_a_network_of_images_trains_and_votes():
  rng = np.random.default_rng(0)
  y = rng.integers(2, size=60).astype(np.int32)
  x = rng.integers(0, 60, size=(60, 12, 12)).astype(np.uint8)
  x[y == 1, 3:9, 3:9] += 150
  network = voting_models.cnn_small((12, 12), 2)
  config = _config(shift=1, training=voting_training.AdamConfig(
      learning_rate=1e-2, batch_size=20, epochs=10))
  ballot = _ballot({'x': x, 'y': y}, x[:30], config, network)
  assert np.mean(ballot.argmax(axis=1) == y[:30]) > 0.9


def test_reversed_gradients_are_minus_the_strength():
  x = tf.constant([1.0, -2.0])
  for strength in (0.0, 0.5, 3.0):
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = tf.reduce_sum(voting_agents.reverse_gradient(x, strength) * [2.0, 5.0])
    np.testing.assert_array_equal(y, -8.0)
    np.testing.assert_allclose(tape.gradient(y, x), [-2.0 * strength, -5.0 * strength])


def test_strength_grows_from_nothing_to_the_largest():
  strengths = [float(voting_agents.adversarial_strength(tf.constant(p), 0.7))
               for p in (0.0, 0.1, 0.5, 1.0)]
  assert strengths[0] == 0 and strengths[-1] == pytest.approx(0.7, abs=1e-3)
  assert strengths == sorted(strengths)


def test_both_domains_weigh_the_same():
  weights = [tf.constant(w) for w in voting_agents.initial_discriminator(2, 1)]
  rng = np.random.default_rng(1)
  own, public = rng.normal(size=(2, 8, 2)).astype(np.float32)
  loss = voting_agents.domain_loss(weights, own, public, 1.0)
  repeated = voting_agents.domain_loss(weights, own, np.tile(public, (5, 1)), 1.0)
  assert loss.shape == [8]
  np.testing.assert_allclose(loss, repeated, rtol=1e-5)
