"""Tests of aggregators.keys."""

import uuid

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from aggregators import keys
from tests import statistics_lib


def _distinct(rows):
  return len({tuple(row) for row in np.asarray(rows)})


def test_fresh_is_not_folded_into_a_constant_by_a_loop():
  graph = tf.function(lambda: tf.map_fn(
      lambda _: keys.fresh(), tf.range(100), fn_output_signature=tf.int64))
  assert _distinct(graph().numpy()) == 100


def test_fresh_keys_come_from_the_kernels_generator():
  graph = tf.function(keys.fresh).get_concrete_function().graph
  read = [op for op in graph.get_operations() if op.type == 'ReadFile']
  assert len(read) == 1
  # The name of the file is drawn at every call, so that no optimisation reads it once.
  names = []
  pending = [read[0]]
  while pending:
    operation = pending.pop()
    names.append(operation)
    pending.extend(tensor.op for tensor in operation.inputs)
  assert any(op.op_def.is_stateful for op in names)
  files = [op.get_attr('value').string_val for op in names if op.type == 'Const'
           and op.outputs[0].dtype == tf.string]
  assert files == [[b'/proc/sys/kernel/random/uuid']]


@tff.tensorflow.computation(np.int32)
def _client_keys(unused):
  del unused
  return keys.fresh(), keys.fresh()


@tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
def _keys_of_clients(values):
  return tff.federated_map(_client_keys, values)


def test_every_client_of_every_round_draws_its_own_keys(anywhere):
  drawn = []
  for _ in range(2):
    for pair in _keys_of_clients([0] * 500):
      drawn.extend(pair)
  assert len(drawn) == 2000
  assert _distinct(drawn) == 2000


def test_clients_on_different_workers_draw_different_keys(two_workers):
  @tff.tensorflow.computation(np.int32)
  def one_hot_keys(index):
    return tf.scatter_nd([[index]], [keys.fresh()], [20, 2])

  @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
  def collect(indices):
    return tff.federated_sum(tff.federated_map(one_hot_keys, indices))

  drawn = np.concatenate([collect(list(range(20))) for _ in range(2)])
  assert drawn.shape == (40, 2)
  assert _distinct(drawn) == 40


def test_bits_of_fresh_keys_are_uniform():
  graph = tf.function(lambda: tf.map_fn(
      lambda _: keys.fresh(), tf.range(4000), fn_output_signature=tf.int64))
  drawn = graph().numpy()
  assert statistics_lib.bits_are_uniform(drawn)
  # No bit of one half follows a bit of the other.
  assert statistics_lib.bits_are_uniform((drawn[:, :1] ^ drawn[:, 1:]).copy())


def test_the_check_of_bits_sees_the_fixed_bits_of_a_uuid():
  raw = np.array([
      [u.int >> 64, u.int & (2**64 - 1)] for u in (uuid.uuid4() for _ in range(4000))
  ], np.uint64)
  assert not statistics_lib.bits_are_uniform(raw)
  assert not statistics_lib.bits_are_uniform(raw[:, 1:].copy())


def _philox_4x32_10(counter, key):
  """Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (SC 2011)."""
  mask = 2**32 - 1
  x = list(counter)
  k = list(key)
  for _ in range(10):
    high0, low0 = divmod(0xD2511F53 * x[0], 2**32)
    high1, low1 = divmod(0xCD9E8D57 * x[2], 2**32)
    x = [high1 ^ x[1] ^ k[0], low1, high0 ^ x[3] ^ k[1], low0]
    k = [(k[0] + 0x9E3779B9) & mask, (k[1] + 0xBB67AE85) & mask]
  return x


def _halves(x):
  return [int(x) & (2**32 - 1), (int(x) >> 32) & (2**32 - 1)]


@pytest.mark.parametrize('key', [(0, 0), (1, 2), (-1, -1), (2**63 - 1, -2**63),
    (0x0123456789ABCDEF, 0x1020304050607080)])
@pytest.mark.parametrize('index', [0, 1, 2**31 - 1, 2**40])
def test_derive_is_one_philox_block_at_the_index_and_the_keys_second_half(key, index):
  x = _philox_4x32_10(_halves(index) + _halves(key[1]), _halves(key[0]))
  expected = np.array([x[0] | x[1] << 32, x[2] | x[3] << 32], np.uint64)
  derived = keys.derive(tf.constant(key, tf.int64), tf.constant(index, tf.int64))
  np.testing.assert_array_equal(derived.numpy(), expected.view(np.int64))


def test_the_oracle_knows_the_published_vector():
  # Known answers of Random123, philox4x32-10.
  assert _philox_4x32_10([0] * 4, [0] * 2) == [
      0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def test_the_key_of_a_seed_is_fixed():
  # The first half of SHA-256 of the text 'simulation seed 0'.
  np.testing.assert_array_equal(
      keys.from_seed(0), np.array([3587628922523968576, -5604511284892746529]))


def test_keys_of_seeds_differ():
  assert _distinct([keys.from_seed(seed) for seed in range(1000)]) == 1000
  np.testing.assert_array_equal(keys.from_seed(2**80), keys.from_seed(2**80))
  np.testing.assert_array_equal(keys.from_seed(np.int64(3)), keys.from_seed(3))


@pytest.mark.parametrize('seed', [-1, 1.5, True])
def test_what_is_no_seed_is_named(seed):
  with pytest.raises(ValueError, match=f'seed .*{seed}'):
    keys.from_seed(seed)


@pytest.mark.parametrize('key', [(0, 0), (1, -2), (2**63 - 1, -2**63)])
def test_split_gives_the_keys_that_derive_gives(key):
  key = tf.constant(key, tf.int64)
  derived = [keys.derive(key, i).numpy() for i in range(70)]
  np.testing.assert_array_equal(keys.split(key, 70), derived)
  np.testing.assert_array_equal(keys.split(key, 1), derived[:1])
  np.testing.assert_array_equal(
      keys.children(key, tf.constant(3), tf.constant(61)), derived[3:61])
  assert keys.children(key, 5, 5).shape == (0, 2)


@pytest.mark.parametrize('key', [(0, 0), (1, -2), (2**63 - 1, -2**63)])
def test_random_bits_are_philox_blocks_that_no_derived_key_can_have(key):
  # Indices of keys end below 2^63, where the blocks of random bits begin.
  blocks = [_philox_4x32_10(_halves(2**63 + i) + _halves(key[1]), _halves(key[0]))
      for i in range(3)]
  expected = np.array(blocks, np.uint32).reshape(-1)
  tensor = tf.constant(key, tf.int64)
  np.testing.assert_array_equal(
      keys.random_bits(tensor, [12]).numpy().view(np.uint32), expected)
  np.testing.assert_array_equal(
      keys.random_bits(tensor, [3, 2], tf.int64).numpy().view(np.uint64).reshape(-1),
      expected.view(np.uint64))


def test_uniform_numbers_are_uniform_and_below_one():
  drawn = keys.uniform(tf.constant([5, 6], tf.int64), [100_000]).numpy()
  assert drawn.min() >= 0 and drawn.max() < 1
  counts = np.bincount((drawn * 1024).astype(int), minlength=1024)
  assert statistics_lib.fits(counts, np.full(1024, 1 / 1024))
