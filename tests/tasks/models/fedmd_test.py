"""Architectures of FedMD's parties."""

import numpy as np
import pytest
import tensorflow as tf

from tasks.models import fedmd as fedmd_models

CONVOLUTION, HIDDEN = fedmd_models.Convolution, fedmd_models.Hidden


def _images(shape, count=3):
  return np.random.default_rng(0).integers(0, 256, (count, *shape), dtype=np.uint8)


@pytest.mark.parametrize('shape', [(8, 8, 1), (28, 28, 1), (32, 32, 3)])
@pytest.mark.parametrize('name', ['conv2', 'conv3', 'mixed3', 'dense2', 'dense3'])
def test_networks_have_the_layers_of_their_names(name, shape):
  architecture = fedmd_models.build(name, shape, 6)
  weights = architecture.initial_weights(0)
  assert weights.dtype == np.float32 and weights.shape == (architecture.size,)
  logits = architecture.logits(tf.constant(weights), _images(shape))
  assert logits.shape == [3, 6] and np.all(np.isfinite(logits))
  assert len(architecture.shapes) == int(name[-1])  # The output layer included.


def _keras(layers, shape, classes):
  keras = tf.keras.layers
  return tf.keras.Sequential([
      keras.Rescaling(1 / 255, offset=-0.5, input_shape=shape), *layers,
      keras.Flatten(), keras.Dense(classes)])


@pytest.mark.parametrize('ours, theirs', [
    ((fedmd_models.Shrink(), CONVOLUTION(size=3, filters=5, pool=2)),
     lambda k: [k.AveragePooling2D(), k.Conv2D(5, 3, activation='relu'),
                k.MaxPool2D()]),
    ((CONVOLUTION(size=5, filters=4, stride=2), CONVOLUTION(size=3, filters=6),
      HIDDEN(units=7)),
     lambda k: [k.Conv2D(4, 5, strides=2, activation='relu'),
                k.Conv2D(6, 3, activation='relu'), k.Flatten(),
                k.Dense(7, activation='relu')]),
    ((HIDDEN(units=9),), lambda k: [k.Flatten(), k.Dense(9, activation='relu')])])
def test_network_equals_that_of_keras(ours, theirs):
  shape = (17, 19, 2)
  architecture = fedmd_models.of_layers('x', ours, shape, 4)
  weights = architecture.initial_weights(3) + 0.01
  model = _keras(theirs(tf.keras.layers), shape, 4)
  start, arrays = 0, []
  for variable in model.weights:
    size = int(np.prod(variable.shape))
    arrays.append(weights[start:start + size].reshape(variable.shape))
    start += size
  assert start == architecture.size
  model.set_weights(arrays)
  images = _images(shape)
  np.testing.assert_allclose(
      architecture.logits(tf.constant(weights), images), model(images), atol=1e-5)


def test_weights_repeat_by_their_seed():
  architecture = fedmd_models.build('conv3', (8, 8, 1), 4)
  np.testing.assert_array_equal(
      architecture.initial_weights(1), architecture.initial_weights(1))
  assert np.any(architecture.initial_weights(1) != architecture.initial_weights(2))


def test_transfer_keeps_all_layers_but_the_last():
  source = fedmd_models.build('mixed3', (8, 8, 1), 10)
  target = fedmd_models.build('mixed3', (8, 8, 1), 4)
  trained = source.initial_weights(5) + 1
  actual = target.transferred(trained, seed=2)
  last = 48 * 4 + 4
  np.testing.assert_array_equal(actual[:-last], trained[:target.size - last])
  np.testing.assert_array_equal(actual[-last:], target.initial_weights(2)[-last:])


def test_registered_architecture_can_be_built(monkeypatch):
  monkeypatch.setattr(fedmd_models, '_REGISTRY', dict(fedmd_models._REGISTRY))
  fedmd_models.register('tiny', lambda shape: (HIDDEN(units=shape[0]),))
  assert fedmd_models.build('tiny', (3, 3, 1), 2).size == 9 * 3 + 3 + 3 * 2 + 2
  with pytest.raises(ValueError, match="a new one, found 'tiny'"):
    fedmd_models.register('tiny', lambda shape: ())
  with pytest.raises(ValueError, match='must be an identifier'):
    fedmd_models.register('no-name', lambda shape: ())


@pytest.mark.parametrize('layers, message', [
    ((CONVOLUTION(size=9, filters=2),), 'x needs larger images than'),
    ((CONVOLUTION(size=3, filters=2, pool=7),), 'x needs larger images than'),
    ((HIDDEN(units=3), fedmd_models.Shrink()), 'must stand before Hidden')])
def test_layers_that_do_not_fit_are_named(layers, message):
  with pytest.raises(ValueError, match=message):
    fedmd_models.of_layers('x', layers, (8, 8, 1), 2)
