"""Weights that training starts from, in every form of file that Keras writes."""

import numpy as np
import pytest
import tensorflow as tf

from tasks.task import Model
from tff_pipelines.fedavg import warm_start

keras = tf.keras.layers
NAMES = ('a.keras', 'whole.h5', 'a.h5', 'a.weights.h5')

pytestmark = pytest.mark.filterwarnings(  # Keras prefers its newest form.
    'ignore:You are saving your model as an HDF5')


def _network(*hidden):
  x = tf.keras.Input([4])
  inner = tf.keras.Sequential([tf.keras.Input([4]), keras.Dense(4)], name='inner')
  y = keras.Dropout(0.2)(inner(x) + x)
  for layer in hidden:
    y = layer(y)
  return tf.keras.Model(x, keras.Dense(3)(y))


def _frozen():
  return _network(keras.Dense(4, trainable=False))


def _model(build):
  return Model.from_keras(build, 'mse')


@pytest.fixture(name='model', scope='module')
def _of_network():
  return _model(_network)


def _saved(folder, network, name):
  path = folder / name
  network.compile('adam', 'mse', metrics=['mae'])  # Whose state files may have.
  is_whole = name.endswith('.keras') or name == 'whole.h5'
  (network.save if is_whole else network.save_weights)(str(path))
  return path


@pytest.mark.parametrize('name', NAMES)
def test_files_of_keras_give_their_weights(tmp_path, model, name):
  network = _network()
  network.compile('adam', 'mse')
  network.fit(np.ones([4, 4]), np.ones([4, 3]), verbose=0)
  start = warm_start.read(_saved(tmp_path, network, name), model)
  for mine, theirs in zip(start.weights, network.trainable_weights, strict=True):
    np.testing.assert_array_equal(mine, theirs)
  assert start.digest == warm_start.read(
      _saved(tmp_path, network, 'again.keras'), model).digest


@pytest.mark.parametrize('name', NAMES)
@pytest.mark.parametrize('units, message', [([5], 'Shape mismatch|Layer count mismatch'),
    ([3, 3], '8 arrays, the model 4|Layer count mismatch')])  # The first would fit.
def test_files_of_other_networks_are_one_line(tmp_path, model, name, units, message):
  path = _saved(tmp_path, _network(*map(keras.Dense, units)), name)
  with pytest.raises(ValueError, match=message) as raised:
    warm_start.read(path, model)
  text = str(raised.value)
  assert text.startswith(f'warm_start={path} must have the weights of this model: ')
  assert '\n' not in text


def test_weights_that_are_not_trainable_must_be_those_of_the_model(tmp_path):
  model = _model(_frozen)
  own = model.to_keras(model.initial_weights(5))
  start = warm_start.read(_saved(tmp_path, own, 'own.keras'), model)
  np.testing.assert_array_equal(start.weights[0], own.trainable_weights[0])
  with pytest.raises(ValueError, match='not trainable as build_fn has them'):
    warm_start.read(_saved(tmp_path, _frozen(), 'other.keras'), model)


@pytest.mark.parametrize('name', ['a.h5', 'a.weights.h5', 'a.keras', 'a.txt'])
def test_damaged_files_are_one_line(tmp_path, model, name):
  (tmp_path / name).write_bytes(b'junk')
  with pytest.raises(ValueError, match='must have the weights of this model: ') as raised:
    warm_start.read(tmp_path / name, model)
  assert '\n' not in str(raised.value)
