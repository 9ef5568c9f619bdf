"""The task of images of any size: shapes, classes, models, and their conversion."""

import json

import hypothesis
from hypothesis import strategies as st
import numpy as np
from PIL import Image
import pytest
import tensorflow as tf

from tasks import registry, task as task_lib
from tasks.images import data as data_lib
from tasks.sources import records


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


@pytest.mark.parametrize('first, read', [([[0, 1]], 1), ([[0.0, 1]], 255)])
def test_fractions_of_one_client_scale_no_others(tmp_path, first, read):
  path, images = tmp_path / 'a.jsonl', {f'c{i}': first for i in range(4)}
  options = dict(data_source='jsonl', data_path=str(path), num_classes=2,
                 model='softmax')
  for fractions in ([], [[[0.5, 1]]]):
    path.write_text(''.join(
        json.dumps({'client': client, 'pixels': image, 'label': i % 2}) + '\n'
        for i, (client, image) in enumerate([
            *images.items(), *(('other', image) for image in fractions)])))
    if fractions and read == 1:
      with pytest.raises(ValueError, match='must be an integer, found a float'):
        registry.build('images', **options)
    task = registry.build('images', **options, skip_bad_clients=True)
    found = [task.train.examples(client)['x'].max() for client in task.train.client_ids
             if client != 'other']
    assert found and set(found) == {read}


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


SHAPE = (28, 28)


def _raw(pixels, labels):
  return records.ArraysByClient(
      {'image': pixels, 'label': np.asarray(labels)}, np.full(len(pixels), 'c'))


def _converted(pixels, labels, dark_ink=False, num_classes=10):
  return data_lib.images(
      _raw(pixels, labels), num_classes=num_classes, dark_ink=dark_ink, shape=SHAPE)


def _in_graph(pixels, labels, dark_ink):
  _, convert = data_lib._conversions(pixels.dtype.kind == 'f', 10, dark_ink, (), SHAPE)
  actual = tf.function(convert)(
      {'image': tf.constant(pixels), 'label': tf.constant(labels)})
  return {name: tensor.numpy() for name, tensor in actual.items()}


@pytest.mark.slow
@hypothesis.settings(deadline=None, max_examples=60)
@hypothesis.given(
    dtype=st.sampled_from(['uint8', 'int16', 'int64', 'uint64', 'float16', 'float32',
                           'float64', 'bool']),
    label_dtype=st.sampled_from(['int8', 'uint8', 'int32', 'int64', 'uint64']),
    shape=st.sampled_from([(28, 28), (784,), (28, 28, 1)]), dark_ink=st.booleans(),
    seed=st.integers(0, 2**32))
def test_graphs_make_the_bytes_that_python_makes(
    dtype, label_dtype, shape, dark_ink, seed):
  rng = np.random.default_rng(seed)
  pixels = rng.random([3, *shape])
  if dtype == 'bool':
    pixels = pixels < 0.5
  elif 'float' not in dtype:
    pixels = np.floor(256 * pixels)
  pixels = pixels.astype(dtype)
  labels = rng.integers(10, size=3).astype(label_dtype)
  actual = _converted(pixels, labels, dark_ink).examples('c')
  in_graph = _in_graph(pixels, labels, dark_ink)
  for name, (dtype, shape) in data_lib.element_spec(SHAPE).items():
    assert actual[name].dtype == in_graph[name].dtype == dtype
    assert actual[name].shape == in_graph[name].shape == (3, *shape)
    np.testing.assert_array_equal(actual[name], in_graph[name])


@pytest.mark.parametrize('dtype, paper, ink', [
    ('uint8', 0, 255), ('float32', 0.0, 1.0), ('float64', 0.0, 1.0)])
def test_ink_ends_up_near_255(dtype, paper, ink):
  light = np.full([1, 28, 28], paper, dtype)
  light[0, 3, 4] = ink
  dark = (ink - light).astype(dtype)
  for pixels, dark_ink in ((light, False), (dark, True)):
    x = _converted(pixels, [1], dark_ink).examples('c')['x']
    assert x[0, 3, 4] == 255 and x.sum() == 255


@pytest.mark.parametrize('pixels, labels, message', [
    (np.full([2, 784], 256), [0, 1], r'image: pixels must be in \[0, 255\], found 256'),
    (np.full([2, 784], -1), [0, 1], r'image: pixels must be in \[0, 255\], found -1'),
    (np.full([2, 784], 1.5), [0, 1], r'image: pixels must be in \[0, 1\], found 1.5'),
    (np.full([2, 784], np.nan), [0, 1], r'image: pixels must be in \[0, 1\], found nan'),
    (np.zeros([2, 784]), [0, 10], r'label must be in \[0, 10\), found 10 in example 1'),
    (np.zeros([2, 784]), [-1, 1], r'label must be in \[0, 10\), found -1 in example 0'),])
def test_bad_values_are_named_and_fail_in_graphs_too(pixels, labels, message):
  with pytest.raises(task_lib.BadClientError, match="client 'c': " + message):
    _converted(pixels, labels).examples('c')
  with pytest.raises(tf.errors.InvalidArgumentError, match='must be in'):
    _in_graph(pixels, np.array(labels), False)


def test_wrong_shapes_are_named():
  with pytest.raises(ValueError, match=r'shape \[28, 28\] or \[784\], found \[27, 28\]'):
    _converted(np.zeros([1, 27, 28]), [0])
  with pytest.raises(ValueError, match=r'one integer per example, found the shape \[1\]'):
    _converted(np.zeros([1, 784]), [[0]])
