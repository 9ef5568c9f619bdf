"""NoisySGD: clipped gradients of single records, secret batches, noise in shares."""

import collections
import functools

import numpy as np
import pytest
import tensorflow as tf

from tests import statistics_lib, tiny_task
from tff_pipelines.fedavg import noisy_sgd as sgd

KEY = tf.constant([4, 5], tf.int64)
WEIGHTS = tiny_task.initial_weights(0)


# Noise that no comparison below sees.
FAINT = 1e-7


def _plan(**changes):
  return sgd.NoisySgdPlan(**{**dict(
      terms=None, clip=0.5, noise_multiplier=FAINT, sampling_rate=1.0, rounds=1,
      delta=0.5, clients=3, records=10), **changes})


def _gradient(example):
  weights = [tf.constant(w) for w in WEIGHTS]
  with tf.GradientTape() as tape:
    tape.watch(weights)
    loss = tiny_task.loss(
        weights, {k: tf.constant(v[None]) for k, v in example.items()}, None)[0]
  return [g.numpy() for g in tape.gradient(loss, weights)]


def _record(examples, i):
  return {k: v[i] for k, v in examples.items()}


@functools.cache
def _summed(clip):
  return tf.function(
      lambda x, y, rows: sgd.clipped_gradient_sum(
          tiny_task.loss, WEIGHTS, {'x': x, 'y': y}, rows, clip),
      input_signature=[tf.TensorSpec([None, tiny_task.FEATURES]),
                       tf.TensorSpec([None], tf.int32),
                       tf.TensorSpec([None], tf.int32)], autograph=False)


def _sum(examples, rows, clip):
  actual = _summed(clip)(examples['x'], examples['y'], np.asarray(list(rows), np.int32))
  return [g.numpy() for g in actual]


@pytest.mark.parametrize('count', [0, 1, 5, 64, 65, 150])
def test_each_gradient_is_clipped_independently(count):
  examples = tiny_task.examples(150, 3)
  rows = list(range(count))
  expected = [np.zeros_like(w) for w in WEIGHTS]
  clipped = 0
  for i in rows:
    gradient = _gradient(_record(examples, i))
    norm = np.sqrt(sum(np.sum(g**2) for g in gradient))
    clipped += norm > 1.5
    expected = [e + g * min(1, 1.5 / norm) for e, g in zip(expected, gradient)]
  for actual, wanted in zip(_sum(examples, rows, 1.5), expected):
    np.testing.assert_allclose(actual, wanted, atol=5e-4)
  assert count < 60 or 0 < clipped < count


def test_one_record_moves_the_sum_by_no_more_than_the_clip():
  examples = tiny_task.examples(20, 3)
  for scale in (1.0, 1e10):
    big = {'x': examples['x'] * np.float32(scale), 'y': examples['y']}
    for i in range(20):
      actual = _sum(big, [i], 0.25)
      norm = np.sqrt(sum(np.sum(np.float64(g)**2) for g in actual))
      assert norm <= 0.25


def test_nan_or_infinite_gradients_count_as_zero():
  examples = tiny_task.examples(5, 3)
  examples['x'][2] = np.nan
  for actual, wanted in zip(_sum(examples, range(5), 0.5),
                           _sum(examples, [0, 1, 3, 4], 0.5)):
    np.testing.assert_allclose(actual, wanted, atol=1e-6)


def test_records_are_sampled_independently_at_the_rate():
  count, rate, rounds = 400, 0.05, 200
  sample = tf.function(
      lambda k: sgd.sampled_rows(k, tf.constant(count), rate), autograph=False)
  sampled = np.zeros((rounds, count))
  for i in range(rounds):
    sampled[i, sample(tf.constant([i, 8], tf.int64)).numpy()] = 1
  statistics_lib.check_mean(sampled, rate, rate * (1 - rate))
  # Sizes vary as those of independent draws.
  statistics_lib.check_mean(
      (sampled.sum(axis=1) - count * rate)**2, count * rate * (1 - rate),
      2 * (count * rate)**2 * 1.2)
  np.testing.assert_array_equal(sgd.sampled_rows(KEY, tf.constant(7), 1.0), np.arange(7))


def test_noise_of_all_agents_is_that_of_the_multiplier():
  loss = lambda weights, batch, seed: 0.0 * tf.reduce_sum(weights[0]) + (
      0.0 * tf.reduce_sum(batch['x'], axis=1))
  weights = [np.zeros([4000], np.float32)]
  plan = _plan(noise_multiplier=3.0, clip=0.5, clients=7)
  examples = {'x': np.zeros((2, 3), np.float32)}
  give = tf.function(
      lambda k: sgd.contribution(loss, weights, examples, k, plan), autograph=False)
  total = sum(give(tf.constant([i, 6], tf.int64))[0].numpy() for i in range(7))
  statistics_lib.check_variance(total, 1.5**2)
  statistics_lib.check_mean(total, 0.0, 1.5**2)


def _agents(task, keyed=False, round_number=2):
  values = []
  for i, agent in enumerate(task.train.client_ids):
    value = collections.OrderedDict(examples=collections.OrderedDict(
        sorted(task.train.examples(agent).items())))
    if keyed:
      value['key'] = np.array([i, round_number], np.int64)
    values.append(value)
  return values


def _process(task, plan, **changes):
  return sgd.build(
      task.model, task.train.element_spec, initial_weights=WEIGHTS, plan=plan,
      **{**dict(learning_rate=1.0, momentum=0.0), **changes})


def test_a_round_is_a_step_along_the_mean_clipped_gradient(in_process):
  task = tiny_task.task(num_clients=3, examples_per_client=5)
  process = _process(task, _plan(records=15))
  output = process.next(process.initialize(), _agents(task))
  total = [np.zeros_like(w) for w in WEIGHTS]
  for agent in task.train.client_ids:
    actual = _sum(task.train.examples(agent), range(5), 0.5)
    total = [t + f for t, f in zip(total, actual)]
  for new, old, step in zip(output['state']['weights'], WEIGHTS, total):
    np.testing.assert_allclose(new, old - step / 15, atol=1e-5)
  assert not output['metrics']['aggregator']['suppressed']


def test_round_that_lacks_a_client_is_suppressed(in_process):
  task = tiny_task.task(num_clients=3, examples_per_client=5)
  process = _process(task, _plan(noise_multiplier=1.0), momentum=0.5)
  state = process.initialize()
  output = process.next(state, _agents(task)[:2])
  assert output['metrics']['aggregator']['suppressed']
  for new, old in zip(output['state']['weights'], WEIGHTS):
    np.testing.assert_array_equal(new, old)


def test_seeded_rounds_repeat_and_unseeded_ones_do_not(in_process):
  task = tiny_task.task(num_clients=3, examples_per_client=5)
  for seeded in (True, False):
    process = _process(task, _plan(noise_multiplier=1.0, seed=0 if seeded else None))
    state = process.initialize()
    first, again = (process.next(state, _agents(task, seeded))['state'] for _ in range(2))
    same = np.array_equal(first['weights'][0], again['weights'][0])
    assert same == seeded


@pytest.mark.parametrize('changes, message', [
    ({'clip': 0.0}, 'clip must be greater than 0'),
    ({'noise_multiplier': 0.0}, 'noise_multiplier must be greater than 0'),
    ({'sampling_rate': 1.5}, r'sampling_rate must be in \(0, 1\]'),
    ({'clients': 0}, 'clients must be at least 1'),
    ({'records': 0}, 'records must be at least 1')])
def test_impossible_rounds_are_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    _plan(**changes)
