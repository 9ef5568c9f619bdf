"""The task of images of any size: shapes, classes, models."""

import numpy as np
from PIL import Image
import pytest
import tensorflow as tf

from tasks import registry


def _images(count=12, shape=(14, 18, 3), seed=0):
  return np.random.default_rng(seed).integers(0, 256, [count, *shape], np.uint8)


def _npz(folder, x, y, **arrays):
  path = folder / 'images.npz'
  np.savez(path, x_train=x, y_train=y, **arrays)
  return dict(data_source='npz', data_path=str(path))


def _clients(count):
  return np.arange(count) % 4


@pytest.mark.parametrize('shape', [(14, 18), (14, 18, 1), (14, 18, 3), (13, 13, 4)])
@pytest.mark.parametrize('model', registry.MODELS['images'])
def test_every_model_takes_images_of_any_size_and_colour(tmp_path, shape, model):
  x, y = _images(shape=shape), np.arange(12) % 3
  task = registry.build('images', **_npz(tmp_path, x, y, writer_train=_clients(12)),
                        num_classes=3, model=model)
  examples = {k: tf.constant(v) for k, v in task.train.examples('0').items()}
  np.testing.assert_array_equal(examples['x'], x[::4])
  weights = task.model.initial_weights(0)
  loss = task.model.loss(weights, examples, None)
  assert loss.shape == [3] and np.all(np.isfinite(loss))
  outputs = task.model.predict(weights, {'x': examples['x']})
  assert outputs['probabilities'].shape == (3, 3)
  names = task.model.weight_names
  assert len(names) == len(weights) == len(set(names))


def test_grey_images_are_one_channel_of_colour(tmp_path):
  grey, y = _images(shape=(14, 18)), np.arange(12) % 3
  losses = []
  for x in (grey, grey[..., np.newaxis]):
    task = registry.build('images', **_npz(tmp_path, x, y, writer_train=_clients(12)),
                          num_classes=3)
    examples = {k: tf.constant(v) for k, v in task.train.examples('0').items()}
    losses.append(task.model.loss(task.model.initial_weights(0), examples, None))
  np.testing.assert_array_equal(*losses)


def _folders(folder, names=('cat', 'dog')):
  x = _images(count=8)
  for i, image in enumerate(x):
    path = folder / f'client{i // 2}' / names[i % 2] / f'{i}.png'
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path)
  return x, dict(data_source='folder', data_path=str(folder))


def test_folders_of_colour_images_have_classes_by_name(tmp_path):
  x, options = _folders(tmp_path)
  task = registry.build('images', **options, class_names=('dog', 'cat'))
  client = task.train.client_ids[0]
  number = int(client.removeprefix('client'))
  examples = task.train.examples(client)
  np.testing.assert_array_equal(examples['y'], [1, 0])
  np.testing.assert_array_equal(examples['x'], x[2 * number:2 * number + 2])
  assert task.model.breakdown.names == ('dog', 'cat')


@pytest.mark.parametrize('options, message', [
    ({}, 'task images needs num_classes, or class_names, with folder'),
    ({'num_classes': 2}, "field 'label' must be an integer, found a text: 'cat'"),
    ({'class_names': ('cat', 'cow')}, "label must be one of 'cat', 'cow', found 'dog' "
     'in example 1'),
    ({'class_names': ('cat',)}, 'class_names must be at least 2 texts that differ'),
    ({'class_names': ('cat', 'dog'), 'num_classes': 3},
     'class_names must be 3, found 2')])
def test_wrong_classes_are_one_line(tmp_path, options, message):
  _, folder = _folders(tmp_path)
  with pytest.raises(ValueError, match=message):
    registry.build('images', **folder, **options)


@pytest.mark.parametrize('shape, message', [
    ((5, 5, 3), 'images of model cnn_small must be 12 x 12'),
    ((3, 14, 18), 'images of model cnn_small must be 12 x 12'),
    ((784,), r'x_train must be \[examples, height, width\(')])
def test_wrong_shapes_are_one_line(tmp_path, shape, message):
  options = _npz(tmp_path, _images(shape=shape), np.arange(12) % 3,
                 writer_train=_clients(12))
  with pytest.raises(ValueError, match=message):
    registry.build('images', **options, num_classes=3)
