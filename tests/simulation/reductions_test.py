"""Graphs that reduce data sets: optimised when they are loaded, run as they are."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from aggregators import keys
from tests import tiny_task
from tff_pipelines.simulation import contexts, in_process as in_process_lib

SEQUENCE = tff.SequenceType(np.int32)


@pytest.fixture(name='in_process', autouse=True)
def _in_process():
  with contexts.simulation():
    yield


def _each(computation):
  """The results of a computation at each client."""

  @tff.federated_computation(
      tff.FederatedType(computation.type_signature.parameter, tff.CLIENTS))
  def run(values):
    return tff.federated_map(computation, values)

  return run


@tff.tensorflow.computation(SEQUENCE)
def _fresh_keys(numbers):
  empty = tf.zeros([0, 2], tf.int64)
  many = [numbers.reduce(empty, lambda drawn, _: tf.concat([drawn, [draw()]], axis=0))
          for draw in (keys.fresh, tf.function(keys.fresh))]
  return tf.concat([*many, [keys.fresh(), keys.fresh()]], axis=0)


def test_no_fresh_key_comes_twice():
  run = _each(_fresh_keys)
  drawn = np.concatenate([*run([[1, 2, 3]] * 20), *run([[1, 2, 3]] * 20)])
  assert drawn.shape == (2 * 20 * 8, 2)
  assert len(np.unique(drawn, axis=0)) == len(drawn)


def test_a_call_sees_nothing_of_others_and_arguments_may_be_unused():

  @tff.tensorflow.computation(SEQUENCE, SEQUENCE, SEQUENCE, np.int32, np.int32)
  def run(numbers, same, unused_sequence, start, unused):
    del unused_sequence, unused
    variable = tf.Variable(100)
    add = tf.function(lambda x, y: x + variable.assign_add(y))
    return numbers.reduce(start, add), numbers.map(lambda x: x + start), same

  for start in (7, 8):
    total, shifted, same = run([1, 2], [5], [6], start, 9)
    assert total == start + 101 + 103
    assert list(shifted) == [start + 1, start + 2] and list(same) == [5]


def _weights_after_two_rounds():
  spec = (tf.TensorSpec([None, 4], tf.float32), tf.TensorSpec([None], tf.int32))

  def model():
    keras = tf.keras.Sequential([
        tf.keras.layers.Input([4]), tf.keras.layers.Dense(3)])
    return tff.learning.models.from_keras_model(
        keras, input_spec=spec,
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))

  process = tff.learning.algorithms.build_unweighted_fed_avg(
      model, tff.learning.optimizers.build_sgdm(0.1, momentum=0.9))
  train = tiny_task.task().train
  clients = [
      tf.data.Dataset.from_tensor_slices((examples['x'], examples['y'])).batch(2)
      for examples in map(train.examples, train.client_ids)]
  # What Keras begins with is random.
  state = process.set_model_weights(
      process.initialize(), tff.learning.models.ModelWeights(
          trainable=tiny_task.initial_weights(0), non_trainable=[]))
  for _ in range(2):
    state = process.next(state, clients).state
  return process.get_model_weights(state).trainable


@pytest.mark.slow
def test_training_gives_the_bits_that_it_gives_when_sessions_optimise(monkeypatch):
  weights = _weights_after_two_rounds()
  monkeypatch.setattr(in_process_lib, '_REDUCES', b'no such operation')
  wanted = _weights_after_two_rounds()
  for a, b in zip(weights, wanted, strict=True):
    np.testing.assert_array_equal(a, b)
  assert not np.allclose(weights[0], tiny_task.initial_weights(0)[0], atol=1e-3)
