"""Tests of the conversion of images in tasks.images.data."""

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest
import tensorflow as tf

from tasks import task
from tasks.images import data as data_lib
from tasks.sources import records

SHAPE = (28, 28)


def _raw(pixels, labels):
  return records.ArraysByClient(
      {'image': pixels, 'label': np.asarray(labels)}, np.full(len(pixels), 'c'))


def _images(pixels, labels, dark_ink=False, num_classes=10):
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
  actual = _images(pixels, labels, dark_ink).examples('c')
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
    x = _images(pixels, [1], dark_ink).examples('c')['x']
    assert x[0, 3, 4] == 255 and x.sum() == 255


@pytest.mark.parametrize('pixels, labels, message', [
    (np.full([2, 784], 256), [0, 1], r'image: pixels must be in \[0, 255\], found 256'),
    (np.full([2, 784], -1), [0, 1], r'image: pixels must be in \[0, 255\], found -1'),
    (np.full([2, 784], 1.5), [0, 1], r'image: pixels must be in \[0, 1\], found 1.5'),
    (np.full([2, 784], np.nan), [0, 1], r'image: pixels must be in \[0, 1\], found nan'),
    (np.zeros([2, 784]), [0, 10], r'label must be in \[0, 10\), found 10 in example 1'),
    (np.zeros([2, 784]), [-1, 1], r'label must be in \[0, 10\), found -1 in example 0'),
])
def test_bad_values_are_named_and_fail_in_graphs_too(pixels, labels, message):
  with pytest.raises(task.BadClientError, match="client 'c': " + message):
    _images(pixels, labels).examples('c')
  with pytest.raises(tf.errors.InvalidArgumentError, match='must be in'):
    _in_graph(pixels, np.array(labels), False)


def test_wrong_shapes_are_named():
  with pytest.raises(ValueError, match=r'shape \[28, 28\] or \[784\], found \[27, 28\]'):
    _images(np.zeros([1, 27, 28]), [0])
  with pytest.raises(ValueError, match=r'one integer per example, found the shape \[1\]'):
    _images(np.zeros([1, 784]), [[0]])
